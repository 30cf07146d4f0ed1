"""Convert arguments of constructors to values that JSON can hold, and back."""

from __future__ import annotations

import re
from typing import Any

import keras

from keras_tfopt.engine.arguments.options import unregistered
from keras_tfopt.engine.arguments.suggestions import did_you_mean, short
from keras_tfopt.engine.state.building import path_of


def encoded(value: Any, name: str = "") -> Any:
    """Return an argument as a value that JSON can hold."""
    if name == "global_step" and value is not None:
        return {"global_step": path_of(value)}
    if isinstance(value, re.Pattern):
        return {"regex": value.pattern, "flags": value.flags}
    if isinstance(value, (list, tuple)):
        return [encoded(item) for item in value]
    if isinstance(value, dict):
        return {key: encoded(item) for key, item in value.items()}
    if isinstance(value, keras.Variable):
        return float(value.numpy())
    if callable(value) or isinstance(value, keras.optimizers.Optimizer):
        return portable(keras.saving.serialize_keras_object(value))
    return value


def decoded(value: Any, custom_objects: dict | None = None) -> Any:
    """Return the argument that `encoded` converted."""
    if isinstance(value, dict) and value.keys() == {"regex", "flags"}:
        return re.compile(value["regex"], value["flags"])
    if isinstance(value, list):
        return [decoded(item, custom_objects) for item in value]
    if isinstance(value, dict) and "class_name" in value:
        name = value.get("config")
        known = isinstance(name, str) and keras.saving.get_registered_object(name, custom_objects)
        if value["class_name"] == "function" and not known:
            raise unregistered(name)
        return keras.saving.deserialize_keras_object(portable(value), custom_objects)
    if isinstance(value, dict):
        return {key: decoded(item, custom_objects) for key, item in value.items()}
    return value


def portable(config: Any) -> Any:
    """Return a configuration with the names that Keras's optimizers have on every backend.

    On PyTorch, Keras writes the name of a class that exists only there.
    `keras.optimizers.deserialize` corrects this, but not inside wrappers.
    """
    if isinstance(config, list):
        return [portable(item) for item in config]
    if not isinstance(config, dict):
        return config
    config = {key: portable(value) for key, value in config.items()}
    if str(config.get("module")).startswith("keras.src.backend.") and "class_name" in config:
        config.update(module="keras.optimizers", registered_name=None)
    return config


def optimizer_from(identifier: Any) -> Any:
    """Return the optimizer of a name or configuration.

    The name may be the plain name of a registered class. Names of Keras itself come first.
    """
    if isinstance(identifier, keras.optimizers.Optimizer):
        return identifier
    given = {"class_name": identifier} if isinstance(identifier, str) else identifier
    config: dict[str, Any] = portable(dict(given))
    if config.get("module") is not None:
        # Not `keras.optimizers.deserialize`: of classes of others it may return only the name.
        return keras.saving.deserialize_keras_object(config)
    config = {"config": {}, **config}
    name = str(config.get("class_name"))
    known = {key.lower(): key for key, cls in vars(keras.optimizers).items() if _is_optimizer(cls)}
    if name.lower() in known or keras.saving.get_registered_object(name) is not None:
        return keras.optimizers.get(config)
    registered: dict[str, Any] = {}
    for _, cls in sorted(keras.saving.get_custom_objects().items(), reverse=True):
        # Skip classes derived from one of the same name, such as those of TensorFlow Addons.
        if _is_optimizer(cls) and not issubclass(cls, registered.get(cls.__name__, ())):
            registered[cls.__name__] = cls
    for own, cls in registered.items():
        if short(own) == short(name):
            return cls.from_config(config["config"])
    names = sorted({*registered, *known.values()})
    raise ValueError(f"There is no optimizer {name!r}. {did_you_mean(name, names)}")


def _is_optimizer(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, keras.optimizers.Optimizer)
