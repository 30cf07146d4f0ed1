"""Find names of other packages in programs, and what replaces them."""

from __future__ import annotations

import re
from typing import NamedTuple

from keras_tfopt import rules
from keras_tfopt.addons.table import NAMES as ADDONS
from keras_tfopt.legacy.table import NAMES, TABLE

_KERAS = r"(?:tensorflow(?:\.compat\.v[12]|\.python)?\.keras|keras)"
_TENSORFLOW = r"tensorflow(?:\.compat\.v1)?"
_OPTIMIZERS = rf"(?:{_KERAS}|tensorflow(?:\.compat\.v2)?)\.optimizers"
_V2 = rf"{_KERAS}(?:\.optimizers)?\.optimizer_v2"  # where the legacy classes were before
# Modules of classes may stand between.
_LEGACY = re.compile(rf"^(?:{_OPTIMIZERS}\.legacy\.(?:\w+\.)?|{_V2}\.\w+\.)(\w+)$")
_STOCK = re.compile(rf"^({_OPTIMIZERS})((?:\.\w+)*)\.(\w+)$")
_SCHEDULE = re.compile(rf"^(?:{_KERAS}\.experimental|{_V2}\.learning_rate_schedule)\.(\w+)$")
_ADDONS = re.compile(r"^tensorflow_addons\.(?:optimizers(?:\.\w+)*|callbacks)\.(\w+)$")
_TF1 = re.compile(
    rf"^(?:{_TENSORFLOW}\.(?:train|contrib\.opt(?:\.\w+)*)|tensorflow\.python\.training\.\w+)\.(\w+)$"
)

# The optimizers of Keras 2, each with the number of positional arguments that mean the same in all
# versions of Keras 2 and in Keras 3.
POSITIONAL = {
    "SGD": 2,
    "RMSprop": 2,
    "Adagrad": 1,
    "Adadelta": 2,
    "Adam": 4,
    "AdamW": 1,
    "Adamax": 4,
    "Nadam": 4,
    "Ftrl": 5,
    "Lion": 3,
    "Adafactor": 1,
}
# Default learning rates of Keras 2 that are not 0.001. In Keras 3, that of Lion is 0.001.
RATES = {"SGD": "0.01", "Lion": "0.0001"}
# What replaces the legacy classes, with the arguments that make ours do the same.
LEGACY_CLASSES: dict[str, tuple[str, dict[str, str]]] = {
    "SGD": ("keras_tfopt.migrate.SGD", {}),
    "RMSprop": ("keras_tfopt.migrate.RMSprop", {"epsilon_in_root": "False"}),
    "Adagrad": ("keras_tfopt.migrate.Adagrad", {"epsilon_in_root": "False"}),
    "Adadelta": ("keras_tfopt.migrate.Adadelta", {}),
    "Adam": ("keras_tfopt.Adam", {"epsilon": "1e-7"}),
    "Adamax": ("keras_tfopt.migrate.Adamax", {}),
    "Nadam": ("keras_tfopt.migrate.Nadam", {"momentum_decay": "0.004"}),
    "Ftrl": ("keras_tfopt.migrate.Ftrl", {}),
}
# Classes of TensorFlow 1 that are a rule with decay.
DECAYING = {"AdamWOptimizer": "AdamW", "MomentumWOptimizer": "MomentumW"}
# Arguments that Keras 3 does not have.
DROPPED = ("jit_compile", "is_legacy_optimizer", "use_locking")
_RATES_OF_TF1 = {
    "cosine_decay": "CosineDecay",
    "cosine_decay_restarts": "CosineDecayRestarts",
    "exponential_decay": "ExponentialDecay",
    "inverse_time_decay": "InverseTimeDecay",
    "piecewise_constant": "PiecewiseConstantDecay",
    "piecewise_constant_decay": "PiecewiseConstantDecay",
    "polynomial_decay": "PolynomialDecay",
}
_SCHEDULES = (*_RATES_OF_TF1.values(), "LearningRateSchedule")
_RATES_WITHOUT_KERAS = ("linear_cosine_decay", "natural_exp_decay", "noisy_linear_cosine_decay")
_NO_SCHEDULE = "Keras 3 has no such schedule: write a function of the step for keras_tfopt"
# What to do about names of TensorFlow 1 that are gone.
_INSTEAD = {
    "contrib.estimator.clip_gradients_by_norm": "clip what `compute_gradients` returns by "
    "tf.clip_by_global_norm, or give an optimizer of keras_tfopt a `global_clipnorm`",
    "contrib.layers.optimize_loss": "make an optimizer and call its `minimize`",
    "contrib.tpu.CrossShardOptimizer": "leave it out: strategies of TensorFlow sum gradients",
    "tpu.CrossShardOptimizer": "leave it out: strategies of TensorFlow sum gradients",
}
_SESSIONS = re.compile(rf"^{_TENSORFLOW}\.(?:train\.Monitored\w*)?Session$")


