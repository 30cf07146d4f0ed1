"""Wrappers: promises that not every optimizer makes."""

import json
import math

import keras
import numpy as np
import pytest

import keras_tfopt
from integration import recordings
from tests.cases import CASES
from tests.helpers.compare import assert_same
from tests.helpers.paths import GOLDEN
from tests.helpers.small_model import gradients, initial
from tests.helpers.stepping import (
    MODES,
    Runner,
    eager_and_compiled,
    every_mode,
    make_variable,
    several_only,
    through_json,
    to_numpy,
)

TF1 = GOLDEN / "tf1"


WRAPPERS = [case for case in CASES if issubclass(case.cls, keras_tfopt.Wrapper)]


TABLE = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")


# Clipping


@every_mode
def test_two_clippings_one_around_the_other(mode):
    values = {"a/kernel": np.full((2, 3), 4.0), "b/kernel": np.full((3,), 4.0), "c": np.ones(2) * 9}
    runner = Runner(keras_tfopt.GradientDescent(0.0), values)
    optimizer = keras_tfopt.VariableClipping(
        keras_tfopt.VariableClipping(
            keras_tfopt.GradientDescent(0.0), [(runner.variables[0], [1])], 1.0
        ),
        {r"^b/": [0]},
        2.0,
    )
    runner = Runner(optimizer, values, mode)
    runner.step({path: np.ones_like(value) for path, value in values.items()})
    after = runner.values
    np.testing.assert_allclose(np.linalg.norm(after["a/kernel"], axis=1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(after["b/kernel"]), 2.0, rtol=1e-6)
    assert np.array_equal(after["c"], values["c"])
    again = through_json(optimizer)
    assert again.inner_optimizer.vars_to_clip_dims == {"^a/kernel$": [1]}


@every_mode
def test_clipping_leaves_norms_below_the_limit_alone(mode):
    clipped = keras_tfopt.VariableClipping(keras_tfopt.Momentum(0.1), {".": [0]}, 1e6)
    a, b = (Runner(o, {"k": TABLE}, mode) for o in (clipped, keras_tfopt.Momentum(0.1)))
    for _ in range(3):
        for runner in (a, b):
            runner.step({"k": TABLE[::-1].copy()})
    assert np.array_equal(a.values["k"], b.values["k"])


@pytest.mark.parametrize("dimension", [2, -3])
def test_dimensions_that_do_not_exist(dimension):
    inner = keras_tfopt.Momentum(0.1)
    optimizer = keras_tfopt.VariableClipping(inner, {"kernel": [dimension]}, 1.0)
    kernel = make_variable("layer/kernel", np.ones((4, 3)))
    for act in (
        lambda: optimizer.build([kernel]),
        lambda: optimizer.apply([np.ones((4, 3), "float32")], [kernel]),
    ):
        with pytest.raises(ValueError) as error:
            act()
        for word in ("vars_to_clip_dims", "kernel", "(4, 3)", f"[{dimension}]"):
            assert word in str(error.value)
        assert not optimizer.built and not inner.built
        assert np.array_equal(to_numpy(kernel), np.ones((4, 3)))


# Decay


@every_mode
def test_decay_follows_a_schedule_and_a_variable(mode):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
    variable = keras.Variable(0.25, trainable=False, dtype="float32")
    inner = keras_tfopt.GradientDescent(0.0)
    optimizer = keras_tfopt.DecoupledWeightDecay(
        keras_tfopt.DecoupledWeightDecay(inner, schedule), variable
    )
    runner = Runner(optimizer, {"k": np.ones(2)}, mode)
    expected = 1.0
    for step in range(3):
        runner.step({"k": np.ones(2)})
        expected *= (1 - 0.5 * 0.5**step) * (1 - 0.25)
        np.testing.assert_allclose(runner.values["k"], expected, rtol=1e-6)
    store = {}
    optimizer.save_own_variables(store)
    variable.assign(0.75)
    optimizer.load_own_variables(store)
    assert float(to_numpy(variable)) == 0.25


def test_the_two_conventions_of_decay():
    values = {"k": np.full(3, 2.0)}
    for scaled, factor in ((False, 1 - 0.25), (True, 1 - 0.25 * 0.5)):
        optimizer = keras_tfopt.MomentumW(0.5, weight_decay=0.25, scale_by_learning_rate=scaled)
        runner = Runner(optimizer, values)
        runner.step({"k": np.zeros(3)})
        np.testing.assert_allclose(runner.values["k"], 2.0 * factor, rtol=1e-6)
    # Keras scales by the learning rate.
    stock = Runner(keras.optimizers.SGD(0.5, momentum=0.9, weight_decay=0.25), values, MODES[-1])
    ours = Runner(
        keras_tfopt.MomentumW(0.5, weight_decay=0.25, scale_by_learning_rate=True), values
    )
    for _ in range(3):
        ours.step({"k": np.ones(3)})
        stock.step({"k": np.ones(3)})
    np.testing.assert_allclose(ours.values["k"], stock.values["k"], rtol=1e-5)


class TestExtension:
    def test_is_the_wrapper(self):
        extended = keras_tfopt.extend_with_decoupled_weight_decay(keras_tfopt.LARS)
        assert extended is keras_tfopt.extend_with_weight_decay(keras_tfopt.LARS)
        a = Runner(extended(0.5, weight_decay=0.1, decay_variables="kernel"), initial())
        inner = keras_tfopt.LARS(0.5)
        b = Runner(keras_tfopt.DecoupledWeightDecay(inner, 0.1, "kernel"), initial())
        for grads in gradients(steps=("normal",) * 3):
            a.step(grads)
            b.step(grads)
        assert_same(a.snapshot(), b.snapshot())
        assert a.optimizer.weight_decay == 0.1 and a.optimizer.inner_optimizer.weight_decay != 0.1

    @pytest.mark.parametrize("cls", (keras.optimizers.Adam, keras_tfopt.LazyAdam))
    def test_is_serialized(self, cls):
        extended = keras_tfopt.extend_with_decoupled_weight_decay(cls)
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
        optimizer = extended(schedule, weight_decay=schedule, beta_1=0.5, clipnorm=1.0, name="mine")
        again = through_json(optimizer)
        assert type(again) is extended and again.name == "mine"
        assert again.get_config() == optimizer.get_config()
        assert isinstance(again.inner_optimizer, cls)  # on PyTorch, Keras makes a subclass
        assert again.beta_1 == 0.5 and again.inner_optimizer.clipnorm == 1.0

    @pytest.mark.spread
    @pytest.mark.parametrize("wrong", (3, keras_tfopt.LARS(), keras_tfopt.MovingAverage, dict))
    def test_refuses(self, wrong):
        with pytest.raises(TypeError, match="optimizer_class"):
            keras_tfopt.extend_with_decoupled_weight_decay(wrong)


# Multitask


@pytest.mark.parametrize(
    "make",
    (
        lambda: keras.optimizers.Adam(0.1),
        lambda: keras.optimizers.RMSprop(0.1, momentum=0.9, centered=True),
        lambda: keras_tfopt.MovingAverage(keras_tfopt.Adam(0.1), 0.5),
    ),
)
@eager_and_compiled
def test_multitask_keeps_state_of_variables_with_zero_gradients(make, mode):
    values = {"a": np.ones(3), "b": np.ones((2, 2))}
    runner = Runner(keras_tfopt.Multitask(make()), values, mode)
    runner.step({"a": np.ones(3), "b": np.ones((2, 2))})
    before = [to_numpy(v) for v in runner.optimizer.variables]
    runner.step({"a": np.zeros(3), "b": np.ones((2, 2))})
    after = [to_numpy(v) for v in runner.optimizer.variables]
    of_a = [x.shape == (3,) for x in before]
    assert sum(of_a) >= 2
    for a, b, resting in zip(before, after, of_a, strict=True):
        if a.ndim:
            assert np.array_equal(a, b) == resting
    assert int(to_numpy(runner.optimizer.iterations)) == 2


@pytest.mark.parametrize("stock", (False, True))
@eager_and_compiled
def test_multitask_looks_at_the_sum_of_micro_steps(stock, mode):
    module = keras.optimizers if stock else keras_tfopt
    make = lambda **base: module.Adam(0.1, epsilon=1e-3, **base)  # noqa: E731
    accumulating = keras_tfopt.Multitask(make(gradient_accumulation_steps=2))
    plain = keras_tfopt.Multitask(make())
    a, b = (Runner(o, {"k": np.ones(3)}, mode) for o in (accumulating, plain))
    zero, g = np.zeros(3), np.array([1.0, -2.0, 0.5])
    for first, second in ((g, zero), (zero, zero), (zero, g), (g, g)):
        a.step({"k": first})
        a.step({"k": second})
        b.step({"k": (first + second) / 2})
        np.testing.assert_allclose(a.values["k"], b.values["k"], rtol=1e-6)


def test_clip_gradients_by_global_norm_equals_the_recordings():
    manifest = json.loads((TF1 / "manifest.json").read_text())
    name = "clip_gradients_by_global_norm__tables.npz"
    (entry,) = (e for e in manifest["cases"] if e["file"] == name)
    arrays = np.load(TF1 / name)
    for table in entry["tables"]:
        number, count = table["table"], table["gradients"]
        given = [arrays.get(f"{number}/input/{i}") for i in range(count)]
        clipped, norm = keras_tfopt.clip_gradients_by_global_norm(given, **table["kwargs"])
        np.testing.assert_allclose(to_numpy(norm), arrays[f"{number}/global_norm"], rtol=1e-5)
        for i, (g, before) in enumerate(zip(clipped, given, strict=True)):
            if before is None:
                assert g is None
            else:
                want = arrays[f"{number}/output/{i}"]
                np.testing.assert_allclose(to_numpy(g), want, **entry["tolerance"])
    assert len(entry["tables"]) == 5


def test_clip_gradients_by_global_norm_of_rows():
    rows = keras_tfopt.RowGradient(np.full((3, 2), 1.0, "float32"), [1, 1, 2], (4, 2))
    dense = np.full(3, 2.0, "float32")
    norm = math.sqrt(2 * 4 + 2 * 1 + 3 * 4)
    (a, none, b), total = keras_tfopt.clip_gradients_by_global_norm([rows, None, dense], 1.0)
    assert none is None and isinstance(a, keras_tfopt.RowGradient)
    np.testing.assert_allclose(to_numpy(total), norm, rtol=1e-6)
    np.testing.assert_allclose(to_numpy(a.values), 1 / norm, rtol=1e-6)
    np.testing.assert_allclose(to_numpy(b), 2 / norm, rtol=1e-6)
    (c, _), total = keras_tfopt.clip_gradients_by_global_norm([np.float32([np.inf]), dense], 1.0)
    assert np.isnan(to_numpy(c)).all() and np.isinf(to_numpy(total))
    with pytest.raises(ValueError, match="clip_norm"):
        keras_tfopt.clip_gradients_by_global_norm([dense], -1.0)


# Lookahead and averages


def test_lookahead_with_a_slow_step_size_of_one_is_the_optimizer_inside():
    a = Runner(keras_tfopt.Lookahead(keras_tfopt.Momentum(0.1), 2, 1.0), initial())
    b = Runner(keras_tfopt.Momentum(0.1), initial())
    for grads in gradients():
        a.step(grads)
        b.step(grads)
    for path, value in b.values.items():
        np.testing.assert_allclose(a.values[path], value, rtol=1e-5, atol=1e-6)


def test_an_average_of_every_step_is_the_mean():
    optimizer = keras_tfopt.StochasticWeightAveraging(keras_tfopt.Momentum(0.1), 0, 1)
    runner, seen = Runner(optimizer, {"k": np.ones(3)}), []
    for step in range(5):
        runner.step({"k": np.array([1.0, 0.5, -1.0]) * step})
        seen.append(runner.values["k"])
    np.testing.assert_allclose(runner.slots["k"]["average"], np.mean(seen, 0), rtol=1e-6)
    assert runner.slots["k"]["count"] == 5


# All wrappers. test_base_options.py tries accumulation inside.


@pytest.mark.spread
@pytest.mark.parametrize(
    "wrapper",
    [c for c in WRAPPERS if "inner_optimizer" in c.own_arguments],
    ids=lambda case: case.name,
)
def test_a_loss_scale_optimizer_inside_is_refused(wrapper):
    inner = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    with pytest.raises(ValueError, match=f"LossScaleOptimizer\\({wrapper.name}"):
        wrapper.cls(inner, **wrapper.required)


def test_wrappers_need_no_multi_optimizer(monkeypatch):
    """Keras before 3.15 has none."""
    monkeypatch.delattr(keras.optimizers, "MultiOptimizer", raising=False)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    kernel = model.layers[0].kernel
    kernel.assign(np.ones((2, 1)))
    optimizer = keras_tfopt.MovingAverage(keras_tfopt.Momentum(0.5, momentum=0.0), 0.5)
    optimizer.apply([np.ones((2, 1))], [kernel])
    with optimizer.averaged(model):
        assert to_numpy(kernel).tolist() == [[0.75], [0.75]]
    assert to_numpy(kernel).tolist() == [[0.5], [0.5]]


@pytest.mark.parametrize(
    "make",
    (
        lambda: keras_tfopt.MovingAverage(keras_tfopt.Adam(0.1)),
        lambda: keras_tfopt.LossScaleOptimizer(keras_tfopt.Lookahead("sgd")),
        lambda: keras_tfopt.Prodigy(),
    ),
)
def test_a_variable_that_is_listed_twice_builds_nothing(make):
    optimizer, a, b = make(), make_variable("a", np.ones(3)), make_variable("b", np.ones(2))
    g = np.ones(3)
    with pytest.raises(ValueError, match="takes each variable once"):
        optimizer.apply([g, g], [a, a])
    assert not optimizer.built
    optimizer.apply([g, np.ones(2)], [a, b])
    assert int(optimizer.iterations) == 1


@several_only
def test_accumulation_inside_of_a_multi_optimizer_is_refused():
    inner = keras_tfopt.Momentum(0.1, gradient_accumulation_steps=2)
    several = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(inner))
    with pytest.raises(ValueError, match="MultiOptimizer outside"):
        keras_tfopt.Lookahead(several).build([make_variable("k", np.ones(2))])


@pytest.mark.spread
def test_recordings_of_addons_are_read_whole():
    selection = recordings.select(GOLDEN / "tfa", quirks=True)
    assert len(selection.cases) > 100 and any("tables" in line for line in selection.left_out)


@every_mode
def test_averages_of_the_optimizer_inside_rest_with_the_variable(mode):
    inner = keras_tfopt.Momentum(0.1, momentum=0.9, use_ema=True, ema_momentum=0.5)
    runner = Runner(keras_tfopt.Multitask(inner), {"k": np.ones(2)}, mode)
    for g in (1.0, 0.0, 0.0):
        runner.step({"k": np.full(2, g)})
    average = runner.optimizer.inner_optimizer._model_variables_moving_average[0]
    np.testing.assert_allclose([runner.values["k"], to_numpy(average)], 0.9, rtol=1e-6)
