"""What every optimizer must do, for the backend of this run: every Case x every invariant.

Slower modes of running a step share the rule and the engine with the faster ones, so each
invariant is checked in the modes where it could break, and the match with the reference in all.
"""

import inspect
import json

import keras
import numpy as np
import pytest

import keras_tfopt
from tests import stepping
from tests.cases import CASES, FEW, every_case, gradients, initial, keras_options
from tests.stepping import MODES, Rows, Runner, make_variable, to_numpy

every_mode = pytest.mark.parametrize("mode", MODES)
eager_and_compiled = pytest.mark.parametrize("mode", ("eager", "compiled"))


def main_variant_in_all_modes(others):
    """And the other branches of the rule in the modes `others`."""
    params = [
        pytest.param(case, variant, mode, id=f"{case.name}-{variant}-{mode}")
        for case in CASES
        for variant in case.variants
        for mode in (MODES if variant == case.main else others)
    ]
    return pytest.mark.parametrize(("case", "variant", "mode"), params)


def assert_close(actual, expected, tolerance, what, relative=None):
    """Largest error, relative to `relative` or else to max(1, |expected|), is below tolerance."""
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, not {expected.shape}"
    if not actual.size:
        return
    scale = np.maximum(1.0, np.abs(expected)) if relative is None else relative
    error = np.abs(actual.astype("float64") - expected)
    worst = np.max(error / scale)
    assert worst <= tolerance, f"{what}: error {worst:.2e}, allowed {tolerance:.0e}"


def follow(runner, reference, plan, tolerance):
    """Step both, and compare every variable and slot after every step.

    The reference computes in float64, from the very numbers that the optimizer gets. So float32
    is compared with the true value of the formula and not with other roundings of it, which would
    share such mistakes as 1 - float32(0.999). Slots are compared relative to the largest number
    they have held: second moments can be all below the tolerance, and sums can cancel.
    """
    largest = {}
    x = {path: value.astype("float64") for path, value in runner.values.items()}
    s = reference.start(x)
    for step, grads in enumerate(plan, start=1):
        runner.step(grads)
        x, s = reference.advance(grads, x, s, step)
        values, slots = runner.values, runner.slots
        assert set(slots) == set(s)
        for path, expected in x.items():
            assert_close(values[path], expected, tolerance, f"{path} after step {step}")
        for path in s:
            assert set(slots[path]) == set(s[path])
            for name, expected in s[path].items():
                scale = max(largest.get((path, name), 0.0), np.max(np.abs(expected), initial=0.0))
                largest[path, name] = scale
                what = f"slot {name} of {path} after step {step}"
                assert_close(slots[path][name], expected, tolerance, what, scale or 1e-300)


# Numbers


@pytest.mark.formula
@main_variant_in_all_modes(others=("eager", "compiled"))
def test_matches_its_reference_in_float32(case, variant, mode):
    runner = Runner(case.make(variant), initial("float32"), mode, "float32")
    tolerance = case.tolerance("float32", variant, mode)
    follow(runner, case.make_reference(variant), gradients("float32"), tolerance)


@pytest.mark.formula
@main_variant_in_all_modes(others=("eager",))
def test_matches_its_reference_in_float64(case, variant, mode):
    runner = Runner(case.make(variant), initial("float64"), mode, "float64")
    tolerance = case.tolerance("float64", variant, mode)
    follow(runner, case.make_reference(variant), gradients("float64"), tolerance)


