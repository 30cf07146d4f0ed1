from __future__ import annotations

from typing import Any

from keras_tfopt.checks import check_integer
from keras_tfopt.distributed.over_workers import OverWorkers
from keras_tfopt.engine import Slot
from keras_tfopt.fields import integer
from keras_tfopt.rule import register


@register
class DropStale(OverWorkers):
    r"""Steps with the mean gradient of all workers, and drops gradients that are too old.

    A gradient that worker $k$ computed $\tau_k$ steps ago counts if $\tau_k \le \tau_{\max}$:

    $$
    x \leftarrow \text{inner step}\left(x, \frac{\sum_k w_k g_k}{\sum_k w_k}\right), \qquad
    w_k = \begin{cases} 1 & \tau_k \le \tau_{\max} \\ 0 & \text{else} \end{cases}
    $$

    If none counts, nothing changes. All workers have the same variables.

    Workers that step together compute gradients at the variables of that step: then $\tau_k = 0$,
    and all count. If your own loop overlaps the computation of gradients with steps, set
    `optimizer.age` before the step on the worker whose gradient is old. The step sets it back to 0.

    Args:
        inner_optimizer: Any Keras optimizer, or its name or configuration.
        staleness: $\tau_{\max}$, integer >= 0.
        exchange: A `keras_tfopt.distributed.Exchange`; not saved. Defaults to None: the one that
            is connected.
        name: Name of the optimizer.
        **base: `groups`, which is passed on. Other options belong to `inner_optimizer`.

    Slots: none. `optimizer.stale` is the number of gradients of all workers that did not count,
    `optimizer.age` is $\tau_k$ of the next gradient. Both are saved.

    Row gradients: added up as dense tensors. Each row is divided by the number of workers whose
    gradient counts and has that row; only these rows are touched. A gradient has the rows that it
    names. In variables that match `row_variables` of the inner optimizer, it also has those that
    are not zero.

    Example:

    >>> keras_tfopt.distributed.connect()
    >>> optimizer = keras_tfopt.DropStale(keras_tfopt.Adam(0.001), staleness=2)

    Reference: Chen et al., "Revisiting Distributed Synchronous SGD" (2016), on stale gradients;
    Dean et al., "Large Scale Distributed Deep Networks" (2012), for training with them.

    Differences: `tf.contrib.opt.DropStaleGradientOptimizer` is asynchronous: each gradient makes a
    step of its own, and the steps of others make it stale. The original's training operation
    returns the count of dropped gradients. `keras.optimizers` has no such optimizer.
    """

    averages_gradients = True
    changes_variables = False

    staleness: int = integer(0)

    def counters(self) -> dict[str, Slot]:
        return {"stale": Slot((), 0, "int32"), "age": Slot((), 0, "int32")}

    def takes_part(self, s: Any, t: Any) -> Any:
        return s.age <= self.staleness

    def counts(self, s: Any, missing: Any) -> dict[str, Any]:
        return {"stale": s.stale + missing, "age": 0 * s.age}

    def leaves_out_steps(self) -> bool:
        """Return True: there is no step if no gradient counts."""
        return True

    @property
    def stale(self) -> int:
        """Number of gradients of all workers that did not count."""
        return self.count("stale")

    @property
    def age(self) -> int:
        """Steps since this worker computed the gradient that comes next."""
        return self.count("age")

    @age.setter
    def age(self, value: int) -> None:
        self.set_count("age", check_integer("age", value, 0))
