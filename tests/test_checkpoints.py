"""Checkpoints of TensorFlow 1: going on from recorded ones, and writing such."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from integration import originals, through_legacy
from keras_tfopt import legacy
from keras_tfopt.legacy.table import REQUIRED, TABLE

pytest.importorskip("tensorflow")

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "tests" / "golden" / "tf1" / "checkpoints"
BACKEND = keras.backend.backend()
KINDS = sorted(p.name for p in RECORDED.iterdir())
CASES = [
    (kind, saved["prefix"])
    for kind in KINDS
    for saved in json.loads((RECORDED / kind / "manifest.json").read_text())["checkpoints"]
]
every_case = pytest.mark.parametrize(
    ("kind", "prefix"), CASES, ids=[f"{k}-{p.split('/')[0]}" for k, p in CASES]
)
every_kind = pytest.mark.parametrize("kind", KINDS)


def test_there_are_all_recordings():
    assert len(KINDS) == 13 and len(CASES) == 14


def to_numpy(value):
    return np.array(ops.convert_to_numpy(value))


def manifest(kind):
    return json.loads((RECORDED / kind / "manifest.json").read_text())


def prefix_of(kind):
    return str(RECORDED / kind / manifest(kind)["checkpoints"][0]["prefix"])


class Network(keras.Model):
    """x, or x plus a row for each id, through `dense` and `dense_1`."""

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
    """Variables and slots, as recorded after a step."""
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


# ---- Going on ------------------------------------------------------------------------------------


# Two of them in the slow lane only: the rule of LazyAdam goes on with an embedding as well, and
# what a swapping saver has written is compared whole by the round trip.
@pytest.mark.parametrize(
    ("kind", "prefix"),
    [
        pytest.param(
            kind,
            prefix,
            id=f"{kind}-{prefix.split('/')[0]}",
            marks=[pytest.mark.slow] * (kind == "LazyAdam" or prefix.startswith("swapping")),
        )
        for kind, prefix in CASES
    ],
)
def test_training_goes_on_as_recorded(kind, prefix):
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
    go_on(kind, model, optimizer, step, arrays)


def go_on(kind, model, optimizer, step, arrays):
    """Steps 5 to 9 in Keras's own training, compared after each."""
    # What is compiled is tested elsewhere, with these rules and others.
    model.compile(optimizer=optimizer, loss=LOSS, run_eagerly=BACKEND == "tensorflow")
    with keras_tfopt.execution.plain():
        for t in range(5, 10):
            x, y = batch(arrays, t)
            model.reset_metrics()  # or the loss is the mean of all batches in Keras 3.12
            loss = model.train_on_batch(x, y)
            step.assign_add(1)
            assert_close(loss, arrays[f"loss/{t}"], {"rtol": 1e-4, "atol": 1e-5}, f"loss {t}")
            assert_state(kind, model, optimizer, t, arrays)


@every_kind
def test_verbs_go_on_as_recorded(kind):
    arrays = np.load(RECORDED / kind / "continuation.npz")
    step = counter()
    model, optimizer = network(kind, seed=1), by_verbs(kind, step)
    report = legacy.load_checkpoint(prefix_of(kind), model, optimizer)
    step.assign(report.global_step)
    assert_state(kind, model, optimizer.keras, 4, arrays)
    # Single operations take their time on JAX, and the state is all that there is to go on from.
    end = 5 if BACKEND == "jax" else 10
    with keras_tfopt.execution.plain():
        for t in range(5, end):
            x, y = batch(arrays, t)
            optimizer.minimize(lambda x=x, y=y: LOSS(y, model(x)), step, model.trainable_variables)
            assert_state(kind, model, optimizer.keras, t, arrays)
    assert int(step) == end


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Adam", "GGT"])
def test_a_training_in_progress_is_set_back(kind):
    """What the backends keep beside the variables while they train follows."""
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


