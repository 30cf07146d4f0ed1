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
    guide = Path(guide).resolve()
    out = guide.parent / "output" / f"{guide.stem}-{keras.backend.backend()}.png"
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


class Progress:
    """One bar over all runs, where there is a terminal, and a line for each run that is done."""

    def __init__(self, steps):
        self.steps, self.done, self.shown = steps, 0, -1

    def step(self):
        self.done += 1
        percent = 100 * self.done // self.steps
        if sys.stdout.isatty() and percent != self.shown:
            self.shown = percent
            print(f"\r[{'#' * (percent // 4):25}] {percent:3} %", end="", flush=True)

    def line(self, text):
        clear = f"\r{' ' * 40}\r" if sys.stdout.isatty() else ""
        print(clear + text, flush=True)


class Run(StepTimer):
    """One training: which side, with which learning rate, and what came of it."""

    def __init__(self, task, side, rate, progress):
        super().__init__()
        self.task, self.side, self.rate, self.progress = task, side, rate, progress
        self.curve = []  # of the number of steps and the metrics, after each part
        self.results = []  # number of steps, validation, test: after the common steps, at the end

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        self.progress.step()

    def on_epoch_end(self, epoch, logs=None):
        self.curve.append((len(self.seconds), dict(logs)))

    def finish(self, test):
        steps, logs = self.curve[-1]
        self.results.append((steps, logs["val_accuracy"], test["accuracy"]))
        times = f"{steps} steps, {self.milliseconds():.1f} ms each"
        self.progress.line(
            f"  {self.side:31}  rate {self.rate:<6g} {times:26} "
            f"validation accuracy {logs['val_accuracy']:.3f}"
        )

    def milliseconds(self):
        """The median except for the first steps, which compile."""
        return 1000 * float(np.median(self.seconds[3:] or self.seconds))

    def values(self, name):
        """Numbers of steps, and a metric after them."""
        return [n for n, _ in self.curve], [logs[name] for _, logs in self.curve]


@dataclasses.dataclass
class Comparison:
    """Two sides on one task, the stock side first, that make the same steps at the same rates."""

    title: str
    sides: dict  # functions by name: one that makes a model, one from a rate to an optimizer
    rates: list
    data: list  # to train on, to choose by, to test; each inputs and labels
    batch: int
    epochs: int  # parts of the training, with a validation after each
    steps: int  # of a part
    more: int = 0  # passes through the training data that ours makes after these steps
    runs: list = dataclasses.field(default_factory=list)

    @property
    def ours(self):
        return list(self.sides)[1]

    def all_steps(self):
        return len(self.rates) * (2 * self.epochs * self.steps + self.more * self.per_pass())

    def per_pass(self):
        return len(self.data[0][0]) // self.batch

    def start(self, side, rate, progress):
        self.runs.append(Run(self, side, rate, progress))
        return self.runs[-1]

    def of(self, side):
        return [run for run in self.runs if run.side == side]

    def best(self, side):
        """The run with the best validation after the common steps; the loss decides if equal."""

        def score(run):
            loss = run.curve[self.epochs - 1][1]["val_loss"]
            return run.results[0][1], -loss if math.isfinite(loss) else -math.inf

        return max(self.of(side), key=score)

    def milliseconds(self, side):
        return float(np.median([run.milliseconds() for run in self.of(side)]))

    def error(self):
        """The largest standard error of a test accuracy."""
        tests = [result[2] for side in self.sides for result in self.best(side).results]
        return max((p * (1 - p) / len(self.data[2][0])) ** 0.5 for p in tests)


