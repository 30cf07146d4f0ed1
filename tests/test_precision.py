"""Training in half precision, with `master_weights` and with policies of Keras."""

import keras
import numpy as np
import pytest

import keras_tfopt
from tests import stepping
from tests.compare import assert_close
from tests.options import (
    CASE,
    INITIAL,
    OPTIONS,
    Expected,
    gradients,
)
from tests.stepping import Rows, Runner, make_variable, to_numpy


@pytest.mark.parametrize("master_weights", (False, True))
@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
@pytest.mark.parametrize("mode", ("eager", "compiled"))
@pytest.mark.spread
def test_small_updates_of_half_precision_variables(dtype, master_weights, mode):
    """Below half a unit in the last place they are lost, unless there is a copy in float32."""
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


@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
def test_assigned_half_precision_variables_count_more_than_their_copies(dtype):
    optimizer = keras_tfopt.Momentum(2**-14, momentum=0.0, master_weights=True)
    runner = Runner(optimizer, {"kernel": np.ones(3)}, "compiled", dtype)
    for _ in range(3):
        runner.step({"kernel": np.ones(3)})
    runner.variables[0].assign(np.array([1.0, 0.5, -2.0]))
    runner.step({"kernel": np.ones(3)})
    # The first is what it was before, to the precision of the variable, so its copy still counts.
    copy = to_numpy(optimizer.slot(runner.variables[0], "master_weight"))
    step = 2**-14
    assert np.array_equal(copy, np.array([1 - 4 * step, 0.5 - step, -2.0 - step], "float32"))


@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
@pytest.mark.parametrize(
    ("name", "mode"),
    [("use_ema", "eager"), ("accumulation", "eager"), ("everything", "compiled")],
)
@pytest.mark.spread
def test_options_on_half_precision_variables(dtype, name, mode):
    """State is float32; the variables follow float64 to within their own roundings."""
    options, case = OPTIONS[name], CASE["LazyAdam"]
    start = {p: stepping.to_numpy(make_variable(p, v, dtype)) for p, v in INITIAL.items()}
    runner = Runner(case.make(master_weights=True, **options), start, mode, dtype)
    expected = Expected(case, start, **options)
    unit = {"bfloat16": 2**-8, "float16": 2**-11}[dtype]
    for grads in gradients(6, scale=options.get("loss_scale_factor", 1.0)):
        rounded = {}
        for path, g in grads.items():
            array = keras.ops.convert_to_tensor(g.values if isinstance(g, Rows) else g, dtype=dtype)
            array = to_numpy(array)
            rounded[path] = Rows(array, g.indices) if isinstance(g, Rows) else array
        runner.step(rounded)
        expected.step(rounded)
    for path, value in runner.values.items():
        assert_close(value, expected.x[path], 2 * unit, path)
    kept = [v.dtype for v in runner.optimizer.variables]
    assert set(kept) <= {"float32", "int32", "int64", "bool"}
