import numpy as np
from tensorflow import keras
import keras_tfopt.addons

x = np.random.RandomState(0).rand(32, 3).astype("float32")
y = x @ np.array([[1.0], [-1.0], [0.5]], "float32")


def build():
    model = keras.Sequential([keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    model.build((None, 3))
    return model


rates = keras_tfopt.addons.TriangularCyclicalLearningRate(1e-3, 1e-2, step_size=8)
result = []
for optimizer in (
    keras_tfopt.addons.AdamW(weight_decay=1e-4, learning_rate=rates),
    keras_tfopt.addons.Lookahead(keras_tfopt.addons.RectifiedAdam(lr=0.01, total_steps=50, warmup_proportion=0.1), sync_period=6),
):
    model = build()
    model.compile(optimizer, "mse")
    result += model.fit(x, y, epochs=2, verbose=0).history["loss"]
