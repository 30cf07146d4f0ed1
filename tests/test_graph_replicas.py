"""Steps of TensorFlow 1 in the replicas of a strategy."""

import json

import pytest

from tests.helpers.graphs import assert_close
from tests.helpers.programs import output_of

pytestmark = pytest.mark.backends("tensorflow", reason="graphs are TensorFlow's")

PROGRAM = """
import json
import tensorflow as tf
cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
from keras_tfopt import legacy

v1 = tf.compat.v1.train
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

def train(make, start, loss, steps):
    with strategy.scope():
        x = tf.Variable(start)
        optimizer = make(x)

    @tf.function
    def step():
        def replica():
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            optimizer.minimize(lambda: loss(x, number), var_list=[x])
        strategy.run(replica)

    for _ in range(steps):
        step()
    return [copy.numpy().ravel().tolist() for copy in x.values], len(optimizer.variables())

def squares(x, number):
    return tf.reduce_sum(x ** 2) * (tf.cast(number, "float32") + 1)

def dense(make):
    return train(lambda x: make(), [1.0, -2.0], squares, 3)

def two_rows(x, number):
    return tf.reduce_sum(tf.gather(x, [2 * number, 2 * number + 1]))

def rows(make):
    return train(make, [[1.0]] * 4, two_rows, 1)[0]

sgd = legacy.GradientDescentOptimizer(0.25)
print(json.dumps({
    "ours and TensorFlow's": [
        [dense(lambda: module.AdamOptimizer(0.1)) for module in (legacy, v1)],
        [dense(lambda: module.MomentumOptimizer(0.1, 0.9)) for module in (legacy, v1)],
    ],
    "decay": rows(lambda x: legacy.MomentumWOptimizer(0.5, 0.25, 0.0)),
    "clipping": rows(lambda x: legacy.VariableClippingOptimizer(sgd, {x.ref(): [1]}, 0.5)),
}))
"""


@pytest.fixture(scope="module")
def printed():
    return json.loads(output_of("-c", PROGRAM).splitlines()[-1])


@pytest.mark.xdist_group("graph_replicas")
def test_same_as_optimizers_of_tensorflow(printed):
    for (copies, count), (expected, stock_count) in printed["ours and TensorFlow's"]:
        assert_close(copies, expected)
        assert count == stock_count


@pytest.mark.xdist_group("graph_replicas")
@pytest.mark.parametrize(("of", "value"), [("decay", 1 - 0.5 - 0.25), ("clipping", 0.5)])
def test_rows_of_all_replicas(of, value, printed):
    """Each replica has a gradient for rows of its own. All rows shrink or are clipped on all."""
    assert_close(printed[of], [[value] * 4] * 2)
