"""Checkpoints of TensorFlow 1 that do not fit, that are damaged, or that cannot be written."""

import math
import sys

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import legacy
from keras_tfopt.legacy.checkpoints.powers import power_after, steps_of_power
from tests.helpers.checkpoints import (
    ADAM,
    RECORDED,
    adam,
    assert_loaded,
    assert_refused,
    assert_same,
    changed,
    contents,
    dense,
    maybe_built,
    needs_tensorflow,
    recorded,
)
from tests.helpers.stepping import to_numpy

pytestmark = [pytest.mark.spread("tensorflow"), needs_tensorflow]


@pytest.mark.parametrize("built", [True, False])
def test_missing_unused_and_mismatched(built, tmp_path):
    prefix = changed(
        recorded(),
        tmp_path,
        dense__kernel=np.zeros((5, 6), "float32"),
        dense__bias=np.zeros(4, "float64"),
        dense_1__bias__Adam=None,
        other=np.zeros(2, "float32"),
    )
    model, optimizer = maybe_built(built)
    error = assert_refused(legacy.CheckpointMismatch, "Nothing has been", prefix, model, optimizer)
    assert isinstance(error, ValueError)
    report = error.report
    assert {entry.status: (entry.name, entry.detail) for entry in report.problems} == {
        "shape mismatch": ("dense/kernel", "(5, 4) here"),
        "dtype mismatch": ("dense/bias", "float64 there, float32 here"),
        "unused": ("other", ""),
        "missing": (None, ""),
    }
    assert all(f"  {entry.status} " in str(error) for entry in report.problems)
    assert len(report.problems) == 4
    assert report.of("missing")[0].target.startswith("slot m of")

    kernel, bias = to_numpy(model.weights[0]), to_numpy(model.weights[1])
    again = legacy.load_checkpoint(prefix, model, optimizer, strict=False)
    assert again == report
    theirs = contents(prefix)
    assert_same(model.weights[:3], [kernel, bias, theirs["dense_1/kernel"]])
    assert_same([optimizer.slot(model.weights[0], "v")], [theirs["dense/kernel/Adam_1"]])
    assert not to_numpy(optimizer.slot(model.weights[3], "m")).any()
    assert int(optimizer.iterations) == 5


@pytest.mark.parametrize(
    ("kind", "optimizer", "match"),
    [
        ("Adagrad", adam, "written with AdagradOptimizer, .* 'Adagrad'; .* AdamOptimizer"),
        ("AdamW", adam, "written with AdamWOptimizer"),
        ("Adam", lambda: keras_tfopt.AdaMax(0.1), "AdamOptimizer .*here stands for AdaMaxOpt"),
        ("Adam", lambda: keras_tfopt.GradientDescent(0.1), "written with AdamOptimizer"),
        ("Momentum", lambda: keras_tfopt.LARS(0.1), "written with MomentumOptimizer"),
        ("Shampoo", lambda: keras_tfopt.GGT(), "written with ShampooOptimizer"),
        ("GGT", lambda: keras_tfopt.Momentum(0.1), "grad_buffer"),
        ("RMSProp_centered", lambda: keras_tfopt.RMSProp(0.1), "RMSProp_2"),
        ("GGT", lambda: keras_tfopt.GGT(window=4), r"shape mismatch +grad_buffer"),
        (
            "Adam",
            lambda: keras_tfopt.Adam(0.02),
            r"inconsistent +beta1_power .*0.208422 is no power of 0.9, which is beta_1",
        ),
    ],
)
def test_another_optimizer(kind, optimizer, match):
    """State of one optimizer is refused by another one."""
    assert_refused(legacy.CheckpointMismatch, match, recorded(kind), optimizer=optimizer())


def test_counts_that_differ_are_both_reported(tmp_path):
    prefix = changed(recorded(), tmp_path, global_step=np.int64(8))
    model, optimizer = dense(), adam()
    report = assert_loaded(prefix, model, optimizer)
    assert report.steps == {"beta1_power": 5, "beta2_power": 5, "global_step": 8}
    assert report.global_step == 8 and report.iterations == int(optimizer.iterations) == 5
    assert "Counts of steps differ: beta1_power says 5" in str(report)

    # A `global_step` of the optimizer takes the count of training steps.
    step = keras.Variable(0, dtype="int32", trainable=False)
    prefix = changed(prefix, tmp_path, beta1_power=None, beta2_power=None)
    optimizer = keras_tfopt.AdamGS(0.02, global_step=step, **ADAM)
    assert_loaded(prefix, model, optimizer)
    assert int(step) == 8


def test_without_any_count(tmp_path):
    """The optimizer's own count stays. With a schedule, which needs a count, this is an error."""
    prefix = changed(recorded("Momentum"), tmp_path, global_step=None)
    model, optimizer = dense(), keras_tfopt.Momentum(0.1)
    report = legacy.load_checkpoint(prefix, model, optimizer)
    assert report.iterations is None and "iterations stay" in str(report)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    optimizer, match = keras_tfopt.Momentum(schedule), "missing +- +iterations +a schedule"
    assert_refused(legacy.CheckpointMismatch, match, prefix, optimizer=optimizer)


