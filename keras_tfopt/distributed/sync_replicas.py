from __future__ import annotations

from typing import Any

from keras_tfopt.checks import check_integer, check_number
from keras_tfopt.distributed.over_workers import OverWorkers
from keras_tfopt.execution import Slot, check_choice, is_chosen, settled
from keras_tfopt.rule import register


@register
class SyncReplicas(OverWorkers):
    r"""Steps with the mean gradient of some of the workers, the others being a reserve.

    Of $M$ workers, $N$ count in each step:

    $$
    x \leftarrow \text{inner step}\left(x, \frac{1}{N} \sum_{k \in S} g_k\right), \qquad
    S = \{k : (k - n) \bmod M < N\}
    $$

    where $n$ is the number of updates so far: each worker counts in $N$ of $M$ updates, in turn.
    All workers have the same variables. Given an average decay $d$, after each step

    $$
    s \leftarrow s - (1 - d)(s - x)
    $$

    Args:
        inner_optimizer: Any Keras optimizer, or its name or configuration.
        replicas_to_aggregate: $N$, integer >= 1, at most the number of workers. None: all workers.
        total_num_replicas: $M$, integer >= 1, which must be the number of workers where there are
            several. Defaults to None: that number.
        variable_averages: $d$ in [0, 1]: decay of averages of the variables, which start at
            their initial values. Defaults to None: no averages.
        variables_to_average: Variables, regular expressions that are searched in their paths, or
            functions of a variable, one or a list. Defaults to None: all; an empty list is none.
        exchange: A `keras_tfopt.distributed.Exchange`; not saved. Defaults to None: the one that
            is connected.
        name: Name of the optimizer.
        **base: None; options of optimizers belong to `inner_optimizer`, and the error says so.

    Slots: none; with `variable_averages`, `average` of the variable's shape, float32 for
    half-precision variables, which `keras_tfopt.averaged` puts into the model.

    Row gradients: added up as dense tensors, each row divided by the number of workers that count
    and have that row; then only those rows are touched. Rows are those that a gradient names, or
    that are not zero in variables that match `row_variables` of the inner optimizer.

    Example:

    >>> keras_tfopt.distributed.connect()
    >>> optimizer = keras_tfopt.SyncReplicas(keras_tfopt.Adam(0.001), replicas_to_aggregate=None)

    Reference: Chen et al., "Revisiting Distributed Synchronous SGD" (2016).

    Differences: in `tf.train.SyncReplicasOptimizer` the $N$ are those who come first, and a queue
    of tokens lets workers go on; gradients of an older step are dropped, or more than $N$ are
    averaged, depending on the order of events. `keras_tfopt.distributed.InProcess` replays that.
    Workers that exchange directly wait for all of them, so here the $N$ take turns, and a reserve
    saves no time. There is none in `keras.optimizers`.
    """

    averages_gradients = True
    events = "tokens"

    def __init__(
        self,
        inner_optimizer: Any,
        replicas_to_aggregate: int | None,
        total_num_replicas: int | None = None,
        variable_averages: float | None = None,
        variables_to_average: Any = None,
        exchange: Any = None,
        name: str | None = None,
        **base: Any,
    ):
        super().__init__(inner_optimizer, exchange, name=name, **base)
        counts = {
            "replicas_to_aggregate": replicas_to_aggregate,
            "total_num_replicas": total_num_replicas,
        }
        for argument, value in counts.items():
            setattr(self, argument, value if value is None else check_integer(argument, value, 1))
        if variable_averages is not None:
            variable_averages = check_number("variable_averages", variable_averages, 0, 1)
        elif variables_to_average is not None:
            raise ValueError(
                "Argument `variables_to_average` must be None where there are no "
                f"`variable_averages`. Received: {variables_to_average!r}"
            )
        self.variable_averages = variable_averages
        self.variables_to_average = check_choice("variables_to_average", variables_to_average)

    def choices(self) -> dict[str, Any]:
        return {"variables_to_average": self.variables_to_average}

    def settle(self, likes: Any) -> None:
        self.variables_to_average = settled(self.variables_to_average, likes)

    def slots(self, like: Any) -> dict[str, Slot]:
        # Without a path it is asked what slots there may be at all.
        chosen = self.variables_to_average
        averaged = chosen is None or not like.path or is_chosen(like, chosen)
        averaged = averaged and self.variable_averages is not None
        return {"average": Slot(like.shape, "variable")} if averaged else {}

    def reach(self, like: Any) -> str | None:
        return "dense" if self.slots(like) else None

    def keeps_averages(self) -> bool:
        """Whether there are averages of the variables."""
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
