"""How recorded optimizers are built here: one table from the original classes to ours."""

import contextlib
import dataclasses
import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

import keras_tfopt
from integration.originals import (
    adafactor,
    addons,
    estimated,
    modern,
    muon,
    schedule_free,
    schedules,
    second_order,
)
from integration.originals.addons import COUNT, DECAYED, KERAS2, ROWS_DO_NOT_DECAY, decayed
from integration.recordings import BadRecording, Case, Gradient, NotReplayable
from keras_tfopt.legacy.table import TABLE, WITHOUT_MEANING


@dataclasses.dataclass(frozen=True)
class Original:
    """The counterpart of one class of TensorFlow 1 or RETURNN."""

    ours: str
    """Public name in keras_tfopt."""
    arguments: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    """Constructor arguments that have another name here, or None: then only None, False and 0 are
    replayed."""
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
    other_defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Defaults that are not ours: another original of ours has others, or ours are better."""
    slots: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Slots that have another name here."""
    repeated: Sequence[str] = ()
    """Slots of one number that the original repeats in the variable's shape."""
    selects: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Our arguments for what the original is told in each step: lists of names of variables."""
    read: Callable[[Any, Any, str, Sequence[int]], Any] | None = None
    """A recorded slot, from our optimizer, the variable, the name and the recorded shape, where
    ours is laid out in another way."""
    wider_tolerance: Mapping[str, tuple[float, str]] = dataclasses.field(default_factory=dict)
    """Ways to make steps that are not as exact in float64, as {way: (factor, reason)}."""
    make: Callable[[Mapping[str, Any]], Any] | None = None
    """Builds ours from recorded arguments, where other names for these are not enough."""
    recipes: Sequence[str] = ()
    """Arguments that `make` is given as they are recorded."""
    extends: str | None = None
    """What is extended, if it is a class made from another one."""
    deviations: Mapping[str, Callable[[Case], bool]] = dataclasses.field(default_factory=dict)
    """Where ours differs on purpose: in words, and whether a recorded case is about it."""

    def optimizer_class(self) -> type:
        """Our class."""
        if self.extends is not None:
            extended = original(self.extends).optimizer_class()
            return keras_tfopt.extend_with_decoupled_weight_decay(extended)
        found = getattr(keras_tfopt, self.ours, None)
        if found is None:
            raise NotReplayable(f"there is no keras_tfopt.{self.ours}")
        return found

    def does_without(self, slot: str) -> bool:
        """Whether ours may have no slot for a recorded one that is never written."""
        patterns = [*self.unused, *(original(self.extends).unused if self.extends else ())]
        return any(fnmatch.fnmatch(slot, pattern) for pattern in patterns)


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

_BETAS = {"beta1": "beta_1", "beta2": "beta_2"}
_POWERS = {"beta1_power": _power("beta_1"), "beta2_power": _power("beta_2")}


def _inside(extras: Mapping[str, Callable[..., Any]]) -> Mapping[str, Callable[..., Any]]:
    def of(value: Callable[..., Any]) -> Callable[..., Any]:
        return lambda optimizer, gradients: value(optimizer.inner_optimizer, gradients)

    return {name: of(value) for name, value in extras.items()}


ORIGINALS: dict[str, Original] = {
    "AdadeltaOptimizer": Original("Adadelta"),
    "AdagradDAOptimizer": Original("AdagradDA"),
    "AdagradOptimizer": Original("Adagrad"),
    "AdamOptimizer": Original("Adam", extras=_POWERS),
    "FtrlOptimizer": Original("Ftrl", {"accum_name": None, "linear_name": None}),
    "AdaMaxOptimizer": Original("AdaMax", extras={"beta1_power": _power("beta_1")}),
    "AddSignOptimizer": Original("AddSign"),
    "AdamGSOptimizer": Original("AdamGS"),
    "AdamWOptimizer": Original("AdamW", _BETAS, extras=_inside(_POWERS), selects=DECAYED),
    "AMSGradOptimizer": Original(
        "AMSGrad",
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
        extras=_POWERS,
        defaults={"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
        deviations=_SUMS_ROWS,
    ),
    # Gradient descent, written by RETURNN as an example of a rule in Python.
    "CustomGradientDescentOptimizer": Original("GradientDescent"),
    "GGTOptimizer": Original(
        "GGT",
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
        defaults={"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
        deviations=_SUMS_ROWS,
    ),
    "LARSOptimizer": Original("LARS"),
    "LazyAdamGSOptimizer": Original("LazyAdamGS"),
    "LazyAdamOptimizer": Original("LazyAdam", extras=_POWERS),
    "MomentumOptimizer": Original("Momentum"),
    "MomentumWOptimizer": Original("MomentumW", {"use_nesterov": "nesterov"}, selects=DECAYED),
    "MovingAverageOptimizer": Original("MovingAverage", step_argument=True),
    "MultitaskOptimizerWrapper": Original("Multitask"),
    "ProximalAdagradOptimizer": Original("ProximalAdagrad"),
    "ProximalGradientDescentOptimizer": Original("ProximalGradientDescent"),
    "RMSPropOptimizer": Original("RMSProp"),
    "ShampooOptimizer": Original(
        "Shampoo",
        unused=("gbar", "Gbar_*"),
        other_defaults={"use_iterative_root": False},  # ours chooses
    ),
    "NadamOptimizer": Original("Nadam", extras=_POWERS),
    "PowerSignOptimizer": Original("PowerSign"),
    "RegAdagradOptimizer": Original("RegAdagrad"),
    "VariableClippingOptimizer": Original("VariableClipping"),
    "NeuralOptimizer1": Original(
        "NeuralOptimizer1",
        defaults={"beta1": 0.9, "decrease_factor": 0.1},
        deviations=_SUMS_ROWS,
    ),
    "NormalizedSGD": Original("NormalizedSGD", deviations=_SUMS_ROWS),
}
_OTHERS = (
    addons.ADDONS,
    modern.MODERN,
    adafactor.ADAFACTOR,
    estimated.ESTIMATED,
    muon.MUON,
    schedule_free.SCHEDULE_FREE,
    second_order.SECOND_ORDER,
)
for _rows in _OTHERS:
    ORIGINALS |= {name: Original(**row) for name, row in _rows.items()}
# The package itself says how arguments of these are called here.
for _name in ORIGINALS.keys() & TABLE.keys():
    _renamed = {**TABLE[_name].renamed, **ORIGINALS[_name].arguments}
    ORIGINALS[_name] = dataclasses.replace(ORIGINALS[_name], arguments=_renamed)
_EXTENDED = re.compile(r"extend_with_decoupled_weight_decay\((\w+)\)")


def original(name: str) -> Original:
    """The table's entry for a recorded class name."""
    if name in ORIGINALS:
        return ORIGINALS[name]
    if (found := _EXTENDED.fullmatch(name)) and found[1] in ORIGINALS:
        inner = ORIGINALS[found[1]]
        plain = found[1] == "GradientDescentOptimizer"
        return Original(
            "DecoupledWeightDecay",
            inner.arguments,
            extras=_inside(inner.extras),
            selects=DECAYED,
            extends=found[1],
            deviations={ROWS_DO_NOT_DECAY: lambda case: plain and case.sparse},
        )
    if name.startswith("extend:") and name.removeprefix("extend:") in KERAS2:
        make = KERAS2[name.removeprefix("extend:")]
        return Original(
            "DecoupledWeightDecay",
            make=lambda given: decayed(make, given),
            slots={"accum_var": "accum_update", "accum_grad": "accum"},  # of Adadelta
            selects=DECAYED,
            **COUNT,
        )
    raise NotReplayable(f"there is no counterpart of {name}")


