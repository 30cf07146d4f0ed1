import numpy as np
import tensorflow as tf

inputs = tf.keras.Input((6,))
hidden = tf.keras.layers.Dense(4, activation="relu")(inputs)
model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))

# tf.keras.optimizers.* was slow on M1/M2 Macs
OPTIMIZERS = {
    "adam": tf.keras.optimizers.legacy.Adam(learning_rate=1e-2),
    "sgd": tf.keras.optimizers.legacy.SGD(0.01, 0.9, True),
    "rmsprop": tf.keras.optimizers.legacy.RMSprop(
        learning_rate=1e-3,
        rho=0.9,
        decay=1e-4,
    ),
    "rmsprop_momentum": tf.keras.optimizers.legacy.RMSprop(1e-3, momentum=0.9),
    "adagrad": tf.keras.optimizers.legacy.Adagrad(),
    "nadam": tf.keras.optimizers.legacy.Nadam(2e-3, epsilon=1e-8),
}

x = np.random.RandomState(0).rand(16, 6).astype("float32")
y = x[:, :1] * 2
result = []
for name, optimizer in OPTIMIZERS.items():
    model.compile(optimizer=optimizer, loss="mse")
    result.append(model.train_on_batch(x, y))
