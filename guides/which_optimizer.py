"""
Title: Which optimizer is the fastest?
Author: keras_tfopt contributors
Date created: 2026/11/24
Last modified: 2026/11/24
Description: Twelve optimizers, three real tasks, five trials each: the time to a target loss.
Accelerator: None
"""

"""
## How to compare optimizers

By the time to a good result, not by curves of one learning rate each. This guide counts as the
benchmark [AlgoPerf](https://arxiv.org/abs/2306.07179) does:

- Each task has a target for the validation loss. AdamW sets it: the lowest that it reaches in
  three quarters of the steps.
- Each optimizer has the same number of trials on each task, and each trial the same number of
  steps. The trial that gets to the target first counts.
- The score is made of ratios to the fastest optimizer of each task (see the results).

AlgoPerf has eight tasks on eight GPUs; these take some seconds a training on two CPU cores. So this
shows how to compare on a task of your own. It says little about large models.
"""

import contextlib
import time

import keras
import numpy as np
from data import digits, hashed_tokens, package_runs, split_by_file, stdlib_tokens, vocabulary
from keras import layers
from matplotlib.figure import Figure
from report import backend_name, options, save

import keras_tfopt

args = options(__file__, fast="two optimizers, one trial, few steps")
print(f"keras_tfopt {keras_tfopt.__version__}, {backend_name()}")

"""
## The optimizers

Each begins with a learning rate as its authors or [Recipes](../docs/recipes.md) give it for large
networks. The five trials multiply that by 1/4, 1, 4, 16 and 64: small networks want larger rates.
All other arguments stay. Weight decay is 0.01, for Lion 0.1. Adam with weight decay is AdamW, which
sets the targets. Muon leaves embeddings to Adam. SOAP and Distributed Shampoo raise an error for
gradients that are not finite; `SkipNonFinite` leaves such steps out, so that a trial with too large
a rate just fails. Learning rates warm up for a twentieth of the steps, and go to zero by a cosine.
Only Schedule-Free does without the cosine, and is validated with its averages.
"""

decay = {"weight_decay": 0.01}
sides = {
    "AdamW": (1e-3, lambda rate: keras_tfopt.Adam(rate, **decay)),
    "Momentum": (0.03, lambda rate: keras_tfopt.Momentum(rate, 0.9, nesterov=True, **decay)),
    "NadamW": (1e-3, lambda rate: keras_tfopt.NadamW(rate, **decay)),
    "Cautious AdamW": (1e-3, lambda rate: keras_tfopt.Cautious(keras_tfopt.Adam(rate, **decay))),
    "AdEMAMix": (1e-3, lambda rate: keras_tfopt.AdEMAMix(rate, warmup_steps=steps, **decay)),
    "MARS": (3e-3, lambda rate: keras_tfopt.MARS(rate, **decay)),
    "Lion": (1e-4, lambda rate: keras_tfopt.Lion(rate, weight_decay=0.1)),
    "Prodigy": (1.0, lambda rate: keras_tfopt.Prodigy(rate, safeguard_warmup=True, **decay)),
    "Schedule-Free AdamW": (2.5e-3, lambda rate: keras_tfopt.ScheduleFreeAdamW(rate, **decay)),
    "Muon": (
        0.02,
        lambda rate: keras_tfopt.Muon(
            rate,
            scaling="original",
            others=keras_tfopt.Adam(0.001, 0.9, 0.95),
            others_factor=0.05,
            **decay,
        ),
    ),
    "SOAP": (
        3e-3,
        lambda rate: keras_tfopt.SkipNonFinite(
            keras_tfopt.SOAP(rate, max_precond_dim=1000, **decay)
        ),
    ),
    "Distributed Shampoo": (
        1e-3,
        lambda rate: keras_tfopt.SkipNonFinite(
            keras_tfopt.DistributedShampoo(
                rate,
                beta_2=0.99,
                epsilon=1e-8,
                max_preconditioner_dim=128,
                precondition_frequency=10,
                grafting="adam",
                target_parameter_dimensionality=2,
                **decay,
            )
        ),
    ),
}
if args.fast:
    sides = {name: sides[name] for name in ("AdamW", "Muon")}
trials = (1 / 4, 1, 4, 16, 64) if not args.fast else (3,)

"""
## The tasks

- **Images**: a convolutional net tells scanned digits apart.
- **Text**: a transformer foretells the next word or sign in the source of Python's library.
- **Embedding**: a table has a vector for each word and each pair of words. The mean of 20 words and
  their pairs tells from which package of Python's library they are.

Images and files to validate with are not among those to train on.
"""


def windows(files, rows, width):
    """Numbers of tokens, cut into rows of one token more than `width`."""
    cut = [tokens[i : i + width + 1] for tokens in files for i in range(0, len(tokens), width)]
    numbers = [[rows.get(token, 0) for token in one] for one in cut if len(one) == width + 1]
    array = np.array(numbers, "int32")
    return array[:, :-1], array[:, 1:]