@every_case("case")
def test_a_schedule_is_read_at_every_step(case):
    def halving(count):
        return 0.1 * 0.5**count

    class Halving(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.1 * 0.5 ** keras.ops.cast(step, "float32")

    reference = case.make_reference()
    reference.learning_rate = halving
    runner = Runner(case.make(learning_rate=Halving()), initial(paths=FEW), "compiled")
    follow(runner, reference, gradients(steps=("normal",) * 3, paths=FEW), case.tolerance())


@every_case("case")
def test_an_assigned_learning_rate_counts_from_the_next_step(case):
    reference = case.make_reference()
    reference.learning_rate = lambda count: (0.125, 0.125, 0.5)[count]
    runner = Runner(case.make(learning_rate=0.125), initial(paths=FEW), "compiled")
    step, plan = runner.step, gradients(steps=("normal",) * 3, paths=FEW)

    def assign_before_the_third(grads):
        if grads is plan[2]:
            runner.optimizer.learning_rate = 0.5
        step(grads)

    runner.step = assign_before_the_third
    follow(runner, reference, plan, case.tolerance())


# Row gradients


@pytest.mark.formula
@every_case("case")
def test_class_and_reference_agree_on_row_gradients(case):
    assert case.sparse == case.make_reference().sparse
    assert case.cls.sparse in ("dense", "rows", "move_rows")
    assert case.scope in ("element", "variable", "model")


def row_pair(case, mode, table, momentum_steps=2):
    """Two runners in the same state in mid-training: a row variable, and the same as a kernel."""
    rng = np.random.default_rng(0)
    by_rows = Runner(case.make(), {"embeddings": table}, mode)
    dense = Runner(case.make(), {"kernel": table}, mode)
    for _ in range(momentum_steps):
        g = rng.normal(size=table.shape)
        every_row = Rows(g, np.arange(len(table), dtype="int32"))
        by_rows.step({"embeddings": every_row})
        dense.step({"kernel": g})
    for source, target in zip(by_rows.optimizer.variables, dense.optimizer.variables):
        target.assign(source.value)
    dense.variables[0].assign(by_rows.variables[0].value)
    return by_rows, dense


def exchanged(case):
    """Slots of what workers have in common: they follow at an exchange, maybe after the step."""
    is_over_workers = issubclass(case.cls, keras_tfopt.distributed.OverWorkers)
    return case.moves_everywhere if is_over_workers else ()


@every_case("case")
@every_mode
def test_row_update_is_the_dense_update_on_touched_rows(case, mode):
    table = np.random.default_rng(3).normal(size=(9, 4)).astype("float32")
    by_rows, dense = row_pair(case, mode, table)
    before, slots_before = by_rows.values["embeddings"], by_rows.slots

    values = np.random.default_rng(4).normal(size=(3, 4)).astype("float32")
    touched = np.array([6, 0, 3], "int32")
    resting = np.setdiff1d(np.arange(9), touched)
    by_rows.step({"embeddings": Rows(values, touched)})
    g = np.zeros_like(table)
    g[touched] = values
    dense.step({"kernel": g})

    after, slots_after = by_rows.values["embeddings"], by_rows.slots
    assert np.all(after[touched] != before[touched])
    in_rows, moves_in_rows = case.sparse == "rows", case.sparse in ("rows", "move_rows")
    assert np.array_equal(after[resting], before[resting]) == moves_in_rows
    if in_rows:
        for name, slot in slots_after["embeddings"].items():
            slot_before = slots_before["embeddings"][name]
            if slot.shape[:1] != table.shape[:1]:
                continue  # not of rows
            if name in exchanged(case):
                continue
            stays = name not in case.moves_everywhere
            assert np.array_equal(slot[resting], slot_before[resting]) == stays, name
            assert not np.array_equal(slot[touched], slot_before[touched]), name

    if in_rows and case.scope != "element":
        return  # norms over some rows are not norms over all: only the reference knows these rows
    rows = touched if moves_in_rows or case.acts_in_rows else slice(None)
    # The same arithmetic on other shapes may be fused otherwise: the last bits are free.
    assert_close(after[rows], dense.values["kernel"][rows], 2e-7, "embeddings")
    owner, twin = (None, None) if case.scope == "model" else ("embeddings", "kernel")
    for name, slot in dense.slots[twin].items():
        slot_rows = touched if in_rows or name in case.told_rows else slice(None)
        slot_rows = slot_rows if slot.ndim else ()
        largest = np.max(np.abs(slot[slot_rows])) or 1.0
        assert_close(slots_after[owner][name][slot_rows], slot[slot_rows], 2e-7, name, largest)


@every_case("case")
@every_mode
def test_repeated_rows_are_summed(case, mode):
    table = np.random.default_rng(5).normal(size=(8, 2))
    rng = np.random.default_rng(6)
    values = rng.integers(-8, 8, size=(6, 2)) / 8 + 1 / 16  # sums are exact in any order
    indices = np.array([5, 1, 5, 5, 7, 1], "int32")
    once = np.array([1, 5, 7], "int32")
    summed = np.stack([values[indices == row].sum(0) for row in once])

    repeated = Runner(case.make(), {"embeddings": table}, mode)
    distinct = Runner(case.make(), {"embeddings": table}, mode)
    for _ in range(2):
        repeated.step({"embeddings": Rows(values, indices)})
        distinct.step({"embeddings": Rows(summed, once)})
    for a, b in zip(repeated.snapshot(), distinct.snapshot(), strict=True):
        assert_close(a, b, 1e-7, "repeated and summed")
    assert np.max(np.abs(repeated.values["embeddings"] - table)) > 1e-4


@every_case("case")
@eager_and_compiled
def test_no_rows_at_all(case, mode):
    """An empty index list: a step of nothing for rows, of zeros for a rule that sees all rows."""
    table = np.random.default_rng(7).normal(size=(4, 3)).astype("float32")
    runner = Runner(case.make(), {"embeddings": table, "bias": np.ones(2)}, mode)
    every_row = Rows(np.ones((4, 3)), np.arange(4, dtype="int32"))
    none = Rows(np.zeros((0, 3)), np.zeros(0, "int32"))
    plan = [{"embeddings": g, "bias": np.ones(2)} for g in (every_row, none, every_row)]
    follow(runner, case.make_reference(), plan, case.tolerance())


@every_case("case")
@eager_and_compiled
def test_a_dense_gradient_touches_the_rows_that_are_not_zero(case, mode):
    """What ordinary training hands over on JAX and torch: dense, for a variable of rows."""
    table = np.random.default_rng(8).normal(size=(6, 3)).astype("float32")
    dense = Runner(case.make(), {"table/embeddings": table}, mode)
    by_rows = Runner(case.make(), {"table/embeddings": table}, mode)
    rng = np.random.default_rng(9)
    for rows in ([1, 4], [0, 4], [5]):
        values = rng.normal(size=(len(rows), 3)).astype("float32")
        values[0, 0] = 0.0  # a zero within a row does not make it an untouched one
        g = np.zeros_like(table)
        g[rows] = values
        dense.step({"table/embeddings": g})
        by_rows.step({"table/embeddings": Rows(values, np.array(rows, "int32"))})
    a, b = dense.values["table/embeddings"], by_rows.values["table/embeddings"]
    assert_close(a, b, 2e-7, "table")
    if case.sparse == "rows":
        assert np.array_equal(a[[2, 3]], table[[2, 3]])


@every_case("case")
@eager_and_compiled
def test_explicit_rows_are_touched_even_with_zero_gradient(case, mode):
    table = np.ones((3, 2))
    runner = Runner(case.make(), {"embeddings": table}, mode)
    runner.step({"embeddings": Rows(np.ones((3, 2)), np.arange(3, dtype="int32"))})
    before = runner.values["embeddings"]
    runner.step({"embeddings": Rows(np.zeros((2, 2)), np.array([1, 1], "int32"))})
    moved = np.any(runner.values["embeddings"] != before, axis=1)
    reference = case.make_reference()
    x = {"embeddings": table}
    s = reference.start(x)
    for step, rows in enumerate((range(3), [1]), start=1):
        g = (np.full((len(rows), 2), 2.0 - step), list(rows))
        last, (x, s) = x, reference.advance({"embeddings": g}, x, s, step)
    expected = np.any(x["embeddings"] != last["embeddings"], axis=1)
    assert moved.tolist() == expected.tolist()  # without momentum or penalty it stays, too


def native_rows(rows, shape):
    """The backend's own kind of row gradient."""
    values = keras.ops.convert_to_tensor(rows.values, dtype="float32")
    indices = keras.ops.convert_to_tensor(rows.indices)
    if stepping.BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.IndexedSlices(values, indices, tf.constant(shape, indices.dtype))
    import torch

    return torch.sparse_coo_tensor(indices[None], values, shape)


@every_case("case")
@every_mode
@pytest.mark.backends("tensorflow", "torch", reason="JAX has no row gradients of its own")
def test_native_row_gradients(case, mode):
    """Repeated rows are summed; a row is touched where the sum is not zero, as in any training."""
    table = np.random.default_rng(10).normal(size=(6, 3)).astype("float32")
    native = Runner(case.make(), {"table/embeddings": table}, mode)
    explicit = Runner(case.make(), {"table/embeddings": table}, mode)
    values = np.random.default_rng(11).integers(-8, 8, size=(6, 3)) / 8 + 1 / 16
    values[3] = -values[1]  # row 2 comes twice and cancels, row 5 comes with zeros
    values[4] = 0.0
    indices = np.array([1, 2, 1, 2, 5, 4], "int32")
    sums = Rows(np.stack([values[0] + values[2], values[5]]), np.array([1, 4], "int32"))
    for _ in range(2):
        g = native_rows(Rows(values, indices), table.shape)
        native.step({"table/embeddings": g})
        explicit.step({"table/embeddings": sums})
    for a, b in zip(native.snapshot(), explicit.snapshot(), strict=True):
        assert_close(a, b, 2e-7, "native and explicit")
    after = native.values["table/embeddings"]
    assert np.all(after[[1, 4]] != table[[1, 4]])
    if case.sparse != "dense":
        assert np.array_equal(after[[0, 2, 3, 5]], table[[0, 2, 3, 5]])


# Programs


@every_case("case")
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("eager", "fast")])
def test_no_retrace_at_the_second_step(case, mode):
    runner = Runner(case.make(), initial(paths=FEW), mode)
    before = runner.traces()
    first, second, *rest = gradients(paths=FEW)
    runner.step(first)
    runner.step(second)
    built = runner.traces()
    for grads in rest:
        runner.step(grads)
    assert runner.traces() == built
    if stepping.BACKEND != "torch":
        assert (before, built) == (0, 1)
    elif case.scope == "element":
        assert built >= 1  # counted over the process: optimizers of equal hyperparameters share


