"""Cases of rules: optimizers with a formula of their own."""

import keras_tfopt
from tests.cases.case import Case, Training

# Values that arguments of one kind refuse.
GLOBAL_STEP = (3, "global_step", [0])
SIGN_DECAY = (1.5, -0.1, "linear", True, [0.5])
BELOW_ONE = (1.0, 1.5)  # with a beta of 1, the bias correction would divide by zero
UP_TO_ONE = (1.5,)
POSITIVE = (0, 0.0)  # the formula divides by the argument or its square root
COUNT = (0, -1, 2.5, "3", 2**31, None)

ADAM_ARGUMENTS = dict(learning_rate=0.03, beta_1=0.8, beta_2=0.95, epsilon=1e-4)
AS_ADAM = {
    "quadratic": Training(200, learning_rate=0.3, falling=True),
    "rosenbrock": Training(1000, learning_rate=0.2, falling=True, beta_2=0.99),
    "step_scales_with_power": 0,
    "scaling_arguments": {"epsilon": 0.0},
}
ADAM = {
    "variants": {"hyper": ADAM_ARGUMENTS, "defaults": {}},
    "refused": {"beta_1": BELOW_ONE, "beta_2": BELOW_ONE},
    **AS_ADAM,
}
AS_GRADIENT_DESCENT = {
    "quadratic": Training(200, learning_rate=0.3),
    "rosenbrock": Training(4000, learning_rate=2e-3),
}
AS_ADAGRAD = {
    "quadratic": Training(200, learning_rate=1.0),
    "rosenbrock": Training(3000, learning_rate=1.5),
}

