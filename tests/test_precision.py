"""Training in half precision, with `master_weights` and with policies of Keras."""

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.cases import REPRESENTATIVES, RULES, over_workers, wrappers
from tests.cells import EXHAUSTIVE, exhaustive
from tests.helpers import fast_paths, small_model, stepping
from tests.helpers.compare import assert_close, suited
from tests.helpers.options import CASE, INITIAL, OPTIONS, Expected, gradients
from tests.helpers.stepping import Rows, Runner, eager_and_compiled, make_variable, to_numpy

MADE = {
    **fast_paths.OF_ALL_SCOPES,
    "averaged": lambda: keras_tfopt.MovingAverage(keras_tfopt.Adam(0.01)),
    "accumulated": lambda: keras_tfopt.Adam(0.01, gradient_accumulation_steps=2),
    "clipped": lambda: keras_tfopt.Adam(0.01, global_clipnorm=1.0),
    "skipping": lambda: keras_tfopt.SkipNonFinite(keras_tfopt.Momentum(0.1)),
}


def rounded(grads, dtype):
    """Return gradients rounded to a data type."""

    def of(array):
        return to_numpy(keras.ops.convert_to_tensor(array, dtype=dtype))

    return {
        path: Rows(of(g.values), g.indices) if isinstance(g, Rows) else of(g)
        for path, g in grads.items()
    }


@pytest.mark.parametrize("master_weights", (False, True))
@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
@eager_and_compiled
@pytest.mark.spread
def test_small_updates_of_half_precision_variables(dtype, master_weights, mode):
    """Without a copy in float32, updates below half a unit in the last place are lost."""
    rate = {"bfloat16": 2**-11, "float16": 2**-14}[dtype]
    runner = Runner(
        keras_tfopt.Momentum(rate, momentum=0.0, master_weights=master_weights),
        {"kernel": np.ones(3), "embeddings": np.ones((4, 2))},
        mode,
        dtype,
    )
    ones = {"kernel": np.ones(3), "embeddings": Rows(np.ones((2, 2)), np.array([0, 2], "int32"))}
    for _ in range(64):
        runner.step(ones)
    after = 1 - 64 * rate if master_weights else 1.0  # which both types can hold
    assert np.all(runner.values["kernel"] == after)
    assert np.all(runner.values["embeddings"][[0, 2]] == after)
    assert np.all(runner.values["embeddings"][[1, 3]] == 1)
    assert all(slot.dtype == "float32" for s in runner.slots.values() for slot in s.values())


@pytest.mark.parametrize("dtype", ("bfloat16", exhaustive("float16")))
@pytest.mark.parametrize("name", MADE)
def test_gradients_may_be_in_half_precision(name, dtype):
    """They give the same numbers as those in float32, also if both take turns.

    Compiled sums may add up in another order, so variables may be rounded to the next number.
    """
    trained = []
    for dtypes in (["float32"] * 4, [dtype, "float32", dtype, dtype]):
        optimizer, values = MADE[name](), fast_paths.variables(dtype)
        random = np.random.default_rng(1)
        for of_step in dtypes:
            grads = [random.standard_normal(shape) for shape in fast_paths.SHAPES]
            grads = [keras.ops.convert_to_tensor(g, dtype=dtype) for g in grads]
            optimizer.apply([keras.ops.cast(g, of_step) for g in grads], values)
        trained.append([to_numpy(v) for v in (*optimizer.variables, *values)])
    unit = {"bfloat16": 2**-8, "float16": 2**-11}[dtype]
    tolerances = [1e-6] * len(optimizer.variables) + [2 * unit] * len(values)
    for plain, mixed, tolerance in zip(*trained, tolerances, strict=True):
        assert_close(mixed, plain, tolerance, "after four steps")


@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
def test_assigning_a_half_precision_variable_changes_its_copy(dtype):
    optimizer = keras_tfopt.Momentum(2**-14, momentum=0.0, master_weights=True)
    runner = Runner(optimizer, {"kernel": np.ones(3)}, "compiled", dtype)
    for _ in range(3):
        runner.step({"kernel": np.ones(3)})
    runner.variables[0].assign(np.array([1.0, 0.5, -2.0]))
    runner.step({"kernel": np.ones(3)})
    # The assigned 1.0 equals the rounded copy, so the copy is kept.
    copy = to_numpy(optimizer.slot(runner.variables[0], "master_weight"))
    step = 2**-14
    assert np.array_equal(copy, np.array([1 - 4 * step, 0.5 - step, -2.0 - step], "float32"))


