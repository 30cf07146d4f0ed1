"""Warnings where changes of variables are lost, as an optimizer computes these from its slots."""

import warnings

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import distributed
from tests.stepping import to_numpy

DECAY = keras_tfopt.DecoupledWeightDecay


def built(optimizer, **options):
    """Return the warnings of a build, the optimizer and its variable, of ones."""
    variable = keras.Variable(np.ones((2, 3)), dtype="float32", name="kernel", **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.build([variable])
    return [str(one.message) for one in caught], optimizer, variable


@pytest.mark.parametrize(
    ("make", "inside"),
    [
        (lambda: DECAY(keras_tfopt.ScheduleFreeAdamW(0.1), 0.1), "ScheduleFreeAdamW"),
        (lambda: DECAY(keras_tfopt.AdagradDA(0.1), 0.1), "AdagradDA"),
        (lambda: keras_tfopt.Lookahead(keras_tfopt.ScheduleFreeSGD(0.1)), "ScheduleFreeSGD"),
        (lambda: keras_tfopt.Cautious(keras_tfopt.ScheduleFree("sgd")), "ScheduleFree"),
        (
            lambda: distributed.ModelAverage(
                keras_tfopt.MovingAverage(keras_tfopt.ScheduleFreeSGD(0.1)), 2
            ),
            "ScheduleFreeSGD",
        ),
    ],
)
def test_wrappers_that_change_variables_warn(make, inside):
    (warning,), *_ = built(make())
    assert f"changes variables, which {inside} inside of it computes from its slots" in warning


@pytest.mark.parametrize(
    "make",
    [
        lambda: DECAY(keras_tfopt.Adam(0.1), 0.1),
        lambda: keras_tfopt.MovingAverage(keras_tfopt.ScheduleFreeSGD(0.1)),
        lambda: keras_tfopt.ScheduleFree(DECAY(keras_tfopt.Adam(0.1), 0.1)),
        lambda: distributed.SyncReplicas(keras_tfopt.ScheduleFreeSGD(0.1), None),
    ],
)
def test_others_do_not(make):
    assert built(make())[0] == []


def test_what_the_warning_says_is_so():
    _, optimizer, variable = built(DECAY(keras_tfopt.ScheduleFreeAdamW(0.1), 0.1))
    for _ in range(3):
        optimizer.apply([keras.ops.zeros((2, 3))], [variable])
    assert np.array_equal(to_numpy(variable), np.ones((2, 3)))


@pytest.mark.parametrize("limit", ["constraint", "max_norm"])
@pytest.mark.parametrize("cls", [keras_tfopt.ScheduleFreeSGD, keras_tfopt.ScheduleFreeAdamW])
def test_averages_that_do_not_obey_limits_warn(cls, limit):
    variable = keras.Variable(np.ones((2, 3)), name="kernel")
    groups = {"kernel": {"max_norm": 1.0}} if limit == "max_norm" else None
    if limit == "constraint":
        variable.constraint = keras.constraints.NonNeg()
    with pytest.warns(UserWarning, match=f"averages that {cls.__name__} keeps.*{limit}"):
        cls(0.1, groups=groups).build([variable])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        keras_tfopt.Momentum(0.1, groups=groups).build([variable])
        around = keras_tfopt.ScheduleFree(keras_tfopt.Momentum(0.1, groups=groups))
        around.build([variable])
