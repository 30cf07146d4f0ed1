"""Names of the originals in `keras_tfopt.legacy`: they exist, with the original arguments."""

import inspect
import json
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from keras_tfopt import legacy
from keras_tfopt.legacy.table import TABLE
from tests.helpers.paths import SIGNATURES
from tests.helpers.stepping import make_variable, to_numpy

TF1 = json.loads((SIGNATURES / "tf1.json").read_text())
RETURNN = json.loads((SIGNATURES / "returnn.json").read_text())
RECORDED = {**TF1["constructors"], **RETURNN["constructors"]}
# Arguments that RETURNN's classes pass to their base class.
PASSED_ON = [p["name"] for p in RETURNN["constructors"]["BaseCustomOptimizer"]["arguments"]]


def parameters(function):
    """Return name, kind and default of each parameter, in the form of the recording."""
    found = []
    for p in inspect.signature(function).parameters.values():
        one = {"name": p.name, "kind": p.kind.name}
        if p.default is not p.empty:
            one["default"] = list(p.default) if isinstance(p.default, tuple) else p.default
        if p.name != "self":
            found.append(one)
    return found


@pytest.mark.parametrize("name", RECORDED)
def test_signature_is_the_original_one(name):
    there = getattr(legacy, name)
    ours = parameters(there.__init__ if inspect.isclass(there) else there)
    recorded = list(RECORDED[name]["arguments"])
    if name in RETURNN["constructors"] and recorded[-1]["kind"] == "VAR_KEYWORD":
        # Our signature lists these keywords one by one.
        by_name = [p for p in ours if p["kind"] == "KEYWORD_ONLY"]
        assert [p["name"] for p in by_name] == PASSED_ON
        ours, recorded = ours[: -len(by_name)], recorded[:-1]
    assert ours == recorded
    assert legacy.names()[name].source == RECORDED[name]["module"]


@pytest.mark.parametrize("name", TF1["methods"])
def test_methods_take_what_those_of_the_original_take(name):
    owners = {
        "swapping_saver": legacy.MovingAverageOptimizer,
        "compute_lr": legacy.LARSOptimizer,
        "avoid_updating_slots": legacy.RegAdagradOptimizer,
    }
    owner, _, method = name.rpartition(".")
    cls = getattr(legacy, owner) if owner else owners.get(name, legacy.Optimizer)
    ours = parameters(getattr(cls, method))
    assert ours[: len(TF1["methods"][name])] == TF1["methods"][name]
    assert {p["name"] for p in ours[len(TF1["methods"][name]) :]} <= {"compiled", "inputs"}


@pytest.mark.spread
def test_constants():
    """Constants of the class have the values of TensorFlow 1."""
    for name, value in TF1["constants"].items():
        assert getattr(legacy.AdamOptimizer, name) == value


def test_every_name_is_listed_documented_and_importable():
    listed = legacy.names()
    assert set(RECORDED) <= set(listed)
    for name, (source, maps_to, differs) in listed.items():
        there = getattr(legacy, name)
        assert inspect.getdoc(there)
        assert name in dir(legacy) and name in legacy.__all__
        assert source in ("tf.train", "tf.contrib.opt", "returnn.tf.updater")
        assert differs
        found = keras_tfopt
        for part in maps_to.split(".")[1:]:
            found = getattr(found, part)


@pytest.mark.spread
@pytest.mark.parametrize("name", TABLE)
def test_documentation_says_what_has_no_meaning_and_what_differs(name):
    text = inspect.getdoc(getattr(legacy, name))
    assert f"keras_tfopt.{TABLE[name].ours}" in text
    assert ("use_locking: For reference variables" in text) == (
        "use_locking" in TABLE[name].arguments
    )
    assert TABLE[name].differs in text


@pytest.mark.spread
def test_unknown_name():
    with pytest.raises(AttributeError, match="has no 'AdamsOptimizer'"):
        legacy.AdamsOptimizer  # noqa: B018


@pytest.mark.spread
@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("lars", "LARSOptimizer"),
        ("LARSOptimizer", "LARSOptimizer"),
        ("NeuralOptimizer1", "NeuralOptimizer1"),
        ("normalizedsgd", "NormalizedSGD"),
        ("adamgs", "AdamGSOptimizer"),
    ],
)
def test_get(name, cls):
    """`get` takes a name in any form, or the class itself."""
    assert legacy.get(name) is getattr(legacy, cls)
    assert legacy.get(getattr(legacy, cls)) is getattr(legacy, cls)


def test_get_of_keras():
    """ "keras.adamax" is a class with `minimize` around the optimizer of Keras."""
    x, theirs = make_variable("x", np.ones(2)), make_variable("x2", np.ones(2))
    optimizer = legacy.get("keras.adamax")(0.1)
    stock = keras.optimizers.Adamax(0.1)
    for scale in (1.0, -3.0):
        optimizer.apply_gradients([(np.full(2, scale, "f"), x)])
        stock.apply([ops.full((2,), scale)], [theirs])
    np.testing.assert_array_equal(to_numpy(x), to_numpy(theirs))
    assert isinstance(optimizer.keras, keras.optimizers.Adamax)
    assert set(optimizer.get_slot_names()) == {"momentum", "norm"}
    m = to_numpy(optimizer.get_slot(x, "momentum"))
    np.testing.assert_allclose(m, np.full(2, 0.9 * 0.1 - 0.3), rtol=1e-5)
    with pytest.raises(ValueError, match="keeps to the variables of its first step"):
        optimizer.apply_gradients([(np.ones(1, "f"), make_variable("y", np.ones(1)))])


