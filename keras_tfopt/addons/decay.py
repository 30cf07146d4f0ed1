"""Decoupled weight decay for any optimizer, under the names of TensorFlow Addons."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import keras

from keras_tfopt import wrappers
from keras_tfopt.addons import abstract, keras2
from keras_tfopt.addons.classes import PACKAGE, Decaying


@functools.cache
def extend_with_decoupled_weight_decay(base_optimizer: Any) -> Any:
    """Return a class that is `base_optimizer` with decoupled weight decay.

    Its constructor takes `weight_decay`, then the arguments of `base_optimizer`, and
    `exclude_from_weight_decay`, regular expressions of paths, as a keyword. `apply_gradients` takes
    `decay_var_list`, which is the same in all steps. See
    `keras_tfopt.extend_with_decoupled_weight_decay`.

    Args:
        base_optimizer: A subclass of `keras.optimizers.Optimizer`, not a wrapper.

    Example:

    >>> LazyAdamW = addons.extend_with_decoupled_weight_decay(addons.LazyAdam)
    >>> optimizer = LazyAdamW(1e-4, learning_rate=0.001)
    """
    ours = wrappers.extend_with_decoupled_weight_decay(base_optimizer)

    class OptimizerWithDecoupledWeightDecay(Decaying, ours):  # type: ignore[misc, valid-type]
        def __init__(
            self,
            weight_decay: Any,
            *args: Any,
            exclude_from_weight_decay: Sequence[str] | None = None,
            **kwargs: Any,
        ):
            kwargs = keras2.arguments(base_optimizer.__name__, kwargs)
            ours.__init__(self, *args, weight_decay=weight_decay, **kwargs)
            keras2.exclude(self, exclude_from_weight_decay)

    OptimizerWithDecoupledWeightDecay.__doc__ = ours.__doc__
    abstract.DecoupledWeightDecayExtension.register(OptimizerWithDecoupledWeightDecay)
    name = keras.saving.get_registered_name(base_optimizer)
    register = keras.saving.register_keras_serializable(PACKAGE, f"decoupled_weight_decay({name})")
    return register(OptimizerWithDecoupledWeightDecay)
