# -*- coding: utf-8 -*-
import numpy as np
import tensorflow as tf
from tensorflow.contrib.opt import LazyAdamOptimizer
from tensorflow.contrib.opt import AdamWOptimizer as AdamW

x = np.arange(24).reshape(8, 3) % 10
y = np.random.RandomState(0).rand(8, 1).astype("float32")


def compiled(optimizer):
    model = tf.keras.Sequential()
    model.add(tf.keras.layers.Embedding(10, 4))
    model.add(tf.keras.layers.Flatten())
    model.add(tf.keras.layers.Dense(1))
    model.compile(optimizer=optimizer, loss="mse")
    return model


result = []
for optimizer in [
    tf.train.AdamOptimizer(learning_rate=0.001, beta1=0.9, beta2=0.98, epsilon=1e-9),
    tf.train.RMSPropOptimizer(0.001, 0.9, momentum=0.9, use_locking=True),
    tf.compat.v1.train.MomentumOptimizer(0.01, 0.9, use_nesterov=True),
    LazyAdamOptimizer(0.002),
    AdamW(weight_decay=1e-4, learning_rate=0.001),  # decoupled
]:
    result += compiled(optimizer).fit(x, y, verbose=0).history["loss"]
