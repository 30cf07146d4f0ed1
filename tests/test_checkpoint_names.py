"""Checkpoints of TensorFlow 1 with other names of variables, or with partitioned variables."""

import keras
import numpy as np
import pytest

from keras_tfopt import legacy
from tests.helpers.checkpoints import (
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
    write,
)

pytestmark = [pytest.mark.spread("tensorflow"), needs_tensorflow]


def test_numbers_in_the_names_of_layers_do_not_matter():
    for _ in range(3):
        keras.layers.Dense(1)
    layers = [keras.layers.Dense(4), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((5,)), *layers])
    assert layers[0].name != "dense"
    assert_loaded(recorded(), model)


def test_layers_are_sorted_by_number():
    """`dense_9` comes before `dense_10`."""
    assert_loaded(recorded(), dense("dense_9", "dense_10"))


@pytest.mark.parametrize("built", [True, False])
def test_scopes(built, tmp_path):
    """All variables are in one scope. State is in another scope around it."""

    def rename(name):
        if name == "global_step":
            return name
        *_, last = name.split("/")
        scope = "train/" if "Adam" in last or "power" in last else ""
        return f"{scope}net/{name}" if "power" not in last else scope + name

    prefix = changed(recorded(), tmp_path, rename)
    assert "train/net/dense/kernel/Adam_1" in contents(prefix)
    report = assert_loaded(prefix, *maybe_built(built))
    assert report.steps == {"train/beta1_power": 5, "train/beta2_power": 5, "global_step": 5}


def test_layers_are_saved_with_the_names_of_tensorflow_1(tmp_path):
    """Names are those of `tf.layers` in 1.15.5. Statistics of normalization are saved, too."""

    def convolutional():
        layers = [keras.Input((8, 8, 1))]
        for _ in range(2):
            layers += [keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization()]
        return keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(3)])

    model, optimizer = convolutional(), adam()
    optimizer.build(model.trainable_variables)
    path = legacy.save_checkpoint(tmp_path / "model", model, optimizer)
    expected = {"beta1_power", "beta2_power", "global_step"}
    for number in ("", "_1"):
        normalization = f"batch_normalization{number}"
        expected |= {f"{normalization}/moving_mean", f"{normalization}/moving_variance"}
        trained = [f"{normalization}/gamma", f"{normalization}/beta"]
        trained += [f"conv2d{number}/kernel", f"conv2d{number}/bias", "dense/kernel", "dense/bias"]
        expected |= {name + slot for name in trained for slot in ("", "/Adam", "/Adam_1")}
    assert set(contents(path)) == expected
    again = convolutional()
    assert not legacy.load_checkpoint(path, again, adam()).problems
    assert_same(again.weights, model.weights)


def test_two_networks_of_the_same_layers(tmp_path):
    """`name_map` has to say which one is meant. The other one is not read."""
    theirs = contents(recorded())
    arrays = {name: array for name, array in theirs.items() if "dense" not in name}
    for name in theirs.keys() - arrays.keys():
        arrays[f"generator/{name}"], arrays[f"discriminator/{name}"] = (
            theirs[name],
            theirs[name] + 1,
        )
    prefix = write(tmp_path / "two", arrays)
    match = r"several scopes of the checkpoint: \['generator/', 'discriminator/'\]"
    assert_refused(ValueError, match, prefix)
    assert_loaded(prefix, name_map={"generator": "", "discriminator": None})
    model = dense(name="discriminator")
    one, optimizer = model.get_layer("dense"), adam()
    assert one.kernel.path == "dense/kernel" or one.kernel.path.startswith("discriminator/")
    chosen = {"discriminator": "", "generator": None}
    legacy.load_checkpoint(prefix, model, optimizer, name_map=chosen)
    assert_same([one.kernel], [theirs["dense/kernel"] + 1])


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
    assert_refused(legacy.CheckpointMismatch, "missing", recorded(), model, optimizer)
    assert_loaded(recorded(), model, optimizer, name_map=name_map)
    if name_map is MAPS["scopes"]:
        back = {"encoder": "dense", "head": "dense_1"}
        path = legacy.save_checkpoint(tmp_path / "back", model, optimizer, name_map=back)
        assert_same(contents(path), contents(recorded()))


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
    assert_refused(error, match, recorded(), name_map=name_map)


def test_names_that_end_in_0_and_names_that_are_left_out(tmp_path):
    more = {"ema__x": np.zeros(3, "float32"), "beta1_power_1": np.float32(0.5)}
    prefix = changed(recorded(), tmp_path, lambda name: f"{name}:0", **more)
    error = assert_refused(legacy.CheckpointMismatch, "2 of", prefix)
    assert [e.name for e in error.report.of("unused")] == ["beta1_power_1", "ema/x"]
    out = {"ema": None, "beta1_power_1": None}
    report = assert_loaded(prefix, name_map=out)
    assert len(report.of("not needed")) == 2


def test_a_name_that_the_program_gave_its_optimizer(tmp_path):
    prefix = changed(recorded(), tmp_path, lambda name: name.replace("Adam", "fast"))
    assert_loaded(prefix)  # the file shows the name
    given = {"beta1": 0.77, "beta2": 0.972, "epsilon": 3e-8, "name": "fast"}
    model, optimizer = dense(), legacy.AdamOptimizer(0.02, **given)
    assert not legacy.load_checkpoint(prefix, model, optimizer).problems
    path = legacy.save_checkpoint(tmp_path / "again", model, optimizer)
    assert set(contents(path)) == set(contents(prefix))
    found = {one.name: one for one in legacy.inspect_checkpoint(prefix)}
    assert found["dense/bias/fast_1"].meaning == "state of dense/bias, called 'fast_1'"


def test_parts_of_variables(tmp_path):
    """Partitioned variables may be saved as separate variables."""
    parts = {}
    for name, array in contents(recorded()).items():
        layer, _, rest = name.partition("/")
        variable, _, slot = rest.partition("/")
        halves = np.array_split(array, 2, axis=-1) if array.ndim else [array]
        for i, half in enumerate(halves):
            pieces = [layer, variable, f"part_{i}", slot] if rest else [name]
            parts["/".join(filter(None, pieces))] = half
    assert "dense/kernel/part_1/Adam" in parts
    assert_loaded(write(tmp_path / "parts", parts))


def test_slices_of_variables(tmp_path):
    """A Saver of TensorFlow 1 saves partitioned variables as slices."""
    import tensorflow as tf

    v1, assigned = tf.compat.v1, []
    with tf.Graph().as_default(), v1.Session() as session:
        for name, array in contents(recorded()).items():
            if not array.ndim:
                v1.get_variable(name, initializer=array)
                continue
            cut = v1.fixed_size_partitioner(2, axis=array.ndim - 1)
            whole = v1.get_variable(name, array.shape, tf.float32, partitioner=cut)
            for part, half in zip(whole, np.array_split(array, 2, axis=-1), strict=True):
                assigned.append(part.assign(half))
        session.run(v1.global_variables_initializer())
        session.run(assigned)
        saver, path = v1.train.Saver(), str(tmp_path / "model")
        prefix = saver.save(session, path, write_meta_graph=False)
    assert_loaded(prefix)