CASES = (
    Case(
        keras_tfopt.Momentum,
        variants={
            "plain": dict(learning_rate=0.05),
            "nesterov": dict(learning_rate=0.02, momentum=0.7, nesterov=True),
            "no_momentum": dict(learning_rate=0.1, momentum=0.0),
        },
        quadratic=Training(200, learning_rate=0.1),
        rosenbrock=Training(1000, learning_rate=1e-3, momentum=0.95),
        step_scales_with_power=1,
    ),
    Case(
        keras_tfopt.Adam,
        **ADAM | {"variants": {**ADAM["variants"], "amsgrad": {**ADAM_ARGUMENTS, "amsgrad": True}}},
    ),
    Case(
        keras_tfopt.LazyAdam,
        variants={
            "hyper": ADAM_ARGUMENTS,
            "catch_up": dict(learning_rate=0.03, beta_1=0.8, beta_2=0.95, catch_up=True),
            "amsgrad": {**ADAM_ARGUMENTS, "amsgrad": True},
            "defaults": {},
        },
        refused={"beta_1": BELOW_ONE, "beta_2": BELOW_ONE, "catch_up": (1,)},
        **AS_ADAM,
    ),
    Case(keras_tfopt.AdaMax, **ADAM),
    Case(keras_tfopt.Nadam, **ADAM),
    Case(keras_tfopt.AdamGS, **ADAM | {"refused": {**ADAM["refused"], "global_step": GLOBAL_STEP}}),
    Case(
        keras_tfopt.LazyAdamGS,
        **ADAM | {"refused": {**ADAM["refused"], "global_step": GLOBAL_STEP}},
    ),
    Case(
        keras_tfopt.RegAdagrad,
        variants={
            "rate": dict(learning_rate=0.3),
            "accumulator": dict(learning_rate=0.05, initial_accumulator_value=0.5),
            "defaults": {},
        },
        refused={"initial_accumulator_value": POSITIVE},
        quadratic=Training(200, learning_rate=1.0),
        rosenbrock=Training(4000, learning_rate=1.3),
    ),
    Case(
        keras_tfopt.AddSign,
        variants={
            "hyper": dict(learning_rate=0.03, alpha=1.2, beta=0.7, sign_decay=0.8),
            "defaults": {},
        },
        refused={"beta": UP_TO_ONE, "sign_decay": SIGN_DECAY},
        quadratic=Training(200, learning_rate=0.1),
        rosenbrock=Training(5000, learning_rate=1e-3),
        step_scales_with_power=1,
    ),
    Case(
        keras_tfopt.PowerSign,
        variants={
            "hyper": dict(learning_rate=0.03, base=2.0, beta=0.7, sign_decay=0.8),
            "defaults": {},
        },
        refused={"base": POSITIVE, "beta": UP_TO_ONE, "sign_decay": SIGN_DECAY},
        quadratic=Training(200, learning_rate=0.1),
        rosenbrock=Training(4000, learning_rate=1e-3),
        step_scales_with_power=1,
    ),
    Case(
        keras_tfopt.AMSGrad,
        variants={
            "hyper": ADAM_ARGUMENTS,
            "decay": dict(learning_rate=0.03, decay=True, beta_1=0.7),
            "defaults": {},
        },
        refused={"beta_1": UP_TO_ONE, "beta_2": UP_TO_ONE},
        quadratic=Training(200, learning_rate=0.3, falling=True),
        rosenbrock=Training(1000, learning_rate=0.5, beta_1=0.95),
        step_scales_with_power=0,
        scaling_arguments={"epsilon": 0.0},
    ),
    Case(
        keras_tfopt.LARS,
        variants={
            "hyper": dict(
                learning_rate=0.7,
                momentum=0.8,
                weight_decay=0.02,
                eeta=0.03,
                epsilon=1e-3,
                skip_list=["bias"],
            ),
            "nesterov": dict(learning_rate=0.9, eeta=0.05, nesterov=True),
            "defaults": {},
        },
        refused={"skip_list": (3, "bias", [3])},  # a string would be taken for a list of letters
        quadratic=Training(200, 1.0, falling=True, eeta=0.05, momentum=0.5, weight_decay=0.0),
        rosenbrock=Training(1000, 1.0, falling=True, eeta=0.02, weight_decay=0.0),
        step_scales_with_power=0,
        scaling_arguments={"weight_decay": 0.0, "epsilon": 0.0},
    ),
    Case(
        keras_tfopt.NormalizedSGD,
        variants={"hyper": dict(learning_rate=0.05), "defaults": {}},
        quadratic=Training(200, learning_rate=0.2, falling=True),
        rosenbrock=Training(4000, learning_rate=1.0, falling=True),
        step_scales_with_power=0,
    ),
    Case(
        keras_tfopt.NeuralOptimizer1,
        variants={
            "hyper": dict(learning_rate=0.05, beta_1=0.7, decrease_factor=0.3),
            "no_average": dict(learning_rate=0.05, beta_1=0.0),
            "defaults": {},
        },
        refused={"beta_1": UP_TO_ONE},
        quadratic=Training(200, learning_rate=0.5),
        rosenbrock=Training(5000, learning_rate=0.002),
        step_scales_with_power=1,
    ),
    Case(
        keras_tfopt.GradVarianceScaled,
        variants={
            "hyper": dict(learning_rate=0.05, beta_1=0.7, beta_2=0.8, epsilon=1e-4),
            "no_epsilon": dict(learning_rate=0.05, beta_1=0.5, beta_2=0.6, epsilon=0.0),
            "defaults": {},
        },
        refused={"beta_1": UP_TO_ONE, "beta_2": UP_TO_ONE},
        quadratic=Training(200, learning_rate=0.5, beta_2=0.9),
        rosenbrock=Training(5000, learning_rate=0.002, beta_2=0.9),
        step_scales_with_power=1,
        scaling_arguments={"epsilon": 0.0},
        slots_that_skip_absent_rows=("v",),
    ),
    Case(
        keras_tfopt.GGT,
        variants={
            "hyper": dict(
                learning_rate=0.02,
                beta_1=0.6,
                window=3,  # is smaller than the number of steps in tests
                svd_epsilon=0.05,
                sigma_epsilon=0.5,
            ),
            "inside": dict(learning_rate=0.02, window=4, epsilon=1e3, svd_epsilon=0.02),
            "defaults": {},
        },
        refused={"beta_1": BELOW_ONE, "window": COUNT, "sigma_epsilon": POSITIVE},
        quadratic=Training(400, learning_rate=0.1, falling=True),
        rosenbrock=Training(1000, learning_rate=0.03, falling=True, epsilon=1e3),
        wider_tolerance={
            "defaults": (
                100,
                "the ridge of 1e-6 is below the rounding of a Gram matrix in float32, and the "
                "smallest eigenvalues enter with the power -3/2",
            ),
            **dict.fromkeys(
                [f"tensorflow float64 {mode}" for mode in ("compiled", "fast", "xla")],
                (1e4, "XLA's iteration for eigenvectors stops at 1e-11 or so, LAPACK's at 1e-15"),
            ),
        },
    ),
    Case(
        keras_tfopt.Shampoo,
        variants={
            # Tables have more rows than `max_matrix_size`, so the rule updates them by rows.
            "hyper": dict(learning_rate=0.1, max_matrix_size=5, epsilon=0.1),
            "intervals": dict(
                learning_rate=0.05,
                max_matrix_size=6,
                epsilon=0.1,
                alpha=0.8,
                mat_gbar_decay=0.8,
                mat_gbar_weight=0.3,
                svd_interval=2,
                precond_update_interval=3,
            ),
            "average": dict(
                learning_rate=0.1,
                max_matrix_size=3,
                epsilon=0.1,
                gbar_decay=0.7,
                gbar_weight=0.4,
                mat_gbar_decay=0.0,
            ),
            "iterative": dict(learning_rate=0.1, epsilon=0.1, use_iterative_root=True),
            "defaults": dict(learning_rate=0.1),
        },
        refused={
            "global_step": GLOBAL_STEP,
            "max_matrix_size": COUNT,
            "svd_interval": (0, 0.5, 2.5),
            "precond_update_interval": (0, 0.5, 2.5),
            "epsilon": POSITIVE,
            "alpha": (0.0, 1.5),
            "use_iterative_root": ("yes", 2),
        },
        quadratic=Training(200, learning_rate=0.5),
        rosenbrock=Training(1000, 0.01, falling=True, mat_gbar_decay=0.9, mat_gbar_weight=0.1),
        wider_tolerance={
            "defaults": (10, "a root is only as exact as the ridge of 1e-4 lets it be"),
            "intervals": (40, "roots are kept for some steps, of sums with a ridge of 0.1"),
            "iterative": (6, "the iteration makes some dozens of products, and each rounds"),
            "tensorflow xla": (6, "XLA has the iteration in place of eigenvalues"),
            # The next keys are for the test that compares all backends and modes.
            "tensorflow hyper": (3, "XLA has the iteration in place of eigenvalues"),
            "tensorflow average": (3, "XLA has the iteration in place of eigenvalues"),
            "tensorflow defaults": (
                100,
                "the iteration adds 1e-6 of the norm, which counts next to a ridge of 1e-4",
            ),
        },
    ),
    Case(
        keras_tfopt.GradientDescent,
        variants={"hyper": dict(learning_rate=0.1), "defaults": {}},
        step_scales_with_power=1,
        **AS_GRADIENT_DESCENT,
    ),
    Case(
        keras_tfopt.Adagrad,
        variants={
            "hyper": dict(learning_rate=0.2),
            "accumulator": dict(learning_rate=0.1, initial_accumulator_value=0.5),
            "defaults": {},
        },
        refused={"initial_accumulator_value": POSITIVE},
        **AS_ADAGRAD,
    ),
    Case(
        keras_tfopt.RMSProp,
        variants={
            "centered": dict(
                learning_rate=0.05, rho=0.8, momentum=0.7, epsilon=1e-3, centered=True
            ),
            "momentum": dict(learning_rate=0.05, rho=0.7, momentum=0.8, epsilon=1e-2),
            "no_epsilon": dict(learning_rate=0.05, rho=0.7, epsilon=0.0),
            "defaults": {},
        },
        refused={"rho": UP_TO_ONE, "momentum": UP_TO_ONE},
        quadratic=Training(200, learning_rate=1.0, falling=True, rho=0.99),
        rosenbrock=Training(1000, learning_rate=2e-3, falling=True, momentum=0.9),
    ),
    Case(
        keras_tfopt.Adadelta,
        variants={"hyper": dict(learning_rate=0.7, rho=0.8, epsilon=1e-3), "defaults": {}},
        refused={"rho": UP_TO_ONE, "epsilon": POSITIVE},
        quadratic=Training(200, learning_rate=3.0, falling=True, epsilon=1e-3),
        rosenbrock=Training(4000, learning_rate=0.1, falling=True, epsilon=1e-4),
    ),
    Case(
        keras_tfopt.Ftrl,
        variants={
            "hyper": dict(
                learning_rate=0.2,
                learning_rate_power=-0.6,
                l1_regularization_strength=0.01,
                l2_regularization_strength=0.02,
                l2_shrinkage_regularization_strength=0.01,
            ),
            "root": dict(learning_rate=0.3, l1_regularization_strength=0.5),
            "constant": dict(learning_rate=0.1, learning_rate_power=0.0),
            "from_zero": dict(
                initial_accumulator_value=0.0, l2_shrinkage_regularization_strength=0.1
            ),
            "defaults": {},
        },
        refused={"learning_rate_power": (0.5, 0.25, 1)},
        may_be_negative=("learning_rate_power",),
        wider_tolerance={
            "float32 hyper": (
                4,
                "`linear` is the difference of two terms of one size: at small learning rates they "
                "cancel in a scalar variable",
            )
        },
        **AS_ADAGRAD,
    ),
    Case(
        keras_tfopt.AdagradDA,
        variants={
            "hyper": dict(
                learning_rate=0.3, l1_regularization_strength=0.01, l2_regularization_strength=0.2
            ),
            "accumulator": dict(
                learning_rate=0.2,
                initial_gradient_squared_accumulator_value=0.5,
                l1_regularization_strength=0.1,
            ),
            "defaults": {},
        },
        refused={
            "global_step": (3, 0.5, "global_step"),
            "initial_gradient_squared_accumulator_value": POSITIVE,
        },
        quadratic=Training(200, learning_rate=2.0),
        rosenbrock=Training(2600, learning_rate=0.35),
    ),
    Case(
        keras_tfopt.ProximalGradientDescent,
        variants={
            "hyper": dict(
                learning_rate=0.1, l1_regularization_strength=0.03, l2_regularization_strength=0.2
            ),
            "sparse": dict(learning_rate=0.1, l1_regularization_strength=1.0),
            "defaults": {},
        },
        **AS_GRADIENT_DESCENT,
    ),
    Case(
        keras_tfopt.ProximalAdagrad,
        variants={
            "hyper": dict(
                learning_rate=0.1, l1_regularization_strength=0.03, l2_regularization_strength=0.2
            ),
            "sparse": dict(
                learning_rate=0.1, initial_accumulator_value=0.5, l1_regularization_strength=1.0
            ),
            "defaults": {},
        },
        refused={"initial_accumulator_value": POSITIVE},
        **AS_ADAGRAD,
    ),
)
