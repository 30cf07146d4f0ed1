"""What the tests of Keras ask of its own optimizers, asked of each of ours.

They cover counting, empty gradients, clipping, averages, constraints, loss scales, weights, files,
callables, variables that are overwritten with their gradients, pickling, configurations, golden
values and steps under `tf.distribute`. Numbers that theirs take from SGD come here from the
reference of each rule, or from the same optimizer without the option. What is asked elsewhere is
not asked again: row gradients equal dense ones (test_contract.py), accumulation
(test_base_options.py), strategies and devices (test_distribution.py), checkpoints of TensorFlow
(test_state.py).
"""

import json
import pickle

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from tests.cases import every_case, keras_options
from tests.stepping import BACKEND, Runner, make_variable, several_only, to_numpy
from tests.test_contract import assert_close, innermost

ONES = np.ones((2, 2), "float32")
START = np.array([[1.0, 2.0], [3.0, 4.0]], "float32")


def variable(value=START, path="layer/kernel"):
    return make_variable(path, value)


def stepped(optimizer, *grads, start=START):
    """A variable after some steps by `apply_gradients`, which is how Keras's tests make them."""
    v = variable(start)
    for g in grads:
        optimizer.apply_gradients([(ops.convert_to_tensor(g), v)])
    return to_numpy(v)


def by_reference(case, *grads, start=START):
    reference = case.make_reference()
    x = {"layer/kernel": start.astype("float64")}
    s = reference.start(x)
    for step, g in enumerate(grads, start=1):
        x, s = reference.advance({"layer/kernel": g}, x, s, step)
    return x["layer/kernel"]


# Steps


@pytest.mark.backends("jax", "torch", reason="Keras has no `stateless_apply` on TensorFlow")
@every_case("case")
@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2, "use_ema": True}])
def test_stateless_apply_returns_what_apply_writes(case, options):
    if case.inner is not None and case.inner.__module__.startswith("keras.src"):
        options = {}
    first, second, v, w = case.make(**options), case.make(**options), variable(), variable()
    grads = [np.array(ONES * scale) for scale in (1.0, -0.5, 2.0, 0.25)]
    second.build([w])
    before = [to_numpy(x).copy() for x in (w, *second.variables)]
    x, state = [ops.copy(w.value)], [ops.copy(s.value) for s in second.variables]
    for g in grads:
        first.apply([ops.convert_to_tensor(g)], [v])
        given = [np.array(to_numpy(one)) for one in (*x, *state)]
        new_x, new_state = second.stateless_apply(state, [ops.convert_to_tensor(g)], x)
        for one, value in zip((*x, *state), given, strict=True):
            np.testing.assert_array_equal(to_numpy(one), value)  # what was given stays
        x, state = new_x, new_state
    assert np.any(to_numpy(x[0]) != START)
    for one, value in zip((w, *second.variables), before, strict=True):
        np.testing.assert_array_equal(to_numpy(one), value)
    for one, owned in zip((*x, *state), (v, *first.variables), strict=True):
        # Compiled code may add in another order.
        np.testing.assert_allclose(to_numpy(one), to_numpy(owned), rtol=1e-5, atol=1e-6)


@every_case("case")
def test_the_counter_counts_calls(case):
    optimizer, v = case.make(), variable()
    assert int(to_numpy(optimizer.iterations)) == 0
    for count in (1, 2):
        optimizer.apply_gradients([(ops.convert_to_tensor(ONES), v)])
        assert int(to_numpy(optimizer.iterations)) == count


@pytest.mark.formula
@every_case("case")
def test_single_steps_and_golden_values(case):
    """On whole numbers and on a ramp, after a small step: as their golden values."""
    whole = np.array([1.0, 6.0, 7.0, 2.0], "float32")
    start = np.array([1.0, 2.0, 3.0, 4.0], "float32")
    tolerance = case.tolerance()
    got = stepped(case.make(), whole, start=start)
    assert_close(got, by_reference(case, whole, start=start), tolerance, "a single step")
    plan = [np.full(10, 0.01, "float32"), *[np.arange(0.1, 1.05, 0.1, "float32")] * 4]
    start = np.ones(10, "float32")
    got = stepped(case.make(), *plan, start=start)
    assert_close(got, by_reference(case, *plan, start=start), tolerance, "golden values")
    assert np.all(got != start)


