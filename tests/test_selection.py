"""Arguments that choose variables: their choice, their configuration, and warnings.

Optimizers choose when they are built, which is the same in all modes.
"""

import json
import re
import warnings

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import legacy
from tests.helpers.stepping import Runner, make_variable, through_json, to_numpy
from tests.reference.lars import LARS

LazyAdamW = keras_tfopt.extend_with_decoupled_weight_decay(keras_tfopt.LazyAdam)


StockW = keras_tfopt.extend_with_decoupled_weight_decay(keras.optimizers.Adam)


DECAYING = {
    "DecoupledWeightDecay": lambda **kw: keras_tfopt.DecoupledWeightDecay(
        keras_tfopt.Momentum(0.1), 0.5, **kw
    ),
    "AdamW": lambda **kw: keras_tfopt.AdamW(0.1, weight_decay=0.5, **kw),
    "MomentumW": lambda **kw: keras_tfopt.MomentumW(0.1, weight_decay=0.5, **kw),
    "LazyAdamW": lambda **kw: LazyAdamW(0.1, weight_decay=0.5, **kw),
    "of stock Keras": lambda **kw: StockW(0.1, weight_decay=0.5, **kw),
}


every_decay = pytest.mark.parametrize("name", DECAYING)


SHAPES = {
    "conv1_bn/gamma": (2,),
    "conv1_bn/kernel": (2, 2),
    "dense/kernel": (2, 2),
    "dense/bias": (2,),
}


@keras.saving.register_keras_serializable("tests")
def in_dense(variable):
    return variable.path.startswith("dense/") and variable.dtype == "float32"


def unregistered(variable):
    return len(variable.shape) == 1


def decayed(optimizer):
    """Return the paths of variables that shrink in a step in which all gradients are zero."""
    runner = Runner(optimizer, {p: np.ones(s) for p, s in SHAPES.items()})
    runner.step({path: np.zeros(shape) for path, shape in SHAPES.items()})
    return {path for path, value in runner.values.items() if np.all(value < 1)}


