"""Cases of recent rules that use curvature: matrices for each axis, or a history of steps."""

import keras_tfopt
from tests.cases.case import Case, Training
from tests.cases.rules import BELOW_ONE, COUNT, POSITIVE

CASES = (
    Case(
        keras_tfopt.DistributedShampoo,
        variants={
            "adam": dict(
                learning_rate=0.05,
                beta_1=0.8,
                beta_2=0.9,
                epsilon=0.1,
                grafting="adam",
                grafting_beta_2=0.95,
                grafting_epsilon=1e-4,
                target_parameter_dimensionality=2,
            ),
            # Variables have whole blocks, and at the end of one or two axes shorter ones.
            "blocks": dict(
                learning_rate=0.05,
                beta_2=0.8,
                epsilon=0.1,
                max_preconditioner_dim=2,
                precondition_frequency=2,
                start_preconditioning_step=3,
                grafting="rmsprop",
                grafting_beta_2=0.9,
                grafting_epsilon=0.01,
            ),
            "sums": dict(
                learning_rate=0.1,
                beta_1=0.0,
                epsilon=1.0,
                grafting="adagrad",
                target_parameter_dimensionality=2,
                use_iterative_root=True,
            ),
            "ahead": dict(
                learning_rate=0.05,
                beta_2=0.9,
                beta_3=0.5,
                epsilon=0.1,
                precondition_frequency=3,
                use_bias_correction=False,
                grafting="sgd",
                exponent_override=0.3,
                target_parameter_dimensionality=3,
            ),
            # Blocks are short and the start is late, so that the sums of products determine all
            # eigenvectors.
            "eigenvalues": dict(
                learning_rate=0.05,
                beta_1=0.8,
                beta_2=0.9,
                epsilon=0.01,
                max_preconditioner_dim=2,
                precondition_frequency=2,
                start_preconditioning_step=3,
                target_parameter_dimensionality=2,
                eigenvalue_corrected=True,
            ),
            "defaults": dict(epsilon=0.1),
        },
        refused={
            "beta_1": BELOW_ONE,
            "beta_2": (0, 0.0, 1.5),
            "beta_3": BELOW_ONE,
            "epsilon": POSITIVE,
            "max_preconditioner_dim": COUNT,
            "precondition_frequency": COUNT,
            "start_preconditioning_step": (0, -1, 2.5, "3"),
            "grafting": ("lamb", 1, True),
            "grafting_beta_2": BELOW_ONE,
            "exponent_override": POSITIVE,
            "target_parameter_dimensionality": COUNT,
            "use_iterative_root": ("yes", 2),
        },
        quadratic=Training(200, learning_rate=0.3, falling=True, beta_2=0.99),
        rosenbrock=Training(
            1000, 0.2, falling=True, beta_2=0.99, grafting="adam", grafting_beta_2=0.99
        ),
        wider_tolerance={
            "float32": (10, "a root is only as exact as the ridge lets it be"),
            "defaults": (
                300,
                "the ridge is a thousandth of the largest eigenvalues, of which 1e-7 is lost",
            ),
            "sums": (100, "the iteration makes some dozens of products, and each rounds"),
            "tensorflow xla": (
                300,
                "XLA has that iteration in place of eigenvalues, also where the ridge is as small",
            ),
        },
    ),
    Case(
        keras_tfopt.SOAP,
        # Tables have more rows than an axis with a basis may have. Gradients of few rows would not
        # determine most eigenvectors.
        variants={
            "hyper": dict(
                learning_rate=0.03,
                beta_1=0.8,
                beta_2=0.9,
                epsilon=1e-3,
                precondition_frequency=2,
                max_precond_dim=5,
            ),
            "merged": dict(
                learning_rate=0.03,
                shampoo_beta=0.7,
                epsilon=1e-3,
                precondition_frequency=1,
                max_precond_dim=4,
                merge_dims=True,
                normalize_grads=True,
            ),
            "eigh": dict(
                learning_rate=0.03,
                epsilon=1e-3,
                precondition_frequency=3,
                max_precond_dim=5,
                correct_bias=False,
                decomposition="eigh",
            ),
            "defaults": dict(max_precond_dim=5),
        },
        refused={
            **dict.fromkeys(["beta_1", "beta_2", "shampoo_beta"], BELOW_ONE),
            "precondition_frequency": COUNT,
            "max_precond_dim": COUNT,
            "decomposition": ("svd", None, 1),
        },
        quadratic=Training(300, learning_rate=0.3, falling=True, beta_2=0.99),
        rosenbrock=Training(1000, learning_rate=0.2, falling=True, beta_2=0.99),
        wider_tolerance={
            "float32": (
                20,
                "eigenvectors are as exact as the gaps between eigenvalues let them be",
            ),
            "float32 merged": (60, "a new basis in each step: errors of the last one take part"),
            "float32 fit": (
                200,
                "two eigenvalues of the first batch are 2e-4 of the largest one apart, of which "
                "1e-7 is lost; a run in float64 is as far from all backends",
            ),
            "tensorflow float64 xla": (
                1e7,
                "XLA's iteration for eigenvectors stops at 1e-6 to 1e-5, LAPACK's at 1e-15",
            ),
        },
    ),
    Case(
        keras_tfopt.LBFGS,
        variants={
            "hyper": dict(
                learning_rate=0.5, memory=3
            ),  # is smaller than the number of steps in tests
            "defaults": dict(learning_rate=0.5),
        },
        refused={"memory": COUNT},
        quadratic=Training(60, learning_rate=0.5),
        rosenbrock=Training(1000, learning_rate=0.1),
        wider_tolerance={
            "float32": (50, "a step divides by products of differences, which are rounded")
        },
    ),
)
