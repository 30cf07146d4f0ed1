"""Names in checkpoints: rename them, join parts, and match them with those of a model."""

from __future__ import annotations

import collections
import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_tfopt.legacy.checkpoints.files import Content

AVERAGE = "ExponentialMovingAverage"
_PART = re.compile(r"(^|/)part_(\d+)(?=/|$)")


class Stored(NamedTuple):
    """A tensor of a file, or its parts, which are concatenated along one dimension."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    axis: int = 0

    @property
    def name(self) -> str:
        """The name in reports."""
        if len(self.names) == 1:
            return self.names[0]
        return f"{self.names[0]} ... ({len(self.names)} parts)"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all parts together."""
        first = self.shapes[0]
        if len(self.shapes) == 1:
            return first
        along = sum(shape[self.axis] for shape in self.shapes)
        return (*first[: self.axis], along, *first[self.axis + 1 :])

    def axes(self) -> list[int]:
        """Return the dimensions along which the parts may be concatenated."""
        rank = len(self.shapes[0])
        if any(len(shape) != rank for shape in self.shapes):
            return []
        rest = [{shape[:i] + shape[i + 1 :] for shape in self.shapes} for i in range(rank)]
        return [axis for axis, others in enumerate(rest) if len(others) == 1]


def stored(contents: Mapping[str, Content]) -> dict[str, Stored]:
    """Return the tensors of a file by name, without `:0`; parts of one variable are joined."""
    single = {name: Stored((name,), (c.shape,), c.dtype) for name, c in contents.items()}
    found: dict[str, Stored] = {}
    parts: dict[str, dict[int, Stored]] = collections.defaultdict(dict)
    for name, tensor in single.items():
        plain = without_output(name)
        match = _PART.search(plain)
        if match is None:
            found[plain] = tensor
        else:
            whole = (plain[: match.start()] + plain[match.end() :]).strip("/")
            parts[whole][int(match[2])] = tensor
    for whole, numbered in parts.items():
        ordered = [numbered[n] for n in sorted(numbered)]
        names, shapes, dtypes, _ = zip(*ordered, strict=True)
        joined = Stored(sum(names, ()), sum(shapes, ()), dtypes[0])
        complete = sorted(numbered) == list(range(len(numbered))) and len(set(dtypes)) == 1
        if complete and joined.axes() and whole not in found:
            found[whole] = joined._replace(axis=joined.axes()[0])
        else:
            found |= {without_output(one.name): one for one in ordered}
    return found


def along(tensor: Stored, shape: tuple[int, ...]) -> Stored:
    """Join the parts along the dimension that gives this shape, if there is one."""
    for axis in tensor.axes():
        if tensor._replace(axis=axis).shape == shape:
            return tensor._replace(axis=axis)
    return tensor


def without_output(name: str) -> str:
    """Remove the number of an output from the end of a name."""
    return re.sub(r":\d+$", "", name)


# ---- Names given by the caller -------------------------------------------------------------------


class Renaming:
    """The function of a `name_map`: from a name to another, or to None to leave it out.

    Attributes:
        unused: Keys and patterns that have not matched any name yet.
    """

    def __init__(self, name_map: Any):
        self._function: Callable[[str], Any] | None = None
        self._names: dict[str, str | None] = {}
        self._patterns: list[tuple[re.Pattern, str]] = []
        try:
            if isinstance(name_map, Mapping):
                self._names = {
                    _scope(old): None if new is None else _scope(new)
                    for old, new in name_map.items()
                }
            elif callable(name_map):
                self._function = name_map
            elif name_map is not None:
                self._patterns = [(re.compile(pattern), new) for pattern, new in name_map]
        except (TypeError, ValueError, re.error) as error:
            raise TypeError(
                "Argument `name_map` must be None, a dictionary from names to names or None, a "
                "list of pairs of a regular expression and a replacement, or a function from names "
                f"to names or None. Received: {name_map!r}"
            ) from error
        self.unused = [*self._names, *(pattern.pattern for pattern, _ in self._patterns)]

    def __call__(self, name: str) -> str | None:
        """Return the new name."""
        if self._function is not None:
            new = self._function(name)
            if new is not None and not isinstance(new, str):
                raise TypeError(
                    "Argument `name_map` must be a function that gives a name or None. Received "
                    f"from it for {name!r}: {new!r}"
                )
            return new and without_output(new)
        # The name itself comes first, then the longest scope: state follows its variable.
        pieces = name.split("/")
        for end in range(len(pieces), 0, -1):
            head = "/".join(pieces[:end])
            if head in self._names:
                self._used(head)
                new = self._names[head]
                return None if new is None else "/".join(filter(None, [new, *pieces[end:]]))
        for pattern, replacement in self._patterns:
            name, count = pattern.subn(replacement, name)
            if count:
                self._used(pattern.pattern)
        return name

    def _used(self, key: str) -> None:
        if key in self.unused:
            self.unused.remove(key)


