"""The original that an optimizer corresponds to, and the names of its state in files."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

from keras_tfopt.engine import array_of, parts, path_of, variables_of
from keras_tfopt.legacy.arguments import CONSTANT
from keras_tfopt.legacy.checkpoints.names import numbered
from keras_tfopt.legacy.checkpoints.training_state import core
from keras_tfopt.legacy.optimizer import Optimizer
from keras_tfopt.legacy.slots import slots_in_order
from keras_tfopt.legacy.table import TABLE, Row
from keras_tfopt.wrappers.decay import Decay


@dataclasses.dataclass(frozen=True)
class Origin:
    """The original of an optimizer, and the names of its state in files."""

    names: tuple[str, ...]
    """Names of the classes that write such files."""
    row: Row
    """The row of the rule, which these classes share."""
    bases: tuple[str, ...]
    """The names that slots may have in files, the likeliest first."""
    slot_bases: Mapping[str, str]
    """The names of slots that differ from these."""
    scope: str = ""
    """The scope of variables that are no slots, with a slash at its end."""

    def suffixes(
        self, base: str, variable: Any, here: Iterable[str], place: int = 0
    ) -> dict[str, str]:
        """Return the suffixes of a variable's slots, by slot, in the order of creation.

        Args:
            base: The name of the slots.
            variable: The variable.
            here: The slots that our optimizer has for it.
            place: The number of optimizers of the kind that have made slots of it before.
        """
        slots = slots_in_order(self.row, len(variable.shape), here)
        own = {slot: self.slot_bases.get(slot, base) for slot in slots}
        numbers = {base: place * count for base, count in collections.Counter(own.values()).items()}
        found = {}
        for slot in slots:
            found[slot] = numbered(own[slot], numbers[own[slot]])
            numbers[own[slot]] += 1
        return found


def keras_optimizer(optimizer: Any) -> Any:
    """Return the Keras optimizer of an argument, or raise an error."""
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
    """Return the optimizers of an argument that is one, None, or a list of several."""
    if not isinstance(optimizer, (list, tuple)):
        return [optimizer]
    if not optimizer:
        raise ValueError(
            f"Argument `optimizer` must hold at least one optimizer. Received: {optimizer!r}"
        )
    if len(optimizer) > 1:
        _check_apart(optimizer)
    return optimizer


def _check_apart(optimizers: Iterable[Any]) -> None:
    """Raise an error unless each optimizer is built for variables that no other one has."""
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
    """Return the original that an optimizer corresponds to.

    Raises:
        TypeError: if there is none, or its state has no names in files.
    """
    ours, around = keras_optimizer(optimizer), []
    while hasattr(optimizer, "_opt"):  # a wrapper of the originals
        around.append(optimizer)
        optimizer = optimizer._opt
    name = _name_of(optimizer)
    if name is None:
        names = _stand_for(ours)
        bases = tuple(dict.fromkeys(TABLE[one].default_base(one) for one in names))
        slot_bases: Mapping[str, str] = {}
    else:
        names, bases = (name,), (optimizer.get_name(),)
        slot_bases = getattr(optimizer, "slot_bases", {})
    if not names:
        inside = type([*parts(ours)][-1]).__name__
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
    scope = _scope_of(around, () if name else parts(optimizer))
    return Origin(names, TABLE[extended or names[0]], bases, slot_bases, scope)


def _name_of(optimizer: Any) -> str | None:
    """Return the name of the original class of one of `keras_tfopt.legacy`."""
    if not isinstance(optimizer, Optimizer):
        return None
    return next((c.__name__ for c in type(optimizer).__mro__ if c.__name__ in TABLE), None)


def _scope_of(wrappers: Iterable[Any], inside: Iterable[Any]) -> str:
    """Return the scope in which wrappers make variables of the optimizer inside, or nothing.

    Those of `keras_tfopt.legacy` are outermost; `inside` are optimizers of Keras.
    """
    rows = {name: row for name, row in TABLE.items() if row.scopes}
    scopes = [one.get_name() for one in wrappers if _name_of(one) in rows]
    default = {row.ours: row.default_base(name) for name, row in rows.items()}
    names = [type(part).__name__ for part in inside]
    scopes += [default[name] for name in names if name in default]
    return "".join(f"{scope}/" for scope in scopes)


def _stand_for(optimizer: Any) -> tuple[str, ...]:
    """Return the originals of a rule, with or without weight decay, the likeliest first."""
    kind = type(core(optimizer)).__name__
    plain = [name for name, row in TABLE.items() if row.ours == kind and not row.extends]
    if not any(isinstance(part, Decay) for part in parts(optimizer)):
        return tuple(plain)
    decayed = [name for name, row in TABLE.items() if row.extends in plain]
    # AdamW and MomentumW have classes of their own. Other extended classes keep their names.
    own = f"{type(optimizer).__name__}Optimizer" in decayed
    return tuple([*decayed, *plain] if own else [*plain, *decayed])


def step_variable(optimizer: Any) -> Any:
    """Return the variable that an optimizer was given as `global_step`; None for a constant."""
    variable = getattr(core(optimizer), "global_step", None)
    constant = variable is not None and path_of(variable).split("/")[-1] == CONSTANT
    return None if constant else variable


def decay_rate(optimizer: Any, row: Row, argument: str) -> Any:
    """Return the decay rate for an argument of the original: a float, unless it changes."""
    beta = getattr(core(optimizer), row.renamed.get(argument, argument))
    return float(array_of(beta)) if isinstance(beta, keras.Variable) else beta


def writers_of(base: str) -> list[str]:
    """Return the originals whose slots have this name by default."""
    return [
        name
        for name, row in TABLE.items()
        if row.slots
        and not row.unnamed
        and row.verbs != "averages"
        and row.default_base(name) == base
    ]


def in_order_of_building(optimizer: Any, variables: list[Any]) -> list[Any]:
    """Return the variables in the order in which an optimizer would be built for them."""
    if isinstance(optimizer, Optimizer):
        return optimizer._covered([(True, variable) for variable in variables])
    return variables
