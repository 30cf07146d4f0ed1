"""Schedules, against recorded tables of the originals and against their formulas."""

import builtins
import json
import math
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import legacy, schedules
from tests.helpers.paths import GOLDEN
from tests.helpers.stepping import BACKEND, through_json, to_numpy

TF1 = GOLDEN / "tf1"
ENTRY = next(
    case
    for case in json.loads((TF1 / "manifest.json").read_text())["cases"]
    if case["file"] == "sign_decay__tables.npz"
)
ORIGINALS = {
    "get_linear_decay_fn": schedules.LinearSignDecay,
    "get_cosine_decay_fn": schedules.CosineSignDecay,
    "get_restart_decay_fn": schedules.RestartSignDecay,
}
CLASSES = tuple(ORIGINALS.values())


def at(schedule, step):
    return float(to_numpy(schedule(step)))


@pytest.mark.everywhere
@pytest.mark.parametrize("table", ENTRY["tables"], ids=lambda table: str(table["table"]))
def test_recorded_tables(table):
    name = table["fn"]
    makers = ORIGINALS[name], getattr(legacy, name), getattr(legacy.sign_decay, name)
    with np.load(TF1 / ENTRY["file"]) as arrays:
        steps, expected = (arrays[f"{table['table']}/{name}"] for name in ("steps", "values"))
    assert len(steps) > table["kwargs"]["decay_steps"]
    for make in makers:
        schedule = make(**table["kwargs"])
        found = [at(schedule, keras.ops.convert_to_tensor(step, "int32")) for step in steps]
        np.testing.assert_allclose(found, expected, **ENTRY["tolerance"])


@pytest.mark.parametrize("cls", CLASSES)
def test_the_end_is_exact(cls):
    """The end is exact at the last step and long after it, for every number of steps."""
    for decay_steps in (1, 3, 10, 49, 10_000):
        for step in (decay_steps, decay_steps + 1, 2**24 + 1):
            if cls is schedules.RestartSignDecay:
                assert at(cls(decay_steps, num_periods=3), step) == 1.0
                assert at(cls(decay_steps, num_periods=3, zero_after=3), step) == 0.0
            else:
                assert at(cls(decay_steps), step) == 0.0
        assert at(cls(decay_steps), 0) == 1.0


@pytest.mark.parametrize("floatx", ["float16", "bfloat16"])
def test_steps_are_exact_where_floats_are_in_half_precision(floatx):
    triangular = schedules.TriangularCyclicalLearningRate(0.0, 1e-2, 100)
    cosine = schedules.WarmUpCosineDecay(1e-3, 0, 100_000)
    keras.config.set_floatx(floatx)
    try:
        rates = [float(rate) for rate in (triangular(4199), cosine(50_000), cosine(70_000))]
    finally:
        keras.config.set_floatx("float32")
    expected = [1e-4, 5e-4, 0.5e-3 * (1 + math.cos(0.7 * math.pi))]
    np.testing.assert_allclose(rates, expected, rtol=1e-3)  # of 4,199 / 100 the fraction counts


def test_a_number_of_periods_that_is_no_integer():
    cosine, restart = (cls(8, num_periods=1.25, zero_after=1) for cls in CLASSES[1:])
    for step in range(10):
        turns = 1.25 * min(step, 8) / 8
        wave, descent = (1 + math.cos(2 * math.pi * turns)) / 2, (1 + math.cos(math.pi * turns)) / 2
        assert at(cosine, step) == pytest.approx(0.0 if turns >= 1 else wave, abs=1e-6)
        assert at(restart, step) == pytest.approx(0.0 if turns >= 1 else descent, abs=1e-6)


@pytest.mark.spread
@pytest.mark.parametrize("cls", CLASSES)
def test_configuration(cls):
    arguments = {"decay_steps": 7}
    if cls is not schedules.LinearSignDecay:
        arguments |= {"num_periods": 1.5, "zero_after": 1.25}
    again = through_json(cls(**arguments))
    assert type(again) is cls and again.get_config() == arguments
    assert keras.saving.get_registered_name(cls) == f"keras_tfopt>{cls.__name__}"


