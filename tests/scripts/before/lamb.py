import os
import tempfile

import numpy as np
import tensorflow as tf
import tensorflow_addons as tfa

folder = tempfile.mkdtemp()
x = np.random.RandomState(0).rand(64, 5).astype("float32")
y = (x.sum(1) > 2.5).astype("int32")

model = tf.keras.Sequential([
    tf.keras.layers.Dense(8, "relu", input_shape=(5,)),
    tf.keras.layers.LayerNormalization(),
    tf.keras.layers.Dense(2),
])
base = tfa.optimizers.LAMB(
    learning_rate=0.01,
    weight_decay_rate=0.01,
    exclude_from_weight_decay=["bias", "gamma", "beta"],
)
optimizer = tfa.optimizers.MovingAverage(base, average_decay=0.9)
checkpoint = tfa.callbacks.AverageModelCheckpoint(
    filepath=os.path.join(folder, "avg.weights.h5"), update_weights=False, save_weights_only=True
)
model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(x, y, epochs=2, callbacks=[checkpoint], verbose=0)
optimizer.assign_average_vars(model.variables)
result = history.history["loss"]