images, labels = digits()
order = np.random.default_rng(args.seed).permutation(len(images))
of_digits = [(images[part], labels[part]) for part in np.split(order, [4000])]

words, width = 500, 32
train_files, valid_files, _ = split_by_file(stdlib_tokens(max_files=150 if not args.fast else 20))
rows = {token: row for token, row in vocabulary(train_files).items() if row < words}
of_text = [windows(files, rows, width) for files in (train_files, valid_files)]

table_rows = 4000
runs, packages = package_runs(20, 10, max_files=400 if not args.fast else 60)
of_runs = [hashed_tokens(part, table_rows) for part in runs[:2]]


def convolutional_net():
    blocks = []
    for filters in (16, 32):
        blocks.append(layers.Conv2D(filters, 3, strides=2, use_bias=False))
        blocks += [layers.BatchNormalization(momentum=0.9), layers.ReLU()]
    head = [layers.Flatten(), layers.Dense(10)]
    return keras.Sequential([keras.Input(images.shape[1:]), *blocks, *head])


class AddPlaces(layers.Layer):
    """Adds a vector that is learned for each place of a text."""

    def build(self, shape):
        self.embeddings = self.add_weight(shape=shape[1:], initializer="uniform", name="embeddings")

    def call(self, x):
        return x + self.embeddings


