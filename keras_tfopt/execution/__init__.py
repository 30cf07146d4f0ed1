"""How rules run. The only part of the package that imports a backend or touches Keras-private names."""

from keras_tfopt.execution.engine import Engine
from keras_tfopt.execution.rows import RowGradient
from keras_tfopt.execution.settings import plain
from keras_tfopt.execution.state import Like, Slot

__all__ = ["Engine", "Like", "RowGradient", "Slot", "plain"]
