"""What the guides share for measuring and showing: step times, a table, curves."""

import argparse
import dataclasses
import math
import sys
import time
from pathlib import Path

import keras
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

# One for each curve of a figure: told apart without color, too.
STYLES = (
    {"color": "black", "marker": "o", "linestyle": "-"},
    {"color": "tab:red", "marker": "s", "linestyle": "--"},
    {"color": "tab:blue", "marker": "^", "linestyle": "-."},
    {"color": "tab:green", "marker": "D", "linestyle": ":"},
    {"color": "tab:purple", "marker": "v", "linestyle": (0, (6, 2))},
    {"color": "tab:brown", "marker": "x", "linestyle": (0, (3, 1, 1, 1, 1, 1))},
)


def options(guide, fast, **more):
    """The arguments that a guide is started with; `fast` says what --fast leaves of it."""
    parser = argparse.ArgumentParser()
    out = Path(guide).resolve().with_suffix(".png")
    out = out.parent / "output" / out.name
    parser.add_argument("--out", type=Path, default=out, help="image file (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of initial weights and batches")
    parser.add_argument("--fast", action="store_true", help=fast)
    for name, text in more.items():
        parser.add_argument(f"--{name}", help=text)
    return parser.parse_args()


class StepTimer(keras.callbacks.Callback):
    """The seconds that each training step took."""

    def __init__(self):
        super().__init__()
        self.seconds, self.start = [], 0.0

    def on_train_batch_begin(self, batch, logs=None):
        self.start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        # A backend may return before it has computed; asking for the loss makes it finish.
        float(logs["loss"])
        self.seconds.append(time.perf_counter() - self.start)


def accuracy(model, data):
    """The fraction of images whose label the model finds."""
    logits = keras.ops.convert_to_numpy(model(data[0], training=False))
    return np.mean(logits.argmax(axis=1) == data[1])


def logarithmic(axis):
    """Makes an axis of a panel logarithmic, with few labels, which do not overlap."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")


@dataclasses.dataclass
class Run:
    """One training: which side, with which learning rate, and what came of it."""

    side: str
    rate: float
    model: keras.Model
    history: dict
    step_seconds: list

    def score(self, metric):
        """The last value of the metric, turned so that larger is better. Diverged: the worst."""
        value = self.history[metric][-1]
        if not math.isfinite(value):
            return -math.inf
        return value if "accuracy" in metric else -value


@dataclasses.dataclass
class Comparison:
    """All the runs of two sides on one task, the stock side first."""

    title: str
    sides: tuple
    metric: str  # "accuracy" or "loss": what the validation part chooses by and the test part says
    epoch: str  # what the training calls an epoch
    runs: list = dataclasses.field(default_factory=list)
    test: dict = dataclasses.field(default_factory=dict)  # side: value of the metric
    test_size: int = 0

    def of(self, side):
        return [run for run in self.runs if run.side == side]

    def best(self, side):
        """The run that did best on the validation part; the loss decides between equals."""
        metrics = f"val_{self.metric}", "val_loss"
        return max(self.of(side), key=lambda run: [run.score(metric) for metric in metrics])

    def milliseconds(self, side, skip=5):
        """The median over all runs of the side, but for their first steps: those compile."""
        steps = [s for run in self.of(side) for s in run.step_seconds[skip:] or run.step_seconds]
        return 1000 * float(np.median(steps))


def print_table(comparisons):
    """Two lines a task; the last column is the time of a step over that of the stock side."""
    head = ["", "best rate", "validation", "test", "ms per step", "time ratio"]
    table = []
    for task in comparisons:
        table.append([f"{task.title} ({task.metric})", *[""] * 5])
        stock = task.milliseconds(task.sides[0])
        for side in task.sides:
            best, own = task.best(side), task.milliseconds(side)
            scores = best.history[f"val_{task.metric}"][-1], task.test[side]
            texts = [f"{best.rate:g}", *(f"{score:.4f}" for score in scores)]
            table.append([f"  {side}", *texts, f"{own:.1f}", f"{own / stock:.2f}"])
    widths = [max(map(len, column)) for column in zip(head, *table)]
    line = "-" * (sum(widths) + 2 * len(widths) - 2)
    print(line)
    for row in [head, *table]:
        if not row[1]:
            print(line)
        print("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip())
    print(line)


def save_curves(comparisons, path):
    """A PNG with a row of panels a task, see `draw`."""
    figure = Figure(figsize=(15, 5 * len(comparisons)), layout="constrained")
    rest = "Bold: the best learning rate of each side; thin: the others, cut where they diverge"
    figure.suptitle(f"{backend_name()}. {rest}")
    strips = figure.subfigures(len(comparisons), 1, squeeze=False)[:, 0]
    for strip, task in zip(strips, comparisons):
        draw(strip, task)
    save(figure, path)


def draw(strip, task):
    """Three panels: training loss, validation metric, and the latter's end over the rates."""
    metric = f"val_{task.metric}"
    labels = {"loss": "cross-entropy (nats)", "accuracy": "accuracy (fraction right)"}
    training, validation, ends = strip.subplots(1, 3)
    training.set(title=f"{task.title}: training", xlabel=task.epoch, ylabel=labels["loss"])
    validation.set(title=f"{task.title}: validation", xlabel=task.epoch)
    ends.set(title=f"{task.title}: validation, at the end", xlabel="(peak) learning rate")
    for side, look in zip(task.sides, STYLES):
        best = task.best(side)
        for run in task.of(side):
            style = {"lw": 3, "zorder": 3} if run is best else {"lw": 0.8, "alpha": 0.6}
            for panel, name in ((training, "loss"), (validation, metric)):
                values = run.history[name]
                panel.plot(range(1, len(values) + 1), values, **look, **style, ms=4)
        points = [(run.rate, run.history[metric][-1]) for run in task.of(side)]
        ends.plot(*zip(*points), **look, label=f"{side} (best rate {best.rate:g})")
        ends.plot(best.rate, best.history[metric][-1], "*", color=look["color"], markersize=18)
    for panel in (validation, ends):
        panel.set_ylabel(labels[task.metric])
    for panel in (training, validation):
        panel.xaxis.get_major_locator().set_params(integer=True)
    ends.set_xscale("log")
    for panel, name in ((training, "loss"), (validation, metric), (ends, metric)):
        panel.grid(alpha=0.3)
        # A diverged run must not flatten all the others.
        highest = max(max(task.best(side).history[name]) for side in task.sides)
        if "loss" in name and panel.get_ylim()[1] > 1.5 * highest:
            panel.set_ylim(0, 1.5 * highest)
    strip.legend(loc="outside lower center", ncols=2)


def backend_name():
    """Keras and its backend, with versions."""
    name = keras.backend.backend()
    return f"Keras {keras.__version__} on {name} {sys.modules[name].__version__}"


def grid(panel, values, rows, columns, low, high, form="{:.3f}"):
    """Numbers in cells, from dark to light; all below `low` are alike, so that the rest differ."""
    darkest = low - 0.4 * (high - low)  # not black, which no number could be read on
    panel.imshow(np.maximum(values, low), cmap="gray", vmin=darkest, vmax=high, aspect="auto")
    panel.set_xticks(range(len(columns)), [f"{c:g}" for c in columns])
    panel.set_yticks(range(len(rows)), rows)
    for (y, x), value in np.ndenumerate(np.asarray(values)):
        color = "black" if value > (darkest + high) / 2 else "white"
        panel.text(x, y, form.format(value), ha="center", va="center", color=color)


def save(figure, path):
    """Writes the picture of a guide and says where it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"\nCurves: {path.resolve()}")