# Kinds of variables


@every_case("case")
@pytest.mark.parametrize("dtype", ("float16", "bfloat16", "float32", "float64"))
@eager_and_compiled
def test_dtype_and_shape_are_kept(case, dtype, mode):
    ranks = ("scale", "layer/kernel", "conv/kernel", "table/embeddings", "frozen")
    runner = Runner(case.make(), initial("float32", ranks), mode, dtype)
    variables = (*runner.variables, *runner.optimizer.variables)
    kinds = [(v.path, v.dtype, tuple(v.shape)) for v in variables]
    start = runner.snapshot()
    for grads in gradients(steps=("normal", "normal"), paths=ranks):
        runner.step(grads)
    assert [(v.path, v.dtype, tuple(v.shape)) for v in variables] == kinds
    for v in variables:
        assert keras.backend.standardize_dtype(v.value.dtype) == v.dtype
        assert tuple(v.value.shape) == tuple(v.shape)
        assert np.all(np.isfinite(to_numpy(v))), v.path
    owners = [None] if case.scope == "model" else runner.variables
    for owner in owners:
        for slot in stepping.slots_of(runner.optimizer, owner).values():
            # half precision cannot hold moments: 0.999 is 1 there
            assert slot.dtype == ("float32" if dtype in ("float16", "bfloat16") else dtype)
    assert all(v.dtype == dtype for v in runner.variables)
    moved = [not np.array_equal(a, b) for a, b in zip(start, runner.snapshot())]
    assert any(moved[: len(runner.variables)])


