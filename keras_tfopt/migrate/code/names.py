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
_LEGACY = rf"(?:{_OPTIMIZERS}\.legacy\.(?:\w+\.)?|{_V2}\.\w+\.)"  # a module may stand between
_STOCK = rf"({_OPTIMIZERS})((?:\.\w+)*)\.(\w+)"
_SCHEDULES = rf"(?:{_KERAS}\.experimental|{_V2}\.learning_rate_schedule)\."
_ADDONS = r"tensorflow_addons\.(?:optimizers(?:\.\w+)*|callbacks)\.(\w+)"
_TF1 = (
    rf"(?:{_TENSORFLOW}\.(?:train|contrib\.opt(?:\.\w+)*)|tensorflow\.python\.training\.\w+)\.(\w+)"
)
_SESSION_ALONE = r"(?:train\.Monitored\w*)?Session"
_SESSION = rf"{_TENSORFLOW}\.{_SESSION_ALONE}"

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
_TRAIN = rf"{_TENSORFLOW}\.train"
_NO_SCHEDULE = "Keras 3 has no such schedule: write a function of the step for keras_tfopt"
# What to do about names that cannot be rewritten, by the pattern of the name. In a text, \1 stands
# for the first group of the pattern.
_INSTEAD = [
    (
        r"tensorflow\.train\.Optimizer",
        "in TensorFlow 2 this is tf.compat.v1.train.Optimizer; keras_tfopt.legacy.Optimizer is the "
        "base of those here. Write optimizers of your own as a keras_tfopt.Rule",
    ),
    (
        r"tensorflow\.contrib\.opt\.(?:python\.training\.\w+\.)?(?!python$)\w+",
        "`tf.contrib` is gone, and keras_tfopt.legacy has nothing of this name",
    ),
    (
        rf"{_TENSORFLOW}\.contrib\.estimator\.clip_gradients_by_norm",
        "clip what `compute_gradients` returns by tf.clip_by_global_norm, or give an optimizer of "
        "keras_tfopt a `global_clipnorm`",
    ),
    (
        rf"{_TENSORFLOW}\.contrib\.layers\.optimize_loss",
        "make an optimizer and call its `minimize`",
    ),
    (
        rf"{_TENSORFLOW}\.(?:contrib\.)?tpu\.CrossShardOptimizer",
        "leave it out: strategies of TensorFlow sum gradients",
    ),
    (
        r".*\.mixed_precision\.experimental\..*",
        "write keras.mixed_precision, or keras_tfopt.LossScaleOptimizer around the optimizer",
    ),
    (
        rf"tensorflow\.{_SESSION_ALONE}",
        "write `import tensorflow.compat.v1 as tf` and call `tf.disable_v2_behavior()`: "
        "keras_tfopt.legacy works in graphs and sessions of TensorFlow",
    ),
    (
        _SESSION,
        "sessions stay as they are: keras_tfopt.legacy works in graphs of TensorFlow",
    ),
    (
        rf"{_LEGACY}([A-Z]\w*)",
        r"Keras 3 has no `legacy.\1`: write a keras_tfopt.Rule in its place",
    ),
    (
        r"tensorflow\.contrib\.(?:(?!opt\b)\w+\.\w+.*|(?!(?:opt|layers|estimator|tpu)$)\w+)",
        "`tf.contrib` is gone, and keras_tfopt has nothing in its place",
    ),
    (
        rf"{_TENSORFLOW}\.(?:estimator|train\.experimental)\.\w+.*",
        "TensorFlow has no such name any more, and keras_tfopt has nothing in its place",
    ),
    (
        rf"{_OPTIMIZERS}\.TFOptimizer",
        "Keras 3 takes no optimizers of TensorFlow 1: write the one of keras_tfopt",
    ),
    (
        r"tensorflow_addons\.(?!optimizers\b|callbacks\b)\w+\.\w+.*",
        "TensorFlow Addons does not work with Keras 3, and this is none of its optimizers",
    ),
    (_ADDONS, r"keras_tfopt.addons has no '\1'"),
    (rf"{_SCHEDULES}\w*Linear\w*", _NO_SCHEDULE),
]
# The same for programs that do not call `minimize` and other methods of TensorFlow 1.
_INSTEAD_WITHOUT_VERBS = [
    *[
        (
            rf"{_TRAIN}\.{name}",
            f"write keras.optimizers.schedules.{schedule}, which counts the steps by itself",
        )
        for name, schedule in _RATES_OF_TF1.items()
    ],
    (rf"{_TRAIN}\.(?:linear_cosine|natural_exp|noisy_linear_cosine)_decay", _NO_SCHEDULE),
    (
        rf"{_TRAIN}\.Saver",
        "keras_tfopt.legacy.load_checkpoint reads its files into models of Keras",
    ),
]
GONE = {
    "minimize": "Keras 3 has no `minimize`: train by `fit`, in a loop of your own, or by "
    "keras_tfopt.legacy, whose optimizers have it",
    "get_updates": "Keras 3 has no `get_updates`: call `apply(gradients, variables)`",
    "get_gradients": "Keras 3 has no `get_gradients`: compute them as the backend does",
    **dict.fromkeys(
        ("decay", "initial_decay"),
        "Keras 3 has no `decay`: a schedule, which takes its place, gives `learning_rate`",
    ),
    "get_slot": "Keras 3 has no `get_slot`: optimizers of keras_tfopt have `slot(variable, name)`",
    "_decayed_lr": "Keras 3 has no `_decayed_lr`: read `learning_rate`",
    **dict.fromkeys(
        ("_hyper", "_get_hyper", "_set_hyper"),
        "Keras 3 keeps hyperparameters in attributes, such as `learning_rate` and `beta_1`",
    ),
    "set_weights": "the order of the state is another in Keras 3: keras_tfopt.migrate.load_state "
    "reads files of Keras 2",
}
"""What to tell of attributes of optimizers that Keras 3 does not have."""


