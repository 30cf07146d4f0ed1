"""Check the option `shard_state`."""

from __future__ import annotations

import warnings
from typing import Any

from keras_tfopt.engine.backends.select import backend


def check_shard_state(optimizer: Any) -> None:
    """Raise an error if state cannot be in shards; only warn if the optimizer was loaded."""
    problem = backend.sharding_problem() if optimizer.shard_state else None
    if problem is None:
        return
    text = f"{type(optimizer).__name__} has `shard_state=True`, but {problem}"
    if not optimizer.is_loaded:
        raise ValueError(f"{text}. Or leave `shard_state` out. Received: shard_state=True")
    warnings.warn(f"{text}. It was loaded so, and keeps its state whole", stacklevel=4)
