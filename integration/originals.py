"""How recorded optimizers are built here: one table from the original classes to ours."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

import keras_tfopt
from integration.recordings import BadRecording, Case, Gradient


class NotReplayable(Exception):
    """A recorded class, argument or circumstance that has no counterpart here (yet)."""


@dataclasses.dataclass(frozen=True)
class Original:
    """The counterpart of one class of TensorFlow 1 or RETURNN."""

    ours: str
    """Public name in keras_tfopt."""
    arguments: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    """Constructor arguments that have another name here, or None: then only None is replayed."""
    extras: Mapping[str, Callable[[Any, Sequence[Gradient]], Any]] = dataclasses.field(
        default_factory=dict
    )
    """Further recorded state, from our optimizer after a step and the gradients of the step."""
    by_name: bool = False
    """Whether the original arranges the variables by their names."""
    global_step: str = "global_step"
    """What the count of training steps is called, should the original use the name otherwise."""
    step_argument: Any = None
    """What is passed here for the count of training steps, if not a variable that counts them."""
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Defaults of the original, where the recordings do not list them."""
    unused: Sequence[str] = ()
    """Patterns of recorded slots that ours does without where the original never writes them."""
    deviations: Mapping[str, Callable[[Case], bool]] = dataclasses.field(default_factory=dict)
    """Where ours differs on purpose: in words, and whether a recorded case is about it."""

    def optimizer_class(self) -> type:
        """Our class."""
        found = getattr(keras_tfopt, self.ours, None)
        if found is None:
            raise NotReplayable(f"there is no keras_tfopt.{self.ours}")
        return found


def _slot(name: str) -> Callable[..., Any]:
    return lambda optimizer, gradients: optimizer.slot(None, name)


def _power(name: str) -> Callable[..., Any]:
    # TensorFlow 1 keeps the power that the next step will use.
    return lambda optimizer, _: getattr(optimizer, name) ** (int(optimizer.iterations) + 1)


def _flat(gradients: Sequence[Gradient]) -> np.ndarray:
    return np.concatenate([g.ravel() for g in gradients if isinstance(g, np.ndarray)])


def _repeats_rows(case: Case) -> bool:
    return case.repeats_rows


# Repeated rows are no deviation of a rule that is linear in the gradient.
_SUMS_ROWS = {"the original does not sum repeated rows, ours does": _repeats_rows}
_WITHOUT_EFFECT = {"use_locking"}  # the steps of one optimizer never overlap here

_BETAS = {"beta1": "beta_1", "beta2": "beta_2"}
_DECAY = {"sign_decay_fn": "sign_decay"}
_POWERS = {"beta1_power": _power("beta_1"), "beta2_power": _power("beta_2")}

