"""Rules under the protocol of `tf.compat.v1.train.Optimizer`; needs the TensorFlow backend."""

import tensorflow as tf

from keras_tfopt.execution.graph import around, operations, servers, verbs
from keras_tfopt.execution.graph.all_variables import AllVariablesExecutor
from keras_tfopt.execution.graph.executor import STEPS, Executor, Plan
from keras_tfopt.execution.graph.operations import (
    apart,
    dtype_of,
    in_a_graph,
    is_variable,
    name_of,
    native,
    outermost_graph,
    read,
    value_now,
)
from keras_tfopt.execution.graph.verbs import Pairs, Verbs

is_eager = tf.executing_eagerly

__all__ = [
    "STEPS",
    "AllVariablesExecutor",
    "Executor",
    "Pairs",
    "Plan",
    "Verbs",
    "apart",
    "around",
    "dtype_of",
    "in_a_graph",
    "is_eager",
    "is_variable",
    "name_of",
    "native",
    "operations",
    "outermost_graph",
    "read",
    "servers",
    "value_now",
    "verbs",
]