@pytest.mark.spread
@pytest.mark.parametrize("cls", CLASSES)
def test_wrong_arguments(cls):
    wrong = [("decay_steps", value) for value in (0, -3, 2.5, "7", None, True)]
    if cls is not schedules.LinearSignDecay:
        wrong += [("num_periods", value) for value in (0, -1.0, math.nan, "1", None)]
        wrong += [("zero_after", value) for value in (0, -1.0, math.inf, "1", True)]
    for name, value in wrong:
        with pytest.raises((TypeError, ValueError), match=f"`{name}`.*Received: "):
            cls(**{"decay_steps": 7, name: value})


def test_an_unknown_argument_is_told_which_there_are():
    listed = "There are: peak, warmup_steps, total_steps, power. Received: bogus=1"
    with pytest.raises(TypeError, match=listed):
        schedules.WarmUpPolynomialDecay(bogus=1)


def test_warm_up_then_polynomial_decay():
    """The rate rises linearly. Then it follows Keras's polynomial decay."""
    peak, warmup, total, power = 8.0, 5, 25, 2.0
    schedule = schedules.WarmUpPolynomialDecay(peak, warmup, total, power)
    decay = keras.optimizers.schedules.PolynomialDecay(peak, total - warmup, 0.0, power)
    for step in range(30):
        expected = peak * (step + 1) / warmup if step < warmup else at(decay, step - warmup)
        assert at(schedule, step) == pytest.approx(expected, rel=1e-6, abs=1e-7)
    assert at(schedule, warmup - 1) == at(schedule, warmup) == peak
    assert at(schedules.WarmUpPolynomialDecay(peak, 0, total), 0) == peak
    again = through_json(schedule)
    assert isinstance(again, schedules.WarmUpPolynomialDecay)
    assert again.get_config() == schedule.get_config()


@pytest.mark.spread
@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        ((-1.0, 5, 25), ValueError, "peak"),
        ((1.0, -1, 25), ValueError, "warmup_steps"),
        ((1.0, 2.5, 25), TypeError, "warmup_steps"),
        ((1.0, 5, 5), ValueError, "total_steps"),
        ((1.0, 5, 25, 0), ValueError, "power"),
    ],
)
def test_warm_up_refuses(arguments, error, name):
    with pytest.raises(error, match=f"`{name}`"):
        schedules.WarmUpPolynomialDecay(*arguments)


# ---- Recorded tables of TensorFlow Addons, optax and pytorch_optimizer ---------------------------

RECORDED = [
    pytest.param(GOLDEN / folder, case, id=Path(case["file"]).stem)
    for folder in ("tfa", "modern")
    for case in json.loads((GOLDEN / folder / "manifest.json").read_text())["cases"]
    if case.get("kind") == "schedule"
]
SCALES = {"one": lambda x: 1.0, "reciprocal": lambda x: 1 / (1 + 0.5 * x)}


class StepsDown(keras.optimizers.schedules.LearningRateSchedule):
    """`optax.exponential_decay`. Keras's own decay has no `begin` and no `end`."""

    def __init__(self, peak, every, rate, begin=0, staircase=False, end=0.0):
        self.peak, self.every, self.rate, self.begin = peak, every, rate, begin
        self.staircase, self.end = staircase, end

    def __call__(self, step):
        exponent = keras.ops.maximum(step - self.begin, 0.0) / self.every
        exponent = keras.ops.floor(exponent) if self.staircase else exponent
        return keras.ops.maximum(self.peak * self.rate**exponent, self.end)


def cosine(given):
    return schedules.WarmUpCosineDecay(
        given["peak_value"],
        given["warmup_steps"],
        given["decay_steps"],
        start=given["init_value"],
        end=given.get("end_value", 0.0),
        power=given.get("exponent", 1.0),
    )


def exponential(given):
    decay = StepsDown(
        given["peak_value"],
        given["transition_steps"],
        given["decay_rate"],
        given.get("transition_begin", 0),
        given.get("staircase", False),
        given.get("end_value", 0.0),
    )
    return schedules.WarmUp(decay, given["warmup_steps"], start=given["init_value"])


def one_cycle(given, shape):
    names = {
        "transition_steps": "total_steps",
        "peak_value": "peak",
        "pct_start": "rising",
        "pct_final": "returned",
    }
    arguments = {names.get(name, name): value for name, value in given.items()}
    return schedules.OneCycle(**arguments, shape=shape)


def restarts(given):
    cycles = given["cosine_kwargs"]
    peaks, steps = ([cycle[key] for cycle in cycles] for key in ("peak_value", "decay_steps"))
    first = cycles[0]
    return schedules.SGDR(
        peaks, steps, first["warmup_steps"], start=first["init_value"], end=first["end_value"]
    )


