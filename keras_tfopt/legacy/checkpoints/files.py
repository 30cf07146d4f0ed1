"""Read and write files of `tf.train.Saver`, by TensorFlow on every backend of Keras."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np

# Bytes that are copied and written at once. A larger tensor is written alone.
GROUP = 2**26


class Content(NamedTuple):
    """The shape and data type of a tensor in a file."""

    shape: tuple[int, ...]
    dtype: str


class CheckpointFile:
    """A checkpoint, whose values are read one at a time.

    Args:
        prefix: Path without `.index`, or a folder, of which it is the latest checkpoint.

    Attributes:
        prefix: The path that was found.
        contents: Shape and data type of each tensor, by name. The slices of a partitioned variable
            are one tensor.

    Raises:
        ImportError: without TensorFlow.
        FileNotFoundError: if there is no checkpoint there.
        ValueError: if its index cannot be read.
    """

    def __init__(self, prefix: Any):
        self._tf = tensorflow()
        self.prefix = _existing(self._tf, prefix)
        with _readable(self._tf, self.prefix, "its index"):
            self._reader = self._tf.train.load_checkpoint(self.prefix)
            shapes = self._reader.get_variable_to_shape_map()
            dtypes = self._reader.get_variable_to_dtype_map()
        self.contents = {
            name: Content(tuple(shapes[name]), dtypes[name].base_dtype.name)
            for name in sorted(shapes)
        }

    def read(self, name: str) -> np.ndarray:
        """Return the value of a tensor, whose checksum is compared; bfloat16 in float32.

        Raises:
            ValueError: if the file is truncated or damaged there.
        """
        with _readable(self._tf, self.prefix, f"the tensor {name!r}"):
            value = np.asarray(self._reader.get_tensor(name))
        # Some backends take no bfloat16 arrays of NumPy.
        return value.astype("float32") if value.dtype.name == "bfloat16" else value

    @functools.cached_property
    def colocations(self) -> dict[str, str]:
        """Return the variable that each variable of the graph was placed with, by their names.

        It is read from the `.meta` file, and empty if there is none or it cannot be read.
        """
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

        graph = self._tf.compat.v1.MetaGraphDef()
        try:
            with self._tf.io.gfile.GFile(self.prefix + ".meta", "rb") as file:
                graph.ParseFromString(file.read())
        except (self._tf.errors.OpError, DecodeError):
            return {}
        found = {}
        for node in graph.graph_def.node:
            if node.op in ("VariableV2", "VarHandleOp") and "_class" in node.attr:
                for place in node.attr["_class"].list.s:
                    found[node.name] = place.decode().removeprefix("loc:@")
        return found


def write_checkpoint(
    prefix: Any, contents: Iterable[tuple[str, str, Callable[[], np.ndarray]]]
) -> str:
    """Write a checkpoint under a temporary name, put it in place, and return its path.

    The file `checkpoint` of its folder then names it the latest, as `tf.train.Saver` does.

    Args:
        prefix: Path without `.index`.
        contents: For each tensor: name, data type and function that returns the value.
    """
    tf = tensorflow()
    prefix = _path_of(prefix)
    folder = os.path.dirname(prefix) or "."
    tf.io.gfile.makedirs(folder)
    if keras.backend.backend() != "tensorflow":
        with contextlib.suppress(RuntimeError):  # it has been used already
            tf.config.set_visible_devices([], "GPU")  # TensorFlow would reserve all of their memory
    temporary = f"{prefix}_temp_{uuid.uuid4().hex}"
    parts: list[str] = []
    try:
        with tf.init_scope(), tf.device("CPU:0"):
            tf.io.gfile.makedirs(temporary)
            for names, tensors in _groups(tf, contents):
                parts.append(os.path.join(temporary, f"part-{len(parts):05d}"))
                whole = [""] * len(names)
                tf.raw_ops.SaveV2(
                    prefix=parts[-1], tensor_names=names, shape_and_slices=whole, tensors=tensors
                )
            tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=parts, destination_prefix=prefix, delete_old_dirs=True
            )
    finally:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.rmtree(temporary)
    _note_latest(tf, folder, prefix)
    return prefix


def _groups(tf: Any, contents: Iterable[tuple[str, str, Callable[[], np.ndarray]]]) -> Iterator:
    """Yield names and tensors in groups of at least `GROUP` bytes; the last may be smaller."""
    names, tensors, size = [], [], 0
    for name, dtype, value in contents:
        names.append(name)
        tensors.append(tf.constant(value(), tf.as_dtype(dtype)))
        size += tensors[-1].dtype.size * tensors[-1].shape.num_elements()
        if size >= GROUP:
            yield names, tensors
            names, tensors, size = [], [], 0
    if names:
        yield names, tensors


def tensorflow() -> Any:
    """Return TensorFlow, or raise an error that says what to install."""
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ImportError(
            "Checkpoints of TensorFlow 1 are read and written by TensorFlow, whichever backend "
            "Keras runs. Install it next to the others: pip install 'tensorflow>=2.20' (or "
            "tensorflow-cpu)"
        ) from error
    return tf


def _note_latest(tf: Any, folder: str, prefix: str) -> None:
    """Put a checkpoint into the list from which `tf.train.latest_checkpoint` takes the last."""
    state = tf.train.get_checkpoint_state(folder)
    known = [] if state is None else state.all_model_checkpoint_paths
    latest = os.path.basename(prefix)
    names = [os.path.relpath(path, folder) for path in known]
    lines = [f"model_checkpoint_path: {json.dumps(latest, ensure_ascii=False)}\n"]
    for name in [*(name for name in names if name != latest), latest]:
        lines.append(f"all_model_checkpoint_paths: {json.dumps(name, ensure_ascii=False)}\n")
    with tf.io.gfile.GFile(os.path.join(folder, "checkpoint"), "w") as file:
        file.write("".join(lines))


def _path_of(prefix: Any) -> str:
    """Return a path as text, or raise an error."""
    if not isinstance(prefix, (str, os.PathLike)):
        raise TypeError(f"Argument `prefix` must be a path. Received: {prefix!r}")
    return os.fspath(prefix)


def _existing(tf: Any, prefix: Any) -> str:
    """Return the path of a checkpoint, or of the latest in a folder; or raise an error."""
    path = _path_of(prefix)
    exists = tf.io.gfile.exists
    if tf.io.gfile.isdir(path):
        latest = tf.train.latest_checkpoint(path)
        if latest is None:
            raise FileNotFoundError(
                "Argument `prefix` must be the path of a checkpoint, or of a folder with a file "
                f"`checkpoint` that names one. Received: {path!r}{_there_are(tf, path)}"
            )
        path = latest
    if exists(path + ".index"):
        return path
    of_one_file = re.fullmatch(r"(.*)\.(index|meta|data-\d+-of-\d+)", path)
    if exists(path) and not of_one_file:
        return path  # the first format of all, in which a checkpoint is one file
    if of_one_file and exists(of_one_file[1] + ".index"):
        raise FileNotFoundError(
            "Argument `prefix` must be what the files of a checkpoint have in common: "
            f"{of_one_file[1]!r}. Received: {path!r}"
        )
    raise FileNotFoundError(
        "Argument `prefix` must be the path of a checkpoint, without `.index`. Received: "
        f"{path!r}, where there is none{_there_are(tf, os.path.dirname(path) or '.')}"
    )


def _there_are(tf: Any, folder: str) -> str:
    found = sorted(tf.io.gfile.glob(os.path.join(folder, "*.index")))
    names = [path.removesuffix(".index") for path in found]
    return f". There are: {names[:8]}" if names else ""


@contextlib.contextmanager
def _readable(tf: Any, prefix: str, what: str) -> Any:
    """Turn TensorFlow's errors of reading into one that names the file."""
    try:
        yield
    except (tf.errors.OpError, RuntimeError, ValueError, LookupError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(
            f"The checkpoint {prefix!r} is truncated or damaged: {what} cannot be read "
            f"({lines[0][:200]})"
        ) from error
