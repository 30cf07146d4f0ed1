"""What AddSign and PowerSign share."""

from __future__ import annotations

from typing import Any

from keras_tfopt.checks import check_hyperparameter


def check_sign_decay(name: str, value: Any) -> Any:
    """Return `value`, or raise an error if it is neither None nor a hyperparameter in [0, 1]."""
    if value is None:
        return None
    return check_hyperparameter(name, value, 0, 1)
