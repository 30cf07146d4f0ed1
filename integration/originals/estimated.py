"""Originals that estimate their learning rate, of all variables: rows of `originals.ORIGINALS`."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops

import keras_tfopt
from integration.originals.modern import DecayOfGradient
from keras_tfopt.engine import access
from keras_tfopt.engine.step import slicing


def _prodigy(given: Mapping[str, Any]) -> Any:
    """Infinity is no limit of growth there; here that is None."""
    given = dict(given)
    given["growth_rate"] = None if math.isinf(float(given["growth_rate"])) else given["growth_rate"]
    if given.pop("decoupled") or not given["weight_decay"]:
        return keras_tfopt.Prodigy(**given)
    decay = given.pop("weight_decay")
    return DecayOfGradient(keras_tfopt.Prodigy(**given), decay)


def _part(optimizer: Any, variable: Any, name: str, shape: Sequence[int]) -> Any:
    """Return the entries of one variable in a slot that is laid out over all variables."""
    name = {"exp_avg": "m", "exp_avg_sq": "v", "grad_sum": "s"}.get(name, name)
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    every = getattr(optimizer, "slice_p", 1) if name == "s" else 1
    start = 0
    for trained in access.variables_of(optimizer):
        end = start + slicing.count(math.prod(trained.shape), every)
        if trained is variable:
            break
        start = end
    flat = ops.convert_to_numpy(optimizer.slot(None, name))
    return np.reshape(flat[start:end], shape)


def _number(name: str) -> Callable[..., Any]:
    def read(optimizer: Any, gradients: Sequence[Any]) -> Any:
        return getattr(optimizer, "inner_optimizer", optimizer).slot(None, name)

    return read


_ARGUMENTS = {
    "beta1": "beta_1",
    "beta2": "beta_2",
    "beta3": "beta_3",
    "eps": "epsilon",
}
_OF_OPTAX = {**_ARGUMENTS, "estim_lr0": "d0", "estim_lr_coef": "d_coef"}
_EXTRAS_OF_OPTAX = {"estim_lr": _number("d"), "numerator_weighted": _number("d_numerator")}

ESTIMATED: dict[str, dict[str, Any]] = {
    "prodigyopt.Prodigy": {
        "ours": "Prodigy",
        "arguments": {
            **_ARGUMENTS,
            "lr": "learning_rate",
            "decouple": "decoupled",
            "fsdp_in_use": None,
        },
        "other_defaults": {"weight_decay": 0, "decouple": True, "growth_rate": "inf"},
        "extras": {name: _number(name) for name in ("d", "d_numerator")},
        "read": _part,
        "make": _prodigy,
        "deviations": {
            "without momentum, the original's step has the new estimate, ours the old one": (
                lambda case: case.entry["kwargs"].get("beta1") == 0
            ),
        },
    },
    "optax.contrib.prodigy": {
        "ours": "Prodigy",
        "arguments": _OF_OPTAX,
        "extras": _EXTRAS_OF_OPTAX,
        "other_defaults": {"weight_decay": 0.0},
        "read": _part,
        "make": lambda given: keras_tfopt.Prodigy(use_bias_correction=True, **given),
    },
    "optax.contrib.dadapt_adamw": {
        "ours": "DAdaptAdam",
        "arguments": _OF_OPTAX,
        "extras": _EXTRAS_OF_OPTAX,
        "other_defaults": {"weight_decay": 0.0},
        "read": _part,
    },
}
