"""`RefreshBatchNormalization` computes statistics with averaged weights, and changes no others."""

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.helpers.compare import same
from tests.helpers.stepping import to_numpy

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 5)).astype("float32")
Y = RNG.normal(size=(24, 1)).astype("float32")
BATCHES = [X[:8], X[8:16], X[16:]]
FIT = {"batch_size": 6, "epochs": 2, "shuffle": False, "verbose": 0}
Refresh = keras_tfopt.callbacks.RefreshBatchNormalization


def make_model(optimizer=None, **options):
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Dense(4, "tanh"),
        keras.layers.BatchNormalization(momentum=0.9, **options),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential([keras.Input((5,)), *layers])
    model.compile(optimizer or keras_tfopt.ScheduleFree(keras_tfopt.Adam(0.1)), "mse")
    return model


def weights(model):
    return [to_numpy(v) for v in model.trainable_variables]


def statistics(model):
    return [to_numpy(v) for v in model.layers[1].non_trainable_weights]


def expected(model):
    """Return the statistics: means over batches of mean and variance, in NumPy."""
    with keras_tfopt.averaged(model):
        kernel, bias = (to_numpy(v) for v in model.layers[0].weights)
        outputs = [np.tanh(batch.astype("float64") @ kernel + bias) for batch in BATCHES]
    return [np.mean([moment(out, 0) for out in outputs], 0) for moment in (np.mean, np.var)]


def assert_statistics(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.spread("jax")
def test_statistics_that_are_nan_heal():
    model = make_model()
    model.fit(X, Y, **FIT)
    for v in model.layers[1].non_trainable_weights:
        v.assign(np.full(4, np.nan, "float32"))
    model.evaluate(X, Y, callbacks=[Refresh(BATCHES)], verbose=0)
    assert_statistics(statistics(model), expected(model))


@pytest.mark.spread("jax")
def test_the_training_itself_does_not_change():
    plain, refreshed = make_model(), make_model()
    plain.fit(X, Y, **FIT)
    refreshed.fit(X, Y, callbacks=[Refresh(BATCHES)], **FIT)
    assert same(weights(plain), weights(refreshed))
    assert refreshed.layers[1].momentum == 0.9
    assert_statistics(statistics(refreshed), expected(refreshed))
    assert not np.allclose(statistics(plain)[0], expected(plain)[0], atol=1e-3)


@pytest.mark.parametrize("verb", ["evaluate", "predict"])
def test_before_an_evaluation(verb):
    model = make_model()
    model.fit(X, Y, **FIT)
    averages = keras_tfopt.callbacks.EvaluateWithAverages()
    arguments = (X, Y) if verb == "evaluate" else (X,)
    found = getattr(model, verb)(*arguments, callbacks=[Refresh(BATCHES), averages], verbose=0)
    assert_statistics(statistics(model), expected(model))
    with keras_tfopt.averaged(model):
        np.testing.assert_allclose(found, getattr(model, verb)(*arguments, verbose=0), rtol=1e-5)


@pytest.mark.spread("torch")
def test_checkpoints_have_the_statistics(tmp_path):
    model, path = make_model(), tmp_path / "averages.weights.h5"
    save = keras_tfopt.callbacks.AveragesCheckpoint(path, save_weights_only=True)
    model.fit(X, Y, callbacks=[Refresh(BATCHES), save], **FIT)
    loaded = make_model("sgd")
    loaded.load_weights(path, skip_mismatch=True)
    assert_statistics(statistics(loaded), expected(model))


@pytest.mark.spread("torch")
@pytest.mark.parametrize(
    ("make", "batches", "message"),
    [
        (make_model, [], "`batches` must have at least one batch"),
        (lambda: make_model(trainable=False), BATCHES, "a trainable BatchNormalization layer"),
        (lambda: make_model("sgd"), BATCHES, "averages"),
    ],
)
def test_refused(make, batches, message):
    model = make()
    model.train_on_batch(X, Y)
    with pytest.raises(ValueError, match=message):
        model.evaluate(X, Y, callbacks=[Refresh(batches)], verbose=0)
    assert model.layers[1].momentum == 0.9


@pytest.mark.spread
@pytest.mark.parametrize("batches", [None, 3, iter(BATCHES)])
def test_batches_must_be_readable_more_than_once(batches):
    with pytest.raises(TypeError, match="`batches` must be a list of inputs .* more than once"):
        Refresh(batches)
