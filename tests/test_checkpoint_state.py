"""State in checkpoints of TensorFlow 1: averages, GGT, half precision, loss scaling."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from keras_tfopt import legacy
from tests.helpers.checkpoints import (
    ADAM,
    NAMES,
    adam,
    assert_loaded,
    assert_refused,
    assert_same,
    contents,
    dense,
    needs_tensorflow,
    recorded,
)
from tests.helpers.stepping import policy, to_numpy

pytestmark = [pytest.mark.spread("tensorflow"), needs_tensorflow]


def test_averages_go_into_those_of_any_optimizer():
    prefix = recorded("MovingAverage_Momentum", "normal/model.ckpt-5")
    theirs = contents(prefix)
    model, optimizer = dense(), keras_tfopt.Momentum(0.1, use_ema=True)
    assert not legacy.load_checkpoint(prefix, model, optimizer).problems
    with keras_tfopt.averaged(model, optimizer):
        assert_same(model.weights, [theirs[f"{name}/ExponentialMovingAverage"] for name in NAMES])
    # If the file has no averages, they start at the weights.
    model = dense()
    optimizer = keras_tfopt.MovingAverage(keras_tfopt.Momentum(0.1))
    report = legacy.load_checkpoint(recorded("Momentum"), model, optimizer, strict=False)
    assert len(report.problems) == len(report.of("missing")) == 4
    assert_same([optimizer.slot(v, "average") for v in model.weights], model.weights)


def test_weights_alone():
    model = dense()
    report = legacy.load_checkpoint(recorded(), model, None)
    assert not report.problems and len(report.of("not needed")) == 11
    assert_same(model.weights, [contents(recorded())[name] for name in NAMES])
    swapped = recorded("MovingAverage_Momentum", "swapping/model.ckpt-5")
    legacy.load_checkpoint(swapped, model, None, swapped=True)
    theirs = contents(swapped)
    assert_same(model.weights, [theirs[f"{name}/ExponentialMovingAverage"] for name in NAMES])


def test_columns_of_ggt_belong_to_the_right_variables():
    """The optimizer may be built with the variables in another order."""
    theirs = contents(recorded("GGT"))
    places, start = {}, 0
    for name in ("dense/bias", "dense/kernel", "dense_1/bias", "dense_1/kernel"):
        places[name] = slice(start, start + theirs[name].size)
        start += theirs[name].size
    model, optimizer = dense(), keras_tfopt.GGT(0.0028, window=3, svd_epsilon=0.01)
    backwards = model.trainable_variables[::-1]
    optimizer.build(backwards)
    legacy.load_checkpoint(recorded("GGT"), model, optimizer)
    names = ["dense_1/bias", "dense_1/kernel", "dense/bias", "dense/kernel"]
    columns = [theirs["grad_buffer"][:, places[name]] for name in names]
    buffer = to_numpy(optimizer.slot(None, "grad_buffer"))
    np.testing.assert_array_equal(buffer, np.concatenate(columns, axis=1))
    gram = to_numpy(optimizer.slot(None, "gram"))
    np.testing.assert_allclose(gram, buffer @ buffer.T, rtol=1e-5, atol=1e-7)


@pytest.mark.spread("torch")  # whose bfloat16 NumPy cannot read
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype, tmp_path):
    """Variables in half precision take float32 only with `master_weights`."""
    with policy(dtype):
        model, exact = dense(), dense()
    error = assert_refused(legacy.CheckpointMismatch, "4 of", recorded(), model)
    assert {e.status for e in error.report.problems} == {"dtype mismatch"}

    optimizer = keras_tfopt.Adam(0.02, master_weights=True, **ADAM)
    assert not legacy.load_checkpoint(recorded(), exact, optimizer).problems
    theirs = contents(recorded())["dense/kernel"]
    copy = to_numpy(optimizer.slot(exact.weights[0], "master_weight"))
    np.testing.assert_array_equal(copy, theirs)
    rounded = to_numpy(ops.cast(exact.weights[0], "float32"))
    np.testing.assert_allclose(rounded, theirs, rtol=2.0**-8)

    path = legacy.save_checkpoint(tmp_path / "half", exact, optimizer)
    assert contents(path)["dense/kernel"].dtype.name == dtype  # as in TensorFlow 1
    again = keras_tfopt.Adam(0.02, **ADAM)
    assert not legacy.load_checkpoint(path, model, again).problems
    np.testing.assert_array_equal(to_numpy(ops.cast(model.weights[0], "float32")), rounded)


def test_under_loss_scaling():
    with policy("mixed_float16"):
        model = dense()
    optimizer = adam()
    model.compile(optimizer=keras.optimizers.LossScaleOptimizer(optimizer), loss="mse")
    legacy.load_checkpoint(recorded(), model, model.optimizer)
    assert_loaded(recorded(), model, optimizer)
    model.train_on_batch(np.ones((2, 5)), np.ones((2, 3)))
    assert int(optimizer.iterations) == 6


def test_swapping_saver_writes_what_the_original_did(tmp_path):
    prefix = recorded("MovingAverage_Momentum", "normal/model.ckpt-5")
    model = dense()
    inner = legacy.MomentumOptimizer(0.29, 0.56)
    optimizer = legacy.MovingAverageOptimizer(inner, average_decay=0.76)
    legacy.load_checkpoint(prefix, model, optimizer)
    path = optimizer.swapping_saver().save(None, str(tmp_path / "model"), global_step=5)
    assert path.endswith("model-5")
    theirs = contents(recorded("MovingAverage_Momentum", "swapping/model.ckpt-5"))
    assert_same({n.removeprefix("network/"): a for n, a in contents(path).items()}, theirs)

    saved = [*model.weights, *(optimizer.get_slot(v, "average") for v in model.weights)]
    before = [to_numpy(variable) for variable in saved]
    for variable in saved:
        variable.assign(np.zeros(variable.shape, "float32"))
    optimizer.swapping_saver().restore(None, path)
    assert_same(saved, before)
    with pytest.raises(ValueError, match="must hold an array"):
        optimizer.swapping_saver().restore(None, recorded("Adagrad"))
