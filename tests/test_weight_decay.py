"""`exclude_from_weight_decay`: the variables that do not decay."""

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.helpers.options import small_data, small_model
from tests.helpers.stepping import Runner, make_variable, through_json


def decayed(optimizer, paths=("a/kernel", "a/bias", "b/kernel", "b/kernel_scale")):
    """Return the paths of variables that decay in a step with zero gradients."""
    runner = Runner(optimizer, {path: np.ones(2) for path in paths})
    runner.step({path: np.zeros(2) for path in paths})
    for path, value in runner.values.items():
        assert np.all(value == 1) or np.max(np.abs(value - 0.95)) < 1e-6, path
    return {path for path, value in runner.values.items() if np.all(value < 1)}


def decaying(cls=keras_tfopt.Adam):
    return cls(0.1, weight_decay=0.5)


def test_exclusion_matches_paths():
    every = {"a/kernel", "a/bias", "b/kernel", "b/kernel_scale"}
    assert decayed(decaying()) == every
    for names, left in (
        (["bias"], every - {"a/bias"}),
        ("bias", every - {"a/bias"}),
        (["a/"], {"b/kernel", "b/kernel_scale"}),
        ([r"^b/.*l$", "bias"], {"a/kernel", "b/kernel_scale"}),
        ([r"nel$"], {"a/bias", "b/kernel_scale"}),
        ([""], set()),
        ([], every),
    ):
        optimizer = decaying()
        optimizer.exclude_from_weight_decay(var_names=names)
        assert decayed(optimizer) == left, names


def test_exclusion_survives_the_config():
    optimizer = decaying()
    kernel = make_variable("a/kernel", np.ones(2))
    optimizer.exclude_from_weight_decay(var_list=[kernel], var_names=["bias"])
    again = through_json(optimizer)
    assert again.get_config() == optimizer.get_config()
    assert decayed(again) == {"b/kernel", "b/kernel_scale"}


def test_exclusion_survives_a_saved_model(tmp_path):
    model = small_model()
    optimizer = decaying(keras_tfopt.Momentum)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    model.set_weights([np.ones(w.shape) for w in model.get_weights()])
    model.compile(optimizer, "mse")
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for each in (model, again):
        each.train_on_batch(*small_data(), sample_weight=np.zeros(24))  # the gradient is zero
        table, kernel, bias = each.get_weights()
        assert np.all(table == 1)  # no row is touched
        assert np.all(kernel < 1) and np.all(bias == 1)


def test_exclusion_is_refused_once_built():
    optimizer = decaying()
    optimizer.build([make_variable("a/kernel", np.ones(2))])
    with pytest.raises(ValueError, match="before the optimizer is built"):
        optimizer.exclude_from_weight_decay(var_names=["bias"])
    with pytest.raises(ValueError, match="var_names"):
        decaying().exclude_from_weight_decay(var_names=["("])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("make", [keras.Variable, lambda value: lambda: value])
def test_a_changing_decay_times_the_learning_rate(make, dtype):
    inner = keras_tfopt.GradientDescent(0.5)
    optimizer = keras_tfopt.DecoupledWeightDecay(inner, make(0.25), scale_by_learning_rate=True)
    kernel = keras.Variable(np.ones(2), dtype=dtype)
    optimizer.apply([keras.ops.zeros(2, dtype)], [kernel])
    np.testing.assert_allclose(keras.ops.convert_to_numpy(kernel), 1 - 0.25 * 0.5, 1e-6)
