"""Steps in which each worker updates the variables that it owns, and only it keeps their state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_tfopt.distributed.exchanges.workers import WorkersEngine
from keras_tfopt.engine import Engine, RowGradient, WrappingEngine, innermost, parts, path_of
from keras_tfopt.engine.rows import shards_of
from keras_tfopt.engine.state.building import describe
from keras_tfopt.engine.step.divided import check_divided
from keras_tfopt.engine.wrapping import Decision


class SharingEngine(WorkersEngine):
    """Runs `keras_tfopt.distributed.ShardedState` between workers."""

    is_engine = True
    must_be_outermost = True
    changes_variables = False
    divides_tables = True

    def meets_workers(self) -> bool:
        """Return whether the workers exchange weights after a step."""
        return self.shards is not None

    def build(self, variables: Sequence[Any]) -> None:
        """Assign the variables to workers, then create the state of this worker's variables."""
        if variables and not self.built and self.exchange.size > 1:
            shards = self.exchange.shards()
            self._check_inner()
            self._check_unbuilt()
            likes = [describe(variable, type(self).__name__) for variable in variables]
            check_divided(self, variables, likes, together=True)
            shards.assign([variable for variable in variables if shards_of(variable) is None])
            for part in parts(self):
                part.shards = shards
        super().build(variables)

    def extend(self, variables: Sequence[Any]) -> None:
        """Raise an error: the variables are assigned to workers once."""
        raise ValueError(
            f"{type(self).__name__} must be built for all variables that it is going to update. "
            f"Received, beyond those: {[path_of(variable) for variable in variables]}"
        )

    def _check_inner(self) -> None:
        inner = innermost(self)
        if not isinstance(inner, Engine):
            raise ValueError(
                f"{type(self).__name__} needs an optimizer of keras_tfopt inside, see "
                f"keras_tfopt.from_keras. Received: {inner!r}"
            )
        if inner.scope == "model":
            raise ValueError(
                f"{type(self).__name__} needs a rule that moves one variable at a time. Received: "
                f"{type(inner).__name__}, which sees all variables at once"
            )
        for part in parts(self.inner_optimizer):
            hooks = [
                hook
                for hook in ("before_step", "after_step")
                if isinstance(part, WrappingEngine) and hook in part.defines
            ]
            if hooks or isinstance(part, WorkersEngine):
                why = f"has the hook {hooks[0]!r}" if hooks else "exchanges between workers itself"
                raise ValueError(
                    f"{type(self).__name__} needs wrappers inside that see one variable at a time. "
                    f"Received: {type(part).__name__}, which {why}"
                )

    def _check_unbuilt(self) -> None:
        built = [type(part).__name__ for part in parts(self.inner_optimizer) if part.built]
        if built:
            raise ValueError(
                f"{type(self).__name__} must be built before the optimizer inside, which would "
                f"have all of its state here. Received: {built[0]}, which is built"
            )

    def decide(self, grads: list[Any], variables: list[Any]) -> Decision:
        if self.shards is None:
            return grads, None, {}
        for gradient, variable in zip(grads, variables, strict=True):
            if shards_of(variable) is not None and not isinstance(gradient, RowGradient):
                raise ValueError(
                    f"The table {path_of(variable)!r} has shard='rows' and may be used for lookups "
                    "only. Received: a dense gradient of it"
                )
        inside = [p for p in parts(self.inner_optimizer) if isinstance(p, WrappingEngine)]
        everywhere = any("accept_step" in part.defines for part in inside)
        return self.shards.mean_gradients(grads, variables, everywhere), None, {}

    def meet(self, grads: list[Any], places: list[int], moved: Any) -> None:
        """Send the variables that have moved to the other workers."""
        _, last = self._update_number()
        if last is None or bool(last):
            entries = [entry for entry in self._state.entries if not entry.rests]
            variables = [entry.variable for entry in entries]
            self.shards.send_variables([v for v in variables if shards_of(v) is None])
