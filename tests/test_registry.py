"""Optimizers by name: `get`, `info` and `list_optimizers`."""

import inspect
import os
import sys
import warnings

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt.__main__ import main
from keras_tfopt.legacy.table import TABLE
from tests.cases import CASES
from tests.helpers.paths import ROOT

OURS = [name for name in keras_tfopt.list_optimizers() if not name.startswith("keras.")]
EVERYTHING = keras_tfopt.list_optimizers()


@pytest.mark.spread
def test_every_public_optimizer_has_a_name():
    listed = {keras_tfopt.info(name).optimizer_class for name in OURS}
    base = {keras_tfopt.Rule, keras_tfopt.Wrapper}
    public = {getattr(keras_tfopt, name) for name in keras_tfopt.__all__}
    optimizers = {
        c for c in public if inspect.isclass(c) and issubclass(c, keras.optimizers.Optimizer)
    }
    assert listed == optimizers - base
    # One rule, one file, one name.
    files = (ROOT / "keras_tfopt").rglob("*.py")
    assert set(OURS) <= {path.stem for path in files}


def test_every_optimizer_of_keras_has_a_name():
    listed = {keras_tfopt.info(n).optimizer_class for n in EVERYTHING if n.startswith("keras.")}
    assert {keras.optimizers.Adam, keras.optimizers.SGD, keras.optimizers.Lion} <= listed


@pytest.mark.parametrize("name", EVERYTHING)
def test_info(name):
    info = keras_tfopt.info(name)
    assert info.name == name and info.description.endswith(".")
    assert name in str(info).splitlines()[0]
    if name in OURS:
        assert "$$" in info.formula and info.slots and info.differences and info.paper
        assert info.row_gradients in str(info)
    else:
        assert info.slots and f"keras.optimizers.{info.optimizer_class.__name__}" in info.originals
    for argument, default in info.defaults.items():
        parameter = inspect.signature(info.optimizer_class).parameters[argument]
        assert parameter.default is default


@pytest.mark.parametrize("name", OURS)
def test_info_says_all_that_the_docstring_says_of_the_formula(name):
    info = keras_tfopt.info(name)
    text = inspect.getdoc(info.optimizer_class)
    assert text.startswith(f"{info.description}\n\n{info.formula}\n\nArgs:")


@pytest.mark.parametrize("name", [name for name in EVERYTHING if "keras.muon" not in name])
def test_bytes_of_state(name):
    """`info` says how large the state of a built optimizer is. Keras's Muon needs a model."""
    info = keras_tfopt.info(name)
    case = {case.cls: case for case in CASES}.get(info.optimizer_class)
    required = {k: v for k, v in info.defaults.items() if v is inspect.Parameter.empty}
    given = {k: "sgd" if k == "inner_optimizer" else case.required[k] for k in required}
    optimizer = info.optimizer_class(**given)
    optimizer.build([keras.Variable(np.zeros((512, 512)), name="kernel")])
    size = sum(4 * np.prod(v.shape) for v in optimizer.variables if len(v.shape))
    # Slots of single dimensions are small compared with the matrix.
    np.testing.assert_allclose(info.bytes_per_parameter, size / 512**2, rtol=0.01, atol=0.02)


@pytest.mark.spread
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_info_on_rows_agrees_with_the_case(case):
    info = keras_tfopt.info(case.cls.__name__)
    if issubclass(case.cls, keras_tfopt.Rule):
        assert info.lazy == (case.sparse != "dense")
        assert info.scope == case.scope


