"""Make a step of an optimizer, from gradients to new variables: read `Pipeline.run` first."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_tfopt.engine.arguments.hyperparameters import Known, scalars_around
from keras_tfopt.engine.arguments.options import changes, current
from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.rows import RowGradient
from keras_tfopt.engine.settings import in_plain
from keras_tfopt.engine.state.building import check_pairs, pair, takes_all_variables, tuples_of
from keras_tfopt.engine.step import gradients, hooks
from keras_tfopt.engine.step.gradients import NOTHING, Incoming
from keras_tfopt.engine.step.joining import Joining, can_join, has_hooks
from keras_tfopt.engine.step.stateless import stateless_apply


class Around(NamedTuple):
    """What the hooks of all wrappers know in one call."""

    done: Any
    """The count of micro-steps before this one, if a wrapper has a hook that comes after it."""
    scalars: list[Known]
    """The scalars of each wrapper."""
    meeting: list[int]
    """The numbers of the wrappers that exchange something with other workers after the step."""
    old: dict[int, list[Any]]
    """For each wrapper around those whose hooks need them: the old values of variables."""


class Reached(NamedTuple):
    """The conditions under which a step reaches wrappers and what is inside; None: always."""

    wrappers: Sequence[Any]
    inside: Any


ALWAYS = Reached((), None)


class Pipeline:
    """The stages of an optimizer: wrappers, outermost first, and what moves the variables.

    Args:
        wrappers: Optimizers with hooks; see `WrappingEngine` for what is called here.
        mover: The object that moves the variables: the `Mover` of a rule, or a `ForeignMover`.
    """

    def __init__(self, wrappers: Sequence[Any], mover: Any):
        self.wrappers, self.mover = tuple(wrappers), mover
        self.takes_each_once = bool(wrappers) or mover.takes_all
        # The numbers of wrappers whose hooks need old values, and of those that may meet others.
        each = list(enumerate(self.wrappers))
        self._need_old = [number for number, wrapper in each if wrapper.needs_old]
        self._needs_done = any("after_step" in wrapper.defines for wrapper in self.wrappers)
        self._completing = [wrapper for wrapper in self.wrappers if "completed" in wrapper.defines]
        self._may_meet = [number for number, wrapper in each if "meet" in wrapper.defines]

    @backend.as_step
    def run(self, owner: Any, grads: Any, variables: Any, summed: bool = False) -> None:
        """Make the step of the optimizer `owner`, which is the outermost.

        With `summed`, gradients are summed over the replicas already.
        """
        wrappers, mover, core = self.wrappers, self.mover, self.mover.optimizer
        incoming, overwritten = self._checked(owner, grads, variables), NOTHING
        if not incoming.grads:
            return
        with keras.name_scope(owner.name):
            if owner._state.has_resting:
                incoming, overwritten = without_resting(owner, incoming)

            # Sum over the replicas, then rows that are named more than once.
            grads, apart = incoming.grads, False
            if backend.has_replicas:
                grads, apart = self._over_replicas(grads, summed)
            if RowGradient in map(type, grads):
                refused = mover.refused_rows()
                grads = [gradients.sum_repeated(g, refused) for g in grads]
            incoming = incoming._replace(grads=grads)

            reached, around = ALWAYS, None
            counters: list[tuple] = []
            if wrappers:
                for wrapper in self._completing:
                    incoming = wrapper.completed(incoming)
                incoming, reached, counters = self._decided(incoming)
            if owner.shards is not None:  # each worker continues with its own variables
                here = enumerate(map(owner.shards.is_here, incoming.variables))
                incoming = incoming.only([n for n, is_here in here if is_here])
            if wrappers:
                around = self._around(incoming)
            last = self._is_last() if core.gradient_accumulation_steps else None

            step = functools.partial(self._micro_step, owner, incoming, overwritten, around, last)
            if reached.inside is None:
                step()
            elif apart:
                moved = [*incoming.variables, *overwritten.variables]
                hooks.run_where(owner, reached.inside, moved, step)
            else:
                backend.run_if(owner, reached.inside, step)
            if around is not None and around.meeting:
                self._meet(owner, incoming, around, reached, last)
            for wrapper, condition in zip(wrappers, reached.wrappers, strict=True):
                wrapper._iterations.assign_add(as_count(condition))
            if counters:
                backend.commit(counters)
            backend.keep_layouts(owner, incoming.variables)

    # ---- Stages, in the order of a step ---------------------------------------------------------

    def _checked(self, owner: Any, grads: Any, variables: Any) -> Incoming:
        """Return gradients to compute with, of the variables that have one; or raise an error.

        Build the optimizer if it is not.
        """
        usual = takes_all_variables(owner, grads, variables)
        if usual:  # to be fast
            variables = owner._trainable_variables
        else:
            grads, variables = pair(owner, grads, variables, self.takes_each_once)
        if not grads:
            return NOTHING
        for wrapper in self.wrappers:
            if "raise_late_errors" in wrapper.defines:
                wrapper.raise_late_errors()
        count = len(variables)
        grads, variables = owner._filter_empty_gradients(grads, variables)
        # Keras's way to look up places takes as long as the update of small variables.
        places = list(range(len(variables)))
        if not usual or len(variables) < count:
            places = [owner._get_variable_index(variable) for variable in variables]
        entries = owner._state.entries
        casts = owner._state.has_half and self._casts_in_rule(owner)
        grads = [
            g
            if backend.is_ready(g, v, entries[place].like, casts)
            else gradients.check(g, v, entries[place].like, owner.names_rows, casts)
            for g, v, place in zip(grads, variables, places, strict=True)
        ]
        if RowGradient in map(type, grads):
            self.mover.raise_refused_rows()
        if self.mover.needs_finite and not any(w.leaves_out_steps() for w in self.wrappers):
            self.mover.refuse_unless_finite(grads, variables)
        return Incoming(grads, variables, places, [None] * len(grads))

    def _casts_in_rule(self, owner: Any) -> bool:
        """Return whether only sums and the rule see gradients; they cast half precision."""
        is_spread = owner.shards is not None or backend.has_replicas
        if is_spread or self.mover.optimizer.loss_scale_factor is not None:
            return False
        if any(wrapper.needs_gradient for wrapper in self.wrappers):
            return False
        return self.mover.only_moves(as_they_come=True)

    def _over_replicas(self, grads: list[Any], summed: bool) -> tuple[list[Any], bool]:
        """Return sums over replicas, or this replica's gradients if it is a worker; and which."""
        for stage, wrapper in enumerate(self.wrappers):
            if "own_gradients" in wrapper.defines:
                own = wrapper.own_gradients(grads, outermost=stage == 0 and not summed)
                if own is not None:
                    return own, True
        return (grads if summed else backend.reduce_replicas(grads)), False

    def _decided(self, incoming: Incoming) -> tuple[Incoming, Reached, list[tuple]]:
        """Ask the wrappers whether to go on.

        Returns:
            The gradients to continue with, what is reached, and the writes of new counters.
        """
        grads, condition = incoming.grads, None
        conditions: list[Any] = []
        writes: list[tuple] = []
        for wrapper in self.wrappers:
            conditions.append(condition)
            if wrapper.defines.isdisjoint(("decide", "accept_step")):
                continue
            grads, goes_on, counts = wrapper.decide(grads, incoming.variables)
            writes += _counted(wrapper, counts, condition)
            condition = both(condition, goes_on)
        return incoming._replace(grads=grads), Reached(conditions, condition), writes

    def _around(self, incoming: Incoming) -> Around:
        """Return what hooks know in this step."""
        core = self.mover.optimizer
        steps = core.gradient_accumulation_steps or 1
        number = ops.convert_to_tensor(core._iterations) // steps + 1
        done = ops.copy(backend.read(core._iterations)) if self._needs_done else None
        scalars = [scalars_around(wrapper, number, incoming.places) for wrapper in self.wrappers]
        around = Around(done, scalars, [], {})
        for number in self._may_meet:
            if self.wrappers[number].meets_workers():
                around.meeting.append(number)
        for number in self._need_old:
            if number < max(around.meeting, default=0):
                around.old[number] = hooks.values_of(self.wrappers[number], incoming)
        return around

    def _is_last(self) -> Any:
        """Return whether this micro-step is the last one of a step."""
        core = self.mover.optimizer
        done = ops.convert_to_tensor(core._iterations)
        return ops.equal((done + 1) % core.gradient_accumulation_steps, 0)

    def _micro_step(
        self,
        owner: Any,
        incoming: Incoming,
        overwritten: Incoming,
        around: Around | None,
        last: Any,
    ) -> None:
        """Make a step, or one of those whose gradients are accumulated (`last` is not None)."""
        mover, factor = self.mover, self.mover.optimizer.loss_scale_factor
        if overwritten.grads:
            mover.overwrite(overwritten.grads, overwritten.variables)
        if factor is not None:
            incoming = incoming._replace(grads=[g / factor for g in incoming.grads])
        if incoming.grads or owner.shards is not None:  # else all variables rest
            if last is None:
                self._update(incoming, around)
            else:
                mover.accumulate(incoming.grads, incoming.places)
                backend.run_if(owner, last, lambda: self._last_step(incoming, around))
        mover.count(last)

    def _last_step(self, incoming: Incoming, around: Around | None) -> None:
        """Move the variables by the means over all micro-steps."""
        # A variable that is listed twice has one sum.
        owners = dict(zip(incoming.places, incoming.variables, strict=True))
        means, named = self.mover.means(incoming.grads, incoming.places)
        self._update(Incoming(means, list(owners.values()), list(owners), named), around)
        self.mover.forget()

    def _update(self, incoming: Incoming, around: Around | None) -> None:
        """Move the variables by the gradients of a whole step, with the hooks around."""
        if around is None:
            self.mover.move(incoming)
            return
        joined, joining = None, None if around.meeting else self.joining()
        if joining is not None:
            incoming, joined = joining.split(incoming, around.scalars)
            if not incoming.grads:
                self.mover.move(incoming, joined)
                return
        put_back, seen = [], []
        for wrapper, scalars in zip(self.wrappers, around.scalars, strict=True):
            if not wrapper.defines.isdisjoint(("before", "before_step")):
                incoming = incoming._replace(grads=wrapper.run_before(incoming, scalars))
            accepts = "accept" in wrapper.defines
            put_back.append(
                hooks.kept_unless_accepted(wrapper, incoming, scalars) if accepts else []
            )
            seen.append(incoming)
        old = {}
        for number in self._need_old:
            old[number] = hooks.values_of(self.wrappers[number], seen[number])
        self.mover.move(incoming, joined)
        first = max(around.meeting, default=0)  # outer wrappers run after the exchange
        for stage in reversed(range(len(self.wrappers))):
            if put_back[stage]:
                hooks.put_back(self.wrappers[stage], put_back[stage])
            if stage >= first:
                known = around.scalars[stage], around.done, old.get(stage)
                self.wrappers[stage].run_after(seen[stage], *known)

    def _meet(
        self, owner: Any, incoming: Incoming, around: Around, reached: Reached, last: Any
    ) -> None:
        """Exchange between workers, even if they did not move; then run hooks of outer wrappers."""
        moved = both(reached.inside, last)
        for stage in reversed(range(max(around.meeting) + 1)):
            wrapper = self.wrappers[stage]
            if stage in around.meeting:
                inputs = incoming.grads, incoming.places, reached.inside
                run_if(owner, reached.wrappers[stage], functools.partial(wrapper.meet, *inputs))
            else:
                known = around.scalars[stage], around.done, around.old.get(stage)
                run_if(owner, moved, functools.partial(wrapper.run_after, incoming, *known))

    def joining(self) -> Joining | None:
        """Return the hooks as a part of the rule; None if they run separately."""
        if in_plain.get():
            return None
        wrappers, mover = self.wrappers, self.mover
        if not mover.only_moves(any(has_hooks(w) and w.needs_gradient for w in wrappers)):
            return None
        cache, key = mover.optimizer._statics, ("joining", tuple(map(id, wrappers)))
        if key not in cache:
            cache[key] = Joining(wrappers, mover) if can_join(wrappers) else None
        return cache[key]


