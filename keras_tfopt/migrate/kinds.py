"""Optimizers of Keras as data: their arguments, their state, and our rule with the same steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras

from keras_tfopt import rules as tfopt
from keras_tfopt.migrate import rules


@dataclasses.dataclass(frozen=True)
class Kind:
    """An optimizer of Keras.

    Attributes:
        ours: The class that takes the same steps.
        slots: The names of its state, and ours.
        arguments: Its own arguments, which have the same names in ours.
    """

    ours: Any
    slots: Mapping[str, str]
    arguments: tuple[str, ...]


def is_of_keras(optimizer: Any) -> bool:
    """Return whether this is an optimizer of Keras itself, not of a class derived from one."""
    is_optimizer = isinstance(optimizer, keras.optimizers.Optimizer)
    return is_optimizer and type(optimizer).__module__.startswith("keras.")


_MOMENTS = {"momentum": "m", "velocity": "v"}
_ADAM = ("beta_1", "beta_2", "epsilon")

KINDS = {
    "SGD": Kind(rules.SGD, {"momentum": "momentum"}, ("momentum", "nesterov")),
    "RMSprop": Kind(
        rules.RMSprop,
        {"velocity": "rms", "momentum": "momentum", "average_gradient": "mg"},
        ("rho", "momentum", "epsilon", "centered"),
    ),
    "Adagrad": Kind(
        rules.Adagrad, {"accumulator": "accumulator"}, ("initial_accumulator_value", "epsilon")
    ),
    "Adadelta": Kind(
        rules.Adadelta,
        {"accumulated_grad": "accum", "accumulated_delta_var": "accum_update"},
        ("rho", "epsilon"),
    ),
    "Adam": Kind(tfopt.Adam, {**_MOMENTS, "velocity_hat": "vhat"}, (*_ADAM, "amsgrad")),
    "AdamW": Kind(tfopt.Adam, {**_MOMENTS, "velocity_hat": "vhat"}, (*_ADAM, "amsgrad")),
    "Adamax": Kind(rules.Adamax, {"momentum": "m", "norm": "v"}, _ADAM),
    "Nadam": Kind(rules.Nadam, _MOMENTS, _ADAM),
    "Ftrl": Kind(
        rules.Ftrl,
        {"accumulator": "accum", "linear": "linear"},
        (
            "learning_rate_power",
            "initial_accumulator_value",
            "l1_regularization_strength",
            "l2_regularization_strength",
            "l2_shrinkage_regularization_strength",
            "beta",
        ),
    ),
    "Lion": Kind(rules.Lion, {"momentum": "m"}, ("beta_1", "beta_2")),
    "Lamb": Kind(tfopt.LAMB, _MOMENTS, _ADAM),
}

# Why no rule of ours takes the steps of other optimizers: the text after "because" in the error.
DIFFERENT = {
    "Adafactor": "it factors the last two axes of every variable that has two, and lets the "
    "learning rate fall with the root of the step by itself, which keras_tfopt.Adafactor does "
    "otherwise",
    "Muon": "it has an Adam with arguments of its own for variables that are no matrices, and a "
    "momentum that is not averaged, where keras_tfopt.Muon has a rule as `others` and an average",
    "MultiOptimizer": "it holds several optimizers; convert these",
    "ScheduleFreeAdamW": "it keeps one sequence besides the variables and evaluates at the other, "
    "where keras_tfopt.ScheduleFreeAdamW keeps both and evaluates at the average",
}
