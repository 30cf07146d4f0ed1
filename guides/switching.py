"""
Title: Switching the backend in the middle of a training
Author: keras_tfopt contributors
Date created: 2026/11/20
Last modified: 2026/11/20
Description: Save on one backend, continue on the others, and compare the next steps.
Accelerator: None
"""

"""
## State that travels

A model that is saved in the middle of a training contains its optimizer: moments, averages, the
number of steps, and so the place in a learning rate schedule. After loading it on another backend,
the next steps are the same, except for the rounding of float32.

Keras chooses its backend when it is imported, so the other backends need processes of their own:
this file starts itself, with `--part`. Only the installed backends take part.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
from data import digits
from keras import layers
from matplotlib.figure import Figure
from report import STYLES, backend_name, options, save

import keras_tfopt

args = options(__file__, fast="fewer steps, one other backend", part="after; for the file itself")

"""
## The model and the data

The optimizer is Nadam with averages of the weights around it. Its state is two moments, the
averages and the number of steps, on which the learning rate depends. Batches are taken in the order
of the data, so that each process sees the same.
"""

before, after = (60, 40) if not args.fast else (6, 4)
batch = 50
images, labels = digits()
order = np.random.default_rng(args.seed).permutation(len(images))
images, labels = images[order], labels[order]


def network():
    keras.utils.set_random_seed(args.seed)
    rate = keras_tfopt.schedules.WarmUpPolynomialDecay(0.003, before // 5 + 1, before + after)
    model = keras.Sequential(
        [
            keras.Input(images.shape[1:]),
            layers.Conv2D(8, 5, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(32, activation="tanh"),
            layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras_tfopt.MovingAverage(keras_tfopt.Nadam(rate), average_decay=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


"""
## One part

`before` trains and saves. `after` loads the file and goes on. `fresh` does the same without the
state of the optimizer, to show what is lost when only weights are saved.

A saved model knows whether XLA compiled its steps. On a CPU, TensorFlow and PyTorch do not use XLA.
JAX should, so the setting becomes "auto" after loading.
"""


def train(part, folder):
    """Trains one part, and leaves losses, weights and averages in a file."""
    if part == "before":
        model, batches = network(), range(before)
    else:
        model = keras.models.load_model(folder / "model.keras")
        batches = range(before, before + after)
        model.jit_compile = "auto"
        if part == "fresh":
            model.compile(optimizer=network().optimizer, loss=model.loss)
    losses = []
    for n in batches:
        part_of = slice(n * batch, (n + 1) * batch)
        losses.append(float(model.train_on_batch(images[part_of], labels[part_of])))
    if part == "before":
        model.save(folder / "model.keras")
    with keras_tfopt.averaged(model):
        averages = model.get_weights()
    arrays = {f"weight {n}": w for n, w in enumerate(model.get_weights())}
    arrays |= {f"average {n}": w for n, w in enumerate(averages)}
    np.savez(folder / f"{part}-{keras.backend.backend()}.npz", losses=losses, **arrays)


if args.part:
    train(args.part, args.out)  # --out is a folder then
    sys.exit()

"""
## The whole

The present backend trains first. Then each backend, also this one, continues from the same file.
"""

print(f"keras_tfopt {keras_tfopt.__version__}, {backend_name()}")
here = keras.backend.backend()
installed = [name for name in ("tensorflow", "jax", "torch") if importlib.util.find_spec(name)]
others = [name for name in installed if name != here][: 1 if args.fast else None]
parts = [("before", here), *(("after", name) for name in (here, *others)), ("fresh", here)]
results = {}
with tempfile.TemporaryDirectory() as folder:
    for part, backend in parts:
        print(f"{part} on {backend}", flush=True)
        if backend == here:
            train(part, Path(folder))
            continue
        command = [sys.executable, __file__, "--part", part, "--out", folder]
        command += ["--seed", str(args.seed), *(["--fast"] if args.fast else [])]
        subprocess.run(command, check=True, env={**os.environ, "KERAS_BACKEND": backend})
    for part, backend in parts:
        with np.load(Path(folder) / f"{part}-{backend}.npz") as arrays:
            results[part, backend] = {name: arrays[name] for name in arrays}

"""
## Results

The table compares each training with the one that stayed on the first backend: the loss of each
step, and the weights and their averages at the end.
"""

stayed = results["after", here]


def apart(result, kind):
    return max(np.abs(result[n] - stayed[n]).max() for n in stayed if n.startswith(kind))


moved = apart(results["before", here], "weight")
print(f"\nIn the {after} steps after the file, weights moved by up to {moved:.2g}.")
print(f"Largest difference from going on on {here}:")
print(f"{'':28} {'first loss':>11} {'losses':>9} {'weights':>9} {'averages':>9}")
for (part, backend), result in results.items():
    if part == "before" or (part, backend) == ("after", here):
        continue
    name = f"going on on {backend}" if part == "after" else f"{here}, optimizer anew"
    first = abs(result["losses"][0] - stayed["losses"][0])
    numbers = [apart(result, kind) for kind in ("losses", "weight", "average")]
    print(f"{name:28} {first:>11.1e}" + "".join(f" {number:>9.1e}" for number in numbers))
if not others:
    print("No other backend is installed: pip install tensorflow, jax or torch to switch to it.")

figure = Figure(figsize=(12, 5), layout="constrained")
curves, differences = figure.subplots(1, 2)
curves.plot(range(1, before + 1), results["before", here]["losses"], color="gray", label=f"{here}")
looks = iter(STYLES)
for (part, backend), result in results.items():
    if part == "before":
        continue
    name = f"then {backend}" if part == "after" else f"then {here}, optimizer anew"
    look, every = next(looks), max(1, after // 8)
    at = range(before + 1, before + after + 1)
    curves.plot(at, result["losses"], **look, markevery=every, label=name)
    difference = np.abs(result["losses"] - stayed["losses"])
    if result is not stayed:
        differences.plot(at, np.maximum(difference, 1e-9), **look, markevery=every, label=name)
curves.axvline(before + 0.5, color="black", linewidth=0.8, linestyle=":")
curves.set(title="Loss of each step", xlabel="step", ylabel="training cross-entropy (nats)")
differences.set(
    title=f"Difference from going on on {here} (below 1e-9 drawn there)",
    xlabel="step",
    ylabel="difference of the loss (nats)",
    yscale="log",
)
for panel in (curves, differences):
    panel.legend()
    panel.grid(alpha=0.3)
save(figure, args.out)
