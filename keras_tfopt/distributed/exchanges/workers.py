"""Run the steps of an optimizer that several workers make together."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tfopt.distributed.exchanges.alike import compare, described, described_inside, take_first
from keras_tfopt.distributed.exchanges.clones import center_of
from keras_tfopt.distributed.exchanges.exchange import Exchange, current
from keras_tfopt.distributed.exchanges.hooks import WorkersHooks
from keras_tfopt.distributed.exchanges.presence import completed
from keras_tfopt.distributed.exchanges.replicas import ReplicaStates
from keras_tfopt.distributed.exchanges.row_means import mean_gradient
from keras_tfopt.engine import averages
from keras_tfopt.engine.arguments.hyperparameters import Known, Scalars, scalars_around
from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.foreign import apply_summed
from keras_tfopt.engine.keras_private import tracked, untracked
from keras_tfopt.engine.nesting import innermost
from keras_tfopt.engine.state.building import listed
from keras_tfopt.engine.state.state import Like, slots_type
from keras_tfopt.engine.step import gradients
from keras_tfopt.engine.step.divided import refuse_divided
from keras_tfopt.engine.step.gradients import Incoming
from keras_tfopt.engine.step.moving import OVER_ONE, current_value
from keras_tfopt.engine.step.results import check_result
from keras_tfopt.engine.wrapping import Decision, WrappingEngine, pipeline_of

STEPS = 2**14
"""After so many, numbers of steps that are compared begin again, to have exact sums as floats."""


class WorkersEngine(WorkersHooks, WrappingEngine):
    """Runs the hooks of `keras_tfopt.distributed.OverWorkers` between workers.

    The time of exchanges is counted in calls of this optimizer, since all workers make the same
    number of calls. The optimizer inside may leave out a step on a single worker.
    """

    is_engine = True

    def __init__(
        self, inner_optimizer: Any, exchange: Any = None, name: str | None = None, **base: Any
    ):
        super().__init__(inner_optimizer, name=name, **base)
        if exchange is not None and not isinstance(exchange, Exchange):
            raise TypeError(
                "Argument `exchange` must be None or a keras_tfopt.distributed.Exchange. Received: "
                f"{exchange!r}"
            )
        self._given_exchange = exchange
        self._exchange: Exchange | None = None
        self.center_optimizer = None
        if self.moves_center:
            self.center_optimizer = center_of(self.inner_optimizer, type(self).__name__)
        # Keras loads attributes in the order of their names. This one must come after optimizers.
        self.replica_states = ReplicaStates(self)

    def facts(self, like: Like) -> dict[str, Any]:
        return {**super().facts(like), "workers": self.workers()}

    # ---- State ----------------------------------------------------------------------------------

    @property
    def exchange(self) -> Exchange:
        """Return the exchange given to the constructor, or else the current one."""
        return self._exchange or self._given_exchange or current()

    def workers(self) -> int:
        """Return the number of workers that step together."""
        return self.exchange.size

    def agreed(self, condition: Any) -> Any:
        """Return whether a condition holds on all workers."""
        if self.exchange.size == 1:
            return condition
        missing = ops.reshape(ops.cast(ops.logical_not(condition), "float32"), (1,))
        (total,) = self.exchange.all_reduce_sum([missing])
        return ops.equal(ops.reshape(total, ()), 0)

    @property
    def variables(self) -> list[Any]:
        """The wrapper's own state, the inner optimizer's, then that of the center's optimizer."""
        center = [] if self.center_optimizer is None else self.center_optimizer.variables
        return super().variables + center

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set the state, own and inner, from arrays in the order of `variables`."""
        if self.center_optimizer is not None:
            inside = len(super().variables)
            self.center_optimizer.set_weights(weights[inside:])
            weights = weights[:inside]
        super().set_weights(weights)

    @untracked
    def build(self, variables: Sequence[Any]) -> None:
        """Give all workers the weights of worker 0, then create the state.

        Raises:
            ValueError: if the workers have different models, optimizers or numbers of variables.
        """
        variables = listed("variables", variables)
        if not variables:
            return
        if not self.built:
            self._exchange = self.exchange
            for part in averages.parts(self.inner_optimizer):
                self._exchange.prepare(part)
            self._start_alike(variables)
            self._exchange.expect_steps()
            _warn_of_loss_scale(self)
        super().build(variables)
        if self.center_optimizer is not None and not self.center_optimizer.built:
            with backend.build_scope(self, variables), tracked(), keras.name_scope("center"):
                self.center_optimizer.build(variables)
        self.replica_states.restore()

    def load_own_variables(self, store: Any) -> None:
        """Load the state; the next exchange finds out whether all workers are at this step."""
        super().load_own_variables(store)
        self.exchange.expect_steps()

    @untracked
    def extend(self, variables: Sequence[Any]) -> None:
        """Create the state for further variables; the optimizer inside has theirs already."""
        self._start_alike(list(variables))
        super().extend(variables)
        if self.center_optimizer is not None:
            self.center_optimizer.extend(variables)

    def _start_alike(self, variables: list[Any]) -> None:
        exchange = self.exchange
        if exchange.size > 1 and not self.divides_tables:
            refuse_divided(self, variables)
        if exchange.size == 1 or exchange.one_process:
            return
        resumes = self._waiting is not None
        # Elsewhere each worker may move its own variables in its own way.
        steps_alike = self.averages_gradients or self.moves_center or self.divides_tables
        mine = {
            "optimizer": type(self).__name__,
            "arguments": {**self.own_config(), "accumulation": self.gradient_accumulation_steps},
            "inside": described_inside(self.inner_optimizer) if steps_alike else {},
            "variables": described(variables, type(self).__name__),
            "resumes": resumes,
        }
        compare(exchange, mine)
        if resumes:
            return  # each worker continues from its own saved state
        with backend.build_scope(self, variables):
            take_first(exchange, variables)

    def exchanges(self) -> Any:
        """Return the number of exchanges so far, as a tensor."""
        return backend.read(self._iterations) // self._calls_between()

    def _micro_steps(self) -> int:
        """Return the number of calls in one update."""
        return self.gradient_accumulation_steps or 1

    def _calls_between(self) -> int:
        """Return the number of calls between two exchanges."""
        return self._micro_steps() * (self.updates_between() or 1)

    # ---- A step ---------------------------------------------------------------------------------

    def own_gradients(self, grads: list[Any], outermost: bool) -> list[Any] | None:
        """Return the gradients of this replica if replicas are the workers.

        Raises:
            ValueError: if an optimizer around this one has summed the gradients over the replicas.
        """
        own = self.exchange.own_gradients(grads)
        if own is not None and not outermost and backend.replicas() > 1:
            raise ValueError(
                f"{type(self).__name__} must be the outermost optimizer where workers are replicas "
                "of a strategy: what is around it has summed the gradients of all of them"
            )
        return own

    def completed(self, incoming: Incoming) -> Incoming:
        """Return gradients of the same variables on all workers, which are about to add them up."""
        exchange = self.exchange
        adds = (self.averages_gradients or self.shards is not None) and exchange.size > 1
        if not (adds and exchange.may_miss_gradients):
            return incoming

        def step() -> int:
            return int(backend.number(self._iterations)) % STEPS

        return completed(self._state.entries, incoming, exchange, step)

    def meets_workers(self) -> bool:
        """Return whether the workers exchange something after the step."""
        return self.moves_center or self.updates_between() is not None

    def _update_number(self) -> tuple[Any, Any]:
        """Return the number of the update that this call belongs to, and whether the call ends it.

        The first update is number 1. The second value is None if every call ends an update.
        """
        calls = backend.read(self._iterations) + 1
        micro_steps = self.gradient_accumulation_steps
        if not micro_steps:
            return calls, None
        return (calls - 1) // micro_steps + 1, ops.equal(calls % micro_steps, 0)

    def decide(self, grads: list[Any], variables: list[Any]) -> Decision:
        self.check_workers(self.exchange.size)
        if not self.averages_gradients:
            return super().decide(grads, variables)
        number, _ = self._update_number()
        rank = ops.cast(ops.convert_to_tensor(self.exchange.rank_now()), number.dtype)
        known = {"step": number, "rank": rank, "workers": self.exchange.size}
        state = self.counters_now()
        taken = self.takes_part(state, Scalars(known, {}, False, OVER_ONE))
        weight = ops.cast(ops.convert_to_tensor(taken), "float32")
        if self.exchange.size == 1:
            present = weight
        else:
            rows = [
                gradients.is_named(g) or self.is_of_rows(self._get_variable_index(v))
                for g, v in zip(grads, variables, strict=True)
            ]
            masks = [backend.row_mask(g) for g, r in zip(grads, rows, strict=True) if r]
            dense = [gradients.dense(g) for g in grads]
            sent = [ops.where(taken, g, ops.zeros_like(g)) for g in dense]
            sent += [ops.cast(mask, "float32") * weight for mask in masks]
            *total, counted = self.exchange.all_reduce_sum(
                [*sent, ops.stack([weight, _step_of(self)])]
            )
            present, steps = ops.unstack(counted, 2)
            self.exchange.check_steps(_step_of(self), steps)
            counts = iter(total[len(dense) :])
            grads = [
                mean_gradient(g, next(counts) if r else None, present)
                for g, r in zip(total, rows, strict=False)
            ]
        accepted = present > 0 if self.leaves_out_steps() else None
        missing = ops.cast(ops.round(self.exchange.size - present), "int32")
        return grads, accepted, self.counts(state, missing)

    def meet(self, grads: list[Any], places: list[int], moved: Any) -> None:
        """Exchange after a call if an exchange is due.

        Args:
            grads: The gradients of the call.
            places: The places of their variables.
            moved: Whether the optimizer inside has made this step; None if it always does.
        """
        if self.moves_center:
            if moved is not None:
                whole = map(gradients.dense, grads)
                grads = [ops.where(moved, g, ops.zeros_like(g)) for g in whole]
            sums = [self._state.entries[place].slots["gradient_sum"] for place in places]
            backend.accumulate(sums, grads)
        period = self.updates_between()
        if period is None:
            return
        number, last = self._update_number()
        due = ops.equal(number % period, 0)
        due = due if last is None else ops.logical_and(due, last)
        entries = self._state.entries
        flat = [v for e in entries for v in (e.variable, *e.masters, *e.slots.values())]
        old = [backend.read(variable) for variable in flat]
        if self.exchange.size == 1:
            new = self._alone(due, old)
        else:
            known = self._scalars_of_exchange()
            new = self.exchange.cond(due, functools.partial(self._meet, known), old)
        writes = zip(flat, old, new, strict=True)
        backend.commit([(v, None, n) for v, o, n in writes if n is not o])
        if self.center_optimizer is not None and self.exchange.size > 1:
            backend.run_if(self, due, self._move_center)

    def _scalars_of_exchange(self) -> Known:
        more = {"senders": self.exchange.size, "gradients": self._calls_between()}
        places = list(range(len(self._state.entries)))
        done = backend.read(innermost(self)._iterations)
        known = scalars_around(self, done // self._micro_steps() + 1, places)
        return {key: {**one, **more} for key, one in known.items()}

    def _meet(self, known: Known, values: list[Any]) -> list[Any]:
        """Return values of variables and slots after an exchange, from those before."""
        each, sent = [], []
        for entry, (x, s) in zip(self._state.entries, self._apart(values), strict=True):
            t = Scalars(known[entry.scalars], entry.facts, False, OVER_ONE)
            each.append((x, s, t))
            sent.append(self.send(x, s, t))
        *totals, steps = self.exchange.all_reduce_sum([*sent, ops.reshape(_step_of(self), (1,))])
        self.exchange.check_steps(_step_of(self), ops.reshape(steps, ()))
        new, method = [], f"{type(self).__name__}.receive"
        for entry, total, (x, s, t) in zip(self._state.entries, totals, each, strict=True):
            x, changed = check_result(method, self.receive(total, x, s, t), x, s._asdict())
            new += [x] * (1 + len(entry.masters))
            new += {**s._asdict(), **changed}.values()
        new = [ops.cast(n, old.dtype) for n, old in zip(new, values, strict=True)]
        # Copy values that are assigned to another variable: they change when the first is written.
        read = {id(value) for value in values}
        return [
            ops.copy(n) if id(n) in read and n is not old else n
            for n, old in zip(new, values, strict=True)
        ]

    def _alone(self, due: Any, values: list[Any]) -> list[Any]:
        new: list[Any] = []
        for entry, (x, s) in zip(self._state.entries, self._apart(values), strict=True):
            changed = self.alone(x, s)
            new += [None] * (1 + len(entry.masters)) + [changed.get(name) for name in s._fields]
        return [
            old if n is None else ops.where(due, ops.cast(n, old.dtype), old)
            for n, old in zip(new, values, strict=True)
        ]

    def _apart(self, values: list[Any]) -> list[tuple[Any, Any]]:
        """Return `(x, s)` of each variable, from a flat list of values of variables and slots."""
        apart, start = [], 0
        for entry in self._state.entries:
            count = 1 + len(entry.masters) + len(entry.slots)
            x, *kept = values[start : start + count]
            master = kept.pop(0) if entry.masters else None
            s = slots_type(entry.slots)(*kept)
            apart.append((current_value(x, master, entry.like.dtype), s))
            start += count
        return apart

    def _move_center(self) -> None:
        """Step the center by the mean gradient, which is in `gradient_sum`."""
        entries, mover = self._state.entries, pipeline_of(self.center_optimizer).mover
        inner, outer = innermost(self), mover.optimizer
        # Meanwhile the variables hold the center, and copies in full precision hold it exactly.
        exact = []
        for place, e in enumerate(entries):
            copy = mover.master_of(place)
            exact.append(e.variable if copy is None else copy)
        # The center uses the learning rate of the last update.
        done = backend.read(inner._iterations) // self._micro_steps()
        writes = [(outer._iterations, None, done - 1)]
        if isinstance(inner._learning_rate, keras.Variable):
            writes.append((outer._learning_rate, None, backend.read(inner._learning_rate)))
        for e, copy in zip(entries, exact, strict=True):
            center = backend.read(e.slots["center"])
            held = [e.variable] if copy is e.variable else [e.variable, copy]
            writes += [(v, None, ops.cast(center, v.dtype)) for v in held]
        backend.commit(writes)
        sums = [e.slots["gradient_sum"] for e in entries]
        grads = [backend.read(total) for total in sums]
        apply_summed(self.center_optimizer, grads, self._trainable_variables)
        writes = [(total, None, ops.zeros_like(g)) for total, g in zip(sums, grads, strict=True)]
        for e, copy in zip(entries, exact, strict=True):
            x = backend.read(copy)
            writes += [(v, None, ops.cast(x, v.dtype)) for v in (e.slots["center"], *e.masters)]
        backend.commit(writes)


def _warn_of_loss_scale(optimizer: WorkersEngine) -> None:
    policy, exchange = keras.config.dtype_policy(), optimizer.exchange
    if exchange.size == 1 or optimizer.workers_agree or policy.compute_dtype != "float16":
        return
    remedy = f"with keras_tfopt.LossScaleOptimizer({type(optimizer).__name__}(...))"
    if not exchange.takes_loss_scale:
        remedy = "under mixed_bfloat16, which needs none"
    warnings.warn(
        f"Under {policy.name}, `compile` gives each worker a loss scale of its own. When one "
        "leaves out a step, the others wait for it, without end, or weights become NaN. Compile "
        f"{remedy}, or with auto_scale_loss=False.",
        stacklevel=3,
    )


def _step_of(optimizer: WorkersEngine) -> Any:
    """Return the number of calls so far, as a float whose sums over workers are exact."""
    return ops.cast(backend.read(optimizer._iterations) % STEPS, "float32")


def restore_replicas(model: keras.Model) -> None:
    """Give the workers of this process their own values again after the whole model is loaded."""
    for part in averages.parts(model.optimizer) if model.optimizer else ():
        if isinstance(part, WorkersEngine):
            part.replica_states.restore_again()