class Found(NamedTuple):
    """A name of another package in a program.

    Attributes:
        family: "keras", "legacy", "addons", "tf1", or "schedule" and "function" for what is no
            optimizer.
        name: Its last part, as Keras 3 writes it.
        new: The dotted name that replaces it; None if it stays.
    """

    family: str
    name: str
    new: str | None


def find(name: str, has_verbs: bool) -> Found | None:
    """Return what replaces a full name, or None if it has nothing to do with optimizers.

    Args:
        name: As imported: `"tensorflow.keras.optimizers.Adam"`.
        has_verbs: Whether the program calls `minimize` and other methods of TensorFlow 1.
    """
    if (match := _SCHEDULE.match(name)) and match[1] in _SCHEDULES:
        return Found("schedule", match[1], f"keras.optimizers.schedules.{match[1]}")
    if match := _LEGACY.match(name):
        if match[1] in LEGACY_CLASSES:
            return Found("legacy", match[1], LEGACY_CLASSES[match[1]][0])
        return None
    if (match := _ADDONS.match(name)) and match[1] in ADDONS:
        return Found("addons", match[1], f"keras_tfopt.addons.{match[1]}")
    match = _TF1.match(name)
    if match and match[1] in TABLE:
        return Found("tf1", match[1], _in_place_of_tf1(match[1], has_verbs))
    if match and match[1] in NAMES and ".contrib." in name:
        return Found("function", match[1], f"keras_tfopt.legacy.{match[1]}")
    if match := _STOCK.match(name):
        known = {stock.lower(): stock for stock in POSITIONAL}
        stock = known.get(match[3].lower())
        if stock is None or match[2].startswith(".schedules"):
            return None
        plain = match[1] in ("keras.optimizers", "tensorflow.keras.optimizers")
        stays = plain and not match[2] and match[3] == stock
        return Found("keras", stock, None if stays else f"keras.optimizers.{stock}")
    return None


def is_base_class(name: str) -> bool:
    """Return whether it is the class that optimizers of Keras derive from."""
    match = _STOCK.match(name)
    return match is not None and match[3] == "Optimizer"


def is_session(name: str) -> bool:
    """Return whether it is a class of sessions of TensorFlow 1."""
    return _SESSIONS.match(name) is not None


def advice(name: str, has_verbs: bool) -> str | None:
    """Return what to do about a name that cannot be rewritten, or None."""
    if name == "tensorflow.train.Optimizer":
        return (
            "in TensorFlow 2 this is tf.compat.v1.train.Optimizer; keras_tfopt.legacy.Optimizer is "
            "the base of those here. Write optimizers of your own as a keras_tfopt.Rule"
        )
    if re.match(r"^tensorflow\.contrib\.opt\.\w+$", name):
        return "`tf.contrib` is gone, and keras_tfopt.legacy has nothing of this name"
    if ".mixed_precision.experimental." in name:
        return "write keras.mixed_precision, or keras_tfopt.LossScaleOptimizer around the optimizer"
    if is_session(name):
        return "sessions stay as they are: keras_tfopt.legacy works in graphs of TensorFlow"
    if (match := re.match(rf"^{_TENSORFLOW}\.(.+)$", name)) and match[1] in _INSTEAD:
        return _INSTEAD[match[1]]
    match = re.match(rf"^{_TENSORFLOW}\.train\.(\w+)$", name)
    if match and match[1] in _RATES_OF_TF1 and not has_verbs:
        schedule = _RATES_OF_TF1[match[1]]
        return f"write keras.optimizers.schedules.{schedule}, which counts the steps by itself"
    if match and match[1] in _RATES_WITHOUT_KERAS and not has_verbs:
        return _NO_SCHEDULE
    if match and match[1] == "Saver" and not has_verbs:
        return "keras_tfopt.legacy.load_checkpoint reads its files into models of Keras"
    if (match := _LEGACY.match(name)) and match[1][0].isupper():
        return f"Keras 3 has no `legacy.{match[1]}`: write a keras_tfopt.Rule in its place"
    if (match := _ADDONS.match(name)) and match[1] not in ADDONS:
        return f"keras_tfopt.addons has no {match[1]!r}"
    if _SCHEDULE.match(name) and "Linear" in name:
        return _NO_SCHEDULE
    return None


def _in_place_of_tf1(name: str, has_verbs: bool) -> str | None:
    row = TABLE[name]
    if has_verbs:
        return f"keras_tfopt.legacy.{name}"
    if name in DECAYING:
        return f"keras_tfopt.{DECAYING[name]}"
    # Rules have the same defaults here. `global_step` needs the verbs.
    is_rule = row.verbs in ("rule", "ftrl", "layer rates") and hasattr(rules, row.ours)
    return f"keras_tfopt.{row.ours}" if is_rule and "global_step" not in row.arguments else None