def _scope(name: str) -> str:
    return without_output(name).rstrip("/")


def renamed(tensors: Mapping[str, Any], name_map: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return tensors under the names that a `name_map` gives them, and those that it leaves out."""
    rename = Renaming(name_map)
    found: dict[str, Any] = {}
    left_out = []
    for name, tensor in tensors.items():
        new = rename(name)
        if new is None:
            left_out.append(tensor)
        elif new in found:
            raise ValueError(
                "Argument `name_map` must give each tensor another name. Received: "
                f"{found[new].name!r} and {tensor.name!r} are both {new!r}"
            )
        else:
            found[new] = tensor
    if rename.unused:
        key = rename.unused[0]
        scopes = {name[: match.start()] for name in tensors for match in re.finditer("/", name)}
        close = difflib.get_close_matches(key, sorted({*scopes, *tensors}), 3)
        raise ValueError(
            "Argument `name_map` must have keys that are names or scopes of tensors, or patterns "
            f"found in names. Received, found nowhere: {key!r}"
            + (f". Similar are {close}" if close else "")
        )
    return found, left_out


# ---- Names of the model --------------------------------------------------------------------------


def spellings(paths: Sequence[str], model: Any = None, layers: Iterable[Any] = ()) -> list[list]:
    """Return the lists of names that the variables of a model may have, the likeliest first.

    Keras numbers the layers of a process, and TensorFlow 1 those of a graph. So the third `Dense`
    of a process, `dense_2`, may be the first of its model, `dense`.
    """
    found = [list(paths)]
    if model is not None:
        found.append([path.removeprefix(f"{model.name}/") for path in paths])
    numbers = _renumbered(layers)
    for names in list(found):
        found.append(["/".join(numbers.get(one, one) for one in n.split("/")) for n in names])
    # Of two that are equal, the last one stays: files are written with the last of all.
    distinct = {tuple(names): names for names in reversed(found)}
    return [names for names in reversed(distinct.values()) if len(set(names)) == len(names)]


def _renumbered(layers: Iterable[Any]) -> dict[str, str]:
    """Return the names that layers would have if these were the only ones, by their names here."""
    automatic: dict[str, dict[str, int]] = collections.defaultdict(dict)
    for layer in layers:
        base, _, number = layer.name.rpartition("_")
        if not number.isdigit():
            base, number = layer.name, "0"
        if base == _snake_case(type(layer).__name__):
            automatic[base][layer.name] = int(number)
    new = {}
    for base, numbered in automatic.items():
        for place, name in enumerate(sorted(numbered, key=lambda name: numbered[name])):
            new[name] = f"{base}_{place}" if place else base
    return new


def _snake_case(name: str) -> str:
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def matched(choices: list[list], names: Mapping[str, Any]) -> list[str | None]:
    """Return the name of each variable in the checkpoint, None if it has none.

    All variables get the spelling and the scope that find most of them.

    Raises:
        ValueError: if several scopes find equally many.
    """
    scopes_of = collections.defaultdict(set)
    for name in names:
        pieces = name.split("/")
        for start in range(len(pieces)):
            scopes_of["/".join(pieces[start:])].add("/".join([*pieces[:start], ""]))
    best: list[str | None] = [None] * len(choices[0])
    most, as_good, spelling = 0, [""], choices[0]
    for keys in choices:
        scopes = set().union({""}, *(scopes_of.get(key, ()) for key in keys))
        for scope in sorted(scopes, key=lambda scope: (len(scope), scope)):
            found = [scope + key if scope + key in names else None for key in keys]
            count = sum(name is not None for name in found)
            if count > most:
                best, most, as_good, spelling = found, count, [scope], keys
            elif count == most and keys is spelling and as_good[0]:
                as_good.append(scope)
    if len(as_good) > 1:
        raise ValueError(
            f"The model's variables are found in several scopes of the checkpoint: {as_good}. Say "
            f"which: name_map={{{as_good[0].rstrip('/')!r}: '', {as_good[1].rstrip('/')!r}: None}}"
        )
    return best


# ---- State of optimizers -------------------------------------------------------------------------


class Place(NamedTuple):
    """The place of state: the name of its variable, and the suffix after that name."""

    owner: str
    suffix: str


def places(names: Iterable[str]) -> dict[str, Place]:
    """Find state by its name: `scope/dense/kernel/Adam_1` belongs to `dense/kernel`."""
    known = set(names)
    found = {name: _place_of(name, known) for name in known}
    return {name: place for name, place in found.items() if place is not None}


def _place_of(name: str, known: set[str]) -> Place | None:
    pieces = name.split("/")
    last = len(pieces) - 1
    # The suffix has several pieces if the name of the optimizer has a slash.
    ranges = [
        *((start, last) for start in range(last)),
        *((0, end) for end in range(last - 1, 0, -1)),
    ]
    for start, end in ranges:
        owner = "/".join(pieces[start:end])
        if owner in known:
            return Place(owner, "/".join(pieces[end:]))
    return None


def by_owner(places: Mapping[str, Place]) -> dict[str, dict[str, str]]:
    """Return names of state, by the name of the variable and then by the suffix."""
    found: dict[str, dict[str, str]] = {}
    for name, place in sorted(places.items(), key=lambda item: len(item[0])):
        found.setdefault(place.owner, {}).setdefault(place.suffix, name)
    return found


def numbered(base: str, count: int) -> str:
    """Return the name that TensorFlow 1 gives to tensor number `count` of one name."""
    return f"{base}_{count}" if count else base


def base_of(suffix: str) -> str:
    """Remove the number from the end of a name."""
    return re.sub(r"_\d+$", "", suffix)


def _places_by_name(names: Sequence[Any], sizes: Sequence[int]) -> np.ndarray:
    """Return the indices of the entries of all variables, in the order of the variables' names."""
    places = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    order = sorted(range(len(names)), key=lambda i: f"{names[i]}:0")
    return np.concatenate([places[i] for i in order])


def laid_by_name(array: np.ndarray, names: Sequence[Any], sizes: Sequence[int]) -> np.ndarray:
    """Put the entries of all variables in the order of the names, which the originals use.

    Args:
        array: The entries in its last dimension, in the order of building.
        names: The names of the variables, in the order of building.
        sizes: The number of entries of each.
    """
    return array[..., _places_by_name(names, sizes)]


def laid_as_built(array: np.ndarray, names: Sequence[Any], sizes: Sequence[int]) -> np.ndarray:
    """Undo `laid_by_name`."""
    return array[..., np.argsort(_places_by_name(names, sizes))]


def named(name: str, names: Iterable[str]) -> list[str]:
    """Return the names that are `name` in any scope and with any number, the shortest first."""
    pattern = re.compile(rf"(.*/)?{re.escape(name)}(_\d+)?")
    return sorted((n for n in names if pattern.fullmatch(n)), key=lambda n: (len(n), n))
