"""Cases of rules of recent papers."""

import keras_tfopt
from tests.cases.case import Case, Training
from tests.cases.rules import ADAM_ARGUMENTS, AS_ADAM, BELOW_ONE, COUNT, POSITIVE, UP_TO_ONE

BETAS = {"beta_1": BELOW_ONE, "beta_2": BELOW_ONE}

CASES = (
    Case(
        keras_tfopt.Lion,
        variants={"hyper": dict(learning_rate=0.02, beta_1=0.8, beta_2=0.7), "defaults": {}},
        refused={"beta_1": UP_TO_ONE, "beta_2": UP_TO_ONE},
        quadratic=Training(200, learning_rate=0.1, falling=True),
        rosenbrock=Training(2000, learning_rate=0.01, falling=True),
        step_scales_with_power=0,
        steps_are_bounded=True,
    ),
    Case(
        keras_tfopt.NadamW,
        variants={
            "hyper": ADAM_ARGUMENTS,
            "root": dict(learning_rate=0.03, beta_1=0.7, beta_2=0.9, epsilon_root=1e-3),
            "defaults": {},
        },
        refused=BETAS,
        **AS_ADAM,
    ),
    Case(
        keras_tfopt.AdEMAMix,
        variants={
            "hyper": {**ADAM_ARGUMENTS, "beta_3": 0.9, "alpha": 2.0},
            "warm_up": {**ADAM_ARGUMENTS, "beta_3": 0.9, "warmup_steps": 4, "epsilon_root": 1e-3},
            "defaults": {},
        },
        refused={**BETAS, "beta_3": (0, 0.0, *BELOW_ONE), "warmup_steps": (0, -1, 2.5, "3")},
        quadratic=Training(200, learning_rate=0.3, falling=True, beta_3=0.9, alpha=1.0),
        rosenbrock=Training(1000, 0.1, falling=True, beta_2=0.99, beta_3=0.95, alpha=1.0),
        step_scales_with_power=0,
        scaling_arguments={"epsilon": 0.0},
    ),
    Case(
        keras_tfopt.SimplifiedAdEMAMix,
        variants={
            "hyper": {**ADAM_ARGUMENTS, "alpha": 2.0},
            "root": dict(learning_rate=0.01, beta_1=0.7, beta_2=0.9, epsilon_root=1e-3),
            "defaults": {},
        },
        refused=BETAS,
        quadratic=Training(200, learning_rate=0.03, falling=True, beta_1=0.9),
        rosenbrock=Training(1000, learning_rate=0.02, falling=True, beta_1=0.9, beta_2=0.99),
        step_scales_with_power=0,
        scaling_arguments={"epsilon": 0.0},
    ),
    Case(
        keras_tfopt.ADOPT,
        variants={
            "hyper": dict(learning_rate=0.03, beta_1=0.8, beta_2=0.95, epsilon=0.05),
            "not_clipped": dict(
                learning_rate=0.03, beta_1=0.7, beta_2=0.9, epsilon=0.1, clipping=False
            ),
            "nesterov": dict(
                learning_rate=0.03, beta_1=0.8, beta_2=0.9, clip_exponent=0.4, nesterov=True
            ),
            "defaults": {},
        },
        refused={**BETAS, "epsilon": POSITIVE},
        steps_are_bounded=True,  # the rule clips steps
        quadratic=Training(300, learning_rate=0.3, falling=True, beta_2=0.99),
        rosenbrock=Training(2000, learning_rate=0.1, falling=True, beta_2=0.99),
    ),
    Case(
        keras_tfopt.LaProp,
        variants={"hyper": ADAM_ARGUMENTS, "defaults": {}},
        refused=BETAS,
        wider_tolerance={
            "float32 defaults": (
                100,
                "a momentum of corrected gradients has the error of the bias correction "
                "1 - 0.999**t, which is 6e-5 in float32",
            )
        },
        **AS_ADAM,
    ),
    Case(
        keras_tfopt.StableAdamW,
        variants={
            "hyper": {**ADAM_ARGUMENTS, "beta_2": 0.99, "clip_threshold": 0.5},
            "defaults": {},
        },
        refused={**BETAS, "clip_threshold": POSITIVE},
        **AS_ADAM | {"rosenbrock": Training(1000, learning_rate=0.05, falling=True, beta_2=0.9)},
    ),
    Case(
        keras_tfopt.MARS,
        variants={
            "hyper": {**ADAM_ARGUMENTS, "gamma": 0.1},
            "vectors": {**ADAM_ARGUMENTS, "gamma": 0.2, "optimize_1d": True},
            "lion": dict(learning_rate=0.02, beta_1=0.8, gamma=0.1, form="lion"),
            "defaults": {},
        },
        refused={**BETAS, "form": ("adam_w", None, 1)},
        quadratic=Training(200, learning_rate=0.3, falling=True),
        rosenbrock=Training(1000, learning_rate=0.2, falling=True),
    ),
    Case(
        keras_tfopt.Adan,
        variants={
            "hyper": dict(
                learning_rate=0.03,
                beta_1=0.8,
                beta_2=0.7,
                beta_3=0.9,
                epsilon=1e-4,
                weight_decay=0.1,
            ),
            "cautious": dict(learning_rate=0.03, beta_1=0.7, beta_2=0.8, cautious=True),
            "defaults": {},
        },
        refused={**BETAS, "beta_3": BELOW_ONE},
        quadratic=Training(300, learning_rate=0.3, falling=True, beta_1=0.9),
        rosenbrock=Training(1000, learning_rate=0.2, falling=True, beta_1=0.9),
        step_scales_with_power=0,
        scaling_arguments={"epsilon": 0.0, "weight_decay": 0.0},
    ),
    Case(
        keras_tfopt.Prodigy,
        variants={
            "hyper": dict(
                learning_rate=0.7,
                beta_1=0.6,
                beta_2=0.95,
                epsilon=1e-4,
                beta_3=0.9,
                d0=0.02,
                d_coef=3.0,
            ),
            # Gradients are random, so the estimate grows only with a large coefficient.
            "slow": dict(beta_1=0.6, beta_2=0.9, d0=0.1, d_coef=30.0, growth_rate=1.2),
            "corrected": dict(
                beta_1=0.8, beta_2=0.9, d0=0.1, d_coef=30.0, use_bias_correction=True
            ),
            "warm_up": dict(learning_rate=0.5, d0=0.1, d_coef=30.0, safeguard_warmup=True),
            "sliced": dict(beta_1=0.6, beta_2=0.9, d0=0.1, d_coef=30.0, slice_p=3),
            "defaults": {},
        },
        refused={
            **BETAS,
            **dict.fromkeys(["epsilon", "d0", "d_coef"], POSITIVE),
            "slice_p": (0, -3, True, 1.5, "2"),
            "beta_3": (1, *BELOW_ONE),
            "growth_rate": (0.5, -1),
        },
        fixed=("d0",),
        quadratic=Training(300, learning_rate=1.0, falling=True, d0=0.01),
        rosenbrock=Training(2000, learning_rate=0.3, falling=True, d0=0.01, beta_2=0.99),
        wider_tolerance={
            "float32": (40, "the distance from the start is a difference of nearly equal numbers"),
            "float32 defaults": (2e4, "the distance is a few units in the last place"),
        },
    ),
    Case(
        keras_tfopt.DAdaptAdam,
        variants={
            "hyper": dict(learning_rate=5.0, beta_1=0.6, beta_2=0.9, epsilon=1e-4, d0=0.001),
            "fast": dict(learning_rate=50.0, beta_1=0.6, beta_2=0.9, d0=0.001),
            "defaults": {},
        },
        refused={**BETAS, **dict.fromkeys(["epsilon", "d0"], POSITIVE)},
        fixed=("d0",),
        quadratic=Training(300, learning_rate=1.0, falling=True, d0=0.01),
        rosenbrock=Training(2000, learning_rate=1.0, falling=True, d0=0.01),
        wider_tolerance={
            "float32": (2, "a sum of products over all parameters, of both signs"),
            "float32 defaults": (
                100,
                "sums of corrected gradients have the error of the bias correction 1 - 0.999**t, "
                "which is 6e-5 in float32",
            ),
        },
    ),
    Case(
        keras_tfopt.CAME,
        variants={
            "hyper": dict(
                learning_rate=0.02, beta_1=0.8, beta_2=0.9, beta_3=0.7, clip_threshold=0.9
            ),
            "epsilons": dict(
                learning_rate=0.02, beta_2=0.8, beta_3=0.9, epsilon_1=1e-3, epsilon_2=1e-2
            ),
            "defaults": {},
        },
        refused={
            **BETAS,
            "beta_3": BELOW_ONE,
            **dict.fromkeys(["epsilon_1", "epsilon_2", "clip_threshold"], POSITIVE),
        },
        quadratic=Training(300, learning_rate=0.1, falling=True, beta_2=0.99, beta_3=0.99),
        rosenbrock=Training(3000, learning_rate=0.03, falling=True, beta_2=0.99, beta_3=0.99),
    ),
    Case(
        keras_tfopt.Adafactor,
        variants={
            "factored": dict(
                learning_rate=0.3, beta_2_decay=-0.6, epsilon_2=0.1, min_dim_size_to_factor=2
            ),
            "momentum": dict(learning_rate=0.02, clip_threshold=0.8, momentum=0.7, beta_2_cap=0.5),
            "plain": dict(
                learning_rate=0.02,
                epsilon_1=1e-3,
                clip_threshold=1e9,
                relative_step=False,
                scale_parameter=False,
                min_dim_size_to_factor=1,
            ),
            "defaults": {},
        },
        refused={
            **dict.fromkeys(["epsilon_1", "epsilon_2", "clip_threshold"], POSITIVE),
            "beta_2_decay": (0.25, 0.5),
            "momentum": BELOW_ONE,
            "min_dim_size_to_factor": COUNT,
            "beta_2_cap": UP_TO_ONE,
        },
        may_be_negative=("beta_2_decay",),
        quadratic=Training(
            300, learning_rate=0.3, falling=True, relative_step=False, scale_parameter=False
        ),
        rosenbrock=Training(
            1000, 0.2, falling=True, relative_step=False, scale_parameter=False, momentum=0.9
        ),
    ),
    Case(
        keras_tfopt.Muon,
        variants={
            "hyper": dict(
                learning_rate=0.02,
                momentum=0.8,
                scaling="original",
                ns_steps=2,
                ns_coefficients=[3.0, -4.0, 1.8],
                other_variables=None,  # tables are stepped as matrices, too
            ),
            "plain": dict(
                learning_rate=0.03,
                momentum=0.7,
                nesterov=False,
                ns_steps=3,
                scaling=0.3,
                others="lion",
                others_factor=0.5,
            ),
            "corrected": dict(learning_rate=0.01, ns_steps=1, epsilon=0.1, bias_correction=True),
            "adaptive": dict(
                learning_rate=0.01,
                ns_steps=2,
                ns_coefficients=[[4.0, -6.9, 2.9], [2.8, -3.1, 1.2]],
                norm="schatten",
                adaptive=True,
                other_variables=None,
            ),
            "spectral": dict(learning_rate=0.02, ns_steps=2, norm="spectral"),
            "aol": dict(learning_rate=0.02, ns_steps=2, norm="aol"),
            "defaults": {},
        },
        refused={
            "momentum": BELOW_ONE,
            "scaling": ("rms", 0, None),
            "ns_steps": COUNT,
            "ns_coefficients": (1.0, (1.0, 2.0), "abc", [[1.0, 2.0, 3.0]], [[1.0], 2.0, 3.0]),
            "norm": ("euclidean", None, 2),
            "epsilon": POSITIVE,
            "products": ("float16", 16),
            "others": ("ggt", 3),
            "others_factor": (-1, "1"),
            "other_variables": (3,),
            "stack_axes": ({"kernel": -1}, {"kernel": 0.5}, {"(": 1}, 1),
        },
        quadratic=Training(200, learning_rate=0.3, falling=True),
        rosenbrock=Training(1000, learning_rate=0.2, falling=True),
        wider_tolerance={
            "float32": (
                10,
                "the bias correction 1 - 0.999**t of NadamW has an error of 6e-5 in float32",
            )
        },
    ),
    Case(
        keras_tfopt.ScheduleFreeSGD,
        variants={
            "hyper": dict(
                learning_rate=0.05, momentum=0.8, weight_decay=0.1, r=1.5, weight_lr_power=1.0
            ),
            "no_momentum": dict(learning_rate=0.05, momentum=0.0),
            "defaults": {},
        },
        refused={"momentum": BELOW_ONE},
        quadratic=Training(400, learning_rate=0.3, r=2.0),
        rosenbrock=Training(2000, learning_rate=0.004, r=2.0),
    ),
    Case(
        keras_tfopt.ScheduleFreeAdamW,
        variants={
            "hyper": dict(
                learning_rate=0.03,
                beta_1=0.8,
                beta_2=0.9,
                epsilon=1e-3,
                weight_decay=0.1,
                r=1.5,
                weight_lr_power=1.0,
            ),
            "defaults": {},
        },
        refused=BETAS,
        quadratic=Training(400, learning_rate=0.3, r=2.0),
        rosenbrock=Training(1000, learning_rate=0.03, beta_2=0.99, r=5.0),
        wider_tolerance={
            "float32": (10, "the bias correction 1 - 0.999**t has an error of 6e-5 in float32")
        },
    ),
)
