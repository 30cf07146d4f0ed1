"""Cases of wrappers: optimizers around another optimizer, whose class is `inner`.

Arguments of a variant that the wrapper does not have go to the optimizer inside.
"""

import math

import keras

import keras_tfopt
from keras_tfopt.wrappers.sgd_w import AccumulatedSteps
from tests.cases.case import Case, Training
from tests.cases.rules import ADAM_ARGUMENTS, BELOW_ONE, COUNT, UP_TO_ONE

# Values that arguments of one kind refuse.
PATTERN = (3, "(", [3], ["("])
NUMBER_WITHOUT_DEFAULT = (None, "0.5", -0.1, math.nan, math.inf, True, [0.5])
COUNT_FROM_ZERO = (-1, 2.5, "3", 2**31, None)

AVERAGES_FROM_ZERO = {
    "float32 defaults": (
        100,
        "averages of what started at zero are as far off as the first steps of Adam, whose bias "
        "correction 1 - 0.999**t has an error of 6e-5 in float32",
    )
}


@keras.saving.register_keras_serializable("tests")
def first_dimension(variable):
    """Return the dimensions to clip: the first, or none for a scalar."""
    return [0] if len(variable.shape) else []


@keras.saving.register_keras_serializable("tests")
def last_dimension(variable):
    return [-1] if len(variable.shape) else None


