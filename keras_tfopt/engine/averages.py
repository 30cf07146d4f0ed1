"""Find averages of the weights, and put them into the model instead of the weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras import ops

from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.keras_private import is_multi_optimizer
from keras_tfopt.engine.state.building import path_of

Current = Callable[[Any], Any]  # from a variable to its value

_averaged: set[int] = set()  # variables that hold their averages, by identity


def parts(optimizer: Any) -> Iterator[Any]:
    """Yield an optimizer and all optimizers inside it."""
    for _, part in _with_places(optimizer, "optimizer"):
        yield part


def _with_places(optimizer: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield an optimizer and all inside it, each with the expression that gets it."""
    yield place, optimizer
    inner = getattr(optimizer, "inner_optimizer", None)
    if is_multi_optimizer(optimizer):
        for number, part in enumerate(optimizer.optimizers):
            yield from _with_places(part, f"{place}.optimizers[{number}]")
    elif inner is not None:
        yield from _with_places(inner, f"{place}.inner_optimizer")


def averages_of(optimizer: Any, current: Current, of: Any = None) -> list[tuple[Any, Any]]:
    """Return `(variable, average)` for all averages of an optimizer and of those inside it.

    Raises:
        ValueError: if there are no averages, none yet, or two of one variable.
    """
    inside = list(parts(optimizer))
    if of is not None and not any(part is of for part in inside):
        raise ValueError(
            f"Argument `of` must be the optimizer {optimizer.name!r} or one inside of it. "
            f"Received: {of!r}"
        )
    keeping = [part for part in inside if keeps_averages(part)]
    sources = [part for part in keeping if of is None or part is of]
    if keeping and not sources:
        raise ValueError(
            "Argument `of` must be an optimizer that keeps averages. There are "
            f"{' and '.join(_found_at(part, optimizer) for part in keeping)}. "
            f"Received: {_found_at(of, optimizer)}"
        )
    if not sources:
        raise ValueError(
            f"There are no averages: neither {type(optimizer).__name__} nor what is inside of it "
            "keeps any. Optimizers that do are keras_tfopt.MovingAverage, "
            "keras_tfopt.StochasticWeightAveraging, keras_tfopt.Lookahead, "
            "keras_tfopt.ScheduleFree, keras_tfopt.ScheduleFreeAdamW, keras_tfopt.ScheduleFreeSGD, "
            "and all with use_ema=True. "
            f"Received: {[type(part).__name__ for part in inside]}"
        )
    found: dict[int, tuple[Any, Any]] = {}
    owners: dict[int, Any] = {}
    for source in sources:
        if not source.built or not _steps_of(source):
            raise ValueError(
                f"There are no averages before the first step of {type(source).__name__}. "
                "Received: iterations=0"
            )
        for variable, average in _averages_now(source, current):
            other = owners.setdefault(id(variable), source)
            if other is not source:
                raise ValueError(
                    f"Two optimizers keep averages of {path_of(variable)!r}. Say by `of` whose are "
                    f"wanted, those of {_found_at(other, optimizer)} or of "
                    f"{_found_at(source, optimizer)}"
                )
            found[id(variable)] = variable, ops.cast(average, variable.dtype)
    return list(found.values())


def _found_at(part: Any, optimizer: Any) -> str:
    """Return the class of an optimizer, and how to get it from the optimizer around it."""
    inside = _with_places(optimizer, "optimizer")
    place = next(place for place, one in inside if one is part)
    return f"{type(part).__name__} (`{place}`)"


def _steps_of(optimizer: Any) -> int:
    """Return the number of steps done; micro-steps of a step that has not ended do not count."""
    count = optimizer.iterations  # of an optimizer that accumulates, a tensor
    is_variable = isinstance(count, keras.Variable)
    return int(backend.number(count) if is_variable else ops.convert_to_numpy(count))


