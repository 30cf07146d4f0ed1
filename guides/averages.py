"""
Title: Averages of the weights
Author: keras_tfopt contributors
Date created: 2026/11/20
Last modified: 2026/11/20
Description: Train with the weights, validate and save with their moving average.
Accelerator: None
"""

"""
## Where training has been

With a large constant learning rate and small batches, training moves around the minimum instead of
reaching it. The average of the last weights is nearer to the minimum. `MovingAverage` keeps such an
average, and `EvaluateWithAverages` puts it into the model while `fit` validates. Training itself
goes on with the weights.

Here the same network is validated both ways after each epoch, on scanned digits that come with
scikit-learn. The best averages are saved in a file. A model without an optimizer loads them.
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import keras
import numpy as np
from keras import layers
from matplotlib.figure import Figure
from report import STYLES, backend_name, options, save
from sklearn.datasets import load_digits

import keras_tfopt

args = options(__file__, fast="fewer epochs")
keras.utils.set_random_seed(args.seed)
epochs = 20 if not args.fast else 8

"""
## Data

There are 1,797 scans, a third of them to validate. A tenth of the training labels is made wrong.
"""

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32").reshape(-1, 8, 8, 1)
rng = np.random.default_rng(args.seed)
order = rng.permutation(len(images))
train, validation = np.split(order, [1200])
noisy = labels[train].copy()
wrong = rng.random(len(noisy)) < 0.1
noisy[wrong] = rng.integers(0, 10, wrong.sum())


def network():
    model = keras.Sequential([keras.Input((8, 8, 1))])
    model.add(layers.Conv2D(16, 3, activation="relu"))
    model.add(layers.Flatten())
    model.add(layers.Dense(32, activation="relu"))
    model.add(layers.Dense(10))
    return model


loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

"""
## Training

The decay of the averages is 0.99, and smaller in the first steps.
"""

model = network()
inner = keras_tfopt.Momentum(0.05)
optimizer = keras_tfopt.MovingAverage(inner, average_decay=0.99, num_updates=True)
model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])


class ValidateWeights(keras.callbacks.Callback):
    """Validates with the weights themselves, in addition to what `fit` does."""

    def __init__(self):
        super().__init__()
        self.accuracy = []

    def on_epoch_end(self, epoch, logs=None):
        results = self.model.evaluate(
            images[validation], labels[validation], verbose=0, return_dict=True
        )
        self.accuracy.append(results["accuracy"])


raw = ValidateWeights()
with tempfile.TemporaryDirectory() as folder:
    best = Path(folder) / "best.weights.h5"
    history = model.fit(
        images[train],
        noisy,
        batch_size=16,
        epochs=epochs,
        validation_data=(images[validation], labels[validation]),
        callbacks=[
            keras_tfopt.callbacks.EvaluateWithAverages(),
            keras_tfopt.callbacks.AveragesCheckpoint(
                best, save_weights_only=True, save_best_only=True, monitor="val_accuracy"
            ),
            raw,
        ],
        verbose=0,
    )
    averaged = history.history["val_accuracy"]
    plain = network()
    plain.load_weights(best)
    classes = plain.predict(images[validation], verbose=0).argmax(1)
    kept = np.mean(classes == labels[validation])

"""
## Results
"""

print(f"keras_tfopt {keras_tfopt.__version__}, {keras.backend.backend()}, seed {args.seed}")
print(f"{'epoch':>5} {'weights':>8} {'averages':>9}")
for epoch, (a, b) in enumerate(zip(raw.accuracy, averaged, strict=True), start=1):
    print(f"{epoch:>5} {a:>8.3f} {b:>9.3f}")
half = epochs // 2
print(
    f"Mean over the last {epochs - half} epochs: weights {np.mean(raw.accuracy[half:]):.3f}, "
    f"averages {np.mean(averaged[half:]):.3f}"
)
print(f"Best averages, loaded into a model without optimizer: {kept:.3f}")

figure = Figure(figsize=(8, 5), layout="constrained")
panel = figure.subplots()
sides = {"weights": raw.accuracy, "averages of the weights": averaged}
for (side, accuracies), look in zip(sides.items(), STYLES):
    panel.plot(range(1, epochs + 1), accuracies, **look, label=side)
panel.xaxis.get_major_locator().set_params(integer=True)
panel.set(
    title=f"Digits, a tenth of the labels wrong. {backend_name()}",
    xlabel="epoch",
    ylabel="validation accuracy (fraction right)",
)
panel.legend()
panel.grid(alpha=0.3)
save(figure, args.out)
