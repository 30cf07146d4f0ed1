"""`SwapEMAWeights`: the model has averages only while it is evaluated."""

import keras
import numpy as np
import pytest

import keras_tfopt

X, Y = np.eye(4, dtype="float32"), np.arange(4.0, dtype="float32")[:, None]


class Watch(keras.callbacks.Callback):
    """A callback that keeps the weights of each batch."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_predict_batch_end(self, batch, logs=None):
        self.seen.append(weights(self.model))

    on_test_batch_end = on_predict_batch_end


def weights(model):
    return np.concatenate([w.ravel() for w in model.get_weights()])


@pytest.fixture
def model():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = keras_tfopt.Momentum(0.1, use_ema=True, ema_momentum=0.9)
    model.compile(optimizer, "mse")
    for _ in range(5):
        model.train_on_batch(X, Y)
    return model


@pytest.mark.parametrize("verb", ["predict", "evaluate"])
def test_the_model_has_averages_during_an_evaluation(model, verb):
    trained = weights(model)
    averages = [v for v in model.optimizer.variables if v.name.endswith("average")]
    expected = np.concatenate([keras.ops.convert_to_numpy(a).ravel() for a in averages])
    assert np.abs(expected - trained).max() > 0.01
    outputs = model.predict(X, verbose=0)
    watch, swap = Watch(), keras_tfopt.callbacks.SwapEMAWeights()
    arguments = (X,) if verb == "predict" else (X, Y)
    result = getattr(model, verb)(*arguments, verbose=0, callbacks=[swap, watch])
    np.testing.assert_allclose(watch.seen[0], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(weights(model), trained, rtol=1e-6, atol=1e-7)
    kernel, bias = expected[:4], expected[4]
    by_averages = X @ kernel[:, None] + bias
    if verb == "predict":
        np.testing.assert_allclose(result, by_averages, rtol=1e-5, atol=1e-5)
        assert np.abs(result - outputs).max() > 0.01
    else:
        np.testing.assert_allclose(result, np.mean((by_averages - Y) ** 2), rtol=1e-5)


def test_an_optimizer_without_averages_is_refused():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras_tfopt.Momentum(0.1), "mse")
    model.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)
    swap = keras_tfopt.callbacks.SwapEMAWeights()
    with pytest.raises(ValueError, match="use_ema=True"):
        model.evaluate(np.ones((2, 2)), np.ones((2, 1)), verbose=0, callbacks=[swap])
