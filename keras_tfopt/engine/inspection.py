"""Collect facts about optimizers and training steps, for reports."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfopt.engine.access import dtype_of
from keras_tfopt.engine.arguments.options import changes, current
from keras_tfopt.engine.arguments.selection import check_built, is_chosen, parts_of, shown
from keras_tfopt.engine.averages import parts
from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.engine import Engine
from keras_tfopt.engine.foreign import part_of, state_of
from keras_tfopt.engine.keras_private import is_multi_optimizer, layers_in, table_of
from keras_tfopt.engine.nesting import innermost
from keras_tfopt.engine.optimizer import Optimizer
from keras_tfopt.engine.rows import is_looked_up
from keras_tfopt.engine.state.building import describe as describe_variable
from keras_tfopt.engine.state.building import path_of, prepare
from keras_tfopt.engine.state.state import NO_SETTINGS, Like, Settings
from keras_tfopt.engine.step import gradients as engine_gradients
from keras_tfopt.engine.wrapping import WrappingEngine


class Lookups:
    """Record the lookups of a model's embedding layers.

    Attributes:
        ids: For each table, by identity, the `(layer, ids)` whose ids were known as numbers.
        nested: Tables with a lookup inside a loop or a rematerialized part.
        layer_of: For each table, by identity, the layer that looked up rows in it.
    """

    def __init__(self, model: keras.Model):
        self.ids: dict[int, list[tuple[Any, np.ndarray]]] = {}
        self.nested: set[int] = set()
        self.layer_of: dict[int, Any] = {}
        self._layers = [v for v in layers_in(model) if isinstance(v, keras.layers.Embedding)]
        self._place: Any = None

    def begin(self) -> None:
        """Note that the code here is outside of all loops."""
        self._place = backend.place()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        for layer in self._layers:
            layer.__dict__["call"] = functools.partial(self._call, layer, layer.call)
        try:
            yield
        finally:
            for layer in self._layers:
                del layer.__dict__["call"]

    def _call(self, layer: Any, call: Any, inputs: Any, **kwargs: Any) -> Any:
        table = id(table_of(layer))
        self.layer_of[table] = layer
        if backend.place() != self._place:
            self.nested.add(table)
        known = backend.limits(inputs)
        if known is not None:
            ids = np.ravel(ops.convert_to_numpy(inputs))
            self.ids.setdefault(table, []).append((layer, ids))
        return call(inputs, **kwargs)


def lookups(model: keras.Model, x: Any) -> Lookups:
    """Run a forward pass and return its lookups."""
    found = Lookups(model)
    found.begin()
    with found.watched():
        model(x, training=True)
    return found


def gradients(model: keras.Model, optimizer: Any, batch: tuple, looked_up: Lookups) -> list[Any]:
    """Return gradients of the compiled loss, in the form that optimizers get from the backend."""
    x, y, sample_weight = batch if len(batch) == 3 else (*batch, None)
    if not model.trainable_variables:
        return []

    def loss() -> Any:
        looked_up.begin()
        predicted = model(x, training=True)
        loss = model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=sample_weight)
        return optimizer.scale_loss(loss)

    ids, looked_up.ids = looked_up.ids, {}  # keep the ids that are known already
    with looked_up.watched():
        found = backend.gradients(loss, model.trainable_variables, eagerly=model.run_eagerly)
    looked_up.ids = ids
    return found


MADE_DENSE = (
    "keras.optimizers.LossScaleOptimizer, into which `compile` puts optimizers under "
    "mixed_float16, divides all of it; keras_tfopt.LossScaleOptimizer keeps rows"
)


def why_dense(variable: Any, looked_up: Lookups) -> str | None:
    """Say why the gradient of a table with lookups is dense; None for other variables.

    `variable` has a dense gradient.
    """
    layer = looked_up.layer_of.get(id(variable))
    if layer is None:
        return None
    swapped = is_looked_up(variable)
    if not swapped and type(layer) is not keras.layers.Embedding:
        return f"it belongs to {type(layer).__name__}, which computes it dense"
    if variable.regularizer is not None:
        return "its regularizer has a gradient in every row"
    if id(variable) in looked_up.nested:
        return "it is looked up inside of a loop or of a part that is rematerialized"
    if not swapped:
        return "it belongs to keras.layers.Embedding; keras_tfopt.layers.swap_embeddings mends that"
    return "it is used for more than lookups, as tied weights are, or rematerialized"


def describe(
    optimizer: Any, variables: Sequence[Any], grads: Sequence[Any], looked_up: Lookups
) -> list[dict[str, Any]]:
    """Return the facts of each variable and its gradient before a step."""
    # Keras divides gradients, which then do not know their rows any more, except on PyTorch.
    divided = type(optimizer) is keras.optimizers.LossScaleOptimizer
    loses_rows = divided and keras.backend.backend() != "torch"
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return [
        _facts(optimizer, variable, gradient, looked_up, loses_rows)
        for variable, gradient in zip(variables, grads, strict=True)
    ]


def _facts(
    optimizer: Any, variable: Any, gradient: Any, looked_up: Lookups, loses_rows: bool
) -> dict[str, Any]:
    around = list(_chain(optimizer, variable))
    inner, index = around[-1], optimizer._get_variable_index(variable)
    shape = tuple(variable.shape)
    like = describe_variable(variable, type(inner).__name__)
    rows = None if gradient is None else backend.from_native(gradient, shape)
    array = None if gradient is None else _dense(gradient, rows)
    why = why_dense(variable, looked_up) if rows is None else None
    if rows is not None and loses_rows and is_looked_up(variable):
        rows, why = None, MADE_DENSE
    by_rows = isinstance(inner, Engine) and inner.moves_by_rows(variable)
    settings = settings_of(optimizer, variable)
    form = "dense" if rows is None else "rows"
    return {
        "variable": path_of(variable),
        "dtype": dtype_of(variable),
        "shape": shape,
        "gradient": "none" if gradient is None else form,
        "why_dense": why,
        "update": "none" if settings.frozen else "rows" if by_rows else "dense",
        "groups": _groups_text(settings.groups) or None,
        "settings": _settings_text(settings.given) or None,
        "touched": _touched(variable, rows, array, by_rows),
        "decay": any(_decays(part, variable, like, by_rows) for part in around),
        "rules": ", ".join(_rules(around, like)) or None,
        "state_bytes": sum(_bytes(state) for state in state_of(optimizer, index)),
        "array": array,
    }


def _touched(variable: Any, rows: Any, array: Any, by_rows: bool) -> int | None:
    """Return the number of rows that a gradient touches; None where nothing counts them."""
    if rows is not None and is_looked_up(variable):
        return np.unique(ops.convert_to_numpy(rows.indices)).size
    if array is not None and array.ndim > 1 and (rows is not None or by_rows):
        return int(array.reshape(len(array), -1).any(1).sum())
    return None


@dataclasses.dataclass(frozen=True)
class GroupTable:
    """The settings of each variable of a model in an optimizer's groups; prints as a table.

    Attributes:
        rows: A dictionary for each trainable variable, with the keys `variable` (path), `groups`
            (the patterns and functions that chose it), `settings` (by name; if several groups have
            one, that of the last) and `state_bytes`.
    """

    rows: list[dict[str, Any]]

    def __str__(self) -> str:
        titles = ["variable", "groups", "settings", "state bytes"]
        return table(titles, [list(as_text(row).values()) for row in self.rows])


class Describing:
    """An optimizer that shows its groups."""

    def describe_groups(self, model: keras.Model) -> GroupTable:
        """Print and return the resulting settings of each trainable variable of a model.

        The optimizer is built for these variables, unless it is built already.

        Args:
            model: A `keras.Model` or layer that is built.
        """
        check_built(model)
        prepare(self, model.trainable_variables)
        rows = [_row_of(self, variable) for variable in model.trainable_variables]
        print(GroupTable(rows))
        return GroupTable(rows)


def _row_of(optimizer: Any, variable: Any) -> dict[str, Any]:
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    settings = settings_of(optimizer, variable)
    state = state_of(optimizer, optimizer._get_variable_index(variable))
    return {
        "variable": path_of(variable),
        "groups": settings.groups,
        "settings": dict(settings.given),
        "state_bytes": sum(map(_bytes, state)),
    }


def settings_of(optimizer: Any, variable: Any) -> Settings:
    """Return the settings of a variable in the groups of the optimizer that moves it."""
    inner = list(_chain(optimizer, variable))[-1]
    return inner.entry_of(variable).settings if isinstance(inner, Engine) else NO_SETTINGS


def as_text(row: dict[str, Any]) -> dict[str, str]:
    """Return a row of `describe_groups` with texts as values."""
    groups, settings = _groups_text(row["groups"]), _settings_text(row["settings"])
    texts = {"groups": groups or "-", "settings": settings or "-"}
    return {**row, **texts, "state_bytes": f"{row['state_bytes']:,}"}


def _groups_text(groups: Sequence[str]) -> str:
    """Return the names of groups, shortened if they are long, such as those of whole levels."""
    return ", ".join(name if len(name) <= 36 else f"{name[:33]}..." for name in groups)


def _settings_text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_shown(value)}" for name, value in settings.items())


def _shown(value: Any) -> str:
    schedule = keras.optimizers.schedules.LearningRateSchedule
    return type(value).__name__ if isinstance(value, schedule) else f"{value}"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows of texts as a table with titles."""
    underline = ["-" * max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    return "\n".join(aligned([titles, underline, *rows]))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of texts as lines with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    return [line.rstrip() for line in lines]


def take_step(optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]) -> None:
    """Make one step of an optimizer."""
    by_keras = type(optimizer) is keras.optimizers.LossScaleOptimizer
    if not by_keras or keras.backend.backend() != "jax":
        optimizer.apply(grads, variables)
        return
    # On JAX, the `apply` of Keras's class assigns values that exist only in a traced branch.
    targets = [*variables, *optimizer.variables]
    values, state = ([v.value for v in group] for group in (variables, optimizer.variables))
    new_values, new_state = optimizer.stateless_apply(state, grads, values)
    for target, value in zip(targets, [*new_values, *new_state], strict=True):
        target.assign(value)


