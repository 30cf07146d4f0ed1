"""
Title: From TensorFlow Addons
Author: keras_tfopt contributors
Date created: 2026/11/23
Last modified: 2026/11/23
Description: A program of Keras 2 and TensorFlow Addons goes on under Keras 3, step for step.
Accelerator: None
"""

"""
## Introduction

`guides/from_addons/train.py` is a program of Keras 2.15 and TensorFlow Addons 0.23: scanned digits,
LAMB with a cyclical learning rate and weight decay, and a moving average around it. TensorFlow
Addons is no longer developed, and does not run with Keras 3. This guide runs the same program with
Keras 3 on any backend, from the same weights and on the same batches. It compares the losses with
those of the original, which are in `guides/from_addons/training.json`.

    pip install '.[guides,jax]'
    KERAS_BACKEND=jax python guides/from_addons.py

## Setup

One import changes. Names, order and defaults of arguments are those of TensorFlow Addons.

    import tensorflow_addons as tfa          import keras_tfopt.addons as tfa_optimizers
    tfa.optimizers.LAMB(...)                 tfa_optimizers.LAMB(...)
    tfa.callbacks.AverageModelCheckpoint     tfa_optimizers.AverageModelCheckpoint
"""

import json
import os
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from matplotlib.figure import Figure
from report import STYLES, options
from sklearn.datasets import load_digits

import keras_tfopt
import keras_tfopt.addons as tfa_optimizers

args = options(__file__, fast="changes nothing: it takes seconds")
HERE = Path(__file__).parent / "from_addons"
program = json.loads((HERE / "training.json").read_text())

"""
## The data

The data are those of the program: 1,797 scans that come with scikit-learn, in batches of 256. The
same generator draws the batches.
"""

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32")
order = np.random.RandomState(0).permutation(len(images))
training, test = order[:1400], order[1400:]
batches = np.random.RandomState(1).randint(0, len(training), (300, 256))

"""
## The program

`tf.keras` becomes `keras`. The optimizers stay as they are. The initial weights are read from the
original, because Keras 3 would draw others.
"""


def optimizer():
    rate = tfa_optimizers.TriangularCyclicalLearningRate(0.001, 0.005, step_size=50)
    lamb = tfa_optimizers.LAMB(rate, weight_decay=0.01, exclude_from_weight_decay=["bias"])
    return tfa_optimizers.MovingAverage(lamb, average_decay=0.95)


def network(optimizer):
    hidden, logits = keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)
    model = keras.Sequential([keras.Input((64,)), hidden, logits])
    with np.load(HERE / "start.npz") as start:
        model.set_weights([start[name] for name in start.files])
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def train(model):
    losses = []
    for rows in batches:
        rows = training[rows]
        losses.append(
            float(model.train_on_batch(images[rows], labels[rows], return_dict=True)["loss"])
        )
        model.reset_metrics()  # the loss of this batch, not the mean of all
    return losses


def accuracy(model):
    return model.evaluate(images[test], labels[test], verbose=0, return_dict=True)["accuracy"]


model = network(optimizer())
losses = train(model)
of_weights = accuracy(model)

"""
The same call as in TensorFlow Addons replaces the weights by their averages.
`keras_tfopt.averaged(model)` does it for a while only, and
`keras_tfopt.callbacks.EvaluateWithAverages` in `fit`.
"""

model.optimizer.assign_average_vars(model.trainable_variables)
of_averages = accuracy(model)

"""
## What was saved

The program has saved the configuration of its optimizer, by `tf.keras.optimizers.serialize`. With
`keras_tfopt.addons` imported, Keras 3 reads it, also inside of a saved model, and finds the classes
by the names that TensorFlow Addons registered, such as "Addons>LAMB".
"""

saved = keras.optimizers.deserialize(program["optimizer"])
print(saved)
again = train(network(saved))
print(f"Losses with the saved configuration: {np.max(np.abs(np.subtract(again, losses))):.2g} away")

"""
## Results
"""

apart = np.abs(np.subtract(losses, program["loss"]))
print(f"keras_tfopt {keras_tfopt.__version__}, {keras.backend.backend()}")
print(f"{'step':>5} {'TF Addons':>10} {'Keras 3':>10}")
for t in [0, 1, 2, 5, 10, 20, 50, 100, 200, 299]:
    print(f"{t + 1:>5} {program['loss'][t]:>10.5f} {losses[t]:>10.5f}")
print(f"Largest difference in {len(losses)} steps: {np.max(apart):.2g}")
print(f"Test accuracy of the weights: TF Addons {program['accuracy']:.4f}, ", end="")
print(f"Keras 3 {of_weights:.4f}; of the averages ", end="")
print(f"{program['accuracy_of_averages']:.4f} and {of_averages:.4f}")

"""
## Other classes

Weight decay for any optimizer, several optimizers for several layers, and a callback:
"""

AdagradW = tfa_optimizers.extend_with_decoupled_weight_decay(keras.optimizers.Adagrad)
decayed = AdagradW(weight_decay=1e-4, learning_rate=0.1)
averaging = tfa_optimizers.SWA(decayed, start_averaging=2, average_period=2)
with tempfile.TemporaryDirectory() as folder:
    path = str(Path(folder) / "averages.weights.h5")
    keep = tfa_optimizers.AverageModelCheckpoint(False, path, save_weights_only=True)
    model = network(averaging)
    model.fit(images[training], labels[training], verbose=0, callbacks=[keep])
    model.load_weights(path)
    print(f"Averages of a checkpoint: {accuracy(model):.4f}")

"""
What cannot work as before raises an error. `keras_tfopt.addons.names()` lists what each name maps
to and what differs. The arguments `decay` and `lr`, which Keras 3 no longer has, keep their meaning
there.
"""

for name, counterpart in tfa_optimizers.names().items():
    if counterpart.differs != "nothing":
        print(f"{name}: {counterpart.differs}")

figure = Figure(figsize=(7, 4.5), dpi=150, layout="constrained")
axes, below = figure.subplots(2, height_ratios=[3, 1], sharex=True)
axes.plot(program["loss"], label="Keras 2, TensorFlow Addons", linewidth=5, color="0.75")
axes.plot(losses, **STYLES[0], markevery=10, linewidth=1, label="Keras 3, keras_tfopt.addons")
axes.set(ylabel="loss of a batch", yscale="log", title="Digits, LAMB, cyclical learning rate")
axes.legend()
rate = tfa_optimizers.TriangularCyclicalLearningRate(0.001, 0.005, step_size=50)
keras_tfopt.schedules.plot(rate, len(losses), ax=below)
args.out.parent.mkdir(parents=True, exist_ok=True)
figure.savefig(args.out)
print(f"Curves: {args.out.resolve()}")
