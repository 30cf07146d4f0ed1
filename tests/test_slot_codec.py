"""How numbers are stored in int8 and bfloat16 slots."""

import math

import hypothesis
import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import strategies as st
from keras import ops

import keras_tfopt
from keras_tfopt.engine.state import dither, stored
from tests.helpers.paths import GOLDEN
from tests.helpers.stepping import BACKEND, make_variable, to_numpy
from tests.reference import slot_dtype as reference

RECORDED = GOLDEN / "slot_dtype"
LAYOUTS = {
    "flat": ((5000,), False),
    "whole blocks": ((64, 256), False),
    "short rows": ((30, 40), True),
    "long rows": ((7, 3, 200), True),
}


if BACKEND == "jax":  # otherwise each operation is compiled for each shape
    import jax

    _encode = jax.jit(stored.encode, static_argnums=(1, 2))
    _decode = jax.jit(stored.decode, static_argnums=2)
else:
    _encode, _decode = stored.encode, stored.decode


def encode(x, signed, by_row=False):
    shape = stored.scales_shape(np.shape(x), by_row)
    codes, scales = _encode(ops.convert_to_tensor(x, "float32"), shape, signed)
    return ops.convert_to_numpy(codes), ops.convert_to_numpy(scales)


def decode(codes, scales, signed):
    return ops.convert_to_numpy(
        _decode(ops.convert_to_tensor(codes), ops.convert_to_tensor(scales), signed)
    )


def rounded(x, step, slot="m"):
    x, step = ops.convert_to_tensor(x, "float32"), ops.convert_to_tensor(step, "float32")
    return to_numpy(stored.rounded(x, dither.dither_of(step), dither.seed_of(slot)))


# int8


