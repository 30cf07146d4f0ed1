"""State of an optimizer: its description by a rule, and what is kept for each variable."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

MASTER = "master_weight"
"""The name of the slot with a variable in full precision."""
HYPERPARAMETER = "hyperparameter "
"""Prefix of names of hyperparameters that change, in the scalars of a step and in saved files."""
DITHER = "dither "
"""Prefix of names of random numbers for rounding slots, in the scalars of a step."""

SCALES = "_scales"
"""Suffix of a slot's name that makes the name of the slot with the scales of its codes."""
BLOCK = 256
"""The number of codes that share a scale. The last block of a variable or row may have fewer."""
LEAST_DIVIDED = 1 << 14
"""A variable of fewer values is not updated in parts where XLA compiles the step."""

FACTOR = "learning_rate_factor"
"""Name in the scalars of a rule over all variables, and in the settings of groups."""
INITIAL = ("variable", "identity")
"""Values of a slot at the start that are no number."""
DECAY_FACTOR = "decay_factor"
"""Name of a factor of weight decay that the `solve` of a rule over all variables may return."""


class Like(NamedTuple):
    """The static facts about a variable, by which a rule describes its slots."""

    shape: tuple[int, ...]
    dtype: str  # of the arithmetic and of the slots: float32 for half-precision variables
    path: str

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rsplit("/", 1)[-1]


@dataclasses.dataclass(frozen=True)
class Slot:
    """A piece of optimizer state that belongs to one variable.

    Args:
        shape: Static shape. Rules of scope "element" need the variable's own shape. In rules of
            scope "model", None in the last place stands for the entries of all variables.
        initial: Number that fills the slot at the start, or "variable" for the variable's value
            (with scope "model", those of all variables, end to end), or "identity" for the
            identity matrix, or a batch of them.
        dtype: Data type. None is that of the variable's arithmetic.
        by_row: Whether a row update sees only touched rows of the slot. None is True if the slot
            has as many rows as the variable, else False.
        signed: Whether it may be negative. False, as for a second moment, gives
            `slot_dtype="int8"` twice as many steps between 0 and the largest value.
        every: Integer >= 1. None in the shape stands for the first and then each `every`-th entry
            of each variable, flattened. Slots of one rule have the same `every`, or 1.

    Raises:
        ValueError: if an argument is none of these.
    """

    shape: tuple[int | None, ...]
    initial: float | str = 0.0
    dtype: str | None = None
    by_row: bool | None = None
    signed: bool = True
    every: int = 1

    def __post_init__(self) -> None:
        sized = isinstance(self.shape, Sequence) and all(map(_is_size, self.shape))
        if not sized or isinstance(self.shape, str):
            raise _wrong("shape", "a tuple of integers >= 0", self.shape)
        is_word = isinstance(self.initial, str)
        if not (self.initial in INITIAL if is_word else hasattr(self.initial, "__float__")):
            raise _wrong("initial", f"a number or one of {INITIAL}", self.initial)
        if self.dtype is not None and not _is_dtype(self.dtype):
            raise _wrong("dtype", 'the name of a data type, such as "float32"', self.dtype)
        if not self.every or not _is_size(self.every):
            raise _wrong("every", "an integer >= 1", self.every)


class Slots:
    """What formulas see as `s`: a named tuple of slots, whose type `slots_type` returns."""

    __slots__ = ()
    _fields: tuple[str, ...]

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            raise TypeError(f"slots are attributes: write `s.{key}`")
        return super().__getitem__(key)  # type: ignore[misc]

    def __getattr__(self, name: str) -> Any:  # called only if there is no such attribute
        raise AttributeError(f"`s` has no {name!r}. Slots there are: {list(self._fields)}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise TypeError(
            "slots are not assigned: return their new values in a dictionary, as in "
            f"`{{{name!r}: value}}`"
        )


def slots_type(names: Iterable[str]) -> Callable[..., Any]:
    """Return the type of `s` for slots of these names."""
    return _slots_type(tuple(names))


@functools.cache
def _slots_type(names: tuple[str, ...]) -> Callable[..., Any]:
    values = collections.namedtuple("Slots", names)  # type: ignore[misc]
    return type("Slots", (Slots, values), {"__slots__": ()})


