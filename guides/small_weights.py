"""
Title: Clipping and decoupled decay
Author: keras_tfopt contributors
Date created: 2026/11/20
Last modified: 2026/11/20
Description: Three ways to keep weights small with Adam, and how each depends on the learning rate.
Accelerator: None
"""

"""
## Three ways to keep weights small

- **L2 in the loss** adds the weight to the gradient. Adam divides gradients by their usual size, so
  a weight with large gradients is held back less than one with small gradients.
- **Decoupled decay** takes a part of each weight away before the step. Adam's moments do not see
  it.
- **Clipping of variables** changes weights only where a norm exceeds a limit. Here it is the norm
  of all weights into a unit.

The last two are wrappers and go around any optimizer, of this package or of Keras:
`keras_tfopt.DecoupledWeightDecay` and `keras_tfopt.VariableClipping`. The arguments `clipnorm`,
`clipvalue` and `global_clipnorm` of every optimizer clip gradients. All sides here have
`global_clipnorm`.
"""

import keras
import numpy as np
from data import digits
from keras import layers
from matplotlib.figure import Figure
from report import accuracy, backend_name, grid, options, save

import keras_tfopt

args = options(__file__, fast="one learning rate, two strengths, one epoch")
print(f"keras_tfopt {keras_tfopt.__version__}, {backend_name()}")

"""
## The task

The network must not learn its data by heart: of 1,000 scans of digits, a quarter has a random
label. The 1,000 scans to choose by and the 3,000 to test have the right ones.
"""

images, labels = digits()
order = np.random.default_rng(args.seed).permutation(len(images))
train, validation, test = ((images[part], labels[part]) for part in np.split(order, [1000, 2000]))
rng = np.random.default_rng(args.seed)
wrong = rng.random(len(train[1])) < 0.25
train[1][wrong] = rng.integers(0, 10, wrong.sum())
epochs = 20 if not args.fast else 1
rates = (0.001, 0.004, 0.016) if not args.fast else (0.004,)

"""
## The sides

`scale_by_learning_rate=True` multiplies the decay by the learning rate, as `keras.optimizers.AdamW`
does. The default does not, as in the paper and in TensorFlow 1. Biases do not decay:
`keras_tfopt.no_vectors`.

Both kinds of decay get the same strengths. These span a wide range, because the two kinds do not
have the same units.
"""


def adam(rate):
    return keras_tfopt.Adam(rate, global_clipnorm=5.0)


def decoupled(rate, strength):
    return keras_tfopt.DecoupledWeightDecay(
        adam(rate), strength, decay_variables=keras_tfopt.no_vectors, scale_by_learning_rate=True
    )


def clipped(rate, limit):
    return keras_tfopt.VariableClipping(adam(rate), {"kernel$": [0]}, limit)


strengths = (1e-3, 1e-2, 1e-1, 1.0, 10.0) if not args.fast else (1e-3, 1e-1)
limits = (0.5, 1.0, 2.0, 4.0) if not args.fast else (1.0, 2.0)
sides = {
    "L2 in the loss": (lambda rate, _: adam(rate), strengths),
    "Decoupled decay": (decoupled, strengths),
    "Clipping of units": (clipped, limits),
}

"""
## Training
"""


def trained(side, rate, strength):
    """The model, its validation accuracy and its test accuracy."""
    keras.utils.set_random_seed(args.seed)
    penalty = keras.regularizers.L2(strength) if side.startswith("L2") else None
    model = keras.Sequential([keras.Input(images.shape[1:]), layers.Flatten()])
    model.add(layers.Dense(128, activation="relu", kernel_regularizer=penalty))
    model.add(layers.Dense(10, kernel_regularizer=penalty))
    optimizer = sides[side][0](rate, strength) if side in sides else adam(rate)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss)
    model.fit(*train, batch_size=100, epochs=epochs, verbose=0)
    return model, accuracy(model, validation), accuracy(model, test)


plain = {rate: trained("Adam alone", rate, 0) for rate in rates}
runs = {
    side: {(rate, s): trained(side, rate, s) for rate in rates for s in values}
    for side, (_, values) in sides.items()
}

"""
## Results

Learning rate and strength are chosen by the validation images. The test images are used once.
"""


def unit_norms(model):
    return np.linalg.norm(model.get_weights()[0], axis=0)


head = f"{'':18} {'rate':>6} {'strength':>9} {'validation':>11} {'test':>6}"
print(f"{head} {'norms of the first 128 units':>29}")
rate = max(rates, key=lambda rate: plain[rate][1])
best = {"Adam alone": (rate, 0, *plain[rate])}
for side, tried in runs.items():
    choice = max(tried, key=lambda choice: tried[choice][1])
    best[side] = (*choice, *tried[choice])
for side, (rate, strength, model, chosen, tested) in best.items():
    norms = unit_norms(model)
    print(
        f"{side:18} {rate:>6g} {strength:>9g} {chosen:>11.3f} {tested:>6.3f} "
        f"{norms.min():>13.2f} to {norms.max():.2f}"
    )
error = np.sqrt(tested * (1 - tested) / len(test[0]))
print(f"Test accuracies have a standard error of about {error:.3f}; another --seed, other numbers.")
excess = max(
    unit_norms(model).max() / limit - 1
    for (_, limit), (model, *_) in runs["Clipping of units"].items()
)
print(f"The largest norm of a clipped unit exceeds its limit by {max(0, excess):.1e} of it.")

print("\nAccuracy lost with the best strength, if the learning rate is another:")
for side, tried in runs.items():
    _, strength, _, chosen, _ = best[side]
    worst = min(tried[rate, strength][1] for rate in rates)
    print(f"{side:18} {chosen - worst:.3f}")

figure = Figure(figsize=(14, 4.5), layout="constrained")
alone = f"Adam alone {best['Adam alone'][3]:.3f}"
figure.suptitle(f"Validation accuracy (fraction right); {alone}. {backend_name()}")
panels = figure.subplots(1, len(sides), sharey=True, squeeze=False)[0]
for panel, (side, (_, values)) in zip(panels, sides.items()):
    scores = [[runs[side][rate, s][1] for s in values] for rate in rates]
    grid(panel, scores, [f"{rate:g}" for rate in rates], values, low=0.7, high=0.86)
    limit = side.startswith("Clipping")
    panel.set(title=side, xlabel="limit of the norm" if limit else "strength")
panels[0].set_ylabel("learning rate")
save(figure, args.out)
