import numpy as np
from tensorflow import keras

lr = 2e-4
generator_optimizer = keras.optimizers.legacy.Adam(lr, beta_1=0.5, decay=1e-5)
discriminator_optimizer = keras.optimizers.Adam(learning_rate=lr, beta_1=0.5, decay=6e-8)

x = np.random.RandomState(0).rand(16, 4).astype("float32")
models = []
for optimizer in (generator_optimizer, discriminator_optimizer):
    model = keras.Sequential([keras.layers.Dense(4, input_shape=(4,))])
    model.compile(loss="mse", optimizer=optimizer)
    model.fit(x, x, verbose=0)
    models.append(model)

weights = discriminator_optimizer.get_weights()
result = [len(weights), len(models[0].optimizer.get_weights())]
print(generator_optimizer.lr, [w.shape for w in weights])
