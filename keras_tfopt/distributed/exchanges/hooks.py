"""What a wrapper over workers says about itself, and its hooks."""

from __future__ import annotations

from typing import Any


class WorkersHooks:
    """The hooks with their defaults; `keras_tfopt.distributed.OverWorkers` documents them."""

    by_rate = False  # exchanges use the common learning rate, not those of groups
    # Names of slots that are the same on all workers.
    shared: tuple[str, ...] = ()
    # Whether the slot `gradient_sum` adds up gradients, which then move the slot `center`.
    moves_center = False
    # Whether gradients are averaged before the step; otherwise workers exchange after it.
    averages_gradients = False
    changes_variables = True
    # Whether tables may be divided by rows over the workers.
    divides_tables = False

    def updates_between(self) -> int | None:
        """Return the number of updates between exchanges; None if there are no exchanges."""
        return None

    def send(self, x: Any, s: Any, t: Any) -> Any:
        return x

    def receive(self, total: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        raise NotImplementedError(f"{type(self).__name__} must define `receive`.")

    def alone(self, x: Any, s: Any) -> dict[str, Any]:
        return {}

    def takes_part(self, s: Any, t: Any) -> Any:
        return True

    def counts(self, s: Any, missing: Any) -> dict[str, Any]:
        return {}

    def check_workers(self, workers: int) -> None:
        """Raise an error if the arguments do not fit the number of workers."""
