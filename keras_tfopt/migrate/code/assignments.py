"""Find out which names a program gives to the results of calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import libcst as cst

from keras_tfopt.migrate.code.survey import code_of

Assignment: TypeAlias = cst.Assign | cst.AnnAssign | cst.NamedExpr


def assigned_calls(node: Assignment) -> Iterator[tuple[str, cst.Call]]:
    """Yield each name or attribute that an assignment sets, with the call whose result it may be.

    `a, b.c = f(), g() if x else h()` has the calls of `f` for `"a"`, and of `g` and `h` for
    `"b.c"`.
    """
    if isinstance(node, cst.Assign):
        for one in node.targets:
            yield from _calls(one.target, node.value)
    else:
        yield from _calls(node.target, node.value)


def _calls(target: Any, value: Any) -> Iterator[tuple[str, cst.Call]]:
    sequence = (cst.Tuple, cst.List)
    if isinstance(target, sequence) and isinstance(value, sequence):
        for one, its_value in zip(target.elements, value.elements, strict=False):
            yield from _calls(one.value, its_value.value)
    elif isinstance(value, cst.NamedExpr):
        yield from _calls(target, value.value)
    elif isinstance(value, cst.IfExp):
        yield from _calls(target, value.body)
        yield from _calls(target, value.orelse)
    elif isinstance(value, cst.BooleanOperation):
        yield from _calls(target, value.left)
        yield from _calls(target, value.right)
    elif isinstance(value, cst.Call):
        yield code_of(target), value
