"""Arguments that are assigned to an optimizer: what is checked, and when they act."""

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.helpers.compare import assert_same
from tests.helpers.stepping import make_variable, to_numpy

WRONG = (
    ("beta_1", 5.0, "in [0, 1). Received: 5.0"),
    ("beta_1", "much", "in [0, 1)"),
    ("beta_1", [0.5], "in [0, 1), a schedule"),
    ("beta_1", {}, "in [0, 1), a schedule"),
    ("amsgrad", 3, "True or False"),
    ("clipnorm", -1.0, "> 0. Received: -1.0"),
    ("ema_momentum", 2.0, "[0, 1]. Received: 2.0"),
    ("weight_decay", -0.1, ">= 0. Received: -0.1"),
    ("learning_rate", -0.1, ">= 0. Received: -0.1"),
    ("learning_rate", float("nan"), "finite"),
    ("learning_rate", True, "a number >= 0"),
    ("learning_rate", None, "a number >= 0"),
    ("learning_rate", [0.1], "a number >= 0"),
    ("learning_rate", np.array(-0.1), ">= 0. Received: -0.1"),
    ("learning_rate", keras.ops.convert_to_tensor(np.nan), "finite"),
    ("learning_rate", keras.Variable(-1.0), ">= 0. Received: -1.0"),
    ("learning_rate", object(), "a number >= 0"),
    ("learning_rate", float, "a number >= 0"),
    ("learning_rate", 10**400, "finite"),
    ("beta_1", np.array(5.0), "in [0, 1). Received: 5.0"),
    ("beta_1", np.bool_(True), "in [0, 1), a schedule"),
    ("beta_1", 10**400, "in [0, 1). Received: inf"),
    ("beta_1", object(), "in [0, 1), a schedule"),
    ("beta_1", float, "in [0, 1), a schedule"),
    ("clipnorm", keras.Variable(0.5), "> 0. Received: <Variable"),
    ("clipnorm", 10**400, "> 0. Received: 1000"),
    ("weight_decay", keras.optimizers.schedules.CosineDecay(0.1, 5), ">= 0. Received"),
    ("use_ema", object(), "a bool"),
    ("slot_dtype", "int4", "'float32', 'bfloat16', 'int8'"),
    ("maximize", 3, "a bool. Received: 3"),
    ("row_variables", "(", "regular expressions"),
    ("groups", float, "a dictionary from regular expressions"),
    ("row_variables", float, "a function of a variable"),
    ("groups", 3, "a dictionary from regular expressions"),
    ("groups", {"bias": {"beta_1": 2.0}}, "in [0, 1). Received: 2.0"),
)
OF_STATE = (
    ("amsgrad", True),
    ("use_ema", True),
    ("gradient_accumulation_steps", 2),
    ("slot_dtype", "bfloat16"),
    ("master_weights", True),
    ("weight_decay", 0.1),
    ("clip_unitwise", 0.1),
    ("row_variables", "kernel"),
    ("groups", {"kernel": {"weight_decay": 0.1}}),
)


def stepped(optimizer, count=2):
    """Return the optimizer and a variable after some steps."""
    v = make_variable("layer/kernel", np.full((3, 4), 2.0, "float32"))
    for _ in range(count):
        optimizer.apply([keras.ops.ones((3, 4))], [v])
    return optimizer, v


@pytest.mark.parametrize("wrap", (False, True))
@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_wrong_values(name, value, message, wrap):
    optimizer = keras_tfopt.Adam(0.1)
    before = optimizer.get_config()
    is_own = name in ("beta_1", "amsgrad")  # wrappers pass on options only
    outer = keras_tfopt.MovingAverage(optimizer) if wrap and not is_own else optimizer
    with pytest.raises((TypeError, ValueError)) as error:
        setattr(outer, name, value)
    assert f"`{name}`" in str(error.value) and message in str(error.value)
    assert optimizer.get_config() == before


@pytest.mark.parametrize(
    "wrap", (keras_tfopt.MovingAverage, lambda inner: keras_tfopt.LossScaleOptimizer(inner, 1.0))
)
def test_wrappers_pass_on_options(wrap):
    inner = keras_tfopt.GradientDescent(0.5)
    optimizer, v = stepped(wrap(inner), 1)
    optimizer.clipvalue = 0.25
    assert inner.clipvalue == optimizer.clipvalue == 0.25
    optimizer.apply([keras.ops.ones((3, 4))], [v])
    np.testing.assert_allclose(to_numpy(v), 2 - 0.5 - 0.5 * 0.25, rtol=1e-6)


def test_an_optimizer_of_keras_inside_has_fewer_options():
    optimizer = keras_tfopt.MovingAverage(keras.optimizers.Adam())
    optimizer.clipnorm = 0.5
    assert optimizer.inner_optimizer.clipnorm == 0.5
    with pytest.raises(AttributeError, match="has no option `maximize`, nor has the Adam inside"):
        optimizer.maximize = True


