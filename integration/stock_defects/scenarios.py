"""What scenarios are made of: variables, models, steps, and Adam in NumPy."""

import contextlib
from typing import Any

import keras
import numpy as np
from keras import ops

import keras_tfopt

stock = keras.optimizers
ours = keras_tfopt
IDS = np.array([[1, 1, 2]])


def variable(value: Any, path: str = "kernel", dtype: str = "float32") -> keras.Variable:
    *scopes, name = path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(np.asarray(value), dtype=dtype, name=name)


def number(v: Any) -> float:
    """The first element of a variable."""
    return float(np.ravel(ops.convert_to_numpy(ops.cast(v, "float32")))[0])


def steps(optimizer: Any, x: Any, gradient: float, count: int) -> Any:
    """Plain steps with a constant gradient."""
    for _ in range(count):
        optimizer.apply([ops.full(x.shape, gradient, dtype=x.dtype)], [x])
    return x


def mean_of_outputs(_: Any, outputs: Any) -> Any:
    """A loss with constant gradients."""
    return ops.mean(outputs)


def embedding_model(optimizer: Any) -> Any:
    """A table of ones. On IDS, the summed gradient is 2/3 in row 1 and 1/3 in row 2."""
    model = keras.Sequential(
        [keras.layers.Input((3,), dtype="int32"), keras.layers.Embedding(4, 1, "ones")]
    )
    model.compile(optimizer, mean_of_outputs)
    return model


def dense_model(optimizer: Any) -> Any:
    """One weight of 1, whose gradient on inputs of 1 is 1."""
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.layers.Input((1,)), layer])
    model.compile(optimizer, mean_of_outputs)
    return model


def row_1(optimizer: Any, epochs: int = 3) -> float:
    """Row 1 of the table after `fit` on IDS, one step an epoch."""
    model = embedding_model(optimizer)
    model.fit(IDS, np.zeros((1, 3)), epochs=epochs, verbose=0)
    return float(model.get_weights()[0][1, 0])


def adam_in_numpy(gradient: float, count: int, rate: float, epsilon: float = 1e-8) -> float:
    """A weight that starts at 1 after steps of Adam, in float64."""
    x, m, v = 1.0, 0.0, 0.0
    for t in range(1, count + 1):
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        x -= rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + epsilon)
    return x
