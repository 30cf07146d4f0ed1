"""Checkpoints of TensorFlow 1: loading recorded ones, and writing new ones."""

import functools
import json

import keras
import numpy as np
import pytest

import keras_tfopt
from integration import originals, through_legacy
from keras_tfopt import legacy
from tests.cells import exhaustive
from tests.helpers.checkpoints import (
    CASES,
    KINDS,
    RECORDED,
    assert_same,
    contents,
    every_kind,
    manifest,
    needs_tensorflow,
    prefix_of,
    run_program,
    tensorflow_1,
)
from tests.helpers.paths import SIGNATURES
from tests.helpers.stepping import make_variable, to_numpy

pytestmark = needs_tensorflow
IDS = [f"{kind}-{prefix.split('/')[0]}" for kind, prefix in CASES]
every_case = pytest.mark.parametrize(("kind", "prefix"), CASES, ids=IDS)


@pytest.mark.spread
def test_there_are_all_recordings():
    assert len(KINDS) == 13 and len(CASES) == 14


class Network(keras.Model):
    """Two dense layers. With `embedding`, a row for each id is added to the inputs."""

    def __init__(self, embedding=False, name="network", **layers):
        super().__init__(name=name)
        self.embedding = None
        if embedding:
            self.embedding = keras_tfopt.layers.Embedding(7, 5, name="embedding")
        self.dense = keras.layers.Dense(4, activation="tanh", name=layers.get("first", "dense"))
        self.dense_1 = keras.layers.Dense(3, name=layers.get("second", "dense_1"))

    def call(self, inputs):
        x, ids = inputs
        x = x if self.embedding is None else x + self.embedding(ids)
        return self.dense_1(self.dense(x))


def network(kind, seed=0, **names):
    keras.utils.set_random_seed(seed)
    model = Network("embedding" in kind, **names)
    model((np.zeros((1, 5), "float32"), np.zeros(1, "int32")))
    return model


LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def batch(arrays, step):
    x, y = arrays[f"batch/{step}/x"], arrays[f"batch/{step}/y"]
    ids = arrays[f"batch/{step}/ids"] if f"batch/{step}/ids" in arrays else np.zeros(len(x))
    return (x, ids.astype("int32")), y.astype("int32")


def public(kind, step=None):
    entry = manifest(kind)
    return originals.build(entry["optimizer"], entry["kwargs"], step)


def by_verbs(kind, step):
    entry = {**manifest(kind), "apply_kwargs": {}}
    return through_legacy.build(entry["optimizer"], entry, [], step).optimizer


def counter():
    return keras.Variable(0, dtype="int32", trainable=False, name="steps")


def named(model):
    """Variables of a model by their names in the recordings."""
    return {v.path.split("network/")[-1]: v for v in model.weights}


def assert_close(ours, theirs, tolerance, what):
    np.testing.assert_allclose(ours, theirs, **tolerance, err_msg=what)


def assert_state(kind, model, optimizer, step, arrays):
    """Assert that variables and slots equal the recording after a step."""
    tolerance = manifest(kind)["tolerance"]
    variables = named(model)
    for name in arrays:
        if name.startswith(f"var/{step}/"):
            path = name.removeprefix(f"var/{step}/")
            assert_close(to_numpy(variables[path]), arrays[name], tolerance["var"], name)
        if name.startswith(f"slot/{step}/"):
            path, slot = name.removeprefix(f"slot/{step}/").rsplit("/", 1)
            value = to_numpy(optimizer.slot(variables[path], slot))
            assert_close(value, arrays[name], tolerance["slots"][slot], name)


# ---- Loading -------------------------------------------------------------------------------------


