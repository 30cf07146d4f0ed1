"""From a rule to a pure function of tensors that a backend can compile."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_tfopt.execution.state import Like, Rows

MASTER = "master_weight"


@dataclasses.dataclass(frozen=True)
class Kind:
    """Everything static about one call of a rule. Equal kinds can share compiled code."""

    mode: str  # "dense", "rows", "touched" (rows of a dense gradient that are not zero) or "move"
    dtype: str  # of the arithmetic
    decays: bool  # whether the base's decoupled weight decay applies
    named: bool = False  # whether rows were named, and are touched also where the gradient is zero
    facts: tuple[tuple[str, Any], ...] = ()  # what the rule knows of the variable


@dataclasses.dataclass(slots=True)
class Update:
    """One variable, its slots, its gradient."""

    kind: Kind
    index: int
    like: Like
    variable: Any
    names: tuple[str, ...]  # of the slots
    slots: list[Any]
    cut: tuple[bool, ...]  # of variable and slots, whether a row update sees touched rows only
    gradient: Any  # a tensor or, in mode "rows", a RowGradient of distinct rows
    # In mode "move", which rows the variable moves in; in mode "touched", which rows count even if
    # their gradient is zero. Otherwise None.
    mask: Any = None

    def writes(self, new: list[Any], rows: list[Any] | None = None) -> list[tuple[Any, Any, Any]]:
        """What is to be assigned, from new values of variable and slots (None: unchanged)."""
        variables = [self.variable, *self.slots]
        rows = rows or [None] * len(new)
        return [
            write(v, n, i) for v, n, i in zip(variables, new, rows, strict=True) if n is not None
        ]


def rounds(updates: Sequence[Update]) -> list[list[Update]]:
    """The updates in order, one list for those that meet a variable first, one for second ones."""
    found: list[dict[int, Update]] = [{}]
    for update in updates:
        key = id(update.variable)
        place = next((one for one in found if key not in one), None)
        if place is None:
            place = {}
            found.append(place)
        place[key] = update
    return [list(one.values()) for one in found]


class Powers:
    """Stands for the number of the step in `beta**step`: gives the running product of that beta.

    Args:
        known: The products, by the identity of the tensor that is raised to them.
        step: The number of the step, for all other bases.
    """

    def __init__(self, known: Mapping[int, Any], step: Any = None):
        self._known, self._step = known, step

    def __rpow__(self, base: Any) -> Any:
        return self._known[id(base)] if id(base) in self._known else base**self._step


def write(variable: Any, value: Any, indices: Any = None) -> tuple[Any, Any, Any]:
    """`(variable, index, value)` for `backend.commit`: all of it, some rows, or by a scalar one."""
    if isinstance(value, Rows):
        return variable, value.index, value.value
    return variable, indices, value


class Cache(dict):
    """Compiled functions of one optimizer: copies of the optimizer start with none."""

    def __deepcopy__(self, memo: dict) -> Cache:
        return Cache()

    def __reduce__(self) -> tuple:
        return (Cache, ())


# In the scalars of a step, before the name of a hyperparameter that changes.
HYPERPARAMETER = "hyperparameter "


def sharing_key(engine: Any, rule: Any, changing: tuple[str, ...]) -> tuple:
    """Equal for optimizers that can share what is compiled: of one class and hyperparameters.

    `rule` is the `self` of formulas. What is compiled keeps it, and with it all that is known by
    identity.
    """
    values = {n: v for n, v in vars(rule).items() if n not in (*changing, "_arguments")}
    return type(engine), _identity(values), changing, keras.config.floatx()


def _identity(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return type(value), repr(value)  # which tells -0.0 from 0.0
    if isinstance(value, (list, tuple)):
        return type(value), *map(_identity, value)
    if isinstance(value, dict):
        return dict, *((name, _identity(one)) for name, one in sorted(value.items()))
    return id(value)


def _rule_at(rule: Any, changing: tuple[str, ...]) -> Callable[[dict[str, Any]], Any]:
    """From the scalars of a step to the rule with the attributes of that step."""
    if not changing:
        return lambda scalars: rule
    return lambda scalars: rule.with_attributes({n: scalars[HYPERPARAMETER + n] for n in changing})


def bind_rule(
    rule: Any,
    kind: Kind,
    names: tuple[str, ...],
    norm: Callable[[Any], Any],
    changing: tuple[str, ...] = (),
) -> Callable[..., tuple[Any, list[Any]]]:
    """Puts around a rule what belongs to every rule: casts, decay, master weights, the row mask.

    The function is pure and everything static is bound to it, so that it can be compiled. It
    returns the new variable and the new slots in the order of `names`, None for slots that stay.
    Hyperparameters that are `changing` are among the scalars.
    """
    rule_at = _rule_at(rule, changing)
    own_names = [name for name in names if name != MASTER]
    slots_of = collections.namedtuple("Slots", own_names)  # type: ignore[misc]
    rows = kind.mode in ("rows", "touched")
    of_elements = getattr(rule, "scope", None) == "element"
    name_of_rule = type(rule).__name__
    # The last one. Its position would be a symbol to Dynamo, which cannot take it out of a list.
    has_master = MASTER in names

    def call(
        g: Any,
        x: Any,
        slots: Sequence[Any],
        scalars: dict,
        mask: Any = None,
        norm: Callable[[Any], Any] = norm,
    ) -> tuple:
        old = x
        *kept, master = slots if has_master else (*slots, None)
        x = start = _current(x, master, kind.dtype)
        if kind.decays:
            x = x - scalars["weight_decay_rate"] * x
        t = Scalars(scalars, dict(kind.facts), rows, refuse_norm if of_elements else norm, mask)
        result = rule_at(scalars).update(g, x, slots_of(*kept), t)
        # No `_asdict` of the named tuple, which Dynamo of PyTorch 2.8 does not know.
        x, new = check_result(name_of_rule, result, start, dict(zip(own_names, kept, strict=True)))
        if mask is not None:
            x = ops.where(mask, x, start)
        changed = [x if name == MASTER else new.get(name) for name in names]
        return ops.cast(x, old.dtype), changed

    return call


class ModelRule:
    """A rule over all variables at once, in three parts: pure functions that can be compiled.

    They are of vectors with an entry for each number in the variables, laid end to end in the order
    of building, or with a piece of them.
    """

    def __init__(
        self,
        rule: Any,
        changing: tuple[str, ...],
        names: Sequence[str],
        along: Sequence[str],
        dtype: str,
        norm: Callable[[Any], Any],
    ):
        self.names, self.along, self.dtype = tuple(names), tuple(along), dtype
        self._all_slots = collections.namedtuple("Slots", names)  # type: ignore[misc]
        small = [name for name in names if name not in along]
        self._small_slots = collections.namedtuple("SmallSlots", small)  # type: ignore[misc]
        self.rule = rule
        self._rule_at, self._norm = _rule_at(rule, changing), norm

    def sums(self, g: Any, slots: dict[str, Any], scalars: dict[str, Any]) -> dict[str, Any]:
        """What must be known of all entries, for a piece: to be added up."""
        return self._rule_at(scalars).sums(g, self._all_slots(**slots), self._t(scalars, {}))

    def solve(
        self, sums: dict[str, Any], slots: dict[str, Any], scalars: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the update of all pieces is told, and new values of slots that have no entries."""
        small = self._small_slots(**{n: v for n, v in slots.items() if n not in self.along})
        found, new = self._rule_at(scalars).solve(small, self._t(scalars, sums))
        return self._checked({**sums, **found}, new)

    def update(
        self, g: Any, x: Any, slots: dict[str, Any], scalars: dict[str, Any], known: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """A piece of the new variables, and of new slots."""
        t = self._t(scalars, known)
        return self._checked(*self._rule_at(scalars).update(g, x, self._all_slots(**slots), t))

    def value(self, one: ModelVariable, x: Any, master: Any, scalars: dict[str, Any]) -> Any:
        """A variable to compute with, flat."""
        x = _current(x, master, self.dtype)
        if one.decays:
            x = x - scalars["weight_decay_rate"] * x
        return ops.reshape(x, (-1,))

    def gradient(self, g: Any) -> Any:
        """A gradient to compute with, flat."""
        return ops.reshape(ops.cast(g, self.dtype), (-1,))

    def _t(self, scalars: dict[str, Any], known: dict[str, Any]) -> Scalars:
        return Scalars({**scalars, **known}, {}, False, self._norm)

    def _checked(self, result: Any, new: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        _check_described(type(self.rule).__name__, new, self.names)
        return result, new


@dataclasses.dataclass
class ModelVariable:
    """A variable among all those that a rule sees at once."""

    variable: Any
    like: Like
    start: int  # of its entries
    end: int
    decays: bool
    master: Any  # the slot with its copy, or None


@dataclasses.dataclass
class ModelStep:
    """What a step of such a rule works on."""

    rule: ModelRule
    variables: list[ModelVariable]
    slots: dict[str, Any]

    def new_values(
        self, x: list[Any], masters: list[Any], slots: dict, grads: list[Any], scalars: dict
    ) -> tuple[list[Any], list[Any], dict[str, Any]]:
        """New values of variables, master copies and slots, all entries at once."""
        rule = self.rule
        values = zip(self.variables, x, masters, strict=True)
        flat_x = _joined([rule.value(*each, scalars) for each in values])
        flat_g = _joined([rule.gradient(g) for g in grads])
        known, new = rule.solve(rule.sums(flat_g, slots, scalars), slots, scalars)
        flat_x, more = rule.update(flat_g, flat_x, slots, scalars, known)
        parts = [ops.reshape(flat_x[one.start : one.end], one.like.shape) for one in self.variables]
        masters = [None if m is None else v for m, v in zip(masters, parts, strict=True)]
        x = [ops.cast(v, old.dtype) for v, old in zip(parts, x, strict=True)]
        return x, masters, {**new, **more}


def _joined(parts: list[Any]) -> Any:
    return ops.concatenate(parts) if len(parts) > 1 else parts[0]


def _current(variable: Any, master: Any, dtype: str) -> Any:
    """The value to compute with: the master copy, except where the variable was assigned since."""
    x = ops.cast(variable, dtype)
    if master is None:
        return x
    return ops.where(ops.equal(ops.cast(master, variable.dtype), variable), master, x)


def check_result(
    rule: str, result: Any, x: Any, slots: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """What `update` returned, or an error that says what it has to return.

    Numbers of dimensions are compared, not sizes, which compiled code leaves open.
    """
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        raise TypeError(
            f"{rule}.update must return the new variable and a dictionary of new slots. "
            f"Received: {type(result).__name__}"
        )
    new_x, new = result
    _check_described(rule, new, slots)
    old = {"the variable": x, **slots}
    for name, value in {"the variable": new_x, **new}.items():
        shape = getattr(value, "shape", None)
        if shape is None or getattr(shape, "rank", 0) is None:  # which graphs may leave open
            continue
        if len(shape) != len(old[name].shape):
            raise ValueError(
                f"{rule}.update must return {name} with {len(old[name].shape)} dimensions, as it "
                f"is. Received: {len(shape)}"
            )
    return new_x, new


def refuse_norm(values: Any) -> Any:
    raise TypeError(
        "`t.norm` is of a whole variable: a rule that uses it must have the class attribute "
        '`scope = "variable"`. Received: "element"'
    )


def _check_described(rule: str, new: Any, described: Any) -> None:
    for name in new:
        if name not in described:
            raise KeyError(
                f"{rule} returned the slot {name!r}, which its `slots` does not "
                f"describe. Described: {list(described)}"
            )


class Scalars:
    """What rules see as `t`: scalars and a variable's facts by name, `rows`, `touched`, `norm`."""

    def __getattr__(self, name: str) -> Any:  # only where there is nothing of this name
        raise AttributeError(
            f"`t` has no {name!r}: `scalars` or `facts` of the rule must return it. It has "
            f"{sorted(self._names)}"
        )

    def __init__(
        self,
        scalars: dict[str, Any],
        facts: dict[str, Any],
        rows: bool,
        norm: Callable[[Any], Any],
        touched: Any = None,
    ):
        known = {n: v for n, v in scalars.items() if not n.startswith(HYPERPARAMETER)}
        known.update(facts)
        for name, value in known.items():
            setattr(self, name, value)
        # No `vars(self)` in the message above, which Dynamo of PyTorch 2.8 does not know.
        self._names = [*known, "rows", "touched", "norm"]
        self.rows = rows
        self.touched = touched
        self.norm = norm


def scalar(value: Any, dtype: str) -> Any:
    # Python numbers are never cast: on the way they would be rounded to float32 on torch.
    if isinstance(value, keras.Variable) or ops.is_tensor(value):
        return ops.cast(value, dtype)
    return ops.convert_to_tensor(value, dtype)


def widest(dtypes: Sequence[str]) -> str:
    """The dtype in which numbers of all these can be computed together."""
    return "float64" if "float64" in dtypes else "float32"
