"""Nest optimizers: check which ones fit together, and pass options on to the inner one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import keras

from keras_tfopt.engine import averages
from keras_tfopt.engine.arguments.configuration import optimizer_from
from keras_tfopt.engine.arguments.options import DEFAULTS, all_arguments, own_parameters
from keras_tfopt.engine.arguments.representation import Around
from keras_tfopt.engine.arguments.suggestions import check_arguments
from keras_tfopt.engine.keras_private import is_multi_optimizer
from keras_tfopt.engine.state.state import NO_SETTINGS, Like, Settings


def _of_inner(name: str) -> property:
    """Return a property that reads and sets an attribute of the inner optimizer.

    Keras's constructor sets it before there is an inner optimizer, which has no effect.
    """

    def get(wrapper: Any) -> Any:
        return getattr(vars(wrapper).get("inner_optimizer"), name, None)

    def set_(wrapper: Any, value: Any) -> None:
        inner = vars(wrapper).get("inner_optimizer")
        if inner is not None:
            setattr(inner, name, value)

    return property(get, set_)


class PassingOn(Around):
    """Pass attributes and calls on to `inner_optimizer`."""

    inner_optimizer: Any

    @property
    def iterations(self) -> Any:
        """Steps of the inner optimizer."""
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self) -> Any:
        """Learning rate of the inner optimizer."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner_optimizer.learning_rate = value

    @property
    def optimizers(self) -> list[Any]:
        """Optimizers of a MultiOptimizer inside, for callbacks; with another, no such attribute."""
        return self.inner_optimizer.optimizers

    def scale_loss(self, loss: Any) -> Any:
        """Scale the loss as the inner optimizer does, which also scales gradients back."""
        return self.inner_optimizer.scale_loss(loss)

    loss_scale_factor = _of_inner("loss_scale_factor")
    gradient_accumulation_steps = _of_inner("gradient_accumulation_steps")

    @property
    def maximize(self) -> bool:
        """Whether the inner optimizer steps up the gradient."""
        found = {getattr(part, "maximize", False) for part in _moving(self)}
        if len(found) > 1:
            raise ValueError(
                f"{type(self).__name__} needs inner optimizers that all have the same `maximize`. "
                "Received: True and False"
            )
        return found.pop()

    @property
    def shard_state(self) -> bool:
        """Whether the inner optimizer, or one of several, keeps its state in shards."""
        return any(getattr(part, "shard_state", False) for part in _moving(self))

    def settings_of(self, like: Like) -> Settings:
        """Return the settings of a variable in the groups of the optimizer inside."""
        of_inner = getattr(innermost(self), "settings_of", None)
        return NO_SETTINGS if of_inner is None else of_inner(like)

    def exclude_from_weight_decay(
        self, var_list: Sequence[Any] | None = None, var_names: Sequence[str] | None = None
    ) -> None:
        """Pass on to the inner optimizer."""
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Pass on to the inner optimizer; each worker of this process takes its own averages."""
        finalize = functools.partial(self.inner_optimizer.finalize_variable_values, var_list)
        if hasattr(innermost(self), "_pipeline"):
            averages.on_each_worker(self, finalize)
        else:  # Keras's own assign all copies
            finalize()


def innermost(optimizer: Any) -> Any:
    """Return the optimizer inside all wrappers and loss scaling."""
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer


def _moving(wrapper: Any) -> Sequence[Any]:
    """Return the optimizers inside all wrappers, several if they are in a MultiOptimizer."""
    inner = innermost(wrapper)
    return inner.optimizers if is_multi_optimizer(inner) else [inner]


def check_one(inner: Any, owner: str) -> None:
    """Raise an error if a wrapper has several optimizers inside."""
    if is_multi_optimizer(innermost(inner)):
        raise ValueError(
            f"{owner} needs one optimizer for all variables: put the MultiOptimizer outside, and "
            f"a wrapper {owner} around each of its optimizers. Received: {inner!r}"
        )


def check_accumulation(wrapper: Any) -> None:
    """Raise an error if a wrapper could not distinguish micro-steps from steps."""
    inner = innermost(wrapper)
    if not is_multi_optimizer(inner):
        return
    steps = [part.gradient_accumulation_steps for part in inner.optimizers]
    if any(steps):
        raise ValueError(
            f"{type(wrapper).__name__} around a MultiOptimizer needs optimizers in it that do not "
            f"accumulate gradients. Received: gradient_accumulation_steps={steps}. Put the "
            "MultiOptimizer outside, and a wrapper around each of its optimizers"
        )


def check_alike(wrapper: Any) -> None:
    """Raise an error if a worker could leave out a step that the others make."""
    if "accept_step" not in wrapper.defines:
        return
    for part in averages.parts(wrapper.inner_optimizer):
        if hasattr(part, "workers") and part.workers() > 1:
            outer, inner = type(wrapper).__name__, type(part).__name__
            raise ValueError(
                f"{outer} decides on each worker alone, and {inner} waits for all of them: write "
                f"{inner}({outer}(...)) instead of {outer}({inner}(...))"
            )


def check_inner(inner: Any, owner: str) -> Any:
    """Return the optimizer to go inside another one, from itself, its name or configuration."""
    is_named = isinstance(inner, str) or isinstance(inner, dict) and "class_name" in inner
    if not (is_named or isinstance(inner, keras.optimizers.Optimizer)):
        is_class = isinstance(inner, type) and issubclass(inner, keras.optimizers.Optimizer)
        raise TypeError(
            "Argument `inner_optimizer` must be a keras.optimizers.Optimizer, or a name or "
            f"configuration of one. Received: {inner!r}"
            + (f", which is a class: write {owner}({inner.__name__}(...))" if is_class else "")
        )
    inner = optimizer_from(inner)
    if isinstance(inner, keras.optimizers.LossScaleOptimizer):
        if owner == type(inner).__name__:
            raise ValueError(f"{owner} goes around an optimizer once. Received: {inner!r}")
        raise ValueError(
            "A LossScaleOptimizer must be the outermost optimizer: write "
            f"LossScaleOptimizer({owner}(...)) instead of {owner}(LossScaleOptimizer(...))."
        )
    return inner


def check_not_outermost(inner: Any, owner: str) -> None:
    """Raise an error for an optimizer inside a wrapper if it has to be the outermost one."""
    if getattr(inner, "must_be_outermost", False):
        name = type(inner).__name__
        if name == owner:
            raise ValueError(f"{name} goes around an optimizer once. Received: {inner!r}")
        raise ValueError(
            f"{name} must be around all wrappers: write {name}({owner}(...)) instead of "
            f"{owner}({name}(...))"
        )


def check_around(cls: type, given: dict[str, Any], inner: Any) -> None:
    """Raise an error for arguments that a wrapper does not take, but perhaps the inner one does."""
    inside = set(given) & set(all_arguments(type(inner)))
    for name in inside - set(own_parameters(cls)):
        raise TypeError(
            f"{cls.__name__} has no argument {name!r}, which belongs to the optimizer inside: "
            f"write {cls.__name__}({type(inner).__name__}({name}=...)). Received: "
            f"{name}={given[name]!r}"
        )
    for name in set(given) & set(DEFAULTS) - set(own_parameters(cls)):
        core = type(innermost(inner))
        raise TypeError(
            f"{cls.__name__} has no argument {name!r}, which belongs to an optimizer of "
            f"keras_tfopt inside: write {cls.__name__}(keras_tfopt.Adam({name}=...)). Received: "
            f"{name}={given[name]!r}, around {core.__name__} of {core.__module__.split('.')[0]}"
        )
    check_arguments(cls.__name__, given, own_parameters(cls))


def pass_option(wrapper: Any, name: str, value: Any) -> None:
    """Set an option of the optimizer inside, which is asked for it, too, or raise an error."""
    inner = wrapper.inner_optimizer
    if not hasattr(inner, name):
        raise AttributeError(
            f"{type(wrapper).__name__} has no option `{name}`, nor has the {type(inner).__name__} "
            f"inside. Received: {value!r}"
        )
    setattr(inner, name, value)


def pass_groups(wrapper: Any, inner: Any, groups: Any) -> None:
    """Give the argument `groups` of a wrapper to the rule inside, or raise an error."""
    if not hasattr(inner, "groups"):
        raise TypeError(
            f"Argument `groups` of {type(wrapper).__name__} belongs to the optimizer inside, which "
            f"must be one of keras_tfopt. Received: {inner!r}"
        )
    if inner.groups is not None:
        raise ValueError(
            f"Argument `groups` must be given once. Received: {groups!r}, and {inner.groups!r} of "
            f"the {type(inner).__name__} inside"
        )
    inner.groups = groups
