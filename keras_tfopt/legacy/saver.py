"""Files in which averages stand under the names of the variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

TRAINED = "/ExponentialMovingAverage"


class SwappingSaver:
    """Saves moving averages under the names of the variables, and restores both.

    The trained values go under the name of the variable with `/ExponentialMovingAverage` behind it,
    so that a program for evaluation, which knows nothing of averages, reads averages. The file is a
    NumPy archive, `.npz`, with an array for each name.

    Args:
        swapped: By name, a variable and its average.
        name: Name of the saver.
    """

    def __init__(self, swapped: Mapping[str, tuple[Any, Any]], name: str):
        self.name = name
        self._swapped = dict(swapped)

    def save(self, sess: None, save_path: str, global_step: Any = None) -> str:
        """Writes the file and gives its path.

        Args:
            sess: None: there are no sessions.
            save_path: Path of the file; `.npz` is added where it is missing.
            global_step: Number, or variable, to put behind the path.
        """
        _check_session(sess)
        if global_step is not None:
            save_path = f"{save_path}-{int(ops.convert_to_numpy(global_step))}"
        arrays = {}
        for name, (variable, average) in self._swapped.items():
            arrays[name] = _array(average)
            arrays[name + TRAINED] = _array(variable)
        path = _file(save_path)
        with open(path, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        return path

    def restore(self, sess: None, save_path: str) -> None:
        """Reads variables and averages back.

        Raises:
            ValueError: if the file lacks an array or has one of another shape; nothing has been
                changed then.
        """
        _check_session(sess)
        with np.load(_file(save_path)) as file:
            arrays = dict(file)
        wanted = []
        for name, (variable, average) in self._swapped.items():
            wanted += [(name, average), (name + TRAINED, variable)]
        for name, variable in wanted:
            shape = arrays[name].shape if name in arrays else None
            if shape != tuple(variable.shape):
                raise ValueError(
                    f"{save_path} must hold an array {name!r} of shape {tuple(variable.shape)}. "
                    f"Found: {'none' if shape is None else f'one of shape {shape}'}"
                )
        for name, variable in wanted:
            variable.assign(ops.cast(arrays[name], variable.dtype))


def _file(path: str) -> str:
    path = os.fspath(path)
    return path if path.endswith(".npz") else f"{path}.npz"


def _array(variable: Any) -> np.ndarray:
    value = ops.convert_to_tensor(variable)
    if keras.backend.standardize_dtype(value.dtype) in ("bfloat16", "float16"):
        value = ops.cast(value, "float32")  # NumPy has no bfloat16
    return np.array(ops.convert_to_numpy(value))


def _check_session(sess: Any) -> None:
    if sess is not None:
        raise ValueError(f"Argument `sess` must be None: there are no sessions. Received: {sess!r}")