def keeps_averages(optimizer: Any) -> bool:
    """Return whether an optimizer, not one inside, keeps averages of the variables."""
    own = getattr(optimizer, "keeps_averages", None)
    return _has_ema(optimizer) or own is not None and own()


def _has_ema(optimizer: Any) -> bool:
    """Return whether the option `use_ema` is on; its averages replace those of the rule itself."""
    return bool(optimizer.use_ema) and not hasattr(optimizer, "inner_optimizer")


def _averages_now(optimizer: Any, current: Current) -> list[tuple[Any, Any]]:
    if not _has_ema(optimizer):
        return optimizer.averages_now(current)
    kept = zip(
        optimizer._trainable_variables, optimizer._model_variables_moving_average, strict=True
    )
    read = getattr(optimizer, "read_state", backend.read)
    return [(variable, read(average)) for variable, average in kept]


@contextlib.contextmanager
def averaged(model: keras.Model, optimizer: Any = None, of: Any = None) -> Iterator[None]:
    """Give the model averages instead of its weights within this context.

    Afterwards it has its weights again, to the bit, even after an error. Do not train within it:
    the weights do not keep what steps there did.

    Args:
        model: A `keras.Model`, compiled unless `optimizer` is given.
        optimizer: The optimizer that keeps the averages, or one around it; None takes the model's.
        of: The optimizer whose averages to use, if several nested ones keep some.

    Raises:
        ValueError: if there are no averages or no step has been made, or if several optimizers keep
            averages of one variable. Also if the model has averages in it already, or has none of
            the variables that the optimizer averages.
        RuntimeError: at the end, if there were steps of training.

    Example:

    >>> with keras_tfopt.averaged(model):
    ...     model.save_weights("averages.weights.h5")
    """
    optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(
            "Argument `optimizer` must be the optimizer that keeps the averages, unless the model "
            "is compiled with it: write `averaged(model, optimizer)`, or call `model.compile`. "
            f"Received: {optimizer!r}"
        )
    sync(model)
    variables: list[Any] = []

    def read() -> tuple[list[Any], list[Any]]:
        new = averages_of(optimizer, backend.read, of)
        variables[:] = [variable for variable, _ in new]
        copies = [backend.copy_of(v, keras.backend.standardize_dtype(v.dtype)) for v in variables]
        return [average for _, average in new], copies

    def put_in(values: list[Any]) -> None:
        put(list(zip(variables, values, strict=True)))

    new, old = on_each_worker(optimizer, read)
    _refuse_twice(variables)
    known = set(map(id, variables))
    if variables and known.isdisjoint(map(id, model.variables)):
        raise ValueError(
            "Argument `optimizer` must keep averages of variables of the model. A copy of a model "
            f"has variables of its own. Received: {type(optimizer).__name__}, which was built for "
            f"{path_of(variables[0])!r} of another model"
        )
    steps = _steps_of(optimizer)
    try:
        _averaged.update(known)
        on_each_worker(optimizer, put_in, new)
        yield
    finally:
        sync(model)
        on_each_worker(optimizer, put_in, old)
        _averaged.difference_update(known)
    if _steps_of(optimizer) != steps:
        raise RuntimeError(
            "A model cannot be trained within `averaged`, where it has averages instead of its "
            "weights: it has the weights from before again, while its optimizer has made steps. "
            f"Received: {steps} steps before, {_steps_of(optimizer)} after"
        )


def on_each_worker(optimizer: Any, function: Callable, *given: Any) -> Any:
    """Return the result of a function of variables, which runs on each worker of this process."""
    for part in parts(optimizer):
        if hasattr(part, "exchange"):
            return part.exchange.on_each(function, *given)
    return function(*given)


def assign_averages(optimizer: Any, variables: Any) -> list[Any]:
    """Assign to variables the averages that an optimizer keeps; return those that have none."""
    found = {id(v): (v, average) for v, average in averages_of(optimizer, backend.read, optimizer)}
    put([found[id(variable)] for variable in variables if id(variable) in found])
    return [variable for variable in variables if id(variable) not in found]