def tolerance_factor(case: Case, way: str) -> float:
    """Return how many times as large as recorded errors may be, of steps that are made in a way."""
    wider = original(case.optimizer).wider_tolerance if case.float64 else {}
    return wider[way][0] if way in wider else 1.0


def deviation(case: Case) -> str | None:
    """Why ours differs from a recorded case on purpose, if it does."""
    # Replaying such a case reports what is wrong with it.
    with contextlib.suppress(BadRecording, OSError, NotReplayable):
        for reason, applies in original(case.optimizer).deviations.items():
            if applies(case):
                return reason
    return None


def is_implemented(name: str) -> bool:
    """Whether the package has a counterpart of a recorded class."""
    with contextlib.suppress(NotReplayable):
        return bool(original(name).optimizer_class())
    return False


def build(name: str, arguments: Mapping[str, Any], global_step: Any = None) -> Any:
    """Our optimizer for a recorded class name, its recorded arguments and the variable of steps."""
    entry = original(name)
    ours: dict[str, Any] = {}
    for key, value in arguments.items():
        if key in WITHOUT_MEANING:
            continue
        new = entry.arguments.get(key, key)
        if new is None:
            if value:
                raise NotReplayable(f"there is no counterpart of the argument {key}")
        elif key in entry.recipes:
            ours[new] = value
        elif value == {"ref": "global_step"}:
            ours[new] = global_step if entry.step_argument is None else entry.step_argument
        elif key == "global_step":  # a number is a count that stands still
            ours[new] = keras.Variable(value, dtype="int32", trainable=False)
        elif key == "learning_rate" and isinstance(value, Mapping) and "function_of_T" in value:
            function = schedules.FUNCTIONS_OF_STEP[value["function_of_T"]]
            steps = arguments.get("global_step")
            stands = isinstance(steps, int)
            ours[new] = (
                float(function(np.float32(steps + 1))) if stands else schedules.Following(function)
            )
        else:
            ours[new] = argument(value, global_step)
    return entry.optimizer_class()(**ours) if entry.make is None else entry.make(ours)


