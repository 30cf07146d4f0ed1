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
    """Return whether operations that are made now will be compiled by XLA.

    Nothing public says so, and XLA takes neither results of unknown shape nor all operations.
    """
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def in_control_flow() -> bool:
    """Return whether operations that are made now are in a `tf.cond` or the body of a loop.

    Nothing public says so, and TensorFlow differentiates none in which a handle is used.
    """
    graph = tf.compat.v1.get_default_graph()
    while graph is not None and not isinstance(graph, (CondBranchFuncGraph, WhileBodyFuncGraph)):
        graph = getattr(graph, "outer_graph", None)
    return graph is not None


def is_being_created(value: Any) -> bool:
    """Return whether a variable of a `tf.function` gets its first value after the trace.

    `is_initialized` cannot be asked there. The name is that of a private class.
    """
    return type(value).__name__ == "UnliftedInitializerVariable"


def forget_watched_variables() -> None:
    """Let the `tf.function` that is traced now be called when its first variables are gone.

    TensorFlow notes the variables for which a function is traced, and refuses to call it when these
    are gone. Where they are arguments, it is called for others, too.
    """
    tf.compat.v1.get_default_graph()._watched_variables.clear()
