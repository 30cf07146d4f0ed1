"""Translate arguments and configurations of Keras 2 to those of Keras 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from keras_tfopt.checks import check_bool, check_number

# Modules in configurations of Keras 2. Older versions, such as that of TensorFlow 2.8, write none.
_LEGACY = "keras.optimizers.legacy"
_SCHEDULES = "keras.optimizers.schedules"
_CONVENTIONS = "keras_tfopt.migrate"  # has rules with the conventions of Keras 2


def arguments(owner: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the keyword arguments that every optimizer of Keras 2 had.

    `lr` is the learning rate, `decay` makes it fall as `1 / (1 + decay * step)`, and `use_locking`
    has no meaning.
    """
    given = dict(given)
    if "use_locking" in given:
        check_bool("use_locking", given.pop("use_locking"))
    given.pop("is_legacy_optimizer", None)  # in configurations only
    if "lr" in given:
        given["learning_rate"] = given.pop("lr")
    decay = check_number("decay", given.pop("decay", 0.0), 0)
    if not decay:
        return given
    rate = given.get("learning_rate")
    try:
        rate = check_number("learning_rate", rate, 0)
    except TypeError:
        raise TypeError(
            f"Argument `decay` of {owner} goes with a `learning_rate` that is a number. Put the "
            "decay into the schedule instead; around an optimizer, it belongs to the optimizer "
            f"inside. Received: decay={decay}, learning_rate={rate!r}"
        ) from None
    given["learning_rate"] = keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay)
    return given


def configuration(config: Any) -> Any:
    """Translate a configuration of Keras 2, with those inside it, to one of Keras 3.

    A configuration of Keras 3 is returned unchanged.
    """
    if isinstance(config, list):
        return [configuration(item) for item in config]
    if not isinstance(config, Mapping):
        return config
    config = {key: configuration(value) for key, value in config.items()}
    inner: Any = config.get("config")
    is_object = "class_name" in config and isinstance(inner, Mapping)
    if is_object and inner.get("name", "") is None:  # leave it out: Keras 3 has a default
        config["config"] = inner = {key: v for key, v in inner.items() if key != "name"}
    module = _module_of(config) if is_object else None
    if module == _SCHEDULES:
        config["module"] = module
    elif module == _LEGACY:
        config.update(_of_legacy(config["class_name"], inner))
    return config


def _of_legacy(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of an optimizer with the steps of a legacy one of Keras 2."""
    own: dict[str, Any] = {}
    if name == "Adagrad" or name == "RMSprop" and not given.get("momentum"):
        own["epsilon_in_root"] = False
    if name == "Nadam":  # the schedule of its momentum is called `decay` in configurations
        own["momentum_decay"] = given.get("decay", 0.004)
        given = {key: value for key, value in given.items() if key != "decay"}
    given = saved({**arguments(name, given), **own})
    if own:  # Keras imports the module
        registered = f"{_CONVENTIONS}>{name}"
        return {"module": _CONVENTIONS, "registered_name": registered, "config": given}
    return {"module": "keras.optimizers", "registered_name": None, "config": given}


def _module_of(config: Mapping[str, Any]) -> str | None:
    """Return the module in a configuration, or that of a class of Keras without one."""
    if config.get("module") is not None:
        return config["module"]
    name = config["class_name"]
    if hasattr(keras.optimizers.schedules, name):
        return _SCHEDULES
    return _LEGACY if hasattr(keras.optimizers, name) else None


def saved(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with schedules replaced by their configurations."""
    schedule = keras.optimizers.schedules.LearningRateSchedule
    return {
        name: keras.saving.serialize_keras_object(value) if isinstance(value, schedule) else value
        for name, value in given.items()
    }


def exclude(optimizer: Any, names: Any) -> None:
    """Exempt variables from weight decay, as `exclude_from_weight_decay` says; None is none."""
    if names is None or isinstance(names, (list, tuple)) and not names:
        return
    try:
        optimizer.exclude_from_weight_decay(var_names=names)
    except TypeError as error:
        text = str(error).replace("`var_names`", "`exclude_from_weight_decay`")
        raise TypeError(text) from error
