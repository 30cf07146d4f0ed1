"""Parameter groups: the settings of `groups`, how they are saved, and how they are shown."""

import math
import re

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.cases import CASES, REPRESENTATIVES
from tests.cells import EXHAUSTIVE
from tests.helpers.compare import assert_close, assert_same, follow
from tests.helpers.grouped import DATA, GRADIENTS, START, Grouped, hyperparameters_of, network
from tests.helpers.small_model import FEW, gradients, initial
from tests.helpers.stepping import (
    Rows,
    Runner,
    eager_and_compiled,
    every_mode,
    several_only,
    through_json,
    to_numpy,
)


@keras.saving.register_keras_serializable("tests")
def slow_biases(variable):
    return {"learning_rate_factor": 0.5} if variable.name == "bias" else None


def moved(optimizer, mode, steps=1, grads=GRADIENTS):
    """Return how far each variable has gone down."""
    runner = Runner(optimizer, START, mode)
    for _ in range(steps):
        runner.step(grads)
    return {path: START[path] - value for path, value in runner.values.items()}


def assert_moved(optimizer, mode, expected, steps=1, grads=GRADIENTS):
    for path, value in moved(optimizer, mode, steps, grads).items():
        assert_close(value, np.broadcast_to(expected[path], value.shape), 1e-6, path)


@pytest.mark.parametrize(
    ("case", "mode"),
    [
        pytest.param(case, mode, id=f"{case.name}-{mode}")
        for case in CASES
        for mode in ("eager", "compiled")
        if mode == "eager" or EXHAUSTIVE or case.name in REPRESENTATIVES
    ],
)
def test_every_optimizer_with_two_groups_matches_its_reference(case, mode):
    """The kernel is in both groups. The second one also sets hyperparameters."""
    groups = {
        r"^layer/": {"learning_rate_factor": 0.5},
        r"(kernel|embeddings)$": {"learning_rate_factor": 0.25, **hyperparameters_of(case)},
    }
    runner = Runner(case.make(groups=groups), initial(paths=FEW), mode)
    plan = gradients(steps=("normal", "masked", "normal"), paths=FEW)
    follow(runner, Grouped(case, groups), plan, case.tolerance("float32", mode=mode))


# Settings


@pytest.mark.spread
@every_mode
def test_later_groups_win_for_each_setting(mode):
    groups = [
        {"^a/": {"learning_rate_factor": 0.5, "weight_decay": 0.3}},
        slow_biases,
        {"a/kernel": {"learning_rate_factor": 0.1}},
    ]
    optimizer = keras_tfopt.GradientDescent(0.1, weight_decay=0.2, groups=groups)
    expected = {
        "a/kernel": 0.01 * (0.5 + 0.3 * 2),
        "a/bias": 0.05 * (0.5 + 0.3 * 1),
        "b/kernel": 0.1 * (0.5 + 0.2 * 3),
    }
    assert_moved(optimizer, mode, expected)


@every_mode
def test_factors_may_be_schedules_and_multiply_the_common_learning_rate(mode):
    halving = keras.optimizers.schedules.ExponentialDecay(1.0, 1, 0.5)
    optimizer = keras_tfopt.GradientDescent(0.2, groups={"bias": {"learning_rate_factor": halving}})
    optimizer.learning_rate = 0.1
    expected = {"a/kernel": 0.1, "a/bias": 0.1 * (1 + 0.5) / 2, "b/kernel": 0.1}
    assert_moved(optimizer, mode, expected, steps=2)


@every_mode
@pytest.mark.parametrize("around", (keras_tfopt.DecoupledWeightDecay, keras_tfopt.MovingAverage))
def test_weight_decay_goes_to_the_wrapper_that_decays(around, mode):
    groups = {
        "^a/": {"weight_decay": 0.3, "learning_rate_factor": 0.5},
        "bias": {"weight_decay": 0},
    }
    if around is keras_tfopt.MovingAverage:
        optimizer = around(keras_tfopt.GradientDescent(0.1, weight_decay=0.2), groups=groups)
        expected = {"a/kernel": 0.05 * (0.5 + 0.3 * 2), "b/kernel": 0.1 * (0.5 + 0.2 * 3)}
    else:
        optimizer = around(keras_tfopt.GradientDescent(0.1, groups=groups), 0.2)
        expected = {"a/kernel": 0.3 * 2 + 0.05 * 0.5, "b/kernel": 0.2 * 3 + 0.1 * 0.5}
    assert_moved(optimizer, mode, {**expected, "a/bias": 0.05 * 0.5})


