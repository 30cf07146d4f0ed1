"""Comparing arrays, and a runner with the reference of its optimizer."""

import numpy as np

from tests.helpers.stepping import Rows


def same(a, b):
    """Return True if two lists of arrays are equal to the bit."""
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def assert_same(actual, expected):
    """Assert that arrays are equal to the bit: two lists of them, or two dicts."""
    if isinstance(actual, dict):
        assert set(actual) == set(expected)
        actual, expected = zip(*((actual[key], expected[key]) for key in actual), strict=True)
    for a, b in zip(actual, expected, strict=True):
        assert np.array_equal(a, b)


def assert_close(actual, expected, tolerance, what, relative=None):
    """Assert that the largest error is at most `tolerance`.

    Errors are relative to `relative`, by default to the larger of 1 and |expected|.
    """
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, not {expected.shape}"
    if not actual.size:
        return
    scale = np.maximum(1.0, np.abs(expected)) if relative is None else relative
    error = np.abs(actual.astype("float64") - expected)
    worst = np.max(error / scale)
    assert worst <= tolerance, f"{what}: error {worst:.2e}, allowed {tolerance:.0e}"


def bent(grads, values):
    """Return gradients of a quadratic function at `values`, plus a thousandth of those given.

    Rules of curvature divide by differences of gradients. Here a difference is nearly the step
    times the second derivatives, which are 0.5 to 1.5. In the rows of a table they are a hundredth
    of that, because each step names other rows.
    """
    new = {}
    for path, g in grads.items():
        x = np.asarray(values[path], "float64")
        slope = x * (1 + 0.5 * np.sin(np.arange(x.size))).reshape(x.shape)
        if isinstance(g, Rows):
            rows, places = np.unique(g.indices, return_index=True)  # repeated ones only once
            total = 1e-3 * g.values.astype("float64")
            total[places] += 0.01 * slope[rows]
            new[path] = Rows(total.astype(g.values.dtype), g.indices)
        else:
            new[path] = np.asarray(1e-3 * np.asarray(g, "float64") + slope, np.asarray(g).dtype)
    return new


def suited(grads, values, reference):
    """Return gradients of a quadratic for rules of curvature in float32, else those given."""
    single = all(np.asarray(value).dtype == "float32" for value in values.values())
    return bent(grads, values) if reference.divides_by_curvature and single else grads


def follow(runner, reference, plan, tolerance):
    """Make steps of both, and compare all variables and slots after each step.

    The reference computes in float64, with the numbers that the optimizer gets. So float32 is
    compared with the true value of the formula. Another computation in float32 would share its
    mistakes, such as 1 - float32(0.999). Errors of slots are relative to the largest number that
    they have held: second moments can all be below the tolerance, and sums can cancel.
    """
    largest = {}
    x = {path: value.astype("float64") for path, value in runner.values.items()}
    s = reference.start(x)
    for step, grads in enumerate(plan, start=1):
        grads = suited(grads, runner.values, reference)
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