def warned(act):
    """Return the warnings of a call about patterns that match no variable."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act()
    return [str(w.message) for w in found if "no variable of the model matches" in str(w.message)]


# Choices


@pytest.mark.spread
@every_decay
@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, set(SHAPES)),
        ([], set()),
        ("kernel$", {"conv1_bn/kernel", "dense/kernel"}),
        (re.compile("DENSE", re.IGNORECASE), {"dense/kernel", "dense/bias"}),
        (keras_tfopt.no_vectors, {"conv1_bn/kernel", "dense/kernel"}),
        (in_dense, {"dense/kernel", "dense/bias"}),
        (lambda variable: variable.shape == (2,), {"conv1_bn/gamma", "dense/bias"}),
        (["gamma", in_dense], {"conv1_bn/gamma", "dense/kernel", "dense/bias"}),
    ],
)
def test_variables_that_decay(name, choice, expected):
    assert decayed(DECAYING[name](decay_variables=choice)) == expected


@pytest.mark.spread
@pytest.mark.parametrize(
    ("choice", "skipped"),
    [
        (["bias", "bn/g"], {"dense/bias", "conv1_bn/gamma"}),
        ([re.compile(r"bias$")], {"dense/bias"}),
        ([], set()),
        (in_dense, {"dense/kernel", "dense/bias"}),
        ([in_dense, "gamma"], {"dense/kernel", "dense/bias", "conv1_bn/gamma"}),
        (["dense/bias:0", "dense/k:0"], {"dense/bias"}),  # names of TensorFlow
        (["."], set()),  # text in a path, not a regular expression
    ],
)
def test_variables_that_lars_skips(choice, skipped):
    """The reference in NumPy is given the full paths of the variables."""
    optimizer = keras_tfopt.LARS(0.5, eeta=0.1, weight_decay=0.1, skip_list=choice)
    formula = LARS(0.5, eeta=0.1, weight_decay=0.1, skip_list=sorted(skipped))
    assert_first_step(optimizer, lambda path: formula)


def assert_first_step(optimizer, formula_of):
    """Compare a step of a copy of the optimizer with that of the reference for each path."""
    runner = Runner(through_json(optimizer), {p: np.ones(s) for p, s in SHAPES.items()})
    runner.step({path: np.full(shape, 0.3) for path, shape in SHAPES.items()})
    for path, shape in SHAPES.items():
        x, formula = np.ones(shape), formula_of(path)
        expected, _ = formula.update(0.3 * x, x, formula.slots(x), 1, path)
        np.testing.assert_allclose(runner.values[path], expected, rtol=1e-6, err_msg=path)


@pytest.mark.spread
def test_no_vectors_as_a_skip_list_is_refused():
    with pytest.raises(ValueError, match="`skip_list`.*normalization_and_bias"):
        keras_tfopt.LARS(skip_list=keras_tfopt.no_vectors)


@keras.saving.register_keras_serializable("tests")
def wide(variable):
    return variable.shape == (4, 3)


@pytest.mark.parametrize("choice", (wide, ["words", wide], lambda v: "words" in v.path))
def test_row_variables(choice):
    """Rows without a gradient keep their moments. In other variables these decay."""
    names = ("words", "wide", "other")
    shapes = {"words": (4, 2), "wide": (4, 3), "other": (4, 1)}
    runner = Runner(
        keras_tfopt.LazyAdam(0.1, row_variables=choice), {n: np.ones(shapes[n]) for n in names}
    )
    for row in (0, 1):
        runner.step({n: (np.arange(4) == row)[:, None] * np.ones(shapes[n]) for n in names})
    lazy = {n for n in names if np.isclose(runner.slots[n]["m"][0, 0], 0.1, rtol=1e-6)}
    if choice is wide:
        assert lazy == {"wide"}
    else:
        assert lazy == ({"words", "wide"} if isinstance(choice, list) else {"words"})


def test_variables_that_are_clipped():
    dims = [(keras_tfopt.no_vectors, [0]), ("gamma", [])]
    optimizer = through_json(keras_tfopt.VariableClipping(keras_tfopt.Momentum(0.0), dims, 0.5))
    runner = Runner(optimizer, {p: np.ones(s) for p, s in SHAPES.items()})
    runner.step({path: np.ones(shape) for path, shape in SHAPES.items()})
    for path, value in runner.values.items():
        each = 0.5 / np.sqrt(2) if "kernel" in path else 0.5 if "gamma" in path else 1.0
        np.testing.assert_allclose(value, each, rtol=1e-6, err_msg=path)


def test_arguments_take_variables_themselves():
    table = make_variable("a/table", np.ones((2, 2)))
    for optimizer in (
        keras_tfopt.LARS(skip_list=[table]),
        keras_tfopt.LazyAdam(row_variables=table),
        keras_tfopt.DecoupledWeightDecay("sgd", 0.1, table),
        keras_tfopt.VariableClipping("sgd", [(table, [0])], 1.0),
    ):
        assert not warned(lambda o=optimizer: o.build([table])), optimizer
        other = make_variable("ba/table", np.ones((2, 2)))
        config = optimizer.get_config()
        del config["variable_paths"]
        again = type(optimizer).from_config(config)
        assert len(warned(lambda o=again, v=other: o.build([v]))) == 1


# Functions in configurations


MAKERS = {
    "skip_list": lambda f: keras_tfopt.LARS(skip_list=f),
    "skip_list, in a list": lambda f: keras_tfopt.LARS(skip_list=["bias", f]),
    "row_variables": lambda f: keras_tfopt.LazyAdam(row_variables=f),
    "decay_variables": lambda f: keras_tfopt.AdamW(weight_decay=0.1, decay_variables=f),
    "vars_to_clip_dims": lambda f: keras_tfopt.VariableClipping("sgd", [(f, [0])], 1.0),
}


@pytest.mark.parametrize("name", MAKERS)
def test_registered_functions_are_saved_and_others_are_refused(name):
    optimizer = MAKERS[name](in_dense)
    loaded = through_json(optimizer)
    assert loaded.get_config() == optimizer.get_config()
    assert "in_dense" in json.dumps(loaded.get_config())
    for function in (unregistered, lambda variable: True):
        optimizer = MAKERS[name](function)  # training with it works
        optimizer.build([make_variable("dense/bias", np.ones(2))])
        with pytest.raises(ValueError, match=f"`{name.split(',')[0]}`.*register_keras_serializ"):
            optimizer.get_config()


@pytest.mark.spread
def test_a_function_that_nobody_registered_is_not_looked_up():
    config = keras_tfopt.AdamW(weight_decay=0.1, decay_variables=in_dense).get_config()
    config["decay_variables"] = {**config["decay_variables"], "config": "os>getcwd"}
    with pytest.raises(ValueError, match="must be registered.*getcwd"):
        keras_tfopt.AdamW.from_config(config)


# Patterns that match nothing


@pytest.mark.parametrize(
    ("argument", "make"),
    {
        "skip_list": lambda: keras_tfopt.LARS(skip_list=["bais"]),
        "row_variables": lambda: keras_tfopt.Adam(row_variables="bais$"),
        "exclude_from_weight_decay": lambda: excluding(keras_tfopt.Adam(weight_decay=0.1)),
        "exclude_from_weight_decay ": lambda: excluding(keras_tfopt.AdamW(weight_decay=0.1)),
        "decay_variables": lambda: keras_tfopt.AdamW(weight_decay=0.1, decay_variables=["bais"]),
        "vars_to_clip_dims": lambda: keras_tfopt.VariableClipping("sgd", {"bais$": [0]}, 1.0),
        "variables_to_average": lambda: keras_tfopt.SyncReplicas(
            "sgd", 1, variable_averages=0.9, variables_to_average="bais"
        ),
    }.items(),
)
def test_a_pattern_that_matches_nothing_warns_once(argument, make):
    variables = [make_variable(path, np.ones(shape)) for path, shape in SHAPES.items()]
    optimizer = keras_tfopt.Lookahead(make())

    def train():
        optimizer.build(variables)
        with keras_tfopt.engine.plain():
            for _ in range(2):
                optimizer.apply([keras.ops.zeros(v.shape) for v in variables], variables)

    (text,) = warned(train)
    assert text.startswith(f"`{argument.strip()}` of ") and "'bais" in text
    assert "'bias'" in text and "dense/kernel" not in text, "only similar names are shown"


def test_no_dimensions_at_all_clip_nothing_and_warn_of_nothing():
    variable = make_variable("kernel", np.ones((2, 3)))
    by_class = keras_tfopt.VariableClipping(keras_tfopt.GradientDescent(0.5), {}, 0.1)
    by_legacy = legacy.VariableClippingOptimizer(
        legacy.GradientDescentOptimizer(0.5), {}, max_norm=0.1
    )
    gradient = keras.ops.ones((2, 3))
    assert not warned(lambda: by_class.apply([gradient], [variable]))
    assert not warned(lambda: by_legacy.apply_gradients([(gradient, variable)]))
    assert np.all(to_numpy(variable) == 0.0)


def excluding(optimizer):
    optimizer.exclude_from_weight_decay(var_names=["bais"])
    return optimizer


def test_the_warning_shows_some_paths_if_none_is_similar():
    optimizer = keras_tfopt.LARS(skip_list=["bias", "batch_norm"])
    variables = [make_variable(path, np.ones(shape)) for path, shape in SHAPES.items()]
    (text,) = warned(lambda: optimizer.build(variables))
    assert "'batch_norm'" in text and "'conv1_bn/gamma'" in text


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras_tfopt.AdamW(weight_decay=0.1, decay_variables=[]),
        lambda: keras_tfopt.LARS(skip_list=[]),
        lambda: keras_tfopt.VariableClipping("sgd", lambda v: [], 1.0),
        lambda: excluding(keras_tfopt.Adam()),  # without weight decay
    ],
)
def test_choosing_nothing_on_purpose_does_not_warn(make):
    variables = [make_variable(path, np.ones(shape)) for path, shape in SHAPES.items()]
    assert not warned(lambda: make().build(variables))


# Exclusion from weight decay


@pytest.mark.spread
@every_decay
def test_exclusion_acts_on_wrappers(name):
    for how, left in (
        ({"var_names": ["bias", "gamma"]}, {"conv1_bn/kernel", "dense/kernel"}),
        ({"var_names": "bias"}, set(SHAPES) - {"dense/bias"}),
        ({"var_list": [make_variable("dense/kernel", np.ones((2, 2)))]}, None),
    ):
        optimizer = DECAYING[name]()
        optimizer.exclude_from_weight_decay(**how)
        left = set(SHAPES) - {"dense/kernel"} if left is None else left
        assert decayed(optimizer) == left
        fresh = DECAYING[name]()
        fresh.exclude_from_weight_decay(**how)
        assert through_json(fresh).get_config() == fresh.get_config()
        assert decayed(through_json(fresh)) == left


def test_wrappers_without_decay_pass_the_exclusion_on():
    inner = keras_tfopt.AdamW(0.1, weight_decay=0.5, decay_variables="kernel")
    for make in (keras_tfopt.MovingAverage, keras_tfopt.SkipNonFinite):
        optimizer = make(keras.optimizers.deserialize(keras.optimizers.serialize(inner)))
        optimizer.exclude_from_weight_decay(var_names=["dense"])
        assert decayed(optimizer) == {"conv1_bn/kernel"}
    scaled = keras_tfopt.LossScaleOptimizer(inner, initial_scale=2.0)
    scaled.exclude_from_weight_decay(var_names=["dense"])
    kernels = [make_variable(f"{name}/kernel", np.ones((2, 2))) for name in ("dense", "other")]
    scaled.apply([keras.ops.zeros((2, 2))] * 2, kernels)
    assert [float(to_numpy(v)[0, 0]) for v in kernels] == [1.0, 0.5]


def test_exclusion_also_acts_on_the_decay_of_the_optimizer_inside():
    for inner in (keras_tfopt.Momentum(0.1, weight_decay=1.0), keras_tfopt.LARS(1.0, eeta=1.0)):
        optimizer = keras_tfopt.DecoupledWeightDecay(inner, 0.5)
        optimizer.exclude_from_weight_decay(var_names=["."])
        assert decayed(optimizer) == set()


@pytest.mark.spread
def test_exclusion_from_the_decay_of_lars():
    optimizer = keras_tfopt.LARS(0.5, eeta=0.1, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    assert_first_step(
        optimizer, lambda path: LARS(0.5, eeta=0.1, weight_decay=0.1 * ("bias" not in path))
    )


@every_decay
def test_exclusion_is_refused_once_built_and_changes_nothing(name):
    optimizer = DECAYING[name]()
    with pytest.raises(ValueError, match="var_names"):
        optimizer.exclude_from_weight_decay(var_names=["("])
    runner = Runner(optimizer, {p: np.ones(s) for p, s in SHAPES.items()})
    runner.step({path: np.zeros(shape) for path, shape in SHAPES.items()})
    before = optimizer.get_config()
    with pytest.raises(ValueError, match="before the optimizer is built"):
        optimizer.exclude_from_weight_decay(var_names=["bias"])
    assert optimizer.get_config() == before and "no_weight_decay" not in before
