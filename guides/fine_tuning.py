"""
Title: Fine-tuning with groups
Author: keras_tfopt contributors
Date created: 2026/11/23
Last modified: 2026/11/23
Description: A trained network learns new digits, with learning rates that fall with the depth.
Accelerator: None
"""

"""
## Why several learning rates

The first layers of a trained network are useful for new images, too: they find edges, for example.
The last layers have to learn anew. One learning rate for all layers is too large for the first ones
or too small for the last ones. With `groups`, an optimizer has settings by the path of a variable.
`keras_tfopt.layer_decay` makes groups with a learning rate for each level of a model: the further
the level is from the head, the smaller its rate.

Here the first blocks of a MobileNet of `keras.applications` learn the digits from 0 to 4. Then they
get a new head, and ten images of each of the other digits. The later blocks of the network are left
out, because the images are too small for them.
"""

import keras
import numpy as np
from data import digits
from keras import layers
from matplotlib.figure import Figure
from report import STYLES, backend_name, options, save

import keras_tfopt

args = options(__file__, fast="one epoch of each training, few images")
print(f"keras_tfopt {keras_tfopt.__version__}, {backend_name()}")

"""
## The data

The images are scans of 28x28 pixels, with a margin, in the three colors that the network takes.
"""

images, labels = digits()
images = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0))).repeat(3, axis=-1)
order = np.random.default_rng(args.seed).permutation(len(images))
images, labels = images[order], labels[order]
old, new = labels < 5, labels >= 5
known = images[old][:2000], labels[old][:2000]
few = np.concatenate([np.flatnonzero(labels == digit)[:10] for digit in range(5, 10)])
test = images[new][-1000:], labels[new][-1000:] - 5
assert few.max() < np.flatnonzero(new)[-1000]
train = images[few], labels[few] - 5
if args.fast:
    known, test = (tuple(part[:200] for part in data) for data in (known, test))
print(
    f"{len(known[0])} images of known digits, {len(train[0])} of new ones, {len(test[0])} to test"
)

"""
## A trained network
"""


def compiled(model, optimizer):
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def with_head(backbone):
    return keras.Sequential([keras.Input((32, 32, 3)), backbone, layers.Dense(5, name="head")])


keras.utils.set_random_seed(args.seed)
whole = keras.applications.MobileNet((32, 32, 3), alpha=0.25, include_top=False, weights=None)
for layer in whole.layers:
    if isinstance(layer, layers.BatchNormalization):
        layer.momentum = 0.8  # trainings are short, and statistics have to follow
features = whole.get_layer("conv_pw_5_relu").output
backbone = keras.Model(whole.input, layers.GlobalAveragePooling2D()(features))
first = compiled(with_head(backbone), keras_tfopt.Adam(3e-3))
epochs = 1 if args.fast else 6
history = first.fit(*known, batch_size=50, epochs=epochs, verbose=0)
print(f"Known digits: accuracy {history.history['accuracy'][-1]:.3f} in the last epoch")
learned = backbone.get_weights()

"""
## Groups

Here `layer_decay` spreads the layers over six levels. The factor of the head is 1. `no_decay` names
the variables without weight decay: biases, vectors of normalization layers, and embeddings. All
groups that match a variable apply.
"""

model = with_head(backbone)
groups = [keras_tfopt.layer_decay(model, 0.7, depth=6), keras_tfopt.no_decay(model)]
for group, settings in groups[0].items():
    rounded = {name: round(value, 6) for name, value in settings.items()}
    print(f"{group.count('|') + 1:3} variables: {rounded}")

"""
## One learning rate, and one for each level

Both start at the same weights, and take the same steps through the same images. The learning rate
in the legend is that of the head.
"""

sides = {"one rate": None, "layer decay": groups}
rates = (3e-3,) if args.fast else (3e-3, 1e-2, 3e-2)
steps = 2 if args.fast else 15
curves = {}
for side, chosen in sides.items():
    for rate in rates:
        backbone.set_weights(learned)
        keras.utils.set_random_seed(args.seed + 1)
        model.layers[-1].set_weights(
            [0.1 * np.random.normal(size=w.shape) for w in model.layers[-1].get_weights()]
        )
        compiled(model, keras_tfopt.Adam(rate, weight_decay=0.05, groups=chosen))
        curves[side, rate] = model.fit(
            *train, batch_size=25, epochs=steps, verbose=0, validation_data=test
        ).history["val_accuracy"]
        print(f"{side:12} rate {rate:<6g} test accuracy {curves[side, rate][-1]:.3f}", flush=True)

for side in sides:
    best = max(rates, key=lambda rate: curves[side, rate][-1])
    print(f"Best of {side}: rate {best:g}, {curves[side, best][-1]:.3f}")
error = 0.5 / np.sqrt(len(test[0]))
print(f"Each accuracy has a standard error of up to {error:.3f}; another --seed, other numbers.")

figure = Figure(figsize=(8, 5.5), layout="constrained")
panel = figure.subplots()
for ((side, rate), values), look in zip(curves.items(), STYLES):
    panel.plot(range(1, len(values) + 1), values, **look, label=f"{side}, {rate:g}")
panel.set(
    title=f"Ten images of each new digit. {backend_name()}",
    xlabel="epoch",
    ylabel="test accuracy (fraction right)",
)
panel.grid(alpha=0.3)
figure.legend(loc="outside lower center", ncols=3)
save(figure, args.out)
