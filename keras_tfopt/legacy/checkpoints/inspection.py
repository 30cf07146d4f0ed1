"""Inspect a checkpoint: the meanings of its tensors, and their places here."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from keras_tfopt.checks import check_bool
from keras_tfopt.legacy.checkpoints import names as naming
from keras_tfopt.legacy.checkpoints.files import CheckpointFile
from keras_tfopt.legacy.checkpoints.names import AVERAGE, Stored
from keras_tfopt.legacy.checkpoints.origin import writers_of
from keras_tfopt.legacy.checkpoints.planning import GLOBAL_STEP, plans_for
from keras_tfopt.legacy.checkpoints.report import table
from keras_tfopt.legacy.slots import slots_in_order
from keras_tfopt.legacy.table import TABLE


@dataclasses.dataclass(frozen=True)
class Found:
    """A tensor of a checkpoint.

    Attributes:
        name: Its name.
        shape: Its shape.
        dtype: Its data type.
        meaning: Its meaning, in words: "variable", "slot m of dense/kernel".
        target: Its place in a model or optimizer; None if it has none.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    meaning: str
    target: str | None


def inspect_checkpoint(
    prefix: Any,
    model: Any = None,
    optimizer: Any = None,
    name_map: Any = None,
    *,
    swapped: bool = False,
) -> list[Found]:
    """Print the contents of a checkpoint of TensorFlow 1 and their targets, and return them.

    Meanings follow from names: those of the variables, of the slots of all classes in
    `keras_tfopt.legacy`, and of the other variables that these keep. Without a model, targets are
    those in a model with variables of the same paths. With a model, the report of `load_checkpoint`
    is printed, and targets are taken from it; nothing is loaded. A power is shown as the decay rate
    that gives it at the training step.

    Args:
        prefix: Path of the checkpoint, without `.index`; or a folder, for the latest one in it.
        model: As in `load_checkpoint`, or None.
        optimizer: As in `load_checkpoint`, or None.
        name_map: As in `load_checkpoint`.
        swapped: As in `load_checkpoint`.

    Returns:
        A list with an item for each tensor.

    Raises:
        Exception: the errors of `load_checkpoint` for arguments, and for a file that cannot be
            read. A checkpoint that does not fit is no error.
    """
    check_bool("swapped", swapped)
    file = CheckpointFile(prefix)
    if model is None:
        tensors, _ = naming.renamed(naming.stored(file.contents), name_map)
        found = _meant(file, tensors, swapped)
        rows = [(f.name, str(f.shape), f.dtype, f.meaning, f.target or "-") for f in found]
        head = ("name", "shape", "dtype", "meaning", "goes to")
        print("\n".join([file.prefix, *table([head, *rows]), *_written_by(tensors)]))
        return found
    plans, report = plans_for(file, model, optimizer, name_map, swapped)
    meanings = _meant(file, plans[0].tensors, swapped)
    print(report)
    targets: dict[str, str | None] = {}
    for entry in report.entries:
        if entry.name is not None and entry.status == "restored":
            targets.setdefault(entry.name, entry.target)
    return [dataclasses.replace(f, target=targets.get(f.name)) for f in meanings]


def _meant(file: CheckpointFile, tensors: Mapping[str, Stored], swapped: bool) -> list[Found]:
    """Return each tensor with its meaning and target, which follow from its name."""
    meanings = _Meanings(file, tensors, swapped)
    return [
        Found(tensor.name, tensor.shape, tensor.dtype, *meanings.of(name, tensor))
        for name, tensor in tensors.items()
    ]


