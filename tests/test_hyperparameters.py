"""Hyperparameters can be schedules, variables or callables, and change while training."""

import itertools

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.cases import RULES
from tests.helpers.options import CASE, Expected, dense_gradients, follow, gradients, initial
from tests.helpers.stepping import BACKEND, MODES, Runner, every_mode, through_json, to_numpy

FACTORS = (1.0, 0.9, 0.7, 0.8)  # times these, every hyperparameter is valid


def changing(case):
    """Return names of float hyperparameters in the main variant, without the learning rate."""
    others = ("learning_rate", *case.fixed)
    arguments = case.variants[case.main]
    return [n for n, v in arguments.items() if isinstance(v, float) and n not in others]


# One after the other in steps that cost little.
every_number = pytest.mark.parametrize(
    ("case", "name", "mode"),
    [
        pytest.param(case, name, "eager", id=f"{case.name}-{name}-eager")
        for case in RULES
        for name in changing(case)
    ],
)
# All together in those that are compiled.
every_rule_with_numbers = pytest.mark.parametrize(
    ("case", "mode"),
    [
        pytest.param(case, mode, id=f"{case.name}-{mode}")
        for case in RULES
        for mode in MODES
        if changing(case) and mode != "eager"
    ],
)


class Changing(Expected):
    """A reference with other values of some hyperparameters, `{name: values}`, in each step."""

    def __init__(self, case, values):
        super().__init__(case, initial())
        self.values = values

    def step(self, grads):
        for name, values in self.values.items():
            setattr(self.reference, name, values[self.steps])
        super().step(grads)


def values_of(case, names):
    """Return {name: values in each step}. No two hyperparameters change alike."""
    known = case.variants[case.main]
    factors = [FACTORS[i % 4 :] + FACTORS[: i % 4] for i in range(len(names))]
    return {n: [f * known[n] for f in each] for n, each in zip(names, factors)}


@every_number
def test_a_schedule_is_read_at_every_step(case, name, mode):
    follow_numbers(case, mode, scheduled=[name])


@every_number
def test_a_variable_is_read_at_every_step(case, name, mode):
    follow_numbers(case, mode, assigned=[name])


@every_rule_with_numbers
def test_schedules_and_variables_are_read_at_every_compiled_step(case, mode):
    names = changing(case)
    follow_numbers(case, mode, scheduled=names[::2], assigned=names[1::2])


def follow_numbers(case, mode, scheduled=(), assigned=()):
    """Compare steps in which some hyperparameters are schedules and some are variables."""
    values = values_of(case, [*scheduled, *assigned])
    decay = keras.optimizers.schedules.PiecewiseConstantDecay
    schedules = {name: decay([0, 1, 2], values[name]) for name in scheduled}
    variables = {name: keras.Variable(values[name][0], trainable=False) for name in assigned}
    runner = Runner(case.make(**schedules, **variables), initial(), mode)
    expected = Changing(case, values)
    for step, grads in enumerate(gradients(len(FACTORS))):
        for name, variable in variables.items():
            variable.assign(values[name][step])
        follow(runner, expected, [grads], 8 * case.tolerance())


@every_mode
@pytest.mark.parametrize("name", ("learning_rate", "momentum"))
def test_a_callable_is_read_at_each_eager_step_and_once_when_compiled(name, mode):
    case, values = CASE["Momentum"], [0.9, 0.5, 0.1, 0.3]
    calls = itertools.chain(values, itertools.repeat(99.0))
    runner = Runner(case.make(**{name: lambda: next(calls)}), initial(), mode)
    once = mode in ("compiled", "xla") and BACKEND != "torch"
    expected = Changing(case, {name: [values[0]] * 4 if once else values})
    follow(runner, expected, gradients(4), 4e-6)


def test_float64_variables_use_an_assigned_rate_in_full_precision():
    optimizer = keras_tfopt.Momentum(0.1)
    runner = Runner(optimizer, {"kernel": np.ones(2)}, "compiled", "float64")
    optimizer.learning_rate = 0.3
    runner.step({"kernel": np.ones(2)})
    assert np.max(np.abs(runner.values["kernel"] - 0.7)) < 1e-15


def test_several_hyperparameters_change_at_once():
    case = CASE["Adam"]
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay
    numbers = case.variants[case.main]
    beta_2 = keras.Variable(numbers["beta_2"], trainable=False)
    optimizer = case.make(
        learning_rate=schedule([0, 1], [0.1, 0.05, 0.02]),
        beta_1=schedule([0, 1], [0.8, 0.7, 0.6]),
        beta_2=beta_2,
        epsilon=lambda: numbers["epsilon"],
    )
    runner = Runner(optimizer, initial(), "compiled")
    expected = Changing(case, {"beta_1": [0.8, 0.7, 0.6]})
    expected.reference.learning_rate = lambda count: [0.1, 0.05, 0.02][count]
    follow(runner, expected, gradients(3), 4e-6)


def test_configurations_hold_schedules_and_values_of_variables():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.9, 10, 0.5)
    variable = keras.Variable(0.25, trainable=False)
    clone = through_json(keras_tfopt.Adam(beta_1=schedule, beta_2=variable))
    assert clone.beta_1.get_config() == schedule.get_config()
    assert clone.beta_2 == 0.25 and clone.epsilon == 1e-8


@keras.saving.register_keras_serializable("tests")
def a_half():
    return 0.5


def half():
    return 0.5


@pytest.mark.parametrize("name", ("learning_rate", "momentum"))
def test_functions_are_saved_by_their_registered_names(name):
    clone = through_json(keras_tfopt.Momentum(**{name: a_half}))
    assert getattr(clone, f"_{name}" if name == "learning_rate" else name) is a_half
    for bare in (lambda: 0.5, half, lambda step: 0.5 * step):
        with pytest.raises(ValueError, match=f"`{name}`.*register_keras_serializable"):
            keras_tfopt.Momentum(**{name: bare}).get_config()


def test_a_variable_is_part_of_the_state():
    def make():
        return keras_tfopt.Momentum(momentum=keras.Variable(0.5, trainable=False))

    runner = Runner(make(), initial())
    runner.optimizer.momentum.assign(0.25)
    runner.step(dense_gradients(1)[0])
    store = {}
    runner.optimizer.save_own_variables(store)
    for build_first in (True, False):
        other = make()
        if build_first:
            other.build(runner.variables)
        other.load_own_variables(store)
        other.build(runner.variables)
        assert float(to_numpy(other.momentum)) == 0.25


@pytest.mark.parametrize("value", (None, "0.5", [0.5], np.array([0.5, 0.25]), "tensor"))
@pytest.mark.parametrize("name", ("learning_rate", "momentum", "average_decay"))
def test_functions_must_return_numbers(name, value):
    def wrong():
        return keras.ops.ones(2) if isinstance(value, str) and value == "tensor" else value

    if name == "average_decay":
        optimizer = keras_tfopt.MovingAverage(keras_tfopt.Momentum(), wrong)
    else:
        optimizer = keras_tfopt.Momentum(**{name: wrong})
    runner = Runner(optimizer, initial())
    with pytest.raises(TypeError, match="must (return|be) a number or a scalar tensor"):
        runner.step(dense_gradients(1)[0])
    for path, start in initial().items():
        np.testing.assert_array_equal(runner.values[path], start)


@pytest.mark.spread
@pytest.mark.parametrize("value", ("0.5", None, True, [0.5], keras.Variable([0.5])))
def test_bad_hyperparameters_are_refused(value):
    with pytest.raises((TypeError, ValueError), match="`momentum`.*scalar variable"):
        keras_tfopt.Momentum(momentum=value)
