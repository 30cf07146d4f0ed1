"""Our optimizers in `tf.train.Checkpoint`, monitored sessions and wrappers of TensorFlow."""

import numpy as np
import pytest

from keras_tfopt import legacy
from tests.cells import exhaustive
from tests.helpers.graphs import (
    MAKE,
    assert_close,
    eagerly,
    session,
    start,
    straight,
    tf,
    v1,
    variable,
)

pytestmark = pytest.mark.backends("tensorflow", reason="graphs are TensorFlow's")


@pytest.mark.parametrize("where", ["graph", "eager"])
@pytest.mark.parametrize("name", ["Adam", "GGT"])
def test_checkpoints_of_objects(name, where, tmp_path):
    """`tf.train.Checkpoint` saves and restores the optimizer, in graphs and eagerly."""

    def train(sess, restored):
        x = v1.Variable([1.0, -2.0], name="x", use_resource=True)
        optimizer = MAKE[name]()
        checkpoint = v1.train.Checkpoint(x=x, optimizer=optimizer)
        if restored:
            status = checkpoint.restore(restored)
        step = lambda: optimizer.minimize(lambda: tf.reduce_sum(x**2), var_list=[x])  # noqa: E731
        if sess is None:
            for _ in range(2):
                step()
        else:
            operation = step()
            start(sess)
            if restored:
                status.initialize_or_restore(sess)
            for _ in range(2):
                sess.run(operation)
        path = checkpoint.save(str(tmp_path / "model"), session=sess)
        return (x.numpy() if sess is None else sess.run(x)), path

    def once(restored=None):
        with eagerly() if where == "eager" else session() as sess:
            return train(sess, restored)

    _, path = once()
    value, _ = once(path)
    assert_close(value, straight(MAKE[name], 4), factor=10)


@pytest.mark.parametrize(
    ("shape", "more"),
    [
        ((2, 3), {}),
        ((3,), {"svd_interval": 2}),
        ((4, 1), {"max_matrix_size": 2}),
        ((2, 3), {"max_matrix_size": 2}),
        exhaustive((3,), {}),
        exhaustive((4, 1), {}),
        exhaustive((2, 3), {"svd_interval": 2}),
        exhaustive((4, 1), {"svd_interval": 2}),
        exhaustive((3,), {"max_matrix_size": 2}),
    ],
)
def test_checkpoints_of_objects_with_slots_of_other_shapes(shape, more, tmp_path):
    """Slots of Shampoo, which are restored before a step has made them."""

    def train(steps, restored=None):
        with eagerly():
            x = tf.Variable(np.arange(1.0, 1 + np.prod(shape)).reshape(shape), name="x")
            count = tf.Variable(0, dtype="int64", trainable=False)
            optimizer = legacy.ShampooOptimizer(count, learning_rate=0.1, **more)
            checkpoint = tf.train.Checkpoint(x=x, count=count, optimizer=optimizer)
            status = checkpoint.restore(restored)
            for _ in range(steps):
                optimizer.minimize(lambda: tf.reduce_sum(x**2), count, [x])
            if restored:
                status.assert_consumed()
            return x.numpy(), checkpoint.save(str(tmp_path / "model"))

    _, path = train(2)
    np.testing.assert_allclose(train(1, path)[0], train(3)[0], rtol=1e-12)


def test_a_new_monitored_session_continues_from_saved_state(tmp_path):

    def train(steps):
        with tf.Graph().as_default():
            x, count = variable([1.0, -2.0], "x"), v1.train.get_or_create_global_step()
            step = legacy.AdamOptimizer(0.1).minimize(tf.reduce_sum(x**2), count)
            hooks = [v1.train.StopAtStepHook(last_step=steps)]
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path), hooks=hooks, save_checkpoint_steps=1
            ) as sess:
                while not sess.should_stop():
                    sess.run(step)
        return v1.train.load_checkpoint(str(tmp_path)).get_tensor("x")

    train(2)
    value = train(5)
    assert_close(value, straight(MAKE["Adam"], 5))


def test_a_scaled_loss():
    """TensorFlow's loss scaling skips a step that overflows."""
    scaled = v1.mixed_precision.MixedPrecisionLossScaleOptimizer
    with session() as sess:
        x, y = variable([1.0, -2.0], "x"), v1.placeholder_with_default(1.0, [])
        optimizer = scaled(legacy.AdamOptimizer(0.1), v1.mixed_precision.DynamicLossScale(128.0))
        train = optimizer.minimize(tf.reduce_sum(x**2) * y)
        start(sess)
        for factor in (1.0, np.inf, 1.0):
            sess.run(train, {y: factor})
        assert_close(sess.run(x), straight(MAKE["Adam"], 2))


# When it stops, a thread of TensorFlow ends with an exception.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_sync_replicas_of_tensorflow():
    """TensorFlow's SyncReplicasOptimizer works around one of ours."""
    with tf.Graph().as_default():
        x, count = variable([1.0, -2.0], "x"), v1.train.get_or_create_global_step()
        optimizer = v1.train.SyncReplicasOptimizer(
            legacy.AdamOptimizer(0.1), replicas_to_aggregate=1, total_num_replicas=1
        )
        step = optimizer.minimize(tf.reduce_sum(x**2), count)
        hooks = [optimizer.make_session_run_hook(True), v1.train.StopAtStepHook(num_steps=3)]
        # Its threads wait forever for other workers.
        with v1.train.MonitoredTrainingSession(hooks=hooks, stop_grace_period_secs=1) as sess:
            values = [sess.run([step, x])[1] for _ in range(4)]
        assert optimizer.get_slot(x, "m").op.name == "x/Adam"
        # A thread applies the gathered gradients some time later.
        path = [straight(MAKE["Adam"], steps) for steps in range(1, 5)]
        assert any(np.allclose(values[-1], value, atol=1e-6) for value in path)