def transformer(size=64, heads=4, blocks=2):
    numbers = keras.Input((width,), dtype="int32")
    x = AddPlaces()(layers.Embedding(words, size)(numbers))
    for _ in range(blocks if not args.fast else 1):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(heads, size // heads)(y, y, use_causal_mask=True)
        x = x + y
        y = layers.LayerNormalization()(x)
        x = x + layers.Dense(size)(layers.Dense(4 * size, activation="gelu")(y))
    return keras.Model(numbers, layers.Dense(words)(layers.LayerNormalization()(x)))


def table_of_vectors():
    table = layers.Embedding(table_rows, 32, keras.initializers.RandomUniform(-0.5, 0.5))
    mean = layers.GlobalAveragePooling1D()
    hidden = layers.Dense(64, activation="relu")
    return keras.Sequential([keras.Input((39,)), table, mean, hidden, layers.Dense(len(packages))])


tasks = {
    "images": (convolutional_net, of_digits),
    "text": (transformer, of_text),
    "embedding": (table_of_vectors, of_runs),
}
batch, most = 16, 256  # examples of a batch, and to validate with
steps, every = (240, 10) if not args.fast else (12, 3)
for name, (_, ((x, _), (x_valid, _))) in tasks.items():
    print(f"{name}: {len(x):,} examples to train on, {len(x_valid[:most]):,} to validate")

"""
## A trial

The loss is validated every few steps. The clock stands meanwhile, and in the first part of
a trial, which compiles. A trial whose loss is no number any more is over.
"""


def rate_of(side, peak, horizon):
    """The learning rate in each step."""
    warmup = max(1, horizon // 20)
    if side == "Schedule-Free AdamW":
        return keras_tfopt.schedules.WarmUp(peak, warmup)
    return keras_tfopt.schedules.WarmUpCosineDecay(peak, warmup, horizon)


class Clock(keras.callbacks.Callback):
    """The mean seconds of a training step, in each part of a trial."""

    def __init__(self):
        super().__init__()
        self.parts, self.seconds, self.since = [], [], 0.0

    def on_train_batch_begin(self, batch, logs=None):
        self.since = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        float(logs["loss"])  # a backend may not have computed it yet
        self.seconds.append(time.perf_counter() - self.since)

    def on_train_end(self, logs=None):
        self.parts.append(np.mean(self.seconds))
        self.seconds = []


def trial(task, side, factor, horizon):
    """Numbers of steps, validation losses, and seconds of a step in each part."""
    make, ((x, y), valid) = tasks[task]
    keras.utils.set_random_seed(args.seed)
    model, (start, optimizer) = make(), sides[side]
    model.compile(
        optimizer=optimizer(rate_of(side, factor * start, horizon)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    random = np.random.default_rng(args.seed)
    order = np.concatenate(
        [random.permutation(len(x)) for _ in range(1 + horizon * batch // len(x))]
    )
    clock, counts, losses = Clock(), [], []
    for first in range(0, horizon, every):
        part = order[first * batch : (first + every) * batch]
        model.fit(x[part], y[part], batch, shuffle=False, callbacks=[clock], verbose=0)
        with keras_tfopt.averaged(model) if "Free" in side else contextlib.nullcontext():
            loss = model.evaluate(*(array[:most] for array in valid), most, verbose=0)
        counts.append(first + every)
        losses.append(loss if np.isfinite(loss) else np.inf)
        if losses[-1] == np.inf:
            break
    return counts, losses, clock.parts


"""
## Training

The time to the target is the number of steps times the time of a step. That is a mean over the ten
steps between two validations, in which each optimizer does all that it does at intervals, and of
these means one of the fastest (the tenth part is faster): other programs slow some down.
"""

began, targets, results, at_edges = time.perf_counter(), {}, {}, []
print("\nSteps to the target, or else (the lowest loss), by learning rate, the lowest first:")
for task in tasks:
    sets = [trial(task, "AdamW", factor, steps * 3 // 4) for factor in trials]
    targets[task] = min(min(losses) for _, losses, _ in sets)
    print(f"\n{task}: the target is a loss of {targets[task]:.3f}")
    for side in sides:
        found = {factor: trial(task, side, factor, steps) for factor in trials}

        def steps_to_target(factor, found=found, task=task):
            counts, losses, _ = found[factor]
            return next((n for n, loss in zip(counts, losses) if loss <= targets[task]), np.inf)

        best = min(trials, key=lambda factor: (steps_to_target(factor), min(found[factor][1])))
        seconds = np.quantile([part for *_, parts in found.values() for part in parts[1:]], 0.1)
        results[task, side] = {
            "rate": best * sides[side][0],
            "steps": steps_to_target(best),
            "milliseconds": 1000 * seconds,
            "seconds": steps_to_target(best) * seconds,
            "loss": min(found[best][1]),
        }
        if best in (trials[0], trials[-1]) and len(trials) > 1:
            at_edges.append(f"{side} ({task})")
        reached = ""
        for factor, (_, losses, _) in found.items():
            steps_taken = steps_to_target(factor)
            text = f"{steps_taken}" if np.isfinite(steps_taken) else f"({min(losses):.3f})"
            reached += f"{text:>9}"
        print(f"  {side:20}{reached}", flush=True)
print(f"\nTotal time: {time.perf_counter() - began:.0f} s")

"""
## Results

A profile says of each optimizer on what part of the tasks it needs at most `r` times as long as the
fastest one. The score is the area under it for `r` from 1 to 4, divided by 3: 1 if the optimizer
is the fastest on all tasks, 0 if it takes more than four times as long, or never gets there.
"""

limit = 4
ratios = {}
for side in sides:
    times = [results[task, side]["seconds"] for task in tasks]
    fastest = [min(results[task, other]["seconds"] for other in sides) for task in tasks]
    ratios[side] = [t / best if np.isfinite(t) else np.inf for t, best in zip(times, fastest)]
scores = {
    side: np.mean([max(0.0, limit - ratio) / (limit - 1) for ratio in both])
    for side, both in ratios.items()
}
ranked = sorted(sides, key=lambda side: (-scores[side], list(sides).index(side)))

head = "".join(f"{task:>31}" for task in tasks)
print(f"\n{'':20} {'':>6}{head}")
columns = f"{'rate':>10}{'steps':>6}{'ms/step':>8}{'s':>7}"
print(f"{'':20} {'score':>6}" + columns * len(tasks))
for side in ranked:
    cells = []
    for task in tasks:
        one = results[task, side]
        reached = np.isfinite(one["steps"])
        count, taken = (f"{one['steps']}", f"{one['seconds']:.2f}") if reached else ("-", "-")
        cells.append(f"{one['rate']:>10.3g}{count:>6}{one['milliseconds']:>8.1f}{taken:>7}")
    print(f"{side:20} {scores[side]:>6.2f}" + "".join(cells))
print("A dash: no trial came to the target. One seed, one machine: small differences are chance.")
print(f"The best of the rates is the lowest or the highest for: {', '.join(at_edges) or 'none'}.")

"""
## The picture

The time to the target by task, and the profiles.
"""

figure = Figure(figsize=(13, 9), layout="constrained")
figure.suptitle(f"Time to the target, {len(trials)} trials each. {backend_name()}")
*panels, profiles = figure.subplots(2, 2).flat
for panel, task in zip(panels, tasks):
    for place, side in enumerate(ranked):
        one = results[task, side]
        if np.isfinite(one["steps"]):
            panel.barh(place, one["seconds"], color="tab:blue")
            text = f" {one['steps']} steps of {one['milliseconds']:.1f} ms"
            panel.text(one["seconds"], place, text, va="center", fontsize=8)
        else:
            panel.text(0, place, f" not reached: {one['loss']:.3f}", va="center", fontsize=8)
    panel.set_yticks(range(len(ranked)), ranked)
    panel.set_ylim(len(ranked) - 0.5, -0.5)
    panel.set(title=f"{task}, target {targets[task]:.3f}", xlabel="seconds of training steps")
    panel.set_xlim(0, 1.4 * panel.get_xlim()[1])
looks = ("-", "--", ":")
for place, side in enumerate(ranked):
    at = np.linspace(1, limit, 301)
    share = [np.mean([ratio <= r for ratio in ratios[side]]) for r in at]
    shift = 0.006 * place  # lines of several optimizers would lie one over another
    profiles.plot(at, np.array(share) - shift, looks[place // 4], label=side)
profiles.set(
    title="Profiles",
    xlabel="r: times as long as the fastest",
    ylabel="part of the tasks",
    ylim=(-0.1, 1.05),
)
figure.legend(loc="outside lower center", ncols=6, fontsize=9)
save(figure, args.out)