@every_mode
def test_frozen_variables_have_no_slots_and_count_in_no_norm(mode):
    optimizer = keras_tfopt.Momentum(0.1, global_clipnorm=1.0, groups={"^a/": {"frozen": True}})
    size = math.sqrt(2) * 2.0
    grads = {**GRADIENTS, "a/bias": np.full(2, np.inf), "b/kernel": np.full(2, 2.0)}
    assert_moved(optimizer, mode, {"a/kernel": 0, "a/bias": 0, "b/kernel": 0.2 / size}, 1, grads)
    assert len(optimizer.variables) == 2 + 2  # counts, the learning rate, a slot
    all_frozen = keras_tfopt.SkipNonFinite(keras_tfopt.Adam(groups={".": {"frozen": True}}))
    assert_moved(all_frozen, mode, dict.fromkeys(START, 0))


@every_mode
def test_one_global_norm_over_all_groups(mode):
    groups = {"^a/": {"learning_rate_factor": 0.5}}
    optimizer = keras_tfopt.GradientDescent(0.1, global_clipnorm=0.1, groups=groups)
    norm = math.sqrt(10 * 0.25)
    step = 0.1 * 0.1 * 0.5 / norm
    assert_moved(optimizer, mode, {"a/kernel": step / 2, "a/bias": step / 2, "b/kernel": step})


@every_mode
def test_max_norm_bounds_variables_after_the_step(mode):
    groups = {"^b/": {"max_norm": 0.5}, "^a/": {"max_norm": 100.0}}
    optimizer = keras_tfopt.GradientDescent(0.1, groups=groups)
    expected = {"a/kernel": 0.05, "a/bias": 0.05, "b/kernel": 3.0 - 0.5 / math.sqrt(2)}
    assert_moved(optimizer, mode, expected)


@every_mode
def test_units_are_clipped_unless_a_group_says_otherwise(mode):
    groups = {"bias": {"clip_unitwise": None}, "^b/": {"clip_unitwise": 0.001}}
    optimizer = keras_tfopt.GradientDescent(1.0, clip_unitwise=0.01, groups=groups)
    expected = {"a/kernel": 0.01 * 2, "a/bias": 0.5, "b/kernel": 0.001 * 3}
    assert_moved(optimizer, mode, expected)
    rows = Rows(GRADIENTS["a/kernel"][:2], np.array([2, 0], "int32"))
    optimizer = keras_tfopt.GradientDescent(1.0, clip_unitwise=0.01)
    step = 0.01 * 2 * math.sqrt(3 / 2)
    expected = {"a/kernel": [[step], [0], [step]], "a/bias": 0, "b/kernel": 0}
    assert_moved(optimizer, mode, expected, grads={"a/kernel": rows})


@pytest.mark.spread
@every_mode
def test_flags_and_schedules_of_a_rule_by_group(mode):
    falling = keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.9, 0.5])
    groups = {"^b/": {"nesterov": True}, "bias": {"momentum": falling}}
    optimizer = keras_tfopt.Momentum(0.1, 0.8, groups=groups)
    expected = {
        "a/kernel": 0.05 * (1 + 1.8),
        "a/bias": 0.05 * (1 + 1.5),
        "b/kernel": 0.05 * (1.8 + 1 + 0.8 * 1.8),
    }
    assert_moved(optimizer, mode, expected, steps=2)


@pytest.mark.spread
@every_mode
def test_accumulated_steps_have_the_learning_rates_of_groups(mode):
    groups = {"^a/": {"learning_rate_factor": 0.5}}
    optimizer = keras_tfopt.Adam(0.1, gradient_accumulation_steps=2, groups=groups)
    expected = {"a/kernel": 0.05, "a/bias": 0.05, "b/kernel": 0.1}
    assert_moved(optimizer, mode, expected, steps=2)


@pytest.mark.parametrize(
    "callback",
    (
        lambda: keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.1 / 2**epoch),
        lambda: keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=1, mode="max", min_lr=0.01),
    ),
    ids=("LearningRateScheduler", "ReduceLROnPlateau"),
)
def test_callbacks_change_the_common_learning_rate(callback):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.layers[0].set_weights([np.zeros((1, 1)), np.zeros(1)])
    inner = keras_tfopt.GradientDescent(0.1, groups={"bias": {"learning_rate_factor": 0.5}})
    model.compile(keras_tfopt.MovingAverage(inner), lambda y, output: keras.ops.mean(output))
    x = np.full((4, 1), 3.0)
    history = model.fit(x, x, epochs=4, verbose=0, callbacks=[callback()]).history
    rates = history["learning_rate"]
    assert len(set(rates)) >= 3
    kernel, bias = (to_numpy(variable).item() for variable in model.trainable_variables)
    assert kernel == pytest.approx(-3.0 * sum(rates))
    assert bias == pytest.approx(-0.5 * sum(rates))


@pytest.mark.spread
@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
@every_mode
def test_variables_in_half_precision_have_the_learning_rates_of_groups(mode, dtype):
    groups = {"^a/": {"learning_rate_factor": 0.5}}
    inner = keras_tfopt.GradientDescent(0.25, groups=groups)
    optimizer = keras_tfopt.LossScaleOptimizer(inner, initial_scale=8.0)
    runner = Runner(optimizer, START, mode, dtype)
    for _ in range(2):
        runner.step({path: 8.0 * gradient for path, gradient in GRADIENTS.items()})
    # Half precision holds all these numbers exactly.
    for path, step in {"a/kernel": 1 / 16, "a/bias": 1 / 16, "b/kernel": 1 / 8}.items():
        assert np.array_equal(runner.values[path], START[path] - 2 * step), path


