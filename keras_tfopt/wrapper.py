"""The contract of a wrapper: what happens around the step of another optimizer."""

from __future__ import annotations

from typing import Any

from keras_tfopt.execution import (
    Like,
    Slot,
    WrappingEngine,
    check_savable,
    decoded,
    encoded,
)


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
        sparse: "dense": hooks see whole variables. "rows": hooks see and change touched rows only,
            which are those that a `RowGradient` names, and those with a gradient that is not zero
            in variables that match `row_variables` of the inner optimizer. It may move all rows
            all the same.
        unsaved: Names of arguments of the constructor that belong to the process, and are not saved
            with the optimizer.

    Args:
        inner_optimizer: A `keras.optimizers.Optimizer`, or its name or configuration. Options such
            as clipping or accumulation belong to it; its `use_ema` averages what itself leaves, not
            what wrappers do after that. A `keras.optimizers.LossScaleOptimizer` goes
            around the wrapper, not inside.
        name: Name of the optimizer.
        **base: None; there so that options of optimizers, which belong to `inner_optimizer`, are
            refused with an error that says so.

    Hooks:
        before: `(g, x, s, t) -> g, x`. Pure, per variable, before the inner step.
        after: `(g, x, s, t) -> x, {slot: value}`. Pure, per variable, after it.
        accept: `(g, x, t) -> bool tensor`. Where False, the inner step leaves the variable and its
            slots alone; with accumulation, `g` is the sum of the micro-steps so far.
        average: `(x, s) -> value`. Pure, per variable: what `keras_tfopt.averaged` puts in.
        before_step: `(grads, variables) -> grads`.
        after_step: `(variables) -> list or None`. New values of the variables.
        accept_step: `(grads, s) -> bool tensor, {counter: value}`. Pure, of the values of all
            gradients: where False, only the counters change, found in `s`.
        choices: `() -> {name: argument}`. Arguments that choose variables; see `build`.
        check: `(likes)`. Raises an error if arguments do not fit the variables.
        facts: `(like) -> dict`. What hooks find in `t` of a variable, by name.
        reach: `(like) -> "dense", "rows" or None`. `sparse` of a variable; None: hooks do not run.
        counters: `() -> {name: Slot}`. State of all variables together.

    `g, x, s, t` are gradient, variable, slots and scalars, as in `keras_tfopt.Rule`.
    """

    unsaved: tuple[str, ...] = ()

    def slots(self, like: Like) -> dict[str, Slot]:
        """State for one variable, as in `keras_tfopt.Rule.slots`."""
        return {}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        """Scalars of a step, as in `keras_tfopt.Rule.scalars`, from the inner optimizer's."""
        return {"lr": lr}

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, serializable."""
        inner = encoded(self.inner_optimizer)
        return {"name": self.name, "inner_optimizer": inner, **self.own_config()}

    def own_arguments(self) -> list[str]:
        """Names of the constructor's arguments that are the wrapper's own."""
        names = self._saved_arguments()
        return [name for name in names if name not in ("name", "inner_optimizer", *self.unsaved)]

    def own_config(self) -> dict[str, Any]:
        """The arguments that are the wrapper's own, serializable."""
        config = {}
        for name in self.own_arguments():
            value = getattr(self, name)
            check_savable(name, value)
            config[name] = encoded(value)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict | None = None) -> Wrapper:
        """The optimizer that `get_config` described."""
        return cls(**{name: decoded(value, custom_objects) for name, value in config.items()})
