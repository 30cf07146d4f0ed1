'''Classic SGD with decay, momentum, and Nesterov momentum.'''
from __future__ import print_function

import numpy as np
from keras.layers import Dense, Input
from keras.models import Sequential
from keras.optimizers import SGD
import keras

x_train = np.random.RandomState(0).rand(20, 4).astype('float32')
y_train = x_train.sum(axis=1, keepdims=True)

model = Sequential()
model.add(Input((4,)))
model.add(Dense(8, activation='tanh'))
model.add(Dense(1))

sgd = SGD(learning_rate=keras.optimizers.schedules.InverseTimeDecay(0.01, 1, 1e-6), momentum=0.9, nesterov=True)
model.compile(loss='mean_squared_error', optimizer='rmsprop')
model.fit(x_train, y_train, batch_size=10, verbose=0)

model.compile(loss='mean_squared_error', optimizer=SGD(0.1, momentum=0.0))
model.optimizer.learning_rate = 0.05  # smaller from here on
print('learning rate:', float(model.optimizer.learning_rate))
model.fit(x_train, y_train, batch_size=10, verbose=0)

model.compile(loss='mean_squared_error', optimizer=sgd)
result = model.fit(x_train, y_train, epochs=2, batch_size=10, verbose=0).history['loss']
