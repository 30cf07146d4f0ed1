"""Trainings of models with tables: by `fit` with our layer, and by `Dense` with Keras's layer."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import keras_tfopt
from tests.cells import INSTALLED, pick
from tests.helpers.embedding_models import (
    BATCH,
    CLASSES,
    EPOCHS,
    EPSILON,
    IDS,
    RATE,
    TARGETS,
    VOCABULARY,
    WEIGHTS,
    Dense,
    Subclassed,
    Tied,
    WholeTable,
    _rng,
    in_a_loop,
    is_table,
    masked_lstm,
    nested,
    rematerialized_layer,
    rematerialized_model,
    sequential,
    three_lookups,
    two_tables,
)
from tests.helpers.stepping import BACKEND

# ---- Jobs ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Job:
    model: Callable = sequential
    x: Any = dataclasses.field(default_factory=lambda: IDS[0])
    y: Any = dataclasses.field(default_factory=lambda: TARGETS)
    loss: str = "mse"
    looked_up: Callable = lambda x: [np.concatenate([np.ravel(part) for part in x])]  # per table
    options: dict = dataclasses.field(default_factory=dict)  # of the optimizer
    wrap: Callable | None = None  # makes a wrapper around our optimizer
    fit: dict = dataclasses.field(default_factory=dict)
    compile: dict = dataclasses.field(default_factory=dict)
    policy: str = "float32"
    freezes: int | None = None  # number of the table that is frozen in the first epoch
    resumes: bool = False  # whether the model is saved and loaded after the first epoch
    rows: bool = True  # whether the table gets row gradients
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
    "float64_three_lookups": Job(three_lookups, list(IDS), **FLOAT64),
    "nested_and_shared": Job(nested, list(IDS)),
    "mask_zero_lstm": Job(masked_lstm, np.where(_rng.random(IDS[0].shape) < 0.3, 0, IDS[0])),
    "add_loss_batchnorm_dropout": Job(Subclassed),
    "class_weight": Job(
        lambda table: sequential(table, 3),
        y=CLASSES,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        fit={"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}},
    ),
    "sample_weight_validation_and_ragged_last_batch": Job(
        x=IDS[0][:-5],
        y=TARGETS[:-5],
        fit={"sample_weight": WEIGHTS[:-5], "validation_data": (IDS[1], TARGETS)},
    ),
    "clipnorm_and_weight_decay": Job(options={"clipnorm": 0.01, "weight_decay": 0.5}),
    "clipvalue_and_schedule": Job(options={"clipvalue": 0.001, "learning_rate": SCHEDULE}),
    "global_clipnorm_and_loss_scale_factor": Job(
        three_lookups, list(IDS), options={"global_clipnorm": 0.01, "loss_scale_factor": 64.0}
    ),
    "loss_scale_optimizer": Job(
        three_lookups, list(IDS), wrap=lambda o: keras_tfopt.LossScaleOptimizer(o, 64.0)
    ),
    "loss_scale_optimizer_of_keras": Job(
        wrap=lambda o: keras.optimizers.LossScaleOptimizer(o, 64.0), rows=BACKEND == "torch"
    ),
    "accumulation_and_negative_ids": Job(
        x=np.where(_rng.random(IDS[0].shape) < 0.2, IDS[0] - VOCABULARY, IDS[0]),
        options={"gradient_accumulation_steps": 2},
    ),
    "ema": Job(options=EMA),
    "ema_overwrite": Job(options={**EMA, "ema_overwrite_frequency": 3}),
    "frozen_at_first": Job(two_tables, list(IDS), looked_up=each, freezes=1),
    "mixed_bfloat16": Job(policy="mixed_bfloat16", **HALF),
    "mixed_float16": Job(policy="mixed_float16", wrap=keras_tfopt.LossScaleOptimizer, **HALF),
    "mixed_float16_of_keras": Job(policy="mixed_float16", rows=BACKEND == "torch", **HALF),
    "steps_per_execution": Job(compile={"steps_per_execution": 2}),
    "saved_and_resumed": Job(three_lookups, list(IDS), resumes=True),
    "wrapped": Job(wrap=lambda o: keras_tfopt.MovingAverage(keras_tfopt.SkipNonFinite(o))),
    "rematerialized_layer": Job(rematerialized_layer),
    "regularizer": Job(lambda table: sequential(table, embeddings_regularizer="l2"), rows=False),
    "tied": Job(Tied, rows=False),
    "in_a_loop": Job(in_a_loop, rows=BACKEND == "torch"),
    "rematerialized_model": Job(rematerialized_model, rows=BACKEND == "torch"),
}


SEVERAL = (three_lookups, nested)  # models with several lookups in one table
REFUSED = {"torch": ["steps_per_execution"]}  # jobs that Keras refuses


for refused in REFUSED.get(BACKEND, ()):
    del JOBS[refused]


WAYS = {
    "compiled": {"jit_compile": True},
    "plain": {"jit_compile": False},
    "eagerly": {"run_eagerly": True, "jit_compile": False},
}


USUAL = {"tensorflow": "plain", "jax": "compiled", "torch": "plain"}[BACKEND]


# Ways that take long, even for one job.
SLOW = {"tensorflow": (), "jax": ("plain", "eagerly"), "torch": ("compiled",)}[BACKEND]


def every_job():
    """Yield parameters: a job and a way. Those that only exhaustive runs take are marked.

    The first job runs on every backend, in each way that is not slow. Each other job runs on one
    backend, in the usual way.
    """
    for name in JOBS:
        places = [place for place in INSTALLED if name not in REFUSED.get(place, ())]
        is_home = pick(places, name) == BACKEND
        for way in WAYS:
            rare = way in SLOW or not (name == "sequential" or (is_home and way == USUAL))
            marks = [pytest.mark.exhaustive] * rare + [pytest.mark.slow] * (way != USUAL)
            yield pytest.param(name, way, id=f"{name}-{way}", marks=marks)


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
    """Train with our layer and optimizer, by `fit`."""
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
    """Train the same model with Keras's layer, batch by batch, by `Dense`."""
    # XLA rounds half precision at other places, and draws other random numbers.
    jit = BACKEND != "torch" and way == "compiled"
    model = make(job, job.reference)
    masked = job.rows or job.model is in_a_loop
    weight = job.fit.get("sample_weight")
    x = job.x if isinstance(job.x, list) else [job.x]

    def run(epochs):
        tables = sum(map(is_table, model.trainable_variables))
        optimizer = Dense(**{"tables": tables, "masked": masked, **job.options})
        eagerly = way == "eagerly"  # compiled steps of TensorFlow round half less often
        model.compile(optimizer, loss=job.loss, jit_compile=jit, run_eagerly=eagerly)
        trained = [n for n, v in enumerate(tables_of(model)) if v.trainable]
        since = [[] for _ in trained]  # ids since the last step, for each table
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


def compiled(table, optimizer=None):
    model = make(Job(), table)
    model.compile(optimizer or keras_tfopt.LazyAdam(RATE), "mse", **WAYS[USUAL])
    return model
