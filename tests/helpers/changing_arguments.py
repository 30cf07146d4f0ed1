"""Arguments that change with the steps, and their values: for tests of one's own rules."""

import keras

BETA = 0.25
SCHEDULE = keras.optimizers.schedules.ExponentialDecay(BETA, 1, 0.5)

CHANGING = {
    "number": (lambda: BETA, lambda step: BETA),
    "schedule": (lambda: SCHEDULE, lambda step: BETA * 0.5**step),
    "function": (lambda: lambda: BETA, lambda step: BETA),
    "variable": (lambda: keras.Variable(BETA, trainable=False), lambda step: BETA),
}