@pytest.mark.spread
def test_filters():
    names = keras_tfopt.list_optimizers
    assert names("ada*", source="tf.train") == ["adadelta", "adagrad", "adagrad_da", "adam"]
    assert "keras.adam" in names("ada*") and "lazy_adam" not in names("ada*")
    assert set(names(["lars", "ggt"])) == {"lars", "ggt"}
    assert names("*ADAM*") == names("*adam*")
    assert names("LazyA*") == ["lazy_adam", "lazy_adam_gs"]
    assert "adam" in names("adam*") and "adam" not in names("adam_*")
    assert set(names("*adam*", exclude="keras.*")) >= {"adam", "lazy_adam", "adam_gs", "adam_w"}
    assert not [n for n in names("*", exclude=["keras.*", "a*"]) if n.startswith(("keras", "a"))]
    assert names(second_order=True) == ["distributed_shampoo", "ggt", "lbfgs", "shampoo", "soap"]
    rows, others = names(row_gradients=True), names(row_gradients=False)
    assert {"lazy_adam", "ftrl", "lars"} <= set(rows)
    assert {"ggt", "keras.adam"} <= set(others) and not set(rows) & set(others)
    assert set(names(source="keras")) == set(EVERYTHING) - set(OURS)
    assert "stochastic_weight_averaging" in names(source="tensorflow_addons")
    assert "normalized_sgd" in names(source="returnn.tf.updater")
    assert dict(names("lars", with_description=True))["lars"].startswith("Layer-wise")
    with pytest.raises(ValueError, match="`source` must be one of.*'tf.contrib.opt'.*'contrib'"):
        names(source="contrib")


@pytest.mark.spread
def test_names_of_the_originals_are_found():
    for original, row in TABLE.items():
        ours = getattr(keras_tfopt, row.ours, None)
        if inspect.isclass(ours):
            found = keras_tfopt.info(original)
            # In the table AdamWOptimizer is DecoupledWeightDecay. We have a class for it.
            assert issubclass(found.optimizer_class, (ours, keras_tfopt.Wrapper)), original
            assert f"{row.source}.{original}" in found.originals
    assert keras_tfopt.info("AdamWOptimizer").optimizer_class is keras_tfopt.AdamW
    assert keras_tfopt.info("LARSOptimizer").optimizer_class is keras_tfopt.LARS
    for spelling in ("LazyAdam", "lazyadam", "LAZY_ADAM", "LazyAdamOptimizer", "lazy-adam"):
        assert keras_tfopt.info(spelling).name == "lazy_adam"
    assert keras_tfopt.info("keras.AdamW").optimizer_class is keras.optimizers.AdamW


@pytest.mark.parametrize("name", EVERYTHING)
def test_get(name):
    info = keras_tfopt.info(name)
    required = [k for k, v in info.defaults.items() if v is inspect.Parameter.empty]
    if required == ["inner_optimizer"]:
        optimizer = keras_tfopt.get(f"{name}(lars)", learning_rate=0.25)
        assert type(optimizer.inner_optimizer) is keras_tfopt.LARS
    elif required:
        missing = next(argument for argument in required if argument != "inner_optimizer")
        with pytest.raises(TypeError, match=missing):
            keras_tfopt.get(f"{name}(lars)" if "inner_optimizer" in required else name)
        return
    else:
        optimizer = keras_tfopt.get(name, learning_rate=0.25)
    assert isinstance(optimizer, info.optimizer_class)
    assert float(optimizer.learning_rate) == 0.25
    again = keras_tfopt.get(keras.optimizers.serialize(optimizer))
    assert type(again) is type(optimizer) and again.get_config() == optimizer.get_config()


@pytest.mark.spread
def test_registered_names_are_found():
    @keras_tfopt.register
    class Halving(keras_tfopt.Rule):
        learning_rate = 0.1
        rate: float = keras_tfopt.within(0, 1, default=0.5)

        def update(self, g, x, s, t):
            return x - self.rate * g, {}

    assert type(keras_tfopt.get("keras_tfopt>LARS")) is keras_tfopt.LARS
    optimizer = keras_tfopt.get("ema(keras_tfopt>Halving)", rate=0.25)
    assert type(optimizer.inner_optimizer) is Halving and optimizer.inner_optimizer.rate == 0.25
    with pytest.raises(ValueError, match="no optimizer 'keras_tfopt>Halfing'"):
        keras_tfopt.get("keras_tfopt>Halfing")


@pytest.mark.spread
def test_a_class_with_a_name_of_the_package_brings_a_warning():
    own = type("LARS", (keras_tfopt.Rule,), {"__module__": __name__})
    try:
        with pytest.warns(UserWarning, match="LARS is the name of another object in this package"):
            keras_tfopt.register(own)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            keras_tfopt.register(own)  # as where a cell of a notebook runs again
    finally:
        keras_tfopt.register(keras_tfopt.LARS)
    assert type(keras_tfopt.get("keras_tfopt>LARS")) is keras_tfopt.LARS


