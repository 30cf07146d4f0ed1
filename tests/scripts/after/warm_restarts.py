import math

import numpy as np
import tensorflow as tf
from tensorflow.keras.callbacks import Callback


class WarmRestarts(Callback):
    """Cosine annealing within an epoch."""

    def __init__(self, highest, steps):
        super().__init__()
        self.highest, self.steps, self.history = highest, steps, []

    def on_train_batch_begin(self, batch, logs=None):
        rate = self.highest * 0.5 * (1 + math.cos(math.pi * batch / self.steps))
        self.model.optimizer.learning_rate = rate

    def on_train_batch_end(self, batch, logs=None):
        self.history.append(float(self.model.optimizer.learning_rate))


x = np.random.RandomState(0).rand(40, 2).astype("float32")
y = x[:, :1] - x[:, 1:]
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
model.compile(tf.keras.optimizers.SGD(learning_rate=0.1, momentum=0.9), "mse")
callback = WarmRestarts(0.1, 5)
model.fit(x, y, batch_size=8, epochs=2, callbacks=[callback], verbose=0)
result = callback.history
