"""The options of Keras's base class in NumPy, with variables, gradients and models to try them.

`Expected` applies the options around the reference of a rule, in float64.
"""

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.cases import CASES
from tests.helpers.compare import assert_close, suited
from tests.helpers.stepping import Rows, Runner, to_numpy

CASE = {case.name: case for case in CASES}


SCHEDULE = keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 0.5)  # 0.1 / (1 + count / 2)


INITIAL = {
    "layer/kernel": np.random.default_rng(1).normal(size=(4, 3)),
    "layer/bias": np.random.default_rng(2).normal(size=5),
    "table/embeddings": np.random.default_rng(3).normal(size=(7, 3)),
}


RESTING = [5, 6]  # rows that never get a gradient


def initial(dtype="float32"):
    return {path: value.astype(dtype) for path, value in INITIAL.items()}


def gradients(count, dtype="float32", seed=0, scale=1.0):
    """Return `count` dictionaries of gradients. Rows of the table repeat."""
    rng = np.random.default_rng(seed)
    plan = []
    for _ in range(count):
        step = {p: rng.normal(size=v.shape).astype(dtype) for p, v in INITIAL.items()}
        indices = rng.permutation(5)[[0, 1, 2, 0]].astype("int32")
        step["table/embeddings"] = Rows(rng.normal(size=(4, 3)).astype(dtype), indices)
        plan.append({path: _times(g, np.dtype(dtype).type(scale)) for path, g in step.items()})
    return plan


def _times(g, factor):
    return Rows(g.values * factor, g.indices) if isinstance(g, Rows) else g * factor


def dense_like(g, x):
    if not isinstance(g, Rows):
        return np.asarray(g, x.dtype)
    total = np.zeros_like(x)
    np.add.at(total, g.indices, np.asarray(g.values, x.dtype))
    return total


class Expected:
    """The options in NumPy, in float64, around the reference of a rule.

    The order is: sum repeated rows, undo the loss scale, add up micro-steps, clip the mean, negate
    it to maximize, decay weights, take the step of the rule, move averages, and overwrite variables
    by averages if an option asks for it. Row gradients stay row gradients in all of these.
    """

    def __init__(self, case, start, variant=None, no_decay=(), learning_rate=None, **options):
        self.reference = case.make_reference(variant)
        if learning_rate is not None:
            self.reference.learning_rate = learning_rate
        self.x = {path: np.asarray(value, "float64") for path, value in start.items()}
        self.s = self.reference.start(self.x)
        self.options, self.no_decay = options, no_decay
        self.steps, self.micro_steps = 0, 0
        self.averages = dict(self.x)
        self._start_sums()

    def _start_sums(self):
        self.sums = {path: np.zeros_like(value) for path, value in self.x.items()}
        self.named = {path: set() for path in self.x}

    def step(self, grads):
        o = self.options
        grads = {path: self._summed(path, g) for path, g in grads.items()}
        grads = {p: _times(g, 1 / o.get("loss_scale_factor", 1.0)) for p, g in grads.items()}
        every = o.get("gradient_accumulation_steps", 1)
        if every > 1:
            for path, g in grads.items():
                self.sums[path] = self.sums[path] + dense_like(g, self.x[path])
                self.named[path] |= set(g.indices.tolist()) if isinstance(g, Rows) else set()
            self.micro_steps += 1
            if self.micro_steps % every:
                return
            grads = {path: self._touched(path, g / every) for path, g in self.sums.items()}
            self._start_sums()
        self.steps += 1
        self._move(self._clipped(grads))
        if o.get("use_ema"):
            self._average(o.get("ema_momentum", 0.99), o.get("ema_overwrite_frequency"))

    def _summed(self, path, g):
        if not isinstance(g, Rows):
            return g
        rows = np.unique(g.indices)
        return Rows(dense_like(g, self.x[path])[rows], rows)

    def _touched(self, path, g):
        """Return the touched rows of a mean: those that were named, and those that are not zero."""
        if not path.endswith("embeddings") and not self.named[path]:
            return g
        others = np.flatnonzero(np.any(g != 0, axis=1)).tolist()
        rows = np.array(sorted(self.named[path].union(others)), "int64")
        return Rows(g[rows], rows)

    def _clipped(self, grads):
        o = self.options
        values = {p: g.values if isinstance(g, Rows) else g for p, g in grads.items()}
        norms = {p: np.sqrt(np.sum(np.square(v, dtype="float64"))) for p, v in values.items()}
        if "clipvalue" in o:
            most = o["clipvalue"]
            values = {p: np.clip(v, -most, most) for p, v in values.items()}
        if "clipnorm" in o:
            values = {p: v * min(1.0, o["clipnorm"] / norms[p]) for p, v in values.items()}
        if "global_clipnorm" in o:
            total = np.sqrt(sum(norm**2 for norm in norms.values()))
            values = {p: v * min(1.0, o["global_clipnorm"] / total) for p, v in values.items()}
        if o.get("maximize"):
            values = {p: -v for p, v in values.items()}
        return {
            p: Rows(values[p], g.indices) if isinstance(g, Rows) else values[p]
            for p, g in grads.items()
        }

    def _move(self, grads):
        rate = self.options.get("weight_decay", 0.0) * self.reference.lr(self.steps)
        x = dict(self.x)
        for path, g in grads.items():
            if path in self.no_decay or not rate:
                continue
            rows = slice(None)
            if isinstance(g, Rows) and self.reference.sparse != "dense":
                rows = g.indices
            of = self.s[path] if self.reference.moves else x
            name = self.reference.moves or path
            of[name] = of[name].copy()
            of[name][rows] -= rate * of[name][rows]
        self.reference.undecayed = self.x
        self.x, self.s = self.reference.advance(grads, x, self.s, self.steps)

    def _average(self, momentum, overwrite_every):
        for path, value in self.x.items():
            old = self.averages[path] if self.steps > 1 else value
            self.averages[path] = momentum * old + (1 - momentum) * value
        if overwrite_every and self.steps % overwrite_every == 0:
            self.x = dict(self.averages)


