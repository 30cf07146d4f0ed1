"""One `Case` per public optimizer: everything the tests have to know about it.

A new optimizer adds one Case here and one reference in `tests/reference/`; the tests loop over
CASES and hold no names of optimizers themselves. What a row gradient does and what one call of
the rule sees are facts of the class (`sparse`, `scope`); the reference has its own opinion on
`sparse`, and a test compares the two.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.reference import Reference
from tests.reference.adadelta import Adadelta
from tests.reference.adagrad import Adagrad
from tests.reference.adagrad_da import AdagradDA
from tests.reference.adam import Adam
from tests.reference.adam_gs import AdamGS
from tests.reference.adam_w import AdamW
from tests.reference.adamax import AdaMax
from tests.reference.add_sign import AddSign
from tests.reference.amsgrad import AMSGrad
from tests.reference.decoupled_weight_decay import DecoupledWeightDecay
from tests.reference.ftrl import Ftrl
from tests.reference.ggt import GGT
from tests.reference.grad_variance_scaled import GradVarianceScaled
from tests.reference.gradient_descent import GradientDescent
from tests.reference.lars import LARS
from tests.reference.lazy_adam import LazyAdam
from tests.reference.lazy_adam_gs import LazyAdamGS
from tests.reference.lookahead import Lookahead
from tests.reference.momentum import Momentum
from tests.reference.momentum_w import MomentumW
from tests.reference.moving_average import MovingAverage
from tests.reference.multitask import Multitask
from tests.reference.nadam import Nadam
from tests.reference.neural_optimizer1 import NeuralOptimizer1
from tests.reference.normalized_sgd import NormalizedSGD
from tests.reference.over_workers import (
    AGN,
    DiLoCo,
    DropStale,
    ElasticAverage,
    ModelAverage,
    SyncReplicas,
)
from tests.reference.power_sign import PowerSign
from tests.reference.proximal_adagrad import ProximalAdagrad
from tests.reference.proximal_gradient_descent import ProximalGradientDescent
from tests.reference.reg_adagrad import RegAdagrad
from tests.reference.rmsprop import RMSProp
from tests.reference.shampoo import Shampoo
from tests.reference.skip_non_finite import SkipNonFinite
from tests.reference.stochastic_weight_averaging import StochasticWeightAveraging
from tests.reference.variable_clipping import VariableClipping
from tests.stepping import BACKEND, Rows


@dataclass(frozen=True)
class Case:
    cls: type
    reference: type[Reference]
    # Constructor arguments by variant. The first variant is the one of the costly tests; together
    # they reach every branch of the rule.
    variants: Mapping[str, Mapping[str, Any]]
    # Values that each own hyperparameter must refuse, besides what every number refuses
    # (negative, NaN, infinite, of a wrong type). All of them are named, but the learning rate.
    refused: Mapping[str, tuple]
    # Arguments and number of steps with which it reaches the minimum of a function.
    quadratic: tuple[Callable[[], dict], int]
    rosenbrock: tuple[Callable[[], dict], int]
    # Where the tolerance that all others meet cannot be met: {words: (factor, reason)}. The words
    # say where, as in "float64 xla": a dtype, a variant, a mode, a backend.
    wider: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    # Own numbers that may be negative: they need not refuse NEGATIVE of test_bad_input.py.
    negative: tuple[str, ...] = ()
    # Slots that differ in rows without gradient from what a dense gradient of zeros makes of them.
    told_rows: tuple[str, ...] = ()
    # Of a wrapper: the class of the optimizer inside, which gets the arguments that are not the
    # wrapper's own (by way of the wrapper's constructor, if that makes the optimizer inside); and
    # slots of the wrapper that move in rows without gradient too.
    inner: type | None = None
    moves_everywhere: tuple[str, ...] = ()
    # Slots of a wrapper that hold gradients as they come, before options of the optimizer inside.
    before_options: tuple[str, ...] = ()
    # Whether a wrapper acts in touched rows only, also where the optimizer inside moves all rows.
    acts_in_rows: bool = False
    # Whether a wrapper moves the variable after the step of the optimizer inside.
    moves_after: bool = False
    # Arguments, and a power: with these, gradients c times as large make steps c**power times as
    # large. None where there is no such rule.
    scaling: tuple[Mapping[str, Any], int] | None = None
    # Whether a step is of bounded size, as one by signs is, so that an infinite gradient leaves the
    # variable finite.
    bounded: bool = False
    # Arguments that have no default, where a test does not give them.
    required: Mapping[str, Any] = field(default_factory=dict)

    def tolerance(self, dtype="float32", variant=None, mode=None):
        """Largest error of a step: of a variable relative to max(1, |x|), of a slot relative to the
        largest number it has held."""
        here = {dtype, variant or self.main, mode, BACKEND}
        factors = [
            factor for words, (factor, _) in self.wider.items() if set(words.split()) <= here
        ]
        return {"float32": 1e-6, "float64": 1e-12}[dtype] * max(factors, default=1.0)

    @property
    def name(self):
        return self.cls.__name__

    @property
    def main(self):
        """The first variant."""
        return next(iter(self.variants))

    @property
    def sparse(self):
        """What a row gradient does to the variable."""
        return (self.inner or self.cls).sparse

    @property
    def scope(self):
        return (self.inner or self.cls).scope

    def build(self, **arguments):
        """The optimizer with these arguments."""
        arguments = {**self.required, **arguments}
        parameters = set(inspect.signature(self.cls.__init__).parameters)
        if "inner_optimizer" not in parameters:
            return self.cls(**arguments)
        own = parameters & set(arguments)
        outer = {name: arguments.pop(name) for name in own}
        return self.cls(self.inner(**arguments), **outer)

    def make(self, variant=None, **changes):
        """The optimizer of a variant, with some arguments changed."""
        return self.build(**{**self.variants[variant or self.main], **changes})

    def make_reference(self, variant=None):
        return self.reference(**self.variants[variant or self.main])


def _decay(rate, steps, **arguments):
    """Arguments with a learning rate that falls to zero: for rules whose steps do not shrink."""
    schedule = keras.optimizers.schedules.PolynomialDecay
    return lambda: {"learning_rate": schedule(rate, steps, end_learning_rate=0.0), **arguments}


_FLAG = ("yes", 2, None)  # what a boolean refuses
_STEP = (3, "global_step", [0])  # what a global step refuses
_DECAY = (1.5, -0.1, "linear", True, [0.5])  # what a sign decay refuses
_BETA = (1.0, 1.5)  # with beta = 1 the bias correction divides by zero


@keras.saving.register_keras_serializable("tests")
def first_dimension(variable):
    """Dimensions to clip, of variables of any rank."""
    return [0] if len(variable.shape) else []


@keras.saving.register_keras_serializable("tests")
def last_dimension(variable):
    return [-1] if len(variable.shape) else None


_CHOICE = (3, "(", [3], ["("])  # what a choice of variables refuses
_PERIOD = (0, -1, 2.5, "3", None)
_NEEDED = (None, "0.5", -0.1, math.nan, math.inf, True, [0.5])  # what a number without default does

_ADAM = {"learning_rate": 0.03, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-4}
_AS_ADAM = {
    "float32 defaults": (
        100,
        "averages of what started at zero are as far off as the first steps of Adam, whose bias "
        "correction 1 - 0.999**t has an error of 6e-5 in float32",
    )
}

CASES = (
    Case(
        cls=keras_tfopt.Momentum,
        reference=Momentum,
        scaling=({}, 1),
        variants={
            "plain": {"learning_rate": 0.05},
            "nesterov": {"learning_rate": 0.02, "momentum": 0.7, "nesterov": True},
            "no_momentum": {"learning_rate": 0.1, "momentum": 0.0},
        },
        refused={"momentum": (), "nesterov": _FLAG},
        quadratic=(lambda: {"learning_rate": 0.1}, 200),
        rosenbrock=(lambda: {"learning_rate": 1e-3, "momentum": 0.95}, 1000),
    ),
    Case(
        cls=keras_tfopt.Adam,
        reference=Adam,
        scaling=({"epsilon": 0.0}, 0),
        variants={
            "hyper": {"learning_rate": 0.03, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-4},
            "defaults": {},
        },
        refused={"beta_1": _BETA, "beta_2": _BETA, "epsilon": ()},
        quadratic=(_decay(0.3, 200), 200),
        rosenbrock=(_decay(0.2, 1000, beta_2=0.99), 1000),
    ),
    Case(
        cls=keras_tfopt.LazyAdam,
        reference=LazyAdam,
        scaling=({"epsilon": 0.0}, 0),
        variants={
            "hyper": {"learning_rate": 0.03, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-4},
            "catch_up": {"learning_rate": 0.03, "beta_1": 0.8, "beta_2": 0.95, "catch_up": True},
            "defaults": {},
        },
        refused={"beta_1": _BETA, "beta_2": _BETA, "epsilon": (), "catch_up": (1,)},
        quadratic=(_decay(0.3, 200), 200),
        rosenbrock=(_decay(0.2, 1000, beta_2=0.99), 1000),
    ),
    Case(
        cls=keras_tfopt.AdaMax,
        reference=AdaMax,
        scaling=({"epsilon": 0.0}, 0),
        variants={
            "hyper": {"learning_rate": 0.03, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-4},
            "defaults": {},
        },
        refused={"beta_1": _BETA, "beta_2": _BETA, "epsilon": ()},
        quadratic=(_decay(0.3, 200), 200),
        rosenbrock=(_decay(0.2, 1000, beta_2=0.99), 1000),
    ),
    Case(
        cls=keras_tfopt.Nadam,
        reference=Nadam,
        scaling=({"epsilon": 0.0}, 0),
        variants={
            "hyper": {"learning_rate": 0.03, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-4},
            "defaults": {},
        },
        refused={"beta_1": _BETA, "beta_2": _BETA, "epsilon": ()},
        quadratic=(_decay(0.3, 200), 200),
        rosenbrock=(_decay(0.2, 1000, beta_2=0.99), 1000),
    ),
    Case(
        cls=keras_tfopt.AdamGS,
        reference=AdamGS,
        scaling=({"epsilon": 0.0}, 0),
        variants={
            "hyper": {"learning_rate": 0.03, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-4},
            "defaults": {},
        },
        refused={"beta_1": _BETA, "beta_2": _BETA, "epsilon": (), "global_step": _STEP},
        quadratic=(_decay(0.3, 200), 200),
        rosenbrock=(_decay(0.2, 1000, beta_2=0.99), 1000),
    ),
    Case(
        cls=keras_tfopt.LazyAdamGS,
        reference=LazyAdamGS,
        scaling=({"epsilon": 0.0}, 0),
        variants={
            "hyper": {"learning_rate": 0.03, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-4},
            "defaults": {},
        },
        refused={"beta_1": _BETA, "beta_2": _BETA, "epsilon": (), "global_step": _STEP},
        quadratic=(_decay(0.3, 200), 200),
        rosenbrock=(_decay(0.2, 1000, beta_2=0.99), 1000),
    ),
    Case(
        cls=keras_tfopt.RegAdagrad,
        reference=RegAdagrad,
        variants={
            "rate": {"learning_rate": 0.3},
            "accumulator": {"learning_rate": 0.05, "initial_accumulator_value": 0.5},
            "defaults": {},
        },
        refused={"initial_accumulator_value": (0.0,)},
        quadratic=(lambda: {"learning_rate": 1.0}, 200),
        rosenbrock=(lambda: {"learning_rate": 1.3}, 4000),
    ),
    Case(
        cls=keras_tfopt.AddSign,
        reference=AddSign,
        scaling=({}, 1),
        variants={
            "hyper": {"learning_rate": 0.03, "alpha": 1.2, "beta": 0.7, "sign_decay": 0.8},
            "defaults": {},
        },
        refused={"alpha": (), "beta": (1.5,), "sign_decay": _DECAY},
        quadratic=(lambda: {"learning_rate": 0.1}, 200),
        rosenbrock=(lambda: {"learning_rate": 1e-3}, 5000),
    ),
    Case(
        cls=keras_tfopt.PowerSign,
        reference=PowerSign,
        scaling=({}, 1),
        variants={
            "hyper": {"learning_rate": 0.03, "base": 2.0, "beta": 0.7, "sign_decay": 0.8},
            "defaults": {},
        },
        refused={"base": (0.0,), "beta": (1.5,), "sign_decay": _DECAY},
        quadratic=(lambda: {"learning_rate": 0.1}, 200),
        rosenbrock=(lambda: {"learning_rate": 1e-3}, 4000),
    ),
    Case(
        cls=keras_tfopt.AMSGrad,
        reference=AMSGrad,
        scaling=({"epsilon": 0.0}, 0),
        variants={
            "hyper": {"learning_rate": 0.03, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-4},
            "decay": {"learning_rate": 0.03, "decay": True, "beta_1": 0.7},
            "defaults": {},
        },
        refused={"decay": _FLAG, "beta_1": (1.5,), "beta_2": (1.5,), "epsilon": ()},
        quadratic=(_decay(0.3, 200), 200),
        rosenbrock=(lambda: {"learning_rate": 0.5, "beta_1": 0.95}, 1000),
    ),
    Case(
        cls=keras_tfopt.LARS,
        reference=LARS,
        scaling=({"weight_decay": 0.0, "epsilon": 0.0}, 0),
        variants={
            "hyper": {
                "learning_rate": 0.7,
                "momentum": 0.8,
                "weight_decay": 0.02,
                "eeta": 0.03,
                "epsilon": 1e-3,
                "skip_list": ["bias"],
            },
            "nesterov": {"learning_rate": 0.9, "eeta": 0.05, "nesterov": True},
            "defaults": {},
        },
        refused={
            "momentum": (),
            "weight_decay": (),
            "eeta": (),
            "epsilon": (),
            "skip_list": (3, "bias", [3]),  # a bare string would be a list of letters
            "nesterov": _FLAG,
        },
        quadratic=(_decay(1.0, 200, eeta=0.05, momentum=0.5, weight_decay=0.0), 200),
        rosenbrock=(_decay(1.0, 1000, eeta=0.02, weight_decay=0.0), 1000),
    ),
    Case(
        cls=keras_tfopt.NormalizedSGD,
        reference=NormalizedSGD,
        scaling=({}, 0),
        variants={"hyper": {"learning_rate": 0.05}, "defaults": {}},
        refused={},
        quadratic=(_decay(0.2, 200), 200),
        rosenbrock=(_decay(1.0, 4000), 4000),
    ),
    Case(
        cls=keras_tfopt.NeuralOptimizer1,
        reference=NeuralOptimizer1,
        scaling=({}, 1),
        variants={
            "hyper": {"learning_rate": 0.05, "beta_1": 0.7, "decrease_factor": 0.3},
            "no_average": {"learning_rate": 0.05, "beta_1": 0.0},
            "defaults": {},
        },
        refused={"beta_1": (1.5,), "decrease_factor": ()},
        quadratic=(lambda: {"learning_rate": 0.5}, 200),
        rosenbrock=(lambda: {"learning_rate": 0.002}, 5000),
    ),
    Case(
        cls=keras_tfopt.GradVarianceScaled,
        reference=GradVarianceScaled,
        scaling=({"epsilon": 0.0}, 1),
        variants={
            "hyper": {"learning_rate": 0.05, "beta_1": 0.7, "beta_2": 0.8, "epsilon": 1e-4},
            "no_epsilon": {"learning_rate": 0.05, "beta_1": 0.5, "beta_2": 0.6, "epsilon": 0.0},
            "defaults": {},
        },
        refused={"beta_1": (1.5,), "beta_2": (1.5,), "epsilon": ()},
        told_rows=("v",),
        quadratic=(lambda: {"learning_rate": 0.5, "beta_2": 0.9}, 200),
        rosenbrock=(lambda: {"learning_rate": 0.002, "beta_2": 0.9}, 5000),
    ),
    Case(
        cls=keras_tfopt.GGT,
        reference=GGT,
        variants={
            "hyper": {
                "learning_rate": 0.02,
                "beta_1": 0.6,
                "window": 3,  # shorter than the run
                "svd_epsilon": 0.05,
                "sigma_epsilon": 0.5,
            },
            "inside": {"learning_rate": 0.02, "window": 4, "epsilon": 1e3, "svd_epsilon": 0.02},
            "defaults": {},
        },
        refused={
            "beta_1": _BETA,
            "window": (0, -1, 2.5, "3", None),
            "epsilon": (),
            "svd_epsilon": (),
            "sigma_epsilon": (0.0,),
        },
        quadratic=(_decay(0.1, 400), 400),
        rosenbrock=(_decay(0.03, 1000, epsilon=1e3), 1000),
        wider={
            "defaults": (
                100,
                "the ridge of 1e-6 is below the rounding of a Gram matrix in float32, and the "
                "smallest eigenvalues enter with the power -3/2",
            ),
            **{
                f"tensorflow float64 {mode}": (
                    1e4,
                    "XLA's iteration for eigenvectors stops at 1e-11 or so, LAPACK's at 1e-15",
                )
                for mode in ("compiled", "fast", "xla")
            },
        },
    ),
    Case(
        cls=keras_tfopt.Shampoo,
        reference=Shampoo,
        variants={
            # Tables have more rows than a matrix may have, so that they are updated by rows.
            "hyper": {"learning_rate": 0.1, "max_matrix_size": 5, "epsilon": 0.1},
            "intervals": {
                "learning_rate": 0.05,
                "max_matrix_size": 6,
                "mat_gbar_decay": 0.8,
                "mat_gbar_weight": 0.3,
                "svd_interval": 2,
                "precond_update_interval": 3,
                "epsilon": 0.1,
                "alpha": 0.8,
            },
            "average": {
                "learning_rate": 0.1,
                "max_matrix_size": 3,
                "gbar_decay": 0.7,
                "gbar_weight": 0.4,
                "mat_gbar_decay": 0.0,
                "epsilon": 0.1,
            },
            "iterative": {"learning_rate": 0.1, "epsilon": 0.1, "use_iterative_root": True},
            "defaults": {"learning_rate": 0.1},
        },
        refused={
            "global_step": _STEP,
            "max_matrix_size": (0, -1, 2.5, "3", None),
            "gbar_decay": (),
            "gbar_weight": (),
            "mat_gbar_decay": (),
            "mat_gbar_weight": (),
            "svd_interval": (0, 0.5, 2.5),
            "precond_update_interval": (0, 0.5, 2.5),
            "epsilon": (0.0,),
            "alpha": (0.0, 1.5),
            "use_iterative_root": ("yes", 2),
        },
        quadratic=(lambda: {"learning_rate": 0.5}, 200),
        rosenbrock=(_decay(0.01, 1000, mat_gbar_decay=0.9, mat_gbar_weight=0.1), 1000),
        wider={
            "defaults": (10, "a root is only as exact as the ridge of 1e-4 lets it be"),
            "intervals": (40, "so are those that are kept, of sums with a ridge of 0.1"),
            "iterative": (6, "some dozens of products, each of which rounds"),
            "tensorflow xla": (6, "there the iteration takes the place of eigenvalues"),
            # In the comparison of all backends and modes, which runs beside TensorFlow.
            "tensorflow hyper": (3, "the same"),
            "tensorflow average": (3, "the same"),
            "tensorflow defaults": (100, "it adds 1e-6 of the norm, which counts beside 1e-4"),
        },
    ),
    Case(
        cls=keras_tfopt.GradientDescent,
        reference=GradientDescent,
        scaling=({}, 1),
        variants={"hyper": {"learning_rate": 0.1}, "defaults": {}},
        refused={},
        quadratic=(lambda: {"learning_rate": 0.3}, 200),
        rosenbrock=(lambda: {"learning_rate": 2e-3}, 4000),
    ),
    Case(
        cls=keras_tfopt.Adagrad,
        reference=Adagrad,
        variants={
            "hyper": {"learning_rate": 0.2},
            "accumulator": {"learning_rate": 0.1, "initial_accumulator_value": 0.5},
            "defaults": {},
        },
        refused={"initial_accumulator_value": (0, 0.0)},  # the square root divides
        quadratic=(lambda: {"learning_rate": 1.0}, 200),
        rosenbrock=(lambda: {"learning_rate": 1.5}, 3000),
    ),
    Case(
        cls=keras_tfopt.RMSProp,
        reference=RMSProp,
        variants={
            "centered": {
                "learning_rate": 0.05,
                "rho": 0.8,
                "momentum": 0.7,
                "epsilon": 1e-3,
                "centered": True,
            },
            "momentum": {"learning_rate": 0.05, "rho": 0.7, "momentum": 0.8, "epsilon": 1e-2},
            "no_epsilon": {"learning_rate": 0.05, "rho": 0.7, "epsilon": 0.0},
            "defaults": {},
        },
        refused={"rho": (1.5,), "momentum": (1.5,), "epsilon": (), "centered": _FLAG},
        quadratic=(_decay(1.0, 200, rho=0.99), 200),
        rosenbrock=(_decay(2e-3, 1000, momentum=0.9), 1000),
    ),
    Case(
        cls=keras_tfopt.Adadelta,
        reference=Adadelta,
        variants={
            "hyper": {"learning_rate": 0.7, "rho": 0.8, "epsilon": 1e-3},
            "defaults": {},
        },
        refused={"rho": (1.5,), "epsilon": (0, 0.0)},
        quadratic=(_decay(3.0, 200, epsilon=1e-3), 200),
        rosenbrock=(_decay(0.1, 4000, epsilon=1e-4), 4000),
    ),
    Case(
        cls=keras_tfopt.Ftrl,
        reference=Ftrl,
        variants={
            "hyper": {
                "learning_rate": 0.2,
                "learning_rate_power": -0.6,
                "l1_regularization_strength": 0.01,
                "l2_regularization_strength": 0.02,
                "l2_shrinkage_regularization_strength": 0.01,
            },
            "root": {"learning_rate": 0.3, "l1_regularization_strength": 0.5},
            "constant": {"learning_rate": 0.1, "learning_rate_power": 0.0},
            "from_zero": {
                "initial_accumulator_value": 0.0,
                "l2_shrinkage_regularization_strength": 0.1,
            },
            "defaults": {},
        },
        refused={
            "learning_rate_power": (0.5, 0.25, 1),
            "initial_accumulator_value": (),
            "l1_regularization_strength": (),
            "l2_regularization_strength": (),
            "l2_shrinkage_regularization_strength": (),
        },
        negative=("learning_rate_power",),
        quadratic=(lambda: {"learning_rate": 1.0}, 200),
        rosenbrock=(lambda: {"learning_rate": 1.5}, 3000),
        wider={
            "float32 hyper": (
                4,
                "`linear` is the difference of two terms of one size: at small learning rates they "
                "cancel in a scalar variable",
            ),
        },
    ),
    Case(
        cls=keras_tfopt.AdagradDA,
        reference=AdagradDA,
        variants={
            "hyper": {
                "learning_rate": 0.3,
                "l1_regularization_strength": 0.01,
                "l2_regularization_strength": 0.2,
            },
            "accumulator": {
                "learning_rate": 0.2,
                "initial_gradient_squared_accumulator_value": 0.5,
                "l1_regularization_strength": 0.1,
            },
            "defaults": {},
        },
        refused={
            "global_step": (3, 0.5, "global_step"),
            "initial_gradient_squared_accumulator_value": (0, 0.0),  # the square root divides
            "l1_regularization_strength": (),
            "l2_regularization_strength": (),
        },
        quadratic=(lambda: {"learning_rate": 2.0}, 200),
        rosenbrock=(lambda: {"learning_rate": 0.35}, 2600),
    ),
    Case(
        cls=keras_tfopt.ProximalGradientDescent,
        reference=ProximalGradientDescent,
        variants={
            "hyper": {
                "learning_rate": 0.1,
                "l1_regularization_strength": 0.03,
                "l2_regularization_strength": 0.2,
            },
            "sparse": {"learning_rate": 0.1, "l1_regularization_strength": 1.0},
            "defaults": {},
        },
        refused={"l1_regularization_strength": (), "l2_regularization_strength": ()},
        quadratic=(lambda: {"learning_rate": 0.3}, 200),
        rosenbrock=(lambda: {"learning_rate": 2e-3}, 4000),
    ),
    Case(
        cls=keras_tfopt.ProximalAdagrad,
        reference=ProximalAdagrad,
        variants={
            "hyper": {
                "learning_rate": 0.1,
                "l1_regularization_strength": 0.03,
                "l2_regularization_strength": 0.2,
            },
            "sparse": {
                "learning_rate": 0.1,
                "initial_accumulator_value": 0.5,
                "l1_regularization_strength": 1.0,
            },
            "defaults": {},
        },
        refused={
            "initial_accumulator_value": (0, 0.0),  # the square root divides
            "l1_regularization_strength": (),
            "l2_regularization_strength": (),
        },
        quadratic=(lambda: {"learning_rate": 1.0}, 200),
        rosenbrock=(lambda: {"learning_rate": 1.5}, 3000),
    ),
    Case(
        cls=keras_tfopt.MovingAverage,
        inner=keras_tfopt.Momentum,
        reference=MovingAverage,
        variants={
            "decay": {"average_decay": 0.8, "learning_rate": 0.05},
            "steps": {"average_decay": 0.3, "num_updates": True, "learning_rate": 0.05},
            "number": {"num_updates": 3, "sequential_update": False, "learning_rate": 0.05},
            "dynamic": {
                "average_decay": 0.4,
                "start_step": 2,
                "dynamic_decay": True,
                "learning_rate": 0.05,
            },
            "defaults": {},
        },
        refused={
            "average_decay": (1.5,),
            "num_updates": (-1, "3", False),
            "sequential_update": _FLAG,
            "start_step": (-1, 2.5, "3", None),
            "dynamic_decay": _FLAG,
            "inner_optimizer": (3, None, [keras_tfopt.Momentum]),
        },
        moves_everywhere=("average",),
        quadratic=(lambda: {"learning_rate": 0.1}, 200),
        rosenbrock=(lambda: {"learning_rate": 1e-3, "momentum": 0.95}, 1000),
    ),
    Case(
        cls=keras_tfopt.AdamW,
        inner=keras_tfopt.Adam,
        acts_in_rows=True,
        reference=AdamW,
        required={"weight_decay": 0.0},
        variants={
            "hyper": {
                "weight_decay": 0.02,
                "learning_rate": 0.03,
                "beta_1": 0.8,
                "beta_2": 0.95,
                "epsilon": 1e-4,
            },
            "scaled": {
                "weight_decay": 0.5,
                "scale_by_learning_rate": True,
                "decay_variables": keras_tfopt.no_vectors,
                **_ADAM,
            },
            "defaults": {"weight_decay": 1e-3},
        },
        refused={
            "weight_decay": _NEEDED,
            "beta_1": _BETA,
            "beta_2": _BETA,
            "epsilon": (),
            "decay_variables": _CHOICE,
            "scale_by_learning_rate": _FLAG,
        },
        quadratic=(_decay(0.3, 200), 200),
        rosenbrock=(_decay(0.2, 1000, beta_2=0.99), 1000),
    ),
    Case(
        cls=keras_tfopt.MomentumW,
        inner=keras_tfopt.Momentum,
        reference=MomentumW,
        required={"weight_decay": 0.0},
        variants={
            "nesterov": {
                "weight_decay": 0.02,
                "learning_rate": 0.05,
                "momentum": 0.7,
                "nesterov": True,
            },
            "chosen": {"weight_decay": 0.1, "learning_rate": 0.05, "decay_variables": "e"},
            "defaults": {"weight_decay": 1e-3},
        },
        refused={
            "weight_decay": _NEEDED,
            "momentum": (),
            "nesterov": _FLAG,
            "decay_variables": _CHOICE,
            "scale_by_learning_rate": _FLAG,
        },
        quadratic=(lambda: {"learning_rate": 0.1}, 200),
        rosenbrock=(lambda: {"learning_rate": 1e-3, "momentum": 0.95}, 1000),
    ),
    Case(
        cls=keras_tfopt.DecoupledWeightDecay,
        inner=keras_tfopt.Momentum,
        reference=DecoupledWeightDecay,
        required={"weight_decay": 0.0},
        variants={
            "plain": {"weight_decay": 0.02, "learning_rate": 0.05},
            "scaled": {
                "weight_decay": 0.5,
                "scale_by_learning_rate": True,
                "learning_rate": 0.05,
                "decay_variables": [".", "e"],
            },
        },
        refused={
            "weight_decay": _NEEDED,
            "decay_variables": _CHOICE,
            "scale_by_learning_rate": _FLAG,
            "inner_optimizer": (3, None, [keras_tfopt.Momentum]),
        },
        quadratic=(lambda: {"learning_rate": 0.1}, 200),
        rosenbrock=(lambda: {"learning_rate": 1e-3, "momentum": 0.95}, 1000),
    ),
    Case(
        cls=keras_tfopt.VariableClipping,
        inner=keras_tfopt.Momentum,
        moves_after=True,
        reference=VariableClipping,
        required={"vars_to_clip_dims": {".": []}, "max_norm": 10.0},
        variants={
            "last": {
                "vars_to_clip_dims": last_dimension,
                "max_norm": 0.8,
                "learning_rate": 0.05,
            },
            "first": {
                "vars_to_clip_dims": first_dimension,
                "max_norm": 0.8,
                "learning_rate": 0.05,
            },
            "elements": {"vars_to_clip_dims": {".": []}, "max_norm": 0.5, "learning_rate": 0.05},
        },
        refused={
            "vars_to_clip_dims": (None, {}, "kernel", {"kernel": 0}, {"kernel": [0.5]}, {"(": [0]}),
            "max_norm": (*_NEEDED, 0, 0.0),
            "inner_optimizer": (3, None, [keras_tfopt.Momentum]),
        },
        quadratic=(lambda: {"learning_rate": 0.1}, 200),
        rosenbrock=(lambda: {"learning_rate": 1e-3, "momentum": 0.95}, 1000),
    ),
    Case(
        cls=keras_tfopt.Multitask,
        inner=keras_tfopt.Adam,
        reference=Multitask,
        variants={
            "hyper": {"learning_rate": 0.03, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-4},
            "defaults": {},
        },
        refused={"inner_optimizer": (3, None, [keras_tfopt.Adam])},
        quadratic=(_decay(0.3, 200), 200),
        rosenbrock=(_decay(0.2, 1000, beta_2=0.99), 1000),
    ),
    Case(
        cls=keras_tfopt.Lookahead,
        inner=keras_tfopt.Adam,
        moves_after=True,
        reference=Lookahead,
        variants={
            "often": {"sync_period": 2, "slow_step_size": 0.7, **_ADAM},
            "defaults": {},
        },
        wider=_AS_ADAM,
        refused={
            "sync_period": _PERIOD,
            "slow_step_size": (1.5,),
            "inner_optimizer": (3, None, [keras_tfopt.Adam]),
        },
        quadratic=(_decay(0.6, 400), 400),
        rosenbrock=(_decay(0.4, 2000, beta_2=0.99), 2000),
    ),
    Case(
        cls=keras_tfopt.StochasticWeightAveraging,
        inner=keras_tfopt.Adam,
        reference=StochasticWeightAveraging,
        variants={
            "late": {"start_averaging": 1, "average_period": 2, **_ADAM},
            "often": {"average_period": 1, **_ADAM},
            "defaults": {},
        },
        wider=_AS_ADAM,
        refused={
            "start_averaging": (-1, 2.5, "3", None),
            "average_period": _PERIOD,
            "inner_optimizer": (3, None, [keras_tfopt.Adam]),
        },
        quadratic=(_decay(0.3, 200), 200),
        rosenbrock=(_decay(0.2, 1000, beta_2=0.99), 1000),
    ),
    Case(
        cls=keras_tfopt.SkipNonFinite,
        inner=keras_tfopt.Momentum,
        reference=SkipNonFinite,
        variants={"limit": {"max_consecutive": 3, "learning_rate": 0.05}, "defaults": {}},
        refused={
            "max_consecutive": (-1, 2.5, "3"),
            "inner_optimizer": (3, None, [keras_tfopt.Momentum]),
        },
        quadratic=(lambda: {"learning_rate": 0.1}, 200),
        rosenbrock=(lambda: {"learning_rate": 1e-3, "momentum": 0.95}, 1000),
    ),
    # Over workers, of which there is one here.
    Case(
        cls=keras_tfopt.ModelAverage,
        inner=keras_tfopt.Momentum,
        reference=ModelAverage,
        variants={"often": {"interval_steps": 2, "learning_rate": 0.05}, "defaults": {}},
        refused={
            "interval_steps": _PERIOD,
            "exchange": ("torch", 2),
            "inner_optimizer": (3, None, [keras_tfopt.Momentum]),
        },
        quadratic=(lambda: {"learning_rate": 0.1}, 200),
        rosenbrock=(lambda: {"learning_rate": 1e-3, "momentum": 0.95}, 1000),
    ),
    Case(
        cls=keras_tfopt.ElasticAverage,
        inner=keras_tfopt.Momentum,
        reference=ElasticAverage,
        variants={
            "often": {"communication_period": 2, "moving_rate": 0.3, "learning_rate": 0.05},
            "tied": {"communication_period": 3, "rho": 0.5, "learning_rate": 0.05},
            "defaults": {},
        },
        refused={
            "communication_period": _PERIOD,
            "moving_rate": (1.5, -0.1, "3"),
            "rho": (-0.1, "3"),
            "exchange": ("torch", 2),
            "inner_optimizer": (3, None, [keras_tfopt.Momentum]),
        },
        quadratic=(lambda: {"learning_rate": 0.1}, 200),
        rosenbrock=(lambda: {"learning_rate": 1e-3, "momentum": 0.95}, 1000),
        moves_everywhere=("center", "local_center"),
    ),
    Case(
        cls=keras_tfopt.AGN,
        inner=keras_tfopt.Adam,
        reference=AGN,
        before_options=("gradient_sum",),
        variants={"often": {"communication_period": 2, **_ADAM}, "defaults": {}},
        wider=_AS_ADAM,
        refused={
            "communication_period": _PERIOD,
            "exchange": ("torch", 2),
            "inner_optimizer": (3, None, [keras_tfopt.Adam]),
        },
        quadratic=(_decay(0.3, 200), 200),
        rosenbrock=(_decay(0.2, 1000, beta_2=0.99), 1000),
        moves_everywhere=("center", "gradient_sum"),
    ),
    Case(
        cls=keras_tfopt.DiLoCo,
        inner=keras_tfopt.Adam,
        reference=DiLoCo,
        variants={"often": {"period": 2, "outer_learning_rate": 0.5, **_ADAM}, "defaults": {}},
        wider=_AS_ADAM,
        refused={
            "outer_learning_rate": (),
            "outer_momentum": (1.0, 1.5),
            "period": _PERIOD,
            "exchange": ("torch", 2),
            "inner_optimizer": (3, None, [keras_tfopt.Adam]),
        },
        quadratic=(_decay(0.3, 200), 200),
        rosenbrock=(_decay(0.2, 1000, beta_2=0.99), 1000),
        moves_everywhere=("center",),
    ),
    Case(
        cls=keras_tfopt.DropStale,
        inner=keras_tfopt.Momentum,
        reference=DropStale,
        required={"staleness": 1},
        variants={"some": {"staleness": 2, "learning_rate": 0.05}},
        refused={
            "staleness": (-1, 2.5, "3", None),
            "exchange": ("torch", 2),
            "inner_optimizer": (3, None, [keras_tfopt.Momentum]),
        },
        quadratic=(lambda: {"learning_rate": 0.1}, 200),
        rosenbrock=(lambda: {"learning_rate": 1e-3, "momentum": 0.95}, 1000),
    ),
    Case(
        cls=keras_tfopt.SyncReplicas,
        inner=keras_tfopt.Momentum,
        reference=SyncReplicas,
        required={"replicas_to_aggregate": 1},
        variants={
            "averages": {
                "replicas_to_aggregate": 1,
                "variable_averages": 0.8,
                "variables_to_average": ".",
                "learning_rate": 0.05,
            },
            "plain": {"replicas_to_aggregate": None, "learning_rate": 0.05},
        },
        refused={
            "replicas_to_aggregate": (0, -1, 2.5, "3"),
            "total_num_replicas": (0, -1, 2.5, "3"),
            "variable_averages": (1.5,),
            "variables_to_average": (3, "("),
            "exchange": ("torch", 2),
            "inner_optimizer": (3, None, [keras_tfopt.Momentum]),
        },
        quadratic=(lambda: {"learning_rate": 0.1}, 200),
        rosenbrock=(lambda: {"learning_rate": 1e-3, "momentum": 0.95}, 1000),
        moves_everywhere=("average",),
    ),
)


def keras_options():
    """Names of the options that Keras's own base class takes, on any backend."""
    constructors = [
        vars(c)["__init__"]
        for c in keras.optimizers.Optimizer.__mro__[:-1]
        if "__init__" in vars(c)
    ]
    names = {name for each in constructors for name in inspect.signature(each).parameters}
    names -= {"self", "args", "kwargs", "learning_rate"}
    assert {"name", "clipnorm", "weight_decay", "use_ema"} <= names
    return names