def test_wrong_values_of_a_wrapper():
    optimizer = keras_tfopt.Lookahead(keras_tfopt.Adam(0.1))
    with pytest.raises(ValueError, match="`sync_period` must be an integer >= 1. Received: 0"):
        optimizer.sync_period = 0
    optimizer.sync_period = 3
    assert optimizer.sync_period == 3


@pytest.mark.parametrize(("name", "value"), OF_STATE)
def test_what_decides_about_the_state_stays_once_there_is_state(name, value):
    optimizer, v = stepped(keras_tfopt.Adam(0.1))
    before = [to_numpy(one) for one in (v, *optimizer.variables)]
    with pytest.raises(ValueError, match=f"`{name}` of Adam was .* when the optimizer was built"):
        setattr(optimizer, name, value)
    setattr(optimizer, name, getattr(optimizer, name))  # the same value
    assert_same(before, [to_numpy(one) for one in (v, *optimizer.variables)])
    optimizer.apply([keras.ops.ones((3, 4))], [v])
    fresh = keras_tfopt.Adam(0.1)
    setattr(fresh, name, value)  # before it is built
    stepped(fresh, 3)
    expected, _ = stepped(keras_tfopt.Adam(0.1, **{name: value}), 3)
    assert_same(
        [to_numpy(one) for one in fresh.variables], [to_numpy(o) for o in expected.variables]
    )


def test_a_slot_that_a_number_decides_about():
    optimizer, v = stepped(keras_tfopt.Adafactor())
    with pytest.raises(ValueError, match="`momentum` of Adafactor was None"):
        optimizer.momentum = 0.5
    optimizer, v = stepped(keras_tfopt.Adafactor(momentum=0.9))
    optimizer.momentum = 0.5
    optimizer.apply([keras.ops.ones((3, 4))], [v])


@pytest.mark.parametrize("as_array", [np.array, keras.ops.convert_to_tensor])
def test_arrays_and_tensors_are_numbers(as_array):
    optimizer, v = stepped(keras_tfopt.Momentum(0.1, 0.9), 1)
    optimizer.momentum = as_array(np.float32(0.5))
    optimizer.learning_rate = as_array(np.float32(0.25))
    assert optimizer.momentum == 0.5
    optimizer.apply([keras.ops.ones((3, 4))], [v])
    np.testing.assert_allclose(to_numpy(v), 2 - 0.1 - 0.25 * 1.5, rtol=1e-6)


@pytest.mark.parametrize("is_built", [False, True])
def test_an_assigned_rate_may_be_a_function_of_the_step(is_built):
    optimizer, v = stepped(keras_tfopt.GradientDescent(0.5), int(is_built))
    optimizer.learning_rate = lambda step: 1 / (1 + step)
    start = 1.5 if is_built else 2.0
    optimizer.apply([keras.ops.ones((3, 4))], [v])
    np.testing.assert_allclose(to_numpy(v), start - (0.5 if is_built else 1.0), rtol=1e-6)


def test_what_changes_from_step_to_step_is_known_when_an_optimizer_is_built():
    def beta(step):
        return 0.5 + 0.0 * step

    optimizer = keras_tfopt.Momentum(0.1, 0.9)
    optimizer.momentum = beta
    (_, v), (expected, other) = stepped(optimizer), stepped(keras_tfopt.Momentum(0.1, 0.5))
    np.testing.assert_allclose(to_numpy(v), to_numpy(other), rtol=1e-6)
    for built, value in ((optimizer, 0.5), (expected, beta), (expected, keras.Variable(0.5))):
        with pytest.raises(ValueError, match="`momentum` of Momentum was .* when .* was built"):
            built.momentum = value


def test_an_assigned_number_acts_in_the_next_step():
    optimizer, v = stepped(keras_tfopt.Momentum(0.1, 0.9), 1)
    optimizer.momentum, optimizer.clipvalue = 0.5, 0.25
    optimizer.apply([keras.ops.ones((3, 4))], [v])
    momentum = 0.5 * 1 + 0.25
    np.testing.assert_allclose(to_numpy(v), 2 - 0.1 * 1 - 0.1 * momentum, rtol=1e-6)


def assign_attribute(model, beta):
    model.optimizer.momentum = 0.5


def fitted(beta, change, **options):
    """Return the weights of a model whose momentum changes between two calls of `fit`."""
    x, y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras_tfopt.Momentum(0.1, beta), "mse", **options)
    model.fit(x, y, epochs=2, verbose=0)
    change(model, beta)
    if change is assign_attribute:  # code of the first `fit` has the earlier value
        model.compile(model.optimizer, "mse", **options)
    model.fit(x, y, epochs=3, verbose=0)
    return [to_numpy(v) for v in model.weights]


def test_in_fit():
    """A variable acts at once; an attribute does after `compile`. Eager steps read both."""
    expected = fitted(0.9, assign_attribute, run_eagerly=True)
    unchanged = fitted(0.9, lambda model, beta: None)
    for got in (
        fitted(keras.Variable(0.9), lambda model, beta: beta.assign(0.5)),
        fitted(0.9, assign_attribute),
    ):
        for one, other, old in zip(got, expected, unchanged, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
            assert not np.allclose(one, old, rtol=1e-3)