@pytest.mark.spread("torch")  # where single operations are the fastest
@every_case
def test_training_continues_as_recorded(kind, prefix):
    arrays = np.load(RECORDED / kind / "continuation.npz")
    step = counter()
    model, optimizer = network(kind), public(kind, step)
    swapped = prefix.startswith("swapping")
    report = legacy.load_checkpoint(RECORDED / kind / prefix, model, optimizer, swapped=swapped)
    assert not report.problems and report.iterations == int(optimizer.iterations) == 5
    assert report.global_step == 5 and set(report.steps.values()) == {5}
    assert_state(kind, model, optimizer, 4, arrays)
    assert getattr(optimizer, "global_step", None) is (step if kind == "Shampoo" else None)
    assert int(step) == (5 if kind == "Shampoo" else 0)
    continue_training(kind, model, optimizer, step, arrays)


def continue_training(kind, model, optimizer, step, arrays):
    """Make steps 5 to 9 by `train_on_batch`, and compare after each."""
    model.compile(optimizer=optimizer, loss=LOSS)
    with keras_tfopt.engine.plain():  # other tests compile these rules
        for t in range(5, 10):
            x, y = batch(arrays, t)
            model.reset_metrics()  # else Keras 3.12 returns the mean loss of all batches
            loss = model.train_on_batch(x, y)
            step.assign_add(1)
            assert_close(loss, arrays[f"loss/{t}"], {"rtol": 1e-4, "atol": 1e-5}, f"loss {t}")
            assert_state(kind, model, optimizer, t, arrays)


@pytest.mark.backends("tensorflow", "torch", reason="single operations are slow on JAX")
@pytest.mark.everywhere
@every_kind
def test_minimize_continues_as_recorded(kind):
    arrays = np.load(RECORDED / kind / "continuation.npz")
    step = counter()
    model, optimizer = network(kind, seed=1), by_verbs(kind, step)
    report = legacy.load_checkpoint(prefix_of(kind), model, optimizer)
    step.assign(report.global_step)
    assert_state(kind, model, optimizer.keras, 4, arrays)
    with keras_tfopt.engine.plain():
        for t in range(5, 10):
            x, y = batch(arrays, t)
            optimizer.minimize(lambda x=x, y=y: LOSS(y, model(x)), step, model.trainable_variables)
            assert_state(kind, model, optimizer.keras, t, arrays)
    assert int(step) == 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Adam", exhaustive("GGT")])
def test_a_checkpoint_may_be_loaded_during_a_training(kind):
    """Copies of variables that a backend keeps while it trains are replaced as well."""
    arrays = np.load(RECORDED / kind / "continuation.npz")
    step = counter()
    model, optimizer = network(kind), public(kind, step)
    model.compile(optimizer=optimizer, loss=LOSS)
    for t in (7, 8):
        model.train_on_batch(*batch(arrays, t))
    legacy.load_checkpoint(prefix_of(kind), model, model.optimizer)
    for t in range(5, 10):
        model.fit(*batch(arrays, t), verbose=0)
        assert_state(kind, model, optimizer, t, arrays)


# ---- Writing -------------------------------------------------------------------------------------


@every_case
def test_round_trip_is_exact(kind, prefix, tmp_path):
    """A loaded checkpoint is written again with the same names and bits."""
    swapped = prefix.startswith("swapping")
    model, optimizer = network(kind), public(kind, counter())
    legacy.load_checkpoint(RECORDED / kind / prefix, model, optimizer, swapped=swapped)
    path = legacy.save_checkpoint(tmp_path / "new" / "model", model, optimizer, swapped=swapped)
    assert path == str(tmp_path / "new" / "model")
    # GGT overwrites `flat_grad` before it reads it.
    assert_same(contents(path), contents(RECORDED / kind / prefix), but=["flat_grad"])

    again, optimizer = network(kind, seed=3, name="again"), public(kind, counter())
    # The path of a folder means its latest checkpoint.
    legacy.load_checkpoint(tmp_path / "new", again, optimizer, swapped=swapped)
    assert_same(model.weights, again.weights)


def restored_by(python, kind, prefix, out):
    """Return the arrays of `integration/tf1/restore.py`, or None if it has no such optimizer."""
    folder = RECORDED / kind
    files = [folder / "manifest.json", prefix, folder / "continuation.npz", out]
    done = run_program(python, "restore.py", files, out.parent)
    if done.returncode == 3:
        return None
    assert done.returncode == 0, done.stderr[-3000:]
    return np.load(out)


