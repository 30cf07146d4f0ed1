"""Read .keras and .weights.h5 files of Keras 3, with state of stock optimizers or of ours."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

from keras_tfopt.engine import slots_of
from keras_tfopt.migrate.kinds import KINDS
from keras_tfopt.migrate.saved import FileError, Saved, Tensor, number
from keras_tfopt.migrate.stock import twin

_LAYOUT = "layout"  # the entry that says what each position is, in files of ours
_SHARED = ("iteration", "learning_rate", "refused_rows")


def read(path: Path, optimizer: Any, variables: list[Any]) -> Saved:
    """Return the state in a .keras or a .weights.h5 file."""
    config: dict[str, Any] = {}
    source: Any = path
    try:
        if path.suffix == ".keras":
            with zipfile.ZipFile(path) as archive:
                saved = json.loads(archive.read("config.json"))
                config = (saved.get("compile_config") or {}).get("optimizer") or {}
                source = io.BytesIO(archive.read("model.weights.h5"))
        with h5py.File(source, "r") as file:
            return _state(file, config, path, optimizer, variables)
    except (OSError, zipfile.BadZipFile, KeyError, json.JSONDecodeError) as error:
        raise FileError(f"{path} is damaged or not complete: {error}") from error


def _state(
    file: Any, config: dict[str, Any], path: Path, optimizer: Any, variables: list[Any]
) -> Saved:
    group, notes = file.get("optimizer"), []
    while group is not None and "inner_optimizer" in group:
        around = config.get("class_name", "The optimizer around it")
        if len(group.get("vars", ())) > 2:
            notes.append(f"{around} keeps state of its own, which is not taken")
        group = group["inner_optimizer"]
        config = config.get("config", {}).get("inner_optimizer", {})
    store = {} if group is None else {key: np.array(v) for key, v in group["vars"].items()}
    if not store:
        raise FileError(f"{path} has no state of an optimizer")
    cls = config.get("class_name")
    arguments = config.get("config", {})
    if _LAYOUT in store:
        return _ours(store, config.get("registered_name"), arguments, path, len(variables), notes)
    arrays = [store[str(n)] for n in range(len(store))]
    return _positions(arrays, cls, arguments, path, optimizer, variables, notes)


def _ours(
    store: dict[str, np.ndarray],
    cls: str | None,
    config: dict[str, Any],
    path: Path,
    count: int,
    notes: list[str],
) -> Saved:
    roles = json.loads(store[_LAYOUT].astype("uint8").tobytes().decode())
    tensors, steps, rate = [], None, None
    places: dict[str, int] = {}
    for position, role in enumerate(roles):
        array = store[str(position)]
        if role == "iteration":
            steps = int(array)
        elif role == "learning_rate":
            rate = float(array)
        elif role not in _SHARED:
            place = places[role] = places.get(role, -1) + 1
            tensors.append(Tensor(f"{role} {place}", array, role, place))
    wrong = {role: n + 1 for role, n in places.items() if n + 1 != count}
    if wrong:
        raise FileError(
            f"{path} is of another model: it has {wrong} tensors of these names, and the model has "
            f"{count} trained variables"
        )
    return Saved("keras_tfopt", cls, tensors, steps, rate, config, notes=notes)


def _positions(
    arrays: list[np.ndarray],
    cls: str | None,
    config: dict[str, Any],
    path: Path,
    optimizer: Any,
    variables: list[Any],
    notes: list[str],
) -> Saved:
    """Return the state of a stock optimizer, which Keras saves without names."""
    if cls is None:
        like = twin(optimizer)
        notes = [*notes, f"the file does not tell its class: taken for {type(like).__name__}"]
    elif cls in KINDS:
        like = getattr(keras.optimizers, cls).from_config(config)
    else:
        raise FileError(f"{path} has state of {cls!r}, which is none of {sorted(KINDS)}")
    like.build(variables)
    name = type(like).__name__
    if len(like.variables) != len(arrays):
        raise FileError(
            f"{path} has {len(arrays)} tensors of its optimizer. A {name} has "
            f"{len(like.variables)} for this model: the file is of another model, or of an "
            "optimizer with other arguments"
        )
    known = {
        id(state): (slot, place)
        for place, variable in enumerate(variables)
        for slot, state in slots_of(like, variable).items()
    }
    tensors, rate = [], number(config.get("learning_rate"))
    for position, (state, array) in enumerate(zip(like.variables, arrays, strict=True)):
        if state.name == "learning_rate":
            rate = float(array)
        elif id(state) in known:
            slot, place = known[id(state)]
            tensors.append(Tensor(f"vars/{position}", array, slot, place))
    return Saved("keras 3", name, tensors, int(arrays[0]), rate, config, notes=notes)
