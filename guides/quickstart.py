"""
Title: Quickstart: two optimizers on real data, compared with those of Keras
Author: keras_tfopt contributors
Date created: 2026/11/20
Last modified: 2026/11/22
Description: A table of a million rows by LazyAdam and by Adam; digits by LARS and by SGD.
Accelerator: None
"""

"""
## Two comparisons

1. **A large embedding table.** A text classifier has a row for each of a million hash values of
   tokens and pairs of tokens, and a batch looks up some thousand of them. Stock Keras computes a
   gradient of the size of the table, and Adam reads and writes all of the table and of its moments.
   `keras_tfopt.layers.Embedding` with `keras_tfopt.LazyAdam` touches the rows in the batch.
2. **LARS** trains a convolutional network on scanned digits with a third of the training set in
   each batch. Large batches leave few steps, so the steps must be large, and one layer that is
   moved too far spoils the others: LARS scales the step of each layer to the size of its weights.
   It is compared with Keras's SGD with momentum.

Both sides of a comparison get the same learning rates, data, batches, seed, initial weights and
compilation. The learning rate of each side is chosen by the validation data. The test data are used
once. The guide prints what it measures, whichever side wins.
"""

import logging
import os
import time
from pathlib import Path

started = time.perf_counter()

# Threads of torch that spin while they wait take a busy machine's time from those they wait for.
# Read once, when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# What PyTorch has compiled stays in the project, for the next run.
cache = Path(__file__).resolve().parents[1] / "build" / "torch_compile"
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
# TensorFlow warns when one model after the other is trained, as if one were compiled repeatedly.
logging.getLogger("tensorflow").setLevel(logging.ERROR)

import keras
import numpy as np
from data import digits, hashed_tokens, package_runs
from keras import layers
from report import Comparison, Progress, backend_name, options, print_table, save_curves

import keras_tfopt

args = options(__file__, fast="one rate, one epoch, little data, a small table")
print(f"keras_tfopt {keras_tfopt.__version__}, {backend_name()}, {os.cpu_count()} CPU cores")
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

"""
## 1. A table of a million rows

From which package of Python's standard library are these eight tokens? The model is the mean of the
embeddings of the tokens and of the pairs of neighbors, and a linear layer. Training, validation and
test have different files.
"""

width, classes, dimension, batch = 8, 10, 64, 128
rows, files, text_rates = 1_000_000, None, [0.003, 0.01]
if args.fast:
    rows, files, text_rates = 20_000, 120, [0.01]