CASES = (
    Case(
        keras_tfopt.MovingAverage,
        inner=keras_tfopt.Momentum,
        variants={
            "decay": dict(average_decay=0.8, learning_rate=0.05),
            "steps": dict(average_decay=0.3, num_updates=True, learning_rate=0.05),
            "number": dict(num_updates=3, sequential_update=False, learning_rate=0.05),
            "dynamic": dict(
                average_decay=0.4, start_step=2, dynamic_decay=True, learning_rate=0.05
            ),
            "defaults": {},
        },
        refused={
            "average_decay": UP_TO_ONE,
            "num_updates": (-1, "3", False),
            "start_step": COUNT_FROM_ZERO,
        },
        slots_that_change_in_all_rows=("average",),
    ),
    Case(
        keras_tfopt.AdamW,
        inner=keras_tfopt.Adam,
        required={"weight_decay": 0.0},
        variants={
            "hyper": {"weight_decay": 0.02, **ADAM_ARGUMENTS},
            "scaled": {
                "weight_decay": 0.5,
                "scale_by_learning_rate": True,
                "decay_variables": keras_tfopt.no_vectors,
                **ADAM_ARGUMENTS,
            },
            "amsgrad": {"weight_decay": 0.02, "amsgrad": True, **ADAM_ARGUMENTS},
            "defaults": {"weight_decay": 1e-3},
        },
        refused={
            "weight_decay": NUMBER_WITHOUT_DEFAULT,
            "beta_1": BELOW_ONE,
            "beta_2": BELOW_ONE,
            "decay_variables": PATTERN,
        },
        acts_in_touched_rows_only=True,
    ),
    Case(
        keras_tfopt.MomentumW,
        inner=keras_tfopt.Momentum,
        required={"weight_decay": 0.0},
        variants={
            "nesterov": dict(weight_decay=0.02, learning_rate=0.05, momentum=0.7, nesterov=True),
            "chosen": dict(weight_decay=0.1, learning_rate=0.05, decay_variables="e"),
            "defaults": {"weight_decay": 1e-3},
        },
        refused={"weight_decay": NUMBER_WITHOUT_DEFAULT, "decay_variables": PATTERN},
    ),
    Case(
        keras_tfopt.SGDW,
        inner=AccumulatedSteps,
        required={"weight_decay": 0.0},
        variants={
            "nesterov": dict(weight_decay=0.02, learning_rate=0.05, momentum=0.7, nesterov=True),
            "momentum": dict(weight_decay=0.02, learning_rate=0.05, momentum=0.7),
            "defaults": {"weight_decay": 1e-3},
        },
        refused={"weight_decay": NUMBER_WITHOUT_DEFAULT, "decay_variables": PATTERN},
        quadratic=Training(200, learning_rate=0.1, momentum=0.9),
        rosenbrock=Training(1000, learning_rate=1e-3, momentum=0.95),
    ),
    Case(
        keras_tfopt.DecoupledWeightDecay,
        inner=keras_tfopt.Momentum,
        required={"weight_decay": 0.0},
        variants={
            "plain": dict(weight_decay=0.02, learning_rate=0.05),
            "scaled": dict(
                weight_decay=0.5,
                scale_by_learning_rate=True,
                learning_rate=0.05,
                decay_variables=[".", "e"],
            ),
        },
        refused={"weight_decay": NUMBER_WITHOUT_DEFAULT, "decay_variables": PATTERN},
    ),
    Case(
        keras_tfopt.VariableClipping,
        inner=keras_tfopt.Momentum,
        required={"vars_to_clip_dims": {".": []}, "max_norm": 10.0},
        variants={
            "last": dict(vars_to_clip_dims=last_dimension, max_norm=0.8, learning_rate=0.05),
            "first": dict(vars_to_clip_dims=first_dimension, max_norm=0.8, learning_rate=0.05),
            "elements": dict(vars_to_clip_dims={".": []}, max_norm=0.5, learning_rate=0.05),
        },
        refused={
            "vars_to_clip_dims": (None, "kernel", {"kernel": 0}, {"kernel": [0.5]}, {"(": [0]}),
            "max_norm": (*NUMBER_WITHOUT_DEFAULT, 0, 0.0),
        },
        changes_variables_after_the_step=True,
    ),
    Case(
        keras_tfopt.Multitask,
        inner=keras_tfopt.Adam,
        variants={"hyper": ADAM_ARGUMENTS, "defaults": {}},
    ),
    Case(
        keras_tfopt.Lookahead,
        inner=keras_tfopt.Adam,
        variants={
            "often": {"sync_period": 2, "slow_step_size": 0.7, **ADAM_ARGUMENTS},
            "defaults": {},
        },
        refused={"sync_period": COUNT, "slow_step_size": UP_TO_ONE},
        quadratic=Training(400, learning_rate=0.6, falling=True),
        rosenbrock=Training(2000, learning_rate=0.4, falling=True, beta_2=0.99),
        wider_tolerance=AVERAGES_FROM_ZERO,
        changes_variables_after_the_step=True,
    ),
    Case(
        keras_tfopt.Cautious,
        inner=keras_tfopt.Adam,
        variants={
            "hyper": {"min_mean": 0.7, **ADAM_ARGUMENTS},
            "one": {"min_mean": 1.0, **ADAM_ARGUMENTS},
            "defaults": {},
        },
        masks_elements=True,
        refused={"min_mean": (None, "0.5", -0.1, 0.0, 1.1, math.nan, True, [0.5])},
        wider_tolerance=AVERAGES_FROM_ZERO,
        changes_variables_after_the_step=True,
    ),
    Case(
        keras_tfopt.ScheduleFree,
        inner=keras_tfopt.Adam,
        variants={
            "hyper": {"momentum": 0.8, "r": 1.5, "weight_lr_power": 1.0, **ADAM_ARGUMENTS},
            "decay": {"weight_decay_at_y": 0.3, "momentum": 0.0, **ADAM_ARGUMENTS},
            "defaults": {},
        },
        refused={
            "momentum": BELOW_ONE,
            "weight_decay_at_y": NUMBER_WITHOUT_DEFAULT,
            "r": NUMBER_WITHOUT_DEFAULT,
            "weight_lr_power": NUMBER_WITHOUT_DEFAULT,
        },
        quadratic=Training(400, learning_rate=0.3, beta_1=0.0, r=2.0),
        rosenbrock=Training(2000, learning_rate=0.1, beta_2=0.99),
        wider_tolerance=AVERAGES_FROM_ZERO,
        changes_variables_after_the_step=True,
    ),
    Case(
        keras_tfopt.StochasticWeightAveraging,
        inner=keras_tfopt.Adam,
        variants={
            "late": {"start_averaging": 1, "average_period": 2, **ADAM_ARGUMENTS},
            "often": {"average_period": 1, **ADAM_ARGUMENTS},
            "defaults": {},
        },
        refused={"start_averaging": COUNT_FROM_ZERO, "average_period": COUNT},
        wider_tolerance=AVERAGES_FROM_ZERO,
    ),
    Case(
        keras_tfopt.SkipNonFinite,
        inner=keras_tfopt.Momentum,
        variants={"limit": dict(max_consecutive=3, learning_rate=0.05), "defaults": {}},
        refused={"max_consecutive": (-1, 2.5, "3")},
    ),
)
