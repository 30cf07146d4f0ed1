"""`keras_tfopt.layers.Embedding` in `fit`, beside the dense computation with Keras's own layer.

What is right comes from `Dense`, which trains the same model with `keras.layers.Embedding`, batch
by batch, by an optimizer that computes all rows and puts back, with a mask, those that were not in
the batch. Clipping, accumulation, averages and schedules are those of Keras there.
"""

import contextlib
import copy
import dataclasses
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_tfopt
from keras_tfopt.execution import Like, look_up, select
from keras_tfopt.execution import engine as engine_module
from keras_tfopt.execution.rows import deliver_rows
from tests.cases import every_rule
from tests.cells import INSTALLED, pick
from tests.stepping import BACKEND, make_variable, to_numpy

VOCABULARY, WIDTH, LENGTH = 60, 4, 6
BATCH, BATCHES, EPOCHS = 16, 3, 2
RATE = 1 / 32  # exact in float32, in which Keras keeps it
# Large enough for gradients that differ by rounding to give steps that differ by no more.
EPSILON = 1e-2

_rng = np.random.default_rng(0)
IDS = np.minimum(_rng.zipf(1.4, (2, BATCH * BATCHES, LENGTH)), VOCABULARY - 5).astype("int32")
TARGETS = _rng.normal(size=(BATCH * BATCHES, 1)).astype("float32")
CLASSES = _rng.integers(0, 3, BATCH * BATCHES).astype("int32")
WEIGHTS = np.maximum(_rng.normal(0.5, 1, BATCH * BATCHES), 0).astype("float32")


# ---- The dense computation -----------------------------------------------------------------------


