"""`extend` adds variables to a built optimizer: steps are as if it was built with them."""

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.helpers.stepping import make_variable, to_numpy

INNERS = {
    "Adam": lambda: keras_tfopt.Adam(0.1),
    "LARS": lambda: keras_tfopt.LARS(0.1),
    "averages": lambda: keras_tfopt.Momentum(0.1, use_ema=True, ema_momentum=0.5),
    "accumulation": lambda: keras_tfopt.LazyAdam(0.1, gradient_accumulation_steps=2),
}
AROUND = {
    "alone": lambda inner: inner,
    "MovingAverage": lambda inner: keras_tfopt.MovingAverage(inner, 0.5),
    "decay": lambda inner: keras_tfopt.DecoupledWeightDecay(inner, 0.1),
}


def variables():
    values = {"a": np.ones(3), "b/embeddings": np.ones((4, 2)), "c": np.ones((2, 2))}
    return [make_variable(name, value.astype("f")) for name, value in values.items()]


def gradients(some, seed):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=v.shape).astype("f") for v in some]


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("inner", INNERS)
@pytest.mark.spread
def test_steps_are_as_if_built_with_all_variables(inner, around):
    results = []
    for late in (False, True):
        a, b, c = variables()
        optimizer = AROUND[around](INNERS[inner]())
        parts = [optimizer] if around == "alone" else [optimizer.inner_optimizer, optimizer]
        optimizer.build([a] if late else [a, b, c])
        for seed in (1, 2):
            optimizer.apply(gradients([a], seed), [a])
        for part in parts if late else ():
            part.extend([b, c])
        for seed in (3, 4, 5, 6):
            optimizer.apply(gradients([c, a, b], seed), [c, a, b])
        values = {v.path: to_numpy(v) for v in (a, b, c)}
        for name in optimizer.slot_names:
            values |= {f"{v.path} {name}": to_numpy(optimizer.slot(v, name)) for v in (a, b, c)}
        results.append(values)
    assert len(results[0]) > 5 and results[0].keys() == results[1].keys()
    for name, value in results[0].items():
        np.testing.assert_allclose(results[1][name], value, rtol=1e-6, atol=1e-7, err_msg=name)


def test_state_of_all_variables_together_cannot_be_extended():
    a, b, _ = variables()
    optimizer = keras_tfopt.GGT()
    optimizer.build([a])
    with pytest.raises(ValueError, match="GGT keeps state of all.*'b/embeddings'"):
        optimizer.extend([b])
    optimizer.apply(gradients([a], 1), [a])


def test_gradients_without_strides():
    """Autograd of PyTorch gives such a gradient for a sum."""
    a = make_variable("a", np.ones(3, "f"))
    optimizer = keras_tfopt.Momentum(0.5)
    for _ in range(2):
        optimizer.apply([keras.ops.broadcast_to(keras.ops.ones(()), (3,))], [a])
    np.testing.assert_allclose(to_numpy(a), np.full(3, 1 - 0.5 - 0.95))
