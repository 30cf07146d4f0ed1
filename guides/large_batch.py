"""
Title: Large batches with LARS
Author: keras_tfopt contributors
Date created: 2026/11/20
Last modified: 2026/11/20
Description: Accuracy against batch size, with warm-up, linear scaling and polynomial decay.
Accelerator: None
"""

"""
## Why large batches are hard

With batches that are 24 times as large, an epoch has 24 times fewer steps. The usual recipe makes
each step larger in the same proportion (linear scaling). The learning rate climbs while the weights
are still random (warm-up), and then falls by a polynomial. With very large batches this fails: a
learning rate that is right for one layer is too large for another. LARS gives each layer a step in
proportion to the size of its weights.

Here both train the same network for the same number of epochs with batches of 125 to 3,000
images, from the same initial weights and with the same grid of learning rates.
"""

import keras
import numpy as np
from data import digits
from keras import layers
from matplotlib.figure import Figure
from report import STYLES, accuracy, backend_name, options, save

import keras_tfopt

args = options(__file__, fast="one learning rate, two batch sizes, two epochs")
print(f"keras_tfopt {keras_tfopt.__version__}, {backend_name()}")

"""
## The data

There are 5,000 scans of digits: 3,000 to train on, 1,000 to choose the learning rate by, and 1,000
to test.
"""

images, labels = digits()
order = np.random.default_rng(args.seed).permutation(len(images))
train, validation, test = ((images[part], labels[part]) for part in np.split(order, [3000, 4000]))

"""
## The network

Normalization keeps the signals in a usual range, also after a first step that was too large.
"""


def network():
    model = keras.Sequential([keras.Input(images.shape[1:]), layers.Flatten()])
    for units in (128, 128):
        model.add(layers.Dense(units, use_bias=False))
        model.add(layers.BatchNormalization(momentum=0.9))
        model.add(layers.ReLU())
    model.add(layers.Dense(10))
    return model


"""
## The schedule, and both sides

The learning rate is given for the smallest batch. For a batch that is k times as large, it is
multiplied by k. The first fifth of the steps is warm-up. After that, the rate decays with power 2.
`keras_tfopt.schedules.WarmUpPolynomialDecay` does both.

LARS multiplies the learning rate by `eeta` and by the ratio of two norms. The paper has
`eeta=0.001` and learning rates from 1 to 30. With `eeta=0.1` and a hundredth of those rates, the
steps are the same, and one grid of learning rates fits both sides. LARS usually skips biases and
the parameters of normalization layers: `keras_tfopt.normalization_and_bias` finds them in a model.
"""

smallest = 125
batches = (125, 375, 1000, 3000) if not args.fast else (375, 3000)
base_rates = (0.005, 0.02, 0.08, 0.32) if not args.fast else (0.08,)
epochs = 10 if not args.fast else 2


def schedule(base_rate, batch):
    steps = -(-len(train[0]) // batch) * epochs
    return keras_tfopt.schedules.WarmUpPolynomialDecay(
        base_rate * batch / smallest, warmup_steps=max(1, steps // 5), total_steps=steps
    )


sides = {
    "Keras SGD, momentum 0.9": lambda rate, model: keras.optimizers.SGD(rate, momentum=0.9),
    "keras_tfopt LARS": lambda rate, model: keras_tfopt.LARS(
        rate, momentum=0.9, eeta=0.1, skip_list=keras_tfopt.normalization_and_bias(model)
    ),
}

"""
## Training
"""


def accuracies(side, base_rate, batch):
    """Validation and test accuracy at the end."""
    keras.utils.set_random_seed(args.seed)
    model = network()
    model.compile(
        optimizer=sides[side](schedule(base_rate, batch), model),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(*train, batch_size=batch, epochs=epochs, verbose=0)
    scores = [accuracy(model, data) for data in (validation, test)]
    run = f"{side:24} batch {batch:>4}, base rate {base_rate:<5g}"
    print(f"{run} validation {scores[0]:.3f}", flush=True)
    return scores


results = {
    side: np.array([[accuracies(side, rate, batch) for rate in base_rates] for batch in batches])
    for side in sides
}  # by side: batch size, learning rate, validation or test

"""
## Results

There are two answers for each side. **Scaled**: the learning rate is chosen once, with the smallest
batch, and then scaled. **Tuned**: it is chosen anew for each batch size, from the same grid. No
choice uses the test images.
"""

tested = {}
for side, scores in results.items():
    once = scores[0, :, 0].argmax()
    anew = scores[:, :, 0].argmax(axis=1)
    tested[f"{side}, scaled"] = scores[:, once, 1]
    tested[f"{side}, tuned"] = scores[np.arange(len(batches)), anew, 1]
    chosen = ", ".join(f"{base_rates[n]:g}" for n in anew)
    print(f"\n{side}: base rate {base_rates[once]:g} for all; tuned for each batch: {chosen}")
print("\nTest accuracy" + "".join(f"{batch:>12}" for batch in batches))
for name, values in tested.items():
    print(f"{name:32}" + "".join(f"{value:>8.3f}" for value in values))
for name in ("scaled", "tuned"):
    sgd, lars = (tested[f"{side}, {name}"][-1] for side in sides)
    print(f"At batch {batches[-1]}, {name}: LARS minus SGD is {lars - sgd:+.3f}")
error = max(np.sqrt(v * (1 - v) / len(test[0])).max() for v in tested.values())
print(f"Each accuracy has a standard error of up to {error:.3f}; another --seed, other numbers.")

figure = Figure(figsize=(8, 5.5), layout="constrained")
panel = figure.subplots()
for (name, values), look in zip(tested.items(), STYLES):
    panel.plot(batches, values, **look, label=name)
panel.set_xscale("log")
panel.set_xticks(batches, [f"{batch:,}" for batch in batches])
panel.minorticks_off()
panel.set(
    title=f"Digits, {epochs} epochs. {backend_name()}",
    xlabel="batch size (images)",
    ylabel="test accuracy (fraction right)",
)
panel.grid(alpha=0.3)
figure.legend(loc="outside lower center", ncols=2)
save(figure, args.out)
