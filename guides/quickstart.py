"""
Title: Quickstart: two optimizers on real data, each beside its stock counterpart
Author: keras_tfopt contributors
Date created: 2026/11/20
Last modified: 2026/11/20
Description: LARS beside SGD on digits at a large batch, LazyAdam beside Adam on text.
Accelerator: None
"""

"""
## Two comparisons

1. **LARS** trains a convolutional network on scanned digits with a third of the training set in
   each batch. Large batches leave few steps, so the steps must be large, and one layer that is
   moved too far spoils the others: LARS scales the step of each layer to the size of its weights.
   Beside it: stock SGD with momentum.
2. **LazyAdam** trains a language model on the source of the Python standard library. Its embedding
   table has a row for each of more than 20,000 tokens, and a batch contains few of them. Adam moves
   every row in every step, also by gradients long past; LazyAdam moves only the rows in the batch.
   Beside it: stock Adam.

The two sides of a comparison get the same learning rates, data, epochs, batches, seed, initial
weights and compilation. The validation data choose the learning rate of each side, the test data
are looked at once, and what is printed is what was measured, whoever wins.
"""

import logging
import os
import time

started = time.perf_counter()

# Threads of torch that spin while they wait take a busy machine's time from those they wait for.
# Read once, when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# TensorFlow warns when one model after the other is trained, as if one were compiled repeatedly.
logging.getLogger("tensorflow").setLevel(logging.ERROR)

import keras
import numpy as np
from data import digits, split_by_file, stdlib_tokens, vocabulary, windows
from keras import layers
from report import Comparison, Run, StepTimer, backend_name, options, print_table, save_curves

import keras_tfopt

args = options(__file__, fast="one rate, one epoch, little data")
print(f"keras_tfopt {keras_tfopt.__version__}, {backend_name()}, {os.cpu_count()} CPU cores")

"""
## The experiment

The sides take turns at each learning rate, so that a slow minute of the machine hits both.
Whether XLA compiles the training step is Keras's own choice for the backend and the device: asked
once, then passed to everyone.
"""


def compare(task, make_model, make_optimizers, rates, train, validation, test, **fit):
    rates = rates if not args.fast else [rates[len(rates) // 2]]
    jit_compile = make_model().jit_compile
    print(f"Learning rates, the same for both sides: {rates}. jit_compile={jit_compile}")
    for rate in rates:
        for side, make_optimizer in zip(task.sides, make_optimizers):
            print(f"\n{task.title}, {side}, learning rate {rate:g}", flush=True)
            keras.utils.set_random_seed(args.seed)
            model = make_model()
            model.compile(
                optimizer=make_optimizer(rate, model),
                loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=["accuracy"],
                jit_compile=jit_compile,
            )
            timer = StepTimer()
            history = model.fit(*train, validation_data=validation, callbacks=[timer], **fit)
            task.runs.append(Run(side, rate, model, history.history, timer.seconds))
    task.test_size = len(test[0])
    for side in task.sides:
        results = task.best(side).model.evaluate(*test, verbose=0, return_dict=True)
        task.test[side] = results[task.metric]


"""
## 1. Digits at a large batch

5,000 scans from MNIST: three batches to train on, one to choose by, one to test.
"""

batch, epochs = (1000, 12) if not args.fast else (100, 1)
images, labels = digits()
order = np.random.default_rng(args.seed).permutation(len(images))
train, validation, test = (
    (images[order[part]], labels[order[part]])
    for part in np.split(np.arange(5 * batch), [3 * batch, 4 * batch])
)


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
Usual for large batches, and here for both sides: the learning rate climbs to its peak while the
weights are still random, then falls.
"""


def schedule(peak):
    steps = 3 * epochs
    return keras_tfopt.schedules.WarmUpPolynomialDecay(
        peak, warmup_steps=max(1, steps // 10), total_steps=steps
    )


def sgd(peak, model):
    return keras.optimizers.SGD(schedule(peak), momentum=0.9)


"""
The rates of LARS multiply fractions of a layer's size, so they live on another scale than those
of SGD. The paper has eeta=0.001 and rates around 10; eeta=0.1 and rates a hundredth of that are
the same steps, and one grid, wide enough for both optimizers, can serve both. Biases and the
parameters of normalization start at 0 or 1, which says nothing about their proper steps: by
custom LARS skips them; `keras_tfopt.normalization_and_bias` finds them in a model.
"""


def lars(peak, model):
    return keras_tfopt.LARS(
        schedule(peak),
        momentum=0.9,
        eeta=0.1,
        skip_list=keras_tfopt.normalization_and_bias(model),
    )


digits_task = Comparison(
    title="Digits",
    sides=("keras SGD, momentum 0.9", "keras_tfopt LARS"),
    metric="accuracy",
    epoch="epoch",
)
print(f"\n# 1. Digits: {len(train[0])} images to train on, batch {batch}, {epochs} epochs,")
print("warm-up to a peak learning rate, then polynomial decay")
compare(
    digits_task,
    convolutional_network,
    (sgd, lars),
    [0.0125, 0.05, 0.2, 0.8, 3.2],
    train,
    validation,
    test,
    batch_size=batch,
    epochs=epochs,
    validation_batch_size=batch,
)

"""
## 2. A language model over Python's own source

From eight tokens the model tells the ninth. Any token may stand among the eight, so the table has
a row for each; the ninth is one of the 499 most frequent or "a rarer one", which keeps the last
layer small. Files are split, not windows, and only the training files make the vocabulary.
"""

width, classes = 8, 500
files = stdlib_tokens(max_files=40 if args.fast else None)
parts = split_by_file(files)
rows = vocabulary(parts[0])
train, validation, test = (windows(part, rows, width, classes) for part in parts)


def language_model():
    return keras.Sequential(
        [
            keras.Input((width,), dtype="int32"),
            layers.Embedding(len(rows) + 1, 64),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(classes),
        ]
    )


"""
An "epoch" is half a pass over the training windows here: the curves get more points.
"""

batch, halves = 512, 4 if not args.fast else 1
half = len(train[0]) // batch // 2
text_task = Comparison(
    title="Python source",
    sides=("keras Adam", "keras_tfopt LazyAdam"),
    metric="loss",
    epoch="half passes over the training files",
)
print(f"\n# 2. Python source: {len(files)} files, {len(rows) + 1} rows in the table,")
touched = len(np.unique(np.random.default_rng(args.seed).choice(train[0], batch)))
print(f"of which a batch of {batch} windows, drawn at random, touches {touched};")
print(f"{len(train[0])} windows to train on, {halves / 2:g} passes")
compare(
    text_task,
    language_model,
    (lambda rate, _: keras.optimizers.Adam(rate), lambda rate, _: keras_tfopt.LazyAdam(rate)),
    [0.001, 0.004, 0.016],
    [array[: 2 * half * batch] for array in train],
    validation,
    test,
    batch_size=batch,
    epochs=halves,
    steps_per_epoch=half,
    validation_batch_size=2048,
)

"""
## What was measured
"""

print()
print_table([digits_task, text_task])
print("Time ratio: a step beside one of stock Keras. Accuracy: higher is better; loss: lower.")
error = max((p * (1 - p) / digits_task.test_size) ** 0.5 for p in digits_task.test.values())
print(f"Test accuracy has a standard error of about {error:.3f}; another --seed, other numbers.")
save_curves([digits_task, text_task], args.out)
print(f"Total time: {time.perf_counter() - started:.0f} s")
