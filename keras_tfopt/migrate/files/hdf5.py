"""Read whole models in .h5 files of Keras 2 and of Keras 3."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

from keras_tfopt.migrate.files import keras3
from keras_tfopt.migrate.saved import FileError, Saved, Tensor, number

_SIGNATURE = b"\x89HDF"
# Wrappers by the ends of their names, each with the argument for the optimizer inside.
_INSIDE = {
    "LossScaleOptimizer": "inner_optimizer",
    **dict.fromkeys(("Addons>Lookahead", "Addons>MovingAverage", "Addons>SWA"), "optimizer"),
}
# Slots of wrappers of TensorFlow Addons, and of `use_ema`, which no rule has.
_AROUND = ("average", "slow")


def is_hdf5(path: Path) -> bool:
    """Return whether a file begins as HDF5 does."""
    with path.open("rb") as file:
        return file.read(4) == _SIGNATURE


def read(path: Path, optimizer: Any, variables: list[Any]) -> Saved:
    """Return the state in an .h5 file of a whole model."""
    try:
        with h5py.File(path, "r") as file:
            if "training_config" in file.attrs or "optimizer_weights" in file:
                return _state(file, path, optimizer, variables)
            is_keras3 = "vars" in file.get("optimizer", ())
    except OSError as error:
        raise FileError(f"{path} is damaged or not complete: {error}") from error
    if is_keras3:  # a .weights.h5 under another name
        return keras3.read(path, optimizer, variables)
    raise FileError(
        f"{path} has no state of an optimizer: it was written by `save_weights`, or by `save` of a "
        "model that was not compiled. Only whole models have it: `model.save('x.h5')`"
    )


def _state(file: Any, path: Path, optimizer: Any, variables: list[Any]) -> Saved:
    training = _json(file.attrs.get("training_config"), path)
    weights = list(_weights(file["model_weights"])) if "model_weights" in file else []
    version = _text(file.attrs.get("keras_version", "2"))
    if "optimizer_weights" not in file:
        raise FileError(
            f"{path} has no state of its optimizer {configuration(training)[0]!r}: the model made "
            "no step before it was saved, or was saved with `include_optimizer=False`"
        )
    group = file["optimizer_weights"]
    names = _names(group, "weight_names")
    arrays = {name.removesuffix(":0"): np.array(group[name]) for name in names}
    if version.startswith("3"):
        saved = _of_keras3(arrays, training, path, optimizer, variables)
        return dataclasses.replace(saved, weights=weights)
    return sorted_out(arrays, *configuration(training), weights)


def _of_keras3(
    arrays: dict[str, np.ndarray],
    training: dict[str, Any],
    path: Path,
    optimizer: Any,
    variables: list[Any],
) -> Saved:
    """Return the state in a file of Keras 3: the outermost optimizer's, then those inside."""
    saved = training.get("optimizer_config")
    if saved is None:
        raise FileError(f"{path} does not say of which optimizer its state is")
    states: list[list[np.ndarray]] = []
    for name, array in arrays.items():
        if name.endswith("/iteration") or not states:  # the first variable of each optimizer
            states.append([])
        states[-1].append(array)
    *around, own = states or [[]]
    notes, wrappers = [], iter(around)
    while "inner_optimizer" in saved["config"]:
        if len(next(wrappers, ())) > 2:
            notes.append(keras3.left_out(saved["class_name"].rpartition(">")[2]))
        saved = saved["config"]["inner_optimizer"]
    config = saved["config"]
    cls = saved.get("registered_name") or saved["class_name"]
    if ">" in cls:
        return _ours(own, cls, config, path, variables, notes)
    return keras3.positions(own, cls, config, path, optimizer, variables, notes)


