"""Compiled steps are used, and equal plain steps."""

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import engine
from tests.cells import exhaustive
from tests.helpers.fast_paths import OF_ALL_SCOPES, train, variables
from tests.helpers.stepping import BACKEND, Runner

RARE = ("laprop", "cautious_adan", "stable_adam_w", "novo_grad")  # their scopes have other rules


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        *(("float32", name) for name in OF_ALL_SCOPES),
        *(exhaustive("bfloat16", n) if n in RARE else ("bfloat16", n) for n in OF_ALL_SCOPES),
    ],
)
def test_fast_equals_plain(name, dtype):
    fast = train(OF_ALL_SCOPES[name](), variables(dtype))
    with engine.plain():
        plain = train(OF_ALL_SCOPES[name](), variables(dtype))
    # A small difference in float32 may change how a number is rounded to bfloat16.
    tolerance = 2e-6 if dtype == "float32" else 1e-2
    for a, b in zip(fast, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("width", [(1,), (64,), (2, 2)], ids=str)
@pytest.mark.spread
def test_rows_of_a_dense_gradient_with_any_number_but_zero_are_touched(dtype, width):
    random = np.random.default_rng(0)
    gradient = np.zeros((40, int(np.prod(width))))
    gradient[:10] = random.standard_normal((10, gradient.shape[1]))
    gradient[10:15] = -np.abs(gradient[:5])  # nothing positive
    gradient[15:20, -1] = [1e-6, -1e-6, np.inf, -np.inf, np.nan]
    gradient[20:22] = -0.0
    gradient[22, 0] = -0.0
    gradient[23, -1] = -np.nan
    gradient[24] = [(-1) ** i for i in range(gradient.shape[1])]  # the sum may be zero
    optimizer = keras_tfopt.LazyAdam(0.5, row_variables=["table"])
    runner = Runner(optimizer, {"table": np.ones((40, *width))}, "compiled", dtype)
    runner.step({"table": gradient.reshape(40, *width)})
    expected = np.flatnonzero((gradient != 0).any(axis=1))
    after = runner.values["table"].reshape(40, -1)
    np.testing.assert_array_equal(np.flatnonzero((after != 1).any(axis=1)), expected)


def launches(optimizer, monkeypatch):
    """Return the number of calls of compiled code in a step over 24 variables."""
    values = [keras.Variable(np.ones((3, 2)), name=f"v{i}") for i in range(24)]
    train(optimizer, values, shapes=[(3, 2)] * 24)
    if BACKEND == "torch":
        return sum(len(plan) for key, plan in optimizer._fast.items() if key[0] == "plan")
    from keras_tfopt.engine.backends.tensorflow import updates

    calls, run = [], updates.run_in_place
    monkeypatch.setattr(updates, "run_in_place", lambda *args: calls.append(run(*args)))
    train(optimizer, values, steps=1, shapes=[(3, 2)] * 24)
    monkeypatch.undo()
    return len(calls)


@pytest.mark.backends("tensorflow", "torch", reason="on JAX a step is compiled as a whole")
@pytest.mark.parametrize("make", (keras_tfopt.Adam, exhaustive(keras_tfopt.LARS)))
def test_groups_with_factors_need_no_more_calls_of_compiled_code(make, monkeypatch):
    """Any other setting needs one more call."""
    factors = {f"^v({i}|{i + 12})$": {"learning_rate_factor": 0.75**i} for i in range(12)}
    other = {"[37]$": {"beta_2" if make is keras_tfopt.Adam else "momentum": 0.8}}  # 5 variables
    one, several, static = (
        launches(make(0.01, groups=groups), monkeypatch)
        for groups in (None, factors, [factors, other])
    )
    assert 0 < one == several < static == one + 1
