"""
Title: Sparse linear models
Author: keras_tfopt contributors
Date created: 2026/11/20
Last modified: 2026/11/20
Description: Ftrl, AdagradDA and the proximal methods on text: zero weights against accuracy.
Accelerator: None
"""

"""
## Weights that are zero

A linear model of text has a weight for each word and class, and most of them say little. A penalty
$\\lambda |x|$ in the loss makes such weights small, but a step of gradient descent nearly never
ends at zero exactly. Ftrl, AdagradDA and the proximal methods do not put the penalty into the
gradient: they solve for the new weight with the penalty as it is, and where the gradients are
weaker than the penalty, the solution is zero. A program need not store such weights.

The text is the source of Python's standard library. From 100 tokens, the model tells which of eight
packages they are from.
"""

import keras
import numpy as np
from data import snippets
from keras import layers
from matplotlib.figure import Figure
from report import STYLES, backend_name, options, save

import keras_tfopt

args = options(__file__, fast="one learning rate, one penalty, one epoch, part of the files")
print(f"keras_tfopt {keras_tfopt.__version__}, {backend_name()}")

words = 5000
(train, validation, test), packages = snippets(
    width=100, classes=8, words=words, max_files=200 if args.fast else None
)
print(f"{len(train[0])} snippets to train on, {len(test[0])} to test, of {', '.join(packages)}")
usual = np.bincount(train[1]).argmax()
print(f"Always the most frequent package would be right in {np.mean(test[1] == usual):.3f}.")

"""
## The contenders, and one scale for their penalties

All get the same penalties $\\lambda$, meant for the loss of one step. Ftrl minimizes the sum of the
losses of all steps plus its penalty once, so it is given $\\lambda$ times the number of steps.
AdagradDA multiplies by the number of steps itself. Last comes Adagrad of Keras with the penalty
in the loss, as a regularizer of the layer.
"""

epochs, batch = (12, 256) if not args.fast else (1, 256)
steps = -(-len(train[0]) // batch) * epochs


def ftrl(rate, penalty):
    return keras_tfopt.Ftrl(rate, l1_regularization_strength=penalty * steps)


def adagrad_da(rate, penalty):
    return keras_tfopt.AdagradDA(rate, l1_regularization_strength=penalty)


def proximal_adagrad(rate, penalty):
    return keras_tfopt.ProximalAdagrad(rate, l1_regularization_strength=penalty)


def proximal_gradient_descent(rate, penalty):
    return keras_tfopt.ProximalGradientDescent(rate, l1_regularization_strength=penalty)


def adagrad(rate, penalty):
    return keras.optimizers.Adagrad(rate)


sides = {
    "Ftrl": ftrl,
    "AdagradDA": adagrad_da,
    "ProximalAdagrad": proximal_adagrad,
    "ProximalGradientDescent": proximal_gradient_descent,
    "Keras Adagrad, L1 in the loss": adagrad,
}
penalties = (0.0, 3e-5, 2e-4, 1e-3) if not args.fast else (1e-4,)
rates = (10.0, 100.0) if not args.fast else (10.0,)

"""
## Training
"""


def trained(side, rate, penalty):
    """Validation accuracy, test accuracy and the fraction of weights that are not zero."""
    keras.utils.set_random_seed(args.seed)
    in_the_loss = keras.regularizers.L1(penalty) if side.startswith("Keras") else None
    model = keras.Sequential(
        [keras.Input((words,)), layers.Dense(len(packages), kernel_regularizer=in_the_loss)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=sides[side](rate, penalty), loss=loss)
    model.fit(*train, batch_size=batch, epochs=epochs, verbose=0)
    kernel, bias = model.get_weights()
    scores = [np.mean((x @ kernel + bias).argmax(1) == y) for x, y in (validation, test)]
    return *scores, np.mean(kernel != 0)


results = {side: [] for side in sides}  # by penalty, with the learning rate that was best there
print(f"\n{'':30} {'penalty':>8} {'rate':>5} {'validation':>11} {'test':>6} {'not zero':>9}")
for side in sides:
    for penalty in penalties:
        runs = {rate: trained(side, rate, penalty) for rate in rates}
        rate = max(runs, key=lambda rate: runs[rate][0])
        chosen, tested, kept = runs[rate]
        results[side].append((chosen, tested, kept))
        print(f"{side:30} {penalty:>8g} {rate:>5g} {chosen:>11.3f} {tested:>6.3f} {kept:>9.4f}")

"""
## Results

The table shows for each contender the sparsest model whose accuracy on the validation snippets is
at most 0.03 below that of the best model, and how many of its weights are left.
"""

goal = max(chosen for runs in results.values() for chosen, _, _ in runs) - 0.03
print(f"\nThe sparsest model with a validation accuracy of {goal:.3f}:")
for side, runs in results.items():
    good = [run for run in runs if run[0] >= goal]
    if good:
        _, tested, kept = min(good, key=lambda run: run[2])
        print(f"{side:30} {kept:.1%} of the weights, test accuracy {tested:.3f}")
    else:
        print(f"{side:30} none of them")
error = np.sqrt(tested * (1 - tested) / len(test[1]))
print(f"Each accuracy has a standard error of at least {error:.3f}: snippets of a file are alike.")

figure = Figure(figsize=(8, 5.5), layout="constrained")
panel = figure.subplots()
for (side, runs), look in zip(results.items(), STYLES):
    _, accuracies, kept = zip(*runs)
    panel.plot(100 * np.array(kept), accuracies, **look, label=side)
panel.set_xscale("log")
panel.xaxis.set_major_formatter("{x:g}")
panel.set(
    title=f"Which package is a snippet from? {backend_name()}",
    xlabel="weights that are not zero (%, logarithmic)",
    ylabel="test accuracy (fraction right)",
)
panel.grid(alpha=0.3)
figure.legend(loc="outside lower center", ncols=2)
save(figure, args.out)
