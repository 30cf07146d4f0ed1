"""Originals of TensorFlow Addons: rows of `originals.ORIGINALS`. Inside are rules of Keras 2."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras

import keras_tfopt
from integration.originals import keras2

_BETAS = {"beta1": "beta_1", "beta2": "beta_2"}
DECAYED = {"decay_var_list": "decay_variables"}
ROWS_DO_NOT_DECAY = "the original does not decay rows of plain gradient descent, ours does"

# What Keras 2 calls its optimizers, and what has their formula here.
KERAS2: dict[str, Callable[..., Any]] = {
    "Adadelta": functools.partial(keras_tfopt.Adadelta, epsilon=1e-7),
    "Adagrad": keras_tfopt.Adagrad,  # Keras adds 1e-7 to a root that is 0.3 at least
    "Adam": functools.partial(keras_tfopt.Adam, epsilon=1e-7),
    "Adamax": functools.partial(keras_tfopt.AdaMax, epsilon=1e-7),
    "Nadam": keras2.Nadam,
    "RMSprop": keras2.RMSprop,
    "RectifiedAdam": keras_tfopt.RectifiedAdam,
    "SGD": keras2.SGD,
}
_AROUND = {"optimizer": "inner_optimizer"}
COUNT: dict[str, Any] = {"global_step": "iterations"}


def _addon(ours: str, **other: Any) -> dict[str, Any]:
    """Return the entry of a rule of TensorFlow Addons, whose rate may fall by `decay`."""

    def make(given: Mapping[str, Any]) -> Any:
        given = dict(given)
        cls = getattr(keras_tfopt, ours)
        if "decay" in given:
            schedule = keras.optimizers.schedules.InverseTimeDecay
            given["learning_rate"] = schedule(given["learning_rate"], 1, given.pop("decay"))
        exempt = given.pop("exclude_from_weight_decay", None)
        optimizer = cls(**given)
        if exempt:
            optimizer.exclude_from_weight_decay(var_names=exempt)
        return optimizer

    return {"ours": ours, "make": make, **COUNT, **other}


def _adam_w(given: Mapping[str, Any]) -> Any:
    return keras_tfopt.AdamW(**{"epsilon": 1e-7, **_chosen(given)})


def decayed(make: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    given = _chosen(given)
    own = {name: given.pop(name) for name in ("weight_decay", "decay_variables") if name in given}
    return keras_tfopt.DecoupledWeightDecay(make(**given), **own)


def _chosen(given: Mapping[str, Any]) -> dict[str, Any]:
    """With the variables that decay instead of those that do not, which count for less."""
    given = dict(given)
    excluded = given.pop("exclude_from_weight_decay", None)
    if excluded:
        given.setdefault("decay_variables", f"^(?!.*(?:{'|'.join(excluded)}))")
    return given


ADDONS: dict[str, dict[str, Any]] = {
    "AdaBelief": _addon("AdaBelief"),
    "COCOB": _addon("COCOB", slots={"lr": "largest"}),
    "ConditionalGradient": _addon("ConditionalGradient", unused=("conditional_gradient",)),
    "LAMB": _addon("LAMB"),
    "LazyAdam": _addon("LazyAdam", defaults={"epsilon": 1e-7}, other_defaults={"epsilon": 1e-7}),
    "NovoGrad": _addon("NovoGrad", repeated=("vhat",)),
    "ProximalAdagrad": _addon("ProximalAdagrad"),
    "RectifiedAdam": _addon("RectifiedAdam"),
    "Yogi": _addon("Yogi", arguments=_BETAS),
    "AdamW": {"ours": "AdamW", "make": _adam_w, "selects": DECAYED, **COUNT},
    "SGDW": {
        "ours": "SGDW",
        "make": lambda given: keras_tfopt.SGDW(**_chosen(given)),
        "selects": DECAYED,
        "deviations": {
            ROWS_DO_NOT_DECAY: lambda case: case.sparse and "momentum" not in case.entry["kwargs"]
        },
        **COUNT,
    },
    "Lookahead": {"ours": "Lookahead", "arguments": _AROUND, **COUNT},
    "MovingAverage": {
        "ours": "MovingAverage",
        "arguments": _AROUND,
        "other_defaults": {"average_decay": 0.99},
        **COUNT,
    },
    "SWA": {"ours": "StochasticWeightAveraging", "arguments": _AROUND, **COUNT},
}
