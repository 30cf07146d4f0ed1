"""Find an order in which to compute arrays, so that XLA writes each in place.

On a CPU, XLA makes a loop for each array that a rule returns. It copies an array that one loop
reads and another one writes, unless the first loop has to come first. And it keeps what several
loops compute alike. Both take longer than the rest of the step, as the memory is new each time.

So arrays are computed one after the other, each by operations of its own: from new arrays where the
rule says so, and after those that read what it replaces, or compute something alike.

A rule that needs sums over a variable is called twice: for its sums alone, and with the sums known.
In one go, XLA would keep what both the sums and the new values are computed from.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)
Parents = Callable[[Node], Iterable[Node]]

LARGE = 1 << 18
"""Numbers in an array from which on a copy takes longer than to wait."""


def in_order(
    old: Sequence[Node], new: Sequence[Node], parents: Parents
) -> list[tuple[int, list[int]]]:
    """Return the order in which to compute arrays, each with those that have to be written before.

    Where arrays read one another, XLA has to copy some. These come last, and wait for none.

    Args:
        old: The arrays, nodes of a graph of operations.
        new: For each of them, the node that is written in its place.
        parents: Returns the nodes that a node is computed from.
    """
    order: list[tuple[int, list[int]]] = []
    left, written = list(range(len(old))), set[Node]()
    reads: dict[int, set[Node]] = {}  # what each array was computed from
    while left:

        def cost(j: int) -> tuple[int, int]:
            """Return how many others still read the old array, and minus how many the new one."""
            others = [_ancestors(new[i], {*written, new[j]}, parents) for i in left if i != j]
            return sum(old[j] in one for one in others), -sum(new[j] in one for one in others)

        (still_read, _), j = min((cost(j), j) for j in left)
        if still_read:  # the rest read one another, and share what they compute
            return order + [(i, []) for i in left]
        left.remove(j)
        reads[j] = _ancestors(new[j], written, parents)
        before = []
        for i, _ in order:
            is_read = old[j] in reads[i] and new[i] not in reads[j]  # else it comes first anyway
            if is_read or any(parents(node) for node in reads[i] & reads[j] - written):
                before.append(i)
        order.append((j, before))
        written.add(new[j])
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
