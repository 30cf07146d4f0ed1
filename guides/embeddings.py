"""
Title: Embedding tables whose size costs nothing
Author: keras_tfopt contributors
Date created: 2026/11/20
Last modified: 2026/11/20
Description: LazyAdam and row gradients on a table with a row for each pair of tokens.
Accelerator: None
"""

"""
## Rows instead of tables

A batch looks up some thousand rows of a table that may have millions. Keras's layer turns them into
a gradient of the size of the whole table, and Adam reads and writes the whole table and its
moments. `keras_tfopt.layers.Embedding` passes on only the rows that were looked up, and
`keras_tfopt.LazyAdam` changes only these. The model, the call of `fit` and the files stay the same.

Here a language model reads the source of the Python standard library. Its table has a row for
every distinct token and for every distinct pair of neighboring tokens, hundreds of thousands of
rows. It is trained in three ways, with the same learning rates, batches and initial weights:

- Keras's layer with Keras's Adam;
- our layer with LazyAdam;
- our layer with `LazyAdam(catch_up=True)`: when a row comes back, its moments first decay for the
  steps that it missed, so that they are those of Adam.

The guide prints validation loss, time and memory, whichever wins.
"""

import gc
import os
import time
from pathlib import Path

# Threads of torch that spin while they wait take a busy machine's time from those they wait for.
# Read once, when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import keras
import numpy as np
from data import split_by_file, stdlib_tokens, vocabulary
from keras import layers
from matplotlib.figure import Figure
from report import STYLES, StepTimer, backend_name, logarithmic, options, save

import keras_tfopt

args = options(__file__, fast="one rate, few steps, few files")
started = time.perf_counter()
print(f"keras_tfopt {keras_tfopt.__version__}, {backend_name()}, {os.cpu_count()} CPU cores")

"""
## The data

From eight tokens and the seven pairs in them, the model predicts the ninth token: one of the 499
most frequent ones, or "a rarer one". Training, validation and test have different files. The
vocabulary is that of the training files. Row 0 stands for all other tokens.
"""

width, classes, dimension = 8, 500, 32


def with_pairs(tokens):
    return tokens + [f"{a} {b}" for a, b in zip(tokens, tokens[1:])]


files = stdlib_tokens(max_files=120 if args.fast else None)
parts = split_by_file(files)
rows = vocabulary(map(with_pairs, parts[0]), min_count=1)
targets = vocabulary(parts[0])


def examples(token_lists):
    x, y = [], []
    for tokens in token_lists:
        single = np.array([rows.get(token, 0) for token in tokens], "int32")
        paired = np.array([rows.get(f"{a} {b}", 0) for a, b in zip(tokens, tokens[1:])], "int32")
        last = np.array([targets.get(token, 0) for token in tokens], "int32")
        for start in range(0, len(tokens) - width, width):
            stop = start + width
            x.append(np.concatenate([single[start:stop], paired[start : stop - 1]]))
            y.append(last[stop])
    y = np.array(y)
    return np.stack(x), np.where(y < classes, y, 0)


train, validation, _ = (examples(part) for part in parts)
validation = tuple(array[:8192] for array in validation)
batch, epochs, steps = (512, 6, 30) if not args.fast else (512, 2, 5)
order = np.random.default_rng(args.seed).permutation(len(train[0]))[: epochs * steps * batch]
train = tuple(array[np.resize(order, epochs * steps * batch)] for array in train)
touched = np.mean([len(np.unique(x)) for x in np.split(train[0], epochs * steps)])
print(f"{len(files)} files, {len(rows) + 1:,} rows of {dimension} numbers in the table,")
print(f"of which a batch of {batch} windows touches {touched:,.0f} on average")

"""
## The model

This is an ordinary model with Keras's layer. To train it by rows, `swap_embeddings` replaces the
layer in place. The model may be trained already. A new model would have
`keras_tfopt.layers.Embedding` from the start.
"""


def language_model():
    return keras.Sequential(
        [
            keras.Input((2 * width - 1,), dtype="int32"),
            layers.Embedding(len(rows) + 1, dimension),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(classes),
        ]
    )


def by_rows(model):
    return keras_tfopt.layers.swap_embeddings(model)


sides = {
    "keras Adam": (lambda model: model, keras.optimizers.Adam),
    "LazyAdam": (by_rows, keras_tfopt.LazyAdam),
    "LazyAdam, catch_up": (by_rows, lambda rate: keras_tfopt.LazyAdam(rate, catch_up=True)),
}
rates = (0.008, 0.016) if not args.fast else (0.004,)

"""
## Memory

The peak memory of the process shows what a step needs in addition to weights and state. Linux
reports this peak and can reset it. On other systems the guide leaves it out.
"""


def peak(reset=False):
    """Largest size of the process in bytes since it was last reset, or None."""
    status, refs = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not refs.exists():
        return None
    if reset:
        gc.collect()
        refs.write_text("5")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


