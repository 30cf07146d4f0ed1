"""Cases of the rules of TensorFlow Addons."""

import keras

import keras_tfopt
from tests.cases.case import Case, Training
from tests.cases.rules import ADAM_ARGUMENTS, AS_ADAM, BELOW_ONE, UP_TO_ONE

AS_RECTIFIED = {
    "refused": {
        "beta_1": BELOW_ONE,
        "beta_2": BELOW_ONE,
        "sma_threshold": (4.0, 4, 3.9, 0, 0.5, 0.25),
        "total_steps": (-1, 2.5, "3", None),
        "warmup_proportion": UP_TO_ONE,
    },
    **AS_ADAM,
    # `clipnorm`: the first steps are as large as gradients, which are in the hundreds.
    "rosenbrock": Training(2000, learning_rate=0.1, falling=True, beta_2=0.99, clipnorm=1.0),
    "step_scales_with_power": None,  # only the first steps scale with gradients
    "scaling_arguments": {},
}


def rising(steps):
    """Return a learning rate that rises to one. There, the conditional gradient method stops."""
    return keras.optimizers.schedules.PolynomialDecay(0.999, steps, end_learning_rate=1.0)


CASES = (
    Case(
        keras_tfopt.RectifiedAdam,
        variants={
            # With this beta_2, the rule divides by second moments from step 7 on.
            "hyper": {**ADAM_ARGUMENTS, "weight_decay": 0.1},
            "amsgrad": dict(learning_rate=0.03, beta_2=0.9, amsgrad=True, sma_threshold=4.5),
            "warmup": dict(
                learning_rate=0.03, beta_2=0.9, total_steps=6, warmup_proportion=0.4, min_lr=0.01
            ),
            "defaults": {},
        },
        **AS_RECTIFIED,
    ),
    Case(
        keras_tfopt.AdaBelief,
        variants={
            "hyper": {**ADAM_ARGUMENTS, "weight_decay": 0.1},
            "plain": {**ADAM_ARGUMENTS, "rectify": False},
            "amsgrad": dict(learning_rate=0.03, beta_2=0.9, amsgrad=True, epsilon=1e-6),
            "warmup": dict(learning_rate=0.03, rectify=False, epsilon=1e-4, total_steps=4),
            "defaults": {},
        },
        **AS_RECTIFIED,
        slots_that_skip_absent_rows=("v",),
    ),
    Case(
        keras_tfopt.LAMB,
        variants={
            "hyper": {
                **ADAM_ARGUMENTS,
                "weight_decay": 0.1,
                "exclude_from_layer_adaptation": ["bias", "sc.le"],
            },
            "columns": {**ADAM_ARGUMENTS, "weight_decay": 0.1, "axis": 0},
            "defaults": {},
        },
        refused={
            "beta_1": BELOW_ONE,
            "beta_2": BELOW_ONE,
            "exclude_from_layer_adaptation": (3, "(", [3]),
            "axis": ("rows", 0.5, [], [0.5], True),
        },
        quadratic=Training(200, learning_rate=0.03, falling=True),
        rosenbrock=Training(2000, learning_rate=0.03, falling=True, beta_2=0.99),
        step_scales_with_power=0,
        scaling_arguments={"epsilon": 0.0},
    ),
    Case(
        keras_tfopt.Yogi,
        variants={
            "hyper": {
                **ADAM_ARGUMENTS,
                "l1_regularization_strength": 0.1,
                "l2_regularization_strength": 0.2,
            },
            "tanh": dict(
                learning_rate=0.03,
                beta_1=0.0,
                beta_2=0.9,
                initial_accumulator_value=0.01,
                activation="tanh",
            ),
            "defaults": {},
        },
        refused={
            "beta_1": BELOW_ONE,
            "beta_2": BELOW_ONE,
            "activation": ("relu", None, 3, ["sign"]),
        },
        quadratic=Training(200, learning_rate=0.3, falling=True),
        rosenbrock=Training(2000, learning_rate=0.2, falling=True, beta_2=0.99),
    ),
    Case(
        keras_tfopt.NovoGrad,
        variants={
            "hyper": {**ADAM_ARGUMENTS, "weight_decay": 0.1},
            "averages": dict(
                learning_rate=0.03, beta_2=0.8, weight_decay=0.1, grad_averaging=True, amsgrad=True
            ),
            "defaults": {},
        },
        refused={"beta_1": BELOW_ONE, "beta_2": BELOW_ONE},
        quadratic=Training(400, learning_rate=0.1, falling=True),
        rosenbrock=Training(4000, learning_rate=0.03, falling=True, beta_2=0.99),
        step_scales_with_power=0,
        scaling_arguments={"epsilon": 0.0},
    ),
    Case(
        keras_tfopt.COCOB,
        variants={
            "slow": dict(learning_rate=0.7, alpha=10.0),
            "fast": dict(alpha=1.5),
            "defaults": {},
        },
        quadratic=Training(200, learning_rate=1.0),
        rosenbrock=Training(6000, learning_rate=10.0, alpha=20.0),
        step_scales_with_power=0,
    ),
    Case(
        keras_tfopt.ConditionalGradient,
        variants={
            "hyper": dict(learning_rate=0.9, lambda_=2.0, epsilon=1e-3),
            "nuclear": dict(learning_rate=0.8, lambda_=2.0, ord="nuclear"),
            "defaults": {},
        },
        refused={"ord": ("l2", None, 2, ["fro"])},
        # The minimum lies in the ball of radius `lambda_`.
        quadratic=Training(200, rising(200), lambda_=100.0),
        rosenbrock=Training(4000, rising(4000), lambda_=100.0),
    ),
)
