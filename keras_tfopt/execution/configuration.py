"""Arguments of constructors as something that JSON can hold, and back."""

from __future__ import annotations

import re
from typing import Any

import keras

from keras_tfopt.execution.building import path_of
from keras_tfopt.execution.suggestions import did_you_mean, short


def encoded(value: Any, name: str = "") -> Any:
    """An argument as something that JSON can hold."""
    if name == "global_step" and value is not None:
        return {"global_step": path_of(value)}
    if isinstance(value, re.Pattern):
        return {"regex": value.pattern, "flags": value.flags}
    if isinstance(value, (list, tuple)):
        return [encoded(item) for item in value]
    if isinstance(value, keras.Variable):
        return float(value.numpy())
    if callable(value) or isinstance(value, keras.optimizers.Optimizer):
        return portable(keras.saving.serialize_keras_object(value))
    return value


def decoded(value: Any, custom_objects: dict | None = None) -> Any:
    """What `encoded` was given."""
    if isinstance(value, dict) and value.keys() == {"regex", "flags"}:
        return re.compile(value["regex"], value["flags"])
    if isinstance(value, list):
        return [decoded(item, custom_objects) for item in value]
    if isinstance(value, dict) and "class_name" in value:
        name = value.get("config")
        known = isinstance(name, str) and keras.saving.get_registered_object(name, custom_objects)
        if value["class_name"] == "function" and not known:
            raise ValueError(
                "A function in a configuration must be registered: import the module that does "
                "that, with `@keras.saving.register_keras_serializable()`, or pass the function "
                f"in `custom_objects`. Received: {name!r}"
            )
        return keras.saving.deserialize_keras_object(portable(value), custom_objects)
    return value


def portable(config: Any) -> Any:
    """A configuration in which Keras's optimizers have the names that they have on every backend.

    On PyTorch, Keras gives the configuration of an optimizer the name of a class that works there
    only. `keras.optimizers.deserialize` knows better, but does not look into wrappers.
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
    """`keras.optimizers.get`, which also knows registered optimizers by their plain names.

    A name that Keras has itself is Keras's.
    """
    if isinstance(identifier, keras.optimizers.Optimizer):
        return identifier
    given = {"class_name": identifier} if isinstance(identifier, str) else identifier
    config: dict[str, Any] = portable(dict(given))
    if config.get("module") is not None:
        # Not that of keras.optimizers, which for classes that are not its own may give their name.
        return keras.saving.deserialize_keras_object(config)
    config = {"config": {}, **config}
    name = str(config.get("class_name"))
    known = {key.lower(): key for key, cls in vars(keras.optimizers).items() if _is_optimizer(cls)}
    if name.lower() in known or keras.saving.get_registered_object(name) is not None:
        return keras.optimizers.get(config)
    registered = {
        cls.__name__: cls
        for _, cls in sorted(keras.saving.get_custom_objects().items(), reverse=True)
        if _is_optimizer(cls)
    }
    for own, cls in registered.items():
        if short(own) == short(name):
            return cls.from_config(config["config"])
    raise ValueError(
        f"There is no optimizer {name!r}. {did_you_mean(name, [*registered, *known.values()])}"
    )


def _is_optimizer(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, keras.optimizers.Optimizer)
