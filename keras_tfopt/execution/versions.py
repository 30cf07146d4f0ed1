"""What not every supported version of Keras has."""

from __future__ import annotations

from typing import Any

import keras


def is_before(major: int, minor: int) -> bool:
    """Whether the installed Keras is older than this version."""
    return tuple(int(part) for part in keras.__version__.split(".")[:2]) < (major, minor)


def is_multi_optimizer(optimizer: Any) -> bool:
    """Whether this is Keras's optimizer of several, which there is since Keras 3.15."""
    cls = getattr(keras.optimizers, "MultiOptimizer", None)
    return cls is not None and isinstance(optimizer, cls)