@every_case("case")
def test_without_any_gradient(case):
    optimizer, v = case.make(), variable()
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        optimizer.apply_gradients([(None, v)])
    assert np.array_equal(to_numpy(v), START)
    assert int(to_numpy(optimizer.iterations)) == 0


@every_case("case")
def test_gradients_that_are_missing_are_warned_of(case):
    optimizer = case.make()
    without, with_one = variable(path="a/kernel"), variable(path="b/kernel")
    with pytest.warns(UserWarning, match="a/kernel"):
        optimizer.apply_gradients([(None, without), (ops.convert_to_tensor(ONES), with_one)])
    assert np.array_equal(to_numpy(without), START)
    assert not np.array_equal(to_numpy(with_one), START)


@every_case("case")
def test_a_callable_learning_rate(case):
    by_call = case.make(learning_rate=lambda: 0.125)
    assert int(to_numpy(by_call.iterations)) == 0
    assert np.array_equal(stepped(by_call, ONES), stepped(case.make(learning_rate=0.125), ONES))
    assert int(to_numpy(by_call.iterations)) == 1


@every_case("case")
def test_a_schedule_in_the_place_of_a_rate_leaves_no_variable_behind(case):
    optimizer = case.make(learning_rate=0.125)
    before = len(optimizer.variables)
    optimizer.learning_rate = keras.optimizers.schedules.PolynomialDecay(optimizer.learning_rate, 4)
    assert len(optimizer.variables) == before - 1
    with pytest.raises(TypeError):
        optimizer.learning_rate = 0.5


# Clipping


@every_case("case")
def test_only_one_way_to_clip(case):
    for name in ("clipnorm", "clipvalue", "global_clipnorm"):
        assert getattr(innermost(case.make(**{name: 0.1})), name) == 0.1
    for other in ("clipvalue", "global_clipnorm"):
        with pytest.raises(ValueError, match="Only one of `clipnorm`, `clipvalue` and"):
            case.make(clipnorm=0.1, **{other: 0.1})


@every_case("case")
@pytest.mark.parametrize(
    ("option", "clipped"),
    [
        ({"clipnorm": 1}, [2**0.5 / 2, 2**0.5 / 2]),
        ({"clipvalue": 1}, [1.0, 1.0]),
        ({"global_clipnorm": 1}, [2**0.5 / 2, 2**0.5 / 2]),
    ],
)
def test_clipping(case, option, clipped):
    """The step with a gradient that is clipped is the step with what it is clipped to."""
    start = np.array([3.0, 4.0], "float32")
    large = np.array([100.0, 100.0], "float32")
    got = stepped(case.make(**option), large, large, start=start)
    small = np.array(clipped, "float32")
    assert_close(got, by_reference(case, small, small, start=start), 4e-6, str(option))


