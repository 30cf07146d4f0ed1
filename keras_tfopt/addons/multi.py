"""`MultiOptimizer` of TensorFlow Addons, which trains layers by different optimizers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from keras_tfopt.rules import GradientDescent


class _OfLayers:
    """A map from variables to optimizers, by layers.

    Layers may have no variables yet when the map is made.
    """

    def __init__(self, pairs: list[tuple[Any, list[Any]]]):
        self.pairs = pairs
        # For layers without an optimizer: callbacks may set its learning rate, too. Keras saves
        # optimizers in the order of `values`, and this one last, as with a map by paths.
        still = {".*": {"frozen": True}}
        self.default_optimizer = GradientDescent(0.0, name="still", groups=still)

    def __call__(self, variable: Any) -> Any:
        """Return the optimizer of a variable."""
        for optimizer, layers in self.pairs:
            if any(variable is weight for layer in layers for weight in layer.trainable_weights):
                return optimizer
        return self.default_optimizer

    def values(self) -> list[Any]:
        """Return the optimizers, in the order of the pairs."""
        return [optimizer for optimizer, _ in self.pairs]

    def get_config(self) -> dict[str, Any]:
        """Return the configuration of a map by paths, `keras.optimizers.OptimizerMap`."""
        layers_of: dict[int, list[Any]] = {}
        for optimizer, layers in self.pairs:
            layers_of.setdefault(id(optimizer), []).extend(layers)
        own = {id(optimizer): optimizer for optimizer in self.values()}
        paths = {"|".join(map(_patterns, layers)): own[n] for n, layers in layers_of.items()}
        return keras.optimizers.OptimizerMap(self.default_optimizer, paths).get_config()

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict | None = None) -> Any:
        """Return the map by paths."""
        return keras.optimizers.OptimizerMap.from_config(config, custom_objects)


def _patterns(layer: Any) -> str:
    """Return a regular expression of the paths of a layer's variables.

    In a model that was loaded, paths may begin with the name of the layer, not of the model.
    """
    if isinstance(layer, keras.Model):
        return "|".join(map(_patterns, layer.layers))
    paths = [weight.path for weight in layer.trainable_weights]
    starts = [max(f"/{path}".find(f"/{layer.name}/"), 0) for path in paths]
    endings = [re.escape(path[start:]) for path, start in zip(paths, starts, strict=True)]
    return "|".join(f"(?:.*/)?{ending}" for ending in endings)


keras.saving.register_keras_serializable("keras_tfopt.addons", "OptimizersOfLayers")(_OfLayers)


def MultiOptimizer(
    optimizers_and_layers: Iterable[tuple[Any, Any]] | None = None,
    optimizer_specs: Any = None,
    name: str = "MultiOptimizer",
    **kwargs: Any,
) -> Any:
    """Return a `keras.optimizers.MultiOptimizer` that trains layers by different optimizers.

    Variables of other layers do not change. It is saved as a map from paths of variables. For one
    optimizer with different rates, use groups instead.

    Args:
        optimizers_and_layers: Pairs of an optimizer and a layer, a model, or a list of these.
        optimizer_specs: None; configurations of TensorFlow Addons name no layers.
        name: Name of the optimizer.
        **kwargs: `loss_scale_factor`.

    Raises:
        ImportError: with Keras before 3.15, which has no `MultiOptimizer`.

    Example:

    >>> pairs = [(keras.optimizers.Adam(1e-4), model.layers[:-1]), ("sgd", model.layers[-1])]
    >>> model.compile(optimizer=addons.MultiOptimizer(pairs), loss="mse")
    """
    if not hasattr(keras.optimizers, "MultiOptimizer"):
        raise ImportError("MultiOptimizer needs Keras 3.15. Received: Keras " + keras.__version__)
    if optimizer_specs is not None or optimizers_and_layers is None:
        raise TypeError(
            "Argument `optimizers_and_layers` must be pairs of an optimizer and its layers; "
            "`optimizer_specs` have no layers, so write MultiOptimizer([(optimizer, layers), ...])."
            f" Received: {optimizers_and_layers!r}, optimizer_specs={optimizer_specs!r}"
        )
    if not isinstance(optimizers_and_layers, Iterable):
        raise _wrong(optimizers_and_layers)
    pairs = [_checked(pair) for pair in optimizers_and_layers]
    if not pairs:
        raise ValueError("Argument `optimizers_and_layers` must not be empty. Received: []")
    return keras.optimizers.MultiOptimizer(_OfLayers(pairs), name=name, **kwargs)


def _checked(pair: Any) -> tuple[Any, list[Any]]:
    """Return an optimizer and a list of layers."""
    if isinstance(pair, (tuple, list)) and len(pair) == 2:
        layers: Sequence[Any] = pair[1] if isinstance(pair[1], (tuple, list)) else [pair[1]]
        are_layers = layers and all(isinstance(layer, keras.layers.Layer) for layer in layers)
        if are_layers and isinstance(pair[0], (str, dict, keras.optimizers.Optimizer)):
            return keras.optimizers.get(pair[0]), list(layers)
    raise _wrong(pair)


def _wrong(value: Any) -> TypeError:
    return TypeError(
        "Argument `optimizers_and_layers` must be pairs of an optimizer and a layer, a model or a "
        f"list of these. Received: {value!r}"
    )
