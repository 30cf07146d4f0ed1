"""`normalization_and_bias` finds the weights of normalization layers, and biases."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_tfopt
from tests.cells import exhaustive
from tests.helpers.stepping import several_only, through_json, to_numpy
from tests.test_selection import warned


@keras.saving.register_keras_serializable("tests")
class ScaleNorm(layers.Layer):
    """A normalization that a user wrote."""

    def build(self, shape):
        self.g = self.add_weight(shape=(shape[-1], 1), name="g")

    def call(self, x):
        return x * self.g[:, 0]


@keras.saving.register_keras_serializable("tests")
class PreNorm(layers.Layer):
    """A block that contains a normalization, and whose name sounds like one."""

    def __init__(self):
        super().__init__()
        self.norm, self.dense = layers.LayerNormalization(), layers.Dense(3, name="inside")

    def call(self, x):
        return self.dense(self.norm(x))


@pytest.mark.spread("torch")
def test_normalization_and_bias_by_the_layer():
    """Names and shapes would be misleading: some scales and biases have two axes."""
    x = inputs = keras.Input((4, 6))
    x = layers.LayerNormalization(axis=(1, 2), name="ln")(x)  # shapes (4, 6)
    x = layers.MultiHeadAttention(2, 3, name="attention")(x, x)  # biases (2, 3)
    x = ScaleNorm(name="scale")(x)
    x = layers.PReLU(name="prelu")(x)  # neither of the two
    x = layers.SpectralNormalization(layers.Dense(3, name="normed"))(x)  # a kernel and a bias
    x = layers.BatchNormalization(name="kernel_bias_free")(x)
    x = PreNorm()(x)
    x = layers.GRU(5, name="gru")(x)  # a bias of two axes
    model = keras.Model(inputs, layers.Dense(1, use_bias=False, name="bias")(x))
    chosen = {id(v) for v in keras_tfopt.normalization_and_bias(model)}
    others = [v.path for v in model.trainable_variables if id(v) not in chosen]
    expected = ["kernel"] * 4 + ["alpha"] + ["kernel"] * 3 + ["recurrent_kernel", "kernel"]
    assert [path.rsplit("/")[-1] for path in others] == expected
    assert others[-1] == "bias/kernel"
    for wrong, error in ((keras.Sequential([layers.Dense(1)]), ValueError), (3, TypeError)):
        with pytest.raises(error, match="`model`"):
            keras_tfopt.normalization_and_bias(wrong)


@pytest.mark.spread
@pytest.mark.parametrize("name", ("MobileNetV2", *map(exhaustive, ("ResNet50", "EfficientNetB0"))))
def test_normalization_and_bias_of_applications(name):
    """In these networks, they are exactly the variables with fewer than two dimensions."""
    model = getattr(keras.applications, name)(weights=None, input_shape=(64, 64, 3), classes=7)
    chosen = keras_tfopt.normalization_and_bias(model)
    normalizing = [v for v in model.layers if isinstance(v, layers.BatchNormalization)]
    assert len(chosen) > 2 * len(normalizing) > 40
    vectors = [v for v in model.trainable_variables if not keras_tfopt.no_vectors(v)]
    assert [v.path for v in vectors] == [v.path for v in chosen]

    optimizers = {
        "skipped": keras_tfopt.LARS(1.0, skip_list=chosen),
        "excluded": keras_tfopt.AdamW(weight_decay=0.1),
        "by shape": keras_tfopt.AdamW(weight_decay=0.1, decay_variables=keras_tfopt.no_vectors),
    }
    optimizers["excluded"].exclude_from_weight_decay(chosen)
    skipped = {}
    for how, optimizer in optimizers.items():
        optimizer = through_json(optimizer)  # which has paths instead of variables
        assert not warned(lambda o=optimizer: o.build(model.trainable_variables)), how
        skipped[how] = {
            v.path
            for v, like in ((e.variable, e.like) for e in optimizer._state.entries)
            if (
                optimizer.is_skipped(like)
                if how == "skipped"
                else not optimizer.decays(like, False)
            )
        }
        assert skipped[how] == {v.path for v in chosen}, how
    as_advised_before = keras_tfopt.LARS(skip_list=["bias", "batch_norm"])
    assert any("'batch_norm'" in t for t in warned(lambda: as_advised_before.build(chosen)))


@pytest.mark.spread("jax")
@several_only
def test_normalization_does_not_decay_in_fit(tmp_path):
    """With zero gradients only kernels shrink, also in a saved and loaded model."""
    model = keras.Sequential(
        [
            keras.Input((3,)),
            layers.Dense(4, bias_initializer="ones", name="a"),
            layers.BatchNormalization(beta_initializer="ones", name="b"),
            layers.Dense(1, bias_initializer="ones", name="c"),
        ]
    )
    optimizer = keras_tfopt.MovingAverage(keras_tfopt.AdamW(0.1, weight_decay=0.5))
    optimizer.exclude_from_weight_decay(keras_tfopt.normalization_and_bias(model))
    model.compile(optimizer, "mse")
    model.save(tmp_path / "model.keras")
    for each in (model, keras.saving.load_model(tmp_path / "model.keras")):
        before = [to_numpy(v) for v in each.trainable_variables]
        each.fit(np.ones((4, 3)), np.ones((4, 1)), sample_weight=np.zeros(4), verbose=0)
        for v, old in zip(each.trainable_variables, before):
            factor = 0.5 if v.name == "kernel" else 1.0
            np.testing.assert_allclose(to_numpy(v), factor * old, rtol=1e-6, err_msg=v.path)
