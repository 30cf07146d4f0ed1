"""Defects of Keras's own optimizers, measured, and what becomes of them in keras_tfopt.

    KERAS_BACKEND=jax python -m integration.stock_defects [--json OUT]
    python -m integration.stock_defects --all

One line per defect: what was expected, what the installed Keras does on this backend, what ours
does. With --all, a process per installed backend, and one table of all of them in Markdown.

Every probe runs one scenario with a stock optimizer and with one of ours, and says what is right
from elsewhere: a computation in NumPy, a run on one device, a limit. Nothing here is a stored
result, so a defect that a later Keras has mended shows as mended.
"""

import argparse
import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

import keras_tfopt

BACKEND = keras.backend.backend()
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "torch"}
ROOT = Path(__file__).resolve().parent.parent


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an optimizer did: a number, or the first line of an error."""

    value: float | None = None
    error: str | None = None

    def is_right(self, expected: float, tolerance: float) -> bool:
        return self.error is None and abs(self.value - expected) <= tolerance

    def __str__(self) -> str:
        return self.error if self.error is not None else f"{self.value:.4g}"


@dataclasses.dataclass(frozen=True)
class Finding:
    """The facts of one probe on one backend. `stock` is None where the defect cannot occur."""

    number: str
    defect: str
    measured: str
    expected: float
    tolerance: float
    stock: Outcome | None
    ours: Outcome

    @property
    def stock_has_it(self) -> bool | None:
        if self.stock is None:
            return None
        return not self.stock.is_right(self.expected, self.tolerance)

    @property
    def ours_is_right(self) -> bool:
        return self.ours.is_right(self.expected, self.tolerance)

    def describe_stock(self) -> str:
        if self.stock is None:
            return "not applicable here"
        return f"{'has it' if self.stock_has_it else 'does not'}: {self.stock}"

    def describe_ours(self) -> str:
        return f"{'absent' if self.ours_is_right else 'HAS IT'}: {self.ours}"


@dataclasses.dataclass(frozen=True)
class Probe:
    """`seen_on`: where Keras 3.15.1 has the defect; `backends`: where there can be one."""

    number: str
    defect: str
    measured: str
    seen_on: tuple[str, ...]
    backends: tuple[str, ...]
    function: Callable[[], tuple[float, float, Outcome, Outcome]]

    def run(self) -> Finding:
        if BACKEND not in self.backends:
            nothing = Outcome(error="not run")
            return Finding(self.number, self.defect, self.measured, 0.0, 0.0, None, nothing)
        expected, tolerance, stock, ours = self.function()
        return Finding(
            self.number,
            self.defect,
            self.measured,
            float(expected),
            float(tolerance),
            stock,
            ours,
        )


PROBES: list[Probe] = []


def probe(
    number: str,
    defect: str,
    measured: str,
    seen_on: tuple[str, ...] = tuple(BACKENDS),
    backends: tuple[str, ...] = tuple(BACKENDS),
) -> Callable:
    """Registers a function that returns (expected, tolerance, stock outcome, our outcome)."""

    def add(function: Callable) -> Callable:
        PROBES.append(Probe(number, defect, measured, seen_on, backends, function))
        return function

    return add


def attempt(scenario: Callable[[Any], Any], make: Callable[[], Any]) -> Outcome:
    """Runs a scenario with a new optimizer; whatever goes wrong is a fact too."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Outcome(value=float(scenario(make())))
    except Exception as error:
        return Outcome(error=_first_line(error))


def _first_line(error: BaseException) -> str:
    while error.__context__ is not None:  # what went wrong first
        error = error.__context__
    lines = [re.sub(r"\x1b\[\d+m", "", line).strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith("Exception encountered")]
    text = f"{type(error).__name__}: {lines[0] if lines else ''}"
    return text if len(text) <= 80 else text[:77] + "..."


# Scenarios are made of these


def variable(value: Any, path: str = "kernel", dtype: str = "float32") -> keras.Variable:
    *scopes, name = path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(np.asarray(value), dtype=dtype, name=name)


def number(v: Any) -> float:
    """The first element of a variable."""
    return float(np.ravel(ops.convert_to_numpy(ops.cast(v, "float32")))[0])


