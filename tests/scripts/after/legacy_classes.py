import numpy as np
import tensorflow as tf
import keras
import keras_tfopt

inputs = tf.keras.Input((6,))
hidden = tf.keras.layers.Dense(4, activation="relu")(inputs)
model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))

# tf.keras.optimizers.* was slow on M1/M2 Macs
OPTIMIZERS = {
    "adam": keras_tfopt.Adam(learning_rate=1e-2, epsilon=1e-7),
    "sgd": keras_tfopt.migrate.SGD(0.01, 0.9, True),
    "rmsprop": keras_tfopt.migrate.RMSprop(
        learning_rate=keras.optimizers.schedules.InverseTimeDecay(1e-3, 1, 1e-4),
        rho=0.9,
        epsilon_in_root=False,
    ),
    "rmsprop_momentum": keras_tfopt.migrate.RMSprop(1e-3, momentum=0.9),
    "adagrad": keras_tfopt.migrate.Adagrad(epsilon_in_root=False),
    "nadam": keras_tfopt.migrate.Nadam(2e-3, epsilon=1e-8, momentum_decay=0.004),
}

x = np.random.RandomState(0).rand(16, 6).astype("float32")
y = x[:, :1] * 2
result = []
for name, optimizer in OPTIMIZERS.items():
    model.compile(optimizer=optimizer, loss="mse")
    result.append(model.train_on_batch(x, y))
