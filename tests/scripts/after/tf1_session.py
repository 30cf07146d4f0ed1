"""Linear regression in a graph."""
import numpy as np
import tensorflow.compat.v1 as tf
import keras_tfopt.legacy

rng = np.random.RandomState(0)
xs = rng.rand(50, 2).astype("float32")
ys = xs.dot(np.array([[2.0], [-3.0]], "float32")) + 1

with tf.Graph().as_default():
    x = tf.placeholder(tf.float32, [None, 2])
    y = tf.placeholder(tf.float32, [None, 1])
    w = tf.get_variable("w", [2, 1], use_resource=True, initializer=tf.zeros_initializer())
    b = tf.get_variable("b", [1], use_resource=True, initializer=tf.zeros_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(x, w) + b - y))
    opt = keras_tfopt.legacy.AdamOptimizer(0.1, beta1=0.8)
    train_op = opt.minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        result = [sess.run([loss, train_op], {x: xs, y: ys})[0] for _ in range(50)]
