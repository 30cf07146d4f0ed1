"""What single wrappers promise beyond the contract that all optimizers share."""

import json
import math
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_tfopt
from integration import recordings
from tests.cases import CASES, gradients, initial
from tests.stepping import (
    BACKEND,
    IMMEDIATE,
    MODES,
    Rows,
    Runner,
    make_variable,
    several_only,
    to_numpy,
)

GOLDEN = pathlib.Path(__file__).parent / "golden" / "tf1"
WRAPPERS = [case for case in CASES if issubclass(case.cls, keras_tfopt.Wrapper)]
every_wrapper = pytest.mark.parametrize("wrapper", WRAPPERS, ids=lambda case: case.name)
every_mode = pytest.mark.parametrize("mode", MODES)
TABLE = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


# Clipping


@pytest.mark.parametrize("mode", MODES)
def test_clipping_by_variable_and_by_pattern_chained(mode):
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
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(optimizer)))
    again = keras.saving.deserialize_keras_object(config)
    assert again.inner_optimizer.vars_to_clip_dims == {"^a/kernel$": [1]}


@every_mode
def test_what_is_below_the_limit_is_not_touched_by_clipping(mode):
    clipped = keras_tfopt.VariableClipping(keras_tfopt.Momentum(0.1), {".": [0]}, 1e6)
    a, b = (Runner(o, {"k": TABLE}, mode) for o in (clipped, keras_tfopt.Momentum(0.1)))
    for _ in range(3):
        for runner in (a, b):
            runner.step({"k": TABLE[::-1].copy()})
    assert np.array_equal(a.values["k"], b.values["k"])


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ({"kernel": [2]}, ("vars_to_clip_dims", "kernel", "(4, 3)", "[2]")),
        ({"kernel": [-3]}, ("vars_to_clip_dims", "kernel", "(4, 3)", "[-3]")),
    ],
)
def test_dimensions_that_do_not_exist(argument, words):
    inner = keras_tfopt.Momentum(0.1)
    optimizer = keras_tfopt.VariableClipping(inner, argument, 1.0)
    kernel = make_variable("layer/kernel", np.ones((4, 3)))
    for act in (
        lambda: optimizer.build([kernel]),
        lambda: optimizer.apply([np.ones((4, 3), "float32")], [kernel]),
    ):
        with pytest.raises(ValueError) as error:
            act()
        assert all(word in str(error.value) for word in words), error.value
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
    # The scaled one is Keras's.
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
        assert same(a.snapshot(), b.snapshot())
        assert a.optimizer.weight_decay == 0.1 and a.optimizer.inner_optimizer.weight_decay != 0.1

    @pytest.mark.parametrize("cls", (keras.optimizers.Adam, keras_tfopt.LazyAdam))
    def test_is_serialized(self, cls):
        extended = keras_tfopt.extend_with_decoupled_weight_decay(cls)
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
        optimizer = extended(schedule, weight_decay=schedule, beta_1=0.5, clipnorm=1.0, name="mine")
        text = json.dumps(keras.saving.serialize_keras_object(optimizer))
        again = keras.saving.deserialize_keras_object(json.loads(text))
        assert type(again) is extended and again.name == "mine"
        assert again.get_config() == optimizer.get_config()
        assert isinstance(again.inner_optimizer, cls)  # Keras has one of its own on torch
        assert again.beta_1 == 0.5 and again.inner_optimizer.clipnorm == 1.0

    @pytest.mark.spread
    def test_is_loaded_in_another_process(self, tmp_path):
        program = f"""
import sys, keras, keras_tfopt, numpy as np
LazyAdamW = keras_tfopt.extend_with_decoupled_weight_decay(keras_tfopt.LazyAdam)
path = {str(tmp_path / "model.keras")!r}
if sys.argv[1] == "save":
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(LazyAdamW(0.1, weight_decay=0.01), "mse")
    model.train_on_batch(np.ones((2, 2)), np.ones((2, 1)))
    model.save(path)
else:
    model = keras.saving.load_model(path)
    assert type(model.optimizer) is LazyAdamW and int(model.optimizer.iterations) == 1
"""
        for verb in ("save", "load"):
            subprocess.run([sys.executable, "-c", program, verb], check=True, timeout=300)

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
@pytest.mark.parametrize("mode", ("eager", "compiled"))
def test_multitask_leaves_the_state_of_any_optimizer_alone(make, mode):
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
@pytest.mark.parametrize("mode", ("eager", "compiled"))
def test_multitask_looks_at_the_sum_of_the_micro_steps(stock, mode):
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
    manifest = json.loads((GOLDEN / "manifest.json").read_text())
    name = "clip_gradients_by_global_norm__tables.npz"
    (entry,) = (e for e in manifest["cases"] if e["file"] == name)
    arrays = np.load(GOLDEN / name)
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