RULES = tuple(case for case in CASES if case.inner is None)
every_rule = pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in RULES])


def every_case(*names):
    """Parametrize over CASES, or over CASES and their variants: `every_case("case", "variant")`."""
    if names == ("case",):
        params = [pytest.param(case, id=case.name) for case in CASES]
    else:
        params = [
            pytest.param(case, variant, id=f"{case.name}-{variant}")
            for case in CASES
            for variant in case.variants
        ]
    return pytest.mark.parametrize(names, params)


# A small model's worth of variables and gradients. The names matter: `bias` is on skip lists,
# `embeddings` are row variables, `fresh` has no norm yet, `frozen` never gets a gradient.

INITIAL = {
    "scale": 0.7,
    "layer/kernel": np.random.default_rng(1).normal(size=(4, 3)),
    "layer/bias": np.random.default_rng(2).normal(size=5),
    "conv/kernel": np.random.default_rng(3).normal(size=(2, 1, 2, 3)),
    "fresh/kernel": np.zeros((3, 2)),
    "table/embeddings": np.random.default_rng(4).normal(size=(7, 3)),
    "linear/embeddings": np.random.default_rng(5).normal(size=6),
    "frozen": np.random.default_rng(6).normal(size=2),
}
# For tests of other things than numbers: each shape is a program of its own to compile.
FEW = ("layer/kernel", "layer/bias", "table/embeddings", "frozen")
STEPS = ("normal", "normal", "zero", "small", "masked", "large", "normal")
_STD = {"normal": 0.5, "zero": 0.0, "small": 1e-3, "masked": 0.5, "large": 5.0}
_ROW_COUNT = 5  # the same at every step: another count is another program on JAX


