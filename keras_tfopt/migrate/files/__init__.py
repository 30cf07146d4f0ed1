"""Read files of other programs: one module for the files of each program."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

from keras_tfopt.migrate.files import arrays, hdf5, keras3, tensorflow, torch
from keras_tfopt.migrate.saved import FileError, Saved

_TORCH = (".pt", ".pth", ".bin", ".ckpt", ".tar")
_KINDS = (
    "a .keras, .weights.h5, .weights.json or .h5 file of Keras, a SavedModel folder, a checkpoint "
    "of TensorFlow (its path up to .index), a file of torch.save, or an .npz of an optax state"
)


def read(path: Any, optimizer: Any, variables: list[Any], weights_only: bool, name: Any) -> Saved:
    """Return the optimizer's state in a file, after finding out which program wrote it."""
    if isinstance(path, dict):  # what torch.load returned
        return torch.state_of(path, "the dictionary")
    try:
        path = Path(path)
    except TypeError:
        raise TypeError(
            f"Argument `file` must be a path or an `optimizer.state_dict()`. Received: {path!r}"
        ) from None
    text = str(path)
    if path.is_dir():
        return tensorflow.read_folder(path, name)
    if text.endswith(".index"):
        path = Path(text.removesuffix(".index"))
    if Path(f"{path}.index").exists():
        return tensorflow.read(path, name)
    if not path.exists():
        raise FileNotFoundError(f"Argument `file` must be {_KINDS}. There is nothing at {path}")
    if text.endswith((".keras", ".weights.h5", ".weights.json")):
        return keras3.read(path, optimizer, variables)
    if hdf5.is_hdf5(path):
        return hdf5.read(path, optimizer, variables)
    if path.suffix == ".npz":
        return arrays.read(path)
    if path.suffix in _TORCH or zipfile.is_zipfile(path):
        return torch.read(path, weights_only)
    raise FileError(f"Argument `file` must be {_KINDS}. {path} is none of these, or is damaged")
