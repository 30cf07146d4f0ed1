"""Check that workers have the same model and optimizer, and give them the same weights."""

from __future__ import annotations

import json
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from keras import ops

from keras_tfopt.engine import PATHS
from keras_tfopt.engine.access import array_of
from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.rows import shards_of, whole_shape
from keras_tfopt.engine.state.building import describe


def described_inside(optimizer: Any) -> dict[str, Any]:
    """Return what must be the same of an optimizer inside: its class and plain arguments."""
    with backend.lifted():  # Keras's optimizers read the value of their learning rate
        return {"class": type(optimizer).__name__, **_plain(optimizer.get_config())}


def described(variables: Sequence[Any], owner: str) -> list[Any]:
    """Return what must be the same of variables: name, shape and data type."""
    return [[describe(v, owner).name, list(whole_shape(v)), str(v.dtype)] for v in variables]


def take_first(exchange: Any, variables: Sequence[Any]) -> None:
    """Give variables the values that they have on worker 0, except for divided tables."""
    whole = [variable for variable in variables if shards_of(variable) is None]
    arrays = exchange.broadcast([array_of(variable) for variable in whole])
    # On worker 0 as well: all processes of a JAX program must run the same operations.
    for variable, array in zip(whole, arrays, strict=True):
        variable.assign(ops.cast(ops.convert_to_tensor(array), variable.dtype))


def compare(exchange: Any, mine: dict[str, Any]) -> None:
    """Raise an error if workers have different descriptions of their optimizer or model."""
    texts = [json.loads(text) for text in exchange.gather(json.dumps(mine, default=repr))]
    for rank, one in enumerate(texts):
        _check_same(one, texts[0], rank)


def _plain(value: Any) -> Any:
    """Return a configuration without names, which Keras numbers; objects by their class."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items() if key not in ("name", PATHS)}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    is_plain = value is None or isinstance(value, (str, numbers.Number))
    return value if is_plain else type(value).__name__


def _check_same(one: dict[str, Any], first: dict[str, Any], rank: int) -> None:
    """Raise an error if a worker has another optimizer or model than the first one."""
    for key in ("optimizer", "arguments", "inside"):
        if one.get(key) != first.get(key):
            mine, theirs = _differences(one[key], first[key])
            raise ValueError(
                f"All workers must have the same optimizer. Received: {mine} on worker {rank}, "
                f"{theirs} on worker 0"
            )
    pairs = zip(one["variables"], first["variables"], strict=False)
    different = [f"number {n}: {a} and {b}" for n, (a, b) in enumerate(pairs) if a != b]
    counts = len(one["variables"]), len(first["variables"])
    if counts[0] != counts[1] or different:
        raise ValueError(
            f"All workers must have the same model. Received: {counts[0]} variables on worker "
            f"{rank}, {counts[1]} on worker 0" + "".join(f"; {d}" for d in different[:3])
        )
    if one.get("resumes") != first.get("resumes"):
        raise ValueError(
            "Either all workers go on from saved state or none. Received: saved state on worker "
            f"{0 if first['resumes'] else rank}, none on worker {rank if first['resumes'] else 0}"
        )


def _differences(one: Any, other: Any) -> tuple[Any, Any]:
    """Return two descriptions without the arguments that are the same in both."""
    if not isinstance(one, dict):
        return one, other
    if one.get("class") != other.get("class"):
        return one["class"], other["class"]
    keys = [k for k in {**one, **other} if one.get(k) != other.get(k)]
    return {k: one.get(k) for k in keys}, {k: other.get(k) for k in keys}