def initial(dtype="float32", paths=tuple(INITIAL)):
    """The variables to start from, as arrays of `dtype`."""
    return {path: np.asarray(INITIAL[path], dtype) for path in paths}


def gradients(dtype="float32", steps=STEPS, seed=0, paths=tuple(INITIAL)):
    """One dict of gradients per step: arrays, row gradients with repeated rows, None for frozen."""
    rng = np.random.default_rng(seed)
    plan = []
    for kind in steps:
        step = {}
        for path in paths:
            shape = np.shape(INITIAL[path])
            if path == "frozen":
                continue
            if path.endswith("embeddings"):
                g = rng.normal(size=(_ROW_COUNT, *shape[1:])) * _STD[kind]
                if kind == "masked":
                    g[1:3] = 0.0  # named all the same
                indices = rng.integers(0, shape[0] - 1, size=_ROW_COUNT)  # the last row: never
                indices[-1] = indices[0]
                step[path] = Rows(g.astype(dtype), indices.astype("int32"))
            else:
                g = rng.normal(size=shape) * _STD[kind]
                if kind == "masked":
                    g = g * (rng.random(shape) < 0.5)
                step[path] = np.asarray(g, dtype)
        plan.append(step)
    return plan


def _representatives():
    """The first case of each kind that the engine treats in a way of its own."""
    first = {}
    for case in CASES:
        kind = case.inner is None, case.scope, (case.inner or case.cls).flat, case.sparse
        first.setdefault(kind, case)
    return {case.name for case in first.values()}


# What does not depend on a rule's formula is tested with these, and with all others on request.
REPRESENTATIVES = _representatives()