def extras(
    name: str, arguments: Mapping[str, Any], optimizer: Any, gradients: Sequence[Gradient]
) -> dict[str, Any]:
    """Recorded state besides the slots, of an optimizer and of those inside of it."""
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
    if value.get("function_of_T") in schedules.FUNCTIONS_OF_STEP:
        return schedules.FUNCTIONS_OF_STEP[value["function_of_T"]]
    if "class_name" in value:
        return _of_keras2(value)
    if all(isinstance(item, bool) for item in value.values()):  # of each variable
        return dict(value)
    if all(axes is None or "output_axis" in axes for axes in value.values() if axes != {}):
        return dict(value)  # of a matrix in several dimensions
    if "clip_dims" in value:
        return {_path(name): dims for name, dims in value["clip_dims"].items()}
    if value.get("fn") not in schedules.OF_TENSORFLOW:
        raise NotReplayable(f"there is no counterpart of the argument {dict(value)}")
    # Passed as a tensor or as a callable, TensorFlow 1 evaluates it once per step all the same.
    schedule = schedules.OF_TENSORFLOW[value["fn"]](
        **{k: v for k, v in value.items() if k not in ("fn", "passed_as")}
    )
    done = 0 if global_step is None else int(global_step)
    return schedules.Continued(schedule, done) if done else schedule


def _of_keras2(recipe: Mapping[str, Any]) -> Any:
    name, config = recipe["class_name"], recipe["config"]
    given = {key: argument(value) for key, value in config.items()}
    if name in schedules.OF_OTHERS:
        return schedules.OF_OTHERS[name](**given)
    if name in KERAS2:
        return KERAS2[name](**given)
    if hasattr(keras_tfopt.schedules, name):
        return getattr(keras_tfopt.schedules, name)(**given)
    return getattr(keras.optimizers.schedules, name)(**given)


def _path(name: str) -> str:
    """The regular expression of a variable that is recorded under this name."""
    return f"^{re.escape(name)}$"


def selection(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Our arguments for what a recorded optimizer was told in each step."""
    selects = original(name).selects
    if unknown := {key: value for key, value in given.items() if key not in selects}:
        raise NotReplayable(f"apply_kwargs is not handled: {unknown}")
    # Where none are named, the originals decay all.
    return {selects[key]: [_path(v) for v in value] or None for key, value in given.items()}
