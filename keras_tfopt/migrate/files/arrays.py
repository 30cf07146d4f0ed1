"""Read states of optax that were saved as named arrays."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import numpy as np

from keras_tfopt.migrate.saved import FileError, Saved, Tensor
from keras_tfopt.migrate.sources import SOURCES

_OPTAX = SOURCES["optax"]
_FIELDS = tuple(dict.fromkeys(field for source in _OPTAX.values() for field in source.slots))
# The optimizers, by the fields of their states.
_CLASSES = {frozenset(source.slots): name for name, source in _OPTAX.items()}


def read(path: Path) -> Saved:
    """Return the state in an .npz file whose names are paths: `[0].mu['dense']['kernel']`."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise FileError(f"{path} is damaged, or holds more than arrays: {error}") from error
    tensors, counts = [], set()
    for name, array in arrays.items():
        words = re.findall(r"\w+", name)
        if words and words[-1] == "count" and array.shape == ():
            counts.add(int(array))
            continue
        fields = [place for place, word in enumerate(words) if word in _FIELDS]
        if not fields:
            raise FileError(
                f"{path}: {name!r} is no part of an optax state that is known. Known are `count` "
                f"and {_FIELDS}, in names as `jax.tree_util.keystr` makes them"
            )
        rest = words[fields[0] + 1 :]
        only_number = len(rest) == 1 and rest[0].isdigit()
        variable = int(rest[0]) if only_number else "/".join(rest)
        tensors.append(Tensor(name, array, words[fields[0]], variable))
    slots = frozenset(tensor.slot for tensor in tensors)
    cls = _CLASSES.get(slots)
    if cls is None or len(counts) > 1:
        raise FileError(
            f"{path} has {sorted(slots)} and the counts {sorted(counts)}, which is the state of "
            f"none of optax's {sorted(_CLASSES.values())}"
        )
    return Saved("optax", cls, tensors, counts.pop() if counts else None)
