"""The names of the originals as data: what each maps to, its arguments, slots and differences."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

TRAIN, CONTRIB, RETURNN = "tf.train", "tf.contrib.opt", "returnn.tf.updater"


class Required:
    """In the place of a default, where an argument has none."""

    def __repr__(self) -> str:
        return "<required>"


REQUIRED = Required()


@dataclasses.dataclass(frozen=True)
class Row:
    """One class of an original."""

    source: str
    """Module of the original."""
    ours: str
    """Public name in keras_tfopt."""
    arguments: Mapping[str, Any]
    """Constructor arguments with their defaults, in the original order."""
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Arguments that have another name here."""
    slots: tuple[str, ...] = ()
    """Names of the slots, in the order of creation; `*` stands for the number of a dimension."""
    sometimes: tuple[str, ...] = ()
    """Those that are only there where ours are; all others are made in any case."""
    slot_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """By slot, the argument that gives it another name in files than that of the optimizer."""
    powers: tuple[str, ...] = ()
    """Arguments of which `<argument>_power` is kept, which the next step uses."""
    shared: tuple[str, ...] = ()
    """Names of variables that belong to all trained ones together, sorted by name."""
    scratch: tuple[str, ...] = ()
    """Names of variables of that kind that each step writes first, but for what a wrapper omits."""
    counts: bool = False
    """Whether it counts its steps itself, in a floating-point variable `global_step`."""
    unnamed: bool = False
    """Whether its state is in variables without names."""
    keywords: tuple[str, ...] = ()
    """Arguments that can only be given by name."""
    checked: tuple[str, ...] = ()
    """Arguments that the original checks as well: out of their range, they are refused."""
    verbs: str = "rule"
    """What the class does besides applying a rule: a key of `naming.VERBS`."""
    extends: str | None = None
    """The class that decoupled weight decay is added to."""
    differs: str = ""
    """Where the numbers or the interface are not those of the original."""


# Of what originals check, the one argument that must not be positive.
POSITIVE_IS_WRONG = frozenset({"learning_rate_power"})

# What no original checks, and what quotients and roots here need all the same.
AT_LEAST_ZERO = frozenset({"epsilon", "eps", "svd_eps", "sigma_eps"})

# Accepted everywhere, and without meaning here: the steps of one optimizer never overlap, and state
# is where its variable is.
WITHOUT_MEANING = frozenset({"use_locking", "colocate_clip_ops_with_vars"})

_BETAS = {"beta1": "beta_1", "beta2": "beta_2"}
_POWERS = tuple(_BETAS)
_NESTEROV = {"use_nesterov": "nesterov"}
_AROUND = {"opt": "inner_optimizer"}
_SIGN_DECAY = {"sign_decay_fn": "sign_decay"}


def _locked(name: str | None, **arguments: Any) -> dict[str, Any]:
    """Arguments that end with the two that nearly all constructors end with."""
    return {**arguments, "use_locking": False, "name": name}


