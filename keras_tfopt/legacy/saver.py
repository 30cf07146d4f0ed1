"""Savers that write averages under the names of the variables."""

from __future__ import annotations

import functools
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_tfopt.engine import array_of, dtype_of, path_of
from keras_tfopt.legacy.checkpoints.files import CheckpointFile, write_checkpoint
from keras_tfopt.legacy.checkpoints.names import AVERAGE
from keras_tfopt.legacy.checkpoints.saving import Written, written

ARCHIVE = ".npz"

# Arguments of `tf.train.Saver` other than variables.
_OF_SAVER = frozenset(
    "reshape sharded max_to_keep keep_checkpoint_every_n_hours restore_sequentially saver_def "
    "builder defer_build allow_empty write_version pad_step_number save_relative_paths "
    "filename".split()
)


def check_saver_arguments(given: Mapping[str, Any]) -> None:
    """Raise an error for arguments that no saver takes."""
    unknown = sorted(set(given) - _OF_SAVER)
    if unknown:
        raise TypeError(f"`swapping_saver` has no arguments {unknown}")


def check_moved(moved: Sequence[Any], missing: str = "are no averages") -> None:
    """Raise an error if there is nothing to swap, as before the first step."""
    if not moved:
        raise RuntimeError(
            f"There {missing} yet: call `apply_gradients` or `minimize` before `swapping_saver`"
        )


class SwappingSaver:
    """Save averages under the names of the variables, and restore both.

    A program for evaluation then reads averages by the usual names. The trained values are saved
    under the name of the variable and a suffix, such as `/ExponentialMovingAverage`.

    A path that ends with `.npz` is a NumPy archive with an array for each name. Any other path is
    the prefix of a checkpoint of `tf.train.Saver`, which needs TensorFlow.

    Args:
        var_list: Variables to save, a list or a dictionary of them by name. None is `moved`.
        moved: The variables that have averages.
        average_of: Function that returns the average of a variable, or None if it has none.
        name: Name of the saver.
        optimizer: An optimizer, or None. Its whole state is written into a checkpoint if `var_list`
            is None. Only `load_checkpoint(..., swapped=True)` restores it.
        suffix: Suffix of the names of trained values.
        averages: Name of the averages in errors.

    Raises:
        ValueError: if a variable has no average.
    """

    def __init__(
        self,
        var_list: Any,
        moved: Sequence[Any],
        average_of: Callable[[Any], Any],
        name: str,
        optimizer: Any = None,
        suffix: str = AVERAGE,
        averages: str = "averages",
    ):
        self.name = name
        self._optimizer = optimizer if var_list is None else None
        var_list = moved if var_list is None else var_list
        if not isinstance(var_list, Mapping):
            var_list = {path_of(variable): variable for variable in var_list}
        self._trained = list(var_list.values())
        # Variables and their data types in the file, by their names there.
        self._saved = {}
        for key, variable in var_list.items():
            average = average_of(variable)
            if average is None:
                raise ValueError(
                    f"Argument `var_list` must hold variables that have {averages}. Received: "
                    f"{path_of(variable)!r}, which no step has moved"
                )
            self._saved[key] = average, dtype_of(variable)
            self._saved[f"{key}/{suffix}"] = variable, dtype_of(variable)

    def save(self, sess: None, save_path: str, global_step: Any = None) -> str:
        """Write the file and return its path.

        Args:
            sess: None: there are no sessions.
            save_path: Prefix of the checkpoint, or path of an `.npz` file.
            global_step: Number or variable, which is appended to the path.
        """
        _check_session(sess)
        path, archive = _split(save_path)
        if global_step is not None:
            path = f"{path}-{int(ops.convert_to_numpy(global_step))}"
        if not archive:
            return write_checkpoint(path, self._contents())
        arrays = {name: _array(variable) for name, (variable, _) in self._saved.items()}
        with open(path + ARCHIVE, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        return path + ARCHIVE

    def _contents(self) -> list[Any]:
        found = {
            name: Written(name, dtype, functools.partial(array_of, variable))
            for name, (variable, dtype) in self._saved.items()
        }
        if self._optimizer is not None:
            for one in written(self._trained, self._optimizer, swapped=True):
                found.setdefault(one.name, one)
        return [found[name] for name in sorted(found)]

    def restore(self, sess: None, save_path: str) -> None:
        """Read variables and averages back.

        Raises:
            ValueError: if the file lacks an array or has one of another shape; nothing has been
                changed then.
        """
        _check_session(sess)
        path, archive = _split(save_path)
        if archive:
            found = _read(path + ARCHIVE)
            shapes = {name: array.shape for name, array in found.items()}
        else:
            checkpoint = CheckpointFile(path)
            shapes = {name: content.shape for name, content in checkpoint.contents.items()}
        for name, (variable, _) in self._saved.items():
            shape = shapes.get(name)
            if shape != tuple(variable.shape):
                raise ValueError(
                    f"{save_path} must hold an array {name!r} of shape {tuple(variable.shape)}. "
                    f"Found: {'none' if shape is None else f'one of shape {shape}'}"
                )
        if not archive:
            found = {name: checkpoint.read(name) for name in self._saved}
        for name, (variable, _) in self._saved.items():
            variable.assign(ops.cast(found[name], variable.dtype))


def _read(path: str) -> dict[str, Any]:
    """Read the arrays of an archive; pickled objects are refused."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} must be an archive of arrays, and is not or is damaged: {error}"
        ) from error


def _split(path: str) -> tuple[str, bool]:
    """Return a path without `.npz`, and whether it had that."""
    path = os.fspath(path)
    return path.removesuffix(ARCHIVE), path.endswith(ARCHIVE)


def _array(variable: Any) -> np.ndarray:
    value = array_of(variable)
    return value.astype("float32") if value.dtype == "float16" else value


def _check_session(sess: Any) -> None:
    if sess is not None:
        raise ValueError(f"Argument `sess` must be None: there are no sessions. Received: {sess!r}")