def steps(optimizer: Any, x: Any, gradient: float, count: int) -> Any:
    """Plain steps with a constant gradient."""
    for _ in range(count):
        optimizer.apply([ops.full(x.shape, gradient, dtype=x.dtype)], [x])
    return x


def mean_of_outputs(_: Any, outputs: Any) -> Any:
    """A loss with constant gradients."""
    return ops.mean(outputs)


IDS = np.array([[1, 1, 2]])


def embedding_model(optimizer: Any) -> Any:
    """A table of ones. On IDS, the summed gradient is 2/3 in row 1 and 1/3 in row 2."""
    model = keras.Sequential(
        [keras.layers.Input((3,), dtype="int32"), keras.layers.Embedding(4, 1, "ones")]
    )
    model.compile(optimizer, mean_of_outputs)
    return model


def dense_model(optimizer: Any) -> Any:
    """One weight of 1, whose gradient on inputs of 1 is 1."""
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.layers.Input((1,)), layer])
    model.compile(optimizer, mean_of_outputs)
    return model


def row_1(optimizer: Any, epochs: int = 3) -> float:
    """Row 1 of the table after `fit` on IDS, one step an epoch."""
    model = embedding_model(optimizer)
    model.fit(IDS, np.zeros((1, 3)), epochs=epochs, verbose=0)
    return float(model.get_weights()[0][1, 0])


def adam_in_numpy(gradient: float, count: int, rate: float, epsilon: float = 1e-8) -> float:
    """A weight that starts at 1 after steps of Adam, in float64."""
    x, m, v = 1.0, 0.0, 0.0
    for t in range(1, count + 1):
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        x -= rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + epsilon)
    return x


stock = keras.optimizers
ours = keras_tfopt


# The probes


@probe(
    "1a",
    "Repeated ids in a batch count as several gradients of their row",
    "row 1 after 3 steps of Adam(0.05) on ids [1, 1, 2]",
    seen_on=("tensorflow",),
)
def repeated_ids() -> tuple:
    return (
        adam_in_numpy(2 / 3, 3, 0.05),
        1e-4,
        attempt(row_1, lambda: stock.Adam(0.05, epsilon=1e-8)),
        attempt(row_1, lambda: ours.Adam(0.05)),
    )


@probe(
    "1b",
    "clipvalue clips the parts of a repeated row, not their sum",
    "row 1 after 1 step of SGD(1, clipvalue=0.4) on ids [1, 1, 2]",
    seen_on=("tensorflow",),
)
def clipped_parts() -> tuple:
    return (
        1 - min(2 / 3, 0.4),
        1e-5,
        attempt(lambda o: row_1(o, 1), lambda: stock.SGD(1.0, clipvalue=0.4)),
        attempt(lambda o: row_1(o, 1), lambda: ours.Momentum(1.0, clipvalue=0.4)),
    )


@probe(
    "2a",
    "Row gradients fail with loss_scale_factor",
    "row 1 after 3 steps of SGD(0.1, loss_scale_factor=8)",
    seen_on=("tensorflow",),
)
def scaled_rows() -> tuple:
    return (
        1 - 3 * 0.1 * 2 / 3,
        1e-5,
        attempt(row_1, lambda: stock.SGD(0.1, loss_scale_factor=8.0)),
        attempt(row_1, lambda: ours.Momentum(0.1, momentum=0.0, loss_scale_factor=8.0)),
    )


def _times_slower_on_a_large_table(make: Callable[[], Any]) -> Outcome:
    """How much longer a step on 4 rows takes with 2**20 rows in the table than with 2**10."""
    import tensorflow as tf

    def best_time(rows: int) -> float:
        optimizer = make()
        table = variable(np.ones((rows, 16)), "table/embeddings")
        indices, values = tf.constant([1, 2, 3, 1]), tf.ones((4, 16))
        seconds = []
        for count in range(12):  # no micro-step of these moves the variables
            gradient = tf.IndexedSlices(values, indices, tf.constant([rows, 16]))
            start = time.perf_counter()
            optimizer.apply([gradient], [table])
            if count > 1:
                seconds.append(time.perf_counter() - start)
        return min(seconds)

    return attempt(lambda o: best_time(2**20) / best_time(2**10), make)


# A step in rows takes as long on any table, a dense one 20 to 50 times longer; clocks are noisy.
_LIMIT = (1.0, 6.0)


