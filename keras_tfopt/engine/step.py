"""A step of an optimizer, from gradients to new variables: `Pipeline.run` reads top to bottom."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
from keras import ops

from keras_tfopt.engine import gradients, hooks
from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.building import check_distinct, check_pairs, pair, tuples_of
from keras_tfopt.engine.gradients import Incoming
from keras_tfopt.engine.hyperparameters import Known, scalars_around
from keras_tfopt.engine.joining import Joining, can_join, has_hooks
from keras_tfopt.engine.options import changes, current
from keras_tfopt.engine.rows import RowGradient
from keras_tfopt.engine.settings import in_plain


class Pipeline:
    """The stages of an optimizer: wrappers, outermost first, and what moves the variables.

    Args:
        wrappers: Optimizers with hooks; see `WrappingEngine` for what is called here.
        mover: What makes the step: the `Mover` of a rule, or a `ForeignMover`.
    """

    def __init__(self, wrappers: Sequence[Any], mover: Any):
        self.wrappers, self.mover = tuple(wrappers), mover

    @backend.without_gradients
    def run(self, owner: Any, grads: Any, variables: Any, summed: bool = False) -> None:
        """Make the step of the optimizer `owner`, which is the outermost.

        With `summed`, gradients are summed over the replicas already.
        """
        wrappers, mover, core = self.wrappers, self.mover, self.mover.optimizer
        if variables is None and owner.built:
            variables = owner._trainable_variables
        known = owner.built and isinstance(grads, (list, tuple)) and are_all(owner, variables)
        if not known or len(grads) != len(variables):
            grads, variables = pair(owner, grads, variables)
        grads, variables = list(grads), list(variables)
        if not grads:
            return
        with keras.name_scope(owner.name):
            # Check all before anything changes.
            for wrapper in wrappers:
                if "raise_late_errors" in wrapper.defines:
                    wrapper.raise_late_errors()
            grads, variables = owner._filter_empty_gradients(grads, variables)
            # The way of Keras to look places up costs as much as the update of small variables.
            places = list(range(len(variables)))
            if not are_all(owner, variables):
                places = [owner._get_variable_index(variable) for variable in variables]
                if wrappers or mover.takes_all:
                    check_distinct(owner, variables)
            entries = owner._state.entries
            grads = [
                g
                if backend.is_ready(g, v, entries[place].like)
                else gradients.check(g, v, entries[place].like)
                for g, v, place in zip(grads, variables, places, strict=True)
            ]
            rows = [n for n, g in enumerate(grads) if isinstance(g, RowGradient)]
            refused = mover.refused_rows() if rows else None
            if mover.needs_finite and not any(w.leaves_out_steps() for w in wrappers):
                mover.refuse_unless_finite(grads, variables)

            # What Keras overwrites with its gradient takes no step, nor does what is frozen.
            overwritten: list[list[Any]] = []
            if owner._state.has_resting:
                over = [n for n, place in enumerate(places) if entries[place].overwritten]
                moving = [n for n, place in enumerate(places) if not entries[place].rests]
                overwritten = only(over, grads, variables)
                grads, variables, places = only(moving, grads, variables, places)

            # Sum over replicas, then rows that repeat; ask wrappers whether to go on.
            if backend.has_replicas:
                grads = self._over_replicas(grads, summed)
            if rows:
                grads = [gradients.sum_repeated(g, refused) for g in grads]
            reached, writes = [None], []
            for wrapper in wrappers:
                goes_on, counts = None, {}
                if not wrapper.defines.isdisjoint(("decide", "accept_step")):
                    grads, goes_on, counts = wrapper.decide(grads, variables)
                writes += _counted(wrapper, counts, reached[-1]) if counts else []
                reached.append(reached[-1] if goes_on is None else both(reached[-1], goes_on))

            # Where workers share the state out, each goes on with its own variables.
            shards = owner.shards
            if shards is not None:
                own = [n for n, variable in enumerate(variables) if shards.is_here(variable)]
                grads, variables, places = only(own, grads, variables, places)

            micro_steps, last = core.gradient_accumulation_steps, None
            unnamed = [None] * len(grads)
            here = Incoming(grads, variables, places, unnamed)
            scalars: list[Known] = []
            before: list[Any] = []
            meeting: list[int] = []
            inside = 0
            if wrappers or micro_steps:
                done = ops.convert_to_tensor(core._iterations)
                number = done // (micro_steps or 1) + 1
                last = ops.equal((done + 1) % micro_steps, 0) if micro_steps else None
            if wrappers:
                scalars = [scalars_around(wrapper, number, places) for wrapper in wrappers]
                several = [n for n, wrapper in enumerate(wrappers) if "meet" in wrapper.defines]
                meeting = [n for n in several if wrappers[n].meets_workers()]
                inside = 1 + max(meeting, default=-1)
                outer = wrappers[: max(inside - 1, 0)]
                before = [hooks.values_of(w, here) if w.needs_old else None for w in outer]

            def micro_step() -> None:
                if any(overwritten):
                    mover.overwrite(*overwritten)
                factor = core.loss_scale_factor
                unscaled = grads if factor is None else [g / factor for g in grads]
                if not unscaled and shards is None:
                    pass
                elif last is None:
                    self._update(Incoming(unscaled, variables, places, unnamed), scalars, inside)
                else:
                    mover.accumulate(unscaled, places)
                    backend.run_if(owner, last, lambda: last_step(unscaled))
                mover.count(last)

            def last_step(unscaled: list[Any]) -> None:
                # A variable that is listed twice has one sum.
                owners = dict(zip(places, variables, strict=True))
                means, named = mover.means(unscaled, places)
                incoming = Incoming(means, list(owners.values()), list(owners), named)
                self._update(incoming, scalars, inside)
                mover.forget()

            if reached[-1] is None:
                micro_step()
            else:
                backend.run_if(owner, reached[-1], micro_step)
            # What workers exchange, they exchange alike, moved or not; what is around, later.
            for stage in reversed(range(inside)):
                wrapper, moved = wrappers[stage], both(reached[-1], last)
                if stage in meeting:
                    meet = functools.partial(wrapper.meet, grads, places, reached[-1])
                    run_if(owner, reached[stage], meet)
                else:
                    inputs = here, scalars[stage], before[stage]
                    run_if(owner, moved, functools.partial(wrapper.run_after, *inputs))
            for wrapper, condition in zip(wrappers, reached, strict=False):
                wrapper._iterations.assign_add(as_count(condition))
            if writes:
                backend.commit(writes)
            backend.keep_layouts(owner, variables)

    def joining(self) -> Joining | None:
        """Return the hooks as a part of the rule; None where they run apart."""
        if not backend.joins_hooks or in_plain.get():
            return None
        wrappers, mover = self.wrappers, self.mover
        if not mover.only_moves(any(has_hooks(w) and w.needs_gradient for w in wrappers)):
            return None
        cache, key = mover.optimizer._statics, ("joining", tuple(map(id, wrappers)))
        if key not in cache:
            cache[key] = Joining(wrappers, mover) if can_join(wrappers) else None
        return cache[key]

    def _over_replicas(self, grads: list[Any], summed: bool) -> list[Any]:
        """Return the sums over the replicas, or what a wrapper takes of this one instead."""
        for stage, wrapper in enumerate(self.wrappers):
            if "own_gradients" in wrapper.defines:
                own = wrapper.own_gradients(grads, outermost=stage == 0 and not summed)
                if own is not None:
                    return own
        return grads if summed else backend.reduce_replicas(grads)

    def _update(self, incoming: Incoming, known: list[Known], inside: int) -> None:
        """Move the variables by the gradients of a whole step, with the hooks around.

        Args:
            incoming: The gradients and their variables.
            known: The scalars of each wrapper.
            inside: The first wrapper of which what comes after the step belongs here.
        """
        joined = None
        joining = self.joining() if self.wrappers and not inside else None
        if joining is not None:
            incoming, joined = joining.split(incoming, known)
            if not incoming.grads:
                self.mover.move(incoming, joined)
                return
        put_back, seen = [], []
        for wrapper, scalars in zip(self.wrappers, known, strict=True):
            if not wrapper.defines.isdisjoint(("before", "before_step")):
                incoming = incoming._replace(grads=wrapper.run_before(incoming, scalars))
            accepts = "accept" in wrapper.defines
            put_back.append(wrapper.kept_unless_accepted(incoming, scalars) if accepts else [])
            seen.append(incoming)
        each = zip(self.wrappers, seen, strict=True)
        before = [hooks.values_of(w, one) if w.needs_old else None for w, one in each]
        self.mover.move(incoming, joined)
        for stage in reversed(range(len(self.wrappers))):
            for variable, accepted, old in put_back[stage]:
                value = ops.where(accepted, backend.read(variable), old)
                backend.commit([(variable, None, value)])
            if stage >= inside - 1:
                self.wrappers[stage].run_after(seen[stage], known[stage], before[stage])


class Stepping:
    """The verbs of an optimizer with a `_pipeline`, and what arguments are in a step."""

    _pipeline: Pipeline
    _iterations: Any

    @backend.outside_compiler
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Update the variables by their gradients.

        Args:
            grads: A gradient for each variable: a tensor or array of the variable's shape, a
                `RowGradient`, a `tf.IndexedSlices`, a sparse COO tensor of torch, or None.
            trainable_variables: The variables. Needed unless the optimizer is built, and then a
                subset of what it was built for; None takes all of them in their order.

        Raises:
            ValueError: on wrong shapes, unknown variables, row indices out of range, or when there
                is no gradient at all. In eager steps nothing has been changed then.
        """
        self._pipeline.run(self, grads, trainable_variables)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        """Apply pairs of a gradient and a variable; return the number of steps done."""
        grads, variables = zip(*check_pairs(tuples_of(grads_and_vars)), strict=True)
        self.apply(grads, variables)
        return self._iterations

    def now(self, value: Any) -> Any:
        """Return what a hyperparameter (number, schedule, variable or callable) is in this step."""
        if isinstance(value, float) or not changes(value):
            return value
        return current(value, backend.read(self._pipeline.mover.optimizer._iterations))