class Stepping:
    """The verbs of an optimizer with a `_pipeline`, and the values of arguments in a step."""

    _pipeline: Pipeline
    _iterations: Any
    _done: Any = None
    """The count of micro-steps before this one, in a hook that may run when it is counted."""
    names_rows = False
    """Whether `tf.IndexedSlices` and sparse tensors touch all rows that they name, as in `addons`;
    otherwise `row_variables` chooses variables, of which they touch the rows that are not zero."""

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

    def stateless_apply(
        self,
        optimizer_variables: Sequence[Any],
        grads: Sequence[Any],
        trainable_variables: Sequence[Any],
    ) -> tuple[list[Any], list[Any]]:
        """Return the variables and the state that `apply` would assign; `fit` on JAX calls it.

        Args:
            optimizer_variables: The values of `variables`.
            grads: A gradient for each of the trainable variables.
            trainable_variables: The values of all variables that the optimizer was built for, or
                of those among them that are not frozen. Rules over all variables together, such as
                `LBFGS`, and `use_ema` need all.
        """
        return stateless_apply(self, optimizer_variables, grads, trainable_variables)

    def now(self, value: Any) -> Any:
        """Return the value in this step of a number, schedule, variable or callable."""
        if isinstance(value, float) or not changes(value):
            return value
        if self._done is not None:
            return current(value, self._done)
        return current(value, backend.read(self._pipeline.mover.optimizer._iterations))


