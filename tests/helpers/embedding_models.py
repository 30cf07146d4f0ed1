"""Models with tables, and the optimizer `Dense`, which puts back rows that are not touched."""

import contextlib

import keras
import numpy as np
from keras import layers, ops

from tests.helpers.stepping import BACKEND

VOCABULARY, WIDTH, LENGTH = 60, 4, 6


BATCH, BATCHES, EPOCHS = 16, 3, 2


RATE = 1 / 32  # exact in float32, in which Keras keeps it


# Large enough, so that rounding of a gradient changes the step by no more than rounding.
EPSILON = 1e-2


_rng = np.random.default_rng(0)


IDS = np.minimum(_rng.zipf(1.4, (2, BATCH * BATCHES, LENGTH)), VOCABULARY - 5).astype("int32")


TARGETS = _rng.normal(size=(BATCH * BATCHES, 1)).astype("float32")


CLASSES = _rng.integers(0, 3, BATCH * BATCHES).astype("int32")


WEIGHTS = np.maximum(_rng.normal(0.5, 1, BATCH * BATCHES), 0).astype("float32")


# ---- The dense computation -----------------------------------------------------------------------


class Dense(keras.optimizers.Optimizer):
    """Adam of all rows. It then puts back the rows of tables that are not `touched`."""

    def __init__(self, learning_rate=RATE, tables=0, masked=True, **base):
        super().__init__(learning_rate, **base)
        self.masked, self.touched = masked, []
        for _ in range(tables):
            self.touched.append(self.add_variable((VOCABULARY, 1), "zeros", name="touched"))

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.m = [self.add_variable_from_reference(v, "m") for v in variables]
        self.v = [self.add_variable_from_reference(v, "v") for v in variables]
        tables = [self._get_variable_index(v) for v in variables if is_table(v)]
        self.mask_of = dict(zip(tables, self.touched, strict=True))

    def apply(self, grads, trainable_variables=None):
        super().apply([densely(g) for g in grads], trainable_variables)

    def _apply_weight_decay(self, variables):
        pass  # `update_step` decays the touched rows

    def _backend_update_step(self, grads, variables, learning_rate):
        with no_gradients():
            for g, variable in zip(grads, variables, strict=True):
                self.update_step(g, variable, learning_rate)

    def update_step(self, g, variable, learning_rate):
        index = self._get_variable_index(variable)
        m, v, x = (ops.convert_to_tensor(s) for s in (self.m[index], self.v[index], variable))
        old, g = (m, v, x), ops.cast(g, x.dtype)
        rate, step = (ops.cast(n, x.dtype) for n in (learning_rate, self.iterations + 1))
        if self.weight_decay:
            x = x - rate * self.weight_decay * x
        m = m + (g - m) * (1 - 0.9)
        v = v + (g * g - v) * (1 - 0.999)
        beta_1, beta_2 = (ops.convert_to_tensor(b, x.dtype) for b in (0.9, 0.999))
        correction = ops.sqrt(1 - ops.power(beta_2, step)) / (1 - ops.power(beta_1, step))
        x = x - rate * correction * m / (ops.sqrt(v) + EPSILON)
        new = (m, v, x)
        if index in self.mask_of:
            touched = ops.any(g != 0, axis=1, keepdims=True)
            if self.masked:
                touched = ops.convert_to_tensor(self.mask_of[index]) > 0
            new = [ops.where(touched, a, b) for a, b in zip(new, old, strict=True)]
        for target, value in zip((self.m[index], self.v[index], variable), new, strict=True):
            target.assign(value)


def densely(gradient):
    if BACKEND != "tensorflow" or gradient is None:
        return gradient
    import tensorflow as tf

    return tf.convert_to_tensor(gradient)


def no_gradients():
    if BACKEND != "torch":
        return contextlib.nullcontext()
    import torch

    return torch.no_grad()


class WholeTable(keras.layers.Embedding):
    """Keras's layer, except that it casts rows to half precision and not the whole table.

    With Keras's cast, sums of gradients are right to two digits only.
    """

    def add_weight(self, *args, **kwargs):
        return super().add_weight(*args, **{**kwargs, "autocast": False})


