"""What optimizers refuse in `groups`: at once, or before the first step."""

import math

import keras
import pytest

import keras_tfopt
from tests.helpers.compare import assert_same
from tests.helpers.grouped import DATA, START, network
from tests.helpers.stepping import Runner, to_numpy


@pytest.mark.spread
@pytest.mark.parametrize(
    ("groups", "message"),
    (
        ({"kernel": {"beta_3": 0.5}}, "'kernel'.*no setting 'beta_3'.*Did you mean 'beta_1'"),
        ({"kernel": {"momentum": 0.5}}, "Adam has no setting 'momentum'.*There are: learning_rate"),
        ({"kernel": {"learning_rate": 0.5}}, "learning_rate_factor"),
        ({"kernel": {"learning_rate_factor": -0.5}}, "finite number >= 0 .*-0.5"),
        ({"kernel": {"learning_rate_factor": math.nan}}, "finite number >= 0 .*nan"),
        ({"kernel": {"learning_rate_factor": "1"}}, "finite number >= 0 .*'1'"),
        ({"kernel": {"weight_decay": -1}}, "`weight_decay` must be a finite number >= 0"),
        ({"kernel": {"max_norm": 0}}, "`max_norm` must be a finite number > 0"),
        ({"kernel": {"clip_unitwise": math.inf}}, "`clip_unitwise` must be a finite number > 0"),
        ({"kernel": {"frozen": 1}}, "`frozen` must be True or False"),
        ({"kernel": {"frozen": True, "beta_1": 0.5}}, "no other settings than `frozen`"),
        ({"kernel": {"beta_1": 1.0}}, r"'kernel'.*`beta_1` must be a number in \[0, 1\)"),
        ({"(": {}}, "regular expressions"),
        ({"": {"frozen": True}}, "no empty pattern"),
        ({"kernel": 0.5}, "dictionary from regular expressions"),
        ("kernel", "dictionary from regular expressions"),
    ),
)
def test_bad_settings_are_refused_at_once(groups, message):
    with pytest.raises((TypeError, ValueError), match=message):
        keras_tfopt.Adam(groups=groups)


@pytest.mark.parametrize(
    ("groups", "message"),
    (
        ({"a/kernle": {}}, "match variables. Received: 'a/kernle'.*'a/kernel'"),
        ({"a/": {"frozen": True}, "bias": {"frozen": False}}, "'a/bias' must not be in a group"),
        ({"^kernel": {}}, "matches none. Near paths: .'a/kernel', 'b/kernel'"),
        (lambda variable: {"beta_3": 0.5}, "no setting 'beta_3'"),
        (lambda variable: 0.5, "settings must be a dictionary or None"),
    ),
)
def test_groups_that_do_not_fit_the_model_are_refused_before_the_first_step(groups, message):
    optimizer = keras_tfopt.Adam(groups=groups)
    variables = [
        keras.Variable(value, name=path.replace("/", "_")) for path, value in START.items()
    ]
    before = [to_numpy(variable) for variable in variables]
    with pytest.raises((TypeError, ValueError), match=message):
        Runner(optimizer, START)
    with pytest.raises((TypeError, ValueError)):
        optimizer.apply([keras.ops.ones_like(v) for v in variables], variables)
    assert_same([to_numpy(variable) for variable in variables], before)
    assert not optimizer.built


def test_the_name_of_a_sequential_is_part_of_paths():
    model = network()
    model.compile(keras_tfopt.Adam(groups={"^head/": {"frozen": True}}), "mse")
    with pytest.raises(ValueError, match=r"All paths begin with 'sequential\w*/'.*head/kernel"):
        model.fit(*DATA, verbose=0)


def test_errors_of_functions_reach_the_user():
    groups = [{"bias": {"frozen": True}}, lambda variable: {}[variable.path]]
    with pytest.raises(KeyError, match="a/kernel"):
        Runner(keras_tfopt.Adam(groups=groups), START)


@pytest.mark.spread
def test_hyperparameters_of_all_variables_together_are_refused():
    with pytest.raises(ValueError, match="`beta_1` of GGT belongs to all variables together"):
        keras_tfopt.GGT(groups={"kernel": {"beta_1": 0.5}})


@pytest.mark.spread
def test_groups_are_given_once_and_to_optimizers_that_have_them():
    groups = {"kernel": {"learning_rate_factor": 0.5}}
    with pytest.raises(ValueError, match="must be given once"):
        keras_tfopt.MovingAverage(keras_tfopt.Adam(groups=groups), groups=groups)
    with pytest.raises(TypeError, match="must be one of keras_tfopt"):
        keras_tfopt.MovingAverage(keras.optimizers.Adam(), groups=groups)