def without_resting(owner: Any, incoming: Incoming) -> tuple[Incoming, Incoming]:
    """Return gradients for the step, and those that overwrite variables; others are frozen."""
    entries = [owner._state.entries[place] for place in incoming.places]
    moving = [n for n, entry in enumerate(entries) if not entry.rests]
    overwritten = [n for n, entry in enumerate(entries) if entry.overwritten]
    return incoming.only(moving), incoming.only(overwritten)


def both(first: Any, second: Any) -> Any:
    """Return whether both conditions hold; None always holds."""
    if first is None or second is None:
        return second if first is None else first
    return ops.logical_and(first, second)


def run_if(owner: Any, condition: Any, function: Callable[[], None]) -> None:
    """Call a function if a condition holds; None always holds."""
    if condition is None:
        function()
    else:
        backend.run_if(owner, condition, function)


def as_count(condition: Any) -> Any:
    """Return 1 if a condition holds, else 0."""
    return 1 if condition is None else ops.cast(condition, "int32")


def _counted(wrapper: Any, counts: dict[str, Any], reached: Any) -> list[tuple[Any, Any, Any]]:
    """Return the writes of new counters, which do not change if the wrapper is not reached."""
    writes = []
    for name, value in counts.items():
        counter = wrapper._state.shared[name]
        value = ops.cast(value, counter.dtype)
        if reached is not None:
            value = ops.where(reached, value, backend.read(counter))
        writes.append((counter, None, value))
    return writes