@every_case("case")
@eager_and_compiled
def test_a_variable_without_gradient_rests_with_its_slots(case, mode):
    both = {"a/kernel": np.ones((2, 3)), "b/kernel": np.full((3,), 2.0)}
    runner = Runner(case.make(), both, mode)
    runner.step({path: np.ones_like(value) for path, value in both.items()})
    values, slots = runner.values, runner.slots
    runner.step({"b/kernel": np.ones(3)})
    assert np.array_equal(runner.values["a/kernel"], values["a/kernel"])
    for name, slot in slots.get("a/kernel", {}).items():  # none of its own with scope "model"
        assert name in exchanged(case) or np.array_equal(runner.slots["a/kernel"][name], slot), name
    assert np.all(runner.values["b/kernel"] != values["b/kernel"])
    assert int(to_numpy(runner.optimizer.iterations)) == 2


@every_case("case")
@every_mode
def test_empty_and_scalar_variables(case, mode):
    shapes = {"none": (0,), "rows/kernel": (0, 3), "columns/kernel": (3, 0), "scalar": ()}
    values = {path: np.ones(shape) for path, shape in shapes.items()}
    values["none/embeddings"] = np.ones((0, 2))
    values["one"] = np.ones((1,))
    grads = {path: 0.5 * value for path, value in values.items()}
    grads["none/embeddings"] = Rows(np.ones((0, 2)), np.zeros(0, "int32"))
    runner = Runner(case.make(), values, mode)
    follow(runner, case.make_reference(), [grads] * 2, case.tolerance())
    assert runner.values["scalar"] != 1.0