class StepMemory(keras.callbacks.Callback):
    """By how much steps exceed what there is between them; the first two compile."""

    def __init__(self):
        super().__init__()
        self.steps, self.before, self.bytes = 0, None, None

    def on_train_batch_end(self, batch, logs=None):
        float(logs["loss"])
        self.steps += 1
        if self.steps == 3:
            peak(reset=True)
            self.before = peak()
        elif self.steps == 5 and self.before is not None:
            self.bytes = max(0, peak() - self.before)  # Linux counts pages roughly


"""
## Training
"""


class Training:
    """One side with one rate."""

    def __init__(self, side, rate):
        self.rate = rate
        prepare, optimizer = sides[side]
        keras.utils.set_random_seed(args.seed)
        model = prepare(language_model())
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=optimizer(rate), loss=loss)
        timer, memory = StepTimer(), StepMemory()
        history = model.fit(
            *train,
            batch_size=batch,
            epochs=epochs,
            steps_per_epoch=steps,
            shuffle=False,
            validation_data=validation,
            validation_batch_size=2048,
            callbacks=[timer, memory],
            verbose=0,
        )
        self.losses = history.history["val_loss"]
        self.milliseconds = 1000 * float(np.median(timer.seconds[3:]))
        self.memory = memory.bytes
        print(f"{side:18} rate {rate:<6g} validation loss {self.losses[-1]:.4f}", flush=True)


trainings = {side: [] for side in sides}
for rate in rates:  # the sides take turns, so that a slow minute of the machine hits all
    for side in sides:
        trainings[side].append(Training(side, rate))
        keras.backend.clear_session()
        gc.collect()
best = {side: min(runs, key=lambda run: run.losses[-1]) for side, runs in trainings.items()}

"""
## Results
"""

print(f"\nThe best rate of each, after {epochs * steps} steps:")
print(f"{'':18} {'rate':>6} {'ms/step':>8} {'seconds':>8} {'loss':>8} {'MB a step':>10}")
for side, run in best.items():
    megabytes = "-" if run.memory is None else f"{run.memory / 1e6:.0f}"
    seconds = epochs * steps * run.milliseconds / 1000
    print(
        f"{side:18} {run.rate:>6g} {run.milliseconds:>8.1f} {seconds:>8.1f} "
        f"{run.losses[-1]:>8.4f} {megabytes:>10}"
    )
print("Seconds are of training, without compilation and validation; MB a step are what steps need")
print("beside weights, state and the rest of the process.")

figure = Figure(figsize=(12, 5), layout="constrained")
figure.suptitle(
    f"A table of {len(rows) + 1:,} x {dimension}, best learning rate of each. {backend_name()}"
)
by_steps, by_time = figure.subplots(1, 2, sharey=True)
for (side, run), look in zip(best.items(), STYLES):
    done = steps * np.arange(1, epochs + 1)
    by_steps.plot(done, run.losses, **look, label=f"{side}, rate {run.rate:g}")
    by_time.plot(done * run.milliseconds / 1000, run.losses, **look)
logarithmic(by_time.xaxis)
for panel, label in ((by_steps, "steps"), (by_time, "seconds of training (logarithmic)")):
    panel.set_xlabel(label)
    panel.grid(alpha=0.3)
by_steps.set_ylabel("validation cross-entropy (nats)")
figure.legend(loc="outside lower center", ncols=len(best))
save(figure, args.out)
print(f"Total time: {time.perf_counter() - started:.0f} s")

"""
## A table of 10^9 rows

The cost of a step does not depend on the number of rows. The memory does.

**Storage.** 10^9 rows of 64 float32 numbers take 256 GB. LazyAdam keeps two more numbers for each
of them, which makes 768 GB. Adagrad keeps one, which makes 512 GB. `catch_up` adds 4 GB. On sixteen
hosts, LazyAdam takes 48 GB on each. With PyTorch and a process on each host,

    workers = keras_tfopt.distributed.connect()
    table = keras_tfopt.layers.Embedding(10**9, 64, shard="rows")
    optimizer = keras_tfopt.distributed.ShardedState(keras_tfopt.LazyAdam(1e-3))

puts the first 62.5 million rows on the first host, and so on, with their state. On JAX,
`shard="rows"` does the same over the devices of one process.

**A step** of 65,536 different ids reads and writes 65,536 rows of 3 * 64 numbers. All hosts
together read 50 MB and write 50 MB, which is 6 MB on each of 16. The hosts exchange the ids
(0.26 MB), the rows that are looked up (16.8 MB) and their gradients (16.8 MB). On PyTorch each host
asks the hosts that have the rows of its part of the batch, and sends 15/16 of a sixteenth of that:
2 MB, or 0.16 ms at 100 Gbit/s. On JAX, where shapes are static, all devices get all ids. Each fills
in the rows it has, and a sum over the devices completes them. Then all get all gradients, and each
takes those of its rows. Each device sends 15/16 of all: 32 MB, or 2.5 ms. Dense training would
exchange no more, but each host would read and write 7 * 16 GB in every step, which takes seconds.

**What is missing.**

- Files are those of the whole table, and each host that saves gathers all of it. A checkpoint of
  768 GB would have to be written in parts.
- On JAX the devices must be those of one process. On TensorFlow no table is divided, and
  `MirroredStrategy` copies it to every device.
- Rows that are never looked up again keep their memory. Nothing is evicted, and ids are not
  hashed.
"""
