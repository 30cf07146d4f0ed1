"""What is in a checkpoint, and where it would go."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from keras_tfopt.checks import check_bool
from keras_tfopt.execution import CheckpointFile
from keras_tfopt.legacy.checkpoints import names as naming
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
        meaning: What it is, in words: "variable", "slot m of dense/kernel (AdamOptimizer, ...)".
        target: Where it goes; None if nowhere.
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
    """Prints what a checkpoint of TensorFlow 1 holds and where it would go, and returns it.

    Meanings are told from names: of the variables, of the slots of all classes in
    `keras_tfopt.legacy`, and of the variables that these keep besides. Without a model, targets are
    what they would be in a model with variables of the same paths; with one, they and the states
    are those of `load_checkpoint`, which is not carried out. Of a power, the decay rate is shown
    that belongs to the training step.

    Args:
        prefix: Path of the checkpoint, without `.index`; or a folder, of which it is the latest.
        model: As in `load_checkpoint`, or None.
        optimizer: As in `load_checkpoint`, or None.
        name_map: As in `load_checkpoint`.
        swapped: As in `load_checkpoint`.

    Returns:
        A list with an element for each tensor.

    Raises:
        What `load_checkpoint` does, but for a checkpoint that does not fit.
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
    places = naming.places(tensors)
    behind: dict[str, dict[str, str]] = {}
    for name, place in places.items():
        behind.setdefault(place.owner, {})[place.suffix] = name
    slots: dict[str, str] = {}
    for owner, suffixes in behind.items():
        slots |= _slots_of(tensors, owner, suffixes, functools.partial(_writers, tensors))
    step = None
    whole = [n for n, t in tensors.items() if t.shape == () and t.dtype in ("int32", "int64")]
    for name in naming.named(GLOBAL_STEP, whole)[:1]:
        step = int(file.read(tensors[name].names[0]))

    found = []
    for name, tensor in tensors.items():
        meaning: str = "variable"
        target: str | None = name
        last = naming.base_of(name.split("/")[-1])
        if name in slots:
            meaning = target = f"slot {slots[name]} of {places[name].owner}"
        elif name in places and places[name].suffix == AVERAGE:
            owner = places[name].owner
            meaning = f"{'trained value' if swapped else 'moving average'} of {owner}"
            target = owner if swapped else f"slot average of {owner}"
        elif name in places:
            owner, suffix = places[name]
            meaning, target = f"state of {owner}, called {suffix!r}", None
        elif swapped and AVERAGE in behind.get(name, {}):
            meaning, target = f"moving average of {name}", f"slot average of {name}"
        elif last == GLOBAL_STEP and name in whole:
            meaning, target = f"training step {step}", "iterations"
        elif last == GLOBAL_STEP and tensor.shape == () and tensor.dtype == "float32":
            meaning, target = f"steps of {' or '.join(_that('counts'))}", "iterations"
        elif last.endswith("_power") and tensor.shape == ():
            meaning, target = _power(file, tensor, last, step), "iterations"
        elif _that("shared", last):
            meaning = f"of all variables together ({', '.join(_that('shared', last))})"
            target = f"{last} of all variables"
        elif _that("scratch", last):
            meaning = f"scratch space of {', '.join(_that('scratch', last))}"
            target = None
        found.append(Found(tensor.name, tensor.shape, tensor.dtype, meaning, target))
    return found


def _writers(tensors: Mapping[str, Stored], base: str) -> list[str]:
    """The originals that write slots of this name into such a file."""
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


def _that(field: str, value: Any = True) -> list[str]:
    """The originals of which a field is or holds something."""
    return [
        name
        for name, row in TABLE.items()
        if getattr(row, field) is value
        or (isinstance(getattr(row, field), tuple) and value in getattr(row, field))
    ]


def _power(file: CheckpointFile, tensor: Stored, name: str, step: int | None) -> str:
    value = float(file.read(tensor.names[0]))
    argument = name.removesuffix("_power")
    if step is None or not 0 < value < 1:
        return f"power {value:g} of {argument}"
    return f"power of {argument}, which is {value ** (1 / (step + 1)):.6g} if the step is right"


def _slots_of(
    tensors: Mapping[str, Stored], owner: str, suffixes: Mapping[str, str], writers: Any
) -> dict[str, str]:
    """What the slots of one variable are called, by the names of these in the file."""
    found: dict[str, str] = {}
    rank = len(tensors[owner].shape)
    for base in dict.fromkeys(map(naming.base_of, suffixes)):
        present: list[str] = []
        while (suffix := naming.numbered(base, len(present))) in suffixes:
            present.append(suffixes[suffix])
        for row in (TABLE[writer] for writer in writers(base)):
            everything = [s.replace("*", str(i)) for s in row.slots for i in range(rank)]
            for here in ([], everything):
                slots = slots_in_order(row, rank, here)
                if len(slots) == len(present):
                    found.update(zip(present, slots, strict=True))
    return found
