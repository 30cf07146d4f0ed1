"""Read checkpoints of TensorFlow 2, and folders of SavedModel."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from keras_tfopt.migrate.files import hdf5
from keras_tfopt.migrate.saved import FileError, Saved, Tensor, number

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_SLOT = re.compile(r"^(.+)/\.OPTIMIZER_SLOT/(.+)/([^/]+)$")
# Keys of the optimizers inside of Lookahead, and of MovingAverage and SWA, of TensorFlow Addons.
_INSIDE = re.compile(r"(?:/(?:lh_base_optimizer|awg_optimizer))+(?=/|$)")
_NEW = re.compile(r"^((?:.+/)?[^/]*)/_variables/\d+$")


def read_folder(path: Path, name: Any) -> Saved:
    """Return the state in a SavedModel folder, or in the last checkpoint of a folder."""
    variables = path / "variables" / "variables"
    if Path(f"{variables}.index").exists():
        return _read(variables, name, *_metadata(path))
    latest = _tensorflow().train.latest_checkpoint(str(path))
    if latest is None:
        raise FileError(f"{path} is no SavedModel and has no checkpoint in it")
    return read(Path(latest), name)


def read(path: Path, name: Any) -> Saved:
    """Return the state in a checkpoint that objects of TensorFlow 2 wrote."""
    return _read(path, name, None, {})


def _read(path: Path, name: Any, cls: str | None, config: dict[str, Any]) -> Saved:
    arrays, names = _opened(path)
    owner = _owner(list(arrays), name, path)
    others, own = {}, {}
    tensors, weights = [], []
    for key, array in arrays.items():
        slot, new = _SLOT.match(key), _NEW.match(key)
        if slot and _INSIDE.sub("", slot[2]) == owner:
            tensors.append(Tensor(key, array, slot[3], names.get(slot[1], slot[1])))
        elif new and new[1] == owner:
            own[names[key]] = array
        elif key.startswith(f"{owner}/") and not slot and not new:
            others[_INSIDE.sub("", key).removeprefix(f"{owner}/")] = array
        elif not slot and not new and key != "save_counter" and "keras_api/" not in key:
            weights.append(Tensor(key, array, "", names[key]))
    if own or "_iterations" in others:  # an optimizer since Keras 2.11
        own["iteration"] = others.pop("_iterations")
        own["learning_rate"] = others.pop("_learning_rate")
        first = next(iter(names[k] for k in arrays if _NEW.match(k)), "")
        saved = hdf5.sorted_out(own, cls or _class_in(first), config, weights)
        return dataclasses.replace(saved, others={**saved.others, **others})
    count = others.pop("iter", None)
    steps = None if count is None else int(count)
    rate = number(others.pop("learning_rate", None))
    full = names.get(f"{owner}/iter", "")
    program, plain = hdf5.program_of(cls or _class_in(full), False)
    config = config or {k: float(v) for k, v in others.items() if not np.shape(v)}
    tensors, around = hdf5.apart(tensors)
    return Saved(program, plain, tensors, steps, rate, config, others, weights, around=around)


def _opened(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the arrays in a checkpoint in the order of the objects, and full names, by keys."""
    tf = _tensorflow()
    try:
        reader = tf.train.load_checkpoint(str(path))
        known = reader.get_variable_to_shape_map()
        names = _full_names(reader) if _GRAPH in known else {}
    except Exception as error:
        raise FileError(f"{path} is damaged or not complete: {error}") from error
    if _GRAPH not in known:
        raise FileError(
            f"{path} was written by `tf.train.Saver` of TensorFlow 1: "
            "keras_tfopt.legacy.load_checkpoint reads it"
        )
    arrays = {}
    for key in names:
        if key + _VALUE in known:
            try:
                arrays[key] = reader.get_tensor(key + _VALUE)
            except Exception as error:
                raise FileError(f"{path} is damaged: {key!r} cannot be read: {error}") from error
    return arrays, names


def _owner(keys: list[str], name: Any, path: Path) -> str:
    """Return the key of the optimizer."""
    found: dict[str, None] = {}
    for key in keys:
        slot, new = _SLOT.match(key), _NEW.match(key)
        if slot or new:
            found[_INSIDE.sub("", slot[2]) if slot else new[1]] = None  # type: ignore[index]
        elif key.endswith(("/_iterations", "/iter")):
            found[key.rpartition("/")[0]] = None
    if name in found:
        return name
    if not found:
        raise FileError(f"{path} has no state of an optimizer")
    if name is not None or len(found) > 1:
        raise FileError(
            f"{path} has the optimizers {list(found)}: argument `name` must be one of them. "
            f"Received: {name!r}"
        )
    return next(iter(found))


def _class_in(full_name: str) -> str | None:
    """Return the class in the name of a variable of an optimizer, `Adam/m/dense/kernel`."""
    first, _, rest = full_name.partition("/")
    return re.sub(r"_\d+$", "", first) if rest else None  # wrappers do not write theirs


def _full_names(reader: Any) -> dict[str, str]:
    """Return the full names of variables by their keys, in the order of the objects."""
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    graph.ParseFromString(reader.get_tensor(_GRAPH))
    return {
        attribute.checkpoint_key.removesuffix(_VALUE): attribute.full_name
        for node in graph.nodes
        for attribute in node.attributes
    }


def _metadata(path: Path) -> tuple[str | None, dict[str, Any]]:
    """Return class and arguments of the optimizer, which Keras 2 writes into a SavedModel."""
    file = path / "keras_metadata.pb"
    if not file.exists():
        return None, {}
    # The part needed is JSON, which can be found without the classes of Keras 2.
    found = re.search(rb'"training_config": (\{.*)', file.read_bytes(), re.DOTALL)
    if found is None:
        return None, {}
    try:
        text = found[1].decode("utf-8", "replace")
        training, _ = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return None, {}
    return hdf5.configuration(training)


def _tensorflow() -> Any:
    try:
        import tensorflow
    except ImportError:
        raise ImportError(
            "Files of TensorFlow are read by TensorFlow: `pip install tensorflow`, on any backend "
            "of Keras"
        ) from None
    return tensorflow
