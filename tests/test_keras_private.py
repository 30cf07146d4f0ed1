"""Private parts of Keras that we use still exist, and are still needed: see `keras_private.py`."""

import keras
import numpy as np
import pytest
from keras import layers

from keras_tfopt.engine import keras_private
from keras_tfopt.engine.arguments import configuration
from tests.helpers.stepping import BACKEND


@pytest.mark.parametrize("name", keras_private.ATTRIBUTES)
def test_attributes_exist(name):
    """Some object of Keras has each attribute that the package reads or assigns."""
    layer = layers.Embedding(3, 2)
    layer.build()
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build([layer.embeddings])
    nadam = keras.optimizers.Nadam(use_ema=True, gradient_accumulation_steps=2)
    nadam.exclude_from_weight_decay(var_names=["bias"])
    nadam.build([layer.embeddings])
    known = [optimizer, nadam, layer, layer.embeddings, keras.Sequential([layer])]
    if hasattr(keras.optimizers, "MultiOptimizer"):
        parts = keras.optimizers.OptimizerMap(optimizer, {"x": keras.optimizers.SGD(0.2)})
        known.append(keras.optimizers.MultiOptimizer(parts))
        known[-1].build([layer.embeddings])
    elif name == "_var_to_optimizer_idx":
        pytest.skip("Keras 3.15 is the first to have MultiOptimizer")
    if name == "_distribution_strategy" and BACKEND != "tensorflow":
        pytest.skip("strategies are TensorFlow's")
    if name == "_layout" and BACKEND != "jax":
        pytest.skip("is read on JAX; Keras 3.12 has it there only")
    assert any(hasattr(one, name) for one in known), f"{name}: {keras_private.ATTRIBUTES[name]}"


def test_attributes_have_the_meaning_that_they_are_read_for():
    layer = layers.Embedding(3, 2)
    model = keras.Sequential([keras.Input((4,)), keras.Sequential([layer])])
    assert layer in keras_private.layers_in(model)
    assert model not in keras_private.layers_in(model, include_self=False)
    table = keras_private.table_of(layer)
    assert table is layer.embeddings
    optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 1))
    optimizer.build([table])
    assert callable(optimizer._learning_rate) and optimizer._iterations is optimizer.iterations
    assert optimizer._trainable_variables == [table] and optimizer._get_variable_index(table) == 0
    assert optimizer._trainable_variables_indices == {optimizer._var_key(table): 0}


def test_read_uncast_prevents_the_cast_of_a_table():
    variable = keras.Variable(np.ones(2), dtype="float32")

    class Reads(layers.Layer):
        def call(self, _):
            return variable.value

    def dtype():
        read = Reads(dtype="mixed_bfloat16")(np.ones(1))
        return keras.backend.standardize_dtype(read.dtype)

    assert dtype() == "bfloat16"
    keras_private.read_uncast(variable)
    assert dtype() == "float32"


def test_scopes():
    assert keras_private.get_stateless_scope() is None
    assert not keras_private.in_stateless_scope()
    variable = keras.Variable(1.0)
    with keras.StatelessScope() as scope:
        assert keras_private.get_stateless_scope() is scope
        with keras_private.outside_of_scopes():
            assert not keras_private.in_stateless_scope()
            variable.assign(2.0)
        late = keras.Variable(lambda shape, dtype: keras.ops.full(shape, 3.0, dtype), shape=())
        assert late in keras_private.uninitialized_variables()
        keras_private.forget_uninitialized(late)
        assert not keras_private.uninitialized_variables()
        with keras_private.outside_of_scopes():
            late._deferred_initialize()
    assert float(variable.numpy()) == 2.0 and float(late.numpy()) == 3.0


# ---- If one of these fails, Keras has fixed a defect, and a workaround can go --------------------


@pytest.mark.parametrize("finds", [False, True])
def test_nadam_of_keras_needs_tracking_in_a_build(finds):
    nadam = keras.optimizers.Nadam(0.1)
    variable = keras.Variable(np.ones(2), name="x")

    @keras_private.untracked
    def build(self):
        if finds:
            with keras_private.tracked():
                nadam.build([variable])
        else:
            nadam.build([variable])

    build(nadam)
    assert any(v is nadam._u_product for v in nadam.variables) == finds


@pytest.mark.backends("torch", reason="about classes that Keras has on PyTorch")
def test_configurations_of_torch_name_a_class_of_torch():
    config = keras.saving.serialize_keras_object(keras.optimizers.Adam(0.1))
    assert config["module"].startswith("keras.src.backend.torch")
    assert configuration.portable(config)["module"] == "keras.optimizers"


@pytest.mark.backends("torch", reason="about the device of PyTorch")
def test_the_device_of_torch_is_known():
    assert keras_private.torch_device() in ("cpu", "cuda")


def test_optimizers_save_what_can_be_saved():
    assert issubclass(keras.optimizers.Optimizer, keras_private.KerasSaveable)
