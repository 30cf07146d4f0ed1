"""Checkpoints of TensorFlow 1 that are called otherwise, do not fit, are damaged or large."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from keras_tfopt import legacy
from keras_tfopt.execution import checkpoint_files, write_checkpoint
from keras_tfopt.legacy.checkpoints.powers import power_after, steps_of_power
from tests.stepping import policy

pytest.importorskip("tensorflow")

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "tests" / "golden" / "tf1" / "checkpoints"
ADAM = {"beta_1": 0.77, "beta_2": 0.972, "epsilon": 3e-8}  # of the recorded one
BACKEND = keras.backend.backend()


def to_numpy(value):
    return np.array(ops.convert_to_numpy(value))


def recorded(kind, where="model.ckpt-5"):
    return str(RECORDED / kind / where)


def contents(prefix):
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def write(prefix, arrays):
    return write_checkpoint(
        prefix, [(n, str(a.dtype), lambda a=a: a) for n, a in sorted(arrays.items())]
    )


def changed(prefix, folder, rename=lambda name: name, **arrays):
    """A recorded checkpoint under other names; arrays are added, None takes one away."""
    found = {rename(name): array for name, array in contents(prefix).items()}
    found |= {name.replace("__", "/"): array for name, array in arrays.items()}
    return write(folder / "changed", {n: a for n, a in found.items() if a is not None})


def dense(first="dense", second="dense_1", name="network"):
    """The recorded network, as a functional model."""
    x = keras.Input((5,))
    h = keras.layers.Dense(4, activation="tanh", name=first)(x)
    return keras.Model(x, keras.layers.Dense(3, name=second)(h), name=name)


def adam():
    return keras_tfopt.Adam(0.02, **ADAM)


def state(model, optimizer):
    """All values, to see that none has changed."""
    return [to_numpy(v) for v in [*model.weights, *optimizer.variables]]


def assert_refused(error, match, prefix, model, optimizer, **options):
    """An error, and nothing changed, the optimizer built before or not."""
    before, built = state(model, optimizer), optimizer.built
    with pytest.raises(error, match=match) as raised:
        legacy.load_checkpoint(prefix, model, optimizer, **options)
    assert optimizer.built == built
    for old, new in zip(before, state(model, optimizer), strict=True):
        np.testing.assert_array_equal(old, new)
    return raised.value


def assert_loaded(prefix, model, optimizer, theirs=None, **options):
    """That the values are in the model and in Adam, layer by layer."""
    report = legacy.load_checkpoint(prefix, model, optimizer, **options)
    assert not report.problems
    theirs = contents(recorded("Adam")) if theirs is None else theirs
    names = [f"{layer}/{v}" for layer in ("dense", "dense_1") for v in ("kernel", "bias")]
    for name, variable in zip(names, model.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(variable), theirs[name])
        for suffix, slot in (("Adam", "m"), ("Adam_1", "v")):
            np.testing.assert_array_equal(
                to_numpy(optimizer.slot(variable, slot)), theirs[f"{name}/{suffix}"]
            )
    return report


# ---- Names ---------------------------------------------------------------------------------------


def test_layers_count_from_the_start_of_the_process():
    for _ in range(3):
        keras.layers.Dense(1)
    layers = [keras.layers.Dense(4), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((5,)), *layers])
    assert layers[0].name != "dense"
    assert_loaded(recorded("Adam"), model, adam())


def test_nine_comes_before_ten():
    """By number, not by letter."""
    model = dense("dense_9", "dense_10")
    assert_loaded(recorded("Adam"), model, adam())


@pytest.mark.parametrize("built", [True, False])
def test_scopes(built, tmp_path):
    """A scope of variables around all, and one of the training that state is in besides."""

    def rename(name):
        if name == "global_step":
            return name
        *_, last = name.split("/")
        scope = "train/" if "Adam" in last or "power" in last else ""
        return f"{scope}net/{name}" if "power" not in last else scope + name

    prefix = changed(recorded("Adam"), tmp_path, rename)
    assert "train/net/dense/kernel/Adam_1" in contents(prefix)
    model, optimizer = dense(), adam()
    if built:
        optimizer.build(model.trainable_variables)
    report = assert_loaded(prefix, model, optimizer)
    assert report.steps == {"train/beta1_power": 5, "train/beta2_power": 5, "global_step": 5}


def test_layers_are_called_as_in_tensorflow_1(tmp_path):
    """Statistics of normalization go along; names as `tf.layers` gave them in 1.15.5."""

    def convolutional():
        layers = [keras.Input((8, 8, 1))]
        for _ in range(2):
            layers += [keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization()]
        return keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(3)])

    model, optimizer = convolutional(), adam()
    optimizer.build(model.trainable_variables)
    path = legacy.save_checkpoint(tmp_path / "model", model, optimizer)
    weights = {
        "conv2d": ("kernel", "bias"),
        "batch_normalization": ("gamma", "beta", "moving_mean", "moving_variance"),
        "dense": ("kernel", "bias"),
    }
    expected = {"beta1_power", "beta2_power", "global_step"}
    for layer in ("conv2d", "conv2d_1", "batch_normalization", "batch_normalization_1", "dense"):
        for name in weights[layer.removesuffix("_1")]:
            slots = ("",) if name.startswith("moving") else ("", "/Adam", "/Adam_1")
            expected |= {f"{layer}/{name}{slot}" for slot in slots}
    assert set(contents(path)) == expected
    again = convolutional()
    assert not legacy.load_checkpoint(path, again, adam()).problems
    for a, b in zip(model.weights, again.weights):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))


def test_two_networks_of_the_same_layers(tmp_path):
    """Which of them is meant has to be said; what is left out is not used."""
    theirs = contents(recorded("Adam"))
    arrays = {}
    for name, array in theirs.items():
        if "dense" not in name:
            arrays[name] = array
            continue
        arrays[f"generator/{name}"], arrays[f"discriminator/{name}"] = array, array + 1
    prefix = write(tmp_path / "two", arrays)
    match = r"several scopes of the checkpoint: \['generator/', 'discriminator/'\]"
    assert_refused(ValueError, match, prefix, dense(), adam())
    chosen = {"generator": "", "discriminator": None}
    assert_loaded(prefix, dense(), adam(), name_map=chosen)
    model = dense(name="discriminator")
    one, optimizer = model.get_layer("dense"), adam()
    assert one.kernel.path == "dense/kernel" or one.kernel.path.startswith("discriminator/")
    chosen = {"discriminator": "", "generator": None}
    legacy.load_checkpoint(prefix, model, optimizer, name_map=chosen)
    np.testing.assert_array_equal(to_numpy(one.kernel), theirs["dense/kernel"] + 1)


MAPS = {
    "names": {
        f"{old}/{v}": f"{new}/{v}:0"
        for old, new in (("dense", "encoder"), ("dense_1", "head"))
        for v in ("kernel", "bias")
    },
    "scopes": {"dense": "encoder", "dense_1": "head/"},
    "patterns": [(r"^dense_1/", "head/"), (r"^dense/", "encoder/")],
    "function": lambda name: name.replace("dense_1/", "head/").replace("dense/", "encoder/"),
}


@pytest.mark.parametrize("name_map", MAPS.values(), ids=MAPS)
def test_name_map(name_map, tmp_path):
    model, optimizer = dense("encoder", "head"), adam()
    assert_refused(legacy.CheckpointMismatch, "missing", recorded("Adam"), model, optimizer)
    assert_loaded(recorded("Adam"), model, optimizer, name_map=name_map)
    if name_map is MAPS["scopes"]:
        back = {"encoder": "dense", "head": "dense_1"}
        path = legacy.save_checkpoint(tmp_path / "back", model, optimizer, name_map=back)
        ours, theirs = contents(path), contents(recorded("Adam"))
        assert set(ours) == set(theirs)
        for name in theirs:
            np.testing.assert_array_equal(ours[name], theirs[name])


@pytest.mark.parametrize(
    ("name_map", "error", "match"),
    [
        ({"dens": "encoder"}, ValueError, r"nowhere: 'dens'. Similar are .*'dense'"),
        ([("^dens_", "x")], ValueError, r"nowhere: '\^dens_'"),
        ({"dense": "same", "dense_1": "same"}, ValueError, "are both 'same/bias'"),
        ({"dense": 3}, TypeError, "Argument `name_map` must be None, a dictionary"),
        ("dense", TypeError, "Argument `name_map`"),
        ([("(", "x")], TypeError, "Argument `name_map`"),
        (lambda name: 3, TypeError, "Argument `name_map` must be a function.*: 3"),
    ],
)
def test_name_map_is_checked(name_map, error, match):
    assert_refused(error, match, recorded("Adam"), dense(), adam(), name_map=name_map)


def test_names_with_outputs_and_what_is_left_out(tmp_path):
    more = {"ema__x": np.zeros(3, "float32"), "beta1_power_1": np.float32(0.5)}
    prefix = changed(recorded("Adam"), tmp_path, lambda name: f"{name}:0", **more)
    model, optimizer = dense(), adam()
    error = assert_refused(legacy.CheckpointMismatch, "2 of", prefix, model, optimizer)
    assert [e.name for e in error.report.of("unused")] == ["beta1_power_1", "ema/x"]
    out = {"ema": None, "beta1_power_1": None}
    report = assert_loaded(prefix, model, optimizer, name_map=out)
    assert len(report.of("not needed")) == 2


def test_a_name_that_the_program_gave_its_optimizer(tmp_path):
    prefix = changed(recorded("Adam"), tmp_path, lambda name: name.replace("Adam", "fast"))
    assert_loaded(prefix, dense(), adam())  # by what is there
    given = {"beta1": 0.77, "beta2": 0.972, "epsilon": 3e-8, "name": "fast"}
    model, optimizer = dense(), legacy.AdamOptimizer(0.02, **given)
    assert not legacy.load_checkpoint(prefix, model, optimizer).problems
    path = legacy.save_checkpoint(tmp_path / "again", model, optimizer)
    assert set(contents(path)) == set(contents(prefix))
    found = {one.name: one for one in legacy.inspect_checkpoint(prefix)}
    assert found["dense/bias/fast_1"].meaning == "state of dense/bias, called 'fast_1'"


@pytest.mark.parametrize("way", ["parts", "slices"])
def test_partitioned_variables(way, tmp_path):
    """As variables of their own, and as slices of one, which a Saver writes by itself."""
    import tensorflow as tf

    theirs = contents(recorded("Adam"))
    v1, assigned = tf.compat.v1, []
    with tf.Graph().as_default(), v1.Session() as session:
        if way == "slices":
            for name, array in theirs.items():
                zeros = v1.zeros_initializer()
                if not array.ndim:
                    v1.get_variable(name, initializer=array)
                    continue
                cut = v1.fixed_size_partitioner(2, axis=array.ndim - 1)
                for part in v1.get_variable(name, array.shape, "float32", zeros, partitioner=cut):
                    start = part._get_save_slice_info().var_offset
                    where = tuple(slice(a, a + n) for a, n in zip(start, part.shape))
                    assigned.append(part.assign(array[where]))
            saver = v1.train.Saver()
        else:
            parts = {}
            for name, array in theirs.items():
                cut = np.array_split(array, 2, axis=-1) if array.ndim else [array]
                for i, part in enumerate(cut):
                    pieces = name.split("/")
                    if len(pieces) > 1:
                        pieces.insert(2, f"part_{i}")
                    parts["/".join(pieces)] = tf.Variable(part)
            assert "dense/kernel/part_1/Adam" in parts
            saver = v1.train.Saver(parts)
        session.run(v1.global_variables_initializer())
        session.run(assigned)
        prefix = saver.save(session, str(tmp_path / "model"), write_meta_graph=False)
    assert_loaded(prefix, dense(), adam())


# ---- What does not fit ---------------------------------------------------------------------------


@pytest.mark.parametrize("built", [True, False])
def test_missing_unused_and_mismatched(built, tmp_path):
    prefix = changed(
        recorded("Adam"),
        tmp_path,
        dense__kernel=np.zeros((5, 6), "float32"),
        dense__bias=np.zeros(4, "float64"),
        dense_1__bias__Adam=None,
        other=np.zeros(2, "float32"),
    )
    model, optimizer = dense(), adam()
    if built:
        optimizer.build(model.trainable_variables)
    error = assert_refused(legacy.CheckpointMismatch, "Nothing has been", prefix, model, optimizer)
    assert isinstance(error, ValueError)
    report = error.report
    statuses = {
        "shape mismatch": ["dense/kernel"],
        "dtype mismatch": ["dense/bias"],
        "unused": ["other"],
        "missing": [None],
    }
    for status, names in statuses.items():
        assert [entry.name for entry in report.of(status)] == names
        assert f"  {status} " in str(error)
    assert report.of("missing")[0].target.startswith("slot m of")
    assert report.of("shape mismatch")[0].detail == "(5, 4) here"
    assert report.of("dtype mismatch")[0].detail == "float64 there, float32 here"
    assert len(report.problems) == 4

    kernel, bias = to_numpy(model.weights[0]), to_numpy(model.weights[1])
    again = legacy.load_checkpoint(prefix, model, optimizer, strict=False)
    assert again == report
    theirs = contents(prefix)
    np.testing.assert_array_equal(to_numpy(model.weights[0]), kernel)
    np.testing.assert_array_equal(to_numpy(model.weights[1]), bias)
    np.testing.assert_array_equal(to_numpy(model.weights[2]), theirs["dense_1/kernel"])
    slot = to_numpy(optimizer.slot(model.weights[0], "v"))
    np.testing.assert_array_equal(slot, theirs["dense/kernel/Adam_1"])
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
    ],
)
def test_another_optimizer(kind, optimizer, match):
    assert_refused(legacy.CheckpointMismatch, match, recorded(kind), dense(), optimizer())


def test_powers_of_another_rate():
    model, optimizer = dense(), keras_tfopt.Adam(0.02)
    match = r"inconsistent +beta1_power .*0.208422 is no power of 0.9, which is beta_1"
    assert_refused(legacy.CheckpointMismatch, match, recorded("Adam"), model, optimizer)


def test_counts_that_differ_are_both_reported(tmp_path):
    prefix = changed(recorded("Adam"), tmp_path, global_step=np.int64(8))
    model, optimizer = dense(), adam()
    report = assert_loaded(prefix, model, optimizer)
    assert report.steps == {"beta1_power": 5, "beta2_power": 5, "global_step": 8}
    assert report.global_step == 8 and report.iterations == int(optimizer.iterations) == 5
    assert "Counts of steps differ: beta1_power says 5" in str(report)

    # An optimizer that was given a variable for the count of training steps takes that.
    step = keras.Variable(0, dtype="int32", trainable=False)
    prefix = changed(
        recorded("Adam"), tmp_path, beta1_power=None, beta2_power=None, global_step=np.int64(8)
    )
    optimizer = keras_tfopt.AdamGS(0.02, global_step=step, **ADAM)
    assert_loaded(prefix, model, optimizer)
    assert int(step) == 8


def test_without_any_count(tmp_path):
    prefix = changed(recorded("Momentum"), tmp_path, global_step=None)
    model, optimizer = dense(), keras_tfopt.Momentum(0.1)
    report = legacy.load_checkpoint(prefix, model, optimizer)
    assert report.iterations is None and "iterations stay" in str(report)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    match = "missing +- +iterations +a schedule"
    assert_refused(
        legacy.CheckpointMismatch, match, prefix, dense(), keras_tfopt.Momentum(schedule)
    )


@pytest.mark.parametrize("beta", [0.5, 0.77, 0.9, 0.999, 0.9999])
def test_steps_of_powers(beta):
    """Against the loop that TensorFlow 1 runs, in float32."""
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


# ---- Files ---------------------------------------------------------------------------------------


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
    model, optimizer = dense(), adam()
    if built:
        optimizer.build(model.trainable_variables)
    for strict in (True, False):
        assert_refused(
            ValueError, "truncated or damaged", folder / "model.ckpt-5", model, optimizer,
            strict=strict,
        )  # fmt: skip


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
    assert_refused(FileNotFoundError, match, prefix, dense(), adam())
    with pytest.raises(FileNotFoundError, match=match):
        legacy.inspect_checkpoint(prefix)


def test_wrong_arguments():
    prefix, model = recorded("Adam"), dense()
    load = legacy.load_checkpoint
    with pytest.raises(TypeError, match="Argument `optimizer`.*Received: 'adam'"):
        load(prefix, model, "adam")
    with pytest.raises(TypeError, match="stand for one of TensorFlow 1.*Received: Adam"):
        load(prefix, model, keras.optimizers.Adam())
    with pytest.raises(TypeError, match="AMSGradOptimizer, of which files have variables without"):
        load(prefix, model, keras_tfopt.AMSGrad())
    with pytest.raises(TypeError, match="Argument `model`.*Received: 3"):
        load(prefix, 3, adam())
    with pytest.raises(ValueError, match="Argument `model` must be built"):
        load(prefix, keras.Sequential([keras.layers.Dense(3)]), adam())
    with pytest.raises(TypeError, match="Argument `strict`"):
        load(prefix, model, adam(), strict="yes")
    with pytest.raises(ValueError, match="Argument `swapped` must be False.*no averages"):
        load(prefix, model, adam(), swapped=True)


@pytest.mark.skipif(BACKEND == "tensorflow", reason="nothing runs without the backend")
def test_without_tensorflow(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ImportError, match="pip install 'tensorflow"):
        legacy.inspect_checkpoint(recorded("Adam"))
    match = "whichever backend Keras runs"
    assert_refused(ImportError, match, recorded("Adam"), dense(), adam())
    optimizer, model = adam(), dense()
    optimizer.build(model.trainable_variables)
    with pytest.raises(ImportError, match=match):
        legacy.save_checkpoint(tmp_path / "model", model, optimizer)


def test_writing_is_refused_where_there_is_no_counterpart(tmp_path):
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
    accumulating = keras_tfopt.Adam(gradient_accumulation_steps=2)
    accumulating.build(model.trainable_variables)
    accumulating.apply([np.ones(v.shape, "float32") for v in model.weights], model.weights)
    refused("middle of a step", accumulating)


def test_accumulated_steps_count_once(tmp_path):
    model, optimizer = dense(), keras_tfopt.Adam(0.02, gradient_accumulation_steps=3, **ADAM)
    assert_loaded(recorded("Adam"), model, optimizer)
    assert int(optimizer.iterations) == 5
    path = legacy.save_checkpoint(tmp_path / "model", model, optimizer)
    assert contents(path)["global_step"] == 5


# ---- State in other forms ------------------------------------------------------------------------


def test_averages_go_into_those_of_any_optimizer():
    prefix = recorded("MovingAverage_Momentum", "normal/model.ckpt-5")
    theirs = contents(prefix)
    model, optimizer = dense(), keras_tfopt.Momentum(0.1, use_ema=True)
    assert not legacy.load_checkpoint(prefix, model, optimizer).problems
    with keras_tfopt.averaged(model, optimizer):
        for name in ("dense/kernel", "dense_1/bias"):
            layer, kind = name.split("/")
            np.testing.assert_array_equal(
                to_numpy(getattr(model.get_layer(layer), kind)),
                theirs[f"{name}/ExponentialMovingAverage"],
            )
    # Without averages in the file, they begin where the weights are.
    model = dense()
    optimizer = keras_tfopt.MovingAverage(keras_tfopt.Momentum(0.1))
    report = legacy.load_checkpoint(recorded("Momentum"), model, optimizer, strict=False)
    assert len(report.problems) == len(report.of("missing")) == 4
    for variable in model.weights:
        np.testing.assert_array_equal(
            to_numpy(optimizer.slot(variable, "average")), to_numpy(variable)
        )


def test_weights_alone():
    model = dense()
    report = legacy.load_checkpoint(recorded("Adam"), model, None)
    assert not report.problems and len(report.of("not needed")) == 11
    theirs = contents(recorded("Adam"))
    np.testing.assert_array_equal(to_numpy(model.weights[2]), theirs["dense_1/kernel"])
    swapped = recorded("MovingAverage_Momentum", "swapping/model.ckpt-5")
    legacy.load_checkpoint(swapped, model, None, swapped=True)
    trained = contents(swapped)["dense/kernel/ExponentialMovingAverage"]
    np.testing.assert_array_equal(to_numpy(model.weights[0]), trained)


def test_ggt_is_laid_out_as_here():
    """Built in another order than that of names: every variable finds its own columns."""
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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype, tmp_path):
    """Variables in half precision refuse float32, unless a copy keeps it."""
    with policy(dtype):
        model, exact = dense(), dense()
    error = assert_refused(legacy.CheckpointMismatch, "4 of", recorded("Adam"), model, adam())
    assert {e.status for e in error.report.problems} == {"dtype mismatch"}

    optimizer = keras_tfopt.Adam(0.02, master_weights=True, **ADAM)
    assert not legacy.load_checkpoint(recorded("Adam"), exact, optimizer).problems
    theirs = contents(recorded("Adam"))["dense/kernel"]
    copy = to_numpy(optimizer.slot(exact.weights[0], "master_weight"))
    np.testing.assert_array_equal(copy, theirs)
    rounded = to_numpy(ops.cast(exact.weights[0], "float32"))
    np.testing.assert_allclose(rounded, theirs, rtol=2.0**-8)

    path = legacy.save_checkpoint(tmp_path / "half", exact, optimizer)
    assert contents(path)["dense/kernel"].dtype.name == dtype  # as variables of TensorFlow 1 are
    again = keras_tfopt.Adam(0.02, **ADAM)
    assert not legacy.load_checkpoint(path, model, again).problems
    np.testing.assert_array_equal(to_numpy(ops.cast(model.weights[0], "float32")), rounded)


def test_under_loss_scaling():
    with policy("mixed_float16"):
        model = dense()
    optimizer = adam()
    model.compile(optimizer=keras.optimizers.LossScaleOptimizer(optimizer), loss="mse")
    legacy.load_checkpoint(recorded("Adam"), model, model.optimizer)
    assert_loaded(recorded("Adam"), model, optimizer)
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
    ours = contents(path)
    prefix = "" if "dense/kernel" in ours else "network/"
    for name, array in theirs.items():
        key = name if name == "global_step" else prefix + name
        np.testing.assert_array_equal(ours[key], array, name)
    assert len(ours) == len(theirs)

    before = [to_numpy(v) for v in model.weights]
    averages = [to_numpy(optimizer.get_slot(v, "average")) for v in model.weights]
    for variable in model.weights:
        optimizer.get_slot(variable, "average").assign(np.zeros(variable.shape, "float32"))
        variable.assign(np.zeros(variable.shape, "float32"))
    optimizer.swapping_saver().restore(None, path)
    for variable, value, average in zip(model.weights, before, averages):
        np.testing.assert_array_equal(to_numpy(variable), value)
        np.testing.assert_array_equal(to_numpy(optimizer.get_slot(variable, "average")), average)
    with pytest.raises(ValueError, match="must hold an array"):
        optimizer.swapping_saver().restore(None, recorded("Adagrad"))


# ---- Looking, and the shell ----------------------------------------------------------------------


def test_inspection_tells_what_is_recorded(capsys):
    """Meanings, as they were recorded with the files."""
    words = {"trained variable": "variable", "moving average": "moving average"}
    for kind in sorted(p.name for p in RECORDED.iterdir()):
        manifest = json.loads((RECORDED / kind / "manifest.json").read_text())
        for saved in manifest["checkpoints"]:
            swapped = saved["prefix"].startswith("swapping")
            found = legacy.inspect_checkpoint(RECORDED / kind / saved["prefix"], swapped=swapped)
            printed = capsys.readouterr().out
            by_name = {one.name: one for one in found}
            assert set(by_name) == {v["name"] for v in saved["variables"]}
            for v in saved["variables"]:
                one, meaning = by_name[v["name"]], v["meaning"].replace("'", "")
                assert list(one.shape) == v["shape"] and one.dtype == v["dtype"]
                assert f"  {one.name} " in printed
                if meaning.startswith("slot "):
                    assert one.meaning == meaning == one.target
                elif meaning.startswith("SWAPPED"):
                    assert one.meaning == meaning.removeprefix("SWAPPED: holds the ")
                elif meaning.split(" of ")[0] in words:
                    assert one.meaning.startswith(words[meaning.split(" of ")[0]])
                elif "power" in one.name:
                    rate = manifest["kwargs"][one.name.removesuffix("_power")]
                    assert f"which is {rate:g} if" in one.meaning
                elif one.name == "global_step":
                    assert one.meaning == "training step 5"
                else:
                    assert "GGTOptimizer" in one.meaning


def test_inspection_with_a_model(capsys):
    found = legacy.inspect_checkpoint(recorded("Adam"), dense(), adam())
    assert all(one.target is not None for one in found) and len(found) == 15
    assert "15 restored" in capsys.readouterr().out
    legacy.inspect_checkpoint(recorded("Adam"), dense(), keras_tfopt.Momentum(0.1))
    assert "written with AdamOptimizer" in capsys.readouterr().out


def test_shell(tmp_path, capsys):
    from keras_tfopt.legacy.__main__ import main

    model = str(tmp_path / "model.keras")
    out = str(tmp_path / "out.weights.h5")
    dense().save(model)
    assert main(["inspect", recorded("Adam")]) == 0
    assert "slot v of dense_1/kernel" in capsys.readouterr().out
    arguments = ["--set", "beta1=0.77", "--set", "beta2=0.972", "--set", "learning_rate=0.02"]
    convert = ["convert", recorded("Adam"), "--model", model, "--optimizer", "adam"]
    assert main([*convert, *arguments, "--out", out]) == 0
    assert "15 restored" in capsys.readouterr().out

    again, optimizer = dense(), adam()
    again.compile(optimizer=optimizer, loss="mse")
    optimizer.build(again.trainable_variables)
    again.load_weights(out)
    theirs = contents(recorded("Adam"))
    np.testing.assert_array_equal(to_numpy(again.weights[0]), theirs["dense/kernel"])
    slot = to_numpy(optimizer.slot(again.weights[0], "v"))
    np.testing.assert_array_equal(slot, theirs["dense/kernel/Adam_1"])
    assert int(optimizer.iterations) == 5

    swapped = [recorded("MovingAverage_Momentum", "swapping/model.ckpt-5"), "--swapped"]
    nested = ["--optimizer", "MovingAverageOptimizer(momentum)", "--set", "learning_rate=0.1"]
    nested += ["--set", "momentum=0.56"]
    whole = str(tmp_path / "out.keras")
    assert main(["convert", *swapped, "--model", model, *nested, "--out", whole]) == 0
    average = keras.saving.load_model(whole).optimizer.variables
    assert any(np.array_equal(to_numpy(v), contents(swapped[0])["dense/kernel"]) for v in average)
    capsys.readouterr()
    for wrong, match in [
        ([*convert, "--out", out], "does not fit"),
        ([*convert, "--out", "x.h5"], "--out must end with"),
        ([*convert, "--set", "gamma=1", "--out", out], "No constructor of 'adam' takes"),
        ([*convert, "--set", "beta1", "--out", out], "ARGUMENT=VALUE"),
        ([*convert, "--map", "dense", "--out", out], "OLD=NEW"),
        (["inspect", recorded("Adam", "x")], "there is none"),
        (["inspect", recorded("Adam"), "--optimizer", "adam"], "needs a --model"),
    ]:
        assert main(wrong) == 2
        assert match in capsys.readouterr().err
    assert main([*convert, "--map", "global_step=", *arguments, "--out", out]) == 0


# ---- Large ones ----------------------------------------------------------------------------------

PROGRAM = """
import sys
from pathlib import Path
import keras, keras_tfopt, numpy
import tensorflow  # what it takes itself is not to be counted
from keras_tfopt import legacy