@pytest.mark.parametrize("beta", [0.5, 0.77, 0.9, 0.999, 0.9999])
def test_steps_of_powers(beta):
    """The expected powers come from the loop of TensorFlow 1, in float32."""
    power, steps, checked = np.float32(beta), 0, set(np.geomspace(1, 40_000, 12).astype(int))
    for steps in range(40_001):
        if steps in checked:
            assert power_after(steps, beta) == (power if power >= 2.0**-126 else 0)
            expected = steps if power >= 2.0**-126 else None
            assert steps_of_power(float(power), beta) == expected
        power = power * np.float32(beta)


def test_powers_too_small_to_tell():
    assert steps_of_power(0.0, 0.9) is None
    assert math.isclose(power_after(86_000, 0.999), 0.999**86_001, rel_tol=0.02)
    for power in (1.5, -0.1, 0.95, 0.85):
        with pytest.raises(ValueError, match="is no power of 0.9"):
            steps_of_power(power, 0.9)


# ---- Files and arguments


@pytest.mark.parametrize("what", ["cut", "flipped", "no data", "index"])
@pytest.mark.parametrize("built", [True, False])
def test_damaged_files(what, built, tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for file in (RECORDED / "Adam").glob("model.ckpt*"):
        data = file.read_bytes()
        if file.suffix == ".index":
            data = data[: len(data) // 2] if what == "index" else data
        elif what == "cut":
            data = data[:-20]  # the last tensors of the file
        elif what == "flipped":
            data = data[:40] + bytes([data[40] ^ 1]) + data[41:]
        elif what == "no data":
            continue
        (folder / file.name).write_bytes(data)
    model, optimizer = maybe_built(built)
    for strict in (True, False):
        prefix, match = folder / "model.ckpt-5", "truncated or damaged"
        assert_refused(ValueError, match, prefix, model, optimizer, strict=strict)


@pytest.mark.parametrize(
    ("prefix", "match"),
    [
        (recorded("Adam", "model.ckpt-6"), r"none. There are: \[.*model.ckpt-5'\]"),
        (recorded("Adam", "model.ckpt-5.index"), "have in common: '.*model.ckpt-5'"),
        (recorded("Adam", "model.ckpt-5.data-00000-of-00001"), "have in common"),
        (recorded("Adam", ""), r"a file `checkpoint`.*There are: .*model.ckpt-5"),
        ("no/such/folder/model", "there is none$"),
    ],
)
def test_wrong_prefix(prefix, match):
    assert_refused(FileNotFoundError, match, prefix)
    with pytest.raises(FileNotFoundError, match=match):
        legacy.inspect_checkpoint(prefix)


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"optimizer": "adam"}, TypeError, "Argument `optimizer`.*Received: 'adam'"),
        (
            {"optimizer": keras.optimizers.Adam()},
            TypeError,
            "stand for one of TensorFlow 1.*Received: Adam",
        ),
        (
            {"optimizer": keras_tfopt.AMSGrad()},
            TypeError,
            "AMSGradOptimizer, of which files have variables without",
        ),
        ({"model": 3}, TypeError, "Argument `model`.*Received: 3"),
        ({"prefix": 3}, TypeError, "Argument `prefix` must be a path. Received: 3"),
        (
            {"model": keras.Sequential([keras.layers.Dense(3)])},
            ValueError,
            "Argument `model` must be built",
        ),
        ({"strict": "yes"}, TypeError, "Argument `strict`"),
        ({"swapped": True}, ValueError, "Argument `swapped` must be False.*no averages"),
    ],
)
def test_wrong_arguments(given, error, match):
    with pytest.raises(error, match=match):
        usual = {"prefix": recorded(), "model": dense(), "optimizer": adam()}
        legacy.load_checkpoint(**{**usual, **given})


@pytest.mark.backends("jax", "torch", reason="nothing runs without the backend")
def test_without_tensorflow(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ImportError, match="pip install 'tensorflow"):
        legacy.inspect_checkpoint(recorded())
    match = "whichever backend Keras runs"
    assert_refused(ImportError, match, recorded())
    optimizer, model = adam(), dense()
    optimizer.build(model.trainable_variables)
    with pytest.raises(ImportError, match=match):
        legacy.save_checkpoint(tmp_path / "model", model, optimizer)


def test_state_without_a_counterpart_is_not_written(tmp_path):
    model = dense()

    def refused(match, optimizer, error=ValueError, **options):
        optimizer.build(model.trainable_variables)
        with pytest.raises(error, match=match):
            legacy.save_checkpoint(tmp_path / "model", model, optimizer, **options)
        assert not list(tmp_path.iterdir())

    refused("no state beyond that of .*'slow'", keras_tfopt.Lookahead(adam()))
    refused("no state beyond.*'last", keras_tfopt.LazyAdam(catch_up=True))
    refused("there are no averages", adam(), swapped=True)
    refused("nowhere: 'x'", adam(), name_map={"x": "y"})
    refused("`global_step_dtype` must be one of .*: 'float32'", adam(), global_step_dtype="float32")
    accumulating = keras_tfopt.Adam(gradient_accumulation_steps=2)
    accumulating.build(model.trainable_variables)
    accumulating.apply([np.ones(v.shape, "float32") for v in model.weights], model.weights)
    refused("middle of a step", accumulating)


def test_accumulated_steps_count_once(tmp_path):
    model, optimizer = dense(), keras_tfopt.Adam(0.02, gradient_accumulation_steps=3, **ADAM)
    assert_loaded(recorded(), model, optimizer)
    assert int(optimizer.iterations) == 5
    path = legacy.save_checkpoint(tmp_path / "model", model, optimizer)
    assert contents(path)["global_step"] == 5