def _is_size(value: Any) -> bool:
    return value is None or hasattr(value, "__index__") and value >= 0


def _is_dtype(value: Any) -> bool:
    try:
        keras.backend.standardize_dtype(value)
    except ValueError:
        return False
    return isinstance(value, str)


def _wrong(argument: str, allowed: str, value: Any) -> ValueError:
    return ValueError(f"Argument `{argument}` of Slot must be {allowed}. Received: {value!r}")


class Stored(NamedTuple):
    """How a slot is kept that does not have the dtype of the arithmetic."""

    slot: str
    dtype: str
    signed: bool


def has_codes(stored: Sequence[Stored]) -> bool:
    """Return whether a slot is kept as int8."""
    return any(one.dtype == "int8" for one in stored)


def names_of_scales(stored: Sequence[Stored]) -> set[str]:
    """Return the names of the slots that hold scales of other slots."""
    return {one.slot + SCALES for one in stored if one.dtype == "int8"}


def names_without_scales(names: Iterable[str], stored: Sequence[Stored]) -> list[str]:
    """Return the names of a rule's own slots."""
    scales = names_of_scales(stored)
    return [name for name in names if name not in scales]


def can_be_divided(update: Any, values: Sequence[Any], mask: Any) -> bool:
    """Return whether a variable can be updated in parts that are whole blocks of int8 slots.

    Args:
        update: The update of the variable, or of one like it.
        values: Values of variable and slots.
        mask: The mask of rows, or None.
    """
    x, *slots = values
    scales = names_of_scales(update.kind.stored)
    return (
        bool(scales)
        and update.kind.mode == "dense"
        and update.kind.scope == "element"
        and mask is None
        and math.prod(x.shape) >= LEAST_DIVIDED
        and all(
            len(slot.shape) == 1 if name in scales else slot.shape == x.shape
            for name, slot in zip(update.names, slots, strict=True)
        )
    )


class Rows(NamedTuple):
    """A new slot value that differs from the old one in one row: `slot[index] = value`.

    A rule returns it instead of the whole slot, which would be copied.

    Args:
        index: The row: an integer, or a scalar tensor of integers.
        value: Its new value, of the shape of a row.
    """

    index: Any
    value: Any


def own_copy(value: Any) -> Any:
    """Return a copy of a NumPy array, and anything else unchanged.

    JAX may read the memory of an array later, or keep using it if its address is a multiple of 64.
    If the array is filled again, a step or a variable would change.
    """
    return np.array(value) if isinstance(value, np.ndarray) else value


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of one variable in the groups.

    Attributes:
        groups: The patterns and names of functions that chose it, in order.
        given: Its settings by name. If several groups have one, that of the last.
        own: The settings that are hyperparameters of the rule.
    """

    groups: tuple[str, ...] = ()
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    own: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def factor(self) -> Any:
        """The factor of the learning rate: a number or a schedule."""
        return self.given.get("learning_rate_factor", 1.0)

    @property
    def decay(self) -> Any:
        """The weight decay: a number or a schedule, or None for that of the optimizer."""
        return None if "weight_decay" in self.own else self.given.get("weight_decay")

    @property
    def frozen(self) -> bool:
        """Whether the variable takes no steps."""
        return self.given.get("frozen", False)

    @property
    def max_norm(self) -> float | None:
        """The largest allowed norm of the variable after a step."""
        return self.given.get("max_norm")


NO_SETTINGS = Settings()


@dataclasses.dataclass(eq=False)
class Entry:
    """A variable of the model, with the state and the facts that one optimizer has for it."""

    variable: Any
    like: Like
    slots: dict[str, Any]
    """Variables by the names of the slots."""
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Facts that formulas or hooks find in `t`, by name."""

    overwritten: bool = False
    """Whether Keras overwrites the variable with its gradient, as float8 scales are."""
    cut: tuple[bool, ...] = ()
    """For the variable and each slot: whether updates of rows see only touched rows."""
    sparse: str = "dense"
    """Of a rule: its `sparse` here, "dense" if row gradients are made dense."""
    has_rows: bool = False
    """Of a rule: whether `row_variables` chooses this variable."""
    decays: bool = False
    """Of a rule: whether the option `weight_decay` shrinks this variable."""
    accumulator: Any = None
    """Of a rule: the sum of the gradients of micro-steps, with `gradient_accumulation_steps`."""
    touched_rows: Any = None
    """Of a rule: which rows were named in these gradients."""
    average: Any = None
    """Of a rule: the average, with `use_ema`."""

    stored: tuple[Stored, ...] = ()
    """Of a rule: how slots are kept that `slot_dtype` has chosen."""

    settings: Settings = NO_SETTINGS
    """The settings of the variable in the groups."""
    unit_limit: float | None = None
    """Of a rule: the largest ratio of norms of the gradient's units to the variable's."""
    rule: int = 0
    """Of a rule: the index of its hyperparameters here, among those that groups make."""
    rate: int = 0
    """Of a rule: the index of its learning rate and weight decay, among those that groups make."""
    scalars: Any = None
    """Of a wrapper: the key of the scalars that hooks find in `t`."""
    master: Any = None
    """Of a wrapper: the slot of the rule inside with the variable in full precision, if any."""

    reach: str | None = "dense"
    """Of a wrapper: "dense" or "rows", like its `sparse`; None if its hooks do not run."""
    rests: bool = dataclasses.field(init=False)
    """Whether the variable takes no steps."""

    @property
    def masters(self) -> list[Any]:
        """A list with `master`, if there is one."""
        return [] if self.master is None else [self.master]

    def state(self) -> list[Any]:
        """Return all state of this variable."""
        kept = [self.average, self.accumulator, self.touched_rows]
        return [*self.slots.values(), *(state for state in kept if state is not None)]

    def __post_init__(self) -> None:
        self.rests = self.overwritten or self.settings.frozen


