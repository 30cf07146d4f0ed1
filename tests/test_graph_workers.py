"""`DropStaleGradientOptimizer` in a graph: recorded schedules of several workers."""

import json

import numpy as np
import pytest

from keras_tfopt import legacy
from tests.graphs import tf, v1
from tests.paths import GOLDEN

pytestmark = pytest.mark.backends("tensorflow", reason="graphs are TensorFlow's")

FOLDER = GOLDEN / "tf1_distributed"
CASES = {
    entry["case"]: entry
    for entry in json.loads((FOLDER / "manifest.json").read_text())["cases"]
    if entry["optimizer"] == "DropStaleGradientOptimizer"
}
READ, APPLY = 1, 2


@pytest.mark.parametrize("use_resource", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_recorded_schedules(case, use_resource):
    """A worker reads variables at one event. Its gradient is applied at a later one."""
    entry = CASES[case]
    recorded = np.load(FOLDER / entry["file"])
    inner = entry["inner_optimizer"]
    names = [variable["name"] for variable in entry["variables"]]
    with tf.Graph().as_default(), v1.Session() as session:
        variables = {
            name: v1.get_variable(
                name, initializer=recorded[f"init/{name}"], use_resource=use_resource
            )
            for name in names
        }
        step = v1.train.get_or_create_global_step()
        fed = {name: v1.placeholder("float32", variables[name].shape) for name in names}
        optimizer = legacy.DropStaleGradientOptimizer(
            getattr(legacy, f"{inner['class_name']}Optimizer")(**inner["config"]), **entry["kwargs"]
        )
        loss = tf.add_n([tf.reduce_sum(fed[name] * variables[name]) for name in names])
        pairs = optimizer.compute_gradients(loss, list(variables.values()))
        train = optimizer.apply_gradients(pairs, global_step=step)
        (dropped,) = [v for v in optimizer.variables() if v.op.name == "stale_counter"]
        session.run(v1.global_variables_initializer())
        read = {}
        applied = 0
        for event, (worker, kind) in enumerate(recorded["schedule"]):
            feed = {fed[n]: recorded[f"worker/{worker}/grad/{n}"][event] for n in names}
            if kind == READ:
                read[worker] = session.run(optimizer._local_step, feed), feed
            elif kind == APPLY:
                local_step, feed = read[worker]
                returned = session.run(train, {**feed, optimizer._local_step: local_step})
                assert returned == recorded[f"worker/{worker}/extra/returned"][event]
                applied += 1
            else:
                pytest.fail(f"no such event: {kind}")
            assert session.run(step) == recorded["center/extra/global_step"][event]
            assert session.run(dropped) == recorded["center/extra/stale_counter"][event]
            for name, variable in variables.items():
                expected = recorded[f"center/var/{name}"][event]
                np.testing.assert_allclose(session.run(variable), expected, rtol=2e-5, atol=5e-6)
                for slot in optimizer.get_slot_names():
                    np.testing.assert_allclose(
                        session.run(optimizer.get_slot(variable, slot)),
                        recorded[f"center/slot/{name}/{slot}"][event],
                        rtol=1e-4,
                        atol=5e-6,
                    )
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
