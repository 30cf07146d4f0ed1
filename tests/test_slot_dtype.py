"""`slot_dtype`: optimizers whose slots are int8 or bfloat16."""

import ast
import itertools
import math
import re

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from tests.cases import RULES
from tests.cells import pick
from tests.helpers.options import CASE
from tests.helpers.stepping import (
    MODES,
    Rows,
    Runner,
    every_mode,
    make_variable,
    to_numpy,
)
from tests.reference import slot_dtype as reference

# Rules

SHAPES = {"a/kernel": (70, 61), "b/kernel": (32, 256), "small": (50,)}
FITS = [case for case in RULES if case.scope == "element"]


def stored(name, value, dtype, signed, step):
    """Return the numbers that a slot of this dtype keeps of an array."""
    if value.size < 4096 or dtype == "float32":
        return value
    if dtype == "bfloat16":
        return reference.rounded(value, step, name).astype("float64")
    return reference.decode(*reference.encode(value, signed), signed)


def follow(
    case,
    dtype,
    mode,
    steps=3,
    shapes=SHAPES,
    around=lambda rule: rule,
    watch=None,
    tolerance=1e-4,
):
    """Compare steps with the reference, whose slots are stored in the same dtype.

    Args:
        around: Returns the optimizer that makes the steps, with the rule inside. It must move the
            variables as the rule alone does.
        watch: Is called with the runner at the start and after each step.
        tolerance: The largest error of a variable, as a part of its largest value.
    """
    rng = np.random.default_rng(3)
    start = {path: rng.normal(size=shape).astype("float32") for path, shape in shapes.items()}
    rule = case.make(slot_dtype=dtype)
    runner = Runner(around(rule), start, mode)
    watch = watch or (lambda runner: None)
    watch(runner)
    formula = case.make_reference()
    x = {path: value.astype("float64") for path, value in start.items()}
    s = formula.start(x)
    for path, slots in runner.slots.items():  # initial values are rounded
        s[path] = {name: slots[name].astype("float64") for name in s[path]}
    signs = {n: slot.signed for n, slot in rule.slots(rule._state.entries[0].like).items()}
    for step in range(1, steps + 1):
        grads = {p: (rng.normal(size=v.shape) * 0.5).astype("float32") for p, v in start.items()}
        runner.step(grads)
        watch(runner)
        x, s = formula.advance(grads, x, s, step)
        found, slots = runner.values, runner.slots
        for path, value in x.items():
            for name, slot in s[path].items():
                kept = stored(name, np.asarray(slot), dtype, signs[name], step)
                mine = slots[path][name].astype("float64")
                # Near the border of two codes, rounding in float32 decides.
                scale = np.maximum(np.abs(slot), 1e-3 * np.max(np.abs(slot), initial=0.0))
                off = np.abs(mine - kept) > 1e-4 * scale
                assert np.mean(off) < 0.01, (path, name, step, np.mean(off))
                s[path][name] = mine  # continue from the same state
            error = np.abs(found[path] - value)
            assert np.max(error) <= tolerance * max(1.0, np.max(np.abs(value))), (path, step)
            x[path] = found[path].astype("float64")


def rules_and_dtypes(mode):
    """Yield each rule with each dtype. For compiled code, that of every third rule is enough.

    JAX compiles each operation of a plain step, and PyTorch takes long to compile int8.
    """
    for case, dtype in itertools.product(FITS, ("int8", "bfloat16")):
        rare = mode == "compiled" and not pick((True, False, False), case.name, dtype)
        marks = [pytest.mark.exhaustive] * rare
        if mode == "eager":
            marks.append(pytest.mark.spread("torch"))
        elif dtype == "int8":
            marks.append(pytest.mark.spread("jax"))
        yield pytest.param(case, dtype, mode, id=f"{mode}-{dtype}-{case.name}", marks=marks)


@pytest.mark.spread
@pytest.mark.parametrize(
    ("case", "dtype", "mode"), [*rules_and_dtypes("eager"), *rules_and_dtypes("compiled")]
)
def test_rules_match_their_references(case, dtype, mode):
    follow(case, dtype, mode)


@every_mode
@pytest.mark.parametrize("dtype", ("int8", "bfloat16"))
def test_adam_in_all_modes(dtype, mode):
    follow(CASE["Adam"], dtype, mode)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "eager"])
