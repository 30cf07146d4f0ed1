"""On PyTorch, hooks and other functions are called once for many small variables of one shape."""

import contextlib

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from keras_tfopt import engine
from tests.helpers.stepping import to_numpy

pytestmark = pytest.mark.backends("torch", reason="on other backends whole steps are compiled")

SHAPES = [(3, 4), (4,), (), (3, 4), (4,), (), (300, 300), (3, 4)]


class Halving(keras_tfopt.Wrapper):
    """Halves steps; counts calls of its hook."""

    calls = 0

    def slots(self, like):
        return {"last": keras_tfopt.Slot(like.shape)}

    needs_old = True

    def after(self, g, x, s, t):
        type(self).calls += 1
        return t.old + (x - t.old) / 2, {"last": x - t.old + s.last}


class HalvingLarge(Halving):
    """Decides by values, which cannot be done for many variables at once."""

    def after(self, g, x, s, t):
        x, new = super().after(g, x, s, t)
        return ops.cond(ops.sum(ops.abs(g)) > 4, lambda: x, lambda: t.old), new


class Always(keras_tfopt.Wrapper):
    def accept(self, g, x, t):
        return True


def trained(make, plain, steps=3):
    """Return all values after some steps with a variable of each shape."""
    rng = np.random.default_rng(0)
    variables = [
        keras.Variable(rng.normal(size=shape), dtype="float32", name=f"v{n}")
        for n, shape in enumerate(SHAPES)
    ]
    optimizer = make()
    optimizer.build(variables)
    for _ in range(steps):
        grads = [ops.convert_to_tensor(rng.normal(size=s), dtype="float32") for s in SHAPES]
        with engine.plain() if plain else contextlib.nullcontext():
            optimizer.apply(grads, variables)
    return [to_numpy(v) for v in (*variables, *optimizer.variables)]


MAKERS = {
    "after": lambda: Halving(keras_tfopt.Adam(0.1, use_ema=True)),
    "by values": lambda: HalvingLarge(keras_tfopt.Adam(0.1, use_ema=True)),
    "accept": lambda: keras_tfopt.Multitask(keras_tfopt.Adam(0.1)),
    "true": lambda: Always(keras_tfopt.Adam(0.1)),
    "dimensions": lambda: keras_tfopt.VariableClipping(keras_tfopt.Adam(0.1), {".": []}, 0.5),
    "clip_unitwise": lambda: keras_tfopt.Momentum(0.1, clip_unitwise=0.01),
    "gradient": lambda: keras_tfopt.Cautious(keras_tfopt.Adam(0.1, clipnorm=1.0)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_values_are_those_of_one_call_for_each_variable(name):
    apart, together = (trained(MAKERS[name], plain) for plain in (True, False))
    for one, other in zip(apart, together, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "calls"), [("after", 4), ("by values", len(SHAPES))])
def test_a_hook_is_called_once_for_each_shape(name, calls):
    cls = {"after": Halving, "by values": HalvingLarge}[name]
    trained(MAKERS[name], plain=False, steps=2)
    cls.calls = 0
    optimizer, values = MAKERS[name](), [keras.Variable(np.ones(s, "float32")) for s in SHAPES]
    optimizer.build(values)
    grads = [ops.ones(shape) for shape in SHAPES]
    optimizer.apply(grads, values)
    first, cls.calls = cls.calls, 0
    optimizer.apply(grads, values)
    assert cls.calls == calls
    assert first >= calls
