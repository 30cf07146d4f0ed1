import keras
import numpy as np
from keras import optimizers

x, y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")
result = []
for opt in [
    keras.optimizers.RMSprop(learning_rate=0.001, rho=0.9),
    optimizers.Adadelta(learning_rate=1.0, rho=0.95, epsilon=1e-06),
    keras.optimizers.Adam(learning_rate=0.01, clipvalue=0.5),
    keras.optimizers.Adam(learning_rate=1e-3),
    optimizers.SGD(learning_rate=1.0),
    keras.optimizers.Adam(1e-3),
    optimizers.Nadam(learning_rate=0.002),
]:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer=opt)
    model.fit(x, y, verbose=0)
    result.append(float(model.evaluate(x, y, verbose=0)))
