"""Looking into optimizers and training steps, for reports."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfopt.execution import gradients as engine_gradients
from keras_tfopt.execution.averages import parts
from keras_tfopt.execution.building import describe as describe_variable
from keras_tfopt.execution.building import path_of
from keras_tfopt.execution.engine import Engine
from keras_tfopt.execution.options import changes, current
from keras_tfopt.execution.rows import is_looked_up
from keras_tfopt.execution.select import backend
from keras_tfopt.execution.selection import is_chosen, parts_of, shown
from keras_tfopt.execution.state import Like
from keras_tfopt.execution.versions import is_multi_optimizer
from keras_tfopt.execution.wrapping import WrappingEngine, state_of
from keras_tfopt.execution.wrapping import innermost as _innermost


def innermost(optimizer: Any) -> Any:
    """The optimizer at the core of wrappers and loss scaling."""
    while isinstance(optimizer, (WrappingEngine, keras.optimizers.LossScaleOptimizer)):
        optimizer = optimizer.inner_optimizer
    return _innermost(optimizer)


def is_ours(optimizer: Any) -> bool:
    return isinstance(optimizer, Engine)


def accumulates(optimizer: Any) -> bool:
    """Whether it takes several calls to make a step."""
    return any(part.gradient_accumulation_steps for part in parts(optimizer))


class Lookups:
    """What the embedding layers of a model look up while they are watched.

    Attributes:
        ids: For each table, by its identity, the `(layer, ids)` that were known as numbers.
        nested: Tables in which something is looked up inside of a loop or a rematerialized part.
    """

    def __init__(self, model: keras.Model):
        self.ids: dict[int, list[tuple[Any, np.ndarray]]] = {}
        self.nested: set[int] = set()
        self.layer_of: dict[int, Any] = {}
        self._layers = [v for v in model._flatten_layers() if isinstance(v, keras.layers.Embedding)]
        self._place: Any = None

    def begin(self) -> None:
        """Says that what is called from here on is the outside of all loops."""
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
        table = id(layer._embeddings)
        self.layer_of[table] = layer
        if backend.place() != self._place:
            self.nested.add(table)
        known = backend.limits(inputs)
        if known is not None:
            ids = np.ravel(ops.convert_to_numpy(inputs))
            self.ids.setdefault(table, []).append((layer, ids))
        return call(inputs, **kwargs)


def lookups(model: keras.Model, x: Any) -> Lookups:
    """What a forward pass looks up."""
    found = Lookups(model)
    found.begin()
    with found.watched():
        model(x, training=True)
    return found


def gradients(model: keras.Model, optimizer: Any, batch: tuple, looked_up: Lookups) -> list[Any]:
    """Gradients of the compiled loss, in the form in which the backend hands them to optimizers."""
    x, y, sample_weight = batch if len(batch) == 3 else (*batch, None)

    def loss() -> Any:
        looked_up.begin()
        predicted = model(x, training=True)
        loss = model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=sample_weight)
        return optimizer.scale_loss(loss)

    ids, looked_up.ids = looked_up.ids, {}  # they are known already
    with looked_up.watched():
        found = backend.gradients(loss, model.trainable_variables, eagerly=model.run_eagerly)
    looked_up.ids = ids
    return found


def why_dense(variable: Any, looked_up: Lookups) -> str | None:
    """Why the gradient of a table is dense although it was looked up in; None for other variables.

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
    """What is known of each variable and its gradient before a step."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    facts = []
    for variable, gradient in zip(variables, grads, strict=True):
        around = list(_chain(optimizer, variable))
        inner, index = around[-1], optimizer._get_variable_index(variable)
        like = describe_variable(variable, type(inner).__name__)
        array = None if gradient is None else _dense(gradient, variable)
        rows = gradient is not None and backend.from_native(gradient, variable.shape) is not None
        by_rows = False
        if isinstance(inner, Engine):
            by_rows = inner.moves_by_rows(inner._get_variable_index(variable))
        decays = any(_decays(part, variable, like, by_rows) for part in around)
        rules = _rules(around, like)
        touched = None
        if rows and is_looked_up(variable):
            touched = _count(backend.from_native(gradient, tuple(variable.shape)).indices)
        elif array is not None and array.ndim > 1 and (rows or by_rows):
            touched = int(array.reshape(len(array), -1).any(1).sum())
        facts.append(
            {
                "variable": path_of(variable),
                "dtype": keras.backend.standardize_dtype(variable.dtype),
                "shape": tuple(variable.shape),
                "gradient": "none" if gradient is None else "rows" if rows else "dense",
                "why_dense": None if rows else why_dense(variable, looked_up),
                "update": "rows" if by_rows else "dense",
                "touched": touched,
                "decay": decays,
                "rules": ", ".join(rules) or None,
                "state_bytes": sum(_bytes(state) for state in state_of(optimizer, index)),
                "array": array,
            }
        )
    return facts


def compilation(model: keras.Model, optimizer: Any) -> str:
    """Whether the optimizer's part of a training step runs compiled, in words."""
    if model.run_eagerly and keras.backend.backend() != "torch":
        return "not compiled: the model runs eagerly"
    return backend.compilation(innermost(optimizer))