def check_all_here(optimizer: Any, doing: str) -> None:
    """Raise an error if other workers keep a part of the state.

    Args:
        optimizer: The optimizer.
        doing: What needs all of it, as the subject of a sentence.
    """
    if any(getattr(part, "shards", None) is not None for part in parts(optimizer)):
        raise ValueError(
            f"{doing} needs all state of the optimizer, of which each worker keeps a part, as "
            "keras_tfopt.distributed.ShardedState has it. keras_tfopt.averaged and "
            "keras_tfopt.callbacks.EvaluateWithAverages read averages of other workers; a saved "
            "model has all state"
        )


def swap_averages(optimizer: Any, variables: Any) -> None:
    """Exchange variables with the slots in which an optimizer keeps their averages."""
    check_all_here(optimizer, "`swap_weights`")
    averages_of(optimizer, backend.read, optimizer)  # for its errors
    for variable in variables:
        slot = optimizer._state.entries[optimizer._get_variable_index(variable)].slots["average"]
        weight = backend.copy_of(variable, keras.backend.standardize_dtype(slot.dtype))
        put([(variable, ops.cast(backend.read(slot), variable.dtype)), (slot, weight)])


def sync(model: Any) -> None:
    """Write the state of a training in progress to the variables, if Keras keeps it elsewhere."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


def _refuse_twice(variables: list[Any]) -> None:
    if any(id(variable) in _averaged for variable in variables):
        raise ValueError(
            "The model has averages instead of its weights already: `averaged` and "
            "EvaluateWithAverages cannot be used within one another. Received: the same model"
        )


def put(values: list[tuple[Any, Any]]) -> None:
    """Assign copies of values to variables, outside of steps."""
    if backend.replicas() > 1:
        backend.commit([(variable, None, value) for variable, value in values])
        return
    for variable, value in values:
        variable.assign(ops.copy(value))


class AveragedFunction:
    """A function of a model for a batch, which runs with averages and then restores the weights.

    It replaces the model's own function, which Keras makes once and keeps. Keras sets the attribute
    `flag` of the model to False when an evaluation starts. A mark there shows that this is still
    the evaluation for which the function was made, not a later one after an interruption.
    """

    def __init__(self, model: Any, name: str, flag: str, of: Any = None):
        function = getattr(model, name)
        if isinstance(function, AveragedFunction):
            if function.is_current():
                raise ValueError(
                    "Only one callback can put averages into the model. Received: two of them"
                )
            function.remove()
            function = getattr(model, name)
        averages_of(model.optimizer, backend.read, of)  # for its errors
        _refuse_twice(model.trainable_variables)
        self.model, self.name, self.flag, self.of = model, name, flag, of
        self.function, self.mark = function, _Unset()
        setattr(model, flag, self.mark)
        setattr(model, name, self)

    def is_current(self) -> bool:
        return getattr(self.model, self.flag) is self.mark

    def remove(self) -> None:
        """Put the model's own function back."""
        if getattr(self.model, self.name) is self:
            setattr(self.model, self.name, self.function)

    def __call__(self, *args: Any) -> Any:
        if getattr(self.model, self.flag) is False:
            self.remove()
            return self.function(*args)
        return backend.with_averages(self, *args)

    def swapped(self) -> contextlib.AbstractContextManager:
        return averaged(self.model, of=self.of)

    def values(self, values: list[Any]) -> list[Any]:
        """Return the averages, from the values of the model's trainable variables."""
        variables = self.model.trainable_variables
        now = {id(v): value for v, value in zip(variables, values, strict=True)}

        def current(variable: Any) -> Any:
            return now[id(variable)] if id(variable) in now else backend.read(variable)

        new = {id(v): a for v, a in averages_of(self.model.optimizer, current, self.of)}
        return [ops.copy(new.get(id(v), now[id(v)])) for v in variables]


class _Unset(int):
    """A false value that differs from False by identity."""
