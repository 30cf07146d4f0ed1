"""Variables and step counters for tests of methods that TensorFlow 1 has, such as `minimize`."""

import keras
import numpy as np

from tests.helpers.stepping import make_variable


def counter(value=0, dtype="int32"):
    return keras.Variable(value, dtype=dtype, trainable=False, name="global_step")


def variable(values=(1.0, 2.0), name="x"):
    return make_variable(name, np.asarray(values, "f"))