@pytest.mark.spread
@pytest.mark.parametrize(
    ("name", "error", "match"),
    [
        ("larz", ValueError, "'lars'"),
        ("keras.adamix", ValueError, "adamax"),
        (3, TypeError, "must be a string"),
        (keras.optimizers.Adam, TypeError, "must be a string"),
    ],
)
def test_get_refuses(name, error, match):
    with pytest.raises(error, match=match):
        legacy.get(name)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: legacy.AdamOptimizer(beta1=float("inf")), ValueError, "`beta1`.*inf"),
        (lambda: legacy.AdamOptimizer(name=""), ValueError, "`name`"),
        (lambda: legacy.AdamOptimizer(use_locking="yes"), TypeError, "`use_locking`.*'yes'"),
        (lambda: legacy.AdamOptimizer(betas=1), TypeError, "betas"),
        (lambda: legacy.MomentumOptimizer(0.1), TypeError, "momentum"),
        (lambda: legacy.RMSPropOptimizer(0.1, decay="0.9"), TypeError, "`decay`"),
        (lambda: legacy.FtrlOptimizer(0.1, accum_name=3), TypeError, "`accum_name`"),
        (lambda: legacy.AdagradDAOptimizer(0.1, 0.5), TypeError, "`global_step`"),
        (lambda: legacy.AddSignOptimizer(sign_decay_fn=3), TypeError, "`sign_decay_fn`"),
        (lambda: legacy.MovingAverageOptimizer(3), TypeError, "`opt`"),
        (
            lambda: legacy.VariableClippingOptimizer(legacy.AdamOptimizer(), {3: [0]}, 1.0),
            TypeError,
            "`vars_to_clip_dims`",
        ),
        (
            lambda: legacy.AdamOptimizer(learning_rate=lambda step: 0.1),
            TypeError,
            "`learning_rate`",
        ),
        (lambda: legacy.extend_with_decoupled_weight_decay(3), TypeError, "`base_optimizer`"),
        (lambda: legacy.AMSGradOptimizer(var_list=[3.0]), TypeError, "`var_list`"),
        (lambda: legacy.Optimizer(3), TypeError, "`optimizer`"),
    ],
)
def test_constructors_refuse(make, error, match):
    with pytest.raises(error, match=match):
        make()


def test_overriding_apply_of_a_class_that_does_not_call_it_is_refused():
    with pytest.raises(TypeError, match="BaseCustomOptimizer"):

        class Mine(legacy.CustomGradientDescentOptimizer):
            def _apply(self, grad, var, indices=None):
                pass


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (legacy.AdamGSOptimizer, "the constant 0 never changes"),
        (lambda: legacy.ShampooOptimizer(svd_interval=2), "the constant 0 never changes"),
        (
            lambda: legacy.MovingAverageOptimizer(legacy.AdamOptimizer(), sequential_update=False),
            "sequential_update=False",
        ),
        (
            lambda: legacy.extend_with_decoupled_weight_decay(legacy.LARSOptimizer)(
                1e-3, learning_rate=0.1
            ),
            "acts as well",
        ),
    ],
)
def test_quirks_of_originals_warn(make, match):
    with pytest.warns(UserWarning, match=match) as record:
        make()
    assert Path(record[0].filename) == Path(__file__), "the warning points to the caller"


def test_calls_without_a_quirk_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        legacy.ShampooOptimizer()  # with these defaults nothing depends on the step
        legacy.AdamGSOptimizer(keras.Variable(0, dtype="int32", trainable=False))
        legacy.AdamWOptimizer(1e-4)


def test_the_attribute_keras_is_for_compile():
    """A model that is compiled with `keras` trains as with our own optimizers."""
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    twin = keras.models.clone_model(model)
    twin.set_weights(model.get_weights())
    x, y = np.random.RandomState(0).randn(2, 32, 2).astype("f")
    optimizer = legacy.MovingAverageOptimizer(legacy.LARSOptimizer(0.1, skip_list=["bias"]), 0.5)
    assert optimizer.keras is optimizer.keras
    model.compile(optimizer=optimizer.keras, loss="mse")
    ours = keras_tfopt.MovingAverage(keras_tfopt.LARS(0.1, skip_list=["bias"]), 0.5)
    twin.compile(optimizer=ours, loss="mse")
    for one in (model, twin):
        one.fit(x, y[:, :1], batch_size=8, epochs=2, shuffle=False, verbose=0)
    for a, b in zip(model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    average = to_numpy(optimizer.get_slot(model.trainable_variables[0], "average"))
    assert np.abs(average - model.get_weights()[0]).max() > 1e-6


# ---- Functions -----------------------------------------------------------------------------------


@pytest.mark.spread
def test_matrix_functions_refuse_another_size():
    with pytest.raises(ValueError, match="`mat_a_size`"):
        legacy.matrix_square_root(np.eye(3, dtype="f"), 2)
    with pytest.raises(ValueError, match="`alpha`"):
        legacy.matrix_inverse_pth_root(np.eye(3, dtype="f"), 3, 0.5)


def test_clipping_by_the_global_norm_takes_pairs():
    x, y = make_variable("x", np.ones(2)), make_variable("y", np.ones(1))
    pairs = [(np.array([3.0, 4.0], "f"), x), (None, y)]
    clipped, norm = legacy.clip_gradients_by_global_norm(pairs, 2.5)
    np.testing.assert_allclose(to_numpy(clipped[0][0]), [1.5, 2.0], rtol=1e-6)
    assert clipped[0][1] is x and clipped[1] == (None, y)
    assert float(norm) == 5.0
