"""`DropStaleGradientOptimizer` in a graph: recorded schedules of several workers."""

import json

import numpy as np
import pytest

from keras_tfopt import legacy
from tests.helpers.graphs import KINDS, one_kind_of_each, tf, v1
from tests.helpers.paths import GOLDEN

pytestmark = pytest.mark.backends("tensorflow", reason="graphs are TensorFlow's")

FOLDER = GOLDEN / "tf1_distributed"
CASES = {
    entry["case"]: entry
    for entry in json.loads((FOLDER / "manifest.json").read_text())["cases"]
    if entry["optimizer"] == "DropStaleGradientOptimizer"
}
READ, APPLY = 1, 2


@one_kind_of_each(dict.fromkeys(CASES, KINDS))
def test_recorded_schedules(name, kind):
    """A worker reads variables at one event. Its gradient is applied at a later one."""
    entry = CASES[name]
    recorded = np.load(FOLDER / entry["file"])
    inner = entry["inner_optimizer"]
    paths = [variable["name"] for variable in entry["variables"]]
    with tf.Graph().as_default(), v1.Session() as session:
        variables = {
            path: v1.get_variable(
                path, initializer=recorded[f"init/{path}"], use_resource=kind == "resource"
            )
            for path in paths
        }
        step = v1.train.get_or_create_global_step()
        fed = {path: v1.placeholder("float32", variables[path].shape) for path in paths}
        optimizer = legacy.DropStaleGradientOptimizer(
            getattr(legacy, f"{inner['class_name']}Optimizer")(**inner["config"]), **entry["kwargs"]
        )
        loss = tf.add_n([tf.reduce_sum(fed[path] * variables[path]) for path in paths])
        pairs = optimizer.compute_gradients(loss, list(variables.values()))
        train = optimizer.apply_gradients(pairs, global_step=step)
        (dropped,) = [v for v in optimizer.variables() if v.op.name == "stale_counter"]
        state = {"extra/global_step": step, "extra/stale_counter": dropped}
        for path, variable in variables.items():
            state[f"var/{path}"] = variable
            for slot in optimizer.get_slot_names():
                state[f"slot/{path}/{slot}"] = optimizer.get_slot(variable, slot)
        tolerances = {"extra": 0.0, "var": 2e-5, "slot": 1e-4}
        session.run(v1.global_variables_initializer())
        read = {}
        applied = 0
        for event, (worker, what) in enumerate(recorded["schedule"]):
            feed = {fed[path]: recorded[f"worker/{worker}/grad/{path}"][event] for path in paths}
            if what == READ:
                read[worker] = session.run(optimizer._local_step, feed), feed
            elif what == APPLY:
                local_step, feed = read[worker]
                returned = session.run(train, {**feed, optimizer._local_step: local_step})
                assert returned == recorded[f"worker/{worker}/extra/returned"][event]
                applied += 1
            else:
                pytest.fail(f"no such event: {what}")
            for key, value in session.run(state).items():
                expected = recorded[f"center/{key}"][event]
                rtol = tolerances[key.split("/")[0]]
                np.testing.assert_allclose(value, expected, rtol, 5e-6, err_msg=f"{key} {event}")
        assert applied > 3


def test_errors():
    """The age of a gradient needs `compute_gradients` and `global_step`."""
    with tf.Graph().as_default():
        x = v1.get_variable("x", initializer=[1.0])
        optimizer = legacy.DropStaleGradientOptimizer(legacy.GradientDescentOptimizer(1.0), 1)
        with pytest.raises(RuntimeError, match="compute_gradients"):
            optimizer.apply_gradients([(tf.ones(1), x)], v1.train.get_or_create_global_step())
        with pytest.raises(ValueError, match="`global_step`"):
            optimizer.minimize(tf.reduce_sum(x))
        with pytest.warns(UserWarning, match="`staleness`"):
            legacy.DropStaleGradientOptimizer(legacy.GradientDescentOptimizer(1.0), -1)
        assert isinstance(optimizer, v1.train.Optimizer)
        with pytest.raises(RuntimeError, match="eager"):
            _ = optimizer.keras