@keras_tfopt.register
class AtMostTheLearningRate(keras_tfopt.Rule):
    """A rule whose scalars would be wrong if `lr` were a vector of learning rates."""

    def scalars(self, lr, step):
        return {"most": keras.ops.max(keras.ops.stack([lr, lr / 2]))}

    def update(self, g, x, s, t):
        return x - keras.ops.minimum(g, t.most), {}


@pytest.mark.spread
@every_mode
def test_rules_of_users_compute_with_one_learning_rate_at_a_time(mode):
    groups = {"^a/": {"learning_rate_factor": 0.5, "weight_decay": 0.1}}
    expected = {"a/kernel": 0.05 * (1 + 0.1 * 2), "a/bias": 0.05 * (1 + 0.1), "b/kernel": 0.1}
    assert_moved(AtMostTheLearningRate(0.1, groups=groups), mode, expected)


@pytest.mark.spread
@several_only
@eager_and_compiled
def test_groups_equal_a_multi_optimizer(mode):
    first = keras_tfopt.Adam(0.01, beta_2=0.9, weight_decay=0.1)
    other = keras_tfopt.Adam(0.1)
    several = keras.optimizers.MultiOptimizer(lambda v: first if v.path[0] == "a" else other)
    groups = {"^a/": {"learning_rate_factor": 0.1, "beta_2": 0.9, "weight_decay": 0.1}}
    apart, together = (
        Runner(several, START, mode),
        Runner(keras_tfopt.Adam(0.1, groups=groups), START, mode),
    )
    for _ in range(3):
        apart.step(GRADIENTS)
        together.step(GRADIENTS)
    for path, value in together.values.items():
        assert_close(value, apart.values[path], 1e-6, path)


# Saving


def test_configurations_hold_groups():
    falling = keras.optimizers.schedules.ExponentialDecay(1.0, 1, 0.5)
    groups = [
        {re.compile("KERNEL", re.I): {"learning_rate_factor": falling, "nesterov": True}},
        slow_biases,
    ]
    optimizer = keras_tfopt.MovingAverage(keras_tfopt.Momentum(groups=groups))
    again = through_json(optimizer)
    assert again.get_config() == optimizer.get_config()
    assert_same(*(list(moved(one, "eager", 3).values()) for one in (optimizer, again)))


def test_functions_that_are_not_registered_cannot_be_saved():
    optimizer = keras_tfopt.Adam(groups=lambda variable: None)
    with pytest.raises(ValueError, match="register_keras_serializable"):
        optimizer.get_config()


@pytest.mark.spread("jax")
def test_a_saved_model_continues_as_one_that_was_not_saved(tmp_path):
    """Paths of variables change when a model is loaded."""
    model = network()
    groups = [
        keras_tfopt.layer_decay(model, 0.5),
        keras_tfopt.no_decay(model),
        {"dense/kernel": {"beta_2": 0.9}},
        {r"^sequential\w*/norm/": {"learning_rate_factor": 0.3}},
    ]
    inner = keras_tfopt.Adam(0.1, weight_decay=0.1, groups=groups)
    model.compile(keras_tfopt.Lookahead(inner, sync_period=2), "mse")
    model.fit(*DATA, epochs=3, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for one in (model, loaded):
        one.fit(*DATA, epochs=3, shuffle=False, verbose=0)
    for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
        assert_close(a, b, 1e-6, "weights")


# Reports


@pytest.mark.spread("torch")
def test_groups_are_shown(capsys):
    model = network()
    groups = {"bias": {"weight_decay": 0.0}, "dense/": {"learning_rate_factor": 0.5}}
    optimizer = keras_tfopt.MovingAverage(keras_tfopt.Adam(weight_decay=0.1), groups=groups)
    model.compile(optimizer, "mse")
    rows = {row["variable"].split("/", 1)[1]: row for row in optimizer.describe_groups(model).rows}
    bias = rows["dense/bias"]
    assert bias["groups"] == ("bias", "dense/")
    assert bias["settings"] == {"weight_decay": 0.0, "learning_rate_factor": 0.5}
    assert bias["state_bytes"] == 3 * 3 * 4  # an average and two moments
    assert rows["head/kernel"]["groups"] == ()
    assert "weight_decay=0.0, learning_rate_factor=0.5" in capsys.readouterr().out
    report = keras_tfopt.diagnose(model, batch=DATA)
    found = {row["variable"].split("/", 1)[1]: row for row in report.rows}
    assert found["dense/bias"]["groups"] == "bias, dense/" and not found["dense/bias"]["decay"]
    assert found["dense/kernel"]["decay"] and found["head/kernel"]["settings"] is None