ORIGINALS: dict[str, Original] = {
    "AdadeltaOptimizer": Original("Adadelta"),
    "AdagradDAOptimizer": Original("AdagradDA"),
    "AdagradOptimizer": Original("Adagrad"),
    "AdamOptimizer": Original("Adam", _BETAS, extras=_POWERS),
    "FtrlOptimizer": Original("Ftrl", {"accum_name": None, "linear_name": None}),
    "AdaMaxOptimizer": Original("AdaMax", _BETAS, extras={"beta1_power": _power("beta_1")}),
    "AddSignOptimizer": Original("AddSign", _DECAY),
    "AdamGSOptimizer": Original("AdamGS", _BETAS),
    "AMSGradOptimizer": Original(
        "AMSGrad",
        _BETAS,
        extras={"t": lambda optimizer, _: float(optimizer.iterations)},
        defaults={
            "learning_rate": 0.001,
            "decay": False,
            "beta1": 0.9,
            "beta2": 0.99,
            "epsilon": 0.0,
        },
        deviations={
            "the original is 0/0 where gradients have been zero since the start, ours stays": (
                lambda case: case.has_nan
            )
        },
    ),
    # LazyAdam once more, down to where epsilon stands.
    "CustomAdamOptimizer": Original(
        "LazyAdam",
        _BETAS,
        extras=_POWERS,
        defaults={"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
        deviations=_SUMS_ROWS,
    ),
    # Gradient descent, written by RETURNN as an example of a rule in Python.
    "CustomGradientDescentOptimizer": Original("GradientDescent"),
    "GGTOptimizer": Original(
        "GGT",
        {
            "beta1": "beta_1",
            "eps": "epsilon",
            "svd_eps": "svd_epsilon",
            "sigma_eps": "sigma_epsilon",
        },
        extras={
            "moment1": _slot("moment1"),
            "grad_buffer": _slot("grad_buffer"),
            # No state, though a variable of the original: the gradient on its way into the rule.
            "flat_grad": lambda _, gradients: _flat(gradients),
            "global_step": lambda optimizer, _: float(optimizer.iterations),
        },
        by_name=True,
        global_step="train_global_step",
    ),
    "GradientDescentOptimizer": Original("GradientDescent"),
    "GradVarianceScaledOptimizer": Original(
        "GradVarianceScaled",
        _BETAS,
        defaults={"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
        deviations=_SUMS_ROWS,
    ),
    "LARSOptimizer": Original("LARS", {"use_nesterov": "nesterov"}),
    "LazyAdamGSOptimizer": Original("LazyAdamGS", _BETAS),
    "LazyAdamOptimizer": Original("LazyAdam", _BETAS, extras=_POWERS),
    "MomentumOptimizer": Original("Momentum", {"use_nesterov": "nesterov"}),
    "MovingAverageOptimizer": Original(
        "MovingAverage", {"opt": "inner_optimizer"}, step_argument=True
    ),
    "ProximalAdagradOptimizer": Original("ProximalAdagrad"),
    "ProximalGradientDescentOptimizer": Original("ProximalGradientDescent"),
    "RMSPropOptimizer": Original("RMSProp", {"decay": "rho"}),
    "ShampooOptimizer": Original("Shampoo", unused=("gbar", "Gbar_*")),
    "NadamOptimizer": Original("Nadam", _BETAS, extras=_POWERS),
    "PowerSignOptimizer": Original("PowerSign", _DECAY),
    "RegAdagradOptimizer": Original("RegAdagrad"),
    "NeuralOptimizer1": Original(
        "NeuralOptimizer1",
        _BETAS,
        defaults={"beta1": 0.9, "decrease_factor": 0.1},
        deviations=_SUMS_ROWS,
    ),
    "NormalizedSGD": Original("NormalizedSGD", deviations=_SUMS_ROWS),
}


def original(name: str) -> Original:
    """The table's entry for a recorded class name."""
    if name not in ORIGINALS:
        raise NotReplayable(f"there is no counterpart of {name}")
    return ORIGINALS[name]


def deviation(case: Case) -> str | None:
    """Why ours differs from a recorded case on purpose, if it does."""
    if case.optimizer not in ORIGINALS:
        return None
    with contextlib.suppress(BadRecording, OSError):  # replaying such a case reports it
        for reason, applies in ORIGINALS[case.optimizer].deviations.items():
            if applies(case):
                return reason
    return None


def is_implemented(name: str) -> bool:
    """Whether the package has a counterpart of a recorded class."""
    return name in ORIGINALS and hasattr(keras_tfopt, ORIGINALS[name].ours)


def build(name: str, arguments: Mapping[str, Any], global_step: Any = None) -> Any:
    """Our optimizer for a recorded class name, its recorded arguments and the variable of steps."""
    entry = original(name)
    ours = {}
    for key, value in arguments.items():
        if key in _WITHOUT_EFFECT:
            continue
        new = entry.arguments.get(key, key)
        if new is None:
            if value is not None:
                raise NotReplayable(f"there is no counterpart of the argument {key}")
        elif value == {"ref": "global_step"}:
            ours[new] = global_step if entry.step_argument is None else entry.step_argument
        elif key == "global_step":  # a number is a count that stands still
            ours[new] = keras.Variable(value, dtype="int32", trainable=False)
        elif key == "learning_rate" and isinstance(value, Mapping) and "function_of_T" in value:
            function = _FUNCTIONS_OF_STEP[value["function_of_T"]]
            steps = arguments.get("global_step")
            stands = isinstance(steps, int)
            ours[new] = float(function(np.float32(steps + 1))) if stands else _Following(function)
        else:
            ours[new] = argument(value, global_step)
    return entry.optimizer_class()(**ours)


def extras(
    name: str, arguments: Mapping[str, Any], optimizer: Any, gradients: Sequence[Gradient]
) -> dict[str, Any]:
    """Recorded state beside the slots, of an optimizer and of those inside of it."""
    found = {key: value(optimizer, gradients) for key, value in original(name).extras.items()}
    for inner in arguments.values():
        if _is_optimizer(inner):
            inside = optimizer.inner_optimizer
            found |= extras(inner["optimizer"], inner["kwargs"], inside, gradients)
    return found


def _is_optimizer(value: Any) -> bool:
    return isinstance(value, Mapping) and "optimizer" in value


def argument(value: Any, global_step: Any = None) -> Any:
    if not isinstance(value, Mapping):
        return value
    if _is_optimizer(value):
        return build(value["optimizer"], value["kwargs"], global_step)
    if value.get("function_of_T") in _FUNCTIONS_OF_STEP:
        return _FUNCTIONS_OF_STEP[value["function_of_T"]]
    if value.get("fn") not in _SCHEDULES:
        raise NotReplayable(f"there is no counterpart of the argument {dict(value)}")
    # Passed as a tensor or as a callable, TensorFlow 1 evaluates it once per step all the same.
    schedule = _SCHEDULES[value["fn"]](
        **{k: v for k, v in value.items() if k not in ("fn", "passed_as")}
    )
    done = 0 if global_step is None else int(global_step)
    return _Continued(schedule, done) if done else schedule


class _Following(keras.optimizers.schedules.LearningRateSchedule):
    """A function of the number of the step, which is one more than the steps done."""

    def __init__(self, function):
        self.function = function

    def __call__(self, step):
        return self.function(keras.ops.cast(step, "float32") + 1)


# As the recordings spell them.
_FUNCTIONS_OF_STEP: dict[str, Callable[[Any], Any]] = {
    "0.2/sqrt(T)": lambda step: 0.2 / step**0.5,
    "T/(T+1)": lambda step: step / (step + 1),
    "1/(T+1)": lambda step: 1 / (step + 1),
}


class _Continued(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule in a run that begins after some steps."""

    def __init__(self, schedule, done):
        self.schedule, self.done = schedule, done

    def __call__(self, step):
        return self.schedule(step + self.done)


def _exponential_decay(learning_rate, decay_steps, decay_rate, staircase=False):
    return keras.optimizers.schedules.ExponentialDecay(
        learning_rate, decay_steps, decay_rate, staircase
    )


class _PolynomialDecay(keras.optimizers.schedules.PolynomialDecay):
    """Keras's without its NaN: XLA divides by multiplying, so 1 - steps / steps can be negative."""

    def __call__(self, step):
        left = keras.ops.cast(self.decay_steps - step, "float32")
        left = keras.ops.maximum(left, 0.0) / self.decay_steps
        span = self.initial_learning_rate - self.end_learning_rate
        return self.end_learning_rate + span * left**self.power


def _polynomial_decay(learning_rate, decay_steps, end_learning_rate=0.0001, power=1.0, cycle=False):
    if cycle:
        raise NotReplayable("there is no counterpart of a decay in cycles")
    return _PolynomialDecay(learning_rate, decay_steps, end_learning_rate, power)


def _piecewise_constant(boundaries, values):
    return keras.optimizers.schedules.PiecewiseConstantDecay(boundaries, values)


_SCHEDULES: dict[str, Callable[..., Any]] = {
    "exponential_decay": _exponential_decay,
    "polynomial_decay": _polynomial_decay,
    "piecewise_constant": _piecewise_constant,
    "get_linear_decay_fn": keras_tfopt.schedules.LinearSignDecay,
    "get_cosine_decay_fn": keras_tfopt.schedules.CosineSignDecay,
    "get_restart_decay_fn": keras_tfopt.schedules.RestartSignDecay,
}
