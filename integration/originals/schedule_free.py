"""Originals of Schedule-Free in the package of its authors and in optax."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

import keras_tfopt
from integration.originals.modern import DecayOfGradient


class _Rising(keras.optimizers.schedules.LearningRateSchedule):
    """The warm-up of the originals, whose first step has a learning rate already."""

    def __init__(self, rate: float, steps: int):
        self.rates = rate * np.arange(1, steps + 1) / steps

    def __call__(self, step: Any) -> Any:
        # Looked up, because backends divide whole numbers in float32.
        return ops.take(ops.convert_to_tensor(self.rates), ops.minimum(step, len(self.rates) - 1))


class _Rectified(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of RAdam, which is zero until the second moment can be trusted."""

    def __init__(self, rate: float, beta: float, steps: int = 1000):
        t = np.arange(1, steps + 1, dtype="float64")
        most = 2 / (1 - beta) - 1
        length = most - 2 * t * beta**t / (1 - beta**t)
        part = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
        self.rates = rate * np.where(length > 4, np.sqrt(np.maximum(part, 0)), 0)

    def __call__(self, step: Any) -> Any:
        return ops.take(ops.convert_to_tensor(self.rates), step)


def _rate(given: Mapping[str, Any], default: float) -> Any:
    rate, steps = given.get("learning_rate", default), given.get("warmup_steps", 0)
    return _Rising(rate, steps) if steps else rate


def _around(inner: Any, given: Mapping[str, Any], decay: float) -> Any:
    chosen = {name: given[name] for name in ("momentum", "r", "weight_lr_power") if name in given}
    return keras_tfopt.ScheduleFree(inner, weight_decay_at_y=decay, **chosen)


def _adam_w_around(given: Mapping[str, Any]) -> Any:
    decay, at_z = given.get("weight_decay", 0.0), given.get("decay_at_z", False)
    inner = keras_tfopt.NadamW(
        _rate(given, 0.0025),
        beta_1=0.0,
        beta_2=given.get("beta_2", 0.999),
        epsilon=given.get("epsilon", 1e-8),
        weight_decay=decay if at_z else 0.0,
    )
    return _around(inner, given, 0.0 if at_z else decay)


def _adam_w(given: Mapping[str, Any]) -> Any:
    if given.get("decay_at_z", False):
        return _adam_w_around({"momentum": given["beta_1"], **given})
    return keras_tfopt.ScheduleFreeAdamW(_rate(given, 0.0025), **_own(given))


def _r_adam(given: Mapping[str, Any]) -> Any:
    given = dict(given)
    if not given.pop("silent_sgd_phase", True):
        return _r_adam_around({"momentum": given.pop("beta_1", 0.9), **given})
    rate = _Rectified(given.get("learning_rate", 0.0025), given.get("beta_2", 0.999))
    return keras_tfopt.ScheduleFreeAdamW(rate, **_own(given))


def _r_adam_around(given: Mapping[str, Any]) -> Any:
    """RAdam inside, whose first steps are those of SGD where there are too few for moments."""
    inner = keras_tfopt.RectifiedAdam(
        _rate(given, 0.0025),
        beta_1=0.0,
        beta_2=given.get("beta_2", 0.999),
        epsilon=given.get("epsilon", 1e-8),
        sma_threshold=float(np.nextafter(4, 5)),
    )
    return _around(inner, given, given.get("weight_decay", 0.0))


def _sgd(given: Mapping[str, Any]) -> Any:
    return keras_tfopt.ScheduleFreeSGD(_rate(given, 1.0), **_own(given))


def _own(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that have a meaning here besides the learning rate."""
    others = ("learning_rate", "warmup_steps", "foreach", "decay_at_z")
    return {name: value for name, value in given.items() if name not in others}


def _of_torch(given: Mapping[str, Any]) -> Any:
    """An optimizer of PyTorch inside, which sees z as its variable."""
    config = given["base"]["config"]
    decay = config.get("weight_decay", 0.0)
    if given["base"]["class_name"] == "SGD":
        inner = keras_tfopt.Momentum(
            config["lr"], config.get("momentum", 0.0), nesterov=config.get("nesterov", False)
        )
        inner = DecayOfGradient(inner, decay) if decay else inner
    else:  # AdEMAMix without its slow average is Adam with epsilon added to the corrected root
        beta_1, beta_2 = config["betas"]
        inner = keras_tfopt.AdEMAMix(
            config["lr"], beta_1, beta_2, alpha=0.0, epsilon=1e-8, weight_decay=decay
        )
    return _around(inner, given, given.get("weight_decay_at_y", 0.0))


def _read(optimizer: Any, variable: Any, name: str, shape: Sequence[int]) -> Any:
    """Return a recorded slot. Where ours keeps no z and x, compute them from y, the variable."""
    if name not in ("z", "x") or isinstance(optimizer, keras_tfopt.ScheduleFree):
        return optimizer.slot(variable, _SLOTS.get(name, name))
    slots = ("share", "last_momentum", "lead")
    share, momentum, lead = (ops.convert_to_tensor(optimizer.slot(variable, n)) for n in slots)
    along = momentum if name == "z" else momentum - 1
    return variable + along * (1 - share) * lead


_TORCH = {
    "lr": "learning_rate",
    "beta1": "beta_1",
    "beta2": "beta_2",
    "eps": "epsilon",
    "foreach": "foreach",  # without meaning here
}
_SLOTS = {"exp_avg": "m", "exp_avg_sq": "v", "base.nu": "v", "momentum_buffer": "momentum"}
_ADAM_W: dict[str, Any] = {
    "ours": "ScheduleFreeAdamW",
    "read": _read,
    "arguments": _TORCH,
    "make": _adam_w,
    "other_defaults": {"decay_at_z": False, "warmup_steps": 0, "foreach": False},
}

SCHEDULE_FREE: dict[str, dict[str, Any]] = {
    "schedulefree.AdamWScheduleFreeReference": _ADAM_W,
    "schedulefree.AdamWScheduleFree": _ADAM_W,
    "schedulefree.RAdamScheduleFree": {
        **_ADAM_W,
        "arguments": {**_TORCH, "silent_sgd_phase": "silent_sgd_phase"},
        "make": _r_adam,
        "other_defaults": {"silent_sgd_phase": True, "foreach": False},
    },
    "schedulefree.SGDScheduleFreeReference": {
        "ours": "ScheduleFreeSGD",
        "read": _read,
        "arguments": _TORCH,
        "make": _sgd,
        "other_defaults": {"warmup_steps": 0, "foreach": True},
    },
    "schedulefree.ScheduleFreeWrapperReference": {
        "ours": "ScheduleFree",
        "slots": _SLOTS,
        "recipes": ("base",),
        "make": _of_torch,
    },
    "optax.contrib.schedule_free_adamw": {
        "ours": "ScheduleFree",
        "slots": _SLOTS,
        "arguments": {"b1": "momentum", "b2": "beta_2", "eps": "epsilon", "state_dtype": None},
        "make": _adam_w_around,
        "other_defaults": {"eps": 1e-8, "state_dtype": None, "warmup_steps": None},
    },
}