# SkipNonFinite

BAD = (np.nan, np.inf, -np.inf)


@pytest.mark.parametrize(
    "make",
    (
        lambda: keras_tfopt.LazyAdam(0.1),
        lambda: keras_tfopt.MovingAverage(keras.optimizers.Adam(0.1), 0.5),
        lambda: keras_tfopt.LazyAdam(0.1, gradient_accumulation_steps=2),
    ),
)
@every_mode
@pytest.mark.spread
def test_a_step_that_is_not_finite_changes_nothing(make, mode):
    values = {"k": np.ones(3), "embeddings": TABLE}
    runner, clean = (Runner(keras_tfopt.SkipNonFinite(make()), values, mode) for _ in range(2))
    good = {"k": np.ones(3), "embeddings": Rows(np.ones((2, 3)), np.array([1, 4], "int32"))}
    skipped = 0
    for bad in BAD:
        for path in values:
            runner.step(good)
            clean.step(good)
            broken = {
                "k": np.array([1.0, bad, 1.0]) if path == "k" else good["k"],
                "embeddings": Rows(np.full((2, 3), bad), good["embeddings"].indices)
                if path != "k"
                else good["embeddings"],
            }
            before = runner.snapshot()
            runner.step(broken)
            skipped += 1
            assert runner.optimizer.skipped == skipped
            assert runner.optimizer.skipped_in_a_row == 1
            changed = [not np.array_equal(a, b) for a, b in zip(before, runner.snapshot())]
            assert sum(changed) <= 3  # the two counters, and the wrapper's own count of calls
            for path_ in values:
                assert np.array_equal(runner.values[path_], clean.values[path_])
    inner, twin = runner.optimizer.inner_optimizer, clean.optimizer.inner_optimizer
    for a, b in zip(inner.variables, twin.variables, strict=True):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))


@pytest.mark.parametrize("mode", IMMEDIATE)
def test_too_many_steps_that_are_not_finite(mode):
    optimizer = keras_tfopt.SkipNonFinite(keras_tfopt.Momentum(0.1), max_consecutive=1)
    runner = Runner(optimizer, {"k": np.ones(2)}, mode)
    for g in (np.nan, 1.0, np.nan, np.nan):
        runner.step({"k": np.full(2, g)})
    before = runner.snapshot()[0]
    with pytest.raises(FloatingPointError, match="2 steps in a row.*max_consecutive"):
        runner.step({"k": np.ones(2)})
    assert np.array_equal(before, runner.values["k"])
    runner.step({"k": np.ones(2)})  # said once
    assert not np.array_equal(before, runner.values["k"]) and optimizer.skipped == 3


def test_the_callback_raises():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras_tfopt.SkipNonFinite("sgd", max_consecutive=2), "mse")
    x, y = np.ones((32, 2), "float32"), np.full((32, 1), np.nan, "float32")
    before = model.get_weights()
    with pytest.raises(FloatingPointError, match="max_consecutive"):
        callback = keras_tfopt.callbacks.RaiseSkipped(every=3)
        model.fit(x, y, batch_size=4, verbose=0, callbacks=[callback])
    if BACKEND == "jax":
        model.jax_state_sync()
    assert same(before, model.get_weights())
    assert model.optimizer.skipped == 3


@every_mode
def test_averages_follow_the_steps_that_are_made(mode):
    """Around one that leaves out steps: they move in all the others."""
    inner = keras_tfopt.SkipNonFinite(keras_tfopt.GradientDescent(1.0))
    runner = Runner(keras_tfopt.MovingAverage(inner, 0.5), {"k": np.zeros(2)}, mode)
    for g in (-1.0, np.nan, -1.0):
        runner.step({"k": np.full(2, g)})
    average = to_numpy(runner.optimizer.slot(runner.variables[0], "average"))
    np.testing.assert_allclose(average, [1.25, 1.25], rtol=1e-6)  # of 0, 1 and 2


def test_skipped_steps_move_no_average_around():
    inner = keras_tfopt.SkipNonFinite(keras_tfopt.Momentum(0.1))
    optimizer = keras_tfopt.Lookahead(keras_tfopt.MovingAverage(inner, 0.5), 2)
    runner = Runner(optimizer, {"k": np.ones(2)}, "compiled")
    runner.step({"k": np.ones(2)})
    (variable,) = runner.variables
    slots = {name: to_numpy(optimizer.slot(variable, name)) for name in optimizer.slot_names}
    assert set(slots) == {"slow", "average", "momentum"}
    runner.step({"k": np.full(2, np.nan)})
    for name, slot in slots.items():
        assert np.array_equal(to_numpy(optimizer.slot(variable, name)), slot), name


# Lookahead and averages


