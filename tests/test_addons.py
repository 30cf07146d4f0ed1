"""The names of TensorFlow Addons: signatures, calls, and configurations that it saved."""

import inspect
import json
import re

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import addons
from tests.helpers.paths import SIGNATURES
from tests.helpers.stepping import make_variable, several_only, through_json, to_numpy

# Names and arguments are the same on all backends. test_addons_averages.py has what is not.
pytestmark = pytest.mark.spread("torch")
RECORDED = json.loads((SIGNATURES / "addons.json").read_text())
CLASSES, CONFIGURATIONS = RECORDED["classes"], RECORDED["configurations"]
CALLS = {
    "ConditionalGradient": {"learning_rate": 0.9},
    "AdamW": {"weight_decay": 0.1},
    "SGDW": {"weight_decay": 0.1},
    "Lookahead": {"optimizer": "sgd"},
    "MovingAverage": {"optimizer": "sgd"},
    "SWA": {"optimizer": "sgd"},
}


def arguments(function):
    """The arguments of a function, as they are recorded."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    return [
        {
            "name": p.name,
            "kind": p.kind.name,
            "default": "required" if p.default is p.empty else p.default,
        }
        for p in parameters
    ]


def make(name, **given):
    """An optimizer of this name, with what it must be given."""
    return getattr(addons, name)(**{**CALLS.get(name, {}), **given})


def after_steps(optimizer, steps=4, apply=None):
    """Return a kernel and a bias after some steps. The gradients are the same in every call.

    Steps are not compiled, which would take longer than all else.
    """
    rng = np.random.default_rng(3)
    variables = [
        make_variable("dense/kernel", rng.normal(size=(3, 2)).astype("float32")),
        make_variable("dense/bias", rng.normal(size=2).astype("float32")),
    ]
    for _ in range(steps):
        grads = [rng.normal(size=v.shape).astype("float32") for v in variables]
        with keras_tfopt.engine.plain():
            (apply or optimizer.apply)([keras.ops.convert_to_tensor(g) for g in grads], variables)
    return [to_numpy(v.value) for v in variables]


def assert_alike(optimizer, other):
    """Assert that two optimizers move the variables in the same way."""
    for a, b in zip(after_steps(optimizer), after_steps(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


# ---- Names and signatures ------------------------------------------------------------------------


def test_every_name_of_tensorflow_addons_is_there():
    recorded = {*CLASSES, *RECORDED["functions"]}
    assert recorded == set(addons.names()) == set(addons.__all__) - {"Counterpart", "names"}
    assert all(hasattr(addons, name) for name in recorded)
    with pytest.raises(AttributeError, match=r"addons\.names\(\)"):
        addons.Adam  # noqa: B018


@pytest.mark.parametrize("name", [*CLASSES, *RECORDED["functions"]])
def test_arguments_are_those_of_the_original(name):
    expected = CLASSES[name]["arguments"] if name in CLASSES else RECORDED["functions"][name]
    assert arguments(getattr(addons, name)) == expected


@pytest.mark.parametrize(
    ("name", "method"),
    [
        (name, method)
        for name in ("MovingAverage", "SWA", "AveragedOptimizerWrapper")
        for method in CLASSES[name]["methods"]
        if method in ("assign_average_vars", "shadow_copy", "swap_weights")
        and name in addons.CLASSES
    ],
)
def test_methods_take_what_those_of_the_original_take(name, method):
    assert arguments(getattr(getattr(addons, name), method)) == CLASSES[name]["methods"][method]


def test_documentation_names_every_argument():
    for name, cls in addons.CLASSES.items():
        for argument in CLASSES[name]["arguments"]:
            assert f"    {'**' * (argument['name'] == 'kwargs')}{argument['name']}: " in cls.__doc__


def test_examples_of_the_documentation_run():
    for name, cls in addons.CLASSES.items():
        (call,) = re.findall(r">>> optimizer = (.*)", cls.__doc__)
        made = eval(call, {"keras": keras, "keras_tfopt": keras_tfopt})
        assert type(made) is getattr(addons, name)


# ---- Arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", addons.CLASSES)
def test_a_class_is_ours_with_the_defaults_of_the_original(name):
    optimizer = make(name)
    assert type(optimizer).__name__ == name and isinstance(optimizer, keras.optimizers.Optimizer)
    ours = addons.names()[name].maps_to.removeprefix("keras_tfopt.")
    assert isinstance(optimizer, getattr(keras_tfopt, ours))
    again = through_json(optimizer)
    assert type(again) is type(optimizer) and again.get_config() == optimizer.get_config()
    assert_alike(optimizer, again)


def test_arguments_by_position():
    """Positional arguments come in the order that TensorFlow Addons has."""
    assert_alike(
        addons.Yogi(0.02, 0.8, 0.9), keras_tfopt.Yogi(0.02, beta_1=0.8, beta_2=0.9, epsilon=1e-3)
    )
    assert_alike(addons.AdamW(0.1, 0.02), keras_tfopt.AdamW(0.02, weight_decay=0.1, epsilon=1e-7))


def test_options_of_keras_2():
    """`lr`, `decay`, `use_locking` and `clipnorm` do what they did in Keras 2."""
    falling = keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 0.5)
    assert_alike(addons.LazyAdam(lr=0.1, decay=0.5), addons.LazyAdam(falling))
    assert_alike(addons.COCOB(use_locking=True), addons.COCOB())
    clipped = addons.LazyAdam(0.1, clipnorm=0.01)
    assert clipped.clipnorm == 0.01


@pytest.mark.parametrize(
    ("make_one", "error", "message"),
    [
        (lambda: addons.LazyAdam(falling, decay=0.5), TypeError, "`decay` of LazyAdam.*schedule"),
        (lambda: addons.LazyAdam(decay=-0.5), ValueError, "`decay`"),
        (lambda: addons.LazyAdam(-0.5), ValueError, "`learning_rate`"),
        (lambda: addons.LazyAdam("fast"), TypeError, "`learning_rate`"),
        (lambda: addons.COCOB(use_locking=3), TypeError, "`use_locking`"),
        (lambda: addons.Yogi(beta1=2.0), ValueError, "`beta1`"),
        (lambda: addons.LazyAdam(beta1=0.5), TypeError, "Did you mean 'beta_1'"),
        (lambda: addons.Lookahead("sgd", clipnorm=1.0), TypeError, "belongs to the optimizer insi"),
        (lambda: addons.AdamW(), TypeError, "weight_decay"),
        (lambda: addons.AveragedOptimizerWrapper("sgd"), TypeError, "MovingAverage or SWA"),
        (lambda: addons.DecoupledWeightDecayExtension(0.1), TypeError, "extend_with_decoupled"),
    ],
)
def test_what_is_refused(make_one, error, message):
    """Arguments without a counterpart raise an error that names them."""
    with pytest.raises(error, match=message):
        make_one()


@pytest.mark.parametrize("name", addons.CLASSES)
def test_bad_input_is_refused_by_every_class(name):
    """The message names the argument and shows the value."""
    row = addons.CLASSES[name]._row
    numbers = [n for n, default in row.arguments.items() if isinstance(default, float)]
    numbers += ["learning_rate"] * ("learning_rate" in CALLS.get(name, {}))
    wrong = [(number, value) for number in numbers for value in (-0.5, "fast", float("nan"))]
    for argument, value in [*wrong, ("decay", -0.5), ("decay", "fast"), ("use_locking", "no")]:
        with pytest.raises((TypeError, ValueError)) as error:
            make(name, **{argument: value})
        assert f"`{argument}`" in str(error.value) and repr(value) in str(error.value)


@pytest.mark.parametrize("name", addons.CLASSES)
def test_arguments_of_keras_2_have_their_meaning_or_an_error(name):
    """`use_locking` means nothing; `lr` and `decay` belong to what has a learning rate."""
    assert_alike(make(name, use_locking=True), make(name))
    if "optimizer" in addons.CLASSES[name]._row.arguments:
        for argument in ("lr", "decay"):
            with pytest.raises(TypeError, match="belongs to the optimizer inside"):
                make(name, **{argument: 0.5})
        return
    given = {key: value for key, value in CALLS.get(name, {}).items() if key != "learning_rate"}
    cls = getattr(addons, name)
    if name == "COCOB":  # has no learning rate
        return
    if name == "ConditionalGradient":  # requires it under its name, in the original, too
        with pytest.raises(TypeError, match="learning_rate"):
            cls(lr=0.25)
        return
    falling = keras.optimizers.schedules.InverseTimeDecay(0.25, 1, 0.5)
    assert_alike(cls(**given, lr=0.25, decay=0.5), cls(**given, learning_rate=falling))


falling = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)


# ---- Weight decay --------------------------------------------------------------------------------


def test_exclusions_by_name():
    """Variables that `exclude_from_weight_decay` matches do not decay; the config keeps it."""
    kernel, bias = after_steps(addons.AdamW(0.1, 0.01))
    kernel_too, still = after_steps(addons.AdamW(0.1, 0.01, exclude_from_weight_decay=["bias"]))
    np.testing.assert_array_equal(kernel, kernel_too)
    assert np.any(bias != still)
    excluded = addons.LAMB(0.01, weight_decay=0.1, exclude_from_weight_decay=["bias"])
    again = through_json(excluded)
    assert_alike(excluded, again)


def test_variables_that_decay_by_step():
    """`decay_var_list` acts as an exclusion does, and must not change between steps."""
    optimizer = addons.AdamW(0.1, 0.01)

    def apply(grads, variables):
        optimizer.apply_gradients(list(zip(grads, variables)), decay_var_list=variables[:1])

    found = after_steps(optimizer, apply=apply)
    excluded = after_steps(addons.AdamW(0.1, 0.01, exclude_from_weight_decay=["bias"]))
    for a, b in zip(found, excluded, strict=True):
        np.testing.assert_array_equal(a, b)
    other = make_variable("other", np.zeros(2, "float32"))
    with pytest.raises(ValueError, match="`decay_var_list` must be the same in all steps"):
        optimizer.apply_gradients([(other.value, other)], decay_var_list=[other])


@pytest.mark.parametrize("base", [addons.LazyAdam, keras.optimizers.SGD])
def test_extended_classes(base):
    """The class made by the function is made once, decays, and is saved with its arguments."""
    cls = addons.extend_with_decoupled_weight_decay(base)
    assert cls is addons.extend_with_decoupled_weight_decay(base)
    optimizer = cls(0.1, 0.01, exclude_from_weight_decay=["bias"])
    assert isinstance(optimizer, addons.DecoupledWeightDecayExtension)
    assert not isinstance(base(), addons.DecoupledWeightDecayExtension)
    expected = keras_tfopt.DecoupledWeightDecay(base(0.01), 0.1, decay_variables=["kernel"])
    assert_alike(optimizer, expected)
    assert_alike(cls(0.1, 0.01, exclude_from_weight_decay=["bias"]), through_json(optimizer))


# ---- Several optimizers --------------------------------------------------------------------------


@several_only
def test_layers_have_optimizers_of_their_own(tmp_path):
    """Each layer moves by its optimizer; a layer without one stays."""
    keras.utils.set_random_seed(1)
    first, still, last = (keras.layers.Dense(3) for _ in range(3))
    pairs = [(addons.LazyAdam(0.1), first), ("sgd", [last])]
    optimizer = addons.MultiOptimizer(pairs)  # layers have no variables so far
    model = keras.Sequential([keras.Input((3,)), first, still, last])
    model.compile(optimizer, "mse")
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    before = [layer.get_weights() for layer in (first, still, last)]
    model.fit(x, x, verbose=0)
    moved = [
        any(np.any(a != b) for a, b in zip(old, layer.get_weights(), strict=True))
        for old, layer in zip(before, (first, still, last), strict=True)
    ]
    assert moved == [True, False, True]
    np.testing.assert_allclose(  # a first step of Adam has the length of the learning rate
        np.abs(first.get_weights()[0] - before[0][0]), 0.1, rtol=1e-3
    )
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for one in (model, again):
        one.fit(x, x, verbose=0)
    for a, b in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("order", ["abc", "ca", "cb+a"])
@several_only
def test_a_saved_model_goes_on_with_each_state_in_its_layer(order, tmp_path):
    """Layers of equal shapes: states of optimizers could go to one another."""
    keras.utils.set_random_seed(1)
    layers = {name: keras.layers.Dense(3, activation="tanh", name=name) for name in "abc"}
    model = keras.Sequential([keras.Input((3,)), *layers.values()])
    pairs = [
        (addons.LazyAdam(0.01 * (1 + number)), layers[name])
        for number, name in enumerate(order.partition("+")[0])
    ]
    if "+" in order:
        pairs.append((pairs[-1][0], layers["a"]))  # one optimizer in two pairs
    model.compile(addons.MultiOptimizer(pairs), "mse")
    x = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
    model.fit(x, x**2, batch_size=4, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert int(again.optimizer.iterations) == int(model.optimizer.iterations) == 6
    for one in (model, again):
        one.fit(x, x**2, batch_size=4, shuffle=False, verbose=0)
    for a, b in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("around", (None, "MovingAverage", "Lookahead", "LossScaleOptimizer"))
@several_only
def test_callbacks_set_the_rates_of_all_optimizers(around):
    """A layer without an optimizer stays, although its stand-in has a learning rate as well."""
    first, still = keras.layers.Dense(3), keras.layers.Dense(3)
    optimizer = addons.MultiOptimizer([(keras_tfopt.GradientDescent(1.0, name="first"), first)])
    if around is not None:
        optimizer = getattr(keras_tfopt, around)(optimizer)
    model = keras.Sequential([keras.Input((3,)), first, still])
    model.compile(optimizer, "mse")
    before = [layer.get_weights()[0] for layer in (first, still)]
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    rates = keras.callbacks.LearningRateScheduler(lambda epoch: 0.125)
    plateaus = keras.callbacks.ReduceLROnPlateau(monitor="loss")
    history = model.fit(x, x, verbose=0, callbacks=[rates, plateaus]).history
    assert history["learning_rate_first"] == [0.125]
    assert np.any(first.get_weights()[0] != before[0])
    assert np.array_equal(still.get_weights()[0], before[1])


@pytest.mark.parametrize(
    "pairs",
    [None, [], 3, [("sgd", "dense")], ["sgd"], [("sgd", [])], [(3, keras.layers.Dense(1))]],
)
@several_only
def test_wrong_pairs(pairs):
    """The error for wrong pairs names the argument `optimizers_and_layers`."""
    with pytest.raises((TypeError, ValueError), match="`optimizers_and_layers`"):
        addons.MultiOptimizer(pairs)