@probe(
    "2b",
    "global_clipnorm makes row gradients dense",
    "time of a step on a table 1024 times as large",
    seen_on=("tensorflow",),
    backends=("tensorflow",),
)
def dense_by_clipping() -> tuple:
    return (
        *_LIMIT,
        _times_slower_on_a_large_table(lambda: stock.SGD(0.1, global_clipnorm=1.0)),
        _times_slower_on_a_large_table(lambda: ours.Momentum(0.1, global_clipnorm=1.0)),
    )


@probe(
    "2c",
    "gradient_accumulation_steps makes row gradients dense",
    "time of a micro-step on a table 1024 times as large",
    seen_on=("tensorflow",),
    backends=("tensorflow",),
)
def dense_by_accumulation() -> tuple:
    count = {"gradient_accumulation_steps": 100}
    return (
        *_LIMIT,
        _times_slower_on_a_large_table(lambda: stock.SGD(0.1, **count)),
        _times_slower_on_a_large_table(lambda: ours.Momentum(0.1, **count)),
    )


@probe(
    "3",
    "use_ema: the second fit crashes",
    "weight after two fits of 3 steps, SGD(0.1, use_ema)",
    seen_on=("jax",),
)
def second_fit() -> tuple:
    def scenario(optimizer: Any) -> float:
        model = dense_model(optimizer)
        for _ in range(2):
            model.fit(np.ones((3, 1)), np.zeros((3, 1)), batch_size=1, verbose=0)
        return number(model.trainable_variables[0])

    x = 1.0
    average = None
    for _ in range(2):
        for _ in range(3):
            x -= 0.1
            average = x if average is None else 0.5 * average + 0.5 * x
        x = average  # what training ends with
    ema = {"use_ema": True, "ema_momentum": 0.5}
    return (
        x,
        1e-5,
        attempt(scenario, lambda: stock.SGD(0.1, **ema)),
        attempt(scenario, lambda: ours.Momentum(0.1, momentum=0.0, **ema)),
    )


@probe(
    "4",
    "SwapEMAWeights leaves the averages in the model after predict",
    "change of the weight by predict(callbacks=[SwapEMAWeights()])",
)
def swapped_weights() -> tuple:
    def scenario(optimizer: Any) -> float:
        model = dense_model(optimizer)
        x, y = np.ones((1, 1)), np.zeros((1, 1))
        for _ in range(3):
            model.train_on_batch(x, y)
        is_ours = isinstance(optimizer, ours.Algorithm)
        before = number(model.trainable_variables[0])
        callback = (ours if is_ours else keras).callbacks.SwapEMAWeights()
        outputs = model.predict(x, callbacks=[callback], verbose=0)
        assert abs(float(outputs[0, 0]) - before) > 0.01, "the averages were not used"
        return number(model.trainable_variables[0]) - before

    ema = {"use_ema": True, "ema_momentum": 0.5}
    return (
        0.0,
        1e-6,
        attempt(scenario, lambda: stock.SGD(0.1, **ema)),
        attempt(scenario, lambda: ours.Momentum(0.1, momentum=0.0, **ema)),
    )


@probe(
    "5a",
    "exclude_from_weight_decay is forgotten when saved",
    "excluded bias after from_config(get_config()) and one step of zero gradient",
)
def exclusion_in_config() -> tuple:
    def scenario(optimizer: Any) -> float:
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        again = type(optimizer).from_config(optimizer.get_config())
        bias, kernel = variable(1.0, "dense/bias"), variable(1.0, "dense/kernel")
        again.apply([ops.zeros(()), ops.zeros(())], [bias, kernel])
        assert number(kernel) < 0.96
        return number(bias)

    return (
        1.0,
        1e-6,
        attempt(scenario, lambda: stock.Adam(0.1, weight_decay=0.5)),
        attempt(scenario, lambda: ours.Adam(0.1, weight_decay=0.5)),
    )