def assert_restored(kind, prefix, done):
    """Assert that TensorFlow 1 restored the file and continued as in the recording."""
    arrays, tolerance = np.load(RECORDED / kind / "continuation.npz"), manifest(kind)["tolerance"]
    ours = contents(prefix)
    for name in done:
        if name.startswith("restored/"):
            np.testing.assert_array_equal(done[name], ours[name.removeprefix("restored/")], name)
    for name in arrays:
        kind_of, step, *rest = name.split("/")
        if kind_of == "var" and int(step) >= 5:
            assert_close(done[name], arrays[name], tolerance["var"], name)


def write_loaded(kind, folder):
    model, optimizer = network(kind), public(kind, counter())
    legacy.load_checkpoint(prefix_of(kind), model, optimizer)
    return legacy.save_checkpoint(folder / "written", model, optimizer)


@pytest.mark.spread("tensorflow")
def test_graph_mode_continues_from_a_written_checkpoint(tmp_path):
    """TensorFlow's own Adam restores it."""
    from integration.tf1 import restore  # imports TensorFlow

    prefix, folder, out = write_loaded("Adam", tmp_path), RECORDED / "Adam", tmp_path / "done.npz"
    restore.main(folder / "manifest.json", prefix, folder / "continuation.npz", out)
    assert_restored("Adam", prefix, np.load(out))


@pytest.mark.spread
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_graph_mode_restores_the_global_step_in_its_dtype(dtype, tmp_path):
    import tensorflow as tf

    model, optimizer = network("Adam"), public("Adam", counter())
    legacy.load_checkpoint(prefix_of("Adam"), model, optimizer)
    prefix = legacy.save_checkpoint(tmp_path / "w", model, optimizer, global_step_dtype=dtype)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        step = tf.compat.v1.get_variable("global_step", (), dtype)
        tf.compat.v1.train.Saver([step]).restore(session, prefix)
        assert session.run(step) == 5


@pytest.mark.slow
@every_kind
def test_tensorflow_1_restores_a_written_checkpoint(kind, tmp_path):
    python = tensorflow_1()
    prefix = write_loaded(kind, tmp_path)
    done = restored_by(python, kind, prefix, tmp_path / "done.npz")
    assert done is not None
    assert_restored(kind, prefix, done)
    if kind.startswith("MovingAverage"):
        model, optimizer = network(kind), public(kind, counter())
        legacy.load_checkpoint(prefix, model, optimizer)
        swapped = legacy.save_checkpoint(tmp_path / "swapped", model, optimizer, swapped=True)
        done = restored_by(python, kind, f"{swapped}+swapping", tmp_path / "swapped.npz")
        np.testing.assert_array_equal(
            done["restored/dense/kernel"], contents(prefix)["dense/kernel"]
        )


# ---- Names ---------------------------------------------------------------------------------------

NAMES = json.loads((SIGNATURES / "tf1_checkpoint_names.json").read_text())


@functools.cache
def makers():
    from integration.tf1 import names  # imports TensorFlow

    return {
        **names.makers(legacy, legacy),
        "VariableClippingOptimizer": lambda step: legacy.VariableClippingOptimizer(
            legacy.MomentumOptimizer(0.1, 0.9), {"dense/bias": [0]}, 1.0
        ),
    }


def a_layer():
    kernel = make_variable("dense/kernel", np.full((5, 4), 0.5))
    return [kernel, make_variable("dense/bias", np.full(4, 0.25))]


def states(optimizer, variables):
    found = [optimizer.get_slot(v, name) for v in variables for name in optimizer.get_slot_names()]
    return [state for state in found if state is not None]