@pytest.mark.parametrize("name", ("Adam", "Momentum"))
def test_large_variables_in_parts(name, mode):
    """Compiled steps take these in parts. The last part and its last block are shorter.

    Adam is in a wrapper, whose hooks see the same parts.
    """
    shapes = {"kernel": (1100, 601), "even": (1024, 512)}
    averages, options = {}, {}

    def watch(runner):
        slots = runner.slots
        for path, value in runner.values.items():
            averages[path] = 0.9 * averages.get(path, value) + 0.1 * value
            np.testing.assert_allclose(slots[path]["average"], averages[path], rtol=1e-5, atol=1e-6)

    if name == "Adam":
        options = {"around": lambda rule: keras_tfopt.MovingAverage(rule, 0.9), "watch": watch}
    follow(CASE[name], "int8", mode, steps=2, shapes=shapes, **options)


def test_rules_with_norms():
    """One variable is alone in a call of compiled code on PyTorch, the others share one."""
    shapes = {"large": (512, 512), "kernel": (4, 1024), "table": (2, 4096), "bias": (33,)}
    follow(CASE["LAMB"], "int8", "compiled", steps=2, shapes=shapes, tolerance=1e-6)


# Which slots


def dtypes_of(optimizer):
    roles = zip(optimizer._roles(), optimizer.variables, strict=True)
    return {role: v.dtype for role, v in roles if role not in ("iteration", "learning_rate")}


def built(optimizer, **shapes):
    variables = [make_variable(path, np.ones(shape)) for path, shape in shapes.items()]
    optimizer.build(variables)
    return optimizer, variables


def test_names_and_numbers_of_slots():
    optimizer, (variable,) = built(keras_tfopt.Adam(slot_dtype="int8"), many=(64, 64))
    assert optimizer.slot_names == ("m", "v")
    slot = optimizer.slot(variable, "m")
    slot.assign(np.full((64, 64), 0.25))
    assert float(ops.sum(slot)) == float(ops.sum(slot.value)) == 1024
    assert float(np.sum(slot)) == 1024


def test_small_variables_tables_and_master_weights_stay_float32():
    optimizer, variables = built(
        keras_tfopt.Adam(slot_dtype="int8", groups={"chosen": {"slot_dtype": "bfloat16"}}),
        **{"few": (4095,), "many": (64, 64), "a/embeddings": (100, 64)},
        **{"chosen/embeddings": (100, 64)},
    )
    kept = [optimizer.slot(v, "m") for v in variables]
    assert [type(slot).__name__ == "DecodedSlot" for slot in kept] == [False, True, False, False]
    assert [slot.dtype for slot in kept] == ["float32", "float32", "float32", "bfloat16"]
    half = make_variable("half", np.ones((64, 64)), "bfloat16")
    masters = keras_tfopt.Adam(0.1, slot_dtype="int8", master_weights=True)
    masters.build([half])
    assert masters.slot(half, "master_weight").dtype == "float32"
    with keras_tfopt.engine.plain():
        masters.apply([ops.ones((64, 64), "bfloat16")], [half])
    assert np.all(to_numpy(half) < 1)


def test_slots_by_name_and_state_in_bytes():
    optimizer, _ = built(keras_tfopt.Adam(slot_dtype={"m": "bfloat16", "v": "int8"}), x=(128, 256))
    found = dtypes_of(optimizer)
    assert (found["m"], found["v"], found["v_scales"]) == ("bfloat16", "uint8", "float32")
    again = keras_tfopt.Adam.from_config(optimizer.get_config())
    assert again.slot_dtype == {"m": "bfloat16", "v": "int8"}
    whole, _ = built(keras_tfopt.Adam(slot_dtype="int8"), x=(128, 256))
    sizes = {"uint8": 1, "float32": 4, "int32": 4, "int64": 8}
    names = ("m", "m_scales", "v", "v_scales")
    kept = [v for role, v in zip(whole._roles(), whole.variables, strict=True) if role in names]
    assert sum(sizes[v.dtype] * math.prod(v.shape) for v in kept) / (128 * 256) <= 2.1


