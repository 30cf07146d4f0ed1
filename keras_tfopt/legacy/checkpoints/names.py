"""Names in checkpoints: renamed, joined, and brought together with those of a model."""

from __future__ import annotations

import collections
import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_tfopt.execution import Content

AVERAGE = "ExponentialMovingAverage"
_PART = re.compile(r"(^|/)part_(\d+)(?=/|$)")


class Stored(NamedTuple):
    """A tensor of a file, or the parts of one, which follow one another in dimension 0."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    axis: int = 0

    @property
    def name(self) -> str:
        """How a report calls it."""
        if len(self.names) == 1:
            return self.names[0]
        return f"{self.names[0]} ... ({len(self.names)} parts)"


def stored(contents: Mapping[str, Content]) -> dict[str, Stored]:
    """The tensors of a file by name, without `:0`; parts of partitioned variables joined."""
    found: dict[str, Stored] = {}
    parts: dict[str, dict[int, tuple[str, Content]]] = collections.defaultdict(dict)
    for name, content in contents.items():
        plain = without_output(name)
        match = _PART.search(plain)
        if match is None:
            found[plain] = Stored((name,), *content)
        else:
            whole = (plain[: match.start()] + plain[match.end() :]).strip("/")
            parts[whole][int(match[2])] = name, content
    for whole, numbered in parts.items():
        ordered = [numbered[n] for n in sorted(numbered)]
        joined = _joined([content for _, content in ordered])
        if joined is None or sorted(numbered) != list(range(len(numbered))) or whole in found:
            found |= {without_output(name): Stored((name,), *content) for name, content in ordered}
        else:
            content, axis = joined
            found[whole] = Stored(tuple(name for name, _ in ordered), *content, axis)
    return found


def _joined(contents: list[Content]) -> tuple[Content, int] | None:
    """What parts are together, and in which dimension they follow one another."""
    first = contents[0]
    same_rank = all(len(c.shape) == len(first.shape) and c.dtype == first.dtype for c in contents)
    if not same_rank or not first.shape:
        return None
    sizes = zip(*(content.shape for content in contents), strict=True)
    differ = [i for i, of_parts in enumerate(sizes) if len(set(of_parts)) > 1]
    if len(differ) > 1:
        return None
    axis = differ[0] if differ else 0
    shape = list(first.shape)
    shape[axis] = sum(content.shape[axis] for content in contents)
    return Content(tuple(shape), first.dtype), axis


def along(tensor: Stored, shape: tuple[int, ...]) -> Stored:
    """Parts of one size may follow one another in any dimension: in that which gives the shape."""
    count = len(tensor.names)
    if count == 1 or tensor.shape == shape or len(tensor.shape) != len(shape):
        return tensor
    part = list(tensor.shape)
    if part[tensor.axis] % count:
        return tensor
    part[tensor.axis] //= count
    for axis in range(len(part)):
        joined = tuple(size * count if i == axis else size for i, size in enumerate(part))
        if joined == shape:
            return tensor._replace(shape=shape, axis=axis)
    return tensor


def without_output(name: str) -> str:
    """A name of a variable without the number of an output behind it."""
    return re.sub(r":\d+$", "", name)


# ---- Names given by the caller -------------------------------------------------------------------


class Renaming:
    """The function from a name to another, None to leave it out, that a `name_map` stands for.

    Attributes:
        unused: Keys and patterns that have not matched any name yet.
    """

    def __init__(self, name_map: Any):
        self._function: Callable[[str], Any] | None = None
        self._names: dict[str, str | None] = {}
        self._patterns: list[tuple[re.Pattern, str]] = []
        if name_map is None:
            pass
        elif isinstance(name_map, Mapping):
            if not all(isinstance(k, str) for k in name_map) or not all(
                v is None or isinstance(v, str) for v in name_map.values()
            ):
                raise _wrong_map(name_map)
            self._names = {
                without_output(old).rstrip("/"): new and without_output(new).rstrip("/")
                for old, new in name_map.items()
            }
        elif callable(name_map):
            self._function = name_map
        else:
            try:
                self._patterns = [(re.compile(pattern), new) for pattern, new in name_map]
            except (TypeError, ValueError, re.error) as error:
                raise _wrong_map(name_map) from error
        self.unused = [*self._names, *(pattern.pattern for pattern, _ in self._patterns)]

    def __call__(self, name: str) -> str | None:
        """The new name."""
        if self._function is not None:
            new = self._function(name)
            if new is not None and not isinstance(new, str):
                raise TypeError(
                    "Argument `name_map` must be a function that gives a name or None. Received "
                    f"from it for {name!r}: {new!r}"
                )
            return new and without_output(new)
        # The name itself, or the longest scope that it is in: state follows its variable.
        pieces = name.split("/")
        for end in range(len(pieces), 0, -1):
            head = "/".join(pieces[:end])
            if head in self._names:
                self._used(head)
                new = self._names[head]
                return None if new is None else "/".join(filter(None, [new, *pieces[end:]]))
        for pattern, replacement in self._patterns:
            changed, count = pattern.subn(replacement, name)
            if count:
                self._used(pattern.pattern)
            name = changed
        return name

    def _used(self, key: str) -> None:
        if key in self.unused:
            self.unused.remove(key)


def _wrong_map(name_map: Any) -> TypeError:
    return TypeError(
        "Argument `name_map` must be None, a dictionary from names to names or None, a list of "
        "pairs of a regular expression and a replacement, or a function from names to names or "
        f"None. Received: {name_map!r}"
    )


def renamed(tensors: Mapping[str, Stored], name_map: Any) -> tuple[dict[str, Stored], list[Stored]]:
    """Tensors under the names that a `name_map` gives them, and those that it leaves out."""
    rename = Renaming(name_map)
    found: dict[str, Stored] = {}
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
            "Argument `name_map` must have keys that are names or scopes in the checkpoint, or "
            f"patterns found in them. Received, found nowhere: {key!r}"
            + (f". Similar are {close}" if close else "")
        )
    return found, left_out


# ---- Names of the model --------------------------------------------------------------------------


def spellings(paths: Sequence[str], model: Any = None, layers: Iterable[Any] = ()) -> list[list]:
    """The names that variables of a model may have had, the likeliest first, for all of them.

    Keras counts layers from the start of the process, and TensorFlow 1 from that of the graph: the
    third `Dense` of a process, `dense_2`, may be the first of its model, `dense`.
    """
    found = [list(paths)]
    scope = f"{model.name}/" if model is not None else ""
    if scope:
        found.append([path.removeprefix(scope) for path in paths])
    numbers = _renumbered(layers)
    for names in list(found):
        found.append(["/".join(numbers.get(one, one) for one in n.split("/")) for n in names])
    distinct = {tuple(names): names for names in found}
    return [names for names in distinct.values() if len(set(names)) == len(names)]


def _renumbered(layers: Iterable[Any]) -> dict[str, str]:
    """Automatic names of layers as if these were the only ones."""
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
    """For each variable, its name in the checkpoint: by the spelling and scope that find most.

    Raises:
        ValueError: if several scopes are as good.
    """
    scopes_of = collections.defaultdict(set)
    for name in names:
        pieces = name.split("/")
        for start in range(len(pieces)):
            scopes_of["/".join(pieces[start:])].add("/".join([*pieces[:start], ""]))
    best: tuple[int, list[str | None]] = (0, [None] * len(choices[0]))
    as_good: list[str] = []
    spelling: list[str] = []
    for keys in choices:
        scopes = set().union({""}, *(scopes_of.get(key, ()) for key in keys))
        for scope in sorted(scopes, key=lambda scope: (len(scope), scope)):
            found = [scope + key if scope + key in names else None for key in keys]
            count = sum(name is not None for name in found)
            if count > best[0]:
                best, as_good, spelling = (count, found), [scope], keys
            elif count and count == best[0] and keys is spelling and as_good[0]:
                as_good.append(scope)
    if len(as_good) > 1:
        raise ValueError(
            f"The model's variables are found in several scopes of the checkpoint: {as_good}. Say "
            f"which: name_map={{{as_good[0].rstrip('/')!r}: '', {as_good[1].rstrip('/')!r}: None}}"
        )
    return best[1]


# ---- State of optimizers -------------------------------------------------------------------------


class Place(NamedTuple):
    """Whose state a tensor is, by its name, and what is behind the name of that."""

    owner: str
    suffix: str


def places(names: Iterable[str]) -> dict[str, Place]:
    """The names of state of variables: `scope/dense/kernel/Adam_1` belongs to `dense/kernel`."""
    known = set(names)
    found = {}
    for name in known:
        head, _, suffix = name.rpartition("/")
        pieces = head.split("/")
        for start in range(len(pieces)):
            owner = "/".join(pieces[start:])
            if owner in known:
                found[name] = Place(owner, suffix)
                break
    return found


def numbered(base: str, count: int) -> str:
    """What TensorFlow 1 calls a further one of the same name."""
    return f"{base}_{count}" if count else base


def base_of(suffix: str) -> str:
    """The name without its number."""
    return re.sub(r"_\d+$", "", suffix)


def in_original_order(names: Sequence[Any]) -> list[int]:
    """Places of variables in the order in which the originals lay them end to end: by name."""
    return sorted(range(len(names)), key=lambda i: f"{names[i]}:0")


def laid_by_name(array: np.ndarray, names: Sequence[Any], sizes: Sequence[int]) -> np.ndarray:
    """Entries of all variables, end to end in the order of building, in that of the originals.

    Args:
        array: The entries, in its last dimension.
        names: The names of the variables, in the order of building.
        sizes: How many entries each has.
    """
    pieces = np.split(array, np.cumsum(sizes)[:-1], axis=-1)
    return np.concatenate([pieces[i] for i in in_original_order(names)], axis=-1)


def laid_as_built(array: np.ndarray, names: Sequence[Any], sizes: Sequence[int]) -> np.ndarray:
    """Undoes `laid_by_name`."""
    order = in_original_order(names)
    pieces = np.split(array, np.cumsum([sizes[i] for i in order])[:-1], axis=-1)
    return np.concatenate([pieces[place] for place in np.argsort(order)], axis=-1)


def named(name: str, names: Iterable[str]) -> list[str]:
    """Those called so, in any scope and with any number; without either first."""
    pattern = re.compile(rf"(.*/)?{re.escape(name)}(_\d+)?")
    return sorted((n for n in names if pattern.fullmatch(n)), key=lambda n: (len(n), n))