def compilation(model: keras.Model, optimizer: Any) -> str:
    """Say whether the optimizer's part of a training step runs compiled."""
    if model.run_eagerly and keras.backend.backend() != "torch":
        return "not compiled: the model runs eagerly"
    return backend.compilation(innermost(optimizer))


def _chain(optimizer: Any, variable: Any) -> Iterator[Any]:
    """Yield the optimizers that change a variable in a step, from the outside in."""
    yield optimizer
    if is_multi_optimizer(optimizer):
        yield from _chain(part_of(optimizer, variable), variable)
    elif hasattr(optimizer, "inner_optimizer"):
        yield from _chain(optimizer.inner_optimizer, variable)


def _decays(optimizer: Any, variable: Any, like: Like, by_rows: bool) -> bool:
    """Return whether this optimizer itself shrinks a variable in its next step."""
    if isinstance(optimizer, WrappingEngine):
        return optimizer.decays(like, by_rows)
    if isinstance(optimizer, Engine) and not optimizer._own_weight_decay:
        entry, settings = optimizer.entry_of(variable), optimizer.settings_of(like)
        of_groups = None if optimizer.decay_is_around else settings.decay
        rate = optimizer.weight_decay if of_groups is None else of_groups
        return entry.decays and not entry.rests and bool(rate)
    rate = optimizer.weight_decay
    if rate is None or not ops.convert_to_numpy(
        current(rate, optimizer.iterations) if changes(rate) else rate
    ):
        return False
    if not isinstance(optimizer, Engine):
        return optimizer._use_weight_decay(variable)
    facts = optimizer.entry_of(variable).facts
    return not (by_rows or facts.get("is_skipped") or facts.get("is_excluded"))


def _rules(optimizers: Sequence[Any], like: Like) -> list[str]:
    """Return the arguments that chose a variable, each with the pattern or function."""
    rules = [
        f"{name} {shown(part)}"
        for optimizer in optimizers
        if isinstance(optimizer, Optimizer)
        for name, choice in optimizer.choices().items()
        for part in parts_of(choice)
        if is_chosen(like, part)
    ]
    inner = optimizers[-1]
    if isinstance(inner, Engine) and inner.scope == "variable":
        rules += [name for name, value in inner.facts_of(like).items() if value is True]
    return rules


def _dense(gradient: Any, rows: Any) -> np.ndarray:
    if rows is not None:
        gradient = backend.to_dense(engine_gradients.sum_repeated(rows, None))
    return ops.convert_to_numpy(ops.cast(gradient, "float32"))


def shared_bytes(optimizer: Any) -> int:
    """Return the size of the state of all variables together, without counters."""
    kept = [v for p in parts(optimizer) if isinstance(p, Engine) for v in p._state.shared.values()]
    return sum(_bytes(state) for state in kept if state.shape)


def _bytes(state: Any) -> int:
    return math.prod(state.shape) * np.dtype(dtype_of(state)).itemsize