def stable(given):
    return schedules.WarmUpStableDecay(
        1.0,
        given["num_warmup_steps"],
        given["num_stable_steps"],
        given["num_decay_steps"],
        # In the original, other shapes fall to 0; see `expected_of`.
        end=given["min_lr_ratio"] if given["cooldown_type"] == "cosine" else 0.0,
        shape=given["cooldown_type"],
    )


OF_RECORDED = {
    "WarmupCosineDecay": cosine,
    "WarmupExponentialDecay": exponential,
    "CosineOneCycle": lambda given: one_cycle(given, "cosine"),
    "LinearOneCycle": lambda given: one_cycle(given, "linear"),
    "SGDR": restarts,
    "WarmupStableDecay": stable,
}


def ours(case):
    """Return our schedule for a recorded one."""
    given = dict(case["kwargs"])
    if case["optimizer"] in OF_RECORDED:
        return OF_RECORDED[case["optimizer"]](given)
    if "scale_fn" in given:
        given["scale_fn"] = SCALES[given["scale_fn"]]
    return getattr(schedules, case["optimizer"])(**given)


def expected_of(folder, case):
    """Return recorded steps and rates. A jump that one original has at its end is left out."""
    with np.load(folder / case["file"]) as arrays:
        steps, rates = arrays["steps"], arrays["learning_rate"].copy()
    if case["status"] == "quirk":  # the original jumps up to `min_lr_ratio`, ours is 0
        given = case["kwargs"]
        end = sum(given[f"num_{part}_steps"] for part in ("warmup", "stable", "decay"))
        assert np.all(rates[steps >= end] == pytest.approx(given["min_lr_ratio"]))
        rates[steps >= end] = 0.0
    return steps, rates


def compiled(function):
    """Return the function as training compiles it."""
    if BACKEND == "jax":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    return tf.function(function, jit_compile=True)


WAYS = ["number", "integer tensor", "float tensor"]
WAYS += ["compiled"] * (BACKEND != "torch")  # training on PyTorch does not compile a schedule


@pytest.mark.everywhere
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(("folder", "case"), RECORDED)
def test_recorded_learning_rates(folder, case, how):
    schedule, (steps, expected) = ours(case), expected_of(folder, case)
    ask = compiled(schedule) if how == "compiled" else schedule
    dtype = "float32" if how == "float tensor" else "int32"
    if how == "number":
        found = [at(schedule, int(step)) for step in steps]
    else:
        found = [at(ask, keras.ops.convert_to_tensor(step, dtype)) for step in steps]
    np.testing.assert_allclose(found, expected, **case["tolerances"]["learning_rate"])


# ---- All learning rate schedules -----------------------------------------------------------------


@keras.saving.register_keras_serializable("tests")
def third(number):
    return 1 / (2 + number)


RATES = [
    schedules.CyclicalLearningRate(0.01, 0.1, 2.5, third, name="mine"),
    schedules.TriangularCyclicalLearningRate(0.01, 0.1, 3),
    schedules.Triangular2CyclicalLearningRate(0.01, 0.1, 3, scale_mode="iterations"),
    schedules.ExponentialCyclicalLearningRate(0.01, 0.1, 3, "cycle", 0.9),
    schedules.WarmUp(0.3, 4, start=0.1),
    schedules.WarmUp(keras.optimizers.schedules.ExponentialDecay(0.3, 4, 0.5), 2),
    schedules.WarmUp(schedules.WarmUpStableDecay(0.3, 1, 2, 3, 0.1, "1-square"), 0),
    schedules.WarmUpCosineDecay(0.3, 2, 6, 0.1, 0.2, 1.5),
    schedules.OneCycle(0.3, 8, shape="linear"),
    schedules.SGDR([0.3, 0.1], [3, 5], 1),
]


@pytest.mark.parametrize("schedule", RATES, ids=lambda schedule: type(schedule).__name__)
def test_a_saved_schedule_is_the_same(schedule):
    again = through_json(schedule)
    assert type(again) is type(schedule) and again.get_config() == schedule.get_config()
    assert [at(again, step) for step in range(12)] == [at(schedule, step) for step in range(12)]
    name = type(schedule).__name__
    assert keras.saving.get_registered_name(type(schedule)) == f"keras_tfopt>{name}"