def test_names_do_not_depend_on_earlier_models(tmp_path):
    """Keras numbers the models of a process: `sequential_1` is the second."""
    for place in range(2):
        layers = [keras.layers.Dense(3, name="hidden"), keras.layers.Dense(1, name="out")]
        model = keras.Sequential([keras.Input((4,)), *layers])
        optimizer = legacy.AdamOptimizer(0.1)
        optimizer.keras.build(model.trainable_variables)
        alone = contents(legacy.save_checkpoint(tmp_path / f"{place}", model, optimizer))
        assert {"hidden/kernel", "out/bias", "out/bias/Adam_1"} <= set(alone)
        listed = contents(legacy.save_checkpoint(tmp_path / f"of {place}", [model], [optimizer]))
        assert {f"{model.name}/hidden/kernel", f"{model.name}/out/bias/Adam"} <= set(listed)
    assert model.name.startswith("sequential_")


def test_powers_inside_of_clipping_of_keras(tmp_path):
    """`keras_tfopt.VariableClipping` is saved as the class of the original name."""
    variables = a_layer()
    optimizer = keras_tfopt.VariableClipping(keras_tfopt.Adam(), {"dense/bias": [0]}, 1.0)
    optimizer.build(variables)
    ours = contents(legacy.save_checkpoint(tmp_path / "model", variables, optimizer))
    assert set(ours) == set(NAMES["names"]["VariableClippingOptimizer, around Adam"])


@pytest.mark.parametrize("first", [legacy.AdaMaxOptimizer, legacy.GradientDescentOptimizer])
def test_scopes_of_two_optimizers_are_numbered(first, tmp_path):
    """The second has the names of TensorFlow 1.15.5, whichever powers the first has."""
    variables, optimizers = a_layer(), []
    for make, variable in zip((first, legacy.AdamOptimizer), variables, strict=True):
        dims = {variable.path: [0]}
        optimizers.append(legacy.VariableClippingOptimizer(make(0.1), dims, 1.0))
        optimizers[-1].keras.build([variable])
    ours = contents(legacy.save_checkpoint(tmp_path / "model", variables, optimizers))
    powers = {name for name in ours if name.endswith("_power")}
    expected = {"VariableClipping_1/beta1_power", "VariableClipping_1/beta2_power"}
    if first is legacy.AdaMaxOptimizer:
        expected.add("VariableClipping/beta1_power")
    assert powers == expected


@pytest.mark.parametrize("name", sorted(NAMES["names"]))
@pytest.mark.filterwarnings("ignore:Weight decay with")
def test_names_are_those_of_tensorflow_1(name, tmp_path):
    """The file has exactly the variables of a graph of TensorFlow 1.15.5."""
    expected = NAMES["names"][name]
    variables, optimizer = a_layer(), makers()[name](counter())
    with pytest.raises(ValueError, match="must be built"):
        legacy.save_checkpoint(tmp_path / "no", variables, optimizer)
    optimizer.keras.build(sorted(variables, key=lambda variable: variable.path))
    written = set(optimizer.keras.slot_names)  # TensorFlow 1 has others, which stay zero
    numbers = iter(range(1, 1000))
    for variable in variables:  # fill each slot with another number
        for slot in optimizer.get_slot_names():
            state = optimizer.get_slot(variable, slot)
            if state is not None and slot in written:  # a vector has no second matrix
                state.assign(np.full(state.shape, next(numbers), "float32"))
    ours = contents(legacy.save_checkpoint(tmp_path / "model", variables, optimizer))
    assert set(ours) == set(expected)
    for key, (shape, dtype, meaning) in expected.items():
        assert list(ours[key].shape) == shape and ours[key].dtype == dtype, key
        slot, _, path = meaning.partition(" of ")
        for variable in variables:
            state = optimizer.get_slot(variable, slot) if path == variable.path else None
            if state is not None:
                np.testing.assert_array_equal(ours[key], to_numpy(state), key)

    again, fresh = a_layer(), makers()[name](counter())
    report = legacy.load_checkpoint(tmp_path / "model", again, fresh)
    assert report.iterations == 0 and not report.problems
    assert_same(states(fresh, again), states(optimizer, variables))