class Found(NamedTuple):
    """A name of another package in a program.

    Attributes:
        family: "keras", "legacy", "addons", "tf1", or "schedule", "function" and "module" for what
            is no optimizer.
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
    match = re.fullmatch(rf"{_SCHEDULES}(\w+)", name)
    if match and match[1] in (*_RATES_OF_TF1.values(), "LearningRateSchedule"):
        return Found("schedule", match[1], f"keras.optimizers.schedules.{match[1]}")
    if match := re.fullmatch(rf"{_LEGACY}(\w+)", name):
        if match[1] in LEGACY_CLASSES:
            return Found("legacy", match[1], LEGACY_CLASSES[match[1]][0])
        return None
    if name == "tensorflow_addons.optimizers":
        return Found("module", "optimizers", "keras_tfopt.addons")
    match = re.fullmatch(_ADDONS, name)
    if match and match[1] in ADDONS:
        return Found("addons", match[1], f"keras_tfopt.addons.{match[1]}")
    match = re.fullmatch(_TF1, name)
    if match and match[1] in TABLE:
        return Found("tf1", match[1], _in_place_of_tf1(match[1], has_verbs))
    if match and match[1] in NAMES and ".contrib." in name:
        return Found("function", match[1], f"keras_tfopt.legacy.{match[1]}")
    if match := re.fullmatch(_STOCK, name):
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
    match = re.fullmatch(_STOCK, name)
    return match is not None and match[3] == "Optimizer"


def takes_config(name: str) -> bool:
    """Return whether it is a function that makes an optimizer of Keras from its configuration."""
    functions = r"(?:\w+\.)*(?:from_config|get|deserialize)"
    return re.fullmatch(rf"{_OPTIMIZERS}\.{functions}", name) is not None


def is_session(name: str) -> bool:
    """Return whether it is a class of sessions of TensorFlow 1."""
    return re.fullmatch(_SESSION, name) is not None


def advice(name: str, has_verbs: bool) -> str | None:
    """Return what to do about a name that `find` does not know, or None."""
    for pattern, text in _INSTEAD if has_verbs else [*_INSTEAD, *_INSTEAD_WITHOUT_VERBS]:
        if match := re.fullmatch(pattern, name):
            return match.expand(text)
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
