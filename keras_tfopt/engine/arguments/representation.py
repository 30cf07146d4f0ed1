"""`repr` of optimizers, and access to attributes of an optimizer inside another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from keras_tfopt.engine.arguments.options import (
    DEFAULTS,
    FunctionOfStep,
    all_arguments,
    own_parameters,
)


class Shown:
    """Show an optimizer as the call that makes it, with the options that are set."""

    def __repr__(self) -> str:
        inner = vars(self).get("inner_optimizer")
        names = own_parameters(type(self))
        if inner is not None and "inner_optimizer" not in names:  # this class makes the inner one
            names += own_parameters(type(inner))
        hidden = {"name", *getattr(self, "unsaved", ())}
        shown = []
        for name in dict.fromkeys([*names, *all_arguments(type(self))]):
            value = argument_of(self, name)
            if name == "inner_optimizer":
                shown.append(repr(value))
            elif name in hidden or (name in DEFAULTS and value == DEFAULTS[name]):
                continue
            else:
                shown.append(f"{name}={_text(value)}")
        return f"{type(self).__name__}({', '.join(shown)})"


class Around(Shown):
    """Give access to attributes of the optimizer inside that this one does not have."""

    if not TYPE_CHECKING:  # a type checker would accept any name as an attribute

        def __getattr__(self, name: str) -> Any:  # called only if there is no such attribute
            inner = vars(self).get("inner_optimizer")
            while inner is not None and not name.startswith("_"):
                # TensorFlow leaves out attributes that are the default in the class.
                if name in vars(inner) or name in getattr(type(inner), "_fields", ()):
                    return getattr(inner, name)
                inner = vars(inner).get("inner_optimizer")
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}, nor has the optimizer inside"
            )

    def leave_to_inner(self, *options: str) -> None:
        """Delete options that Keras's constructor has set, so that those inside are read."""
        for name in set(options).intersection(vars(self)):
            delattr(self, name)


def argument_of(optimizer: Any, name: str) -> Any:
    """Return the current value of an argument; for a learning rate the schedule, not its value."""
    while name == "learning_rate" and "inner_optimizer" in vars(optimizer):
        optimizer = optimizer.inner_optimizer
    return getattr(optimizer, "_learning_rate" if name == "learning_rate" else name, None)


def _text(value: Any) -> str:
    """Return a short text for an argument; it must not fail where a step is being compiled."""
    if isinstance(value, FunctionOfStep):
        return _text(value.function)
    if isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
        try:
            config = value.get_config()
        except NotImplementedError:
            config = {}
        arguments = ", ".join(f"{k}={_text(v)}" for k, v in config.items() if k != "name")
        return f"{type(value).__name__}({arguments})"
    if isinstance(value, keras.Variable):
        try:
            return repr(float(f"{float(keras.ops.convert_to_numpy(value)):.7g}"))
        except Exception:  # a value that is not known yet; each backend has its own error for it
            return value.name
    return getattr(value, "__name__", None) or repr(value)
