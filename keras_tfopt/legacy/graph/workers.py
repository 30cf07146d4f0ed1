"""Optimizers over workers in graphs of TensorFlow 1: there is the one that needs no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras import ops

from keras_tfopt.checks import check_integer
from keras_tfopt.execution.graph import (
    Pairs,
    around,
    in_a_graph,
    native,
    operations,
    read,
    verbs,
)
from keras_tfopt.legacy import workers
from keras_tfopt.legacy.graph.wrapping import Wrapping
from keras_tfopt.legacy.table import Row


class StaleGradients(workers.StaleGradients):
    """`DropStaleGradientOptimizer`, which works in graphs too, where it is `StaleInGraph`."""

    _graph: StaleInGraph | None = None

    def __init__(self, kind: str, row: Row, arguments: Mapping[str, Any]):
        if in_a_graph():
            self._graph = StaleInGraph(kind, row, arguments)
            self._name = self._graph.get_name()
        else:
            super().__init__(kind, row, arguments)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Pairs:
        """Calls that of `opt`, and notes the step at which gradients are computed."""
        if self._graph is None:
            return super().compute_gradients(*args, **kwargs)
        return self._graph.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """A step, unless the gradients are older than `staleness`.

        Args:
            grads_and_vars: As of `Optimizer.apply_gradients`.
            global_step: Integer variable that counts the steps that are made; in graphs needed.
            name: Name of the operation returned.

        Returns:
            The number of gradients dropped so far; a tensor that is to be run, in graphs.
        """
        if self._graph is None:
            return super().apply_gradients(grads_and_vars, global_step, name)
        return self._graph.apply_gradients(grads_and_vars, global_step, name)

    def minimize(self, loss: Any, global_step: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As `Optimizer.minimize`."""
        if self._graph is None:
            return super().minimize(loss, global_step, *args, **kwargs)
        return self._graph.minimize(loss, global_step, *args, **kwargs)

    def get_slot(self, var: Any, name: str) -> Any:
        """That of `opt`."""
        if self._graph is None:
            return super().get_slot(var, name)
        return self._graph.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """Those of `opt`."""
        return super().get_slot_names() if self._graph is None else self._graph.get_slot_names()

    def variables(self) -> list[Any]:
        """Those of `opt`; in graphs also the count of dropped gradients."""
        return super().variables() if self._graph is None else self._graph.variables()

    @property
    def keras(self) -> Any:
        """The Keras optimizer, for `model.compile`.

        Raises:
            RuntimeError: in graphs of TensorFlow 1, where Keras has no optimizers.
        """
        return super().keras if self._graph is None else self._graph.keras

    @property
    def _local_step(self) -> Any:
        """The step at which gradients were computed, which can be fed, as in the original."""
        return None if self._graph is None else self._graph.local_step


class StaleInGraph(Wrapping):
    """Steps of one process that leave out old gradients.

    Attributes:
        local_step: The global step as it was when gradients were computed; it can be fed, so that
            gradients that were fetched once may be applied later.
    """

    local_step: Any = None
    _DROPPED = "stale_counter"

    def __init__(self, kind: str, row: Row, arguments: Mapping[str, Any]):
        self._staleness = check_integer("staleness", arguments["staleness"], 0)
        super().__init__(kind, row, arguments)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Pairs:
        """Calls that of `opt`, after noting the step."""
        loss, *rest = args or (kwargs.pop("loss"),)
        self.local_step = ops.cast(read(operations.global_step()), "int64") + 0
        with operations.following([self.local_step]):
            if not callable(loss):
                loss = loss + ops.zeros_like(loss)
            return self._opt.compute_gradients(loss, *rest, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """See `StaleGradients.apply_gradients`."""
        if global_step is None:
            raise ValueError(
                "Argument `global_step` must be the variable that counts steps: the age of "
                "gradients is known by it. Received: None"
            )
        given = verbs.list_of_pairs(grads_and_vars)
        pairs = verbs.checked_pairs(given, self)
        verbs.check_counter(global_step)
        if self.local_step is None:
            raise RuntimeError(
                "The age of these gradients is not known: get them by `compute_gradients` of this "
                "optimizer"
            )
        first = min((v for g, v in pairs if g is not None), key=lambda v: v.name)
        with operations.lifted():
            dropped = self._create_non_slot_variable(0.0, self._DROPPED, first)

        def step() -> Any:
            done = self._opt.apply_gradients(given, global_step=native(global_step))
            with operations.following([done]):
                return ops.zeros((), "float32")

        values = [g.values if hasattr(g, "values") else g for g, _ in pairs if g is not None]
        with operations.following(values):
            age = ops.cast(read(native(global_step)), "int64") - self.local_step
            counts = ops.less_equal(age, self._staleness)
            more = around.conditional(counts, first, step, lambda: ops.ones((), "float32"))
            written = operations.write(dropped, read(dropped) + more)
            return operations.named(operations.value_of(written), name or self._name)