def are_all(optimizer: Any, variables: Any) -> bool:
    """Return whether this is the list of variables that an optimizer was built for."""
    known = optimizer._trainable_variables
    return (
        isinstance(variables, (list, tuple))
        and len(variables) == len(known)
        and all(map(operator.is_, variables, known))
    )


def only(places: Sequence[int], *lists: list[Any]) -> list[list[Any]]:
    """Return of each list the members at these places."""
    return [[members[place] for place in places] for members in lists]


def both(first: Any, second: Any) -> Any:
    """Return whether both hold, where None always does."""
    if first is None or second is None:
        return second if first is None else first
    return ops.logical_and(first, second)


def run_if(owner: Any, condition: Any, function: Callable[[], None]) -> None:
    """Call a function where a condition holds; None always does."""
    if condition is None:
        function()
    else:
        backend.run_if(owner, condition, function)


def as_count(condition: Any) -> Any:
    """Return 1 where a condition holds, else 0."""
    return 1 if condition is None else ops.cast(condition, "int32")


def _counted(wrapper: Any, counts: dict[str, Any], reached: Any) -> list[tuple[Any, Any, Any]]:
    """Return the writes of new counters, which stay where the wrapper is not reached."""
    writes = []
    for name, value in counts.items():
        counter = wrapper._state.shared[name]
        value = ops.cast(value, counter.dtype)
        if reached is not None:
            value = ops.where(reached, value, backend.read(counter))
        writes.append((counter, None, value))
    return writes
