"""Names that TensorFlow keeps private, each with the reason for it; seen with TensorFlow 2.21."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops.control_flow_v2_func_graphs import (
    CondBranchFuncGraph,
    WhileBodyFuncGraph,
)


def in_xla() -> bool:
    """Return whether XLA will compile operations that are created now.

    Nothing public says so. XLA allows no results of unknown shape, and not all operations.
    """
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def in_control_flow() -> bool:
    """Return whether operations that are created now are in a `tf.cond` or the body of a loop.

    Nothing public says so. TensorFlow cannot differentiate these if they use a handle.
    """
    graph = tf.compat.v1.get_default_graph()
    while graph is not None and not isinstance(graph, (CondBranchFuncGraph, WhileBodyFuncGraph)):
        graph = getattr(graph, "outer_graph", None)
    return graph is not None


def is_being_created(value: Any) -> bool:
    """Return whether a variable of a `tf.function` gets its first value after the trace.

    `is_initialized` does not tell in a trace. The name is that of a private class.
    """
    return type(value).__name__ == "UnliftedInitializerVariable"


def forget_watched_variables() -> None:
    """Allow calls of the `tf.function` that is traced now after its first variables are deleted.

    TensorFlow remembers the variables for which a function is traced, and refuses to call it when
    one of them is deleted. But our functions get variables as arguments, also other ones later.
    """
    tf.compat.v1.get_default_graph()._watched_variables.clear()
