"""How programs name the state of their optimizers, and which of our rules can continue with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_tfopt import rules as tfopt
from keras_tfopt.migrate import rules
from keras_tfopt.migrate.kinds import KINDS, is_of_keras
from keras_tfopt.migrate.saved import FileError, Saved
from keras_tfopt.wrappers.sgd_w import AccumulatedSteps


@dataclasses.dataclass(frozen=True)
class Source:
    """An optimizer of another program.

    Attributes:
        rule: The name of its rule, a key of `TARGETS`.
        slots: From its names for the state of a variable to ours; None for what no step reads.
        needs: Arguments that the rule here needs for the same steps, besides those in the file.
    """

    rule: str
    slots: Mapping[str, str | None]
    needs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_MOMENTS = _same("m", "v")
_SUMS = ("gradients_sum", "grad_norm_sum", "reward", "tilde_w")
_TORCH = {"exp_avg": "m", "exp_avg_sq": "v"}
_OUTSIDE = {"epsilon_in_root": False}
_ADAM = Source("Adam", _same("m", "v", "vhat"))

_KERAS_3 = {
    name: Source({"AdamW": "Adam", "Lamb": "LAMB"}.get(name, name), kind.slots)
    for name, kind in KINDS.items()
}

SOURCES: dict[str, dict[str, Source]] = {
    "keras 3": _KERAS_3,
    "keras 2": {
        **{name: _KERAS_3[name] for name in ("RMSprop", "Adagrad", "Adadelta", "Ftrl")},
        "SGD": Source("SGD", {"m": "momentum"}),
        "Adam": _ADAM,
        "AdamW": _ADAM,
        "Adamax": Source("Adamax", {"m": "m", "u": "v"}),
        "Nadam": Source("Nadam", _MOMENTS),
        "Lion": Source("Lion", _same("m")),
    },
    "keras 2 legacy": {
        "SGD": Source("SGD", _same("momentum")),
        # With momentum, epsilon is in the root: `needs_of`.
        "RMSprop": Source("RMSprop", _same("rms", "momentum", "mg"), _OUTSIDE),
        "Adagrad": Source("Adagrad", _same("accumulator"), _OUTSIDE),
        "Adadelta": Source("Adadelta", {"accum_grad": "accum", "accum_var": "accum_update"}),
        "Adam": _ADAM,
        "Adamax": Source("Adamax", _MOMENTS),
        "Nadam": Source("Nadam", _MOMENTS, {"momentum_decay": 0.004}),
        "Ftrl": _KERAS_3["Ftrl"],
    },
    "tensorflow_addons": {
        "AdaBelief": Source("AdaBelief", _same("m", "v", "vhat")),
        "AdamW": _ADAM,
        "COCOB": Source("COCOB", {"lr": "largest", **_same(*_SUMS)}),
        "ConditionalGradient": Source("ConditionalGradient", {"conditional_gradient": None}),
        "LAMB": Source("LAMB", _MOMENTS),
        "LazyAdam": _ADAM,
        "NovoGrad": Source("NovoGrad", _same("m", "v", "vhat")),
        "ProximalAdagrad": Source("ProximalAdagrad", _same("accumulator")),
        "RectifiedAdam": Source("RectifiedAdam", _same("m", "v", "vhat")),
        "SGDW": Source("SGD", _same("momentum")),
        "Yogi": Source("Yogi", _MOMENTS),
    },
    "torch.optim": {
        "SGD": Source("Momentum", {"momentum_buffer": "momentum"}),
        "RMSprop": Source(
            "torch RMSprop",
            {"square_avg": "rms", "momentum_buffer": "momentum", "grad_avg": "mg"},
            _OUTSIDE,
        ),
        "Adagrad": Source("Adagrad", {"sum": "accumulator"}, _OUTSIDE),
        "Adadelta": Source("Adadelta", {"square_avg": "accum", "acc_delta": "accum_update"}),
        "Adam": Source("Adam", {**_TORCH, "max_exp_avg_sq": "vhat"}),
        "Adamax": Source("Adamax", {"exp_avg": "m", "exp_inf": "v"}),
        "NAdam": Source("Nadam", {**_TORCH, "mu_product": "product"}, {"momentum_decay": 0.004}),
        "Lion": Source("Lion", {"exp_avg": "m"}),
    },
    "optax": {
        "adam": Source("Adam", {"mu": "m", "nu": "v"}),
        "lion": Source("Lion", {"mu": "m"}),
        "sgd": Source("Momentum", {"trace": "momentum"}),
        "adagrad": Source("Adagrad", {"sum_of_squares": "accumulator"}),
        "rmsprop": Source("RMSprop", {"nu": "rms"}),
    },
}

Convert = Callable[[Any, float, Any], Any]
"""From an array, the learning rate and the source's epsilon, to what the target keeps."""


@dataclasses.dataclass(frozen=True)
class Target:
    """A class of ours that can continue with the state of a rule.

    Attributes:
        cls: The class. Classes derived from it are targets, too.
        convert: Functions that convert state, by name. Other state stays unchanged.
    """

    cls: Any
    convert: Mapping[str, Convert] = dataclasses.field(default_factory=dict)


