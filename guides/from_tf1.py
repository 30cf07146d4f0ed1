"""
Title: From TF1 to Keras 3
Author: keras_tfopt contributors
Date created: 2026/11/20
Last modified: 2026/11/20
Description: A training of TensorFlow 1 goes on in Keras 3, from its checkpoint, in three steps.
Accelerator: None
"""

"""
## Introduction

`guides/from_tf1/train.py` is a program of TensorFlow 1.15: placeholders, a session, a `Saver`, and
`tf.contrib.opt.LARSOptimizer` with large batches of scanned digits. It trained for 300 steps and
saved a checkpoint after 150. Here Keras 3 trains the second half from that checkpoint, on any
backend. The guide compares the losses with those of the program, which are in
`guides/from_tf1/going_on.json`.

Weights alone are not enough. LARS has a momentum for each variable, and its learning rate falls
with the number of steps. Without these, the training takes other steps.

    pip install '.[guides,jax,tensorflow]'
    KERAS_BACKEND=jax python guides/from_tf1.py

TensorFlow is needed to read its files; Keras may run on another backend.

## Setup
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
from keras_tfopt import legacy

args = options(__file__, fast="changes nothing: it takes seconds")
HERE = Path(__file__).parent
prefix = HERE / "from_tf1" / "model.ckpt-150"
program = json.loads((HERE / "from_tf1" / "going_on.json").read_text())

"""
## The data

The data are those of the program: 1,797 scans that come with scikit-learn, in batches of 512. The
same generator draws the batches.
"""

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32")
order = np.random.RandomState(0).permutation(len(images))
training, test = order[:1400], order[1400:]
batches = np.random.RandomState(1).randint(0, len(training), (300, 512))

"""
## What is in the checkpoint

This prints every tensor and what its name means.
"""

legacy.inspect_checkpoint(prefix)

"""
## Step 1: the model and the optimizer

Layers become layers of Keras. The optimizer has the same name and the same arguments, and so has
the schedule: `tf.train.polynomial_decay(10.0, step, 300, 0.0, 2.0)` is Keras's `PolynomialDecay`.
A path in `skip_list` was a part of a name then, and is a part of a path now.

    hidden = tf.layers.dense(x, 64, activation=tf.nn.relu)      keras.layers.Dense(64, "relu")
    logits = tf.layers.dense(hidden, 10)                        keras.layers.Dense(10)
    LARSOptimizer(rate, skip_list=["bias"], ...)                keras_tfopt.LARS(rate, ...)

Code that keeps `minimize` and `apply_gradients` takes `legacy.LARSOptimizer`, with the same
arguments. A program that has to stay as a whole runs on TensorFlow 2 with
`import tensorflow.compat.v1 as tf` and `import keras_tfopt.legacy as opt`. For `tf.layers` and
`tf.nn.rnn_cell` it needs `pip install tf_keras` and `TF_USE_LEGACY_KERAS=1`; `tf.estimator` is
gone.
"""


def network():
    hidden, logits = keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)
    model = keras.Sequential([keras.Input((64,)), hidden, logits])
    rate = keras.optimizers.schedules.PolynomialDecay(10.0, 300, end_learning_rate=0.0, power=2.0)
    model.compile(
        optimizer=keras_tfopt.LARS(rate, momentum=0.9, weight_decay=1e-4, skip_list=["bias"]),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


model = network()

"""
## Step 2: the state

Variables are found by their names, `dense/kernel` and `dense_1/kernel`. The momentum of each has
the name that LARS gave it, `dense/kernel/LARSOptimizer`. The number of steps is `global_step`. If
anything is missing, left over or of another shape, this raises an error with the same report and
changes nothing.
"""

report = legacy.load_checkpoint(prefix, model, model.optimizer)
print(report)

"""
## Step 3: the training

`session.run(train, feed)` in a loop becomes `fit`. This guide calls `train_on_batch`, so that each
batch is the one that the program had.
"""


def train(model, first):
    losses = []
    for rows in batches[first:]:
        rows = training[rows]
        losses.append(
            float(model.train_on_batch(images[rows], labels[rows], return_dict=True)["loss"])
        )
        model.reset_metrics()  # the loss of this batch, not the mean of all
    return losses


losses = train(model, report.iterations)

"""
For comparison, this starts with the same weights, but without the state of the optimizer: there is
no momentum, and the learning rate starts again at 10.
"""

weights_alone = network()
legacy.load_checkpoint(prefix, weights_alone, None)
restarted = train(weights_alone, report.iterations)

"""
## Results
"""

apart = np.max(np.abs(np.subtract(losses, program["loss"])))
right = model.evaluate(images[test], labels[test], verbose=0, return_dict=True)["accuracy"]
print(f"keras_tfopt {keras_tfopt.__version__}, {keras.backend.backend()}")
print(f"{'step':>5} {'TF 1.15':>9} {'Keras 3':>9} {'weights alone':>14}")
for t in [0, 1, 2, 5, 10, 20, 50, 100, 149]:
    print(f"{t + 151:>5} {program['loss'][t]:>9.5f} {losses[t]:>9.5f} {restarted[t]:>14.5f}")
print(f"Largest difference in 150 steps: with the state {apart:.2g}, with weights alone ", end="")
print(f"{np.max(np.abs(np.subtract(restarted, program['loss']))):.2g}")
print(f"Test accuracy: TF 1.15 {program['test_accuracy']:.4f}, Keras 3 {right:.4f}")

"""
## Back to TensorFlow 1

`legacy.save_checkpoint` writes a file that the `Saver` of a TensorFlow 1 program restores.
"""

with tempfile.TemporaryDirectory() as folder:
    path = legacy.save_checkpoint(Path(folder) / "model.ckpt-300", model, model.optimizer)
    again = network()
    report = legacy.load_checkpoint(path, again, again.optimizer)
    print(f"Written and read again: step {report.iterations}")

figure = Figure(figsize=(7, 4.5), dpi=150, layout="constrained")
axes = figure.subplots()
steps = range(151, 301)
axes.plot(steps, program["loss"], label="TensorFlow 1.15", linewidth=5, color="0.75")
for values, name, style in zip((losses, restarted), ("checkpoint", "weights alone"), STYLES):
    axes.plot(steps, values, **style, markevery=10, linewidth=1, label=f"Keras 3, from its {name}")
axes.set(
    xlabel="step", ylabel="loss of a batch", yscale="log", title="Digits, LARS, batches of 512"
)
axes.legend()
args.out.parent.mkdir(parents=True, exist_ok=True)
figure.savefig(args.out)
print(f"Curves: {args.out.resolve()}")
