"""What of a checkpoint goes where, found before anything is changed."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_tfopt.execution import (
    CheckpointFile,
    Content,
    described_slots,
    dtype_of,
    follows_schedule,
    path_of,
    shared_slots,
    variables_of,
)
from keras_tfopt.execution.binding import MASTER
from keras_tfopt.legacy.checkpoints import names as naming
from keras_tfopt.legacy.checkpoints.models import variables_in
from keras_tfopt.legacy.checkpoints.names import AVERAGE, Stored
from keras_tfopt.legacy.checkpoints.origin import (
    Origin,
    check_apart,
    decay_rate,
    in_order_of_building,
    keras_optimizer,
    optimizers_in,
    origin_of,
    step_variable,
    writers_of,
)
from keras_tfopt.legacy.checkpoints.powers import steps_of_power
from keras_tfopt.legacy.checkpoints.report import (
    DTYPE,
    INCONSISTENT,
    MISSING,
    NOT_NEEDED,
    RESTORED,
    SHAPE,
    UNUSED,
    Entry,
    Report,
    joined,
)
from keras_tfopt.legacy.checkpoints.sharing import agreeing, ambiguous, own
from keras_tfopt.legacy.slots import slots_in_order
from keras_tfopt.legacy.table import Row

GLOBAL_STEP = "global_step"
Change = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Move:
    """A tensor on its way: into a variable, a slot of it, or one of all variables (None)."""

    tensor: Stored
    variable: Any
    slot: str | None = None
    change: Change | None = None


class Plan:
    """What `load_checkpoint` is going to do.

    Attributes:
        optimizer: The Keras optimizer, or None.
        trained: The variables that it is built for, or will be.
        moves: Values to be assigned.
        begin: Variables and slots of theirs that start at the value of the variable.
        counter: The variable that the optimizer takes the step from, and its value to be.
        taken: The powers of decay rates that plans for optimizers have, this one included.
    """

    def __init__(
        self,
        file: CheckpointFile,
        model: Any,
        optimizer: Any,
        name_map: Any,
        swapped: Any,
        taken: set[str],
    ):
        self.file, self.taken = file, taken
        self.optimizer = keras_optimizer(optimizer)
        self.origin: Origin | None = None if optimizer is None else origin_of(optimizer)
        self.variables, choices = variables_in(model)
        self.tensors, left_out = naming.renamed(naming.stored(file.contents), name_map)
        self.moves: list[Move] = []
        self.counter: tuple[Any, int] | None = None
        self.begin: list[tuple[Any, str]] = []
        self.steps: dict[str, int] = {}
        self.iterations: int | None = None
        self._entries: list[Entry] = []
        self._notes: list[str] = []
        self._used: set[str] = set()
        self._entries += [
            Entry(one.name, None, NOT_NEEDED, one.shape, "left out by name_map") for one in left_out
        ]

        sources = naming.matched(choices, self.tensors)
        self.source = {id(v): name for v, name in zip(self.variables, sources, strict=True)}
        mine = {name for name in sources if name is not None}
        self.behind: dict[str, dict[str, str]] = {}
        for name, place in sorted(naming.places(self.tensors).items(), key=lambda i: len(i[0])):
            if name not in mine:
                self.behind.setdefault(place.owner, {}).setdefault(place.suffix, name)
        self._plan_variables(swapped)
        if self.optimizer is not None:
            built = variables_of(self.optimizer)
            trainable = [v for v in self.variables if getattr(v, "trainable", True)]
            self.trained = built or in_order_of_building(optimizer, trainable)
            self._plan_slots(swapped)
            self._plan_shared()
            self._plan_steps()
        self._plan_rest(swapped)

    @property
    def report(self) -> Report:
        """What it comes to."""
        return Report(
            self.file.prefix,
            tuple(self._entries),
            dict(self.steps),
            self.iterations,
            tuple(self._notes),
        )

    # ---- Parts ----------------------------------------------------------------------------------

    def _plan_variables(self, swapped: bool) -> None:
        if swapped and not any(AVERAGE in slots for slots in self.behind.values()):
            raise ValueError(
                f"Argument `swapped` must be False: the checkpoint {self.file.prefix!r} holds no "
                "averages, so no `swapping_saver` has written it. Received: True"
            )
        for variable in self.variables:
            name = self.source[id(variable)]
            if swapped and name is not None:
                name = self.behind.get(name, {}).get(AVERAGE, name)
            wanted = Content(tuple(variable.shape), dtype_of(variable))
            self._move(name, path_of(variable), wanted, variable, rounds=self._rounds(variable))

    def _rounds(self, variable: Any) -> bool:
        """Whether a copy in full precision is kept beside the variable."""
        trains = self.optimizer is not None and getattr(variable, "trainable", True)
        return trains and MASTER in described_slots(self.optimizer, variable)

    def _plan_slots(self, swapped: bool) -> None:
        assert self.origin is not None
        row = self.origin.row
        here = {id(v): described_slots(self.optimizer, v) for v in self.trained}
        base = self._base(here)
        for variable in self.trained:
            path, source = path_of(variable), self.source.get(id(variable))
            behind = self.behind.get(source, {}) if source is not None else {}
            slots = slots_in_order(row, len(variable.shape), here[id(variable)])
            suffixes = self.origin.suffixes(base, slots)
            for slot, suffix in suffixes.items():
                if slot not in here[id(variable)] and suffix in behind:
                    self._pass_over(behind[suffix], f"slot {slot} of {path}", "never written")
            for slot, wanted in here[id(variable)].items():
                name = behind.get(suffixes[slot]) if slot in suffixes else None
                if slot == "average" and "average" not in row.slots:
                    name = source if swapped and AVERAGE in behind else behind.get(AVERAGE)
                elif slot == MASTER:
                    name = behind.get(AVERAGE, source) if swapped else source
                if name is None and slot in ("average", MASTER):
                    self.begin.append((variable, slot))
                self._move(
                    name,
                    f"slot {slot} of {path}",
                    wanted,
                    variable,
                    slot,
                )

    def _base(self, here: Mapping[int, Mapping[str, Any]]) -> str:
        """What the slots of this optimizer are called in the checkpoint."""
        assert self.origin is not None
        sources = self._sources()
        suffixes = [s for source in sources for s in self.behind.get(source, {})]
        present = dict.fromkeys(map(naming.base_of, suffixes))
        for base in (*self.origin.bases, *self.origin.slot_bases.values()):
            if base in suffixes:
                return base
        others = [base for base in present if writers_of(base)]
        unknown = [base for base in present if base != AVERAGE and base not in others]
        if self.origin.row.slots and len(unknown) == 1 and not others:
            return unknown[0]  # the name that the program gave its optimizer
        if others:
            self._notes.append(
                f"It was written with {' or '.join(writers_of(others[0]))}, whose slots are called "
                f"{others[0]!r}; the optimizer here stands for {' or '.join(self.origin.names)}."
            )
        return self.origin.bases[0]

    def _sources(self) -> list[str]:
        """The names in the checkpoint of the variables that are trained."""
        found = [self.source.get(id(variable)) for variable in self.trained]
        return [name for name in found if name is not None]

    def _own(self, name: str, tensors: Mapping[str, Stored]) -> list[str]:
        """The tensors of this name that may be those of this optimizer."""
        return own(naming.named(name, tensors), self.tensors, self._sources(), self.file)

    def _plan_shared(self) -> None:
        assert self.origin is not None
        row = self.origin.row
        sources = [self.source.get(id(variable)) for variable in self.trained]
        sizes = [math.prod(variable.shape) for variable in self.trained]
        for slot, wanted in shared_slots(self.optimizer, self.trained).items():
            if slot not in row.shared:
                continue  # it follows from the others
            found = self._own(slot, self.tensors)
            if len(found) > 1:
                raise ambiguous({(name,): None for name in found})
            self._move(
                found[0] if found and None not in sources else None,
                f"{slot} of all variables",
                wanted,
                None,
                slot,
                functools.partial(naming.laid_as_built, names=sources, sizes=sizes),
            )
        for slot in row.scratch:
            for name in naming.named(slot, self.tensors)[:1]:
                self._pass_over(name, None, "written before it is read")

    def _plan_steps(self) -> None:
        assert self.origin is not None
        row = self.origin.row
        scalars = {n: t for n, t in self.tensors.items() if t.shape == () and n not in self._used}
        whole = {n: t for n, t in scalars.items() if t.dtype in ("int32", "int64")}
        counts: list[int] = []
        for argument, name in self._powers(row, scalars).items():
            count = self._plan_power(argument, name, row)
            if count is not None and counts and count != counts[0]:
                entry = self._entries.pop()
                detail = f"{count} steps, by the other power {counts[0]}"
                self._entries.append(dataclasses.replace(entry, status=INCONSISTENT, detail=detail))
            elif count is not None:
                counts.append(count)
        if row.counts:
            fractions = {n: t for n, t in scalars.items() if t.dtype.startswith("float")}
            names = self._own(GLOBAL_STEP, fractions)
            if names:
                counts.append(int(self._value(names[0])))
                self.steps[f"{names[0]} of {self.origin.names[0]}"] = counts[-1]
                self._restored(names[0], f"iterations = {counts[-1]}")
            else:
                self._entries.append(Entry(None, "iterations", MISSING))
        names = naming.named(GLOBAL_STEP, whole)
        step = None
        if names:
            step = int(self._value(names[0]))
            self.steps[names[0]] = step
        self.iterations = counts[-1] if counts else step
        if names and step is not None:
            detail = (
                ""
                if not counts or step == counts[-1]
                else f"the optimizer has made {counts[-1]} steps"
            )
            if not counts:
                self._restored(names[0], f"iterations = {step}")
            else:
                self._restored(names[0], f"global step {step}, Report.global_step", detail)
        if len({*counts, *([] if step is None else [step])}) > 1:
            told = ", ".join(f"{name} says {n}" for name, n in self.steps.items())
            self._notes.append(
                f"Counts of steps differ: {told}. The optimizer goes on from {self.iterations}."
            )
        variable = step_variable(self.optimizer)
        if variable is not None:
            if step is None:
                self._entries.append(Entry(None, path_of(variable), MISSING))
            else:
                self.counter = variable, step
        if self.iterations is None:
            if follows_schedule(self.optimizer):
                self._entries.append(
                    Entry(None, "iterations", MISSING, detail="a schedule follows them")
                )
            else:
                self._notes.append("The checkpoint has no count of steps: iterations stay.")

    def _powers(self, row: Row, scalars: Mapping[str, Stored]) -> dict[str, str | None]:
        """By argument, the power of it that this optimizer has written; None if there is none."""
        found = {argument: self._own(f"{argument}_power", scalars) for argument in row.powers}
        betas = [decay_rate(self.optimizer, row, argument) for argument in row.powers]
        choices: list[list[Any]] = [names or [None] for names in found.values()]
        if all(len(names) == 1 for names in choices):
            chosen: tuple[str | None, ...] = tuple(names[0] for names in choices)
        else:
            chosen = agreeing(choices, betas, lambda name: float(self._value(name)), self.taken)
        self.taken.update(name for name in chosen if name is not None)
        return dict(zip(found, chosen, strict=True))

    def _plan_power(self, argument: str, name: str | None, row: Row) -> int | None:
        if name is None:
            self._entries.append(Entry(None, f"{argument}_power", MISSING))
            return None
        beta = decay_rate(self.optimizer, row, argument)
        ours = row.renamed.get(argument, argument)
        if not isinstance(beta, float):
            self._pass_over(name, "iterations", f"{ours} changes, so that nothing follows from it")
            return None
        power = float(self._value(name))
        try:
            steps = steps_of_power(power, beta)
        except ValueError as error:
            detail = f"{error}, which is {ours} of the optimizer here"
            self._entries.append(Entry(name, "iterations", INCONSISTENT, (), detail))
            self._used.add(name)
            return None
        if steps is None:
            self._pass_over(name, "iterations", "too small to tell the number of steps")
            return None
        self.steps[name] = steps
        self._restored(name, f"iterations = {steps}")
        return steps

    def _plan_rest(self, swapped: bool) -> None:
        """What nothing has asked for."""
        places = naming.places(self.tensors)
        weights_alone = self.optimizer is None
        for name, tensor in self.tensors.items():
            if name in self._used:
                continue
            target, status = "", UNUSED
            if name in places:
                target = f"state of {places[name].owner}"
            is_state = name in places or tensor.shape == ()
            if swapped and AVERAGE in self.behind.get(name, {}):
                is_state, target = True, f"moving average of {name}"
            if weights_alone and is_state:
                status = NOT_NEEDED
            self._entries.append(Entry(tensor.name, None, status, tensor.shape, target))

    # ---- Entries --------------------------------------------------------------------------------

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
            self._entries.append(Entry(None, where, MISSING, wanted.shape))
            return
        tensor = naming.along(self.tensors[name], wanted.shape)
        self._used.add(name)
        status, detail = RESTORED, ""
        if tensor.shape != wanted.shape:
            status, detail = SHAPE, f"{wanted.shape} here"
        elif not (_holds(wanted.dtype, tensor.dtype) or (rounds and tensor.dtype == "float32")):
            status, detail = DTYPE, f"{tensor.dtype} there, {wanted.dtype} here"
        else:
            self.moves.append(Move(tensor, variable, slot, change))
        self._entries.append(Entry(tensor.name, where, status, tensor.shape, detail))

    def _restored(self, name: str, where: str, detail: str = "") -> None:
        self._used.add(name)
        self._entries.append(Entry(self.tensors[name].name, where, RESTORED, (), detail))

    def _pass_over(self, name: str, where: str | None, detail: str) -> None:
        self._used.add(name)
        tensor = self.tensors[name]
        self._entries.append(Entry(tensor.name, where, NOT_NEEDED, tensor.shape, detail))

    def _value(self, name: str) -> Any:
        return self.file.read(self.tensors[name].names[0])


def plans_for(
    file: CheckpointFile, model: Any, optimizer: Any, name_map: Any, swapped: Any
) -> tuple[list[Plan], Report]:
    """A plan for each optimizer, and what they come to together."""
    taken: set[str] = set()
    optimizers = optimizers_in(optimizer)
    if len(optimizers) > 1:
        check_apart(optimizers)
    plans = [Plan(file, model, one, name_map, swapped, taken) for one in optimizers]
    for plan in plans[1:]:  # the first one fills the model
        plan.moves = [move for move in plan.moves if move.slot is not None]
    reports = [plan.report for plan in plans]
    return plans, reports[0] if optimizer is not optimizers else joined(reports)


def _holds(wide: str, narrow: str) -> bool:
    """Whether a data type has all numbers of another."""
    wider = {
        "float64": ("float32", "float16", "bfloat16"),
        "float32": ("float16", "bfloat16"),
        "int64": ("int32",),
    }
    return narrow == wide or narrow in wider.get(wide, ())
