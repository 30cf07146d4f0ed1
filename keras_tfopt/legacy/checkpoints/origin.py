"""Which original an optimizer stands for, and what that calls its state in files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

from keras_tfopt.execution import array_of, core, parts, path_of, variables_of
from keras_tfopt.legacy.arguments import CONSTANT
from keras_tfopt.legacy.checkpoints.names import numbered
from keras_tfopt.legacy.optimizer import Optimizer
from keras_tfopt.legacy.table import TABLE, Row
from keras_tfopt.wrappers.decay import Decay


@dataclasses.dataclass(frozen=True)
class Origin:
    """The original of an optimizer, as far as files show it."""

    names: tuple[str, ...]
    """Names of the classes that write such files."""
    row: Row
    """What the table has of the rule, which is the same for all of these."""
    bases: tuple[str, ...]
    """What slots may be called in files, the likeliest first."""
    slot_bases: Mapping[str, str]
    """Slots that have a name of their own."""

    def suffixes(self, base: str, slots: Iterable[str]) -> dict[str, str]:
        """What stands behind the name of a variable, for slots in the order of their creation."""
        counts: dict[str, int] = {}
        found = {}
        for slot in slots:
            own = self.slot_bases.get(slot, base)
            found[slot] = numbered(own, counts.get(own, 0))
            counts[own] = counts.get(own, 0) + 1
        return found


def keras_optimizer(optimizer: Any) -> Any:
    """The Keras optimizer of an argument, or an error."""
    if optimizer is None:
        return None
    if isinstance(optimizer, Optimizer):
        optimizer = optimizer.keras
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "Argument `optimizer` must be an optimizer of keras_tfopt or keras_tfopt.legacy, or "
            f"None. Received: {optimizer!r}"
        )
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer  # `compile` puts it there under mixed_float16
    return optimizer


def optimizers_in(optimizer: Any) -> Sequence[Any]:
    """The optimizers of an argument that is one, None, or a list of several."""
    if not isinstance(optimizer, (list, tuple)):
        return [optimizer]
    if not optimizer:
        raise ValueError(
            f"Argument `optimizer` must hold at least one optimizer. Received: {optimizer!r}"
        )
    return optimizer


def check_apart(optimizers: Iterable[Any]) -> None:
    """Raises an error unless each optimizer is built, for variables that no other one has."""
    trained: dict[int, Any] = {}
    for one in optimizers:
        variables = [] if one is None else variables_of(keras_optimizer(one))
        if not variables:
            raise ValueError(
                "Argument `optimizer` must hold optimizers that are built, so that it is known "
                "which variables each trains: `optimizer.build(variables)`. Received: "
                f"{one!r}, which is not"
            )
        for variable in variables:
            if trained.setdefault(id(variable), one) is not one:
                raise ValueError(
                    "Argument `optimizer` must hold optimizers of different variables. Received: "
                    f"two that train {path_of(variable)!r}"
                )


def origin_of(optimizer: Any) -> Origin:
    """The original that an optimizer stands for.

    Raises:
        TypeError: if it stands for none, or for one that leaves no names in files.
    """
    ours = keras_optimizer(optimizer)
    while hasattr(optimizer, "_opt"):  # a wrapper of the originals
        optimizer = optimizer._opt
    name = None
    if isinstance(optimizer, Optimizer):
        name = next((c.__name__ for c in type(optimizer).__mro__ if c.__name__ in TABLE), None)
    if name is None:
        names = _stand_for(ours)
        bases = tuple(dict.fromkeys(default_base(one) for one in names))
        slot_bases: Mapping[str, str] = {}
    else:
        names, bases = (name,), (optimizer.get_name(),)
        slot_bases = getattr(optimizer, "slot_bases", {})
    if not names:
        rule = core(ours)
        inside = type(rule or [*parts(ours)][-1]).__name__
        raise TypeError(
            "Argument `optimizer` must stand for one of TensorFlow 1; see "
            f"keras_tfopt.legacy.names(). Received: {inside}, which has no original there"
        )
    if TABLE[names[0]].unnamed:
        raise TypeError(
            f"Argument `optimizer` must keep its state under names. Received: {names[0]}, of which "
            "files have variables without names"
        )
    extended = TABLE[names[0]].extends
    return Origin(names, TABLE[extended or names[0]], bases, slot_bases)


def _stand_for(optimizer: Any) -> tuple[str, ...]:
    rule = core(optimizer)
    kind = type(rule).__name__
    plain = [name for name, row in TABLE.items() if row.ours == kind and not row.extends]
    decayed = [
        name for name, row in TABLE.items() if row.extends and TABLE[row.extends].ours == kind
    ]
    if not any(isinstance(part, Decay) for part in parts(optimizer)):
        return tuple(plain)
    # A class of its own in the original; around others, one that keeps the name of the inner.
    own = f"{type(optimizer).__name__}Optimizer" in decayed
    return tuple([*decayed, *plain] if own else [*plain, *decayed])


def step_variable(optimizer: Any) -> Any:
    """The variable that an optimizer was given as `global_step`; None where it was a constant."""
    variable = getattr(core(optimizer), "global_step", None)
    constant = variable is not None and path_of(variable).split("/")[-1] == CONSTANT
    return None if constant else variable


def decay_rate(optimizer: Any, row: Row, argument: str) -> Any:
    """What an argument of the original is here, a float unless it changes."""
    beta = getattr(core(optimizer), row.renamed.get(argument, argument))
    return float(array_of(beta)) if isinstance(beta, keras.Variable) else beta


def default_base(name: str) -> str:
    """What an original calls its slots in files unless told otherwise."""
    return TABLE[name].arguments.get("name", name) or name


def writers_of(base: str) -> list[str]:
    """The originals that call their slots so unless told otherwise."""
    return [
        name
        for name, row in TABLE.items()
        if row.slots and not row.unnamed and row.verbs != "averages" and default_base(name) == base
    ]


def in_order_of_building(optimizer: Any, variables: list[Any]) -> list[Any]:
    """The variables to build an optimizer for, in the order in which it would itself."""
    if isinstance(optimizer, Optimizer):
        return optimizer._covered([(True, variable) for variable in variables])
    return variables
