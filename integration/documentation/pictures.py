"""The pictures of an optimizer, alike for all in size, axes and style, and without color."""

from __future__ import annotations

import functools
import re
from pathlib import Path as FilePath

import matplotlib

import keras_tfopt

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

from integration.documentation import runs

STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.facecolor": "white",
    # So that the same numbers give the same file, whose text is small and stays text.
    "svg.hashsalt": "keras_tfopt",
    "svg.fonttype": "none",
}
LOSS = (3e-4, 3.0)  # what all curves show
# On top, so that it is seen where both are the same.
DASHED = {"color": "0.6", "linestyle": "--", "linewidth": 1.3, "zorder": 3}


def title_of(name: str) -> str:
    return keras_tfopt.info(name).optimizer_class.__name__


def draw_curve(name: str, folder: FilePath) -> FilePath:
    """The training on digits, and that of `runs.compared_with`."""
    other, found = runs.curve(runs.compared_with(name)), runs.curve(name)
    epochs = np.arange(1, runs.EPOCHS + 1)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7, 2.8))
        figure.subplots_adjust(left=0.1, right=0.98, bottom=0.17, top=0.97)
        if name != runs.compared_with(name):
            label = f"{title_of(runs.compared_with(name))}, learning rate {other.rate:.2g}"
            axes.plot(epochs, other.losses, **DASHED, label=label)
        label = f"{title_of(name)}, learning rate {found.rate:.2g}"
        axes.plot(epochs, found.losses, color="black", linewidth=2, label=label)
        axes.set(xlim=(1, runs.EPOCHS), ylim=LOSS, yscale="log", xlabel="epoch")
        axes.set_ylabel("loss on training images")
        axes.set_xticks([1, 5, 10, 15, 20])
        axes.grid(color="0.9")
        axes.legend(loc="upper right")
        return _save(figure, folder / f"{name}-digits.svg")


def draw_paths(name: str, folder: FilePath) -> FilePath:
    """The runs on the functions, side by side."""
    with plt.rc_context(STYLE):
        figure, both = plt.subplots(1, 2, figsize=(7, 3.7))
        figure.subplots_adjust(left=0.06, right=0.97, bottom=0.16, top=0.92)
        for axes, function in zip(both, runs.FUNCTIONS, strict=True):
            _draw_path(axes, runs.path(name, function))
        handles, labels = both[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=len(handles))
        return _save(figure, folder / f"{name}-paths.svg")


@functools.cache
def _heights(function: runs.Function) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    left, right, bottom, top = function.part
    x, y = np.meshgrid(np.linspace(left, right, 161), np.linspace(bottom, top, 161))
    return x, y, function.value(x, y)


def _draw_path(axes: plt.Axes, run: runs.Path) -> None:
    left, right, bottom, top = run.function.part
    levels = np.geomspace(0.05, 2000, 12)
    axes.contour(*_heights(run.function), levels=levels, colors="0.75", linewidths=0.7)
    x, y = run.points.T
    if run.averages is not None:
        axes.plot(*run.averages.T, color="0.35", linestyle=":", linewidth=1.8, label="averages")
    axes.plot(x, y, color="black", linewidth=1, label="steps", zorder=3)
    axes.plot(x[::10], y[::10], "o", color="black", markersize=2.5, label="every tenth", zorder=3)
    marks = {"markeredgecolor": "black", "markerfacecolor": "white", "linestyle": "", "zorder": 4}
    axes.plot(*run.function.start, marker="s", markersize=7, label="start", **marks)
    axes.plot(*run.function.minimum, marker="*", markersize=12, label="minimum", **marks)
    axes.plot(x[-1], y[-1], marker="D", markersize=5, label="end", **marks)
    axes.set(xlim=(left, right), ylim=(bottom, top), box_aspect=1)
    axes.set_title(f"{run.function.name}, learning rate {run.rate:.2g}", fontsize=9)


# The code of a page whose last lines draw what the picture after it shows.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n!\[[^]]*\]\(([^)]+)\))?", re.M | re.S)
LINES = {
    "figure.figsize": (7, 2.5),
    "figure.constrained_layout.use": True,
    "axes.prop_cycle": plt.cycler(linestyle=["-", "--", ":", "-."]) * plt.cycler(color=["black"]),
}


def draw_page(page: FilePath) -> list[FilePath]:
    """Run the code of a page; of each block with a picture after it, save the figure as that."""
    drawn, names = [], {"__name__": page.stem}
    with plt.rc_context({**STYLE, **LINES}):
        for code, picture in BLOCK.findall(page.read_text("utf-8")):
            if picture:
                exec(code, names)
                (page.parent / picture).parent.mkdir(exist_ok=True)
                drawn.append(_save(plt.gcf(), page.parent / picture))
    return drawn


# A line of the table of `make bench BENCHMARKS=embedding`: rows, columns, and times by backend.
ROWS = re.compile(
    r"^\| ([\d*^ ]+) x \d+ \| (?:1,024 of a Zipf distribution|the same) \|(.+)\|$", re.M
)
BACKENDS = {"JAX": "o", "TensorFlow": "s", "PyTorch": "^"}


def growth(page: FilePath) -> dict[tuple[str, bool], list[tuple[float, float]]]:
    """{(backend, whether it is ours): [(rows, milliseconds)]} from the table of a page."""
    found: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for size, cells in ROWS.findall(page.read_text("utf-8")):
        factors = [10.0 ** int(f[3:]) if "^" in f else float(f) for f in size.split(" * ")]
        rows = float(np.prod(factors))
        jax, tensorflow, _, torch = cells.split("|")
        for backend, cell in zip(BACKENDS, (jax, tensorflow, torch), strict=True):
            ours, _, stock = cell.partition("/")
            found.setdefault((backend, True), []).append((rows, float(ours.split()[0])))
            if stock:
                found.setdefault((backend, False), []).append((rows, float(stock)))
    return found


def draw_growth(page: FilePath, path: FilePath) -> FilePath:
    """The times in the table of a page, against the rows of embedding tables."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
        for (backend, is_ours), times in growth(page).items():
            x, y = zip(*sorted(times))
            side = "keras_tfopt" if is_ours else "Keras"
            style = {"color": "black", "linestyle": "-"} if is_ours else {**DASHED, "color": "0.5"}
            axes.plot(x, y, marker=BACKENDS[backend], label=f"{side}, {backend}", **style)
        axes.set(xscale="log", yscale="log", xlabel="rows of the table")
        axes.set_ylabel("milliseconds a step")
        figure.legend(loc="outside right center")
        return _save(figure, path)


def _save(figure: plt.Figure, path: FilePath) -> FilePath:
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    colors = set(re.findall(r"#([0-9a-f]{6})\b", path.read_text("utf-8")))
    if colored := [c for c in sorted(colors) if not c[:2] == c[2:4] == c[4:]]:
        raise ValueError(f"{path.name} must have shades of gray only, and has {colored}.")
    return path
