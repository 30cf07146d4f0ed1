"""Find the order in which a step has to write arrays, so that XLA writes each in place.

On a CPU, XLA makes a loop for each array that a rule returns. It copies an array that one loop
reads and another one writes, unless the first loop has to come first. The copy of a large array
takes longer than the rest of the step, because its memory is new in each step.

A rule that needs sums over a variable is called twice: for its sums alone, and with the sums known.
In one go, XLA would keep in new memory what both the sums and the new values are computed from.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)
Parents = Callable[[Node], Iterable[Node]]

LARGE = 1 << 18
"""Numbers in an array from which on a copy takes longer than to wait."""


def waiting(
    old: Sequence[Node], new: Sequence[Node], parents: Parents
) -> list[tuple[int, list[int]]]:
    """Return which arrays have to be written after which others, in the order of writing.

    Of arrays that would have to wait for one another, none is in the list.

    Args:
        old: The arrays, nodes of a graph of operations.
        new: For each of them, the node that is written in its place.
        parents: Returns the nodes that a node is computed from.
    """
    count = range(len(old))
    known = [_ancestors(node, set(), parents) for node in new]
    late: dict[int, list[int]] = {}
    before: set[int] | None = None
    while before != late.keys():
        before = set(late)
        # What waits is not there for others to be computed from: they compute it for themselves.
        kept = {new[i] for i in count if i not in late}
        seen = [_ancestors(node, kept, parents) for node in new]
        for j in count:
            others = [i for i in count if i != j and old[j] in seen[i] and new[i] not in known[j]]
            if others:
                late[j] = others
    order: list[tuple[int, list[int]]] = []
    while ready := [j for j in late if not late.keys() & late[j]]:
        order += [(j, late.pop(j)) for j in ready]
    return order


def _ancestors(node: Node, kept: set[Node], parents: Parents) -> set[Node]:
    """Return the nodes that a node is computed from, without those that only `kept` ones need."""
    found: set[Node] = set()
    todo = list(parents(node))
    while todo:
        one = todo.pop()
        if one not in found:
            found.add(one)
            todo.extend(() if one in kept else parents(one))
    return found