_ADAM = {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
_STRENGTHS = {"l1_regularization_strength": 0.0, "l2_regularization_strength": 0.0}
_SHAMPOO = {
    "max_matrix_size": 768,
    "gbar_decay": 0.0,
    "gbar_weight": 1.0,
    "mat_gbar_decay": 1.0,
    "mat_gbar_weight": 1.0,
    "learning_rate": 1.0,
    "svd_interval": 1,
    "precond_update_interval": 1,
    "epsilon": 1e-4,
    "alpha": 0.5,
    "use_iterative_root": False,
}
# RETURNN passes on what belongs to its base class as keywords.
_OF_CUSTOM = {"learning_rate": REQUIRED, "use_locking": False, "name": None}
_CUSTOM = tuple(_OF_CUSTOM)

# Of weight decay.
MINIMIZED = "`decay_var_list` of `minimize` acts, and is ignored by the original"

_COUNTS = (
    "without a variable for `global_step`, the step stays 1 as in the original, with a warning"
)
# At the edges of their numbers.
_NO_EPSILON = (
    "with an epsilon of 0, elements without a gradient so far stay, where the original makes them "
    "NaN"
)
_ADAMS = (
    f"{_NO_EPSILON}; elements with a gradient whose square overflows stay, where the original "
    "makes them NaN in the next step"
)
_SUMS = "repeated rows are summed first, the original updates once for each"
_SHAMPOO_DIFFERS = (
    "roots by eigenvalues in the place of singular values; no slots for what is never written; row "
    "gradients of large tables have an effect; " + _COUNTS
)
_SIGN_DIFFERS = "row gradients are accepted; a `sign_decay_fn` needs `global_step` in every step"

# What all classes over workers differ in, besides the ways in which workers meet.
_TOGETHER = "in eager programs the workers are those that are connected, without servers"

TABLE: dict[str, Row] = {
    "AdadeltaOptimizer": Row(
        TRAIN,
        "Adadelta",
        _locked("Adadelta", learning_rate=0.001, rho=0.95, epsilon=1e-8),
        slots=("accum", "accum_update"),
    ),
    "AdagradDAOptimizer": Row(
        TRAIN,
        "AdagradDA",
        _locked(
            "AdagradDA",
            learning_rate=REQUIRED,
            global_step=REQUIRED,
            initial_gradient_squared_accumulator_value=0.1,
            **_STRENGTHS,
        ),
        slots=("gradient_accumulator", "gradient_squared_accumulator"),
        checked=("initial_gradient_squared_accumulator_value", *_STRENGTHS),
    ),
    "AdagradOptimizer": Row(
        TRAIN,
        "Adagrad",
        _locked("Adagrad", learning_rate=REQUIRED, initial_accumulator_value=0.1),
        slots=("accumulator",),
        checked=("initial_accumulator_value",),
    ),
    "AdamOptimizer": Row(
        TRAIN,
        "Adam",
        _locked("Adam", **_ADAM),
        _BETAS,
        ("m", "v"),
        powers=_POWERS,
        differs=_ADAMS,
    ),
    "FtrlOptimizer": Row(
        TRAIN,
        "Ftrl",
        {
            **_locked(
                "Ftrl",
                learning_rate=REQUIRED,
                learning_rate_power=-0.5,
                initial_accumulator_value=0.1,
                **_STRENGTHS,
            ),
            "accum_name": None,
            "linear_name": None,
            "l2_shrinkage_regularization_strength": 0.0,
        },
        slots=("accum", "linear"),
        slot_names={"accum": "accum_name", "linear": "linear_name"},
        verbs="ftrl",
        differs=(
            "two divisions by zero (a rate of 0, no gradient yet) are not done; an element whose "
            "gradient was NaN, or overflows when squared, is NaN, and 0 in the original"
        ),
        checked=(
            "learning_rate",
            "learning_rate_power",
            "initial_accumulator_value",
            "l2_shrinkage_regularization_strength",
            *_STRENGTHS,
        ),
    ),
    "GradientDescentOptimizer": Row(
        TRAIN, "GradientDescent", _locked("GradientDescent", learning_rate=REQUIRED)
    ),
    "MomentumOptimizer": Row(
        TRAIN,
        "Momentum",
        {**_locked("Momentum", learning_rate=REQUIRED, momentum=REQUIRED), "use_nesterov": False},
        _NESTEROV,
        ("momentum",),
    ),
    "ProximalAdagradOptimizer": Row(
        TRAIN,
        "ProximalAdagrad",
        _locked(
            "ProximalAdagrad",
            learning_rate=REQUIRED,
            initial_accumulator_value=0.1,
            **_STRENGTHS,
        ),
        slots=("accumulator",),
        checked=("learning_rate", "initial_accumulator_value", *_STRENGTHS),
    ),
    "ProximalGradientDescentOptimizer": Row(
        TRAIN,
        "ProximalGradientDescent",
        _locked("ProximalGradientDescent", learning_rate=REQUIRED, **_STRENGTHS),
        checked=("l1_regularization_strength",),
    ),
    "RMSPropOptimizer": Row(
        TRAIN,
        "RMSProp",
        {
            "learning_rate": REQUIRED,
            "decay": 0.9,
            "momentum": 0.0,
            "epsilon": 1e-10,
            "use_locking": False,
            "centered": False,
            "name": "RMSProp",
        },
        {"decay": "rho"},
        ("rms", "mg", "momentum"),
        sometimes=("mg",),
        differs="with a decay and an epsilon of 0, what is 0 / 0 in the original is 0",
    ),
    "SyncReplicasOptimizer": Row(
        TRAIN,
        "SyncReplicas",
        {
            "opt": REQUIRED,
            "replicas_to_aggregate": REQUIRED,
            "total_num_replicas": None,
            "variable_averages": None,
            "variables_to_average": None,
            "use_locking": False,
            "name": "sync_replicas",
        },
        _AROUND,
        verbs="synchronous replicas",
        differs=(
            f"{_TOGETHER}, and take turns to be among the `replicas_to_aggregate`; there are no "
            "tokens; `variable_averages` is a decay, or an object with `_decay`"
        ),
    ),
    "AGNOptimizer": Row(
        CONTRIB,
        "AGN",
        {
            "optimizer": REQUIRED,
            "num_worker": REQUIRED,
            "custom_getter": REQUIRED,
            "communication_period": 10,
            "use_locking": True,
            "name": "AGNOptimizer",
        },
        {"optimizer": "inner_optimizer"},
        verbs="gradient sums",
        differs=(
            f"{_TOGETHER}, and move the center together, once, by the mean of their mean "
            "gradients; `global_step` goes up when they do"
        ),
    ),
    "AdaMaxOptimizer": Row(
        CONTRIB,
        "AdaMax",
        _locked("AdaMax", **_ADAM),
        _BETAS,
        ("m", "v"),
        powers=("beta1",),
        differs=_NO_EPSILON,
    ),
    "AdamGSOptimizer": Row(
        CONTRIB,
        "AdamGS",
        _locked("Adam", global_step=0, **_ADAM),
        _BETAS,
        ("m", "v"),
        differs=f"{_COUNTS}; {_ADAMS}",
    ),
    "AdamWOptimizer": Row(
        CONTRIB,
        "DecoupledWeightDecay",
        _locked("AdamW", weight_decay=REQUIRED, **_ADAM),
        slots=("m", "v"),
        powers=_POWERS,
        verbs="decay",
        extends="AdamOptimizer",
        differs=f"{MINIMIZED}; {_ADAMS}",
    ),
    "AddSignOptimizer": Row(
        CONTRIB,
        "AddSign",
        _locked("AddSignOptimizer", learning_rate=0.1, alpha=1.0, beta=0.9, sign_decay_fn=None),
        _SIGN_DECAY,
        ("m",),
        verbs="sign decay",
        differs=_SIGN_DIFFERS,
    ),
    "DropStaleGradientOptimizer": Row(
        CONTRIB,
        "DropStale",
        {
            "opt": REQUIRED,
            "staleness": REQUIRED,
            "use_locking": False,
            "name": "DropStaleGradient",
        },
        _AROUND,
        verbs="stale gradients",
        differs=(
            f"{_TOGETHER}, and make one step together by the mean of the gradients that count; "
            "a step returns the number of gradients that did not"
        ),
    ),
    "ElasticAverageOptimizer": Row(
        CONTRIB,
        "ElasticAverage",
        {
            "opt": REQUIRED,
            "num_worker": REQUIRED,
            "ea_custom_getter": REQUIRED,
            "communication_period": 10,
            "moving_rate": None,
            "rho": None,
            "use_locking": True,
            "synchronous": False,
            "name": "ElasticAverageOptimizer",
        },
        _AROUND,
        verbs="elastic",
        differs=(
            f"{_TOGETHER}, and exchange with the center all at once; `global_step` goes up when "
            "they do; the elastic term is added in the step and not by `compute_gradients`"
        ),
    ),
    "GGTOptimizer": Row(
        CONTRIB,
        "GGT",
        {
            **_locked("GGT", learning_rate=0.001, beta1=0.9),
            "window": 10,
            "eps": 1e-4,
            "svd_eps": 1e-6,
            "sigma_eps": 1e-2,
        },
        {
            "beta1": "beta_1",
            "eps": "epsilon",
            "svd_eps": "svd_epsilon",
            "sigma_eps": "sigma_epsilon",
        },
        shared=("moment1", "grad_buffer"),
        scratch=("flat_grad",),
        counts=True,
        verbs="all variables",
        differs="scalars and row gradients are accepted",
    ),
    "LARSOptimizer": Row(
        CONTRIB,
        "LARS",
        {
            "learning_rate": REQUIRED,
            "momentum": 0.9,
            "weight_decay": 1e-4,
            "eeta": 1e-3,
            "epsilon": 0.0,
            "name": "LARSOptimizer",
            "skip_list": None,
            "use_nesterov": False,
        },
        _NESTEROV,
        ("momentum",),
        verbs="layer rates",
        checked=("momentum", "weight_decay"),
    ),
    "LazyAdamGSOptimizer": Row(
        CONTRIB,
        "LazyAdamGS",
        _locked("Adam", global_step=0, **_ADAM),
        _BETAS,
        ("m", "v"),
        differs=f"{_COUNTS}; {_ADAMS}",
    ),
    "LazyAdamOptimizer": Row(
        CONTRIB,
        "LazyAdam",
        _locked("Adam", **_ADAM),
        _BETAS,
        ("m", "v"),
        powers=_POWERS,
        differs=_ADAMS,
    ),
    "ModelAverageOptimizer": Row(
        CONTRIB,
        "ModelAverage",
        {
            "opt": REQUIRED,
            "num_worker": REQUIRED,
            "is_chief": REQUIRED,
            "ma_custom_getter": REQUIRED,
            "interval_steps": 100,
            "use_locking": True,
            "name": "ModelAverageOptimizer",
        },
        _AROUND,
        verbs="means of models",
        differs=f"{_TOGETHER}; `global_step` goes up with each mean, as there",
    ),
    "MomentumWOptimizer": Row(
        CONTRIB,
        "DecoupledWeightDecay",
        {
            **_locked(
                "MomentumW", weight_decay=REQUIRED, learning_rate=REQUIRED, momentum=REQUIRED
            ),
            "use_nesterov": False,
        },
        slots=("momentum",),
        verbs="decay",
        extends="MomentumOptimizer",
        differs=MINIMIZED,
    ),
    "MovingAverageOptimizer": Row(
        CONTRIB,
        "MovingAverage",
        {"opt": REQUIRED, "average_decay": 0.9999, "num_updates": None, "sequential_update": True},
        _AROUND,
        slots=("average",),
        verbs="averages",
        differs=(
            "`sequential_update=False`, a data race in the original, is the same as True; the "
            "slots of `opt` are found"
        ),
    ),
    "MultitaskOptimizerWrapper": Row(
        CONTRIB,
        "Multitask",
        {"opt": REQUIRED},
        _AROUND,
        verbs="wrapper",
        differs=(
            "it is an `Optimizer`; around `GGTOptimizer`, a variable whose gradient is zero rests "
            "on JAX and PyTorch, and moves by its last gradient on TensorFlow, as in the original"
        ),
    ),
    "NadamOptimizer": Row(
        CONTRIB,
        "Nadam",
        _locked("Adam", **_ADAM),
        _BETAS,
        ("m", "v"),
        powers=_POWERS,
        differs=_ADAMS,
    ),
    "PowerSignOptimizer": Row(
        CONTRIB,
        "PowerSign",
        _locked("PowerSignOptimizer", learning_rate=0.1, base=math.e, beta=0.9, sign_decay_fn=None),
        _SIGN_DECAY,
        ("m",),
        verbs="sign decay",
        differs=_SIGN_DIFFERS,
        checked=("base",),
    ),
    "RegAdagradOptimizer": Row(
        CONTRIB,
        "RegAdagrad",
        _locked("RegAdagrad", learning_rate=REQUIRED, initial_accumulator_value=0.1),
        slots=("accumulator",),
        verbs="avoided slots",
        checked=("initial_accumulator_value",),
    ),
    "ShampooOptimizer": Row(
        CONTRIB,
        "Shampoo",
        _locked("Shampoo", global_step=0, **_SHAMPOO),
        slots=("gbar", "H_*", "Gbar_*"),
        sometimes=("H_*",),
        differs=_SHAMPOO_DIFFERS,
    ),
    "ShampooWOptimizer": Row(
        CONTRIB,
        "DecoupledWeightDecay",
        _locked("ShampooW", weight_decay=REQUIRED, global_step=REQUIRED, **_SHAMPOO),
        slots=("gbar", "H_*", "Gbar_*"),
        sometimes=("H_*",),
        verbs="decay",
        extends="ShampooOptimizer",
        differs=(
            "`mat_gbar_weight`, which the original takes for `mat_gbar_decay`, means what it says; "
            f"variables decay once a step, not twice; {MINIMIZED}; {_SHAMPOO_DIFFERS}"
        ),
    ),
    "VariableClippingOptimizer": Row(
        CONTRIB,
        "VariableClipping",
        {
            "opt": REQUIRED,
            "vars_to_clip_dims": REQUIRED,
            "max_norm": REQUIRED,
            "use_locking": False,
            "colocate_clip_ops_with_vars": False,
            "name": "VariableClipping",
        },
        _AROUND,
        verbs="clipping",
        differs=(
            "a row that a gradient names several times is clipped once, in the original as often, "
            "so that its norm ends below the limit or grows; outside of graphs, variables cannot "
            "be keys of a dictionary, so `vars_to_clip_dims` is a list of pairs, or has names"
        ),
    ),
    "AMSGradOptimizer": Row(
        RETURNN,
        "AMSGrad",
        {
            "learning_rate": 0.001,
            "decay": False,
            "beta1": 0.9,
            "beta2": 0.99,
            "epsilon": 0.0,
            "var_list": (),
        },
        _BETAS,
        ("m", "v", "v_hat"),
        unnamed=True,
        verbs="given variables",
        differs=(
            "with an epsilon of 0, elements whose gradient has been 0 since the start stay; they "
            "are NaN in the original; row gradients are as if dense; `var_list` may be left out"
        ),
    ),
    "CustomAdamOptimizer": Row(
        RETURNN,
        "LazyAdam",
        {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, **_OF_CUSTOM},
        _BETAS,
        ("m", "v"),
        keywords=_CUSTOM,
        powers=_POWERS,
        differs=_SUMS,
    ),
    "CustomGradientDescentOptimizer": Row(RETURNN, "GradientDescent", _OF_CUSTOM),
    "GradVarianceScaledOptimizer": Row(
        RETURNN,
        "GradVarianceScaled",
        {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, **_OF_CUSTOM},
        _BETAS,
        ("m", "v"),
        keywords=_CUSTOM,
        differs=_SUMS,
    ),
    "NeuralOptimizer1": Row(
        RETURNN,
        "NeuralOptimizer1",
        {"beta1": 0.9, "decrease_factor": 0.1, **_OF_CUSTOM},
        _BETAS,
        ("m",),
        keywords=_CUSTOM,
        differs=_SUMS,
    ),
    "NormalizedSGD": Row(RETURNN, "NormalizedSGD", _OF_CUSTOM, differs=_SUMS),
}
