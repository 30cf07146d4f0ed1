"""Random wrappers around random rules, with random options, dtypes and gradients.

A composition is either refused when it is made or built, or it works. Then eager and compiled steps
agree, and an optimizer made from its configuration continues from its state. Examples are the same
in every run, and differ between backends. `--exhaustive` tries more of them.
"""

import dataclasses
import gc
import zlib

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, reject, seed, settings
from hypothesis import strategies as st

from tests.cases import RULES
from tests.cells import EXHAUSTIVE
from tests.helpers.compositions import WRAPPERS
from tests.helpers.stepping import BACKEND, MODES, Rows, Runner

EXAMPLES = 300 if EXHAUSTIVE else {"tensorflow": 5, "jax": 2, "torch": 5}[BACKEND]
STEPS = 3
VALUES = {
    "embedding/embeddings": np.random.default_rng(0).normal(size=(6, 3)),
    "dense/kernel": np.random.default_rng(1).normal(size=(3, 4)),
    "dense/bias": np.random.default_rng(2).normal(size=4),
}
STOCK = {
    "keras.SGD": {"momentum": 0.9, "nesterov": True},
    "keras.RMSprop": {"centered": True, "momentum": 0.5},
    "keras.Adam": {"amsgrad": True},
    "keras.Adamax": {},
    "keras.Adadelta": {},
    "keras.Adagrad": {},
    "keras.Adafactor": {},
    "keras.Nadam": {},
    "keras.Ftrl": {},
    "keras.Lion": {},
    "keras.Lamb": {},
}
OPTIONS = {
    "weight_decay": 0.01,
    "loss_scale_factor": 4.0,
    "gradient_accumulation_steps": 2,
    "use_ema": True,
}
CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")
# Roundings add up over steps. Real errors are far larger.
TOLERANCE = {"float64": 1e-6, "float32": 2e-3, "float16": 0.05, "bfloat16": 0.05}


@dataclasses.dataclass(frozen=True)
class Composition:
    """A composition, whose printed form is enough to make it again."""

    rule: str
    variant: str
    options: dict
    wrappers: tuple  # innermost first
    dtype: str
    mode: str
    kinds: tuple  # of the gradient of each variable: "dense", "rows" or "none"
    numbers: int  # where the random numbers start

    def make(self):
        if self.rule in STOCK:
            cls = getattr(keras.optimizers, self.rule.removeprefix("keras."))
            optimizer = cls(0.05, **STOCK[self.rule], **self.options)
        else:
            case = next(case for case in RULES if case.name == self.rule)
            optimizer = case.make(self.variant, **self.options)
        for name in self.wrappers:
            optimizer = WRAPPERS[name](optimizer)
        return optimizer

    def gradients(self):
        """Return gradients of each step, none near zero, where rules have poles and jumps."""
        rng = np.random.default_rng(self.numbers)
        for _ in range(STEPS):
            step = {}
            for (path, value), kind in zip(VALUES.items(), self.kinds, strict=True):
                indices = rng.integers(0, len(value), size=4).astype("int32")
                shape = (4, *value.shape[1:]) if kind == "rows" else value.shape
                g = rng.integers(-8, 8, size=shape) / 8 + 1 / 16
                if kind != "none":
                    step[path] = Rows(g, indices) if kind == "rows" else g
            yield step


@st.composite
def compositions(draw):
    rule = draw(st.sampled_from([case.name for case in RULES] + sorted(STOCK)))
    stock = rule in STOCK
    variants = next((list(case.variants) for case in RULES if case.name == rule), [""])
    names = draw(st.sets(st.sampled_from(sorted(OPTIONS)), max_size=2))
    if stock and BACKEND == "jax":
        names -= {"gradient_accumulation_steps"}  # eager steps of Keras leak tracers
    options = {name: OPTIONS[name] for name in sorted(names)}
    clipping = draw(st.sampled_from([None, None, *CLIPPING]))
    if clipping is not None:
        options[clipping] = 0.5
    half = [] if stock else ["float16", "bfloat16"]  # Keras's rules overflow
    dtype = draw(st.sampled_from(["float64", "float64", "float32", *half]))
    if dtype in half and draw(st.booleans()):
        options["master_weights"] = True
    kinds = draw(st.tuples(*[st.sampled_from(["dense", "dense", "rows", "none"])] * 3))
    return Composition(
        rule,
        draw(st.sampled_from(variants)),
        options,
        tuple(draw(st.lists(st.sampled_from(sorted(WRAPPERS)), min_size=int(stock), max_size=3))),
        dtype,
        draw(st.sampled_from([mode for mode in MODES if mode != "eager"])),
        kinds if set(kinds) != {"none"} else ("dense", "rows", "none"),
        draw(st.integers(0, 99)),
    )


def assert_same(runner, expected, dtype, what):
    actual = runner.snapshot()
    assert len(actual) == len(expected)
    names = [*VALUES, *(v.path for v in runner.optimizer.variables)]
    for name, a, b in zip(names, actual, expected):
        assert np.all(np.isfinite(b)), f"{what}: {name} is not finite"
        a, b = a.astype("float64"), b.astype("float64")
        error = np.max(np.abs(a - b) / np.maximum(1.0, np.abs(b)), initial=0.0)
        assert error <= TOLERANCE[dtype], f"{what}: {name} is off by {error:.2g}"


def check(composition):
    """Try a composition; return False if it is refused."""
    dtype = composition.dtype
    try:
        optimizer = composition.make()
        eager = Runner(optimizer, VALUES, "eager", dtype)
    except (TypeError, ValueError) as error:
        assert "Received" in str(error) or "instead of" in str(error)
        return False
    config = keras.saving.serialize_keras_object(optimizer)
    compiled, again = (
        Runner(keras.saving.deserialize_keras_object(config), VALUES, mode, dtype)
        for mode in (composition.mode, "eager")
    )
    *first, last = composition.gradients()
    for number, gradients in enumerate(first, 1):
        eager.step(gradients)
        compiled.step(gradients)
        assert_same(compiled, eager.snapshot(), dtype, f"step {number}, compiled")
    # The state after compiled steps is all that the next step needs.
    pairs = zip(again.variables, compiled.variables, strict=True)
    state = zip(again.optimizer.variables, compiled.optimizer.variables, strict=True)
    for new, old in (*pairs, *state):
        new.assign(old)
    for runner in (eager, again):
        runner.step(last)
    assert_same(again, eager.snapshot(), dtype, "gone on from the state")
    return True


@pytest.mark.slow
def test_any_composition():
    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @seed(zlib.crc32(BACKEND.encode()))
    @given(compositions())
    def examples(composition):
        if not check(composition):
            reject()
        event(composition.rule)
        gc.collect()

    examples()
