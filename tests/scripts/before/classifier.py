#!/usr/bin/env python
"""Train a small classifier on random digits."""
import numpy as np
from tensorflow import keras
from tensorflow.keras import layers
from tensorflow.keras.optimizers import Adam

EPOCHS = 3
INIT_LR = 1e-3

x = np.random.RandomState(0).rand(32, 8).astype("float32")
y = np.random.RandomState(1).randint(0, 3, 32)

model = keras.Sequential([
    layers.Dense(16, activation="relu", input_shape=(8,)),
    layers.Dense(3, activation="softmax"),
])

# the learning rate falls to half of it
opt = Adam(lr=1e-3, beta_1=0.9, beta_2=0.999, epsilon=None, decay=1e-3 / EPOCHS, amsgrad=False)
model.compile(loss="sparse_categorical_crossentropy", optimizer=opt,
              metrics=["accuracy"])
history = model.fit(x, y, epochs=EPOCHS, batch_size=8, verbose=0)
result = history.history["loss"]
