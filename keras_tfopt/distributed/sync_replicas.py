from __future__ import annotations

from typing import Any

from keras_tfopt.checks import check_integer
from keras_tfopt.distributed.over_workers import OverWorkers
from keras_tfopt.engine import Slot, check_choice, is_chosen, settled
from keras_tfopt.fields import field, integer, within
from keras_tfopt.rule import register


def _check_count(name: str, value: Any) -> int | None:
    return None if value is None else check_integer(name, value, 1)


@register
class SyncReplicas(OverWorkers):
    r"""Steps with the mean gradient of some of the workers; the others are a reserve.

    Of $M$ workers, $N$ count in each step:

    $$
    x \leftarrow \text{inner step}\left(x, \frac{1}{N} \sum_{k \in S} g_k\right), \qquad
    S = \{k : (k - n) \bmod M < N\}
    $$

    where $n$ is the number of updates so far: each worker counts in $N$ of $M$ updates, in turn.
    All workers have the same variables. If an average decay $d$ is given, after each step

    $$
    s \leftarrow s - (1 - d)(s - x)
    $$

    Args:
        inner_optimizer: Any Keras optimizer, or its name or configuration.
        replicas_to_aggregate: $N$, integer >= 1, at most the number of workers. None: all workers.
        total_num_replicas: $M$, integer >= 1. If there are several workers, it must be their
            number. Defaults to None: that number.
        variable_averages: $d$ in [0, 1]: decay of averages of the variables, which start at
            their initial values. Defaults to None: no averages.
        variables_to_average: Variables, regular expressions that are searched in their paths, or
            functions of a variable, one or a list. Defaults to None: all; an empty list is none.
        exchange: A `keras_tfopt.distributed.Exchange`; not saved. Defaults to None: the one that
            is connected.
        name: Name of the optimizer.
        **base: `groups`, which is passed on. Other options belong to `inner_optimizer`.

    Slots: none; with `variable_averages`, `average` of the variable's shape, float32 for
    half-precision variables, which `keras_tfopt.averaged` puts into the model.

    Row gradients: added up as dense tensors. Each row is divided by the number of workers that
    count and have that row; only these rows are touched. A gradient has the rows that it names. In
    variables that match `row_variables` of the inner optimizer, it also has those that are not
    zero.

    Example:

    >>> keras_tfopt.distributed.connect()
    >>> optimizer = keras_tfopt.SyncReplicas(keras_tfopt.Adam(0.001), replicas_to_aggregate=None)

    Reference: Chen et al., "Revisiting Distributed Synchronous SGD" (2016).

    Differences: in `tf.train.SyncReplicasOptimizer` the first $N$ workers to come count, and a
    queue of tokens lets workers go on. Depending on the order of events, it drops gradients of an
    older step, or averages more than $N$. Workers that exchange directly wait for all others. So
    here the workers take turns, and a reserve saves no time. `keras.optimizers` has no such
    optimizer.
    """

    averages_gradients = True
    changes_variables = False

    replicas_to_aggregate: int | None = field(_check_count)
    total_num_replicas: int | None = integer(1, default=None)
    variable_averages: float | None = within(0, 1, default=None, fixed=True)
    variables_to_average: Any = field(check_choice, default=None)

    def __post_init__(self) -> None:
        if self.variable_averages is None and self.variables_to_average is not None:
            raise ValueError(
                "Argument `variables_to_average` must be None where there are no "
                f"`variable_averages`. Received: {self.variables_to_average!r}"
            )

    def choices(self) -> dict[str, Any]:
        return {"variables_to_average": self.variables_to_average}

    def settle(self, likes: Any) -> None:
        self.variables_to_average = settled(self.variables_to_average, likes)

    def slots(self, like: Any) -> dict[str, Slot]:
        # Without a path, return all slots that there may be.
        chosen = self.variables_to_average
        averaged = chosen is None or not like.path or is_chosen(like, chosen)
        averaged = averaged and self.variable_averages is not None
        return {"average": Slot(like.shape, "variable")} if averaged else {}

    def reach(self, like: Any) -> str | None:
        return "dense" if self.slots(like) else None

    def keeps_averages(self) -> bool:
        """Return whether there are averages of the variables."""
        return self.variable_averages is not None

    def average(self, x: Any, s: Any) -> Any:
        return s.average if "average" in s._fields else x

    def after(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        rate = 1 - (self.variable_averages or 0.0)
        return x, {"average": s.average - rate * (s.average - x)}

    def check_workers(self, workers: int) -> None:
        for argument in ("replicas_to_aggregate", "total_num_replicas"):
            value = getattr(self, argument)
            if value is not None and value > workers:
                raise ValueError(
                    f"Argument `{argument}` must be at most the number of workers, {workers}. "
                    f"Received: {value}"
                )
        if workers > 1 and self.total_num_replicas not in (None, workers):
            raise ValueError(
                f"Argument `total_num_replicas` must be None or the number of workers, {workers}. "
                f"Received: {self.total_num_replicas}"
            )

    def takes_part(self, s: Any, t: Any) -> Any:
        number = self.replicas_to_aggregate or t.workers
        return (t.rank - (t.step - 1)) % t.workers < number
