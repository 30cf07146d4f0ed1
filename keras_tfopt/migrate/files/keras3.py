"""Read files of Keras 3 except whole models in .h5: state of stock optimizers or of ours."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

from keras_tfopt.engine import slots_of
from keras_tfopt.engine.stock import extras_of
from keras_tfopt.migrate.kinds import KINDS
from keras_tfopt.migrate.saved import FileError, Saved, Tensor, number
from keras_tfopt.migrate.stock import twin

_LAYOUT = "layout"  # the entry that says what each position is, in files of ours
_OTHERS = ("iteration", "learning_rate", "refused_rows", "touched_rows")


def read(path: Path, optimizer: Any, variables: list[Any]) -> Saved:
    """Return the state in a .keras, .weights.h5 or .weights.json file."""
    config: dict[str, Any] = {}
    sources: list[Any] = [path]
    state: dict[str, Any] = {}
    try:
        if path.suffix == ".keras":
            with zipfile.ZipFile(path) as archive:
                saved = json.loads(archive.read("config.json"))
                config = (saved.get("compile_config") or {}).get("optimizer") or {}
                sources = [io.BytesIO(archive.read("model.weights.h5"))]
        elif path.suffix == ".json":  # it tells which of several files have the parts of a group
            files = json.loads(path.read_bytes())["weight_map"].values()
            sources = [path.with_name(name) for name in dict.fromkeys(chain.from_iterable(files))]
        for source in sources:
            with h5py.File(source, "r") as file:
                _add(state, file.get("optimizer", {}))
        return _state(state, config, path, optimizer, variables)
    except (OSError, zipfile.BadZipFile, KeyError, json.JSONDecodeError) as error:
        raise FileError(f"{path} is damaged or not complete: {error}") from error


def _add(state: dict[str, Any], group: Any) -> None:
    """Add the arrays of an open group, and of groups inside, to nested dictionaries."""
    for name, item in group.items():
        if isinstance(item, h5py.Dataset):
            state[name] = np.array(item)
        else:
            _add(state.setdefault(name, {}), item)


def _state(
    group: dict[str, Any], config: dict[str, Any], path: Path, optimizer: Any, variables: list[Any]
) -> Saved:
    notes: list[str] = []
    while "inner_optimizer" in group:
        around = config.get("class_name", "The optimizer around it")
        if len(group.get("vars", ())) > 2:
            notes.append(left_out(around))
        group = group["inner_optimizer"]
        config = config.get("config", {}).get("inner_optimizer", {})
    store = group.get("vars")
    if not store:
        raise FileError(f"{path} has no state of an optimizer")
    cls = config.get("class_name")
    # A file of weights does not tell arguments.
    every = getattr(optimizer, "gradient_accumulation_steps", None)
    arguments = config.get("config", {"gradient_accumulation_steps": every})
    if _LAYOUT in store:
        return ours(store, config.get("registered_name"), arguments, path, len(variables), notes)
    arrays = [store[str(n)] for n in range(len(store))]
    return positions(arrays, cls, arguments, path, optimizer, variables, notes)


def ours(
    store: dict[str, np.ndarray],
    cls: str | None,
    config: dict[str, Any],
    path: Path,
    count: int,
    notes: list[str],
) -> Saved:
    """Return the state of an optimizer of ours, which says what each position is."""
    roles = json.loads(store[_LAYOUT].astype("uint8").tobytes().decode())
    tensors, steps, rate = [], None, None
    places: dict[str, int] = {}
    for position, role in enumerate(roles):
        array = store[str(position)]
        if role == "iteration":
            steps = _steps(int(array), config.get("gradient_accumulation_steps"), notes)
        elif role == "learning_rate":
            rate = float(array)
        elif role not in _OTHERS:
            place = places[role] = places.get(role, -1) + 1
            tensors.append(Tensor(f"{role} {place}", array, role, place))
    if config.get("gradient_accumulation_steps"):
        tensors = _without_sums(tensors, places, count)
    wrong = {role: n + 1 for role, n in places.items() if n + 1 != count}
    if wrong:
        raise FileError(
            f"{path} has {wrong} tensors of these names, and the model has {count} trained "
            "variables: the file is of another model, or its optimizer keeps other state for some "
            "variables than for others, which only `load_weights` and `load_model` read, from "
            ".keras and .weights.h5 files"
        )
    averages = [tensor for tensor in tensors if tensor.slot == "average"]
    tensors = [tensor for tensor in tensors if tensor.slot != "average"]
    return Saved("keras_tfopt", cls, tensors, steps, rate, config, notes=notes, averages=averages)


def positions(
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
    check_count(like, arrays, path)
    known = {
        id(state): (slot, place)
        for place, variable in enumerate(variables)
        for slot, state in slots_of(like, variable).items()
    }
    extras = enumerate(extras_of(like))
    of_averages = {id(kept["average"]): place for place, kept in extras if "average" in kept}
    steps = _steps(int(arrays[0]), like.gradient_accumulation_steps, notes)
    tensors, averages, rate = [], [], number(config.get("learning_rate"))
    for position, (state, array) in enumerate(zip(like.variables, arrays, strict=True)):
        if state.name == "learning_rate":
            rate = float(array)
        elif id(state) in known:
            slot, place = known[id(state)]
            tensors.append(Tensor(f"vars/{position}", array, slot, place))
        elif id(state) in of_averages and steps:  # before the first step, those of Keras are zero
            averages.append(Tensor(f"vars/{position}", array, "average", of_averages[id(state)]))
    return Saved("keras 3", name, tensors, steps, rate, config, notes=notes, averages=averages)


def _steps(calls: int, every: int | None, notes: list[str]) -> int:
    """Return the number of steps. A file has the number of gradients, `every` of which make one."""
    steps, left = divmod(calls, every or 1)
    if left:
        notes.append(f"the sum of {left} gradients, for the next step, is not taken")
    return steps


def _without_sums(tensors: list[Tensor], places: dict[str, int], count: int) -> list[Tensor]:
    """Return tensors without the sums of gradients, the last tensors of their name.

    Slots of Adagrad have that name, too.
    """
    places["accumulator"] = last = places.get("accumulator", -1) - count
    if last < 0:
        del places["accumulator"]
    return [t for t in tensors if t.slot != "accumulator" or int(t.variable) <= last]


def left_out(wrapper: str) -> str:
    """Return the note on a wrapper that had more state than the number of steps."""
    return f"{wrapper} keeps state of its own, which is not taken"


def check_count(like: Any, arrays: Sequence[np.ndarray], path: Path) -> None:
    """Raise an error if a file has not as many tensors as an optimizer like the one in it."""
    if len(like.variables) != len(arrays):
        raise FileError(
            f"{path} has {len(arrays)} tensors of its optimizer. A {type(like).__name__} has "
            f"{len(like.variables)} for this model: the file is of another model, or of an "
            "optimizer with other arguments"
        )
