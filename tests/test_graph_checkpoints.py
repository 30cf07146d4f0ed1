"""TensorFlow's Saver restores and writes checkpoints of TensorFlow 1 with our optimizers."""

import json
import os

import keras
import numpy as np
import pytest

from keras_tfopt import legacy
from tests import test_checkpoints as recorded
from tests.helpers import graphs
from tests.helpers.paths import SIGNATURES

if keras.backend.backend() != "tensorflow":
    pytest.skip("graphs are TensorFlow's", allow_module_level=True)


from integration.tf1 import names, restore

NAMES = json.loads((SIGNATURES / "tf1_checkpoint_names.json").read_text())
MAKERS = names.makers(legacy, legacy)
MODULE = "keras_tfopt.legacy"

pytestmark = [
    pytest.mark.backends("tensorflow", reason="graphs are TensorFlow's"),
    pytest.mark.filterwarnings("ignore:Weight decay with"),
]


def test_every_recorded_class_is_made():
    assert set(MAKERS) == set(NAMES["names"])


@pytest.mark.parametrize("name", MAKERS)
def test_variables_of_a_graph_equal_those_of_tensorflow_1(name):
    """They have the same names, shapes, data types and meanings."""
    assert names.described(MAKERS[name]) == NAMES["names"][name]


def run(kind, prefix, folder, saved=None):
    """Run the recorded program with our optimizers; return its results."""
    batches = recorded.RECORDED / kind / "continuation.npz"
    manifest = recorded.RECORDED / kind / "manifest.json"
    restore.main(str(manifest), prefix, str(batches), str(folder / "done.npz"), MODULE, saved)
    return np.load(folder / "done.npz")


@recorded.every_case
def test_training_continues_in_a_graph(kind, prefix, tmp_path):
    """The steps after restoring equal those of TensorFlow 1.15.5."""
    path = str(recorded.RECORDED / kind / prefix)
    swapping = prefix.startswith("swapping")
    if swapping:
        path += "+swapping"
    saved = str(tmp_path / "again")
    done = run(kind, path, tmp_path, saved)
    arrays = np.load(recorded.RECORDED / kind / "continuation.npz")
    tolerance = recorded.manifest(kind)["tolerance"]
    compared = 0
    for name in arrays:
        what, step, *rest = name.split("/")
        if what in ("var", "loss") and int(step) >= 5:
            recorded.assert_close(done[name], arrays[name], tolerance["var"], name)
            compared += 1
    assert compared > 20
    # The restored checkpoint is saved again with the same names and bits.
    given = recorded.contents(str(recorded.RECORDED / kind / prefix))
    again = recorded.contents(saved)
    assert set(again) == set(given)
    for name, value in given.items():
        np.testing.assert_array_equal(again[name], value, name)


@pytest.mark.slow
@recorded.every_kind
def test_tensorflow_1_continues_from_a_graph_of_today(kind, tmp_path):
    python = recorded.tensorflow_1()
    saved = str(tmp_path / "saved")
    run(kind, recorded.prefix_of(kind), tmp_path, saved)
    done = recorded.restored_by(python, kind, saved, tmp_path / "theirs.npz")
    assert done is not None
    recorded.assert_restored(kind, saved, done)
    assert os.path.exists(f"{saved}.index")


# Recorded from TensorFlow 1.15.5: `tf.global_variables()` after `minimize`. Programs that save the
# values as a list count on the order.
ORDERS = {
    "Adam": ["beta1_power", "beta2_power", "a/Adam", "a/Adam_1", "b/Adam", "b/Adam_1"],
    "AdaMax": ["beta1_power", "a/AdaMax", "a/AdaMax_1", "b/AdaMax", "b/AdaMax_1"],
    "AdamW": ["beta1_power", "beta2_power", "a/AdamW", "a/AdamW_1", "b/AdamW", "b/AdamW_1"],
    "GGT": ["global_step", "grad_buffer", "moment1", "flat_grad"],
    "average": [
        *("beta1_power", "beta2_power", "a/Adam", "a/Adam_1", "b/Adam", "b/Adam_1"),
        *("a/ExponentialMovingAverage", "b/ExponentialMovingAverage"),
    ],
}
MAKE_ORDERED = {
    "Adam": lambda: legacy.AdamOptimizer(0.1),
    "AdaMax": lambda: legacy.AdaMaxOptimizer(0.1),
    "AdamW": lambda: legacy.AdamWOptimizer(0.01),
    "GGT": lambda: legacy.GGTOptimizer(0.1),
    "average": lambda: legacy.MovingAverageOptimizer(legacy.AdamOptimizer(0.1)),
}


@pytest.mark.parametrize("name", ORDERS)
def test_variables_are_created_in_the_order_of_tensorflow_1(name):
    with graphs.session():
        a, b = graphs.variable([[1.0, 2.0]], "a"), graphs.variable([1.0, 2.0], "b")
        loss = graphs.tf.reduce_sum(a * a) + graphs.tf.reduce_sum(b * b)
        MAKE_ORDERED[name]().minimize(loss)
        created = [v.op.name for v in graphs.v1.global_variables()]
    assert created == ["a", "b", *ORDERS[name]]


# ---- Two optimizers of the same variables


@pytest.mark.parametrize("first", [True, False])
def test_slots_go_with_the_powers_that_name_map_leaves(first, tmp_path):
    """One optimizer pretrains and another one trains: both have slots of all variables."""
    prefix = str(tmp_path / "model")
    with graphs.session() as sess:
        x, y = graphs.variable([1.0, 2.0], "x"), graphs.variable([[3.0]], "y")
        loss = graphs.tf.reduce_sum(x * x) + graphs.tf.reduce_sum(y * y * y)
        steps = [graphs.v1.train.AdamOptimizer(0.1).minimize(loss) for _ in range(2)]
        graphs.start(sess)
        for step in (steps[0], steps[0], steps[1], steps[1], steps[1]):
            sess.run(step)
        graphs.v1.train.Saver().save(sess, prefix, write_meta_graph=False)
        known = {v.op.name: sess.run(v) for v in graphs.v1.global_variables()}
    variables = [keras.Variable(np.zeros_like(known[name]), name=name) for name in ("x", "y")]
    optimizer = legacy.AdamOptimizer(0.1)
    with pytest.raises(ValueError, match=r"several optimizers: .*2 steps.*3 steps"):
        legacy.load_checkpoint(prefix, variables, optimizer)
    left_out = "_1" if first else ""
    names_left_out = {f"beta{n}_power{left_out}": None for n in (1, 2)}
    report = legacy.load_checkpoint(prefix, variables, optimizer, names_left_out)
    assert report.iterations == (2 if first else 3)
    for variable in variables:
        for slot, number in {"m": "" if first else "_2", "v": "_1" if first else "_3"}.items():
            found = keras.ops.convert_to_numpy(optimizer.get_slot(variable, slot))
            np.testing.assert_array_equal(found, known[f"{variable.name}/Adam{number}"])
