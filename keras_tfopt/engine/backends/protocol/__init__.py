"""The functions that a backend provides: what they take, what they return, what they promise.

The packages `jax`, `tensorflow` and `torch` are such backends; each function is a function of the
package, so there is no `self` there. Only here are they described: in `values.py` those for values
and variables, in `steps.py` those that run steps. A backend has the functions of `defaults.py`
where it has none of its own.

"Eagerly" means: where values are known. In compiled code, which JAX and `tf.function` trace, only
shapes and dtypes are known. A step of PyTorch is always taken eagerly; it calls compiled functions.

Arguments that appear in many functions:
    engine: The optimizer that takes the step. Functions read what its rule is (`scope`, `flat`,
        `fused`, `rule_to_share`), its cache of compiled functions (`_fast`), its variables
        (`variables`, `_trainable_variables`) and its `_distribution_strategy`.
    variable: A `keras.Variable`; on TensorFlow, it may also be a `tf.Variable`.
    writes: A list of `(variable, indices, value)`. Indices are None, and the value is that of the
        whole variable; or a tensor of shape `(k,)` of distinct rows, and the value has shape
        `(k, *shape[1:])`; or a scalar tensor, and the value is that of one row.
    scalars: What `Rule.scalars` returned for this step, by dtype and number of hyperparameters.
"""

from __future__ import annotations

from typing import Protocol

from keras_tfopt.engine.backends.protocol.steps import Diagnosis, LossGradients, Tracing, Updates
from keras_tfopt.engine.backends.protocol.values import (
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
    Numbers,
    Updates,
    Tracing,
    LossGradients,
    Diagnosis,
    Protocol,
):
    """A backend; see the description of this module."""
