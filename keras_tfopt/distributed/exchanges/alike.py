"""Check that workers have the same model and optimizer."""

from __future__ import annotations

from typing import Any


def check_same(one: dict[str, Any], first: dict[str, Any], rank: int) -> None:
    """Raise an error if a worker has another optimizer or model than the first one."""
    for key in ("optimizer", "arguments"):
        if one[key] != first[key]:
            raise ValueError(
                f"All workers must have the same optimizer. Received: {one[key]} on worker "
                f"{rank}, {first[key]} on worker 0"
            )
    pairs = zip(one["variables"], first["variables"], strict=False)
    different = [f"number {n}: {a} and {b}" for n, (a, b) in enumerate(pairs) if a != b]
    counts = len(one["variables"]), len(first["variables"])
    if counts[0] != counts[1] or different:
        raise ValueError(
            f"All workers must have the same model. Received: {counts[0]} variables on worker "
            f"{rank}, {counts[1]} on worker 0" + "".join(f"; {d}" for d in different[:3])
        )
    if one["resumes"] != first["resumes"]:
        raise ValueError(
            "Either all workers go on from saved state or none. Received: saved state on worker "
            f"{0 if first['resumes'] else rank}, none on worker {rank if first['resumes'] else 0}"
        )
