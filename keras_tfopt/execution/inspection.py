"""Looking into optimizers and training steps, for reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfopt.execution import gradients as engine_gradients
from keras_tfopt.execution.building import path_of
from keras_tfopt.execution.engine import Engine
from keras_tfopt.execution.select import backend
from keras_tfopt.execution.wrapping import WrappingEngine, state_of
from keras_tfopt.execution.wrapping import innermost as _innermost


def innermost(optimizer: Any) -> Any:
    """The optimizer at the core of wrappers and loss scaling."""
    while isinstance(optimizer, (WrappingEngine, keras.optimizers.LossScaleOptimizer)):
        optimizer = optimizer.inner_optimizer
    return _innermost(optimizer)


def is_ours(optimizer: Any) -> bool:
    return isinstance(optimizer, Engine)


def gradients(
    model: keras.Model, optimizer: Any, x: Any, y: Any, sample_weight: Any = None
) -> list[Any]:
    """Gradients of the compiled loss, in the form in which the backend hands them to optimizers."""

    def loss() -> Any:
        predicted = model(x, training=True)
        loss = model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=sample_weight)
        return optimizer.scale_loss(loss)

    return backend.gradients(loss, model.trainable_variables)


def describe(
    optimizer: Any, variables: Sequence[Any], grads: Sequence[Any]
) -> list[dict[str, Any]]:
    """What is known of each variable and its gradient before a step."""
    inner = innermost(optimizer)
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    facts = []
    for variable, gradient in zip(variables, grads, strict=True):
        index = inner._get_variable_index(variable)
        array = None if gradient is None else _dense(gradient, variable)
        rows = gradient is not None and backend.from_native(gradient, variable.shape) is not None
        by_rows, decays, rules = False, inner.weight_decay is not None, []
        if isinstance(inner, Engine):
            by_rows = inner.moves_by_rows(index)
            decays = inner._decays[index]
            if inner._own_weight_decay:
                decays = not inner.facts(inner._likes[index].path).get("is_skipped", False)
            rules = _rules(inner, index)
        touched = None
        if array is not None and array.ndim > 1 and (rows or by_rows):
            touched = int(array.reshape(len(array), -1).any(1).sum())
        facts.append(
            {
                "variable": path_of(variable),
                "dtype": keras.backend.standardize_dtype(variable.dtype),
                "shape": tuple(variable.shape),
                "gradient": "none" if gradient is None else "rows" if rows else "dense",
                "update": "rows" if by_rows else "dense",
                "touched": touched,
                "decay": bool(decays),
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


def _rules(inner: Engine, index: int) -> list[str]:
    path = inner._likes[index].path
    rules = [f"row_variables {p.pattern}" for p in inner._row_patterns if p.search(path)]
    rules += [f"no decay {p}" for p in inner._no_decay_matches(path)]
    if inner.scope == "variable":
        rules += [name for name, value in inner.facts(path).items() if value is True]
    return rules


def _dense(gradient: Any, variable: Any) -> np.ndarray:
    rows = backend.from_native(gradient, tuple(variable.shape))
    if rows is not None:
        touched = engine_gradients.Touched(rows.values, rows.indices, tuple(variable.shape), False)
        gradient = backend.to_dense(engine_gradients.sum_repeated(touched, None))
    return ops.convert_to_numpy(ops.cast(gradient, "float32"))


def _bytes(state: Any) -> int:
    size = {"float64": 8, "float32": 4, "int32": 4, "int64": 8, "float16": 2, "bfloat16": 2}
    return int(np.prod(state.shape)) * size[keras.backend.standardize_dtype(state.dtype)]
