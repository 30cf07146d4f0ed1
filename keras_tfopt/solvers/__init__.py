"""Full-batch training: the solvers of SciPy on a Keras model."""

from keras_tfopt.solvers.line_search import LineSearch
from keras_tfopt.solvers.run import minimize

__all__ = ["LineSearch", "minimize"]