# State


def innermost(optimizer):
    """The optimizer inside of a wrapper, or the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def innermost_config(serialized):
    return serialized["config"].get("inner_optimizer", serialized)["config"]


@pytest.mark.formula
@every_case("case", "variant")
def test_config_round_trip(case, variant):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    base = {
        "name": "mine",
        "clipnorm": 2.0,
        "use_ema": True,
        "ema_momentum": 0.9,
        "loss_scale_factor": 8.0,
        "gradient_accumulation_steps": 2,
        "row_variables": [r"table$", r"lookup$"],
        "master_weights": True,
        "maximize": True,
    }
    for changes in ({}, {"learning_rate": 1}, {"learning_rate": schedule}, base):
        optimizer = case.make(variant, **changes)
        config = json.loads(json.dumps(keras.saving.serialize_keras_object(optimizer)))
        assert config["registered_name"] == f"keras_tfopt>{case.name}"
        again = keras.saving.deserialize_keras_object(config)
        assert type(again) is case.cls
        assert type(innermost(again)) is (case.inner or case.cls)
        assert again.get_config() == optimizer.get_config()
        assert case.cls.from_config(optimizer.get_config()).get_config() == optimizer.get_config()

        given = {**case.variants[variant], **changes}
        for name, value in given.items():
            if name == "learning_rate":
                continue
            holder, holder_config = again, config["config"]
            if name not in holder_config or name in base and name != "name":
                holder, holder_config = innermost(again), innermost_config(config)
            if callable(value):
                assert holder_config[name] == keras.saving.serialize_keras_object(value), name
            else:
                assert holder_config[name] == value, name
            holder = holder if hasattr(holder, name) else innermost(holder)
            assert getattr(holder, name) == value, name
        rate = innermost(again)._learning_rate
        if changes.get("learning_rate") is schedule:
            assert rate.get_config() == schedule.get_config()
        elif "learning_rate" in given:
            assert to_numpy(rate) == np.float32(given["learning_rate"])


@pytest.mark.formula
@every_case("case")
def test_config_holds_every_argument_of_the_constructor(case):
    parameters = inspect.signature(case.cls.__init__).parameters.values()
    arguments = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD} - {"self"}
    arguments -= {"maximize"}  # which is saved where it is set
    arguments -= set(getattr(case.cls, "unsaved", ()))
    config = case.make().get_config()
    assert arguments <= set(config)
    if case.inner is None:  # a wrapper's options are those of the optimizer inside
        assert keras_options() | {"row_variables", "master_weights"} <= set(config)


def is_required(parameter):
    return parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD


@pytest.mark.formula
@every_case("case")
def test_defaults_are_those_of_the_reference(case):
    """The reference has its defaults from the paper's and TF1's signature, not from the class."""
    config = case.build().get_config()
    parameters = inspect.signature(case.reference.__init__).parameters
    assert set(case.required) == {n for n, p in parameters.items() if is_required(p)} - {"self"}
    for name, parameter in parameters.items():
        if name not in ("self", "inner", "arguments", *case.required):
            default = parameter.default
            if name == "learning_rate":
                default = float(np.float32(default))  # Keras holds it in float32
            assert config[name] == default and type(config[name]) is type(default), name


@main_variant_in_all_modes(others=("eager",))
def test_weights_round_trip_in_mid_training(case, variant, mode):
    plan = gradients(steps=("normal",) * 5, paths=FEW)
    trained = Runner(case.make(variant), initial(paths=FEW), mode)
    for grads in plan[:3]:
        trained.step(grads)
    store = {}
    trained.optimizer.save_own_variables(store)
    store_inner = {}
    innermost(trained.optimizer).save_own_variables(store_inner)

    restored = Runner(case.make(variant), trained.values, mode)
    restored.optimizer.load_own_variables({key: np.array(store[key]) for key in store})
    innermost(restored.optimizer).load_own_variables(store_inner)
    for a, b in zip(trained.snapshot(), restored.snapshot(), strict=True):
        assert np.array_equal(a, b)
    for grads in plan[3:]:
        start = trained.snapshot()
        trained.step(grads)
        restored.step(grads)
        for a, b in zip(trained.snapshot(), restored.snapshot(), strict=True):
            assert np.array_equal(a, b)
        assert any(not np.array_equal(a, b) for a, b in zip(start, trained.snapshot()))


@pytest.mark.slow
@every_case("case")
def test_a_saved_model_trains_on_to_the_bit(case, tmp_path):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.layers.Embedding(6, 3), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    model.compile(optimizer=case.make(), loss="mse")
    rng = np.random.default_rng(0)
    batches = [
        (rng.integers(0, 6, size=(4, 5)), rng.normal(size=(4, 2)).astype("float32"))
        for _ in range(4)
    ]
    for x, y in batches[:2]:
        model.train_on_batch(x, y)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert type(again.optimizer) is case.cls
    for x, y in batches[2:]:
        before = model.get_weights()
        model.train_on_batch(x, y)
        again.train_on_batch(x, y)
        for a, b, start in zip(model.get_weights(), again.get_weights(), before, strict=True):
            assert np.array_equal(a, b)
            assert not np.array_equal(a, start)


@pytest.mark.formula
@every_case("case")
def test_slots_are_reached_by_name(case):
    optimizer = case.make()
    variable, other = make_variable("a/kernel", np.ones((2, 3))), make_variable("b", np.ones(2))
    optimizer.build([variable, other])
    owners = {"a/kernel": variable, "b": other, None: None}
    slots = case.make_reference().start({"a/kernel": np.ones((2, 3)), "b": np.ones(2)})
    found = []
    assert set(optimizer.slot_names) == {name for owned in slots.values() for name in owned}
    for path in slots:
        for name, expected in slots[path].items():
            slot = optimizer.slot(owners[path], name)
            assert isinstance(slot, keras.Variable) and tuple(slot.shape) == expected.shape
            found.append(slot)
    assert len({id(slot) for slot in found}) == len(found)
    assert {id(slot) for slot in found} <= {id(v) for v in optimizer.variables}
    with pytest.raises(KeyError) as error:
        optimizer.slot(owners[path], "nonsense")
    assert all(name in str(error.value) for name in ("nonsense", *slots[path]))


# Minima


@pytest.mark.spread
@every_case("case")
def test_converges_on_a_quadratic(case):
    make_arguments, steps = case.quadratic
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    matrix = basis @ np.diag([0.3, 0.6, 1.0, 3.0]) @ basis.T  # condition 10
    target = np.array([1.0, -2.0, 0.5, 1.5])
    runner = Runner(
        case.build(**make_arguments()), {"x": np.array([3.0, 1.0, -1.0, 0.1])}, "compiled"
    )
    for _ in range(steps):
        runner.step({"x": matrix @ (runner.values["x"] - target)})
    assert np.max(np.abs(runner.values["x"] - target)) < 1e-2


@pytest.mark.spread
@every_case("case")
def test_converges_on_rosenbrock(case):
    make_arguments, steps = case.rosenbrock
    runner = Runner(case.build(**make_arguments()), {"x": np.array([-1.2, 1.0])}, "compiled")
    for _ in range(steps):
        a, b = (float(value) for value in runner.values["x"])
        runner.step({"x": np.array([-2 * (1 - a) - 400 * a * (b - a * a), 200 * (b - a * a)])})
    assert np.max(np.abs(runner.values["x"] - 1.0)) < 0.05


def test_every_public_optimizer_has_a_case():
    public = [getattr(keras_tfopt, name) for name in keras_tfopt.__all__]
    optimizers = {
        item
        for item in public
        if inspect.isclass(item) and issubclass(item, keras.optimizers.Optimizer)
    }
    # Base classes, and what only passes gradients on: test_base_options.py.
    others = {item for item in optimizers if item.__module__.count(".") == 1}
    assert others == {keras_tfopt.Rule, keras_tfopt.Wrapper, keras_tfopt.LossScaleOptimizer}
    assert optimizers - others == {case.cls for case in CASES}
    assert len({case.reference for case in CASES}) == len(CASES)
