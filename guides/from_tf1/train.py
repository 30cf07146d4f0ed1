"""A program of TensorFlow 1.15 as it was: digits, large batches, LARS, sessions and a Saver.

It needs Python 3.7, tensorflow==1.15.5 and scikit-learn, and wrote the files next to it: the
checkpoint of step 150, and in going_on.json the losses of the 150 steps after it.

    python guides/from_tf1/train.py
"""

import json
import os

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow.contrib.opt import LARSOptimizer

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS, CHECKPOINT, BATCH = 300, 150, 512

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32")
order = np.random.RandomState(0).permutation(len(images))
training, test = order[:1400], order[1400:]
batches = np.random.RandomState(1).randint(0, len(training), (STEPS, BATCH))

tf.set_random_seed(0)
x = tf.placeholder(tf.float32, [None, 64])
y = tf.placeholder(tf.int64, [None])
hidden = tf.layers.dense(x, 64, activation=tf.nn.relu)
logits = tf.layers.dense(hidden, 10)
loss = tf.losses.sparse_softmax_cross_entropy(y, logits)
accuracy = tf.reduce_mean(tf.to_float(tf.equal(tf.argmax(logits, 1), y)))

step = tf.train.get_or_create_global_step()
rate = tf.train.polynomial_decay(10.0, step, STEPS, end_learning_rate=0.0, power=2.0)
optimizer = LARSOptimizer(rate, momentum=0.9, weight_decay=1e-4, skip_list=["bias"])
train = optimizer.minimize(loss, global_step=step)

saver = tf.train.Saver()
losses = []
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for t in range(STEPS):
        if t == CHECKPOINT:
            saver.save(
                session, os.path.join(HERE, "model.ckpt"), global_step=step, write_meta_graph=False
            )
        rows = training[batches[t]]
        value, _ = session.run([loss, train], {x: images[rows], y: labels[rows]})
        losses.append(float(value))
    right = float(session.run(accuracy, {x: images[test], y: labels[test]}))

with open(os.path.join(HERE, "going_on.json"), "w") as file:
    json.dump({"loss": losses[CHECKPOINT:], "test_accuracy": right}, file)
os.remove(os.path.join(HERE, "checkpoint"))  # which has the path of this machine
print(f"loss {losses[-1]:.4f}, test accuracy {right:.4f}")