runs, packages = package_runs(width, classes, files)
np.random.default_rng(args.seed).shuffle(runs[0])
runs[0][len(runs[0]) // batch * batch :] = []  # whole batches
text_data = [hashed_tokens(part, rows) for part in runs]


def text_model(embedding):
    return keras.Sequential(
        [
            keras.Input((2 * width - 1,), dtype="int32"),
            embedding(rows, dimension),
            layers.GlobalAveragePooling1D(),
            layers.Dense(classes),
        ]
    )


text = Comparison(
    title=f"Text, a table of {rows:,} x {dimension}",
    sides={
        "keras Embedding, Adam": (
            lambda: text_model(layers.Embedding),
            lambda rate, model: keras.optimizers.Adam(rate),
        ),
        "keras_tfopt Embedding, LazyAdam": (
            lambda: text_model(keras_tfopt.layers.Embedding),
            lambda rate, model: keras_tfopt.LazyAdam(rate),
        ),
    },
    rates=text_rates,
    data=text_data,
    batch=batch,
    epochs=3,
    steps=8 if not args.fast else 2,
    more=3 if not args.fast else 1,
)

"""
Both sides take 3 x 8 steps. Then ours goes on for three passes through the whole training set.
"""

"""
## 2. Digits at a large batch

There are 5,000 scans from MNIST: three batches to train on, one to choose by, and one to test.
"""

batch, epochs = (1000, 12) if not args.fast else (100, 1)
images, labels = digits()
order = np.random.default_rng(args.seed).permutation(len(images))
parts = np.split(order[: 5 * batch], [3 * batch, 4 * batch])


def convolutional_network():
    model = keras.Sequential([keras.Input(images.shape[1:])])
    for filters, size in ((8, 5), (16, 3), (32, 3)):
        model.add(layers.Conv2D(filters, size, strides=2, padding="same", use_bias=False))
        model.add(layers.BatchNormalization(momentum=0.9))
        model.add(layers.ReLU())
    model.add(layers.Flatten())
    model.add(layers.Dense(10))
    return model


"""
As usual for large batches, the learning rate climbs to its peak while the weights are still random,
and then falls. It does so on both sides.
"""


def schedule(peak):
    steps = 3 * epochs
    return keras_tfopt.schedules.WarmUpPolynomialDecay(
        peak, warmup_steps=max(1, steps // 10), total_steps=steps
    )


def sgd(peak, model):
    return keras.optimizers.SGD(schedule(peak), momentum=0.9)


"""
LARS multiplies its learning rate by the size of a layer, so its rates have another scale than those
of SGD. The paper has eeta=0.001 and rates around 10. With eeta=0.1 and rates a hundred times as
small the steps are the same, and one grid of rates fits both optimizers. Biases and the parameters
of normalization layers start at 0 or 1. Their size does not tell how large their steps should be,
so LARS usually skips them. `keras_tfopt.normalization_and_bias` finds them in a model.
"""


def lars(peak, model):
    return keras_tfopt.LARS(
        schedule(peak),
        momentum=0.9,
        eeta=0.1,
        skip_list=keras_tfopt.normalization_and_bias(model),
    )


digit_rates = [0.0125, 0.05, 0.2, 0.8, 3.2]
large_batch = Comparison(
    title=f"Digits, batches of {batch}",
    sides={
        "keras SGD, momentum 0.9": (convolutional_network, sgd),
        "keras_tfopt LARS": (convolutional_network, lars),
    },
    rates=digit_rates if not args.fast else digit_rates[2:3],
    data=[(images[part], labels[part]) for part in parts],
    batch=batch,
    epochs=epochs,
    steps=3,
)

"""
## Training

On PyTorch, rules are compiled in the background while training goes on. Here steps are timed, so
rules are compiled first, and kept in `build/torch_compile`. The other backends compile whole
training steps, which takes a second or two for each.
"""


def first_steps(make_optimizer, first_layer, shape):
    model = keras.Sequential([first_layer, layers.Flatten(), layers.Dense(classes)])
    model.build(shape)
    model.compile(optimizer=make_optimizer(0.1, model), loss=loss)
    model.fit(np.zeros(shape, "int32"), np.zeros(shape[:1], "int32"), epochs=2, verbose=0)


keras_tfopt.engine.compile_in_background(False)
if keras.backend.backend() == "torch":
    print("PyTorch compiles the rules of LazyAdam and LARS ...", flush=True)
    began = time.perf_counter()
    ours = text.sides[text.ours][1]
    first_steps(ours, keras_tfopt.layers.Embedding(99, 4), (64, 3))
    first_steps(lars, layers.Dense(3), (64, 3))
    folder = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    print(f"... {time.perf_counter() - began:.0f} s. It is kept in {folder}")

"""
The sides take turns at each learning rate, so that a slow minute of the machine affects both. Keras
chooses by backend and device whether XLA compiles the training step. All sides get the same choice.
"""


def train(task, side, rate, progress):
    keras.utils.set_random_seed(args.seed)
    make_model, make_optimizer = task.sides[side]
    model = make_model()
    model.compile(make_optimizer(rate, model), loss, metrics=["accuracy"], jit_compile=jit_compile)
    run = task.start(side, rate, progress)
    x, y = task.data[0]
    fit = {"validation_data": task.data[1], "batch_size": task.batch, "verbose": 0}
    fit |= {"validation_batch_size": 2048, "callbacks": [run]}
    if not task.more:
        model.fit(x, y, epochs=task.epochs, **fit)
    else:
        seen = task.epochs * task.steps * task.batch
        fit["shuffle"] = False  # the same steps for both sides
        model.fit(x[:seen], y[:seen], epochs=task.epochs, steps_per_epoch=task.steps, **fit)
    run.finish(model.evaluate(*task.data[2], verbose=0, return_dict=True))
    if task.more and side == task.ours:
        model.fit(x, y, epochs=task.more, **fit)
        run.finish(model.evaluate(*task.data[2], verbose=0, return_dict=True))


tasks, jit_compile = [text, large_batch], convolutional_network().jit_compile
progress = Progress(sum(task.all_steps() for task in tasks))
for task in tasks:
    progress.line(f"\n{task.title}: {len(task.data[0][0]):,} examples, rates {task.rates}")
    for rate in task.rates:
        for side in task.sides:
            train(task, side, rate, progress)

"""
## What was measured

The last lines are the table. Higher accuracy is better. Speed is the number of steps in the time of
one step of Keras.
"""

save_curves(tasks, args.out)
error = max(task.error() for task in tasks)
print(f"Accuracies have a standard error of up to {error:.3f}; another --seed, other numbers.")
print(f"Total time: {time.perf_counter() - started:.0f} s\n")
print_table(tasks)