def is_table(variable):
    return tuple(variable.shape) == (VOCABULARY, WIDTH)


# ---- Models --------------------------------------------------------------------------------------


def tokens():
    return keras.Input((LENGTH,), dtype="int32")


def sequential(table, head=1, **arguments):
    return keras.Sequential(
        [
            tokens(),
            table(VOCABULARY, WIDTH, **arguments),
            layers.GlobalAveragePooling1D(),
            layers.Dense(4, "tanh", kernel_regularizer="l2"),
            layers.Dense(head),
        ]
    )


def three_lookups(table):
    a, b, shared = tokens(), tokens(), table(VOCABULARY, WIDTH)
    parts = [layers.Flatten()(shared(a)), layers.Flatten()(shared(b))]
    parts.append(layers.GlobalMaxPooling1D()(shared(a)))
    return keras.Model([a, b], layers.Dense(1)(layers.Concatenate()(parts)))


def two_tables(table):
    a, b = tokens(), tokens()
    pooled = [layers.GlobalAveragePooling1D()(table(VOCABULARY, WIDTH)(x)) for x in (a, b)]
    return keras.Model([a, b], layers.Dense(1)(layers.Dot(1)(pooled)))


def nested(table):
    inner = keras.Sequential(
        [tokens(), table(VOCABULARY, WIDTH), layers.Flatten(), layers.Dense(4)]
    )
    a, b = tokens(), tokens()
    return keras.Model([a, b], layers.Dense(1)(layers.Add()([inner(a), inner(b)])))


def masked_lstm(table):
    return keras.Sequential(
        [tokens(), table(VOCABULARY, WIDTH, mask_zero=True), layers.LSTM(4), layers.Dense(1)]
    )


class Subclassed(keras.Model):
    """A model with `add_loss`, state, dropout, and a lookup that nothing depends on."""

    def __init__(self, table):
        super().__init__()
        self.table, self.out = table(VOCABULARY, WIDTH), layers.Dense(1)
        self.noise, self.normalization = layers.Dropout(0.3, seed=1), layers.BatchNormalization()

    def call(self, ids, training=None):
        rows = self.table(ids)
        self.add_loss(1e-2 * ops.mean(ops.square(rows)))
        self.table(ops.full_like(ids, VOCABULARY - 1))
        mean = self.normalization(ops.mean(rows, axis=1), training=training)
        return self.out(self.noise(mean, training=training))


class Tied(keras.Model):
    """A model that also multiplies by the table at its end."""

    def __init__(self, table):
        super().__init__()
        self.table, self.inner = table(VOCABULARY, WIDTH), layers.Dense(WIDTH)

    def call(self, ids):
        mean = self.inner(ops.mean(self.table(ids), axis=1))
        scores = ops.matmul(mean, ops.transpose(ops.convert_to_tensor(self.table.embeddings)))
        return ops.sum(scores, axis=1, keepdims=True)


class Cell(layers.Layer):
    """A recurrent cell that looks up a row in every step."""

    def __init__(self, table):
        super().__init__()
        self.table, self.inner = table(VOCABULARY, WIDTH), layers.Dense(WIDTH)
        self.state_size = self.output_size = WIDTH

    def build(self, input_shape):
        self.table.build(None)
        self.inner.build((None, WIDTH))
        super().build(input_shape)

    def call(self, ids, states):
        rows = self.table(ops.cast(ids[:, 0], "int32"))
        state = ops.tanh(rows + self.inner(states[0]))
        return state, [state]


def in_a_loop(table):
    a = tokens()
    steps = layers.Reshape((LENGTH, 1))(a)
    return keras.Model(a, layers.Dense(1)(layers.RNN(Cell(table))(steps)))


def rematerialized_layer(table):
    with keras.RematScope(mode="full"):
        layer = table(VOCABULARY, WIDTH)
    return keras.Sequential([tokens(), layer, layers.GlobalAveragePooling1D(), layers.Dense(1)])


def rematerialized_model(table):
    inner = sequential(table)

    class Whole(keras.Model):
        def call(self, ids):
            return keras.remat(inner)(ids)

    model = Whole()
    model.inner = inner
    return model