def print_table(comparisons):
    """A line for each side and number of steps; the last column is compared with the stock side."""
    head = ["", "best rate", "steps", "validation", "test", "ms per step", "speed"]
    table = []
    for task in comparisons:
        table.append([f"{task.title}: accuracy", *[""] * 6])
        stock = task.milliseconds(next(iter(task.sides)))
        for side in task.sides:
            best, own = task.best(side), task.milliseconds(side)
            speed = stock / own
            for steps, *scores in best.results:
                texts = [f"{best.rate:g}", f"{steps}", *(f"{score:.3f}" for score in scores)]
                texts += [f"{own:.1f}", f"{speed:.{0 if speed > 20 else 2}f}"]
                table.append([f"  {side}", *texts])
    widths = [max(map(len, column)) for column in zip(head, *table)]
    line = "-" * (sum(widths) + 2 * len(widths) - 2)
    print(line)
    for row in [head, *table]:
        if not row[1]:
            print(line)
        print("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip())
    print(line)


def label_ends(panel, ends):
    """Writes a name at the right end of each line, `(y, name, look)`, none over another."""
    low, high = panel.get_ylim()
    ends = [(min(max((y - low) / (high - low), 0), 1), name, look) for y, name, look in ends]
    ends.sort(key=lambda end: end[0])
    places, gap = [at for at, _, _ in ends], 0.062
    for _ in range(200):
        for i in range(len(places) - 1):
            overlap = max(0, gap - (places[i + 1] - places[i]))
            places[i], places[i + 1] = places[i] - overlap / 2, places[i + 1] + overlap / 2
        places = [min(max(place, 0), 1) for place in places]
    for place, (at, name, look) in zip(places, ends):
        panel.annotate(
            name,
            (1, at),
            (1.05, place),
            xycoords="axes fraction",
            color=look["color"],
            weight="bold" if "best" in name else None,
            va="center",
            fontsize=9,
            arrowprops={"arrowstyle": "-", "color": look["color"], "lw": 0.5},
        )


def save_curves(comparisons, path):
    """A PNG with a row of panels for each comparison."""
    figure = Figure(figsize=(15, 5 * len(comparisons)), layout="constrained")
    figure.suptitle(f"keras_tfopt beside stock Keras. {backend_name()}")
    strips = figure.subfigures(len(comparisons), 1, squeeze=False)[:, 0]
    for strip, task in zip(strips, comparisons):
        (draw_times if task.more else draw_rates)(strip, task)
    save(figure, path)


def draw_times(strip, task):
    """The time of a step, and the validation over the time of all steps."""
    strip.suptitle(f"{task.title}: the same steps, in what time?")
    bars, curves = strip.subplots(1, 2, width_ratios=(1, 2))
    times = [task.milliseconds(side) for side in task.sides]
    bars.bar(range(2), times, color=[look["color"] for look in STYLES[:2]], width=0.6)
    bars.set_ylabel("milliseconds per step")
    logarithmic(bars.yaxis)
    bars.set_ylim(min(times) / 3, max(times) * 4)
    bars.set_xticks(range(2), [side.replace(" ", "\n", 1) for side in task.sides])
    texts = f"{times[0]:.1f} ms", f"{times[1]:.1f} ms\n{times[0] / times[1]:.0f} times as fast"
    for place, (height, text) in enumerate(zip(times, texts)):
        bars.text(place, height * 1.15, text, ha="center", va="bottom", weight="bold")
    ends = []
    for side, look in zip(task.sides, STYLES):
        best = task.best(side)
        steps, values = best.values("val_accuracy")
        seconds = [n * task.milliseconds(side) / 1000 for n in steps]
        curves.plot(seconds, values, **look, lw=2.5, ms=5)
        for n, validation, _ in best.results:
            at = n * task.milliseconds(side) / 1000
            last = n == steps[-1]  # elsewhere the curve goes on upwards, to the right
            place, side_of_point = ((0, 9), "center") if last else ((-6, 7), "right")
            curves.annotate(
                f"{n} steps", (at, validation), place, textcoords="offset points", ha=side_of_point
            )
        ends.append((values[-1], f"{side}\n(best rate {best.rate:g})", look))
    curves.set(xlabel="seconds of training", ylabel="validation accuracy")
    logarithmic(curves.xaxis)
    curves.grid(alpha=0.3)
    low, high = curves.get_ylim()
    curves.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
    label_ends(curves, ends)


def draw_rates(strip, task):
    """Training loss and validation of all rates, and the end of the latter over the rates."""
    strip.suptitle(f"{task.title}: all learning rates; bold is the best of each side")
    training, validation, ends = strip.subplots(1, 3)
    labels = []
    for side, look in zip(task.sides, STYLES):
        best = task.best(side)
        for run in task.of(side):
            style = {"lw": 3, "zorder": 3} if run is best else {"lw": 0.8, "alpha": 0.6}
            for panel, name in ((training, "loss"), (validation, "val_accuracy")):
                steps, values = run.values(name)
                panel.plot(steps, values, **look, **style, ms=4)
            name = f"{side.split()[1].rstrip(',')} {run.rate:g}" + " (best)" * (run is best)
            labels.append((run, name, look))
        points = [(run.rate, run.results[0][1]) for run in task.of(side)]
        ends.plot(*zip(*points), **look, label=side)
        ends.plot(best.rate, best.results[0][1], "*", color=look["color"], markersize=18)
    training.set(ylabel="training loss (cross-entropy, nats)", xlabel="steps")
    validation.set(ylabel="validation accuracy", xlabel="steps")
    ends.set(ylabel="validation accuracy at the end", xlabel="peak learning rate")
    logarithmic(ends.xaxis)
    highest = max(max(task.best(side).values("loss")[1]) for side in task.sides)
    if training.get_ylim()[1] > 1.5 * highest:  # a diverged run must not flatten all the others
        training.set_ylim(0, 1.5 * highest)
    for panel in (training, validation, ends):
        panel.grid(alpha=0.3)
    for panel, name in ((training, "loss"), (validation, "val_accuracy")):
        found = [(run.values(name)[1][-1], text, look) for run, text, look in labels]
        label_ends(panel, [end for end in found if math.isfinite(end[0])])
    ends.legend(loc="lower center")


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