@pytest.mark.parametrize("schedule", RATES, ids=lambda schedule: type(schedule).__name__)
def test_training_follows_a_schedule(schedule):
    """With gradients of 1, each step of gradient descent is as long as the learning rate."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras_tfopt.GradientDescent(schedule), loss=lambda y, output: output)
    x = np.ones((1, 1), "float32")
    weights = [model.get_weights()[0].item()]
    for _ in range(8):
        model.train_on_batch(x, x)
        weights.append(model.get_weights()[0].item())
    moved = -np.diff(weights)
    np.testing.assert_allclose(moved, [at(schedule, step) for step in range(8)], atol=1e-6)


def test_warm_up_to_a_function_of_the_step():
    schedule = schedules.WarmUp(lambda step: 0.5 / (1 + step), 5)
    expected = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.25, 0.5 / 3]
    np.testing.assert_allclose([at(schedule, n) for n in range(8)], expected, rtol=1e-6)


@pytest.mark.spread
@pytest.mark.parametrize(
    ("make", "error", "name"),
    [
        (lambda: schedules.TriangularCyclicalLearningRate(-0.1, 0.1, 3), ValueError, "initial_l"),
        (lambda: schedules.TriangularCyclicalLearningRate(0.1, "1", 3), TypeError, "maximal_learn"),
        (lambda: schedules.TriangularCyclicalLearningRate(0.1, 0.2, 0), ValueError, "step_size"),
        (lambda: schedules.TriangularCyclicalLearningRate(0, 1, 3, "up"), ValueError, "scale_mode"),
        (lambda: schedules.CyclicalLearningRate(0, 1, 3, None), TypeError, "scale_fn"),
        (lambda: schedules.ExponentialCyclicalLearningRate(0, 1, 3, gamma=0), ValueError, "gamma"),
        (lambda: schedules.WarmUp(-1.0, 3), ValueError, "schedule"),
        (lambda: schedules.WarmUp("cosine", 3), TypeError, "schedule"),
        (lambda: schedules.WarmUp(1.0, -3), ValueError, "steps"),
        (lambda: schedules.WarmUp(1.0, 3, start=math.nan), ValueError, "start"),
        (lambda: schedules.WarmUpCosineDecay(1.0, 3, 3), ValueError, "total_steps"),
        (lambda: schedules.WarmUpStableDecay(1.0, 3, 3, 0), ValueError, "decay_steps"),
        (lambda: schedules.WarmUpStableDecay(1.0, 3, 3, 3, shape="exp"), ValueError, "shape"),
        (lambda: schedules.OneCycle(1.0, 0), ValueError, "total_steps"),
        (lambda: schedules.OneCycle(1.0, 9, shape="square"), ValueError, "shape"),
        (lambda: schedules.OneCycle(1.0, 9, 0.9, shape="linear"), ValueError, "returned"),
        (lambda: schedules.SGDR([1.0], [3, 4]), ValueError, "cycle_steps"),
        (lambda: schedules.SGDR(1.0, [3, 4], 3), ValueError, "cycle_steps"),
        (lambda: schedules.SGDR(1.0, []), ValueError, "cycle_steps"),
        (lambda: schedules.plot(0.1, 5), TypeError, "schedule"),
        (lambda: schedules.plot(RATES[0], 0), ValueError, "steps"),
    ],
)
def test_schedules_refuse(make, error, name):
    with pytest.raises(error, match=f"`{name}.*Received: "):
        make()


# ---- Drawing -------------------------------------------------------------------------------------


def test_plot_draws_the_values_of_a_schedule():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    ax = schedules.plot(RATES[1], 8, label="triangles")
    assert schedules.plot(lambda step: 1.0 * step, 5000, ax=ax) is ax
    line, long = ax.lines
    assert line.get_label() == "triangles"
    np.testing.assert_array_equal(line.get_xdata(), range(8))
    np.testing.assert_array_equal(line.get_ydata(), [at(RATES[1], step) for step in range(8)])
    assert len(long.get_xdata()) == 1000 and long.get_xdata()[-1] == 4999
    matplotlib.pyplot.close("all")


@pytest.mark.spread
def test_plot_says_that_matplotlib_is_missing(monkeypatch):
    importing = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return importing(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        schedules.plot(RATES[1], 8)