class _Meanings:
    """Meanings and targets of the tensors of a checkpoint, by their names."""

    def __init__(self, file: CheckpointFile, tensors: Mapping[str, Stored], swapped: bool):
        self._file, self._swapped = file, swapped
        self._places = naming.places(tensors)
        self._by_owner = naming.by_owner(self._places)
        self._slots: dict[str, str] = {}
        for owner, suffixes in self._by_owner.items():
            self._slots |= _slots_of(tensors, owner, suffixes)
        whole = [n for n, t in tensors.items() if t.shape == () and t.dtype.startswith("int")]
        steps = [self._value(tensors[n]) for n in naming.named(GLOBAL_STEP, whole)[:1]]
        self._step = int(steps[0]) if steps else None

    def of(self, name: str, tensor: Stored) -> tuple[str, str | None]:
        """Return the meaning of a tensor and its target, None if it has none."""
        if name in self._places:
            return self._of_state(name)
        if self._swapped and AVERAGE in self._by_owner.get(name, {}):
            return f"moving average of {name}", f"slot average of {name}"
        last = naming.base_of(name.split("/")[-1])
        if tensor.shape == () and (last == GLOBAL_STEP or last.endswith("_power")):
            return self._of_count(last, tensor), "iterations"
        sharing = [writer for writer, row in TABLE.items() if last in row.shared]
        if sharing:
            together = f"of all variables together ({', '.join(sharing)})"
            return together, f"{last} of all variables"
        scratching = [writer for writer, row in TABLE.items() if last in row.scratch]
        if scratching:
            return f"scratch space of {', '.join(scratching)}", None
        return "variable", name

    def _of_state(self, name: str) -> tuple[str, str | None]:
        owner, suffix = self._places[name]
        if name in self._slots:
            slot = f"slot {self._slots[name]} of {owner}"
            return slot, slot
        if suffix != AVERAGE:
            return f"state of {owner}, called {suffix!r}", None
        if self._swapped:
            return f"trained value of {owner}", owner
        return f"moving average of {owner}", f"slot average of {owner}"

    def _of_count(self, last: str, tensor: Stored) -> str:
        if last != GLOBAL_STEP:
            return _power(float(self._value(tensor)), last, self._step)
        if tensor.dtype.startswith("int"):
            return f"training step {self._step}"
        return f"steps of {' or '.join(writer for writer, row in TABLE.items() if row.counts)}"

    def _value(self, tensor: Stored) -> Any:
        return self._file.read(tensor.names[0])


def _writers(tensors: Mapping[str, Stored], base: str) -> list[str]:
    """Return the originals that write slots of this name into such a file."""
    return [
        writer
        for writer in writers_of(base)
        if all(naming.named(f"{one}_power", tensors) for one in TABLE[writer].powers)
    ]


def _written_by(tensors: Mapping[str, Stored]) -> list[str]:
    bases = dict.fromkeys(naming.base_of(p.suffix) for p in naming.places(tensors).values())
    return [
        f"Slots called {base!r} are those of {', '.join(writers)}"
        for base in bases
        if (writers := _writers(tensors, base))
    ]


def _power(value: float, name: str, step: int | None) -> str:
    argument = name.removesuffix("_power")
    if step is None or not 0 < value < 1:
        return f"power {value:g} of {argument}"
    return f"power of {argument}, which is {value ** (1 / (step + 1)):.6g} if the step is right"


def _slots_of(
    tensors: Mapping[str, Stored], owner: str, suffixes: Mapping[str, str]
) -> dict[str, str]:
    """Return the slots of one variable, by their names in the file."""
    found: dict[str, str] = {}
    rank = len(tensors[owner].shape)
    for base in dict.fromkeys(map(naming.base_of, suffixes)):
        numbered = (naming.numbered(base, count) for count in itertools.count())
        present = [suffixes[s] for s in itertools.takewhile(suffixes.__contains__, numbered)]
        for row in (TABLE[writer] for writer in _writers(tensors, base)):
            everything = [s.replace("*", str(i)) for s in row.slots for i in range(rank)]
            for here in ([], everything):
                slots = slots_in_order(row, rank, here)
                if len(slots) == len(present):
                    found.update(zip(present, slots, strict=True))
    return found