def test_arguments_go_to_the_outermost_optimizer_that_has_them():
    optimizer = keras_tfopt.get(
        "skip_non_finite(decoupled_weight_decay(momentum))",
        learning_rate=0.5,
        weight_decay=0.1,
        momentum=0.7,
        max_consecutive=3,
        clipnorm=1.0,
    )
    decay = optimizer.inner_optimizer
    momentum = decay.inner_optimizer
    assert (optimizer.max_consecutive, decay.weight_decay) == (3, 0.1)
    assert (momentum.momentum, momentum.clipnorm, momentum.weight_decay) == (0.7, 1.0, None)
    assert keras_tfopt.get(optimizer) is optimizer


@pytest.mark.spread
@pytest.mark.parametrize(
    ("identifier", "arguments", "error", "says"),
    [
        ("lazzy_adam", {}, ValueError, "Similar names: .*'lazy_adam'"),
        ("lars(adam)", {}, ValueError, "LARS goes around no other optimizer"),
        ("adam_w(adam)", {}, ValueError, "AdamW goes around no other optimizer"),
        ("moving_average(lars", {}, ValueError, "outer\\(inner\\)"),
        ("moving_average()", {}, ValueError, "outer\\(inner\\)"),
        ("moving_average", {}, TypeError, "inner_optimizer"),
        ("lars", {"beta_1": 0.9}, TypeError, "eeta.*Received: 'beta_1'"),
        ("lars", {"momentum": 2.0}, ValueError, "`momentum` must be"),
        (3, {}, TypeError, "`identifier` must be"),
        ({"class_name": "SGD", "config": {}}, {"momentum": 0.9}, TypeError, "with a name only"),
    ],
)
def test_bad_input(identifier, arguments, error, says):
    with pytest.raises(error, match=says):
        keras_tfopt.get(identifier, **arguments)


@pytest.mark.spread
@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"filter": 3}, TypeError, "`filter` must be a pattern.*Received: 3"),
        ({"exclude": ["ada*", None]}, TypeError, "`exclude` must be a pattern.*None"),
        ({"row_gradients": "yes"}, TypeError, "`row_gradients` must be True, False.*'yes'"),
        ({"second_order": 1}, TypeError, "`second_order` must be True, False.*1"),
    ],
)
def test_bad_filters(arguments, error, says):
    with pytest.raises(error, match=says):
        keras_tfopt.list_optimizers(**arguments)


def test_info_on_optimizers_of_keras():
    adam = keras_tfopt.info("keras.adam")
    assert adam.slots == "`momentum`, `velocity`"  # Keras's names of the two moments
    assert "keras_tfopt.info('adam')" in adam.differences
    assert "arxiv" in keras_tfopt.info("keras.lamb").paper


def test_keras_finds_ours_in_a_configuration():
    for name in ("lars", "moving_average(lazy_adam)", "loss_scale_optimizer(lars)"):
        config = keras.optimizers.serialize(keras_tfopt.get(name, learning_rate=0.25))
        again = keras.optimizers.get(config)
        assert type(again) is type(keras_tfopt.get(name)) and float(again.learning_rate) == 0.25


@pytest.mark.spread
def test_from_a_shell(capsys):
    assert main(["list", "*adam*", "--source", "tf.contrib.opt"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == keras_tfopt.list_optimizers("*adam*", source="tf.contrib.opt")
    assert main(["list", "--second-order"]) == 0
    assert capsys.readouterr().out.startswith("distributed_shampoo ")
    assert main(["info", "LARSOptimizer"]) == 0
    assert capsys.readouterr().out.strip() == str(keras_tfopt.info("lars")).strip()
    assert main(["list", "*adam*", "--no-row-gradients", "--exclude", "keras.*"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == keras_tfopt.list_optimizers("*adam*", exclude="keras.*", row_gradients=False)
    assert main(["list", "*larz*"]) == 1 and "No optimizer" in capsys.readouterr().err
    assert main(["list", "larz"]) == 2 and "Similar names: ['lars'" in capsys.readouterr().err
    assert main(["info", "larz"]) == 2
    assert "Similar names: ['lars'" in capsys.readouterr().err


@pytest.mark.spread
def test_a_shell_may_stop_reading(monkeypatch):
    """`| head -1` closes the pipe while there is more to write."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["list"]) == 0