def _ours(
    arrays: list[np.ndarray],
    name: str,
    config: dict[str, Any],
    path: Path,
    variables: list[Any],
    notes: list[str],
) -> Saved:
    """Return the state of an optimizer of ours, or of a rule of the user's own."""
    cls = keras.saving.get_registered_object(name)
    if cls is None:
        raise FileError(f"{path} has state of {name!r}, which is not defined in this program")
    like = cls.from_config(config)
    store: dict[str, np.ndarray] = {}
    like.build(variables)
    keras3.check_count(like, arrays, path)
    like.set_weights(arrays)
    like.save_own_variables(store)
    return keras3.ours(store, name, config, path, len(variables), notes)


def configuration(training: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Return the optimizer's class and arguments from the `training_config` of Keras 2."""
    saved = training.get("optimizer_config") or {}
    while inside := _inside(saved):
        saved = inside
    registered = saved.get("registered_name") or ""
    cls = registered if ">" in registered else saved.get("class_name")
    return cls, dict(saved.get("config", {}))


def _inside(saved: dict[str, Any]) -> dict[str, Any] | None:
    """Return the configuration of the optimizer inside of a wrapper; None for another optimizer."""
    cls, config = str(saved.get("class_name")), saved.get("config", {})
    return next((config.get(key) for end, key in _INSIDE.items() if cls.endswith(end)), None)


def program_of(cls: str | None, is_new: bool) -> tuple[str, str | None]:
    """Return the program and the plain name of a class, as Keras 2 saves it: `"Addons>LAMB"`."""
    package, _, plain = (cls or "").rpartition(">")
    if package == "Addons":
        return "tensorflow_addons", plain
    return ("keras 2" if is_new else "keras 2 legacy"), plain or None


def sorted_out(
    arrays: dict[str, np.ndarray], cls: str | None, config: dict[str, Any], weights: list[Tensor]
) -> Saved:
    """Return the state in arrays, sorted out by their names.

    Newer classes of Keras 2 write `Adam/m/dense/kernel`. Legacy classes and those of TensorFlow
    Addons write `Adam/dense/kernel/m`.
    """
    is_new = any(name.split("/")[-1] in ("iteration", "learning_rate") for name in arrays)
    steps, rate, others, tensors = None, number(config.get("learning_rate")), {}, []
    for name, array in arrays.items():
        parts = name.split("/")
        if parts[-1] in ("iter", "iteration", "_iterations"):
            steps = int(array)
        elif parts[-1] in ("learning_rate", "_learning_rate") and not array.shape:
            rate = float(array)
        elif len(parts) < 3:
            others[parts[-1]] = array
        elif is_new:
            tensors.append(Tensor(name, array, parts[1], "/".join(parts[2:])))
        else:
            tensors.append(Tensor(name, array, parts[-1], "/".join(parts[1:-1])))
    tensors, around = apart(tensors)
    program, plain = program_of(cls, is_new)
    saved = Saved(program, plain, tensors, steps, rate, config, others, weights)
    if is_new:
        return dataclasses.replace(saved, averages=around)
    return dataclasses.replace(saved, around=around)


def apart(tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return what a rule keeps, and what is kept around it."""
    around = [tensor for tensor in tensors if tensor.slot in _AROUND]
    return [tensor for tensor in tensors if tensor.slot not in _AROUND], around


def _weights(group: Any) -> Any:
    for layer in _names(group, "layer_names"):
        inside = group[layer]
        for name in _names(inside, "weight_names"):
            yield Tensor(name, np.array(inside[name]), "", name.removesuffix(":0"))


def _names(group: Any, attribute: str) -> list[str]:
    """Return names in an attribute; Keras splits long lists into attributes with numbers."""
    found = list(group.attrs.get(attribute, ()))
    numbered = (f"{attribute}{number}" for number in itertools.count())
    for part in itertools.takewhile(group.attrs.__contains__, numbered):
        found += list(group.attrs[part])
    return [_text(name) for name in found]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _json(value: Any, path: Path) -> dict[str, Any]:
    try:
        return json.loads(_text(value)) if value is not None else {}
    except json.JSONDecodeError as error:
        raise FileError(f"{path}: what it says of `compile` is damaged: {error}") from error