@probe(
    "5b",
    "exclude_from_weight_decay does not match paths",
    '"decoder/kernel" after one step of zero gradient, excluded by "decoder"',
    seen_on=("jax", "torch"),
)
def exclusion_by_path() -> tuple:
    def scenario(optimizer: Any) -> float:
        optimizer.exclude_from_weight_decay(var_names=["decoder"])
        inside, outside = variable(1.0, "decoder/kernel"), variable(1.0, "encoder/kernel")
        optimizer.apply([ops.zeros(()), ops.zeros(())], [inside, outside])
        assert number(outside) < 0.96
        return number(inside)

    return (
        1.0,
        1e-6,
        attempt(scenario, lambda: stock.Adam(0.1, weight_decay=0.5)),
        attempt(scenario, lambda: ours.Adam(0.1, weight_decay=0.5)),
    )


@probe(
    "5c",
    "exclude_from_weight_decay after build is taken silently",
    "errors raised by such a call",
)
def exclusion_after_build() -> tuple:
    def scenario(optimizer: Any) -> float:
        optimizer.build([variable(1.0)])
        try:
            optimizer.exclude_from_weight_decay(var_names=["kernel"])
        except ValueError:
            return 1.0
        return 0.0

    return (
        1.0,
        0.0,
        attempt(scenario, lambda: stock.Adam(0.1, weight_decay=0.5)),
        attempt(scenario, lambda: ours.Adam(0.1, weight_decay=0.5)),
    )


@probe(
    "6a",
    "bfloat16 variables do not learn",
    "weight after 10 steps of Adam(0.05), gradient 1",
)
def bfloat16() -> tuple:
    def scenario(optimizer: Any) -> float:
        return number(steps(optimizer, variable([1.0], dtype="bfloat16"), 1.0, 10))

    return (
        adam_in_numpy(1.0, 10, 0.05),
        10 * 2**-9,  # each step rounds the weight to 8 bits
        attempt(scenario, lambda: stock.Adam(0.05)),
        attempt(scenario, lambda: ours.Adam(0.05)),
    )


@probe(
    "6b",
    "float16 variables explode",
    "weight after 10 steps of Adam(0.05), gradient 1e-4",
)
def float16() -> tuple:
    def scenario(optimizer: Any) -> float:
        return number(steps(optimizer, variable([1.0], dtype="float16"), 1e-4, 10))

    return (
        adam_in_numpy(1e-4, 10, 0.05),
        10 * 2**-12,
        attempt(scenario, lambda: stock.Adam(0.05)),
        attempt(scenario, lambda: ours.Adam(0.05)),
    )


MIRRORED = {
    "7a": {"gradient_accumulation_steps": 2},
    "7b": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 3},
}


