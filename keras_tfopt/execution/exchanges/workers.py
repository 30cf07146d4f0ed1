"""Steps of an optimizer that several workers take together."""

from __future__ import annotations

import collections
import functools
import json
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops
from keras.src.utils import tracking

from keras_tfopt.execution import averages, gradients
from keras_tfopt.execution.binding import Scalars
from keras_tfopt.execution.building import describe, listed, path_of
from keras_tfopt.execution.exchanges.exchange import Exchange, current
from keras_tfopt.execution.exchanges.replicas import ReplicaStates
from keras_tfopt.execution.scopes import tracked
from keras_tfopt.execution.select import backend
from keras_tfopt.execution.state import Like
from keras_tfopt.execution.versions import is_multi_optimizer
from keras_tfopt.execution.wrapping import Step, WrappingEngine, apply_summed, innermost, is_of_rows


class WorkersEngine(WrappingEngine):
    """Runs the hooks of `keras_tfopt.distributed.OverWorkers` between workers.

    Exchanges are counted in calls of this optimizer, which all workers make alike, and never in
    steps of the one inside, which may leave out some on one worker alone.
    """

    # Names of slots that are the same on all workers.
    shared: tuple[str, ...] = ()
    # Whether the slot `gradient_sum` adds up gradients, which then move the slot `center`.
    moves_center = False
    # Whether gradients are averaged before the step, instead of something after it.
    averages_gradients = False
    # What events the original was made of; see `keras_tfopt.distributed.InProcess`.
    events = "together"

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
        # Keras loads attributes in the order of their names: this one after the optimizers inside.
        self.replica_states = ReplicaStates(self)

    # ---- Hooks ----------------------------------------------------------------------------------

    def updates_between(self) -> int | None:
        """Updates from one exchange to the next; None: there is none after updates."""
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
        """Raises an error if the arguments do not fit the number of workers."""

    def facts(self, like: Like) -> dict[str, Any]:
        return {**super().facts(like), "workers": self.workers()}

    # ---- State ----------------------------------------------------------------------------------

    @property
    def exchange(self) -> Exchange:
        """The connection to the other workers: that of the constructor, or what is connected."""
        return self._exchange or self._given_exchange or current()

    def workers(self) -> int:
        """How many workers step together."""
        return self.exchange.size

    @property
    def variables(self) -> list[Any]:
        """The wrapper's own state, the inner optimizer's, then that of the center's optimizer."""
        center = [] if self.center_optimizer is None else self.center_optimizer.variables
        return super().variables + center

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets the state, own and inner, from arrays in the order of `variables`."""
        if self.center_optimizer is not None:
            inside = len(super().variables)
            self.center_optimizer.set_weights(weights[inside:])
            weights = weights[:inside]
        super().set_weights(weights)

    @tracking.no_automatic_dependency_tracking
    def build(self, variables: Sequence[Any]) -> None:
        """Gives all workers the weights of the first, then creates the state.

        Raises:
            ValueError: if the workers have different models, optimizers or numbers of variables.
        """
        variables = listed("variables", variables)
        if not self.built:
            self._exchange = self.exchange
            for part in averages.parts(self.inner_optimizer):
                self._exchange.prepare(part)
            self._start_alike(variables)
        super().build(variables)
        if self.center_optimizer is not None and not self.center_optimizer.built:
            with backend.build_scope(self, variables), tracked():
                self.center_optimizer.build(variables)
        self.replica_states.restore()

    @tracking.no_automatic_dependency_tracking
    def extend(self, variables: Sequence[Any]) -> None:
        """Creates the state for further variables, which the optimizer inside knows already."""
        self._start_alike(list(variables))
        super().extend(variables)
        if self.center_optimizer is not None:
            self.center_optimizer.extend(variables)

    def _start_alike(self, variables: list[Any]) -> None:
        exchange = self.exchange
        if exchange.size == 1 or exchange.one_process:
            return
        likes = [describe(variable, type(self).__name__) for variable in variables]
        resumes = self._waiting is not None
        mine = {
            "optimizer": type(self).__name__,
            "arguments": {**self.own_config(), "accumulation": self.gradient_accumulation_steps},
            "variables": [
                [path_of(v).rsplit("/", 1)[-1], list(like.shape), str(v.dtype)]
                for v, like in zip(variables, likes, strict=True)
            ],
            "resumes": resumes,
        }
        texts = exchange.gather(json.dumps(mine, default=repr))
        for rank, text in enumerate(texts):
            check_same(json.loads(text), json.loads(texts[0]), rank)
        if resumes:
            return  # each worker goes on from where it was
        with backend.build_scope(self, variables):
            arrays = exchange.broadcast([_array(variable) for variable in variables])
            # Worker 0, too: processes of one JAX program have to do the same.
            for variable, array in zip(variables, arrays, strict=True):
                variable.assign(ops.cast(ops.convert_to_tensor(array), variable.dtype))

    def exchanges(self) -> Any:
        """How often the workers have exchanged something, as a tensor."""
        calls = (self.gradient_accumulation_steps or 1) * (self.updates_between() or 1)
        return backend.read(self._iterations) // calls

    # ---- A step ---------------------------------------------------------------------------------

    def _apply(
        self, grads: Any, trainable_variables: Any, summed: bool = False, step: Step | None = None
    ) -> None:
        if summed and backend.replicas() > 1 and self.exchange.own_gradients([]) is not None:
            raise ValueError(
                f"{type(self).__name__} must be the outermost optimizer where workers are replicas "
                "of a strategy: what is around it has summed the gradients of all of them"
            )
        super()._apply(grads, trainable_variables, summed, step)

    def _over_replicas(self, grads: list[Any]) -> list[Any]:
        own = self.exchange.own_gradients(grads)
        return super()._over_replicas(grads) if own is None else own

    def _update_number(self) -> tuple[Any, Any]:
        """The number of the update that this call is part of, 1 at first, and whether it ends it.

        The latter is None where every call does.
        """
        calls = backend.read(self._iterations) + 1
        micro_steps = self.gradient_accumulation_steps
        if not micro_steps:
            return calls, None
        return (calls - 1) // micro_steps + 1, ops.equal(calls % micro_steps, 0)

    def _decide(
        self, grads: list[Any], variables: list[Any]
    ) -> tuple[list[Any], Any, dict[str, Any]]:
        self.check_workers(self.exchange.size)
        if not self.averages_gradients:
            return super()._decide(grads, variables)
        number, _ = self._update_number()
        rank = ops.cast(ops.convert_to_tensor(self.exchange.rank_now()), number.dtype)
        known = {"step": number, "rank": rank, "workers": self.exchange.size}
        state = self._state()
        taken = self.takes_part(state, Scalars(known, {}, False, backend.norm))
        weight = ops.cast(ops.convert_to_tensor(taken), "float32")
        if self.exchange.size == 1:
            present = weight
        else:
            rows = [
                (_is_rows(g) and g.named) or is_of_rows(self, self._get_variable_index(v))
                for g, v in zip(grads, variables, strict=True)
            ]
            masks = [backend.row_mask(g) for g, r in zip(grads, rows, strict=True) if r]
            dense = [backend.to_dense(g) if _is_rows(g) else g for g in grads]
            sent = [ops.where(taken, g, ops.zeros_like(g)) for g in dense]
            sent += [ops.cast(mask, "float32") * weight for mask in masks]
            *total, present = self.exchange.all_reduce_sum([*sent, ops.reshape(weight, (1,))])
            present = ops.reshape(present, ())
            counts = iter(total[len(dense) :])
            grads = [
                mean_gradient(g, next(counts) if r else None, present)
                for g, r in zip(total, rows, strict=False)
            ]
        accepted = present > 0 if self.leaves_out_steps() else None
        missing = ops.cast(ops.round(self.exchange.size - present), "int32")
        return grads, accepted, self.counts(state, missing)

    def _finish(self, grads: list[Any], variables: list[Any], moved: Any) -> None:
        super()._finish(grads, variables, moved)
        if self.moves_center:
            for gradient, variable in zip(grads, variables, strict=True):
                slots = self._slot_variables[self._get_variable_index(variable)]
                if moved is not None:
                    gradient = backend.to_dense(gradient) if _is_rows(gradient) else gradient
                    gradient = ops.where(moved, gradient, ops.zeros_like(gradient))
                backend.accumulate(self, slots["gradient_sum"], gradient)
        period = self.updates_between()
        if period is None:
            return
        variables = self._trainable_variables
        number, last = self._update_number()
        due = ops.equal(number % period, 0)
        due = due if last is None else ops.logical_and(due, last)
        owned = [[v, *s.values()] for v, s in zip(variables, self._slot_variables, strict=True)]
        flat = [variable for each in owned for variable in each]
        old = [backend.read(variable) for variable in flat]
        if self.exchange.size == 1:
            new = self._alone(due, old)
        else:
            known = self._scalars_of_exchange()
            new = self.exchange.cond(due, functools.partial(self._meet, known), old)
        writes = zip(flat, old, new, strict=True)
        backend.commit(self, [(v, None, n) for v, o, n in writes if n is not o])
        if self.center_optimizer is not None and self.exchange.size > 1:
            backend.run_if(self, due, self._move_center)

    def _scalars_of_exchange(self) -> dict[str, dict[str, Any]]:
        indices = list(range(len(self._likes)))
        size = self.exchange.size
        more = {"senders": size, "gradients": self._gradients_in_sum()}
        return {dtype: {**one, **more} for dtype, one in self._scalars(indices).items()}

    def _gradients_in_sum(self) -> int:
        return (self.updates_between() or 1) * (self.gradient_accumulation_steps or 1)

    def _meet(self, known: dict[str, dict[str, Any]], values: list[Any]) -> list[Any]:
        """From values of variables and slots to those after an exchange."""
        each, sent = [], []
        for index, (x, s) in enumerate(self._apart(values)):
            t = Scalars(known[self._likes[index].dtype], self._facts[index], False, backend.norm)
            each.append((x, s, t))
            sent.append(self.send(x, s, t))
        totals = self.exchange.all_reduce_sum(sent)
        new = []
        for total, (x, s, t) in zip(totals, each, strict=True):
            x, changed = self.receive(total, x, s, t)
            new += [x, *{**s._asdict(), **changed}.values()]
        new = [ops.cast(n, old.dtype) for n, old in zip(new, values, strict=True)]
        # What moves from one variable to another must not change when the first one is written.
        read = {id(value) for value in values}
        return [
            ops.copy(n) if id(n) in read and n is not old else n
            for n, old in zip(new, values, strict=True)
        ]

    def _alone(self, due: Any, values: list[Any]) -> list[Any]:
        new: list[Any] = []
        for x, s in self._apart(values):
            changed = self.alone(x, s)
            new.append(None)
            new += [
                ops.where(due, ops.cast(changed[name], old.dtype), old) if name in changed else old
                for name, old in s._asdict().items()
            ]
        return [old if n is None else n for n, old in zip(new, values, strict=True)]

    def _apart(self, values: list[Any]) -> list[tuple[Any, Any]]:
        """`(x, s)` of each variable, from the values of variables and slots one after another."""
        apart, start = [], 0
        for like, slots in zip(self._likes, self._slot_variables, strict=True):
            x, *kept = values[start : start + 1 + len(slots)]
            s = collections.namedtuple("Slots", slots)(*kept)  # type: ignore[misc]
            apart.append((ops.cast(x, like.dtype), s))
            start += 1 + len(slots)
        return apart

    def _move_center(self) -> None:
        """A step of the center, by the mean that the exchange has put into `gradient_sum`."""
        variables, slots = self._trainable_variables, self._slot_variables
        inner, outer = innermost(self), innermost(self.center_optimizer)
        # The rate of the center is that of the update which has just been made.
        done = backend.read(inner._iterations) // (self.gradient_accumulation_steps or 1)
        writes = [(outer._iterations, None, done - 1)]
        if isinstance(inner._learning_rate, keras.Variable):
            writes.append((outer._learning_rate, None, backend.read(inner._learning_rate)))
        writes += [
            (v, None, ops.cast(backend.read(s["center"]), v.dtype))
            for v, s in zip(variables, slots, strict=True)
        ]
        backend.commit(self, writes)
        grads = [backend.read(s["gradient_sum"]) for s in slots]
        apply_summed(self.center_optimizer, grads, variables)
        moved = [(s["center"], backend.read(v)) for v, s in zip(variables, slots, strict=True)]
        backend.commit(self, [(c, None, ops.cast(x, c.dtype)) for c, x in moved])
        empty = [(s["gradient_sum"], ops.zeros_like(g)) for s, g in zip(slots, grads, strict=True)]
        backend.commit(self, [(total, None, zero) for total, zero in empty])


def center_of(inner: Any, owner: str) -> Any:
    """Another optimizer of the same arguments, which steps with gradients as they come."""
    core = innermost(inner)
    if is_multi_optimizer(core):
        raise ValueError(
            f"{owner} needs one optimizer for all variables: put the MultiOptimizer outside, and "
            f"an {owner} around each of its optimizers. Received: {inner!r}"
        )
    center = clone(inner)
    core = innermost(center)
    core.gradient_accumulation_steps, core.use_ema = None, False
    return center


def clone(optimizer: Any) -> Any:
    """Another optimizer of the same arguments, not built."""
    core = innermost(optimizer)
    rate = core._learning_rate
    if isinstance(rate, keras.Variable):
        return type(optimizer).from_config(optimizer.get_config())
    # A schedule or function need not be one that can be saved: another stands in for it.
    core._learning_rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 1.0)
    try:
        made = type(optimizer).from_config(optimizer.get_config())
    finally:
        core._learning_rate = rate
    innermost(made)._learning_rate = rate
    return made


def check_same(one: dict[str, Any], first: dict[str, Any], rank: int) -> None:
    """Raises an error where a worker has not what the first one has."""
    for what in ("optimizer", "arguments"):
        if one[what] != first[what]:
            raise ValueError(
                f"All workers must have the same optimizer. Received: {one[what]} on worker "
                f"{rank}, {first[what]} on worker 0"
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


def restore_replicas(model: keras.Model) -> None:
    """Gives the workers of this process their own values again, once a model is loaded whole."""
    for part in averages.parts(model.optimizer) if model.optimizer else ():
        if isinstance(part, WorkersEngine):
            part.replica_states.restore_again()


def agreed(optimizer: Any, finite: Any) -> Any:
    """Whether something holds on all workers, if there are several that step together."""
    for part in averages.parts(optimizer):
        if isinstance(part, WorkersEngine) and part.exchange.size > 1:
            missing = ops.reshape(ops.cast(ops.logical_not(finite), "float32"), (1,))
            (total,) = part.exchange.all_reduce_sum([missing])
            return ops.equal(ops.reshape(total, ()), 0)
    return finite


def mean_gradient(total: Any, row_count: Any, count: Any) -> Any:
    """The mean of gradients that have been added up.

    Args:
        total: Their sum.
        row_count: None; or, of row gradients, how many there are of each row, shaped to broadcast
            over the sum. Each row is divided by that, and only those that anybody sent are touched.
        count: How many gradients there are; none makes a mean of zero.
    """
    if row_count is None:
        return total / _at_least_one(count, total)
    values, indices = backend.rows_at(total / _at_least_one(row_count, total), row_count > 0)
    return gradients.Touched(values, indices, tuple(total.shape), named=True, distinct=True)


def rows_in(gradient: Any) -> Any:
    """How often each row is in a row gradient, shaped to broadcast over the variable: 1 or 0."""
    rows = gradients.sum_repeated(
        gradients.Touched(gradient.values, gradient.indices, gradient.shape, named=True), None
    )
    return ops.cast(backend.row_mask(rows), "float32")


def _at_least_one(count: Any, like: Any) -> Any:
    return ops.cast(ops.where(count > 0, count, ops.ones_like(count)), like.dtype)


def _is_rows(gradient: Any) -> bool:
    return isinstance(gradient, gradients.Touched)


def _array(variable: Any) -> np.ndarray:
    dtype = keras.backend.standardize_dtype(variable.dtype)
    exact = "float64" if dtype == "float64" else "float32"
    return np.array(ops.convert_to_numpy(ops.cast(variable.value, exact)))
