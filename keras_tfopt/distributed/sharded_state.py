from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_tfopt.distributed.over_workers import OverWorkers
from keras_tfopt.engine import Engine, WrappingEngine, innermost, parts, path_of
from keras_tfopt.rule import register


@register
class ShardedState(OverWorkers):
    r"""Steps with the mean gradient of all workers; each keeps a part of the state (ZeRO-1).

    Each variable has an owner among the $K$ workers, which alone keeps its slots, averages,
    accumulator and master weight, and updates it:

    $$
    x \leftarrow \text{inner step}\left(x, \frac{1}{K} \sum_k g_k\right)
    \text{ on the owner of } x, \text{ which then sends } x \text{ to all}
    $$

    The numbers are those of one worker with the mean gradient. Whole variables are shared out, the
    largest first, each to the worker that has least so far. So a worker keeps $1/K$ of the state if
    no variable is larger than that. In a step a worker sends and receives what an all-reduce of
    the gradients would: gradients are reduced to the owners, weights come from the owners.

    This is for workers on PyTorch, under `keras_tfopt.distributed.launch` or torchrun. On a JAX
    mesh, give the optimizer `shard_state=True` instead.

    Args:
        inner_optimizer: An optimizer of this package, or wrappers around one, or its name or
            configuration. Its rule must see one variable at a time, and so must wrappers: neither
            scope "model" nor hooks `before_step` and `after_step`.
        exchange: A `keras_tfopt.distributed.Exchange`; not saved. Defaults to None: the one that
            is connected.
        name: Name of the optimizer.
        **base: None; options of optimizers belong to `inner_optimizer`, and the error says so.

    Slots: none. On other workers than the owner, `slot` returns variables without memory, on
    PyTorch's device "meta".

    Saving: files have the whole state, as those of one worker. The workers exchange it, so all of
    them must save, each to a file of its own, as in `model.save(f"model_{workers.rank}.keras")`.
    Any of these files can be loaded by any number of workers. `keras_tfopt.averaged` must be
    entered by all workers, too.

    Row gradients: the rows of all workers, those that repeat summed, divided by the number of
    workers. All of the table is sent to the other workers after a step.

    Clipping: of the mean gradients; `global_clipnorm` takes the norm over all workers' variables.

    Raises:
        ValueError: when it is built, if there are several workers and they are not on PyTorch, or
            if the optimizer inside cannot be shared out.

    Example:

    >>> keras_tfopt.distributed.connect()
    >>> optimizer = keras_tfopt.distributed.ShardedState(keras_tfopt.AdamW(0.001))

    Reference: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
    Models" (2020), stage 1.

    Differences: `torch.distributed.optim.ZeroRedundancyOptimizer` leaves averaging the gradients to
    `DistributedDataParallel`, does not clip by the global norm, and collects its state for saving
    on one worker when `consolidate_state_dict` is called. `keras.optimizers` has no such optimizer.
    """

    must_be_outermost = True

    def meets_workers(self) -> bool:
        """Return whether the workers exchange weights after a step."""
        return self.shards is not None

    def build(self, variables: Sequence[Any]) -> None:
        """Share the variables out, then create the state of those that are this worker's."""
        if not self.built:
            self._check_inner()
            if self.exchange.size > 1:
                self._check_unbuilt()
                shards = self.exchange.shards()
                shards.assign(variables)
                for part in parts(self):
                    part.shards = shards
        super().build(variables)

    def extend(self, variables: Sequence[Any]) -> None:
        """Share out further variables, which the optimizer inside must not know yet."""
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
                if isinstance(part, WrappingEngine) and part.has(hook)
            ]
            if hooks or isinstance(part, OverWorkers):
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

    def decide(
        self, grads: list[Any], variables: list[Any]
    ) -> tuple[list[Any], Any, dict[str, Any]]:
        if self.shards is None:
            return grads, None, {}
        inside = [p for p in parts(self.inner_optimizer) if isinstance(p, WrappingEngine)]
        everywhere = any(part.has("accept_step") for part in inside)
        return self.shards.mean_gradients(grads, variables, everywhere), None, {}

    def meet(self, grads: list[Any], places: list[int], moved: Any) -> None:
        """Send the variables that have moved to the other workers."""
        _, last = self._update_number()
        if last is None or bool(last):
            entries = [entry for entry in self._state.entries if not entry.rests]
            self.shards.send_variables([entry.variable for entry in entries])