def contents(prefix):
    """Everything in a checkpoint, read without this package."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@every_case
def test_round_trip_is_exact(kind, prefix, tmp_path):
    """What is loaded and written again is the same file, to the bit, name by name."""
    swapped = prefix.startswith("swapping")
    model, optimizer = network(kind), public(kind, counter())
    legacy.load_checkpoint(RECORDED / kind / prefix, model, optimizer, swapped=swapped)
    path = legacy.save_checkpoint(tmp_path / "new" / "model", model, optimizer, swapped=swapped)
    assert path == str(tmp_path / "new" / "model")
    ours, theirs = contents(path), contents(RECORDED / kind / prefix)
    assert set(ours) == set(theirs)
    for name, array in theirs.items():
        assert ours[name].dtype == array.dtype and ours[name].shape == array.shape, name
        if name != "flat_grad":  # of GGT, which writes it before it reads it
            np.testing.assert_array_equal(ours[name], array, err_msg=name)

    again, optimizer = network(kind, seed=3, name="again"), public(kind, counter())
    # A folder is its latest checkpoint.
    legacy.load_checkpoint(tmp_path / "new", again, optimizer, swapped=swapped)
    for a, b in zip(model.weights, again.weights):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))


def tensorflow_1():
    """The interpreter with TensorFlow 1.15: $TF1_PYTHON, or `python3.7` if it has it."""
    candidates = [os.environ.get("TF1_PYTHON"), shutil.which("python3.7")]
    for python in filter(None, candidates):
        done = subprocess.run(
            [python, "-c", "import tensorflow as tf; print(tf.__version__)"],
            capture_output=True,
            text=True,
        )
        if done.returncode == 0 and done.stdout.split(".")[:2] == ["1", "15"]:
            return python
    return None


def restored_by(python, kind, prefix, out):
    """What `integration/tf1/restore.py` makes of a checkpoint; None if it lacks the optimizer."""
    batches = RECORDED / kind / "continuation.npz"
    program = ROOT / "integration" / "tf1" / "restore.py"
    arguments = [RECORDED / kind / "manifest.json", prefix, batches, out]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [python, str(program), *map(str, arguments)],
        env=environment,
        cwd=out.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode == 3:
        return None
    assert done.returncode == 0, done.stderr[-3000:]
    return np.load(out)


def assert_restored(kind, prefix, done):
    """That TensorFlow 1 restored what was written, and went on as it did when it was recorded."""
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


@every_kind
def test_saver_in_graph_mode_restores_it(kind, tmp_path):
    """A graph with the variables that the recorded one had, and a Saver of TensorFlow 1."""
    import tensorflow as tf

    prefix = write_loaded(kind, tmp_path)
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        recorded = manifest(kind)["checkpoints"][0]["variables"]
        variables = [
            v1.get_variable(v["name"], v["shape"], v["dtype"], v1.zeros_initializer())
            for v in recorded
        ]
        session.run(v1.global_variables_initializer())
        v1.train.Saver().restore(session, prefix)
        values = session.run(variables)
    theirs = contents(prefix_of(kind))
    for entry, value in zip(recorded, values):
        if entry["name"] != "flat_grad":
            np.testing.assert_array_equal(value, theirs[entry["name"]], entry["name"])


@pytest.mark.slow
@pytest.mark.spread
def test_training_in_graph_mode_goes_on_from_it(tmp_path):
    prefix = write_loaded("Adam", tmp_path)
    done = restored_by(sys.executable, "Adam", prefix, tmp_path / "done.npz")
    assert_restored("Adam", prefix, done)


@pytest.mark.slow
@every_kind
def test_tensorflow_1_restores_it(kind, tmp_path):
    python = tensorflow_1()
    if python is None:
        pytest.skip("no TensorFlow 1.15: set TF1_PYTHON to an interpreter that has it")
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

NAMES = json.loads((ROOT / "tests" / "signatures" / "tf1_checkpoint_names.json").read_text())
GIVEN = {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.1}


def legacy_of(name, step):
    """The optimizer that `integration/tf1/names.py` made, of ours."""
    cls, _, how = name.partition(", ")
    more = {"centered": {"centered": True}, "named": {"accum_name": "acc", "linear_name": "lin"}}
    inner = legacy.MomentumOptimizer(0.1, 0.9)
    if cls.startswith("extend"):
        extended = legacy.extend_with_decoupled_weight_decay(legacy.LazyAdamOptimizer)
        return extended(0.1, learning_rate=0.1)
    if cls in ("MovingAverageOptimizer", "MultitaskOptimizerWrapper"):
        return getattr(legacy, cls)(inner)
    if cls == "VariableClippingOptimizer":
        return legacy.VariableClippingOptimizer(inner, {"dense/bias": [0]}, 1.0)
    arguments = {}
    for argument, default in TABLE[cls].arguments.items():
        if argument == "global_step":
            arguments[argument] = step
        elif default is REQUIRED:
            arguments[argument] = GIVEN[argument]
    return getattr(legacy, cls)(**arguments, **more.get(how, {}))


def a_layer():
    with keras.name_scope("dense"):
        return [
            keras.Variable(np.full((5, 4), 0.5, "float32"), name="kernel"),
            keras.Variable(np.full(4, 0.25, "float32"), name="bias"),
        ]


@pytest.mark.parametrize("name", sorted(NAMES["names"]))
@pytest.mark.filterwarnings("ignore:Weight decay beside")
def test_names_are_those_of_tensorflow_1(name, tmp_path):
    """Every class: all that a graph of TensorFlow 1.15.5 asks for is written, and nothing else."""
    expected = NAMES["names"][name]
    variables, optimizer = a_layer(), legacy_of(name, counter())
    with pytest.raises(ValueError, match="must be built"):
        legacy.save_checkpoint(tmp_path / "no", variables, optimizer)
    optimizer.keras.build(sorted(variables, key=lambda variable: variable.path))
    written = set(optimizer.keras.slot_names)  # of the others, TensorFlow 1 keeps the zeros
    numbers = iter(range(1, 1000))
    for variable in variables:  # slots that can be told apart
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

    again, fresh = a_layer(), legacy_of(name, counter())
    report = legacy.load_checkpoint(tmp_path / "model", again, fresh)
    assert report.iterations == 0 and not report.problems
    for a, b in zip(variables, again):
        for slot in optimizer.get_slot_names():
            if optimizer.get_slot(a, slot) is not None:
                np.testing.assert_array_equal(
                    to_numpy(fresh.get_slot(b, slot)), to_numpy(optimizer.get_slot(a, slot))
                )
