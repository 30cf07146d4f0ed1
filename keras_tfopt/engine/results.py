"""Check the results of formulas."""

from __future__ import annotations

from typing import Any


def check_result(
    rule: str, result: Any, x: Any, slots: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the result of `update`, or raise an error that says what it has to return.

    Only numbers of dimensions are compared, since compiled code may not know sizes.
    """
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        raise TypeError(
            f"{rule}.update must return the new variable and a dictionary of new slots. "
            f"Received: {type(result).__name__}"
        )
    new_x, new = result
    check_described(rule, new, slots)
    old = {"the variable": x, **slots}
    for name, value in {"the variable": new_x, **new}.items():
        shape = getattr(value, "shape", None)
        if shape is None or getattr(shape, "rank", 0) is None:  # graphs may not know the rank
            continue
        if len(shape) != len(old[name].shape):
            raise ValueError(
                f"{rule}.update must return {name} with {len(old[name].shape)} dimensions. "
                f"Received: {len(shape)}"
            )
    return new_x, new


def check_described(rule: str, new: Any, described: Any) -> None:
    for name in new:
        if name not in described:
            raise KeyError(
                f"{rule} returned the slot {name!r}, which its `slots` does not "
                f"describe. Described: {list(described)}"
            )