def memory(what):
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith(what)) / 1024

prefix, rows = sys.argv[1], int(sys.argv[2])
table = keras_tfopt.layers.Embedding(rows, 64, name="embedding")
model = keras.Sequential([keras.Input((1,), dtype="int32"), table])
optimizer = keras_tfopt.LazyAdam()
optimizer.build(model.trainable_variables)
for slot in ("m", "v"):  # zeros take no memory before they are written
    state = optimizer.slot(table.embeddings, slot)
    state.assign(keras.ops.ones((rows, 64)))
    float(state[0, 0])  # a backend may return before it has computed
Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
before = memory("VmRSS")
report = legacy.load_checkpoint(prefix, model, optimizer)
more = memory("VmHWM") - before
model.compile(optimizer=optimizer, loss="mse")
for _ in range(2):
    model.train_on_batch(numpy.zeros((8, 1), "int32"), numpy.zeros((8, 1, 64)))
first, last = (keras.ops.convert_to_numpy(table.embeddings[n]) for n in (0, rows - 1))
print()
print(more, before, report.iterations, float(first[5]), float(last[5]))
"""


@pytest.mark.slow
@pytest.mark.spread
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_gigabyte(tmp_path):
    """A table and its two moments: one tensor in memory beside the model, and a bar."""
    rows = 1_400_000
    rng = np.random.default_rng(0)
    table = rng.standard_normal((rows, 64), "float32")
    arrays = [("embedding/embeddings", table)]
    arrays += [("embedding/embeddings/Adam", table), ("embedding/embeddings/Adam_1", table)]
    arrays += [("beta1_power", power_after(7, 0.9)), ("beta2_power", power_after(7, 0.999))]
    arrays += [("global_step", np.array(7))]
    prefix = write_checkpoint(
        tmp_path / "large", [(n, str(a.dtype), lambda a=a: a) for n, a in arrays]
    )
    size = sum(p.stat().st_size for p in tmp_path.iterdir())
    assert size > 1e9
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, prefix, str(rows)],
        env={**os.environ, "KERAS_BACKEND": BACKEND, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *_, more, before, steps, first, last = done.stdout.split()
    assert int(steps) == 7 and float(last) == table[-1, 5]
    assert float(first) != table[0, 5]  # which has been trained on
    assert "s/MB" in done.stdout  # the bar
    one = table.nbytes / 2**20
    assert float(before) > 3 * one  # the model is there
    # The tensor as it was read, in the memory of TensorFlow and as an array; no second model.
    print(f"{BACKEND}: {float(more) / one:.2f} tables")
    assert float(more) < 2.5 * one


def test_writing_in_groups_gives_one_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_files, "GROUP", 100)
    arrays = {f"v{i}": np.full(20, i, "float32") for i in range(7)}
    prefix = write(tmp_path / "model", arrays)
    assert len(list(tmp_path.glob("model.data-*"))) > 1
    for name, array in contents(prefix).items():
        np.testing.assert_array_equal(array, arrays[name])
    assert not list(tmp_path.glob("*temp*"))

    def fail():
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        write_checkpoint(tmp_path / "other", [("a", "float32", fail)])
    assert not list(tmp_path.glob("other*"))

    import tensorflow as tf

    assert tf.train.latest_checkpoint(str(tmp_path)) == prefix
    write(tmp_path / "model-2", arrays)
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert list(state.all_model_checkpoint_paths) == [prefix, str(tmp_path / "model-2")]
