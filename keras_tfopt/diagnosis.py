"""Report on one training step and its effect on each variable."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_tfopt.engine import Engine, innermost, inspection, parts

# The columns of the table: keys of a row, with titles.
COLUMNS = {
    **{key: key for key in ("variable", "dtype", "shape", "gradient", "update")},
    "touched": "rows touched",
    "repeated": "repeated ids",
    "masked": "masked ids",
    "lost": "lost updates",
    "decay": "decay",
    "rules": "rules that matched",
    "groups": "groups",
    "settings": "settings of groups",
    "state_bytes": "state bytes",
}


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The findings of `diagnose`: a dictionary for each variable, and facts about the step.

    Attributes:
        optimizer: Name of the optimizer's class, with those inside of it.
        backend: Name of Keras's backend.
        rows: A dictionary for each trainable variable, with the keys `variable` (path), `dtype`,
            `shape`, `gradient` ("dense", "rows" or "none": its form when the optimizer gets it) and
            `why_dense` (the reason for a dense gradient of a table with lookups, else None).
            `update` is "dense", "rows" or "none": its form in the step. `touched` is the number of
            rows whose gradient is not zero, or for `keras_tfopt.layers.Embedding` of rows in the
            batch; None if all is dense. `repeated` is the number of ids in the batch that occur
            before, `masked` of those that the layer masks; both are None without a lookup. `lost`
            is the share of elements that should have moved but did not, because the update is below
            one unit in the last place. `decay` says whether the step shrinks the variable, by the
            optimizer or by a wrapper around it. `rules` names the arguments that chose it, with the
            pattern or function. `groups` and `settings` are the parameter groups that chose it and
            their settings. `state_bytes` is the size of its state.
        compiled: Whether and how the step runs compiled.
        warnings: Remarks on possible mistakes.
        shared_bytes: The size of the state of all variables together, as `LBFGS` and `Prodigy` have
            it.
    """

    optimizer: str
    backend: str
    rows: list[dict[str, Any]]
    compiled: str
    warnings: list[str]
    shared_bytes: int = 0

    def __str__(self) -> str:
        cells = [[_text(row[key]) for key in COLUMNS] for row in self.rows]
        total = sum(row["state_bytes"] for row in self.rows) + self.shared_bytes
        head = f"{self.optimizer} on {self.backend}; {total:,} bytes of state; {self.compiled}"
        table = inspection.table(list(COLUMNS.values()), cells)
        return "\n".join([head, table, *self.warnings])


def diagnose(model: keras.Model, optimizer: Any = None, batch: Any = None) -> Diagnosis:
    """Run one training step, print its effect on each variable, and undo it.

    Afterwards variables, optimizer state and the model's other state are as before. Where several
    workers train one model, all of them must call this.

    Args:
        model: A compiled `keras.Model`, which gives the loss.
        optimizer: The optimizer to look at; None takes the model's.
        batch: `(x, y)` or `(x, y, sample_weight)`, one batch as `model.fit` would see it.

    Returns:
        A `Diagnosis`, which is also printed.

    Raises:
        TypeError: if `model` is something else.
        ValueError: if the model is not compiled, or the batch is not of this form.

    Example:

    >>> report = keras_tfopt.diagnose(model, batch=(x[:64], y[:64]))
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"Argument `model` must be a keras.Model. Received: {model!r}")
    optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
    if not getattr(model, "compiled", False) or optimizer is None:
        raise ValueError("Argument `model` must be compiled, because the loss comes from it.")
    if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
        raise ValueError(
            f"Argument `batch` must be (x, y) or (x, y, sample_weight). Received: {type(batch)}"
        )
    x, y, *weight = batch
    if not model.built:
        model(x)
    variables = model.trainable_variables
    if not optimizer.built:
        optimizer.build(variables)
    accumulates = any(part.gradient_accumulation_steps for part in parts(optimizer))
    with _restored([*model.variables, *_state_here(optimizer)]):
        looked_up = inspection.lookups(model, x)
        grads = inspection.gradients(model, optimizer, (x, y, *weight), looked_up)
        facts = inspection.describe(optimizer, variables, grads, looked_up)
        before = [_array(v) for v in variables]
        inspection.take_step(optimizer, grads, variables)
        for fact, old, variable in zip(facts, before, variables, strict=True):
            new, array = _array(variable), fact.pop("array")
            fact["lost"] = _lost(array, old, new, fact["dtype"])
            if old.any() and not accumulates:
                fact["decay"] &= not np.array_equal(old, new)  # a wrapper may have skipped it
            fact.update(_seen(looked_up.ids.get(id(variable))))
        compiled = inspection.compilation(model, optimizer)
    inner = innermost(optimizer)
    name = type(optimizer).__name__
    if inner is not optimizer:
        name += f"({type(inner).__name__})"
    warnings = _warnings(facts, optimizer, inner)
    shared = inspection.shared_bytes(optimizer)
    found = Diagnosis(name, keras.backend.backend(), facts, compiled, warnings, shared)
    print(found)
    return found


def _state_here(optimizer: Any) -> list[Any]:
    """Return the state of an optimizer without that which other workers have."""
    shards = [one for part in parts(optimizer) if (one := getattr(part, "shards", None))]
    return [v for v in optimizer.variables if all(one.is_here(v) for one in shards)]


@contextlib.contextmanager
def _restored(variables: list[Any]) -> Iterator[None]:
    """Restore the current values of variables at the end of the context."""
    values = [_array(variable) for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def _seen(lookups: list | None) -> dict[str, int | None]:
    """Count repeated and masked ids."""
    if not lookups:
        return {"repeated": None, "masked": None}
    ids = np.concatenate([array for _, array in lookups])
    masked = sum(int((array == 0).sum()) for layer, array in lookups if layer.mask_zero)
    return {"repeated": int(ids.size - np.unique(ids).size), "masked": masked}


def _lost(gradient: Any, old: Any, new: Any, dtype: str) -> float | None:
    """Return the share of the elements with a gradient that did not change."""
    if gradient is None or dtype not in ("float16", "bfloat16"):
        return None
    pushed = np.asarray(gradient, "float32") != 0
    return float((np.asarray(old == new) & pushed).sum() / max(int(pushed.sum()), 1))


def _warnings(facts: list[dict[str, Any]], optimizer: Any, inner: Any) -> list[str]:
    ours = isinstance(inner, Engine)
    notes = [] if facts else ["no variable of the model is trained"]
    for fact in facts:
        path = fact["variable"]
        if fact["why_dense"] and fact["gradient"] == "dense" and fact["update"] == "rows":
            notes.append(f"{path}: the gradient is dense: {fact['why_dense']}")
        if fact["gradient"] == "none":
            notes.append(f"{path}: no gradient; the loss does not depend on it")
        if fact["lost"] and fact["lost"] > 0.05:
            notes.append(
                f"{path}: {fact['lost']:.0%} of the updates are below one unit in the last place "
                f"of {fact['dtype']} and lost" + ("; master_weights=True keeps them" * ours)
            )
        if optimizer is inner and not ours and fact["gradient"] == "rows" and fact["repeated"]:
            notes.append(f"{path}: Keras does not sum the gradients of repeated ids on TensorFlow")
        rows, touched = (fact["shape"] or [0])[0], fact["touched"]
        if fact["update"] == "dense" and touched is not None and touched < rows / 10:
            notes.append(f"{path}: all {rows} rows are updated for {touched} with a gradient")
    return notes


def _array(value: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(value).copy()


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0%}"
    return f"{value:,}" if isinstance(value, int) else str(value)