# By the name of the rule. The first class that fits is used.
TARGETS: dict[str, tuple[Target, ...]] = {
    "SGD": (
        Target(AccumulatedSteps),
        Target(tfopt.Momentum, {"momentum": lambda a, rate, epsilon: -a / rate}),
        Target(tfopt.GradientDescent),
    ),
    "Momentum": (
        Target(AccumulatedSteps, {"momentum": lambda a, rate, epsilon: -rate * a}),
        Target(tfopt.Momentum),
        Target(tfopt.GradientDescent),
    ),
    "RMSprop": (Target(rules.RMSprop), Target(tfopt.RMSProp)),
    "torch RMSprop": tuple(
        Target(cls, {"momentum": lambda a, rate, epsilon: rate * a})
        for cls in (rules.RMSprop, tfopt.RMSProp)
    ),
    "Adagrad": (
        Target(rules.Adagrad),
        Target(tfopt.Adagrad, {"accumulator": lambda a, rate, epsilon: a + (epsilon or 0)}),
    ),
    "Adadelta": (Target(tfopt.Adadelta),),
    "Adam": (Target(tfopt.Adam),),
    "Adamax": (Target(tfopt.AdaMax),),
    "Nadam": (Target(rules.Nadam),),
    "Ftrl": (Target(tfopt.Ftrl),),
    "Lion": (Target(tfopt.Lion),),
    "LAMB": (Target(tfopt.LAMB),),
    "AdaBelief": (Target(tfopt.AdaBelief),),
    "RectifiedAdam": (Target(tfopt.RectifiedAdam),),
    "COCOB": (Target(tfopt.COCOB),),
    "ConditionalGradient": (Target(tfopt.ConditionalGradient),),
    "NovoGrad": (Target(tfopt.NovoGrad),),
    "ProximalAdagrad": (Target(tfopt.ProximalAdagrad),),
    "Yogi": (Target(tfopt.Yogi),),
}
# State that is a number for each variable, by the name of the rule.
NUMBERS = {"Nadam": ("product",), "NovoGrad": ("v", "vhat")}
# Values of state that files need not have.
FILLED = {(tfopt.RMSProp, "momentum"): 0.0}
# The values that hold for an optimizer without such an argument.
CONVENTIONS = {"epsilon_in_root": True, "momentum_decay": 1.0}


def class_of(core: Any) -> Any:
    """Return our class with the steps of an optimizer, which may be one of Keras."""
    return KINDS[type(core).__name__].ours if is_of_keras(core) else type(core)


def source_of(saved: Saved, core: Any) -> Source:
    """Return the optimizer that wrote a file.

    Raises:
        FileError: if the optimizer here cannot continue with its state.
    """
    target, what = class_of(core), f"{saved.program}: {saved.cls}"
    if saved.program == "keras_tfopt":
        cls = keras.saving.get_registered_object(saved.cls) if saved.cls else None
        source = Source(_rule_of(cls or target, what), _same(*saved.slots))
    else:
        known = SOURCES[saved.program]
        if saved.program == "keras 2 legacy":
            # Checkpoints have the name of the class only; classes of Addons are legacy classes.
            known = {**known, **SOURCES["tensorflow_addons"]}
        if saved.cls not in known:
            return _by_slots(known, saved, target, what)
        source = known[saved.cls]
    if _target(source, target) is None:
        raise FileError(
            f"The file has state of {what}, and the optimizer is {target.__name__}. Take one of "
            f"{[one.cls.__name__ for one in TARGETS[source.rule]]}"
        )
    return source


def _by_slots(known: Mapping[str, Source], saved: Saved, target: Any, what: str) -> Source:
    """Return the first source with the state of a file that a class can continue with."""
    for source in known.values():
        if _target(source, target) and set(saved.slots) <= set(source.slots):
            return source
    raise FileError(
        f"The file has state {saved.slots} of {what}, which is none of {sorted(known)} with "
        f"which {target.__name__} could go on"
    )


def target_of(source: Source, core: Any) -> Target:
    """Return how an optimizer takes the state of a source."""
    found = _target(source, class_of(core))
    assert found is not None
    return found


def needs_of(source: Source, saved: Saved) -> dict[str, Any]:
    """Return arguments that the optimizer must have to take the same steps."""
    needs = dict(source.needs)
    if saved.program == "keras 2 legacy" and source.rule == "RMSprop":
        needs["epsilon_in_root"] = "momentum" in saved.slots
    if saved.program == "keras 2 legacy" and source.rule == "Nadam":
        # Its configuration has the argument `schedule_decay` under this name.
        needs["momentum_decay"] = saved.arguments.get("decay", needs["momentum_decay"])
    if "momentum_decay" in saved.arguments:
        needs["momentum_decay"] = saved.arguments["momentum_decay"]
    return needs


def _target(source: Source, cls: Any) -> Target | None:
    return next((t for t in TARGETS[source.rule] if issubclass(cls, t.cls)), None)


def _rule_of(cls: Any, what: str) -> str:
    """Return the rule of a class of ours: the one whose state it keeps without conversion."""
    found = [
        (bool(target.convert), rule)
        for rule, targets in TARGETS.items()
        for target in targets
        if issubclass(cls, target.cls)
    ]
    if not found:
        raise FileError(
            f"The file has state of {what}, with which only that class goes on: `load_weights` and "
            "`keras.saving.load_model` read it"
        )
    return min(found, key=lambda one: one[0])[1]