@every_case("case")
def test_clipping_what_needs_no_clipping_in_fit(case):
    """Of a table that is looked up: once an error of Keras (its issue 18985)."""
    model = keras.Sequential(
        [keras.layers.Embedding(10, 4), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    model.compile(case.make(clipnorm=100.0), "mse")
    history = model.fit(np.ones((8, 5), int), np.zeros((8, 2)), verbose=0).history
    assert np.isfinite(history["loss"][0])


# Averages


@every_case("case")
def test_averages_start_at_the_first_step_and_overwrite(case):
    """Momentum 0.9 over three steps, the third of which puts the average into the variable."""
    if case.moves_after:
        pytest.skip("averages of the optimizer inside do not see what a wrapper does afterwards")
    if case.inner is not None:
        pytest.skip("whether a wrapper sees a variable before it is overwritten is not laid down")
    every = {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 3}
    optimizer, v = case.make(**every), variable()
    plain, w = case.make(), variable()
    expected = None
    for step in (1, 2, 3):
        optimizer.apply_gradients([(ops.convert_to_tensor(ONES), v)])
        plain.apply_gradients([(ops.convert_to_tensor(ONES), w)])
        x = to_numpy(w)
        expected = x if step == 1 else 0.9 * expected + 0.1 * x
        average = to_numpy(optimizer._model_variables_moving_average[0])
        assert_close(average, expected, 1e-6, f"average after step {step}")
        assert_close(to_numpy(v), expected if step == 3 else x, 1e-6, f"after step {step}")


# Constraints, loss scales


@every_case("case")
def test_constraints_are_applied(case):
    v = variable(-ONES)
    v.constraint = keras.constraints.NonNeg()
    optimizer = case.make(learning_rate=1e-4)
    for _ in range(2):
        optimizer.apply_gradients([(ops.convert_to_tensor(1e-3 * ONES), v)])
    # A decay moves it beyond zero, and Lookahead back towards where the constraint did not hold.
    lowest = np.min(to_numpy(v))
    assert 0 <= lowest < 1e-4 or case.moves_after and lowest > -1.0


@every_case("case")
def test_a_static_loss_scale(case):
    optimizer = case.make(loss_scale_factor=1024.0)
    got = stepped(optimizer, 1024 * START)
    assert float(to_numpy(ops.convert_to_tensor(optimizer.scale_loss(1.0)))) == 1024.0
    assert np.array_equal(got, stepped(case.make(), START))


@every_case("case")
def test_a_dynamic_loss_scale_falls_and_grows(case):
    """Halved at each step that is not finite, doubled after two that are."""
    for entry, scale, steps, after in ((np.inf, 400.0, 4, 25.0), (1.0, 2.0, 8, 32.0)):
        optimizer = keras.optimizers.LossScaleOptimizer(
            case.make(), initial_scale=scale, dynamic_growth_steps=2
        )
        runner = Runner(optimizer, {"kernel": START}, "compiled")
        for _ in range(steps):
            runner.step({"kernel": np.full((2, 2), entry)})
        assert float(to_numpy(ops.convert_to_tensor(optimizer.scale_loss(1.0)))) == after
        assert np.array_equal(runner.values["kernel"], START) == (entry == np.inf)


# State


@every_case("case")
def test_weights_are_set_once_there_is_a_place_for_them(case):
    first, second = case.make(), case.make()
    v = variable()
    first.apply_gradients([(ops.convert_to_tensor(ONES), v)])
    with pytest.raises(ValueError, match="built"):
        second.set_weights(first.variables)
    second.build([v])
    second.set_weights(first.variables)
    for a, b in zip(first.variables, second.variables, strict=True):
        assert np.array_equal(to_numpy(a), to_numpy(b))


@pytest.mark.formula
@every_case("case")
def test_pickling_before_the_first_step(case):
    optimizer = case.make()
    assert pickle.loads(pickle.dumps(optimizer)).get_config() == optimizer.get_config()


@pytest.mark.formula
@every_case("case")
def test_configurations_as_their_serialization_test_asks(case):
    """By class, by serialization, through JSON; `dir` of the copy is that of the original."""
    optimizer = case.make(weight_decay=0.004)
    config = optimizer.get_config()
    assert json.loads(json.dumps(config)) == config
    again = case.cls.from_config(config)
    assert again.get_config() == config
    revived = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert revived.get_config() == config
    assert set(dir(revived)) == set(dir(optimizer)) == set(dir(again))
    inner = config.get("inner_optimizer", {}).get("config", config)
    assert keras_options() <= set(inner)


@every_case("case")
def test_found_by_name(case):
    config = keras.optimizers.serialize(case.make())
    assert type(keras.optimizers.get(config)) is case.cls
    with pytest.raises(ValueError):
        keras.optimizers.get(
            {**config, "class_name": "typo", "registered_name": "keras_tfopt>typo"}
        )


# Variables that are overwritten


@every_case("case")
@pytest.mark.parametrize("every", (None, 2))
def test_variables_that_are_overwritten_with_their_gradients(case, every):
    """As Keras keeps scales of float8: without a step, accumulated by the largest."""
    options = {"gradient_accumulation_steps": every} if every else {}
    optimizer, plain = case.make(**options), case.make()
    scale, kernel, alone = variable(path="scale"), variable(), variable()
    scale.overwrite_with_gradient = True
    twos = 2 * ONES
    optimizer.apply([ops.convert_to_tensor(ONES)] * 2, [scale, kernel])
    if every:
        assert np.array_equal(to_numpy(scale), START) and np.array_equal(to_numpy(kernel), START)
        optimizer.apply([ops.convert_to_tensor(twos)] * 2, [scale, kernel])
        assert np.array_equal(to_numpy(scale), twos)
        plain.apply([ops.convert_to_tensor(1.5 * ONES)], [alone])
    else:
        assert np.array_equal(to_numpy(scale), ONES)
        plain.apply([ops.convert_to_tensor(ONES)], [alone])
    if case.scope != "model":
        assert_close(to_numpy(kernel), to_numpy(alone), 1e-6, "the other variable")
    assert not np.array_equal(to_numpy(kernel), START)
    for value in (0.0, 3.0, 3.0):
        grads = [ops.convert_to_tensor(value * ONES), ops.convert_to_tensor(ONES)]
        for _ in range(every or 1):
            optimizer.apply(grads, [scale, kernel])
        assert np.array_equal(to_numpy(scale), value * ONES)
    if case.moves_after or case.moves_everywhere:
        assert all(v is not scale for v, _ in optimizer.averages_now(lambda v: v.value))


# Weight decay


@every_case("case")
def test_weight_decay_and_what_is_exempt(case):
    """Theirs is the base's; a rule or wrapper with a decay of its own takes the name."""
    if "weight_decay" in case.refused:
        pytest.skip("its `weight_decay` is its own, which the references have")

    def decayed(by=None, weight_decay=0.25):
        optimizer = case.make(weight_decay=weight_decay)
        variables = [variable(path=path) for path in ("free/kernel", "exclude/kernel")]
        if by == "names":
            optimizer.exclude_from_weight_decay(var_names=["exclude"])
        elif by == "list":
            optimizer.exclude_from_weight_decay(var_list=variables[1:])
        optimizer.apply([ops.convert_to_tensor(1e-3 * ONES)] * 2, variables)
        return [to_numpy(v) for v in variables]

    free, other = decayed()
    without = decayed(weight_decay=None)[0]
    counts = [by_reference(case, 1e-3 * ONES, start=scale * START) for scale in (1.0, 0.9)]
    if not np.array_equal(*counts):  # else the rule does not look at the variable
        assert not np.array_equal(free, without)
    if case.scope != "model":
        assert np.array_equal(free, other)
    for by in ("names", "list"):
        decays, rests = decayed(by)
        assert np.array_equal(rests, without) and np.array_equal(decays, free)


# Several optimizers, and optimizers of variables


@several_only
@every_case("case")
def test_in_a_multi_optimizer(case):
    several = keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(case.make(learning_rate=0.011), {"^first/.*": case.make()})
    )
    values = {"first/kernel": START, "second/kernel": START}
    runner = Runner(several, values, "compiled")
    for _ in range(2):
        runner.step(dict.fromkeys(values, ONES))
    assert_close(runner.values["first/kernel"], by_reference(case, ONES, ONES), 4e-6, "first")
    alone = stepped(case.make(learning_rate=0.011), ONES, ONES)
    assert_close(runner.values["second/kernel"], alone, 4e-6, "second")
    assert int(to_numpy(several.iterations)) == 2
    again = keras.optimizers.deserialize(keras.optimizers.serialize(several))
    assert [type(one) for one in again.optimizers] == [case.cls] * 2


@pytest.mark.skipif(BACKEND != "tensorflow", reason="JAX and PyTorch have no strategies")
@every_case("case")
def test_steps_without_state_are_not_for_tensorflow(case):
    optimizer = case.make()
    v = variable()
    optimizer.build([v])
    with pytest.raises(ValueError, match="not supported"):
        optimizer.stateless_apply(optimizer.variables, [ONES], [v])


def test_every_option_of_keras_is_asked_for():
    """New ones have to be looked at."""
    assert keras_options() == {
        *("name", "weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "use_ema"),
        *("ema_momentum", "ema_overwrite_frequency", "loss_scale_factor"),
        "gradient_accumulation_steps",
    }
    assert issubclass(keras_tfopt.Rule, keras.optimizers.Optimizer)
