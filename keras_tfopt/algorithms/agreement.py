"""What AddSign and PowerSign share."""

from __future__ import annotations

from typing import Any

from keras_tfopt.algorithm import check_hyperparameter


def check_sign_decay(value: Any) -> Any:
    """Returns `value`, or raises an error if it is neither None nor a hyperparameter in [0, 1]."""
    if value is None:
        return None
    return check_hyperparameter("sign_decay", value, 0, 1)
