"""Models that are loaded choose the variables that they chose before."""

import re

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt.distributed.exchanges.alike import described_inside
from tests.helpers.stepping import make_variable, through_json
from tests.test_selection import LazyAdamW


def two_towers():
    """In the loaded model, both towers have the same paths, those of their layers."""
    inputs = keras.Input((2,))
    towers = [
        keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, name="dense")], name=name)
        for name in ("user", "item")
    ]
    joined = keras.layers.Concatenate()([tower(inputs) for tower in towers])
    return keras.Model(inputs, keras.layers.Dense(2, name="head")(joined))


def backbone_and_head():
    """In the loaded model, no path begins with the name of the Sequential."""
    inputs = keras.Input((2,))
    layer = keras.layers.Dense(2, name="dense")
    backbone = keras.Model(inputs, layer(inputs), name="backbone")
    return keras.Sequential([keras.Input((2,)), backbone, keras.layers.Dense(2)], name="outer")


@keras.saving.register_keras_serializable("tests")
class Block(keras.layers.Layer):
    """Its inner layer has another name in the loaded model."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(2)

    def build(self, shape):
        self.dense.build(shape)

    def call(self, inputs):
        return self.dense(inputs)


def with_a_block():
    return keras.Sequential([keras.Input((2,)), Block(name="block"), keras.layers.Dense(2)])


def first_layer(model):
    return model.trainable_variables[:2]


CHOOSING = {
    "layer_decay": lambda m: keras_tfopt.Momentum(groups=keras_tfopt.layer_decay(m, 0.5)),
    "no_decay": lambda m: keras_tfopt.Adam(weight_decay=1.0, groups=keras_tfopt.no_decay(m)),
    "pattern": lambda m: keras_tfopt.Lookahead(
        keras_tfopt.Momentum(groups={"^(?!outer/backbone|user)": {"learning_rate_factor": 0.1}})
    ),
    "function": lambda m: keras_tfopt.Momentum(groups=slower_first),
    "decay_variables": lambda m: keras_tfopt.AdamW(
        weight_decay=1.0, decay_variables=first_layer(m)
    ),
    "LazyAdamW": lambda m: LazyAdamW(weight_decay=1.0, decay_variables=first_layer(m)),
    "skip_list": lambda m: keras_tfopt.LARS(skip_list=first_layer(m)),
    "other_variables": lambda m: keras_tfopt.Muon(other_variables=first_layer(m)),
    "vars_to_clip_dims": lambda m: keras_tfopt.VariableClipping(
        keras_tfopt.Momentum(), [(first_layer(m)[0], [0])], 0.1
    ),
}


@keras.saving.register_keras_serializable("tests")
def slower_first(variable):
    is_first = re.match("user|outer/backbone|sequential.*block", variable.path)
    return {"learning_rate_factor": 0.1} if is_first else None


@pytest.mark.parametrize("make", [two_towers, backbone_and_head, with_a_block])
@pytest.mark.parametrize("choose", CHOOSING.values(), ids=CHOOSING)
def test_a_loaded_model_chooses_the_same_variables(make, choose, tmp_path):
    model = make()
    model.compile(choose(model))

    def stepped(one):
        gradients = [np.full(v.shape, 0.5, "float32") for v in one.trainable_variables]
        one.optimizer.apply(gradients, one.trainable_variables)
        return one.get_weights()

    with keras_tfopt.engine.plain():
        stepped(model)
        models = [model]
        for number in range(2):  # the loaded model is saved, too
            models[-1].save(tmp_path / f"{number}.keras")
            models.append(keras.saving.load_model(tmp_path / f"{number}.keras"))
        expected, *found = map(stepped, models)
    assert models[1].optimizer.get_config() == model.optimizer.get_config()
    for weights in found:
        for one, other in zip(expected, weights, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_path_that_may_mean_several_variables_is_refused(tmp_path):
    """In a file without the paths of variables, as of an optimizer that was never built."""
    model = two_towers()
    model.compile(keras_tfopt.LARS(skip_list=first_layer(model)))
    model.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="'user/dense/kernel' chooses one variable.*`compile=Fal"):
        keras.saving.load_model(tmp_path / "model.keras")


def test_workers_may_have_other_paths():
    """Keras numbers the names of layers in each process."""
    described = []
    for path in ("dense/kernel", "dense_1/kernel"):
        optimizer = keras_tfopt.Momentum(groups={"kernel": {"weight_decay": 0.1}})
        optimizer.build([make_variable(path, np.ones((2, 2)))])
        assert optimizer.get_config()["variable_paths"] == [path]
        described.append(described_inside(keras_tfopt.Lookahead(optimizer)))
    assert described[0] == described[1]


def test_paths_of_another_model_do_not_count():
    model, other = backbone_and_head(), two_towers()
    optimizer = keras_tfopt.Momentum(groups={"kernel": {"learning_rate_factor": 0.1}})
    optimizer.build(model.trainable_variables)
    again = through_json(optimizer)
    again.build(other.trainable_variables)
    groups = [row["groups"] for row in again.describe_groups(other).rows]
    assert groups == [("kernel",) if "kernel" in v.path else () for v in other.trainable_variables]
