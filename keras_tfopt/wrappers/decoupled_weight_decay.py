from __future__ import annotations

import functools
import inspect
from typing import Any

import keras

from keras_tfopt.algorithm import PACKAGE, register
from keras_tfopt.execution import decoded
from keras_tfopt.wrapper import Wrapper
from keras_tfopt.wrappers.decay import Decay

OWN = ("weight_decay", "decay_variables", "scale_by_learning_rate")


@register
class DecoupledWeightDecay(Decay):
    r"""Shrinks variables before each step of another optimizer, whose slots never see it.

    $$
    x \leftarrow x - \lambda x, \quad
    \text{or, scaled by the learning rate } \eta, \quad x \leftarrow x - \eta \lambda x
    $$

    Then the inner optimizer takes its step from there.

    Args:
        inner_optimizer: Any Keras optimizer, or its name or configuration.
        weight_decay: $\lambda$: number >= 0, schedule, scalar variable, or callable without
            arguments. A learning rate that falls needs a decay that falls with it, unless it is
            scaled.
        decay_variables: Which variables decay: variables or regular expressions that are searched
            in their paths, one or a list; or a registered function that is given `path`, `shape`
            and `dtype` of a variable as attributes and returns whether it does.
            `keras_tfopt.no_vectors` is one. Defaults to None: all; an empty list, too.
        scale_by_learning_rate: Whether the decay is multiplied by the learning rate. Defaults to
            False, the convention of the paper, of TensorFlow 1 and TensorFlow Addons; True is that
            of `keras.optimizers.AdamW` and of PyTorch.
        name: Name of the optimizer.

    Slots: none.

    Row gradients: only touched rows decay, once each, where the inner optimizer moves only these or
    the gradient is a `RowGradient`.

    Example:

    >>> inner = keras_tfopt.LazyAdam(0.001)
    >>> decayed = keras_tfopt.no_vectors
    >>> optimizer = keras_tfopt.DecoupledWeightDecay(inner, 1e-4, decay_variables=decayed)

    Reference: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019).

    Differences: `weight_decay` of `keras.optimizers` is scaled by the learning rate.
    `tf.contrib.opt` and TensorFlow Addons choose variables in each call, and let row gradients of
    plain gradient descent pass without decay; around LARS and Shampoo, the decay of the former is
    that of LARS, or twice as large. A decay of less than one unit in the last place is lost in
    half-precision variables, also if the inner optimizer keeps `master_weights`.
    """

    def __init__(
        self,
        inner_optimizer: Any,
        weight_decay: Any,
        decay_variables: Any = None,
        scale_by_learning_rate: bool = False,
        name: str | None = None,
        **base: Any,
    ):
        super().__init__(
            inner_optimizer, weight_decay, decay_variables, scale_by_learning_rate, name, **base
        )


@functools.cache
def extend_with_decoupled_weight_decay(optimizer_class: Any) -> Any:
    """A class that is `optimizer_class` with decoupled weight decay.

    Its constructor takes `weight_decay`, then the arguments of `optimizer_class`, and as keywords
    `decay_variables` and `scale_by_learning_rate`; see `DecoupledWeightDecay`, which it differs
    from only in how it is constructed and in its configuration, which is flat. A `weight_decay` of
    `optimizer_class` itself keeps its default. Called again for the same class, it gives the same.

    A model that is saved with the class is loaded after this function was called for
    `optimizer_class` in that process.

    Args:
        optimizer_class: A subclass of `keras.optimizers.Optimizer`, not a wrapper.

    Example:

    >>> LazyAdamW = keras_tfopt.extend_with_decoupled_weight_decay(keras_tfopt.LazyAdam)
    >>> optimizer = LazyAdamW(1e-4, learning_rate=0.001)
    """
    is_optimizer = inspect.isclass(optimizer_class) and issubclass(
        optimizer_class, keras.optimizers.Optimizer
    )
    if not is_optimizer or issubclass(
        optimizer_class, (Wrapper, keras.optimizers.LossScaleOptimizer)
    ):
        raise TypeError(
            "Argument `optimizer_class` must be a subclass of keras.optimizers.Optimizer that is "
            f"no wrapper. Received: {optimizer_class!r}"
        )

    class Extended(Decay):
        def __init__(
            self,
            weight_decay: Any,
            *args: Any,
            decay_variables: Any = None,
            scale_by_learning_rate: bool = False,
            name: str | None = None,
            **kwargs: Any,
        ):
            inner = optimizer_class(*args, **kwargs)
            super().__init__(inner, weight_decay, decay_variables, scale_by_learning_rate, name)

        def get_config(self) -> dict[str, Any]:
            """The constructor's arguments, serializable."""
            inner = self.inner_optimizer.get_config()
            return {**inner, "name": self.name, **self.own_config()}

        def own_arguments(self) -> list[str]:
            return list(OWN)

        @classmethod
        def from_config(cls, config: dict[str, Any], custom_objects: dict | None = None) -> Any:
            """The optimizer that `get_config` described."""
            config = dict(config)
            own = [decoded(config.pop(name, None), custom_objects) for name in OWN]
            name = config.pop("name", None)
            inner = optimizer_class.from_config(config, custom_objects)
            optimizer = cls.__new__(cls)
            Decay.__init__(optimizer, inner, own[0], own[1], bool(own[2]), name)
            return optimizer

    name = keras.saving.get_registered_name(optimizer_class)
    Extended.__name__ = Extended.__qualname__ = f"{optimizer_class.__name__}W"
    Extended.__doc__ = (
        f"{optimizer_class.__name__} with decoupled weight decay: see "
        "`keras_tfopt.extend_with_decoupled_weight_decay`."
    )
    keras.saving.register_keras_serializable(PACKAGE, f"decoupled_weight_decay({name})")(Extended)
    return Extended


extend_with_weight_decay = extend_with_decoupled_weight_decay
