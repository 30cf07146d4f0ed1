"""A model with a table, checks of `fit`, and the expected weights, which come from eager steps.

`checked` is a Case or a composition of optimizers. It has a `name`, and `make(**changes)`, which
returns an optimizer.
"""

import keras
import numpy as np

import keras_tfopt
from tests.helpers.compare import same
from tests.helpers.stepping import to_numpy

IDS = np.random.default_rng(0).integers(0, 6, size=(12, 2))
TARGETS = np.random.default_rng(1).normal(size=(12, 2)).astype("float32")
START = [np.random.default_rng(2).normal(size=s).astype("float32") for s in [(8, 3), (6, 2), (2,)]]
EPOCHS, BATCH = 2, 4
FIT = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
BASELINES = {}


def make_model(optimizer, **options):
    layers = [
        keras.layers.Embedding(8, 3, name="table"),
        keras.layers.Flatten(),
        keras.layers.Dense(2, name="dense"),
    ]
    model = keras.Sequential(layers)
    model.build((None, 2))
    model.set_weights(START)
    model.compile(optimizer, "mse", **options)
    return model


def fit(model, epochs=EPOCHS, **how):
    model.fit(IDS, TARGETS, **{**FIT, "epochs": epochs, **how})
    return model


def fitted(optimizer, options=None, **how):
    """Return a model that was compiled with some options and fitted."""
    return fit(make_model(optimizer, **(options or {})), **how)


def batches():
    for start in range(0, len(IDS), BATCH):
        yield IDS[start : start + BATCH], TARGETS[start : start + BATCH]


def state(model):
    return [to_numpy(v) for v in (*model.trainable_variables, *model.optimizer.variables)]


def close(a, b, rtol=2e-5, atol=2e-6):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)


def baseline(checked):
    """Return the weights after two epochs in which nothing is compiled."""
    if checked.name not in BASELINES:
        model = make_model(checked.make(), run_eagerly=True)
        with keras_tfopt.engine.plain():
            for _ in range(EPOCHS):
                for x, y in batches():
                    model.train_on_batch(x, y)
        assert not any(same([a], [b]) for a, b in zip(model.get_weights(), START))
        BASELINES[checked.name] = model.get_weights()
    return BASELINES[checked.name]


def equals_baseline(checked, model, **tolerance):
    close(model.get_weights(), baseline(checked), **tolerance)


# Checks of how a step is run


def run_eagerly(checked):
    equals_baseline(checked, fitted(checked.make(), {"run_eagerly": True}))


def jit_compile(checked):
    equals_baseline(checked, fitted(checked.make(), {"jit_compile": True}))


def steps_per_execution(checked):
    """An epoch has three steps, so the last execution is shorter."""
    equals_baseline(checked, fitted(checked.make(), {"steps_per_execution": 2}))
