import numpy as np
from tensorflow import keras
import keras_tfopt

lr = 2e-4
generator_optimizer = keras_tfopt.Adam(keras.optimizers.schedules.InverseTimeDecay(lr, 1, 1e-5), beta_1=0.5, epsilon=1e-7)
discriminator_optimizer = keras.optimizers.Adam(learning_rate=keras.optimizers.schedules.InverseTimeDecay(lr, 1, 6e-8), beta_1=0.5)

x = np.random.RandomState(0).rand(16, 4).astype("float32")
models = []
for optimizer in (generator_optimizer, discriminator_optimizer):
    model = keras.Sequential([keras.layers.Dense(4, input_shape=(4,))])
    model.compile(loss="mse", optimizer=optimizer)
    model.fit(x, x, verbose=0)
    models.append(model)

weights = [v.numpy() for v in discriminator_optimizer.variables]
result = [len(weights), len([v.numpy() for v in models[0].optimizer.variables])]
print(generator_optimizer.learning_rate, [w.shape for w in weights])