@functools.cache
def _mirrored() -> dict[str, tuple]:
    """Weights under MirroredStrategy with 2 devices; what is right is the run on one device.

    In a process of its own, as devices cannot be divided once TensorFlow has been used.
    """
    command = [sys.executable, "-m", "integration.stock_defects", "--mirrored"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the process for MirroredStrategy failed:\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return {
        key: (each["one"], 1e-5, Outcome(**each["stock"]), Outcome(**each["ours"]))
        for key, each in found.items()
    }


def _mirrored_process() -> None:
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    x = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
    y = x @ np.array([[1.0], [-2.0], [0.5]], "float32")

    def scenario(optimizer: Any) -> float:
        layer = keras.layers.Dense(1, kernel_initializer="ones")
        model = keras.Sequential([keras.layers.Input((3,)), layer])
        model.compile(optimizer, "mse")
        model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        return number(model.trainable_variables[0])

    def in_strategy(make: Callable[[], Any]) -> dict:
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            return vars(attempt(scenario, make))

    result = {}
    for key, options in MIRRORED.items():
        of_stock = functools.partial(stock.Adam, 0.05, epsilon=1e-8, **options)
        of_ours = functools.partial(ours.Adam, 0.05, **options)
        one = attempt(scenario, of_ours).value
        result[key] = {"one": one, "stock": in_strategy(of_stock), "ours": in_strategy(of_ours)}
    print(json.dumps(result))


@probe(
    "7a",
    "MirroredStrategy fails with gradient_accumulation_steps",
    "weight after 8 micro-steps of Adam(0.05), 2 devices",
    seen_on=("tensorflow",),
    backends=("tensorflow",),
)
def mirrored_accumulation() -> tuple:
    return _mirrored()["7a"]


@probe(
    "7b",
    "MirroredStrategy fails with ema_overwrite_frequency",
    "weight after 8 steps of Adam(0.05), 2 devices",
    seen_on=("tensorflow",),
    backends=("tensorflow",),
)
def mirrored_overwrite() -> tuple:
    return _mirrored()["7b"]


class StockSubclass(keras.optimizers.Adam):
    """A rule of one's own in stock Keras."""


@keras_tfopt.register
class OwnAdam(keras_tfopt.Rule):
    """A rule of one's own in this package."""

    def __init__(self, learning_rate: Any = 0.001, **base: Any):
        super().__init__(learning_rate, **base)

    def slots(self, like: Any) -> dict[str, Any]:
        return {"m": keras_tfopt.zeros(like), "v": keras_tfopt.zeros(like)}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple:
        m, v = 0.9 * s.m + 0.1 * g, 0.999 * s.v + 0.001 * g * g
        return x - t.lr * m / (ops.sqrt(v) + 1e-8), {"m": m, "v": v}


@probe(
    "8",
    "Optimizers of one's own run variable by variable, without the fast path",
    "operations per variable in a step on 200 variables",
    seen_on=("torch",),
    backends=("torch",),
)
def per_variable() -> tuple:
    import torch

    def scenario(optimizer: Any) -> float:
        variables = [variable(np.ones(3)) for _ in range(200)]
        grads = [ops.ones(3) for _ in variables]
        for _ in range(2):
            optimizer.apply(grads, variables)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            optimizer.apply(grads, variables)
        arithmetic = ("add", "sub", "mul", "div", "sqrt", "pow", "square", "lerp", "addc", "rsub")
        names = [event.name.removeprefix("aten::").rstrip("_") for event in profile.events()]
        return sum(name.startswith(arithmetic) for name in names) / len(variables)

    return (
        0.0,
        1.0,  # less than one: the arithmetic is not done per variable
        attempt(scenario, StockSubclass),
        attempt(scenario, OwnAdam),
    )


@probe(
    "9a",
    "State of another optimizer is skipped with a warning",
    "errors raised on loading Adam's state into one with fewer slots",
)
def foreign_state() -> tuple:
    def scenario(pair: tuple) -> float:
        from_, to = pair
        for optimizer in pair:
            optimizer.build([variable(np.ones(3))])
        store: dict[str, Any] = {}
        from_.save_own_variables(store)
        try:
            to.load_own_variables(store)
        except ValueError:
            return 1.0
        return 0.0

    return (
        1.0,
        0.0,
        attempt(scenario, lambda: (stock.Adam(), stock.SGD(momentum=0.9))),
        attempt(scenario, lambda: (ours.Adam(), ours.Momentum())),
    )


@probe(
    "9b", "An integer as learning rate is refused", "weight after a step of SGD(1), gradient 0.5"
)
def integer_rate() -> tuple:
    def scenario(optimizer: Any) -> float:
        return number(steps(optimizer, variable([1.0]), 0.5, 1))

    return (
        0.5,
        1e-6,
        attempt(lambda rate: scenario(stock.SGD(rate)), lambda: 1),
        attempt(lambda rate: scenario(ours.Momentum(rate)), lambda: 1),
    )


@probe(
    "10",
    "Excluding all variables from weight decay fails",
    "weight after a step of SGD(0.1), gradient 1",
    seen_on=("torch",),
)
def nothing_decays() -> tuple:
    def scenario(optimizer: Any) -> float:
        optimizer.exclude_from_weight_decay(var_names=["kernel"])
        return number(steps(optimizer, variable([1.0]), 1.0, 1))

    return (
        0.9,
        1e-6,
        attempt(scenario, lambda: stock.SGD(0.1, weight_decay=0.5)),
        attempt(scenario, lambda: ours.Momentum(0.1, momentum=0.0, weight_decay=0.5)),
    )


@probe(
    "11",
    "`LossScaleOptimizer` leaves out a part of Nadam's state",
    "largest difference of a step after copying the state from that of the original",
)
def state_in_attributes() -> tuple:
    def scenario(cls: Any) -> float:
        weights = [variable([1.0, 2.0]) for _ in range(2)]
        both = [cls(stock.Nadam(0.1), initial_scale=1.0) for _ in weights]
        for optimizer, weight in zip(both, weights, strict=True):
            optimizer.build([weight])
        steps(both[0], weights[0], 1.0, 3)
        for old, new in zip(*[optimizer.variables for optimizer in both], strict=True):
            new.assign(old)
        weights[1].assign(weights[0])
        ends = [steps(o, w, 1.0, 1) for o, w in zip(both, weights, strict=True)]
        return float(np.max(np.abs(np.subtract(*[ops.convert_to_numpy(w) for w in ends]))))

    return (
        0.0,
        1e-6,
        attempt(scenario, lambda: stock.LossScaleOptimizer),
        attempt(scenario, lambda: ours.LossScaleOptimizer),
    )


# Tables


def _table(header: list[str], rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def report(findings: list[Finding]) -> str:
    header = ["", "defect", "measured", "right", f"stock Keras {keras.__version__}", "keras_tfopt"]
    rows = [
        [
            f.number,
            f.defect,
            f.measured,
            "" if f.stock is None else _expected(f),
            f.describe_stock(),
            "" if f.stock is None else f.describe_ours(),
        ]
        for f in findings
    ]
    return f"backend {BACKEND}\n{_table(header, rows)}"


def _expected(finding: Finding) -> str:
    return f"{finding.expected:.4g}" + (
        f" (up to {finding.expected + finding.tolerance:g})" if finding.tolerance >= 1 else ""
    )


def markdown(by_backend: dict[str, list[Finding]]) -> str:
    """One line per defect over all backends: whose optimizers have it, with the worst of ours."""
    columns = [f"Keras {keras.__version__}, {BACKENDS[name]}" for name in by_backend]
    lines = [
        "| | defect | measured | right | " + " | ".join(columns) + " | keras_tfopt |",
        "|" + "---|" * (len(columns) + 5),
    ]
    for findings in zip(*by_backend.values(), strict=True):
        first = findings[0]
        here = [f for f in findings if f.stock is not None]
        wrong = [f for f in here if not f.ours_is_right]
        shown = [str(f.ours) for f in wrong or here]
        mine = ("**has it**: " if wrong else "") + ", ".join(dict.fromkeys(shown))
        cells = [_stock_cell(f) for f in findings]
        expected = _expected(here[0]) if here else ""
        lines.append(
            f"| {first.number} | {first.defect} | {first.measured} | {expected} | "
            + " | ".join(cells)
            + f" | {mine} |"
        )
    lines += ["", "Bold: wrong. –: where there can be no such defect."]
    return "\n".join(lines)


def _stock_cell(finding: Finding) -> str:
    if finding.stock is None:
        return "–"
    text = str(finding.stock).replace("|", "\\|")
    return f"**{text}**" if finding.stock_has_it else text


def as_json(findings: list[Finding]) -> str:
    return json.dumps([dataclasses.asdict(f) for f in findings], indent=1)


def from_json(text: str) -> list[Finding]:
    findings = []
    for entry in json.loads(text):
        entry["stock"] = entry["stock"] and Outcome(**entry["stock"])
        entry["ours"] = Outcome(**entry["ours"])
        findings.append(Finding(**entry))
    return findings


def run_all() -> dict[str, list[Finding]]:
    """The findings of every installed backend, each from a process of its own."""
    found = {}
    for backend in BACKENDS:
        if importlib.util.find_spec(backend) is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "findings.json"
            done = subprocess.run(
                [sys.executable, "-m", "integration.stock_defects", "--json", str(out)],
                cwd=ROOT,
                env={**os.environ, "KERAS_BACKEND": backend},
                capture_output=True,
                text=True,
            )
            if not out.exists():  # its exit status says whether all is right
                raise RuntimeError(f"the process for {backend} failed:\n{done.stderr[-3000:]}")
            found[backend] = from_json(out.read_text())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", metavar="OUT", help="also write the findings to this file")
    parser.add_argument("--all", action="store_true", help="all installed backends, in Markdown")
    parser.add_argument("--mirrored", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.mirrored:
        _mirrored_process()
        return 0
    if options.all:
        by_backend = run_all()
        findings = [f for each in by_backend.values() for f in each]
        print(markdown(by_backend))
    else:
        findings = [each.run() for each in PROBES]
        print(report(findings))
    if options.json:
        Path(options.json).write_text(as_json(findings))
    return 0 if all(f.ours_is_right or f.stock is None for f in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