def test_lookahead_without_steps_back_is_the_optimizer_inside():
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


# All of them


@every_wrapper
@pytest.mark.spread
def test_accumulation_inside_is_one_step_on_the_mean(wrapper):
    """Also for what happens in touched rows: those of all micro-steps."""
    make = wrapper.make
    one = Runner(make(), {"k": np.ones((3, 2)), "embeddings": TABLE}, "compiled")
    two = Runner(
        make(gradient_accumulation_steps=2), {"k": np.ones((3, 2)), "embeddings": TABLE}, "compiled"
    )
    rng = np.random.default_rng(1)
    for _ in range(4):
        ids = rng.permutation(5)[:4].astype("int32")
        values = rng.normal(size=(4, 3))
        g = rng.normal(size=(2, 3, 2))
        for part in range(2):
            half = slice(2 * part, 2 * part + 2)
            two.step({"k": g[part], "embeddings": Rows(values[half], ids[half])})
        one.step({"k": g.mean(0), "embeddings": Rows(values / 2, ids)})
    for path, value in one.values.items():
        np.testing.assert_allclose(two.values[path], value, rtol=2e-5, atol=2e-6)
        for name, slot in one.slots[path].items():
            np.testing.assert_allclose(two.slots[path][name], slot, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "wrapper", [c for c in WRAPPERS if "inner_optimizer" in c.refused], ids=lambda case: case.name
)
def test_a_loss_scale_optimizer_belongs_outside(wrapper):
    inner = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    with pytest.raises(ValueError, match=f"LossScaleOptimizer\\({wrapper.name}"):
        wrapper.cls(inner, **wrapper.required)


def test_wrappers_need_no_multi_optimizer(monkeypatch):
    """Keras before 3.15 has none."""
    monkeypatch.delattr(keras.optimizers, "MultiOptimizer", raising=False)
    kernel = make_variable("kernel", np.ones(2))
    optimizer = keras_tfopt.MovingAverage(keras_tfopt.Momentum(0.5, momentum=0.0), 0.5)
    optimizer.apply([np.ones(2)], [kernel])
    with optimizer.averaged(keras.Sequential()):
        pass
    assert to_numpy(kernel).tolist() == [0.5, 0.5]


@several_only
def test_accumulation_inside_of_a_multi_optimizer_is_refused():
    inner = keras_tfopt.Momentum(0.1, gradient_accumulation_steps=2)
    several = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(inner))
    with pytest.raises(ValueError, match="MultiOptimizer outside"):
        keras_tfopt.Lookahead(several).build([make_variable("k", np.ones(2))])


def test_recordings_of_addons_are_read_whole():
    selection = recordings.select(GOLDEN.parent / "tfa", quirks=True)
    assert len(selection.cases) > 100 and any("tables" in line for line in selection.left_out)


# Row gradients of optimizers that are not ours


class Plain(keras.optimizers.Optimizer):
    """Divides the gradient, which IndexedSlices of TensorFlow cannot do."""

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, gradient / 8)


class OfSlices(keras.optimizers.Optimizer):
    """Adds one to the rows that it is given."""

    def update_step(self, gradient, variable, learning_rate):
        ones = keras.ops.ones_like(gradient.values)
        variable.scatter_add(type(gradient)(ones, gradient.indices))


STOCK = [
    keras.optimizers.SGD,
    keras.optimizers.RMSprop,
    keras.optimizers.Adam,
    keras.optimizers.Adadelta,
    keras.optimizers.Adagrad,
    keras.optimizers.Adamax,
    keras.optimizers.Adafactor,
    keras.optimizers.Nadam,
    keras.optimizers.Ftrl,
    Plain,
]


@pytest.mark.parametrize("cls", STOCK)
@pytest.mark.parametrize("options", ({}, {"loss_scale_factor": 2.0}), ids=("", "scaled"))
@every_mode
def test_optimizers_of_others_take_rows_as_their_sum(cls, options, mode):
    start = np.arange(15.0).reshape(5, 3)
    values = np.array([[1.0, -2.0, 0.5], [0.25, 1.0, 1.0], [3.0, 0.5, -1.0]])
    by_rows, dense = (
        Runner(keras_tfopt.MovingAverage(cls(0.1, **options), 0.5), {"embeddings": start}, mode)
        for _ in range(2)
    )
    for indices in ([1, 3, 1], []):
        rows = Rows(values[: len(indices)], np.array(indices, "int32"))
        total = np.zeros((5, 3))
        np.add.at(total, rows.indices, rows.values)
        by_rows.step({"embeddings": rows})
        dense.step({"embeddings": total})
    assert np.any(dense.values["embeddings"] != start)
    np.testing.assert_allclose(by_rows.values["embeddings"], dense.values["embeddings"], rtol=1e-6)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="other backends of Keras have dense gradients")
