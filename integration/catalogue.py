"""The page that lists every optimizer: `python -m integration.catalogue guides/optimizers.md`.

All of it comes from the code and from the recordings: formulas and remarks from the docstrings,
defaults from the signatures, slots and bytes from what the classes describe, and how far Keras's
own optimizers are from the originals of the same name from replaying the recordings with both.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_tfopt
from integration import originals, recordings, replay, stepping
from keras_tfopt.engine import Like

RECORDINGS = Path(__file__).parents[1] / "tests" / "golden" / "tf1"

ROWS = {
    "dense": "as if dense",
    "rows": "touched rows only",
    "move_rows": "slots everywhere, the variable in touched rows",
}


@dataclasses.dataclass(frozen=True)
class Stock:
    """The optimizer of Keras with the name of an original, and its arguments by the original's."""

    name: str
    arguments: Mapping[str, str]


_BETAS = {"beta1": "beta_1", "beta2": "beta_2", "epsilon": "epsilon"}
STOCK = {
    "GradientDescentOptimizer": Stock("SGD", {}),
    "MomentumOptimizer": Stock("SGD", {"momentum": "momentum", "use_nesterov": "nesterov"}),
    "AdagradOptimizer": Stock(
        "Adagrad", {"initial_accumulator_value": "initial_accumulator_value"}
    ),
    "AdadeltaOptimizer": Stock("Adadelta", {"rho": "rho", "epsilon": "epsilon"}),
    "AdamOptimizer": Stock("Adam", _BETAS),
    "AdaMaxOptimizer": Stock("Adamax", _BETAS),
    "NadamOptimizer": Stock("Nadam", _BETAS),
    "RMSPropOptimizer": Stock(
        "RMSprop",
        {"decay": "rho", "momentum": "momentum", "epsilon": "epsilon", "centered": "centered"},
    ),
    "FtrlOptimizer": Stock(
        "Ftrl",
        {
            "learning_rate_power": "learning_rate_power",
            "initial_accumulator_value": "initial_accumulator_value",
            "l1_regularization_strength": "l1_regularization_strength",
            "l2_regularization_strength": "l2_regularization_strength",
            "l2_shrinkage_regularization_strength": "l2_shrinkage_regularization_strength",
        },
    ),
}


def algorithms() -> list[type]:
    """Every algorithm of the package, by name."""
    public = (getattr(keras_tfopt, name) for name in sorted(keras_tfopt.__all__, key=str.lower))
    return [
        item
        for item in public
        if inspect.isclass(item)
        and issubclass(item, keras_tfopt.Rule)
        and item is not keras_tfopt.Rule
    ]


# ---- One optimizer -------------------------------------------------------------------------------


def slots_of(cls: type) -> list[str]:
    """Names of the slots of a matrix."""
    like = Like((512, 512), "float32", "kernel")
    return list(cls().slots([like] if cls.scope == "model" else like))


def rows_of(cls: type) -> str:
    """What a row gradient does, in words."""
    return ROWS[cls.sparse] + (", in some variables" if "takes_rows" in vars(cls) else "")


def tf1_names(cls: type) -> list[str]:
    """Recorded classes that this is the counterpart of."""
    return [name for name, entry in originals.ORIGINALS.items() if entry.ours == cls.__name__]


def page_of(cls: type) -> str:
    info = keras_tfopt.info(cls.__name__)
    arguments = ", ".join(f"{name}={value!r}" for name, value in info.defaults.items())
    facts = [
        f"- **Slots**: {info.slots or 'none.'} {info.bytes_per_parameter:.3g} bytes a parameter.",
        f"- **Row gradients**: {info.row_gradients}",
        f"- **Differences**: {info.differences}",
        f"- **Paper**: {info.paper}",
    ]
    return "\n\n".join(
        [
            f"## {cls.__name__}",
            info.description,
            f"```\nkeras_tfopt.{cls.__name__}({arguments})\n```",
            info.formula,
            "\n".join(facts),
        ]
    )


def overview() -> str:
    lines = [
        "| optimizer | original | row gradients | slots | bytes a parameter |",
        "|---|---|---|---|---|",
    ]
    for cls in algorithms():
        names = ", ".join(f"`{name}`" for name in tf1_names(cls))
        info = keras_tfopt.info(cls.__name__)
        slots = ", ".join(f"`{name}`" for name in slots_of(cls))
        lines.append(
            f"| [{cls.__name__}](#{cls.__name__.lower()}) | {names} | {rows_of(cls)} | "
            f"{slots or 'none'} | {info.bytes_per_parameter:.3g} |"
        )
    return "\n".join(lines)


