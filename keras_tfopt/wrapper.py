"""The contract of a wrapper: what happens around the step of another optimizer."""

from __future__ import annotations

from typing import Any

import keras

from keras_tfopt.execution import Like, Slot, WrappingEngine, own_parameters


class Wrapper(WrappingEngine):
    """Base class of optimizers around another optimizer, which may be any of Keras.

    A subclass defines some of the hooks below. The engine runs them on every backend, compiled
    where the inner step is, under accumulation only when the inner optimizer moves the variables,
    and passes everything else on: learning rate, iterations, loss scaling, saving.

    ```python
    @keras_tfopt.register
    class Centered(keras_tfopt.Wrapper):
        def before(self, g, x, s, t):
            return g - ops.mean(g), x
    ```

    Class attributes:
        sparse: "dense": hooks see whole variables. "rows": where the inner optimizer updates only
            touched rows, hooks see and change only these.

    Args:
        inner_optimizer: A `keras.optimizers.Optimizer`, or its name or configuration. Options such
            as clipping or accumulation belong to it. A `keras.optimizers.LossScaleOptimizer` goes
            around the wrapper, not inside.
        name: Name of the optimizer.
    """

    def slots(self, like: Like) -> dict[str, Slot]:
        """State for one variable, as in `keras_tfopt.Algorithm.slots`."""
        return {}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        """Scalars of a step, as in `keras_tfopt.Algorithm.scalars`, from the inner optimizer's."""
        return {"lr": lr}

    # The hooks are documented here and live in the engine, which runs those that are overridden:
    # before(self, g, x, s, t) -> g, x             pure, per variable, before the inner step
    # after(self, g, x, s, t) -> x, {slot: value}  pure, per variable, after it
    # accept(self, g, x, t) -> bool tensor         where False, the inner step changes nothing
    # before_step(self, grads, variables) -> grads
    # after_step(self, variables) -> new values of the variables, or None

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, serializable."""
        inner = keras.saving.serialize_keras_object(self.inner_optimizer)
        config = {"name": self.name, "inner_optimizer": inner}
        for name in own_parameters(type(self)):
            if name not in config:
                config[name] = getattr(self, name)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict | None = None) -> Wrapper:
        """The optimizer that `get_config` described."""
        config = dict(config)
        config["inner_optimizer"] = keras.saving.deserialize_keras_object(
            config["inner_optimizer"], custom_objects=custom_objects
        )
        return cls(**config)
