"""Warnings where changes of variables are lost, as an optimizer computes these from its slots."""

import warnings

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import distributed
from tests.helpers.stepping import to_numpy

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
        (lambda: DECAY(keras_tfopt.AdagradDA(0.1), 0.1), "AdagradDA"),
        (lambda: keras_tfopt.Lookahead(keras_tfopt.ScheduleFree("sgd")), "ScheduleFree"),
        (lambda: keras_tfopt.Cautious(keras_tfopt.ScheduleFree("sgd")), "ScheduleFree"),
        (
            lambda: distributed.ModelAverage(
                keras_tfopt.MovingAverage(keras_tfopt.AdagradDA(0.1)), 2
            ),
            "AdagradDA",
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
        lambda: DECAY(keras_tfopt.ScheduleFreeAdamW(0.1), 0.1),
        lambda: keras_tfopt.Lookahead(keras_tfopt.ScheduleFreeSGD(0.1)),
        lambda: keras_tfopt.MovingAverage(keras_tfopt.AdagradDA(0.1)),
        lambda: keras_tfopt.ScheduleFree(DECAY(keras_tfopt.Adam(0.1), 0.1)),
        lambda: distributed.SyncReplicas(keras_tfopt.ScheduleFreeSGD(0.1), None),
    ],
)
def test_others_do_not(make):
    assert built(make())[0] == []


def test_what_the_warning_says_is_so():
    _, optimizer, variable = built(DECAY(keras_tfopt.AdagradDA(0.1), 0.1))
    for _ in range(3):
        optimizer.apply([keras.ops.zeros((2, 3))], [variable])
    assert np.array_equal(to_numpy(variable), np.zeros((2, 3)))  # decayed, it would be 0.729


@pytest.mark.parametrize("cls", [keras_tfopt.ScheduleFreeSGD, keras_tfopt.ScheduleFreeAdamW])
def test_rules_without_schedule_follow_changes(cls):
    """Gradients are given, so the path does not depend on where it starts."""
    paths = []
    for change in (0.0, 2.0):
        _, optimizer, variable = built(cls(0.1))
        for n in range(6):
            if n == 3:
                variable.assign(variable + change)
            optimizer.apply([keras.ops.full((2, 3), 1.0 + n % 2)], [variable])
        (_, average), *_ = optimizer.averages_now(lambda v: v.value)
        paths.append((to_numpy(variable), to_numpy(average)))
    for before, after in zip(*paths, strict=True):
        np.testing.assert_allclose(after - before, 2.0, rtol=1e-5)
    _, optimizer, variable = built(DECAY(cls(0.1), 0.1))
    for _ in range(3):
        optimizer.apply([keras.ops.zeros((2, 3))], [variable])
    np.testing.assert_allclose(to_numpy(variable), np.full((2, 3), 0.9**3), rtol=1e-6)


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
