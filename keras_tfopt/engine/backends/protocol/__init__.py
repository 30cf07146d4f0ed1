"""Describe the functions that a backend provides.

The packages `jax`, `tensorflow` and `torch` are backends. Each method below is a function of these
packages, without `self`, and is documented only here: `values.py` has those for variables, rows and
numbers, `steps.py` those that run steps. The packages share the functions of `defaults.py`, and
replace some.

In eager code, the values of tensors are known. In code that JAX or `tf.function` traces, only
shapes and dtypes are. Steps on PyTorch are always eager, and call compiled functions.

Arguments of many functions:
    engine: The optimizer that makes the step. Backends read its variables, attributes of its rule
        such as `scope` and `fused`, and keep compiled functions in its dictionary `_fast`.
    variable: A `keras.Variable`; on TensorFlow, it may also be a `tf.Variable`.
    writes: A list of `(variable, indices, value)`. With indices None, the value is that of the
        whole variable. With a tensor of shape `(k,)` of distinct rows, it has shape
        `(k, *shape[1:])`. With a scalar tensor, it is the value of one row.
    scalars: The scalars of this step, by dtype and index of the hyperparameters.
"""

from __future__ import annotations

from typing import Protocol

from keras_tfopt.engine.backends.protocol.steps import Diagnosis, LossGradients, Tracing, Updates
from keras_tfopt.engine.backends.protocol.values import (
    Lists,
    Numbers,
    Replicas,
    Rows,
    Sharding,
    Tables,
    Variables,
)


class Backend(
    Variables,
    Sharding,
    Tables,
    Replicas,
    Rows,
    Lists,
    Numbers,
    Updates,
    Tracing,
    LossGradients,
    Diagnosis,
    Protocol,
):
    """All functions of a backend; see the docstring of this module."""
