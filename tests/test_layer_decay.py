"""`layer_decay`, `no_decay` and adaptive gradient clipping, against recorded tables."""

import json
import re

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt.engine.step.gradients import clipped_by_unit
from tests.helpers.compare import assert_close
from tests.helpers.paths import GOLDEN
from tests.helpers.stepping import to_numpy

MODERN = GOLDEN / "modern"


class Part(keras.layers.Layer):
    """A layer with some variables that it does not use."""

    def __init__(self, parameters, name):
        super().__init__(name=name)
        for parameter in parameters:
            weight = parameter["name"].replace(".", "_")
            self.add_weight(shape=parameter["shape"], initializer="zeros", name=weight)
        self.built = True

    def call(self, inputs):
        return inputs


class PartNormalization(Part):
    """A `Part` whose name says that it is a normalization."""


def part_of(name):
    """Return the layer that a variable of a recorded model is in."""
    found = re.match(r"stages\.\d+\.(downsample|blocks\.\d+)|blocks\.\d+|head|norm|stem|\w+", name)
    return found[0].replace(".", "_")


def recorded_model(parameters):
    """Return a model with the variables of a recorded one, and its variables in recorded order."""
    parts = {}
    for parameter in parameters:
        parts.setdefault(part_of(parameter["name"]), []).append(parameter)
    layers = [
        (PartNormalization if name == "norm" else Part)(some, name) for name, some in parts.items()
    ]
    return keras.Sequential([keras.Input((1,)), *layers]), [
        variable for layer in layers for variable in layer.trainable_variables
    ]


@pytest.mark.spread("torch")  # JAX compiles initializers for each shape
@pytest.mark.parametrize("table", sorted(p.name for p in MODERN.glob("LayerDecay__*.json")))
def test_factors_are_those_of_timm(table):
    recorded = json.loads((MODERN / table).read_text())
    parameters, given = recorded["parameters"], recorded["arguments"]
    model, variables = recorded_model(parameters)
    smallest = given.get("min_scale", 0.0)
    groups = keras_tfopt.layer_decay(model, given["layer_decay"], min_factor=smallest)
    optimizer = keras_tfopt.Adam(weight_decay=0.1, groups=groups)
    optimizer.build(model.trainable_variables)
    for parameter, variable in zip(parameters, variables, strict=True):
        factor = optimizer.entry_of(variable).settings.factor
        assert factor == pytest.approx(parameter["lr_scale"], rel=1e-12), parameter["name"]


def factors(model, *args):
    groups = keras_tfopt.layer_decay(model, 0.5, *args)
    return {
        variable.path.split("/", 1)[-1] if "sequential" in variable.path else variable.path: s[
            "learning_rate_factor"
        ]
        for variable in model.trainable_variables
        for pattern, s in groups.items()
        if re.search(pattern, variable.path)
    }


def test_layers_without_numbers_are_levels():
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            layers.Embedding(6, 3, name="embedding"),
            layers.Flatten(),
            layers.Dense(3, name="first"),
            layers.BatchNormalization(name="norm"),
            layers.Dense(3, name="second"),
            layers.Dense(2, name="head"),
        ],
        name="sequential",
    )
    each = {"embedding": 0.125, "first": 0.25, "norm": 0.25, "second": 0.5, "head": 1.0}
    assert {path.split("/")[0]: f for path, f in factors(model).items()} == each
    fewer = {"embedding": 0.25, "first": 0.25, "norm": 0.25, "second": 0.5, "head": 1.0}
    assert {path.split("/")[0]: f for path, f in factors(model, 3).items()} == fewer
    with pytest.raises(ValueError, match="number of levels of the model, 4. Received: 5"):
        factors(model, 5)
    (pattern,) = keras_tfopt.no_decay(model)
    exempt = [
        v.path.split("/")[-2:] for v in model.trainable_variables if re.search(pattern, v.path)
    ]
    kernels = [v for v in model.trainable_variables if v.path.endswith("kernel")]
    assert ["embedding", "embeddings"] in exempt and ["norm", "gamma"] in exempt
    assert len(exempt) == len(model.trainable_variables) - len(kernels)


def test_models_are_asked_for():
    for of_model in (factors, keras_tfopt.no_decay, keras_tfopt.normalization_and_bias):
        with pytest.raises(TypeError, match="`model` must be a keras.Model or a layer. .*: 3"):
            of_model(3)


def test_nested_models_are_looked_into():
    layers = keras.layers
    x = inputs = keras.Input((4,))
    x = layers.Dense(4, name="stem")(x)
    for number in range(2):
        x = layers.Dense(4, name=f"transformer_layer_{number}")(x)
    backbone = keras.Model(inputs, layers.LayerNormalization(name="final")(x), name="backbone")
    model = keras.Sequential([keras.Input((4,)), backbone, layers.Dense(2, name="head")])
    found = {path.split("/")[-2]: factor for path, factor in factors(model).items()}
    expected = {"stem": 0.125, "transformer_layer_0": 0.25, "transformer_layer_1": 0.5}
    assert found == {**expected, "final": 0.5, "head": 1.0}
    alone = {path.split("/")[-2]: factor for path, factor in factors(backbone).items()}
    assert alone == {"stem": 0.25, "transformer_layer_0": 0.5} | dict.fromkeys(
        ["transformer_layer_1", "final"], 1.0
    )


@pytest.mark.spread("torch")
@pytest.mark.parametrize(
    ("name", "levels"),
    (("ResNet50", 18), ("MobileNetV2", 18), ("EfficientNetB0", 18), ("VGG16", 6)),
)
def test_blocks_of_keras_applications(name, levels):
    model = getattr(keras.applications, name)(weights=None)
    groups = keras_tfopt.layer_decay(model, 0.5)
    assert [s["learning_rate_factor"] for s in groups.values()] == [
        0.5**below for below in reversed(range(levels))
    ]
    assert sum(re.search("predictions", pattern) is not None for pattern in groups) == 1


@pytest.mark.parametrize("case", ("default_axes", "hyper", "zero_variables"))
def test_units_are_clipped_as_optax_does(case):
    arguments = {
        "default_axes": dict(most=0.0606),
        "hyper": dict(most=0.0518, epsilon=0.05),
        "zero_variables": dict(most=0.1),
    }[case]
    with np.load(MODERN / f"AdaptiveGradClip__{case}.npz") as recorded:
        names = [name for name in recorded if name.startswith("clipped/")]
        for name in names:
            _, step, variable = name.split("/")
            g, x = recorded[f"grad/{step}/{variable}"], recorded[f"init/{variable}"]
            given = keras.ops.convert_to_tensor(g), keras.ops.convert_to_tensor(x)
            clipped = to_numpy(clipped_by_unit(*given, **arguments))
            assert_close(clipped, recorded[name], 1e-6, name)
    assert len(names) >= 12