class Dense(keras.optimizers.Optimizer):
    """Adam of all rows; then those of tables that are not `touched` are put back."""

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
        pass  # in `update_step`: only of rows that are touched

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
    """Keras's layer, but that rows are cast to half precision after they are taken, not before.

    What Keras rounds before it sums would not show what is right to more than two digits.
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
    """A loss of its own, state, noise, and a lookup that nothing depends on."""

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
    """The table is also what turns the result into scores."""

    def __init__(self, table):
        super().__init__()
        self.table, self.inner = table(VOCABULARY, WIDTH), layers.Dense(WIDTH)

    def call(self, ids):
        mean = self.inner(ops.mean(self.table(ids), axis=1))
        scores = ops.matmul(mean, ops.transpose(ops.convert_to_tensor(self.table.embeddings)))
        return ops.sum(scores, axis=1, keepdims=True)


class Cell(layers.Layer):
    """Looks a row up in every step of a loop."""

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


# ---- Jobs ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Job:
    model: Callable = sequential
    x: Any = dataclasses.field(default_factory=lambda: IDS[0])
    y: Any = dataclasses.field(default_factory=lambda: TARGETS)
    loss: str = "mse"
    looked_up: Callable = lambda x: [np.concatenate([np.ravel(part) for part in x])]  # by table
    options: dict = dataclasses.field(default_factory=dict)  # of the optimizer
    wrap: Callable | None = None  # what goes around ours
    fit: dict = dataclasses.field(default_factory=dict)
    compile: dict = dataclasses.field(default_factory=dict)
    policy: str = "float32"
    freezes: int | None = None  # the table that rests in the first epoch
    resumes: bool = False  # is saved and loaded after the first epoch
    rows: bool = True  # whether row gradients can be had
    reference: Any = layers.Embedding
    tolerance: float = 1e-6


def each(x):
    return [np.ravel(part) for part in x]


EMA = {"use_ema": True, "ema_momentum": 0.75}
HALF = {"reference": WholeTable}
SCHEDULE = keras.optimizers.schedules.PiecewiseConstantDecay([2, 5], [RATE, RATE / 2, RATE / 8])
FLOAT64 = {"policy": "float64", "tolerance": 1e-12}

JOBS = {
    "sequential": Job(),
    "float64": Job(**FLOAT64),
    "float64_three_lookups": Job(three_lookups, list(IDS), **FLOAT64),
    "negative_ids": Job(x=np.where(_rng.random(IDS[0].shape) < 0.2, IDS[0] - VOCABULARY, IDS[0])),
    "three_lookups": Job(three_lookups, list(IDS)),
    "two_tables": Job(two_tables, list(IDS), looked_up=each),
    "nested_and_shared": Job(nested, list(IDS)),
    "mask_zero_lstm": Job(masked_lstm, np.where(_rng.random(IDS[0].shape) < 0.3, 0, IDS[0])),
    "add_loss_batchnorm_dropout": Job(Subclassed),
    "class_weight": Job(
        lambda table: sequential(table, 3),
        y=CLASSES,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        fit={"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}},
    ),
    "sample_weight": Job(fit={"sample_weight": WEIGHTS}),
    "clipnorm": Job(options={"clipnorm": 0.01}),
    "clipvalue": Job(options={"clipvalue": 0.001}),
    "global_clipnorm": Job(three_lookups, list(IDS), options={"global_clipnorm": 0.01}),
    "weight_decay": Job(options={"weight_decay": 0.5}),
    "loss_scale_factor": Job(three_lookups, list(IDS), options={"loss_scale_factor": 64.0}),
    "loss_scale_optimizer": Job(
        three_lookups, list(IDS), wrap=lambda o: keras_tfopt.LossScaleOptimizer(o, 64.0)
    ),
    "loss_scale_optimizer_of_keras": Job(
        wrap=lambda o: keras.optimizers.LossScaleOptimizer(o, 64.0)
    ),
    "accumulation": Job(options={"gradient_accumulation_steps": 2}),
    "ema": Job(options=EMA),
    "ema_overwrite": Job(options={**EMA, "ema_overwrite_frequency": 3}),
    "schedule": Job(options={"learning_rate": SCHEDULE}),
    "frozen_at_first": Job(two_tables, list(IDS), looked_up=each, freezes=1),
    "mixed_bfloat16": Job(policy="mixed_bfloat16", **HALF),
    "mixed_float16": Job(policy="mixed_float16", **HALF),
    "validation": Job(fit={"validation_data": (IDS[1], TARGETS)}),
    "steps_per_execution": Job(compile={"steps_per_execution": 2}),
    "ragged_last_batch": Job(x=IDS[0][:-5], y=TARGETS[:-5]),
    "saved_and_resumed": Job(three_lookups, list(IDS), resumes=True),
    "wrapped": Job(wrap=lambda o: keras_tfopt.MovingAverage(keras_tfopt.SkipNonFinite(o))),
    "rematerialized_layer": Job(rematerialized_layer),
    "regularizer": Job(lambda table: sequential(table, embeddings_regularizer="l2"), rows=False),
    "tied": Job(Tied, rows=False),
    "in_a_loop": Job(in_a_loop, rows=BACKEND == "torch"),
    "rematerialized_model": Job(rematerialized_model, rows=BACKEND == "torch"),
}
REFUSED = {"torch": ["steps_per_execution"]}  # by Keras
for refused in REFUSED.get(BACKEND, ()):
    del JOBS[refused]
WAYS = {
    "compiled": {"jit_compile": True},
    "plain": {"jit_compile": False},
    "eagerly": {"run_eagerly": True, "jit_compile": False},
}
USUAL = {"tensorflow": "plain", "jax": "compiled", "torch": "plain"}[BACKEND]
# Unless the run is exhaustive, these are tried in every way, and the others in the usual one on one
# backend each.
EVERYWHERE = ("three_lookups", "accumulation")


def every_job():
    for name in JOBS:
        places = [place for place in INSTALLED if name not in REFUSED.get(place, ())]
        is_home = pick(places, name) == BACKEND
        for way in WAYS:
            rare = not (name in EVERYWHERE or (is_home and way == USUAL))
            marks = [pytest.mark.exhaustive] * rare + [pytest.mark.slow] * (way != USUAL)
            yield pytest.param(name, way, id=f"{name}-{way}", marks=marks)


@pytest.fixture(autouse=True)
def usual_policy():
    before = keras.config.dtype_policy(), keras.config.floatx()
    yield
    keras.config.set_dtype_policy(before[0])
    keras.config.set_floatx(before[1])


def make(job, table):
    keras.config.set_floatx("float64" if job.policy == "float64" else "float32")
    keras.config.set_dtype_policy(job.policy)
    keras.utils.set_random_seed(1)
    model = job.model(table)
    model([part[:2] for part in job.x] if isinstance(job.x, list) else job.x[:2])
    return model


def tables_of(model):
    return [v for v in model.weights if is_table(v)]


def train(job, way, tmp_path, table=None, optimizer=None):
    """Ours, by `fit`."""
    model = make(job, table or keras_tfopt.layers.Embedding)
    arguments = {"loss": job.loss, **job.compile, **WAYS[way]}

    def compile_(model):
        o = (optimizer or keras_tfopt.LazyAdam)(
            **{"learning_rate": RATE, "epsilon": EPSILON, **job.options}
        )
        model.compile(job.wrap(o) if job.wrap else o, **arguments)

    def fit(epochs):
        model.fit(job.x, job.y, BATCH, epochs=epochs, shuffle=False, verbose=0, **job.fit)

    if job.freezes is not None:
        set_trainable(model, job.freezes, False)
        compile_(model)
        fit(1)
        set_trainable(model, job.freezes, True)
    compile_(model)
    if not job.resumes:
        fit(EPOCHS)
        return model
    fit(1)
    model.save(tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras")
    fit(EPOCHS - 1)
    return model


def train_densely(job, way=USUAL):
    """The same with Keras's layer, batch by batch, by `Dense`."""
    # XLA rounds half precision at other places and draws other random numbers.
    jit = BACKEND != "torch" and way == "compiled"
    model = make(job, job.reference)
    masked = job.rows or job.model is in_a_loop
    weight = job.fit.get("sample_weight")
    x = job.x if isinstance(job.x, list) else [job.x]

    def run(epochs):
        tables = sum(map(is_table, model.trainable_variables))
        optimizer = Dense(**{"tables": tables, "masked": masked, **job.options})
        eagerly = way == "eagerly"  # where it is not, TensorFlow fuses and rounds half less often
        model.compile(optimizer, loss=job.loss, jit_compile=jit, run_eagerly=eagerly)
        trained = [n for n, v in enumerate(tables_of(model)) if v.trainable]
        since = [[] for _ in trained]  # ids since the last step
        for number in range(epochs * -(-len(job.y) // BATCH)):
            start = number * BATCH % (BATCH * -(-len(job.y) // BATCH))
            part = slice(start, start + BATCH)
            batch = [ids[part] for ids in x]
            ids = job.looked_up(batch)
            for n, mask in zip(trained, optimizer.touched, strict=True):
                since[trained.index(n)].append(ids[n])
                touched = np.zeros((VOCABULARY, 1))
                touched[np.concatenate(since[trained.index(n)])] = 1
                mask.assign(touched)
            if (number + 1) % (job.options.get("gradient_accumulation_steps") or 1) == 0:
                since = [[] for _ in trained]
            model.train_on_batch(
                batch if isinstance(job.x, list) else batch[0],
                job.y[part],
                sample_weight=None if weight is None else weight[part],
                class_weight=job.fit.get("class_weight"),
            )
        optimizer.finalize_variable_values(model.trainable_variables)

    if job.freezes is not None:
        set_trainable(model, job.freezes, False)
        run(1)
        set_trainable(model, job.freezes, True)
    run(EPOCHS)
    return model


def set_trainable(model, number, trainable):
    found = [v for v in model.layers if isinstance(v, keras.layers.Embedding)]
    found[number].trainable = trainable


@pytest.fixture
def modes(monkeypatch):
    """How the steps met tables: a set of (mode, whether rows were named)."""
    seen = set()
    plan = engine_module.Engine._plan

    def spy(self, *args):
        update = plan(self, *args)
        if is_table(update.variable):
            seen.add((update.kind.mode, update.kind.named))
        return update

    monkeypatch.setattr(engine_module.Engine, "_plan", spy)
    return seen


# ---- Correct in every case -----------------------------------------------------------------------


@pytest.mark.parametrize(("name", "way"), every_job())
def test_equals_the_dense_computation(name, way, modes, tmp_path):
    job = JOBS[name]
    ours = train(job, way, tmp_path)
    dense = train_densely(job, way)
    start = [to_numpy(v) for v in make(job, layers.Embedding).weights]
    assert any(
        np.abs(to_numpy(v) - s).max() > 100 * job.tolerance for v, s in zip(ours.weights, start)
    )
    for a, b in zip(ours.weights, dense.weights, strict=True):
        scale = np.maximum(1, np.abs(to_numpy(b)))
        assert np.max(np.abs(to_numpy(a) - to_numpy(b)) / scale) <= job.tolerance, a.path
    if job.rows:
        assert modes <= {("rows", True), ("touched", True)}
        resting = VOCABULARY - 2  # in no batch
        for variable in tables_of(ours):
            index = [v.path for v in ours.weights].index(variable.path)
            np.testing.assert_array_equal(to_numpy(variable)[resting], start[index][resting])


@pytest.mark.skipif(BACKEND == "tensorflow", reason="has no pieces")
def test_many_rows_are_updated_in_pieces(monkeypatch, tmp_path):
    """Pieces of three rows, the last one shorter."""
    constant = {"jax": "NUMBERS", "torch": "PIECE"}[BACKEND]
    monkeypatch.setattr(select.backend, constant, 3 * WIDTH)
    job = JOBS["three_lookups"]
    ours, dense = train(job, USUAL, tmp_path), train_densely(job)
    for a, b in zip(ours.weights, dense.weights, strict=True):
        np.testing.assert_allclose(to_numpy(a), to_numpy(b), rtol=0, atol=job.tolerance)


def why(model, x, y):
    """What `diagnose` says of the table: form of the gradient, the reason, and the warnings."""
    report = keras_tfopt.diagnose(model, batch=(x, y))
    (row,) = [row for row in report.rows if row["shape"] == (VOCABULARY, WIDTH)]
    return row["gradient"], row["why_dense"], "\n".join(report.warnings), row["touched"]


REASONS = {
    "regularizer": "regularizer",
    "tied": "more than lookups",
    "in_a_loop": "inside of a loop",
    "rematerialized_model": "rematerialized",
}


@pytest.mark.parametrize("name", ["sequential", "rematerialized_layer", *REASONS])
def test_diagnosis(name):
    job = JOBS[name]
    model = make(job, keras_tfopt.layers.Embedding)
    model.compile(keras_tfopt.LazyAdam(RATE), job.loss)
    gradient, reason, warnings, touched = why(model, job.x[:BATCH], job.y[:BATCH])
    if job.rows:
        assert (gradient, reason) == ("rows", None)
        assert touched == np.unique(job.x[:BATCH]).size
    else:
        assert gradient == "dense" and REASONS[name] in reason and reason in warnings


def test_diagnosis_of_keras_layer():
    model = make(Job(), layers.Embedding)
    model.compile(keras_tfopt.LazyAdam(RATE), "mse")
    gradient, reason, _, _ = why(model, IDS[0][:BATCH], TARGETS[:BATCH])
    if BACKEND == "tensorflow":  # which hands over rows, too
        assert (gradient, reason) == ("rows", None)
    else:
        assert gradient == "dense" and "swap_embeddings" in reason


# ---- In the place of Keras's layer ---------------------------------------------------------------


def compiled(table, optimizer=None):
    model = make(Job(), table)
    model.compile(optimizer or keras_tfopt.LazyAdam(RATE), "mse")
    return model


LAYER = keras_tfopt.layers.Embedding
OPTIMIZERS = {
    "keras SGD": lambda: keras.optimizers.SGD(0.1, momentum=0.5),
    "keras Adam": lambda: keras.optimizers.Adam(RATE),
    "Adam": lambda: keras_tfopt.Adam(RATE),
    "AddSign": lambda: keras_tfopt.AddSign(RATE),
    "GGT": lambda: keras_tfopt.GGT(RATE),
    "around Keras's": lambda: keras_tfopt.MovingAverage(keras.optimizers.Adam(RATE)),
}


class Product(keras.layers.Embedding):
    """Looks up by a product with ones and zeros: whatever the backend, the gradient is dense."""

    def call(self, ids):
        return ops.matmul(ops.one_hot(ids, self.input_dim), ops.convert_to_tensor(self.embeddings))


def assert_same_weights(models):
    for a, b in zip(*(model.weights for model in models), strict=True):
        np.testing.assert_allclose(to_numpy(a), to_numpy(b), rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_other_optimizers_get_dense_gradients(name):
    models = [compiled(table, OPTIMIZERS[name]()) for table in (LAYER, Product)]
    for model in models:
        model.fit(IDS[0], TARGETS, BATCH, epochs=1, shuffle=False, verbose=0)
    assert_same_weights(models)


def test_other_optimizers_after_ours_get_dense_gradients():
    models = [compiled(table) for table in (LAYER, Product)]
    earlier = []
    for model in models:
        model.fit(IDS[0], TARGETS, BATCH, epochs=1, shuffle=False, verbose=0)
        earlier.append(model.optimizer)
        model.compile(keras.optimizers.Adam(RATE), "mse")
        model.fit(IDS[0], TARGETS, BATCH, epochs=1, shuffle=False, verbose=0)
    assert_same_weights(models)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="about the tape of TensorFlow")
@pytest.mark.parametrize("name", ["keras Adam", "LazyAdam"])
@pytest.mark.parametrize("compiles", [False, True])
def test_a_loop_of_ones_own(name, compiles):
    import tensorflow as tf

    def train_in_a_loop(model):
        optimizer, kinds = (
            {"LazyAdam": lambda: keras_tfopt.LazyAdam(RATE), **OPTIMIZERS}[name](),
            [],
        )

        def step():
            with tf.GradientTape() as tape:
                loss = ops.mean((model(IDS[0]) - TARGETS) ** 2)
            gradients = tape.gradient(loss, model.trainable_weights)
            kinds.append(type(gradients[0]))
            optimizer.apply(gradients, model.trainable_weights)

        run = tf.function(step) if compiles else step
        for _ in range(3):
            run()
        return kinds[-1]

    models = [make(Job(), table) for table in (LAYER, Product)]
    kinds = [train_in_a_loop(model) for model in models]
    assert (kinds[0] is tf.IndexedSlices) == (name == "LazyAdam")
    assert kinds[1] is not tf.IndexedSlices
    assert_same_weights(models)


@every_rule
def test_rules_get_rows(case, modes):
    optimizer = case.make()
    if optimizer.scope == "model":
        return  # sees no rows; see OPTIMIZERS
    compiled(keras_tfopt.layers.Embedding, optimizer).train_on_batch(
        IDS[0][:BATCH], TARGETS[:BATCH]
    )
    by_rows = optimizer.takes_rows(Like((VOCABULARY, WIDTH), "float32", "embeddings"))
    mode = {"rows": "rows", "move_rows": "move", "dense": "dense"}
    sparse = optimizer.sparse if by_rows else "dense"
    assert modes == {(mode[sparse], sparse == "rows")}


def test_weights_go_both_ways(tmp_path):
    ours, keras_own = compiled(keras_tfopt.layers.Embedding), compiled(layers.Embedding)
    for source, target in ((ours, keras_own), (keras_own, ours)):
        for v in source.weights:
            v.assign(ops.convert_to_tensor(_rng.normal(size=v.shape), v.dtype))
        source.save_weights(tmp_path / "model.weights.h5")
        target.load_weights(tmp_path / "model.weights.h5")
        for a, b in zip(source.weights, target.weights, strict=True):
            np.testing.assert_array_equal(to_numpy(a), to_numpy(b))


@pytest.mark.slow
def test_saved_model_without_this_package(tmp_path):
    model = compiled(keras_tfopt.layers.Embedding, "sgd")
    model.save(tmp_path / "model.keras")
    program = f"""
import keras, numpy
given = {{"keras_tfopt>Embedding": keras.layers.Embedding}}
model = keras.saving.load_model({str(tmp_path / "model.keras")!r}, custom_objects=given)
assert type(model.layers[0]) is keras.layers.Embedding
numpy.save({str(tmp_path / "table.npy")!r}, model.get_weights()[0])
"""
    environment = {**os.environ, "KERAS_BACKEND": BACKEND}
    subprocess.run([sys.executable, "-c", program], env=environment, cwd=tmp_path, check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "table.npy"), model.get_weights()[0])


def test_same_configuration_as_keras_layer():
    arguments = {
        "embeddings_initializer": "ones",
        "embeddings_regularizer": "l2",
        "embeddings_constraint": "max_norm",
        "mask_zero": True,
        "name": "words",
    }
    ours = keras_tfopt.layers.Embedding(5, 3, **arguments)
    assert ours.get_config() == layers.Embedding(5, 3, **arguments).get_config()
    again = keras_tfopt.layers.Embedding.from_config(ours.get_config())
    assert type(again) is keras_tfopt.layers.Embedding and again.mask_zero
    table = np.arange(6.0).reshape(3, 2)
    given = keras_tfopt.layers.Embedding(3, 2, weights=table)
    np.testing.assert_array_equal(to_numpy(given(np.array([2, -3]))), table[[2, 0]])


def test_lora():
    layer = keras_tfopt.layers.Embedding(VOCABULARY, WIDTH, lora_rank=2)
    model = keras.Sequential([tokens(), layer, layers.Flatten(), layers.Dense(1)])
    model.compile(keras_tfopt.LazyAdam(RATE), "mse")
    before = to_numpy(layer._embeddings)
    model.fit(IDS[0], TARGETS, BATCH, verbose=0)
    np.testing.assert_array_equal(before, to_numpy(layer._embeddings))
    assert np.abs(to_numpy(layer.lora_embeddings_b)).max() > 0


@pytest.mark.parametrize("model", ["sequential", "nested_and_shared", "add_loss_batchnorm_dropout"])
def test_swapping(model, modes):
    """A model in the middle of its training goes on with the same weights and the same state."""
    job = JOBS[model]
    trained = []
    for swap in (False, True):
        found = make(job, layers.Embedding)
        found.compile(keras_tfopt.LazyAdam(RATE, epsilon=EPSILON), "mse")
        found.fit(job.x, job.y, BATCH, shuffle=False, verbose=0)
        before = [to_numpy(v) for v in found.weights]
        if swap:
            modes.clear()
            assert keras_tfopt.layers.swap_embeddings(found) is found
            for old, v in zip(before, found.weights, strict=True):
                np.testing.assert_array_equal(old, to_numpy(v))
        # Keras's layer touches what has a gradient that is not zero: here, all that is looked up.
        found.fit(job.x, job.y, BATCH, shuffle=False, verbose=0)
        trained.append([to_numpy(v) for v in found.weights])
    assert modes == {("rows", True)}
    for a, b in zip(*trained, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def test_swapping_leaves_others_alone():
    class Own(layers.Embedding):
        pass

    model = keras.Sequential([tokens(), Own(5, 3), layers.Flatten()])
    keras_tfopt.layers.swap_embeddings(model)
    assert type(model.layers[0]) is Own
    with pytest.raises(TypeError, match="`model` must be"):
        keras_tfopt.layers.swap_embeddings([model])


# ---- Ids out of range ----------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [VOCABULARY, -VOCABULARY - 1])
def test_out_of_range_is_an_error_in_eager_calls(wrong):
    ids = IDS[0][:BATCH].copy()
    ids[3, 2] = wrong
    message = rf"has {VOCABULARY} rows. Received: id {wrong}"
    layer = keras_tfopt.layers.Embedding(VOCABULARY, WIDTH)
    with pytest.raises(ValueError, match=message):
        layer(ids)
    model = compiled(keras_tfopt.layers.Embedding)
    model.compile(keras_tfopt.LazyAdam(RATE), "mse", run_eagerly=True, jit_compile=False)
    before = [to_numpy(v) for v in model.weights]
    with pytest.raises(ValueError, match=message):
        model.train_on_batch(ids, TARGETS[:BATCH])
    for old, v in zip(before, model.weights, strict=True):
        np.testing.assert_array_equal(old, to_numpy(v))


@pytest.mark.skipif(BACKEND == "torch", reason="steps of torch are not compiled as a whole")
def test_out_of_range_in_compiled_steps():
    """As the backend has it; and it is counted."""
    ids = IDS[0][:BATCH].copy()
    ids[3, 2] = VOCABULARY
    model = compiled(keras_tfopt.layers.Embedding)
    model.compile(keras_tfopt.LazyAdam(RATE), "mse", jit_compile=True)
    table = tables_of(model)[0]
    before = to_numpy(table)
    loss = model.train_on_batch(ids, TARGETS[:BATCH])
    assert np.isnan(loss) == (BACKEND == "jax")
    resting = np.setdiff1d(np.arange(VOCABULARY), ids)
    np.testing.assert_array_equal(before[resting], to_numpy(table)[resting])
    with pytest.raises(ValueError, match="1 indices out of range in earlier compiled steps"):
        model.optimizer.raise_refused()


# ---- The gradient itself -------------------------------------------------------------------------


def test_notes_on_gradients_are_forgotten():
    if BACKEND != "jax":
        pytest.skip("only JAX keeps notes")
    from keras_tfopt.execution import jax_lookup

    for optimizer in (keras.optimizers.Adam(RATE), keras_tfopt.LazyAdam(RATE)):
        compiled(keras_tfopt.layers.Embedding, optimizer).fit(IDS[0], TARGETS, verbose=0)
    gc.collect()
    assert not jax_lookup._NOTES


@pytest.mark.skipif(BACKEND != "torch", reason="about tensors of torch")
def test_lazy_gradient_is_an_ordinary_tensor_to_others():
    import torch

    table = make_variable("table/embeddings", np.zeros((VOCABULARY, WIDTH)))
    deliver_rows(table)

    def gradient(factor=1.0):
        table.value.grad = None
        ids = torch.tensor([3, 1, 3])
        (factor * look_up(table, ids)).sum().backward()
        (factor * look_up(table, ids[:1])).sum().backward()  # into the same `grad`
        return table.value.grad

    dense = np.zeros((VOCABULARY, WIDTH), "float32")
    dense[[3, 1]] = [[3], [1]]
    assert gradient().rows() is not None
    np.testing.assert_array_equal(gradient().numpy(), dense)
    np.testing.assert_array_equal((gradient() + 1).numpy(), dense + 1)
    np.testing.assert_array_equal(torch.cat([gradient(), gradient()]).numpy(), [*dense, *dense])
    np.testing.assert_array_equal(copy.deepcopy(gradient()).numpy(), dense)
    np.testing.assert_array_equal((gradient() / 2).rows().values.numpy()[:, 0], [0.5] * 4)
    written = gradient()
    written.mul_(2)
    assert written.rows() is None
    np.testing.assert_array_equal(written.numpy(), 2 * dense)
    torch.nn.utils.clip_grad_norm_([table.value], 1e-3)
    np.testing.assert_allclose(np.linalg.norm(table.value.grad.numpy()), 1e-3, rtol=1e-3)
    optimizer = torch.optim.Adam([table.value], 0.1)
    gradient()
    optimizer.step()
    moved = np.flatnonzero(to_numpy(table).any(axis=1))
    assert moved.tolist() == [1, 3]


@pytest.mark.skipif(BACKEND != "jax", reason="what XLA says of a step compiled by jax.jit")
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_memory_of_a_compiled_step(policy):
    """In proportion to the rows touched, whatever the table; writing is done in place."""
    import jax

    keras.config.set_dtype_policy(policy)
    rows, width, count = 200_000, 32, 256
    table = 4 * rows * width

    def analysis(layer, ids):
        model = keras.Sequential(
            [
                keras.Input((8,), dtype="int32"),
                layer(rows, width),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )
        model.compile(keras_tfopt.LazyAdam(RATE), "mse")
        model.optimizer.build(model.trainable_variables)
        groups = (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
        state = tuple([v.value for v in group] for group in groups)
        batch = np.zeros((ids // 8, 8), "int32"), np.zeros((ids // 8, 1), "float32")
        step = jax.jit(model.train_step, donate_argnums=0)
        return step.lower(state, batch).compile().memory_analysis()

    few, many = (analysis(keras_tfopt.layers.Embedding, n) for n in (count, 4 * count))
    assert few.alias_size_in_bytes >= 3 * table
    assert few.temp_size_in_bytes < 32 * 4 * count * width
    assert many.temp_size_in_bytes < 32 * 4 * 4 * count * width < table / 4
    if policy == "float32":
        assert analysis(layers.Embedding, count).temp_size_in_bytes >= table  # the dense gradient
