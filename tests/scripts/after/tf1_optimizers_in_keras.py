# -*- coding: utf-8 -*-
import numpy as np
import tensorflow as tf
import keras_tfopt

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
    keras_tfopt.Adam(learning_rate=0.001, beta_1=0.9, beta_2=0.98, epsilon=1e-9),
    keras_tfopt.RMSProp(learning_rate=0.001, rho=0.9, momentum=0.9),
    keras_tfopt.Momentum(learning_rate=0.01, momentum=0.9, nesterov=True),
    keras_tfopt.LazyAdam(0.002),
    keras_tfopt.AdamW(weight_decay=1e-4, learning_rate=0.001),  # decoupled
]:
    result += compiled(optimizer).fit(x, y, verbose=0).history["loss"]
