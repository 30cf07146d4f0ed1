"""Restores a checkpoint with `tf.train.Saver` in graph mode and goes on training from it.

    python integration/tf1/restore.py MANIFEST PREFIX BATCHES OUT [MODULE] [SAVED]

For TensorFlow 1.15.5 on Python 3.7; optimizers of `tf.train` also run with TensorFlow 2.

MANIFEST describes a recorded checkpoint; the network and the optimizer are made from it. PREFIX is
what to restore; with `+swapping` behind it, by `swapping_saver()`. BATCHES is an archive with
`batch/<step>/x`, `y` and `ids`, of which the steps after the checkpoint are fed. OUT gets an
archive with every variable right after the restoration, `restored/<name>`, and after each step,
`var/<step>/<name>`, and the losses, `loss/<step>`.

MODULE is where the optimizers come from, TensorFlow's own by default; `keras_tfopt.legacy` runs the
same program on the TensorFlow of today. SAVED is a prefix to save the checkpoint under again, right
after its restoration.

It exits with status 3 where this TensorFlow has no such optimizer.
"""

import importlib
import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow

tf = tensorflow.compat.v1
tf.logging.set_verbosity(tf.logging.ERROR)


def optimizer(name, kwargs, step, module):
    given = {}
    for key, value in kwargs.items():
        if isinstance(value, dict) and "ref" in value:
            value = step
        elif isinstance(value, dict):
            value = optimizer(value["optimizer"], value["kwargs"], step, module)
        given[key] = value
    if module is not None:
        return getattr(importlib.import_module(module), name)(**given)
    found = getattr(tf.train, name, None)
    if found is None:
        try:
            from tensorflow.contrib import opt
        except ImportError:
            print(f"no {name} in TensorFlow {tensorflow.__version__}")
            sys.exit(3)
        found = getattr(opt, name)
    return found(**given)


def main(manifest_file, prefix, batches, out, module=None, saved=None):
    with open(manifest_file) as file:
        manifest = json.load(file)
    shapes = {v["name"]: v["shape"] for v in manifest["checkpoints"][0]["variables"]}
    arrays = np.load(batches)
    graph = tf.Graph()
    with graph.as_default():
        tf.enable_resource_variables()
        step = tf.train.get_or_create_global_step()
        x = tf.placeholder(tf.float32, [None, 5])
        y = tf.placeholder(tf.int64, [None])
        ids = tf.placeholder(tf.int64, [None])

        def variable(name):
            return tf.get_variable(name, shapes[name], initializer=tf.zeros_initializer())

        h = x
        if "embedding/embeddings" in shapes:
            h = x + tf.nn.embedding_lookup(variable("embedding/embeddings"), ids)
        h = tf.tanh(tf.matmul(h, variable("dense/kernel")) + variable("dense/bias"))
        logits = tf.matmul(h, variable("dense_1/kernel")) + variable("dense_1/bias")
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        )
        opt = optimizer(manifest["optimizer"], manifest["kwargs"], step, module)
        if tensorflow.__version__.startswith("1."):
            tf.disable_v2_tensorshape()  # which an import of tf.compat switches on; Shampoo fails
        train = opt.minimize(loss, global_step=step)
        saver = tf.train.Saver()
        if prefix.endswith("+swapping"):
            prefix, saver = prefix[: -len("+swapping")], opt.swapping_saver()

        done = {}
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            saver.restore(session, prefix)
            if saved is not None:
                saver.save(session, saved, write_meta_graph=False)
            everything = tf.global_variables()
            for v, value in zip(everything, session.run(everything)):
                done["restored/" + v.op.name] = value
            for t in range(manifest["steps_before_checkpoint"], manifest["steps_recorded"]):
                feed = {x: arrays[f"batch/{t}/x"], y: arrays[f"batch/{t}/y"]}
                if "embedding/embeddings" in shapes:
                    feed[ids] = arrays[f"batch/{t}/ids"]
                done[f"loss/{t}"] = session.run([loss, train], feed)[0]
                for v, value in zip(everything, session.run(everything)):
                    done[f"var/{t}/{v.op.name}"] = value
    np.savez(out, **done)


if __name__ == "__main__":
    main(*sys.argv[1:])