def overwritten_last(entries: Sequence[Entry]) -> list[Entry]:
    """Return entries in the order of their state: those that Keras overwrites are the last.

    State is saved by position. A loaded model lists variables that Keras overwrites, the scales of
    float8, in other places than the model that was saved.
    """
    return sorted(entries, key=lambda entry: entry.overwritten)


class State:
    """The state of one optimizer: an entry for each variable, and variables that belong to all.

    Entries are in the order of building, which is the same for all optimizers of a nest. So the
    place of an entry, its index, is the same in all of them.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.has_resting = False
        """Whether there are variables that take no steps."""
        self.has_half = False
        """Whether there are variables in half precision."""
        self.has_rounded = False
        """Whether there are slots that each step rounds to bfloat16."""
        self.shared: dict[str, Any] = {}
        """State of all variables of the model together, by name."""
        self.other: dict[str, Any] = {}
        """Bookkeeping, by its role in files."""

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.has_resting |= entry.rests
        dtype = keras.backend.standardize_dtype(entry.variable.dtype)
        self.has_half |= dtype != entry.like.dtype
        self.has_rounded |= any(one.dtype == "bfloat16" for one in entry.stored)

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The names of all slots, in the order of creation, as `slot` takes them."""
        names = [*self.shared]
        for entry in self.entries:
            names += names_without_scales(entry.slots, entry.stored)
        return tuple(dict.fromkeys(names))

    def roles(self) -> dict[int, str]:
        """Return the role of each variable of this state in saved files, by identity."""
        roles: dict[int, str] = {id(variable): role for role, variable in self.other.items()}
        for slots in [*(entry.slots for entry in self.entries), self.shared]:
            roles.update({id(variable): name for name, variable in slots.items()})
        for role in ("average", "accumulator", "touched_rows"):
            kept = [getattr(entry, role) for entry in self.entries]
            roles.update({id(variable): role for variable in kept if variable is not None})
        return roles


class Cache(dict):
    """Compiled functions of one optimizer. Copies of the optimizer start with none."""

    def __deepcopy__(self, memo: dict) -> Cache:
        return Cache()

    def __reduce__(self) -> tuple:
        return (Cache, ())


def write(variable: Any, value: Any, indices: Any = None) -> tuple[Any, Any, Any]:
    """Return `(variable, index, value)` for `backend.commit`; a scalar index is that of one row."""
    if isinstance(value, Rows):
        return variable, value.index, value.value
    return variable, indices, value


def widest(dtypes: Sequence[str]) -> str:
    """Return the dtype in which numbers of all these dtypes can be computed together."""
    return "float64" if "float64" in dtypes else "float32"
