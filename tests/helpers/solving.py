"""Data with a known solution, models and a callback, for tests of solvers."""

import keras
import numpy as np
from keras import ops

RANDOM = np.random.default_rng(7)
X = RANDOM.normal(size=(60, 3))
Y = X @ np.float64([[1.0], [-2.0], [0.5]]) + 0.3 + 0.1 * RANDOM.normal(size=(60, 1))
SOLUTION = np.linalg.lstsq(np.hstack([X, np.ones((60, 1))]), Y, rcond=None)[0].ravel()


class Dense(keras.layers.Layer):
    """A dense layer in float64; on PyTorch, Keras multiplies matrices in float32."""

    def __init__(self, width, activation=lambda x: x, use_bias=True, **options):
        super().__init__(dtype=options.pop("dtype", "float64"))
        self.width, self.activation, self.use_bias = width, activation, use_bias
        self.options = options

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], self.width), name="kernel", **self.options)
        self.bias = self.add_weight(shape=(self.width,), initializer="zeros", name="bias")
        self.bias.trainable = self.use_bias

    def call(self, x):
        return self.activation(ops.sum(x[..., None] * self.kernel, axis=-2) + self.bias)


def loss(y_true, y_pred):
    """Squares in float64. Keras's own loss would cast to float32."""
    return ops.sum((y_true - y_pred) ** 2, axis=-1)


QUIET = {"loss": loss, "verbose": 0}


def linear(dtype="float64", **options):
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((3,), dtype=dtype), Dense(1, dtype=dtype, **options)])


def network():
    keras.utils.set_random_seed(3)
    layers = [Dense(5, lambda a: a / (1 + a * a)), Dense(1)]  # JAX rounds tanh
    return keras.Sequential([keras.Input((3,), dtype="float64"), *layers])


def vector(model):
    return np.concatenate(
        [ops.convert_to_numpy(v.value).ravel() for v in model.trainable_variables]
    )


def squares(w):
    """Return the loss of `network` and its gradient, computed in NumPy."""
    w1, b1, w2, b2 = np.split(w, [15, 20, 25])
    a = X @ w1.reshape(3, 5) + b1
    hidden = a / (1 + a**2)
    error = hidden @ w2[:, None] + b2 - Y
    back = 2 / 60 * error
    before = back @ w2[None] * (1 - a**2) / (1 + a**2) ** 2
    parts = X.T @ before, before.sum(0), hidden.T @ back, back.sum(0)
    return np.mean(error**2), np.concatenate([part.ravel() for part in parts])


class Pairs(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()

    def __len__(self):
        return 4

    def __getitem__(self, index):
        part = slice(16 * index, 16 * (index + 1))
        return X[part], Y[part]


class Watch(keras.callbacks.Callback):
    """Keep weights and logs of each iteration, and call `act(model)` in iteration `at`."""

    def __init__(self, at=None, act=None):
        super().__init__()
        self.at, self.act, self.weights, self.logs, self.begun = at, act, [], [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.begun.append(epoch)

    def on_epoch_end(self, epoch, logs=None):
        self.weights.append(vector(self.model))
        self.logs.append(logs)
        if epoch == self.at:
            self.act(self.model)


def stop(model):
    model.stop_training = True


def interrupt(model):
    raise KeyboardInterrupt