def follow(runner, expected, plan, tolerance, left_out=()):
    """Step both and compare after every step; at the end, compare the averages of `use_ema`.

    Slots in `left_out` are not compared: they hold raw gradients, before any option.
    """
    for count, grads in enumerate(plan, start=1):
        grads = suited(grads, runner.values, expected.reference)
        runner.step(grads)
        expected.step(grads)
        for path, value in runner.values.items():
            assert_close(value, expected.x[path], tolerance, f"{path} after step {count}")
        for path in expected.s:
            for name, want in expected.s[path].items():
                if name in left_out:
                    continue
                largest = np.max(np.abs(want), initial=0.0)
                got = runner.slots[path][name]
                what = f"slot {name} of {path} after step {count}"
                assert_close(got, want, 20 * tolerance, what, max(largest, 1e-3))
    if "use_ema" in expected.options:
        runner.optimizer.finalize_variable_values(runner.variables)
        for path, value in runner.values.items():
            assert_close(value, expected.averages[path], tolerance, f"average of {path}")


EMA = {"use_ema": True, "ema_momentum": 0.7}


OPTIONS = {
    "weight_decay": {"weight_decay": 0.3},
    "clipnorm": {"clipnorm": 1.5},
    "clipvalue": {"clipvalue": 0.4},
    "global_clipnorm": {"global_clipnorm": 2.0},
    "use_ema": EMA,
    "ema_overwrite_frequency": {**EMA, "ema_overwrite_frequency": 2},
    "loss_scale_factor": {"loss_scale_factor": 6.0},
    "accumulation": {"gradient_accumulation_steps": 2},
    # Some of the many combinations; the last one has nearly all options.
    "accumulation+global_clipnorm+weight_decay": {
        "gradient_accumulation_steps": 3,
        "global_clipnorm": 1.0,
        "weight_decay": 0.2,
    },
    "use_ema+accumulation": {**EMA, "gradient_accumulation_steps": 2},
    "loss_scale_factor+clipvalue+weight_decay": {
        "loss_scale_factor": 0.25,
        "clipvalue": 1.0,
        "weight_decay": 0.1,
    },
    "maximize+accumulation+clipnorm+weight_decay": {
        "maximize": True,
        "gradient_accumulation_steps": 2,
        "clipnorm": 1.0,
        "weight_decay": 0.2,
    },
    "everything": {
        **EMA,
        "ema_overwrite_frequency": 2,
        "gradient_accumulation_steps": 2,
        "global_clipnorm": 1.0,
        "weight_decay": 0.2,
        "loss_scale_factor": 6.0,
    },
}


def allowed(case, options):
    """Return the options; without weight decay for a rule, such as LARS, that has its own."""
    own = "weight_decay" in case.variants[case.main]
    return {k: v for k, v in options.items() if not (own and k == "weight_decay")}


def run_against_numpy(case, options, mode, dtype=None, count=6):
    """Step an optimizer and its reference; in float32 unless a rule divides by small differences.

    Clipped gradients are of one length, and their differences have little curvature.
    """
    dtype = dtype or ("float64" if case.reference.divides_by_curvature else "float32")
    options = allowed(case, options)
    runner = Runner(case.make(**options), initial(dtype), mode, dtype)
    expected = Expected(case, initial(dtype), **options)
    plan = gradients(count, dtype, scale=options.get("loss_scale_factor", 1.0))
    tolerance = 4 * case.tolerance(dtype)  # several roundings more than a rule
    follow(runner, expected, plan, tolerance, case.slots_of_raw_gradients)
    return runner


def in_modes(eager):
    """Parametrize over modes: eager with every Case, compiled with a rule of each kind."""
    compiled = [CASE["LazyAdam"], CASE["GGT"]]
    return pytest.mark.parametrize(
        ("case", "mode"),
        [pytest.param(c, "eager", id=f"{c.name}-eager") for c in (CASES if eager else ())]
        + [pytest.param(c, "compiled", id=f"{c.name}-compiled") for c in compiled],
    )


def small_model(weights=None):
    """Return a model with a table and a dense layer."""
    model = keras.Sequential(
        [
            keras.layers.Input((4,), dtype="int32"),
            keras.layers.Embedding(6, 3),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    if weights is None:
        # LARS could not scale the step of a bias that starts at zero.
        random = np.random.default_rng(2)
        weights = [0.3 * random.normal(size=w.shape) for w in model.get_weights()]
    model.set_weights(weights)
    return model


def small_data():
    ids = np.random.default_rng(0).integers(0, 6, size=(24, 4))
    return ids, np.random.default_rng(1).normal(size=(24, 2)).astype("float32")


def dense_gradients(count, seed=0):
    """Return dense gradients as training gives them, zero in the resting rows of the table."""
    x = initial()
    return [{p: dense_like(g[p], x[p]) for p in x} for g in gradients(count, seed=seed)]


def scaled_by(grads, scale):
    return {path: g * np.float32(scale) for path, g in grads.items()}


def scale_of(optimizer):
    return float(to_numpy(optimizer.dynamic_scale))


LOSS_SCALES = {"ours": keras_tfopt.LossScaleOptimizer, "stock": keras.optimizers.LossScaleOptimizer}