@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
@pytest.mark.parametrize(
    ("name", "mode"), [("use_ema", "eager"), ("accumulation", "eager"), ("everything", "compiled")]
)
@pytest.mark.spread
def test_options_on_half_precision_variables(dtype, name, mode):
    """State is float32. Variables differ from float64 by no more than their rounding."""
    options, case = OPTIONS[name], CASE["LazyAdam"]
    start = {p: stepping.to_numpy(make_variable(p, v, dtype)) for p, v in INITIAL.items()}
    runner = Runner(case.make(master_weights=True, **options), start, mode, dtype)
    expected = Expected(case, start, **options)
    unit = {"bfloat16": 2**-8, "float16": 2**-11}[dtype]
    for grads in gradients(6, scale=options.get("loss_scale_factor", 1.0)):
        grads = rounded(grads, dtype)
        runner.step(grads)
        expected.step(grads)
    for path, value in runner.values.items():
        assert_close(value, expected.x[path], 2 * unit, path)
    kept = [v.dtype for v in runner.optimizer.variables]
    assert set(kept) <= {"float32", "int32", "int64", "bool"}


@pytest.mark.parametrize(
    ("case", "mode"),
    [
        pytest.param(case, mode, id=f"{case.name}-{mode}")
        for case in RULES
        for mode in ("eager", "compiled")
        if EXHAUSTIVE or (mode == "compiled") == (case.name in REPRESENTATIVES)
    ],
)
def test_master_weights_take_the_steps_of_float32(case, mode):
    """Variables in bfloat16 are the rounded copies."""
    start = rounded(small_model.initial(paths=small_model.FEW), "bfloat16")
    runner = Runner(case.make(master_weights=True), start, mode, "bfloat16")
    reference = case.make_reference()
    x = {path: value.astype("float64") for path, value in start.items()}
    s = reference.start(x)
    steps = ("normal", "masked", "normal")
    for step, grads in enumerate(small_model.gradients(steps=steps, paths=small_model.FEW), 1):
        grads = rounded(suited(grads, runner.values, reference), "bfloat16")
        runner.step(grads)
        x, s = reference.advance(grads, x, s, step)
        for variable in runner.variables:
            copy = to_numpy(runner.optimizer.slot(variable, "master_weight"))
            what = f"{variable.path} after step {step}"
            assert_close(copy, x[variable.path], 4 * case.tolerance(), what)
            assert np.array_equal(to_numpy(variable), rounded({"": copy}, "bfloat16")[""])


def variants_around():
    """Parametrize over optimizers around an optimizer, and their variants."""
    params = [
        pytest.param(case, variant, id=f"{case.name}-{variant}")
        for case in (*wrappers.CASES, *over_workers.CASES)
        for variant in case.variants
    ]
    return pytest.mark.parametrize(("case", "variant"), params)


@pytest.mark.formula
@variants_around()
@pytest.mark.parametrize("mode", ["eager", exhaustive("compiled")])
def test_hooks_see_and_change_master_weights(case, variant, mode):
    """With variables in bfloat16, slots and copies equal those of float32."""
    start = rounded(small_model.initial(paths=small_model.FEW), "bfloat16")
    runner = Runner(case.make(variant, master_weights=True), start, mode, "bfloat16")
    reference = case.make_reference(variant)
    x = {path: value.astype("float64") for path, value in start.items()}
    s = reference.start(x)
    steps = ("normal", "masked", "small", "normal", "large", "normal")
    for step, grads in enumerate(small_model.gradients(steps=steps, paths=small_model.FEW), 1):
        grads = rounded(grads, "bfloat16")
        runner.step(grads)
        x, s = reference.advance(grads, x, s, step)
        slots = runner.slots
        for variable in runner.variables:
            expected = {**s[variable.path], "master_weight": x[variable.path]}
            assert set(slots[variable.path]) == set(expected)
            for name, value in slots[variable.path].items():
                what = f"{name} of {variable.path} after step {step}"
                assert_close(value, expected[name], 4 * case.tolerance(variant=variant), what)
            copy = {"": slots[variable.path]["master_weight"]}
            assert np.array_equal(to_numpy(variable), rounded(copy, "bfloat16")[""])
