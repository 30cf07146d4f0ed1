"""A program in the style of TensorFlow 1: MonitoredTrainingSession, summaries, two optimizers.

    python integration/tf1/training.py DATA FOLDER STEPS OUT [MODULE]

It runs on TensorFlow 1.15.5 with `tf.contrib.opt`, and on that of today with its optimizers from
MODULE, `keras_tfopt.legacy`. DATA is an archive with `images` (n, 64), `labels` (n,), `batches`
(steps, size) and initial weights. Checkpoints and summaries go to FOLDER, from which it goes on if
there are any; it ends at step STEPS. OUT gets an archive with the loss of each step, by the number
of the step, and all variables at the end. Kernels are trained by LARS with moving averages, biases
by Momentum, with a learning rate that falls with the global step.
"""

import importlib
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow

tf = tensorflow.compat.v1
tf.logging.set_verbosity(tf.logging.ERROR)


def dense(x, name, arrays):
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", initializer=arrays[name + "/kernel"])
        bias = tf.get_variable("bias", initializer=arrays[name + "/bias"])
    return tf.matmul(x, kernel) + bias


def main(data, folder, steps, out, module=None):
    train = contrib = importlib.import_module(module) if module else None
    if module is None:
        from tensorflow.contrib import opt as contrib

        train = tf.train
    arrays = np.load(data)
    losses = {}
    with tf.Graph().as_default():
        tf.enable_resource_variables()
        step = tf.train.get_or_create_global_step()
        images, labels = tf.constant(arrays["images"]), tf.constant(arrays["labels"])
        rows = tf.gather(tf.constant(arrays["batches"]), step)
        x, y = tf.gather(images, rows), tf.gather(labels, rows)
        keep = tf.placeholder_with_default(1.0, [], name="scale")
        hidden = tf.nn.relu(dense(x * keep, "hidden", arrays))
        logits = dense(hidden, "output", arrays)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        )
        tf.summary.scalar("loss", loss)

        rate = tf.train.polynomial_decay(10.0, step, len(arrays["batches"]), 0.0, 2.0)
        tf.summary.scalar("rate", rate)
        kernels = [v for v in tf.trainable_variables() if "kernel" in v.name]
        biases = [v for v in tf.trainable_variables() if "bias" in v.name]
        lars = contrib.LARSOptimizer(rate, momentum=0.9, weight_decay=1e-4)
        averaged = contrib.MovingAverageOptimizer(lars, average_decay=0.9, num_updates=step)
        momentum = train.MomentumOptimizer(rate * 0.01, 0.9)
        pairs = averaged.compute_gradients(loss, kernels)
        pairs = [(tf.clip_by_norm(g, 5.0), v) for g, v in pairs]
        before = tf.identity(step)
        with tf.control_dependencies([before, loss]):
            update = averaged.apply_gradients(pairs)
        with tf.control_dependencies([update]):
            advance = momentum.minimize(loss, global_step=step, var_list=biases)
        train_op = tf.group(update, advance)

        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=folder,
            save_checkpoint_steps=40,
            save_summaries_steps=20,
            log_step_count_steps=None,
            hooks=[tf.train.StopAtStepHook(last_step=int(steps))],
        ) as session:
            while not session.should_stop():
                number, value, _ = session.run([before, loss, train_op], {keep: 1.0})
                losses[f"loss/{number}"] = value
        saver = tf.train.Saver()
        with tf.Session() as session:
            saver.restore(session, tf.train.latest_checkpoint(folder))
            values = session.run({v.op.name: v for v in tf.global_variables()})
    np.savez(out, **losses, **{"var/" + name: value for name, value in values.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
