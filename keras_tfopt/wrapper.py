"""The base class of wrappers: hooks around the step of another optimizer."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from keras_tfopt.engine import (
    PATHS,
    Describing,
    Like,
    Slot,
    WrappingEngine,
    changes,
    check_savable,
    decoded,
    encoded,
)
from keras_tfopt.fields import Fielded


class Wrapper(Fielded, Describing, WrappingEngine):
    """Base class of optimizers around another optimizer, which may be any of Keras.

    A subclass declares its arguments as fields, like a `keras_tfopt.Rule`, and defines some of the
    hooks below. The engine runs them on every backend, compiled where the inner step is. Under
    accumulation they run once per step, with the mean gradient of its micro-steps, and a
    `loss_scale_factor` is divided out before. Everything else belongs to the inner optimizer:
    learning rate, iterations, loss scaling.

    ```python
    @keras_tfopt.register
    class Damped(keras_tfopt.Wrapper):
        factor: float = keras_tfopt.within(0, 1, default=0.5)

        def before(self, g, x, s, t):
            return self.factor * g, x
    ```

    Class attributes:
        sparse: "dense": hooks see whole variables. "rows": hooks see and change touched rows only.
            Touched are rows that a `RowGradient` names; in variables that match `row_variables` of
            the inner optimizer, also those with a gradient that is not zero. The inner optimizer
            may move all rows all the same.
        scope: What one call of `before` or `after` must see. "variable": a variable in its shape.
            "element": any piece of variables, flattened, so hooks may use elementwise operations
            only. Then `before` returns `g` unchanged, and the hooks are compiled together with the
            rule inside. From `self` they read only what the constructor has set.
        flat: The same with scope "variable", where hooks also use `t.norm`, `t.sum` and `t.mean`,
            or slots that are single numbers, which they compute from the old values.
        needs_gradient: Whether hooks read `g`. False gives them None, so that they can be compiled
            with a rule that clips gradients or maximizes. It is about the hooks of the class that
            says so: a subclass with hooks of its own gets gradients unless it says so, too.
        needs_old: Whether `after` finds in `t.old` the value of the variable before the inner step,
            after all `before` hooks. This copies variables in each step.
        changes_variables: Whether hooks change variables. It is for a warning, where the optimizer
            inside computes them from slots alone.
        unsaved: Names of arguments of the constructor that belong to the process, and are not saved
            with the optimizer.

    Args:
        inner_optimizer: A `keras.optimizers.Optimizer`, or its name or configuration. Options such
            as clipping or accumulation belong to it. Its `use_ema` averages the variables as it
            leaves them, before the wrapper changes them. A `keras.optimizers.LossScaleOptimizer`
            goes around the wrapper, not inside.
        name: Name of the optimizer.
        **base: `groups`, which is passed on. Other options belong to `inner_optimizer`.

    Hooks:
        before: `(g, x, s, t) -> g, x` or `g, x, {slot: value}`. Pure, per variable, before the
            inner step.
        after: `(g, x, s, t) -> x, {slot: value}`. Pure, per variable, after it.
        accept: `(g, x, t) -> bool tensor`. Where False, the inner step leaves the variable, its
            slots and its average by `use_ema` alone; slots of all variables together move.
        average: `(x, s) -> value`. Pure, per variable: what `keras_tfopt.averaged` puts in.
        before_step: `(grads, variables) -> grads`.
        after_step: `(variables) -> list or None`. New values of the variables.
        accept_step: `(grads, s) -> bool tensor, {counter: value}`. Pure, of the values of all
            gradients: where False, only the counters change, found in `s`.
        choices: `() -> {name: argument}`. Arguments that choose variables. `build` warns of what
            matches none.
        check: `(likes)`. Raise an error if the arguments do not fit the variables.
        facts: `(like) -> dict`. What hooks find in `t` of a variable, by name. Variables of
            different facts share no compiled code.
        reach: `(like) -> "dense", "rows" or None`. `sparse` of a variable; None: hooks do not run.
        counters: `() -> {name: Slot}`. State of all variables together.

    `g, x, s, t` are gradient, variable, slots and scalars, as in `keras_tfopt.Rule`. With
    `master_weights` of the inner optimizer, x is the float32 copy of a half-precision variable, and
    what a hook returns for it goes to both. `before_step` and `after_step` see the variables. On
    PyTorch, a pure hook may be called once for all small variables of a shape, by `torch.vmap`; in
    `keras_tfopt.engine.plain()` it is called for each. Hooks may draw random numbers by a
    `keras.random.SeedGenerator` that the constructor has set as an attribute. Its state is saved.

    Raises:
        TypeError: if a hook returns something else than above, or asks for the value of a tensor:
            on `build` for hooks of one variable, in a step for hooks of all.
        KeyError: if a hook returns a slot that `slots` does not describe.
        ValueError: if a hook returns another shape.
    """

    if TYPE_CHECKING:  # the arguments of the engine, for editors
        inner_optimizer: Any
        _: dataclasses.KW_ONLY
        name: str | None = None

    unsaved: ClassVar[tuple[str, ...]] = ()

    def slots(self, like: Like) -> dict[str, Slot]:
        """Describe the state for one variable, as in `keras_tfopt.Rule.slots`."""
        return {}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        """Return scalars, as `keras_tfopt.Rule.scalars`, from the inner learning rate.

        Hooks of one variable find numbers in arguments that are schedules. Here, and in hooks of
        all variables, `self.now(self.factor)` is the number of this step.
        """
        return {"lr": lr}

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, serializable."""
        inner = {"inner_optimizer": encoded(self.inner_optimizer)}
        return {"name": self.name, **inner, **self.own_config(), **self.saved_paths()}

    def own_arguments(self) -> list[str]:
        """Return the names of the constructor's arguments that are the wrapper's own."""
        names = self._saved_arguments()
        return [name for name in names if name not in ("name", "inner_optimizer", *self.unsaved)]

    def changing_arguments(self) -> dict[str, Any]:
        """Return the own arguments that are not numbers, but give one in each step."""
        own = {name: getattr(self, name) for name, f in self._fields.items() if f.may_change}
        return {name: value for name, value in own.items() if changes(value)}

    def own_config(self) -> dict[str, Any]:
        """Return the arguments that are the wrapper's own, serializable."""
        config = {}
        for name in self.own_arguments():
            value = getattr(self, name)
            check_savable(name, value)
            config[name] = encoded(value)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict | None = None) -> Wrapper:
        """Return the optimizer that `get_config` described."""
        paths = config.get(PATHS, ())
        given = {n: decoded(v, custom_objects) for n, v in config.items() if n != PATHS}
        optimizer = cls(**given)
        optimizer._saved_paths = tuple(paths)
        return optimizer
