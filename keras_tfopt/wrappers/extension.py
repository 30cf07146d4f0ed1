"""Classes of optimizers with decoupled weight decay."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import keras

from keras_tfopt.engine import PATHS, all_arguments, check_arguments, decoded, own_parameters
from keras_tfopt.rule import PACKAGE, Rule
from keras_tfopt.wrapper import Wrapper
from keras_tfopt.wrappers.decay import Decay

OWN = ("weight_decay", "decay_variables", "scale_by_learning_rate")


@functools.cache
def extend_with_decoupled_weight_decay(optimizer_class: Any) -> Any:
    """Return a class that is `optimizer_class` with decoupled weight decay.

    Its constructor takes the arguments of `optimizer_class`, and as keywords `weight_decay`, which
    has no default, `decay_variables` and `scale_by_learning_rate`; see `DecoupledWeightDecay`,
    which it differs from only in how it is constructed and in its configuration, which is flat. A
    `weight_decay` of `optimizer_class` itself keeps its default. Called again for the same class,
    it gives the same.

    A model that is saved with the class is loaded after this function was called for
    `optimizer_class` in that process.

    Args:
        optimizer_class: A subclass of `keras.optimizers.Optimizer`, not a wrapper.

    Example:

    >>> LazyAdamW = keras_tfopt.extend_with_decoupled_weight_decay(keras_tfopt.LazyAdam)
    >>> optimizer = LazyAdamW(0.001, weight_decay=1e-4)
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
            *args: Any,
            weight_decay: Any,
            decay_variables: Any = None,
            scale_by_learning_rate: bool = False,
            name: str | None = None,
            **kwargs: Any,
        ):
            known = [*own_parameters(type(self)), *all_arguments(optimizer_class)]
            check_arguments(type(self).__name__, kwargs, known)
            inner = optimizer_class(*args, **kwargs)
            super().__init__(inner, weight_decay, decay_variables, scale_by_learning_rate, name)

        def get_config(self) -> dict[str, Any]:
            """Return the constructor's arguments, serializable."""
            inner = self.inner_optimizer.get_config()
            return {**inner, "name": self.name, **self.own_config(), **self.saved_paths()}

        def own_arguments(self) -> list[str]:
            return list(OWN)

        @classmethod
        def made_from(cls, config: dict[str, Any], custom_objects: dict | None) -> Any:
            own = [decoded(config.pop(name, None), custom_objects) for name in OWN]
            name, paths = config.pop("name", None), config.pop(PATHS, ())
            if issubclass(optimizer_class, Rule):
                config[PATHS] = paths
            inner = optimizer_class.from_config(config, custom_objects)
            optimizer = cls.__new__(cls)
            Decay.__init__(optimizer, inner, own[0], own[1], own[2] or False, name)
            optimizer._saved_paths = tuple(paths)
            return optimizer

    name = keras.saving.get_registered_name(optimizer_class)
    Extended.__name__ = Extended.__qualname__ = f"{optimizer_class.__name__}W"
    Extended.__init__.__qualname__ = f"{Extended.__name__}.__init__"  # for errors
    Extended.__doc__ = (
        f"{optimizer_class.__name__} with decoupled weight decay: see "
        "`keras_tfopt.extend_with_decoupled_weight_decay`."
    )
    keras.saving.register_keras_serializable(PACKAGE, f"decoupled_weight_decay({name})")(Extended)
    return Extended


extend_with_weight_decay = extend_with_decoupled_weight_decay
