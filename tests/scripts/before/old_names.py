import keras
import numpy as np
from keras import optimizers
from tensorflow.python.keras.optimizers import Adam as TFAdam

x, y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")
result = []
for opt in [
    keras.optimizers.RMSprop(lr=0.001, rho=0.9, epsilon=None, decay=0.0),
    optimizers.Adadelta(lr=1.0, rho=0.95, epsilon=1e-06),
    keras.optimizers.adam(lr=0.01, clipvalue=0.5),
    keras.optimizers.adam_v2.Adam(learning_rate=1e-3),
    optimizers.SGD(learning_rate=1),
    TFAdam(1e-3),
    optimizers.Nadam(lr=0.002, schedule_decay=0.004),
]:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer=opt)
    model.fit(x, y, verbose=0)
    result.append(float(model.evaluate(x, y, verbose=0)))