def test_rules_with_slots_of_other_shapes():
    shapes = {"x": (64, 64)}
    with pytest.raises(ValueError, match="keeps slots of other shapes .* Leave it out"):
        built(keras_tfopt.Shampoo(slot_dtype="int8"), **shapes)
    with pytest.raises(ValueError, match="slot 'Q_0' of SOAP has the shape"):
        built(keras_tfopt.SOAP(slot_dtype={"Q_0": "int8"}), **shapes)
    for rule in (keras_tfopt.SOAP, keras_tfopt.DistributedShampoo):
        with pytest.raises(ValueError, match="keeps slots of other shapes") as caught:
            built(rule(slot_dtype="int8"), **shapes)
        named = ast.literal_eval(re.search(r"slot_dtype=(\{.*\})", str(caught.value)).group(1))
        optimizer, _ = built(rule(slot_dtype=named), **shapes)
        assert named and all(dtypes_of(optimizer)[name] == "uint8" for name in named)
    with pytest.raises(ValueError, match="slot_dtype.*must be"):
        keras_tfopt.Prodigy(slot_dtype="bfloat16")
    with pytest.raises(ValueError, match="slot 'lead' of ScheduleFreeAdamW has the dtype float32"):
        built(keras_tfopt.ScheduleFreeAdamW(slot_dtype={"lead": "int8"}), **shapes)
    optimizer, _ = built(keras_tfopt.ScheduleFreeAdamW(slot_dtype="int8"), **shapes)
    assert (dtypes_of(optimizer)["lead"], dtypes_of(optimizer)["v"]) == ("float32", "uint8")


@pytest.mark.spread
@pytest.mark.parametrize("wrong", ("int4", "float16", "", 8, None, ["int8"], {"m": 8}, {1: "int8"}))
def test_bad_slot_dtypes(wrong):
    with pytest.raises((TypeError, ValueError), match="slot_dtype"):
        keras_tfopt.Adam(slot_dtype=wrong)
    with pytest.raises((TypeError, ValueError), match="slot_dtype"):
        keras_tfopt.Adam(groups={".": {"slot_dtype": wrong}})


def test_an_unknown_slot_is_named():
    optimizer = keras_tfopt.Adam(slot_dtype={"momentum": "int8"})
    with pytest.raises(ValueError, match="has no slot 'momentum'"):
        optimizer.build([make_variable("x", np.ones((64, 64)))])
    assert not optimizer.built and len(optimizer.variables) == 2


@pytest.mark.spread("torch")
def test_a_slot_is_read_and_assigned_as_numbers():
    optimizer, (x,) = built(keras_tfopt.Adam(slot_dtype="int8"), x=(64, 70))
    slot = optimizer.slot(x, "m")
    given = reference.sample((64, 70))
    slot.assign(given)
    expected = reference.decode(*reference.encode(given, True), True)
    assert np.mean(np.abs(to_numpy(slot) - expected) > 1e-6) < 1e-3
    assert np.array_equal(np.asarray(slot), slot.numpy())
    with pytest.raises(ValueError, match=r"shape \(64, 70\)"):
        slot.assign(np.ones(3))
    assert "int8" in repr(slot)


# Rows


@pytest.mark.parametrize(
    "mode", [pytest.param("eager", marks=pytest.mark.spread("torch")), "compiled"]
)
def test_rows_of_a_chosen_table(mode):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(300, 20)).astype("float32")
    groups = {"embeddings$": {"slot_dtype": "int8"}}
    optimizer = keras_tfopt.LazyAdam(0.1, groups=groups)
    runner = Runner(optimizer, {"embeddings": table}, mode)
    exact = Runner(keras_tfopt.LazyAdam(0.1), {"embeddings": table}, mode)
    for step in range(3):
        indices = np.array([7, 3, 250, 7], "int32")
        g = Rows(rng.normal(size=(4, 20)).astype("float32"), indices)
        before = {v.path: to_numpy(v) for v in optimizer.variables}
        runner.step({"embeddings": g})
        exact.step({"embeddings": g})
        others = np.setdiff1d(np.arange(300), indices)
        for v in optimizer.variables:
            if tuple(v.shape[:1]) == (300,):
                assert np.array_equal(to_numpy(v)[others], before[v.path][others]), v.path
        assert np.array_equal(runner.values["embeddings"][others], table[others])
        m, m_exact = (r.slots["embeddings"]["m"] for r in (runner, exact))
        assert np.max(np.abs(m - m_exact)) < 0.02 * (step + 1) * np.max(np.abs(m_exact))
    assert optimizer.slot(runner.variables[0], "m").scales.shape == (300, 1)


def test_row_gradients_of_a_variable_that_is_no_table_are_refused():
    optimizer, (x,) = built(keras_tfopt.LazyAdam(0.1, slot_dtype="int8"), kernel=(300, 20))
    rows = keras_tfopt.RowGradient(ops.ones((1, 20)), ops.convert_to_tensor([3]), (300, 20))
    with pytest.raises(ValueError, match="row_variables"):
        optimizer.apply([rows], [x])
    assert np.all(to_numpy(x) == 1)