@every_mode
def test_an_optimizer_that_takes_slices_gets_them(mode):
    inner = keras_tfopt.DecoupledWeightDecay(OfSlices(0.1), 0.5)
    runner = Runner(inner, {"embeddings": np.ones((5, 2))}, mode)
    runner.step({"embeddings": Rows(np.zeros((2, 2)), np.array([3, 1]))})
    assert runner.values["embeddings"][:, 0].tolist() == [1.0, 1.5, 1.0, 1.5, 1.0]


@several_only
@every_mode
def test_rows_stay_rows_for_ours_in_a_multi_optimizer(mode):
    """A row that is named with a gradient of zero moves by its momentum."""
    ours = keras_tfopt.Momentum(0.5, momentum=0.5)
    several = keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(keras.optimizers.SGD(), {"ours/.*": ours})
    )
    values = {"ours/embeddings": np.zeros((3, 1)), "stock": np.zeros((3, 1))}
    runner = Runner(keras_tfopt.MovingAverage(several, 0.5), values, mode)
    for size in (1.0, 0.0):
        rows = Rows(np.full((1, 1), size), np.array([1], "int32"))
        runner.step({"ours/embeddings": rows, "stock": rows})
    assert runner.values["ours/embeddings"].ravel().tolist() == [0.0, -0.75, 0.0]
    np.testing.assert_allclose(runner.values["stock"].ravel(), [0.0, -0.01, 0.0])


@pytest.mark.skipif(BACKEND != "tensorflow", reason="about XLA in TensorFlow")
@pytest.mark.parametrize("layer", (keras.layers.Embedding, keras_tfopt.layers.Embedding))
def test_a_short_last_batch_of_rows_compiled_by_xla(layer):
    """From then on, TensorFlow knows no number of rows, which XLA wants to know."""
    ends = []
    for jit_compile in (True, False):
        inner = keras_tfopt.DropStale(keras.optimizers.Adadelta(0.5), 1)
        model = keras.Sequential([keras.Input((2,), dtype="int32"), layer(6, 3)])
        model.layers[0].set_weights([TABLE])
        optimizer = keras_tfopt.ElasticAverage(inner, 2, rho=0.1)
        model.compile(optimizer, loss="mse", jit_compile=jit_compile)
        x = np.array([[1, 2], [1, 1], [4, 5], [5, 1], [2, 2]])
        model.fit(x, np.zeros((5, 2, 3)), batch_size=2, epochs=2, shuffle=False, verbose=0)
        ends.append(model.get_weights()[0])
    assert np.any(ends[0][[1, 2, 4, 5]] != TABLE[[1, 2, 4, 5]])
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-6)


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
@every_mode
def test_optimizers_of_others_accumulate_half_precision(mode, dtype):
    inner = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    runner = Runner(keras_tfopt.Multitask(inner), {"k": np.ones(2)}, mode, dtype)
    for g in (0.25, 0.75):
        runner.step({"k": np.full(2, g)})
    assert runner.values["k"].tolist() == [0.5, 0.5]


# State that an optimizer of Keras keeps as an attribute


AROUND = {
    "wrapper": lambda inner: keras_tfopt.MovingAverage(inner, 0.5),
    "center": lambda inner: keras_tfopt.AGN(inner, 1),
    "scaled": lambda inner: keras_tfopt.LossScaleOptimizer(inner, initial_scale=1.0),
    "scaled by Keras": lambda inner: keras.optimizers.LossScaleOptimizer(
        keras_tfopt.Multitask(inner), initial_scale=1.0
    ),
}


@pytest.mark.parametrize("around", AROUND)
@every_mode
def test_the_product_of_keras_nadam_is_state(around, mode):
    start, plan = {"k": np.ones(3)}, np.random.default_rng(0).normal(size=(4, 3))
    alone = Runner(keras.optimizers.Nadam(0.1), start)
    runner, other = (Runner(AROUND[around](keras.optimizers.Nadam(0.1)), start, mode) for _ in "ab")
    for g in plan[:3]:
        runner.step({"k": g})
        alone.step({"k": g})
    if around != "center":  # which is where another Nadam moves it
        np.testing.assert_allclose(runner.values["k"], alone.values["k"], rtol=1e-6)
    state = [to_numpy(v) for v in runner.optimizer.variables]
    if around == "scaled by Keras":  # whose `set_weights` forgets the optimizer inside
        for variable, value in zip(other.optimizer.variables, state, strict=True):
            variable.assign(value)
    else:
        other.optimizer.set_weights(state)
    other.variables[0].assign(runner.values["k"])
    for each in (runner, other):
        each.step({"k": plan[3]})
    assert np.array_equal(runner.values["k"], other.values["k"])
