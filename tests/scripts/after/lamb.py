import os
import tempfile

import numpy as np
import tensorflow as tf
import keras_tfopt.addons

folder = tempfile.mkdtemp()
x = np.random.RandomState(0).rand(64, 5).astype("float32")
y = (x.sum(1) > 2.5).astype("int32")

model = tf.keras.Sequential([
    tf.keras.layers.Dense(8, "relu", input_shape=(5,)),
    tf.keras.layers.LayerNormalization(),
    tf.keras.layers.Dense(2),
])
base = keras_tfopt.addons.LAMB(
    learning_rate=0.01,
    weight_decay=0.01,
    exclude_from_weight_decay=["bias", "gamma", "beta"],
)
optimizer = keras_tfopt.addons.MovingAverage(base, average_decay=0.9)
checkpoint = keras_tfopt.addons.AverageModelCheckpoint(
    filepath=os.path.join(folder, "avg.weights.h5"), update_weights=False, save_weights_only=True
)
model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(x, y, epochs=2, callbacks=[checkpoint], verbose=0)
optimizer.assign_average_vars(model.variables)
result = history.history["loss"]
