"""Find out which names a program gives to values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import libcst as cst

from keras_tfopt.migrate.code.survey import code_of

Assignment: TypeAlias = cst.Assign | cst.AnnAssign | cst.NamedExpr


def assigned(node: Assignment) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Yield each name or attribute that an assignment sets, with the value that it may have.

    `a, b.c = f(), x if y else z` has `f()` for `"a"`, and `x` and `z` for `"b.c"`.
    """
    if isinstance(node, cst.Assign):
        for one in node.targets:
            yield from _values(one.target, node.value)
    else:
        yield from _values(node.target, node.value)


def _values(target: Any, value: Any) -> Iterator[tuple[str, cst.BaseExpression]]:
    sequence = (cst.Tuple, cst.List)
    if isinstance(target, sequence) and isinstance(value, sequence):
        for one, its_value in zip(target.elements, value.elements, strict=False):
            yield from _values(one.value, its_value.value)
    elif isinstance(value, cst.NamedExpr):
        yield from _values(target, value.value)
    elif isinstance(value, cst.IfExp):
        yield from _values(target, value.body)
        yield from _values(target, value.orelse)
    elif isinstance(value, cst.BooleanOperation):
        yield from _values(target, value.left)
        yield from _values(target, value.right)
    elif value is not None:  # an annotation may come without one
        yield code_of(target), value
