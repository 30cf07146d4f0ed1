"""Recorded optimizers under their original names, and their verbs instead of `apply`."""

import functools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from integration import originals
from keras_tfopt import legacy

_EXTENDED = re.compile(r"extend_with_decoupled_weight_decay\((\w+)\)")


class Verbs:
    """A legacy optimizer with the methods of a Keras optimizer by which recordings are replayed."""

    def __init__(self, optimizer: Any, global_step: Any, **apply_kwargs: Any):
        self.optimizer = optimizer
        self.global_step = global_step
        self.apply_kwargs = apply_kwargs
        self.rate: Any = None

    def build(self, variables: Sequence[Any]) -> None:
        self.optimizer.keras.build(variables)

    def apply(self, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        pairs = list(zip(grads, variables, strict=True))
        self.optimizer.apply_gradients(pairs, global_step=self.global_step, **self.apply_kwargs)

    @property
    def variables(self) -> list[Any]:
        """All that a step may assign besides the variables that are trained."""
        found = [*self.optimizer.keras.variables, self.global_step, *_own(self.optimizer)]
        if self.rate is not None:  # which the optimizer reads, but does not own
            found.append(self.rate)
        return list({id(variable): variable for variable in found}.values())

    def stateless_apply(
        self, state: Sequence[Any], grads: Sequence[Any], values: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        trained = self.optimizer.keras._trainable_variables
        given = [*zip(trained, values, strict=True), *zip(self.variables, state, strict=True)]
        with keras.StatelessScope(state_mapping=given) as scope:
            self.apply(grads, trained)
        return (
            [scope.get_current_value(variable) for variable in trained],
            [scope.get_current_value(variable) for variable in self.variables],
        )

    def slot(self, variable: Any, name: str) -> Any:
        if variable is None:  # state of all variables together, which no verb gives
            return self.optimizer.keras.slot(None, name)
        found = self.optimizer.get_slot(variable, name)
        if found is None:
            raise KeyError(name)
        return found

    @property
    def learning_rate(self) -> Any:
        return self.optimizer.keras.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self.rate.assign(value)

    def __getattr__(self, name: str) -> Any:
        has = hasattr(self.optimizer, name)
        return getattr(self.optimizer if has else self.optimizer.keras, name)


def _own(optimizer: Any) -> list[Any]:
    found = [v for v in vars(optimizer).values() if isinstance(v, keras.Variable)]
    inner = vars(optimizer).get("_opt")
    return found + (_own(inner) if inner is not None else [])


def build(
    name: str,
    entry: Mapping[str, Any],
    variables: Sequence[Any],
    global_step: Any,
    rate: Any = None,
) -> Verbs:
    """The optimizer as code written for the original would make it; defaults are its own."""
    by_name = {variable.path: variable for variable in variables}
    kwargs = dict(entry["kwargs"])
    if rate is not None:
        kwargs["learning_rate"] = rate
    optimizer = make(name, kwargs, global_step, functools.partial(_schedule, global_step))
    apply_kwargs = {
        key: [by_name[one] for one in value] for key, value in entry["apply_kwargs"].items()
    }
    verbs = Verbs(optimizer, global_step, **apply_kwargs)
    verbs.rate = rate
    return verbs


def make(
    name: str, kwargs: Mapping[str, Any], global_step: Any, schedule: Callable[[Any], Any]
) -> Any:
    """The optimizer of a recorded name, with what `schedule` makes of a recorded schedule."""
    convert = functools.partial(_argument, global_step=global_step, schedule=schedule)
    given = {key: convert(value) for key, value in kwargs.items()}
    with warnings.catch_warnings():
        # Recordings have counts that stand still, and decay with LARS, on purpose.
        warnings.filterwarnings("ignore", module="integration")
        return _class(name)(**given)


def _class(name: str) -> Any:
    extended = _EXTENDED.fullmatch(name)
    if extended:
        return legacy.extend_with_decoupled_weight_decay(getattr(legacy, extended[1]))
    try:
        return getattr(legacy, name)
    except AttributeError as error:
        raise originals.NotReplayable(str(error)) from None


def _argument(value: Any, global_step: Any, schedule: Callable[[Any], Any]) -> Any:
    if not isinstance(value, Mapping):
        return value
    if value == {"ref": "global_step"}:
        return global_step
    if "optimizer" in value:
        return make(value["optimizer"], value["kwargs"], global_step, schedule)
    if "clip_dims" in value:
        return value["clip_dims"]
    if "function_of_T" in value:
        return originals.argument(value)
    function: Callable | None = getattr(legacy, value.get("fn", ""), None)
    if function is not None:
        return function(**{key: v for key, v in value.items() if key not in ("fn", "passed_as")})
    return schedule(value)


def _schedule(global_step: Any, value: Any) -> Any:
    function = originals.argument(value)
    # TensorFlow 1 evaluates it at the global step, once a step.
    return lambda: function(global_step.value)