# ---- Keras's optimizers of the same names --------------------------------------------------------


def stock_trajectory(case: recordings.Case) -> dict[str, np.ndarray]:
    """The variables after the last step, trained by Keras's optimizer with the same arguments."""
    stock = STOCK[case.optimizer]
    given = {**case.entry["defaults"], **case.entry["kwargs"]}
    arguments = {ours: given[theirs] for theirs, ours in stock.arguments.items() if theirs in given}
    rate = originals.argument(given["learning_rate"])
    optimizer = getattr(keras.optimizers, stock.name)(learning_rate=rate, **arguments)
    variables = [
        replay.make_variable(name, case.arrays[f"init/{name}"].copy()) for name in case.variables
    ]
    optimizer.build(variables)
    for step in case.steps:
        pairs = [(_dense(case.gradient(v.path, step), v), v) for v in variables]
        pairs = [(g, v) for g, v in pairs if g is not None]
        optimizer.apply_gradients(pairs)
    return {v.path: np.array(keras.ops.convert_to_numpy(v)) for v in variables}


def _dense(gradient: recordings.Gradient, variable: Any) -> Any:
    """As `fit` of JAX and torch hands rows over."""
    if isinstance(gradient, recordings.Rows):
        array = np.zeros(variable.shape, gradient.values.dtype)
        np.add.at(array, gradient.indices, gradient.values)
        gradient = array
    return None if gradient is None else keras.ops.convert_to_tensor(gradient)


def distance(case: recordings.Case, ours: Mapping[str, np.ndarray]) -> float:
    """How far the variables ended from the recorded ones, relative to how far these have moved."""
    last = case.steps[-1]
    worst = 0.0
    for name in case.variables:
        start, end = case.arrays[f"init/{name}"], case.arrays[f"var/{last}/{name}"]
        moved = np.max(np.abs(end - start), initial=0.0)
        if moved:
            worst = max(worst, float(np.max(np.abs(ours[name] - end)) / moved))
    return worst


def differences() -> str:
    """A table: distances from the recorded originals, of Keras's optimizers and of ours."""
    lines = [
        "| recording | steps | `keras.optimizers` | its distance | ours | our distance |",
        "|---|---|---|---|---|---|",
    ]
    way = next(iter(stepping.ways("eager").values()))
    for name in STOCK:
        if not originals.is_implemented(name):
            continue
        pattern = name.removesuffix("Optimizer") + "__*"
        for case in recordings.select(RECORDINGS, pattern).cases:
            if case.float64:
                continue
            stock = distance(case, stock_trajectory(case))
            arrays = replay.trajectory(case, way)
            last = case.steps[-1]
            ours = distance(case, {v: arrays[f"var/{last}/{v}"] for v in case.variables})
            lines.append(
                f"| {case.name.replace('__', ', ').replace('_', ' ')} | {len(case.steps)} | "
                f"`{STOCK[name].name}` | {_percent(stock)} | "
                f"`{originals.ORIGINALS[name].ours}` | {_percent(ours)} |"
            )
    return "\n".join(lines)


def _percent(value: float) -> str:
    if value < 1e-4:
        return "none"
    return f"{100 * value:.2g} %" if value < 0.1 else f"{100 * value:.0f} %"


def page() -> str:
    """The whole page."""
    return "\n\n".join(
        [
            "# Every optimizer",
            "Written by `make catalogue` from docstrings, signatures and recordings. Bytes are "
            "those of float32 state for each parameter of a large matrix.",
            overview(),
            *[page_of(cls) for cls in algorithms()],
            "## Differences from Keras's optimizers of the same names",
            "Recorded runs of TensorFlow 1.15.5, run again with Keras's optimizer of that name and "
            "with ours, with the same arguments and gradients. The distance is that of variables "
            "after the last step from the recorded ones, relative to how far these have moved; "
            "none is less than 0.01 %. Row gradients are given to Keras's as dense ones, the way "
            "`fit` does on JAX and PyTorch.",
            differences(),
        ]
    )


if __name__ == "__main__":
    text = page() + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)
    else:
        print(text, end="")