@pytest.mark.parametrize("signed", (True, False))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_codes_equal_a_search_in_the_table(layout, signed):
    shape, by_row = LAYOUTS[layout]
    x = reference.sample(shape, signed)
    codes, scales = encode(x, signed, by_row)
    expected, expected_scales = reference.encode(x, signed, by_row)
    assert np.array_equal(np.ravel(scales), expected_scales)
    assert codes.dtype == "uint8" and codes.shape == shape
    assert np.mean(codes != expected) < 1e-3  # these lie midway between two codes
    numbers = decode(codes, scales, signed)
    exact = reference.decode(codes, scales, signed, by_row)
    assert np.allclose(numbers, exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("signed", (True, False))
def test_every_code_is_restored(signed):
    codes = np.arange(256, dtype="uint8")
    numbers = decode(codes, np.array([3.0], "float32"), signed)
    assert np.allclose(numbers, 3 * reference.TABLES[signed], rtol=1e-6, atol=0)
    assert np.array_equal(encode(numbers, signed)[0], codes)


@pytest.mark.parametrize("signed", (True, False))
@hypothesis.given(x=hnp.arrays("float32", 300, elements=st.floats(-(2.0**90), 2.0**90, width=32)))
@hypothesis.settings(max_examples=30, deadline=None)
def test_error_of_a_round_trip(signed, x):
    x = x if signed else np.abs(x)
    codes, scales = encode(x, signed)
    numbers = decode(codes, scales, signed)
    scale = np.repeat(scales, 256)[:300].astype("float64")
    part = np.abs(x) / np.where(scale > 0, scale, 1)
    decade = np.clip(np.floor(np.log10(np.maximum(part, 1e-7))) + 1, -6, 0)
    spaces = 2.0 ** (decade + (6 if signed else 7))
    # XLA makes 0 of numbers that are no normal ones.
    bound = np.where(scale > 0, scale * 10**decade * 0.91 / spaces, 0) + 2.0**-126
    assert np.all(np.abs(numbers - x) <= bound)
    assert np.all((numbers == 0) | (np.sign(numbers) == np.sign(x)))
    assert np.array_equal(numbers[x == 0], x[x == 0])


def test_a_small_second_moment_never_becomes_zero():
    x = np.array([1.0, 1e-9, 1e-30, 0.0], "float32")
    codes, _ = encode(x, signed=False)
    assert codes.tolist() == [255, 1, 1, 0]
    assert encode(x, signed=True)[0].tolist() == [255, 127, 127, 127]


@pytest.mark.parametrize("wrong", (np.nan, np.inf, -np.inf))
def test_infinity_and_nan_do_not_vanish(wrong):
    x = np.ones(600, "float32")
    x[300] = wrong
    codes, scales = encode(x, signed=True)
    numbers = decode(codes, scales, signed=True)
    assert np.isnan(numbers[256:512]).all() and (numbers[:256] == 1).all()
    assert np.array_equal(rounded(x, 3), x, equal_nan=True)


@pytest.mark.parametrize("sign", (1, -1))
def test_an_extreme_stays_if_it_is_encoded_again_and_again(sign):
    """The signed table ends at -0.993 and 1."""
    x = first = (sign * np.linspace(0.2, 1, 256)).astype("float32")
    for _ in range(50):
        x = decode(*encode(x, signed=True), signed=True)
    np.testing.assert_allclose(x, first, atol=0.008)
    np.testing.assert_allclose(x[-1], sign, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.spread("torch")  # the quickest in many eager steps; codes are equal on all backends
@pytest.mark.parametrize("sign", (1, -1))
@pytest.mark.parametrize("beta", (0.9, 0.99))
def test_a_sum_of_equal_gradients_has_its_limit(beta, sign):
    variable = make_variable("kernel", np.zeros(4096, "float32"))
    optimizer = keras_tfopt.Momentum(1e-3, beta, slot_dtype="int8")
    optimizer.build([variable])
    g = ops.convert_to_tensor(sign * np.linspace(0.2, 1, 4096).astype("float32"))
    for _ in range(1000):
        optimizer.apply([g], [variable])
    found = np.mean(optimizer.slot(variable, "momentum").numpy() / ops.convert_to_numpy(g))
    assert found == pytest.approx(1 / (1 - beta), rel=0.01)


def test_recorded_codes_of_bitsandbytes_and_torchao():
    recorded = np.load(RECORDED / "codes.npz")
    for name in ("normal", "decades", "ties", "edges"):
        x = recorded[f"{name}_x"]
        for signed, kind in ((True, "signed"), (False, "unsigned")):
            given = x if signed else np.abs(x)
            codes, scales = encode(given, signed)
            numbers = decode(codes, scales, signed)
            table = reference.TABLES[signed]
            scale = np.repeat(scales.astype("float64"), 256)[: x.size]
            for origin in ("bitsandbytes", "torchao"):
                if f"{name}_{kind}_{origin}_codes" not in recorded:
                    continue
                theirs = recorded[f"{name}_{kind}_{origin}_codes"]
                their_scales = recorded[f"{name}_{kind}_{origin}_scales"]
                # Theirs are the greatest magnitudes. See the docstring of `encode`.
                ends_below = scales != their_scales
                assert np.allclose(scales * np.where(ends_below, 0.99296875, 1), their_scales, 1e-6)
                blocks = [given[start : start + 256] for start in range(0, x.size, 256)]
                least = np.array([-block.min() / 0.99296875 > block.max() for block in blocks])
                assert np.array_equal(ends_below, least & signed)
                same = np.repeat(~ends_below, 256)[: x.size]
                lifted = (given > 0) & (theirs == 0) & (not signed)  # see the docstring of `encode`
                differs = (codes != theirs) & ~lifted & same
                # A number midway between two codes may have either.
                mine = np.abs(given - table[codes] * scale)
                other = np.abs(given - table[theirs] * scale)
                assert np.all(mine[differs] <= other[differs] + 1e-6 * np.abs(given[differs]))
                assert np.all(codes[lifted] == 1)
                assert np.mean(differs) < 0.01 or name == "ties"
            assert np.allclose(numbers, table[codes] * scale, rtol=1e-6, atol=0)


def adam_in_8_bits(x, gradients, least):
    """Yield the values after steps in NumPy; `least` is as in `reference.encode`."""
    m = v = np.zeros(x.shape)
    for step, g in enumerate(gradients.astype("float64"), start=1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        rate = 1e-2 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        x = x - rate * m / (np.sqrt(v) + 1e-8)
        yield x
        m = reference.decode(*reference.encode(m, True, least=least), True)
        v = reference.decode(*reference.encode(v, False), False)


def test_steps_of_torchao():
    recorded = np.load(RECORDED / "steps.npz")
    x = make_variable("kernel", recorded["start"])
    optimizer = keras_tfopt.Adam(1e-2, slot_dtype="int8")
    gradients = recorded["gradients"]
    with_our_scales = adam_in_8_bits(recorded["start"], gradients, reference.TABLES[True][0])
    with_theirs = adam_in_8_bits(recorded["start"], gradients, -1.0)
    steps = zip(gradients, recorded["values"], with_our_scales, with_theirs, strict=True)
    for g, expected, with_ours, with_their in steps:
        optimizer.apply([ops.convert_to_tensor(g)], [x])
        # Torch adds epsilon before the bias correction. And a moment midway between two codes may
        # get either, which moves a value by a part of a step.
        for error in (np.abs(with_their - expected), np.abs(to_numpy(x) - with_ours)):
            assert np.mean(error > 2e-5) < 2e-3 and np.max(error) < 3e-3
    ours, theirs = (np.abs(v - recorded["float32"]) for v in (to_numpy(x), expected))
    assert np.mean(ours) < np.mean(theirs) < 3e-4  # both are near float32, ours nearer
    assert np.mean(np.abs(expected - recorded["float32"]) > 1e-4) > 0.05  # it is not float32


# bfloat16


def test_rounding_to_bfloat16():
    x = reference.sample(4096)
    for step in (1, 2, 70000):
        assert np.array_equal(rounded(x, step), reference.rounded(x, step, "m"))
    assert not np.array_equal(rounded(x, 1), rounded(x, 2))
    assert not np.array_equal(rounded(x, 1), rounded(x, 1, "v"))


@pytest.mark.spread("torch")
def test_the_mean_of_roundings_to_bfloat16_is_exact():
    x = np.random.default_rng(0).normal(size=2000).astype("float32")
    steps = 2000
    mean = np.mean(rounded(x, np.arange(1, steps + 1)[:, None]), axis=0, dtype="float64")
    space = 2.0 ** (np.floor(np.log2(np.abs(x))) - 7)
    error = (mean - x) / space
    assert np.max(np.abs(error)) < 5 * 0.5 / math.sqrt(steps)
    assert abs(np.mean(error)) < 2e-3


@pytest.mark.spread("torch")
def test_second_moments_do_not_stall_in_bfloat16():
    start = np.exp(np.random.default_rng(0).uniform(-15, 0, 4096)).astype("float32")
    v, stalled = start, reference.nearest(start)
    for step in range(1, 501):
        v = rounded(np.float32(0.999) * v + np.float32(0.0005) * start, step, "v")
        stalled = reference.nearest(np.float32(0.999) * stalled + np.float32(0.0005) * start)
    assert np.median(stalled / start) > 0.99
    assert abs(np.mean(v / start) - (0.5 + 0.5 * 0.999**500)) < 0.01