def _chain(optimizer: Any, variable: Any) -> Iterator[Any]:
    """The optimizers, from the outside in, that a variable passes in a step."""
    yield optimizer
    if is_multi_optimizer(optimizer):
        number = optimizer._var_to_optimizer_idx[optimizer._var_key(variable)]
        yield from _chain(optimizer.optimizers[number], variable)
    elif hasattr(optimizer, "inner_optimizer"):
        yield from _chain(optimizer.inner_optimizer, variable)


def _decays(optimizer: Any, variable: Any, like: Like, by_rows: bool) -> bool:
    """Whether this optimizer, not one inside of it, shrinks a variable in the step to come."""
    if isinstance(optimizer, WrappingEngine):
        return optimizer.decays(like, by_rows)
    rate = optimizer.weight_decay
    if rate is None or not ops.convert_to_numpy(
        current(rate, optimizer.iterations) if changes(rate) else rate
    ):
        return False
    if not isinstance(optimizer, Engine):
        return optimizer._use_weight_decay(variable)
    if not optimizer._own_weight_decay:
        return not optimizer.is_excluded(like)
    facts = optimizer.facts_of(like)
    return not (by_rows or facts.get("is_skipped") or facts.get("is_excluded"))


def _rules(optimizers: Sequence[Any], like: Like) -> list[str]:
    ours = [part for part in optimizers if isinstance(part, (Engine, WrappingEngine))]
    rules = [
        f"{name} {shown(part)}"
        for optimizer in ours
        for name, choice in optimizer.choices().items()
        for part in parts_of(choice)
        if is_chosen(like, part)
    ]
    inner = optimizers[-1]
    if isinstance(inner, Engine) and inner.scope == "variable":
        rules += [name for name, value in inner.facts_of(like).items() if value is True]
    return rules


def _dense(gradient: Any, variable: Any) -> np.ndarray:
    rows = backend.from_native(gradient, tuple(variable.shape))
    if rows is not None:
        touched = engine_gradients.Touched(rows.values, rows.indices, tuple(variable.shape), False)
        gradient = backend.to_dense(engine_gradients.sum_repeated(touched, None))
    return ops.convert_to_numpy(ops.cast(gradient, "float32"))


def _count(indices: Any) -> int:
    return np.unique(ops.convert_to_numpy(indices)).size


def _bytes(state: Any) -> int:
    size = {"float64": 8, "float32": 4, "int32": 4, "int64": 8, "float16": 2, "bfloat16": 2}
    return int(np.prod(state.shape)) * size[keras.backend.standardize_dtype(state.dtype)]