# Files and copies


def trained(dtype, steps=2):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(80, name="a")])
    model.compile(keras_tfopt.Adam(0.01, slot_dtype=dtype), loss="mse")
    x = np.random.default_rng(0).normal(size=(32, 64)).astype("float32")
    model.fit(x, x[:, :1] * np.ones(80), batch_size=32, epochs=steps, verbose=0)
    return model, x


@pytest.mark.spread("torch")
@pytest.mark.parametrize("there", ("float32", "bfloat16", "int8"))
@pytest.mark.parametrize("here", ("float32", "bfloat16", "int8"))
@keras_tfopt.engine.plain()
def test_state_is_loaded_in_the_dtype_of_the_optimizer(there, here, tmp_path):
    model, x = trained(there)
    path = str(tmp_path / "model.keras")
    model.save(path)
    fresh, _ = trained(here, steps=1)
    for late in (False, True):
        if late:  # the state waits until the optimizer is built
            fresh = keras.models.load_model(path)
            assert fresh.optimizer.slot_dtype == there
        else:
            fresh.load_weights(path)
        variable, other = fresh.trainable_variables[0], model.trainable_variables[0]
        for name in ("m", "v"):
            saved = to_numpy(model.optimizer.slot(other, name))
            found = to_numpy(fresh.optimizer.slot(variable, name))
            exact = late or there == here
            limit = 0 if exact else 0.02 * np.max(np.abs(saved))
            assert np.max(np.abs(found - saved)) <= limit
    again = keras.models.load_model(path)
    model.fit(x, x[:, :1] * np.ones(80), batch_size=32, verbose=0)
    again.fit(x, x[:, :1] * np.ones(80), batch_size=32, verbose=0)
    for a, b in zip(model.weights, again.weights, strict=True):
        assert np.allclose(to_numpy(a), to_numpy(b), atol=1e-6)


def test_blocks_of_another_size_are_refused():
    optimizer, (x,) = built(keras_tfopt.Adam(slot_dtype="int8"), x=(64, 70))
    store = {}
    optimizer.save_own_variables(store)
    place = optimizer._roles().index("m_scales")
    store[str(place)] = np.ones(35, "float32")
    before = [to_numpy(v) for v in optimizer.variables]
    with pytest.raises(ValueError, match=r"'m' has .* scales of shape \(35,\)"):
        optimizer.load_own_variables(store)
    for v, value in zip(optimizer.variables, before, strict=True):
        assert np.array_equal(to_numpy(v), value)


@pytest.mark.spread
def test_to_keras():
    optimizer, (x,) = built(keras_tfopt.Adam(0.01, slot_dtype="int8"), x=(64, 70))
    with keras_tfopt.engine.plain():  # compiling would take longer than all else
        optimizer.apply([ops.ones((64, 70))], [x])
    stock = keras_tfopt.to_keras(optimizer)
    assert np.allclose(to_numpy(stock._momentums[0]), to_numpy(optimizer.slot(x, "m")))


@pytest.mark.spread("torch")
def test_with_the_other_options_and_wrappers():
    """The scale of gradients changes, so that clipping matters to Adam."""
    rng = np.random.default_rng(0)
    start = {"kernel": rng.normal(size=(64, 70)).astype("float32")}
    g = rng.normal(size=(64, 70)).astype("float32")
    makers = (
        lambda **o: keras_tfopt.Adam(0.01, use_ema=True, clipnorm=1.0, weight_decay=0.1, **o),
        lambda **o: keras_tfopt.Adam(0.01, gradient_accumulation_steps=2, **o),
        lambda **o: keras_tfopt.MovingAverage(keras_tfopt.Adam(0.01, **o)),
        lambda **o: keras_tfopt.DecoupledWeightDecay(keras_tfopt.Adam(0.01, **o), 0.1),
        lambda **o: keras_tfopt.Lookahead(keras_tfopt.LAMB(0.01, **o)),
    )
    for make, mode in [(makers[0], "compiled"), *((make, "eager") for make in makers)]:
        few, whole = Runner(make(slot_dtype="int8"), start, mode), Runner(make(), start, "eager")
        for scale in (1, 10, 1, 0.1):
            few.step({"kernel": scale * g})
            whole.step({"kernel": scale * g})
        error = np.abs(few.values["kernel"] - whole.values["kernel"])
        assert 0 < np.max(error) and np.mean(error) < 2e-3
