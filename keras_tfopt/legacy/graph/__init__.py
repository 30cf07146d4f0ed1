"""Run rules and wrappers as `tf.compat.v1.train.Optimizer`, in graphs of TensorFlow 1 and eagerly.

`keras_tfopt.legacy.eager` defines the same names for the other backends.
"""

from collections.abc import Callable

from keras_tfopt.legacy.base import OptimizerBase
from keras_tfopt.legacy.graph.backend import apart, in_a_graph, name_of, native, read
from keras_tfopt.legacy.graph.custom import CustomVerbs
from keras_tfopt.legacy.graph.problem import log, problem_of
from keras_tfopt.legacy.graph.rules import RuleVerbs
from keras_tfopt.legacy.graph.servers import make_variable
from keras_tfopt.legacy.graph.wrapping import DecayVerbs, WrapperVerbs, rest_while_zero

__all__ = [
    "MODULES",
    "CustomVerbs",
    "DecayVerbs",
    "OptimizerBase",
    "RuleVerbs",
    "WrapperVerbs",
    "apart",
    "form_of",
    "log",
    "make_variable",
    "name_of",
    "native",
    "outside_compiler",
    "problem_of",
    "read",
    "rest_while_zero",
]

MODULES = "keras_tfopt.legacy or of tf.compat.v1.train"
"""The modules whose classes can be extended, for errors."""


def form_of(cls: type) -> type:
    """Return the class of an optimizer over workers: in a graph, a subclass that works there."""
    from keras_tfopt.legacy.graph import workers  # here, as it derives from those classes

    return workers.form_in_graphs(cls) if in_a_graph() else cls


def outside_compiler(function: Callable) -> Callable:
    """Return the function unchanged: AutoGraph may rewrite the verbs, and with them the loss."""
    return function
