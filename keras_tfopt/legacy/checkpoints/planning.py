"""Plan where each tensor of a checkpoint goes, before anything is changed."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from keras_tfopt.engine import dtype_of, follows_schedule, path_of, variables_of
from keras_tfopt.engine.state.state import MASTER
from keras_tfopt.legacy.checkpoints import names as naming
from keras_tfopt.legacy.checkpoints.files import CheckpointFile, Content
from keras_tfopt.legacy.checkpoints.models import variables_in
from keras_tfopt.legacy.checkpoints.names import AVERAGE, Stored
from keras_tfopt.legacy.checkpoints.origin import (
    Origin,
    decay_rate,
    in_order_of_building,
    keras_optimizer,
    optimizers_in,
    origin_of,
    step_variable,
    writers_of,
)
from keras_tfopt.legacy.checkpoints.powers import steps_of_power
from keras_tfopt.legacy.checkpoints.report import Entry, Report, Status, joined
from keras_tfopt.legacy.checkpoints.sharing import agreeing, ambiguous, own
from keras_tfopt.legacy.checkpoints.training_state import core, described_slots, shared_slots
from keras_tfopt.legacy.table import Row

GLOBAL_STEP = "global_step"
Change = Callable[[np.ndarray], np.ndarray]

# The data types that a data type represents exactly.
_NARROWER = {
    "float64": ("float32", "float16", "bfloat16"),
    "float32": ("float16", "bfloat16"),
    "int64": ("int32",),
}


@dataclasses.dataclass(frozen=True)
class Move:
    """A tensor with its target: a variable, a slot of it, or a slot of all variables (None)."""

    tensor: Stored
    variable: Any
    slot: str | None = None
    change: Change | None = None


class Plan:
    """The plan of `load_checkpoint` for one optimizer.

    Attributes:
        optimizer: The Keras optimizer, or None.
        trained: The variables that it is or will be built for.
        moves: Values to be assigned.
        begin: Pairs of a variable and one of its slots that starts at the variable's value.
        counter: The variable from which the optimizer takes the step, and its new value.
        taken: The powers of decay rates that belong to this or another optimizer.
    """

    def __init__(
        self,
        file: CheckpointFile,
        model: Any,
        optimizer: Any,
        name_map: Any,
        swapped: bool,
        taken: set[str],
    ):
        self.file, self.swapped, self.taken = file, swapped, taken
        self.optimizer = keras_optimizer(optimizer)
        origin = None if optimizer is None else origin_of(optimizer)
        self.variables, choices = variables_in(model)
        self.tensors, left_out = naming.renamed(naming.stored(file.contents), name_map)
        self._left_out = [one.name for one in left_out]
        self.moves: list[Move] = []
        self.counter: tuple[Any, int] | None = None
        self.begin: list[tuple[Any, str]] = []
        self.steps: dict[str, int] = {}
        self.iterations: int | None = None
        self._notes: list[str] = []
        self._used: set[str] = set()
        self._entries = [
            Entry(one.name, None, "not needed", one.shape, "left out by name_map")
            for one in left_out
        ]
        sources = naming.matched(choices, self.tensors)
        self.source = {id(v): name for v, name in zip(self.variables, sources, strict=True)}
        self.places, mine = naming.places(self.tensors), set(sources)
        others = {name: place for name, place in self.places.items() if name not in mine}
        self.by_owner: Mapping[Any, dict[str, str]] = naming.by_owner(others)
        self._plan_variables()
        if origin is not None:
            trainable = [v for v in self.variables if getattr(v, "trainable", True)]
            built = variables_of(self.optimizer)
            self.trained = built or in_order_of_building(optimizer, trainable)
            self._plan_slots(origin)
            self._plan_shared(origin.row)
            self._plan_steps(origin)
        self._plan_rest()

    @property
    def report(self) -> Report:
        """The plan in words."""
        entries, notes = tuple(self._entries), tuple(self._notes)
        return Report(self.file.prefix, entries, dict(self.steps), self.iterations, notes)

    # ---- Variables and slots --------------------------------------------------------------------

    def _plan_variables(self) -> None:
        if self.swapped and not any(AVERAGE in slots for slots in self.by_owner.values()):
            raise ValueError(
                f"Argument `swapped` must be False: the checkpoint {self.file.prefix!r} holds no "
                "averages, so no `swapping_saver` has written it. Received: True"
            )
        for variable in self.variables:
            name = self.source[id(variable)]
            if self.swapped:
                name = self.by_owner.get(name, {}).get(AVERAGE, name)
            wanted = Content(tuple(variable.shape), dtype_of(variable))
            trains = self.optimizer is not None and getattr(variable, "trainable", True)
            # A variable may be rounded if a master weight keeps the exact value.
            rounds = trains and MASTER in described_slots(self.optimizer, variable)
            self._move(name, path_of(variable), wanted, variable, rounds=rounds)

    def _plan_slots(self, origin: Origin) -> None:
        base = self._base(origin)
        for variable in self.trained:
            path, source = path_of(variable), self.source.get(id(variable))
            state = self.by_owner.get(source, {})
            here = described_slots(self.optimizer, variable)
            suffixes = self._suffixes(origin, base, variable, here, state)
            for slot, suffix in suffixes.items():
                if slot not in here and suffix in state:
                    where = f"slot {slot} of {path}"
                    self._enter("not needed", state[suffix], where, "never written")
            for slot, wanted in here.items():
                name = state.get(suffixes[slot]) if slot in suffixes else None
                if slot == "average" and "average" not in origin.row.slots:
                    name = source if self.swapped and AVERAGE in state else state.get(AVERAGE)
                elif slot == MASTER:
                    name = state.get(AVERAGE, source) if self.swapped else source
                if name is None and slot in ("average", MASTER):
                    self.begin.append((variable, slot))
                self._move(name, f"slot {slot} of {path}", wanted, variable, slot)

    def _turn(self, row: Row) -> tuple[int, int]:
        """Return the place of this optimizer among those that have powers, and how many these are.

        The place is 0 unless `name_map` leaves out the powers of all others.
        """
        if not row.powers:
            return 0, 1
        named = naming.named(f"{row.powers[0]}_power", [*self.tensors, *self._left_out])
        left = [place for place, name in enumerate(named) if name in self.tensors]
        return (left[0], len(named)) if len(left) == 1 else (0, 1)

    def _suffixes(
        self, origin: Origin, base: str, variable: Any, here: Iterable[str], state: Mapping
    ) -> dict[str, str]:
        """Return the suffixes of this optimizer's slots, and enter those of others left out.

        Where all optimizers of the kind have slots of a variable, they have made these in turn.
        """
        place, count = self._turn(origin.row)
        each = [origin.suffixes(base, variable, here, n) for n in range(count)]
        if not all(suffix in state for suffixes in each for suffix in suffixes.values()):
            return each[0]
        mine = each.pop(place)
        for suffix in [suffix for suffixes in each for suffix in suffixes.values()]:
            detail = "of an optimizer whose powers name_map leaves out"
            self._enter("not needed", state[suffix], None, detail)
        return mine

    def _base(self, origin: Origin) -> str:
        """Return the name of this optimizer's slots in the checkpoint."""
        suffixes = [s for source in self._sources() for s in self.by_owner.get(source, {})]
        for base in (*origin.bases, *origin.slot_bases.values()):
            if base in suffixes:
                return base
        present = dict.fromkeys(map(naming.base_of, suffixes))
        others = [base for base in present if writers_of(base)]
        unknown = [base for base in present if base != AVERAGE and base not in others]
        if origin.row.slots and len(unknown) == 1 and not others:
            return unknown[0]  # the name that the program gave its optimizer
        if others:
            self._notes.append(
                f"It was written with {' or '.join(writers_of(others[0]))}, whose slots are called "
                f"{others[0]!r}; the optimizer here stands for {' or '.join(origin.names)}."
            )
        return origin.bases[0]

    def _sources(self) -> list[str]:
        """Return the names in the checkpoint of the variables that are trained."""
        found = [self.source.get(id(variable)) for variable in self.trained]
        return [name for name in found if name is not None]

    def _own(self, name: str, tensors: Mapping[str, Stored]) -> list[str]:
        """Return the tensors of this name that may belong to this optimizer."""
        return own(naming.named(name, tensors), self.tensors, self._sources(), self.file)

    def _plan_shared(self, row: Row) -> None:
        sources = [self.source.get(id(variable)) for variable in self.trained]
        sizes = [math.prod(variable.shape) for variable in self.trained]
        change = functools.partial(naming.laid_as_built, names=sources, sizes=sizes)
        for slot, wanted in shared_slots(self.optimizer, self.trained).items():
            if slot not in row.shared:
                continue  # it follows from the others
            found = self._own(slot, self.tensors)
            if len(found) > 1:
                raise ambiguous({(name,): None for name in found})
            name = found[0] if found and None not in sources else None
            self._move(name, f"{slot} of all variables", wanted, None, slot, change)
        for slot in row.scratch:
            for name in naming.named(slot, self.tensors)[:1]:
                self._enter("not needed", name, None, "written before it is read")

    # ---- Steps ----------------------------------------------------------------------------------

    def _plan_steps(self, origin: Origin) -> None:
        row = origin.row
        scalars = {n: t for n, t in self.tensors.items() if t.shape == () and n not in self._used}
        counts: list[int] = []
        for argument, name in self._powers(row, scalars).items():
            count = self._plan_power(argument, name, row, counts)
            counts += [] if count is None else [count]
        if row.counts:
            fractions = {n: t for n, t in scalars.items() if t.dtype.startswith("float")}
            names = self._own(GLOBAL_STEP, fractions)
            if names:
                counts.append(int(self._value(names[0])))
                self.steps[f"{names[0]} of {origin.names[0]}"] = counts[-1]
                self._enter("restored", names[0], f"iterations = {counts[-1]}")
            else:
                self._enter("missing", None, "iterations")
        step = self._plan_global_step(scalars, counts)
        self.iterations = counts[-1] if counts else step
        if len({*counts, step} - {None}) > 1:
            told = ", ".join(f"{name} says {n}" for name, n in self.steps.items())
            self._notes.append(
                f"Counts of steps differ: {told}. The optimizer goes on from {self.iterations}."
            )
        variable = step_variable(self.optimizer)
        if variable is not None and step is not None:
            self.counter = variable, step
        elif variable is not None:
            self._enter("missing", None, path_of(variable))
        if self.iterations is None and follows_schedule(core(self.optimizer)):
            self._enter("missing", None, "iterations", "a schedule follows them")
        elif self.iterations is None:
            self._notes.append("The checkpoint has no count of steps: iterations stay.")

    def _plan_global_step(self, scalars: Mapping[str, Stored], counts: list[int]) -> int | None:
        """Enter the training step, and return it; None if there is none."""
        whole = [n for n, tensor in scalars.items() if tensor.dtype in ("int32", "int64")]
        for name in naming.named(GLOBAL_STEP, whole)[:1]:
            step = self.steps[name] = int(self._value(name))
            where = f"global step {step}, Report.global_step" if counts else f"iterations = {step}"
            differs = counts and step != counts[-1]
            detail = f"the optimizer has made {counts[-1]} steps" if differs else ""
            self._enter("restored", name, where, detail)
            return step
        return None

    def _powers(self, row: Row, scalars: Mapping[str, Stored]) -> dict[str, str | None]:
        """Return the power of this optimizer for each argument; None if there is none."""
        found = {argument: self._own(f"{argument}_power", scalars) for argument in row.powers}
        betas = [decay_rate(self.optimizer, row, argument) for argument in row.powers]
        choices: list[list[Any]] = [names or [None] for names in found.values()]
        if all(len(names) == 1 for names in choices):
            chosen: tuple[str | None, ...] = tuple(names[0] for names in choices)
        else:
            chosen = agreeing(choices, betas, lambda name: float(self._value(name)), self.taken)
        self.taken.update(name for name in chosen if name is not None)
        return dict(zip(found, chosen, strict=True))

    def _plan_power(
        self, argument: str, name: str | None, row: Row, counts: list[int]
    ) -> int | None:
        """Enter a power, and return the number of steps that it gives; None if it gives none."""
        if name is None:
            self._enter("missing", None, f"{argument}_power")
            return None
        beta, ours = decay_rate(self.optimizer, row, argument), row.renamed.get(argument, argument)
        if not isinstance(beta, float):
            detail = f"{ours} changes, so that nothing follows from it"
            self._enter("not needed", name, "iterations", detail)
            return None
        try:
            steps = steps_of_power(float(self._value(name)), beta)
        except ValueError as error:
            detail = f"{error}, which is {ours} of the optimizer here"
            self._enter("inconsistent", name, "iterations", detail)
            return None
        if steps is None:
            detail = "too small to tell the number of steps"
            self._enter("not needed", name, "iterations", detail)
            return None
        self.steps[name] = steps
        if counts and steps != counts[0]:
            detail = f"{steps} steps, by the other power {counts[0]}"
            self._enter("inconsistent", name, f"iterations = {steps}", detail)
            return None
        self._enter("restored", name, f"iterations = {steps}")
        return steps

    def _value(self, name: str) -> Any:
        return self.file.read(self.tensors[name].names[0])

    # ---- Entries --------------------------------------------------------------------------------

    def _plan_rest(self) -> None:
        """Enter the tensors that have not been used."""
        for name in [name for name in self.tensors if name not in self._used]:
            is_state = name in self.places or self.tensors[name].shape == ()
            detail = f"state of {self.places[name].owner}" if name in self.places else ""
            if self.swapped and AVERAGE in self.by_owner.get(name, {}):
                is_state, detail = True, f"moving average of {name}"
            status: Status = "not needed" if self.optimizer is None and is_state else "unused"
            self._enter(status, name, None, detail)

    def _move(
        self,
        name: str | None,
        where: str,
        wanted: Content,
        variable: Any,
        slot: str | None = None,
        change: Change | None = None,
        rounds: bool = False,
    ) -> None:
        if name is None:
            self._entries.append(Entry(None, where, "missing", wanted.shape))
            return
        tensor = self.tensors[name] = naming.along(self.tensors[name], wanted.shape)
        fits = tensor.dtype in (wanted.dtype, *_NARROWER.get(wanted.dtype, ()))
        if tensor.shape != wanted.shape:
            self._enter("shape mismatch", name, where, f"{wanted.shape} here")
        elif not fits and not (rounds and tensor.dtype == "float32"):
            detail = f"{tensor.dtype} there, {wanted.dtype} here"
            self._enter("dtype mismatch", name, where, detail)
        else:
            self._enter("restored", name, where)
            self.moves.append(Move(tensor, variable, slot, change))

    def _enter(self, status: Status, name: str | None, where: str | None, detail: str = "") -> None:
        """Add an entry on a tensor, which counts as used; with None, on a variable without one."""
        if name is None:
            self._entries.append(Entry(None, where, status, detail=detail))
            return
        self._used.add(name)
        tensor = self.tensors[name]
        self._entries.append(Entry(tensor.name, where, status, tensor.shape, detail))


def plans_for(
    file: CheckpointFile, model: Any, optimizer: Any, name_map: Any, swapped: bool
) -> tuple[list[Plan], Report]:
    """Return a plan for each optimizer, and the report on all of them."""
    taken: set[str] = set()
    optimizers = optimizers_in(optimizer)
    plans = [Plan(file, model, one, name_map, swapped, taken) for one in optimizers]
    for plan in plans[1:]:  # the first one fills the model
        plan.moves = [move for move in plan.moves if move.slot is not None]
    reports = [plan.report for plan in plans]
    return plans, reports[0] if optimizer is not optimizers else joined(reports)
