"""Find the variables of an argument `model`, and their names in checkpoints."""

from __future__ import annotations

from typing import Any

import keras

from keras_tfopt.engine import is_variable, layers_in, path_of, sync
from keras_tfopt.legacy.checkpoints import names as naming


def sync_models(model: Any) -> None:
    """Bring the state of a training in progress into the variables of an argument `model`."""
    for one in model if isinstance(model, (list, tuple)) else [model]:
        if isinstance(one, keras.Model):
            sync(one)


def variables_in(model: Any) -> tuple[list[Any], list[list]]:
    """Return the variables of an argument `model`, and lists of names they may have in a file."""
    if isinstance(model, keras.layers.Layer):
        if not model.built:
            raise ValueError(
                f"Argument `model` must be built: its variables do not exist yet. Call "
                f"`model.build(input_shape)`. Received: {model!r}"
            )
        variables = list(model.weights)
        paths = [path_of(variable) for variable in variables]
        layers = layers_in(model) if isinstance(model, keras.Model) else ()
        return variables, naming.spellings(paths, model, layers)
    variables = list(model) if isinstance(model, (list, tuple)) else [None]
    if variables and all(isinstance(one, keras.Model) for one in variables):
        return _in_scopes(variables)
    if not all(is_variable(variable) for variable in variables):
        raise TypeError(
            "Argument `model` must be a keras.Model, a layer, or a list of models or of variables. "
            f"Received: {model!r}"
        )
    paths = [path_of(variable) for variable in variables]
    if len(set(paths)) < len(paths):
        raise ValueError(
            f"Argument `model` must have variables of distinct names. Received: {paths}"
        )
    return variables, naming.spellings(paths)


def _in_scopes(models: list[Any]) -> tuple[list[Any], list[list]]:
    """Return the variables of several models, and their names in scopes named after the models."""
    variables: list[Any] = []
    choices: list[list] = [[], []]
    for model in models:
        own_variables, spellings = variables_in(model)
        variables += own_variables
        scope = f"{model.name}/"
        for names, spelling in zip(choices, (spellings[0], spellings[-1]), strict=True):
            names += [scope + name.removeprefix(scope) for name in spelling]
    if len(set(choices[-1])) < len(variables):
        names = [model.name for model in models]
        raise ValueError(f"Argument `model` must have models of distinct names. Received: {names}")
    return variables, [names for names in choices if len(set(names)) == len(names)]
