"""What surrounds another optimizer's step: delegation, and hooks run on any backend."""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops
from keras.src.utils import tracking

from keras_tfopt.execution import averages, gradients, persistence
from keras_tfopt.execution.binding import HYPERPARAMETER, Cache, Scalars, scalar, widest, write
from keras_tfopt.execution.building import (
    add_slot,
    check_distinct,
    check_known,
    describe,
    listed,
    mend_loss_scaling,
    pair,
    path_of,
)
from keras_tfopt.execution.configuration import optimizer_from
from keras_tfopt.execution.construction import Constructed
from keras_tfopt.execution.engine import Engine
from keras_tfopt.execution.options import (
    AVERAGING,
    CLIPPING_AND_DECAY,
    all_arguments,
    changes,
    current,
    own_parameters,
)
from keras_tfopt.execution.representation import Around
from keras_tfopt.execution.rows import mark_as_taken
from keras_tfopt.execution.scopes import tracked
from keras_tfopt.execution.select import backend
from keras_tfopt.execution.selection import warn_unmatched
from keras_tfopt.execution.state import Like, Slot
from keras_tfopt.execution.suggestions import check_arguments
from keras_tfopt.execution.versions import is_multi_optimizer

Step = Callable[[list[Any], list[Any]], None]  # of gradients and variables


class WrappingEngine(Constructed, Around, keras.optimizers.Optimizer):
    """Runs a wrapper's hooks around `inner_optimizer.apply`. See `keras_tfopt.Wrapper`."""

    sparse = "dense"
    is_engine = True
    built: bool
    # Of each variable, in the order of building.
    _likes: list[Like]
    _facts: list[dict[str, Any]]
    _reach: list[str | None]
    _trainable_variables: list[Any]
    _slot_variables: list[dict[str, Any]]

    def __init__(self, inner_optimizer: Any, name: str | None = None, **base: Any):
        self._lock = False
        inner = check_inner(inner_optimizer, type(self).__name__)
        check_around(type(self), base, inner)
        # A learning rate of its own would be a variable that nobody reads.
        super().__init__(learning_rate=lambda: inner.learning_rate, name=name)
        self.leave_to_inner(*CLIPPING_AND_DECAY, *AVERAGING)
        self.inner_optimizer = inner
        self._waiting: persistence.Saved | None = None
        self._fast = Cache()

    # ---- Hooks ----------------------------------------------------------------------------------

    def slots(self, like: Like) -> dict[str, Slot]:
        return {}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return {"lr": lr}

    def before(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, Any]:
        return g, x

    def after(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        return x, {}

    def average(self, x: Any, s: Any) -> Any:
        return x

    def accept(self, g: Any, x: Any, t: Any) -> Any:
        return True

    def accept_step(self, grads: list[Any], s: Any) -> tuple[Any, dict[str, Any]]:
        return True, {}

    def before_step(self, grads: list[Any], variables: list[Any]) -> list[Any]:
        return grads

    def after_step(self, variables: list[Any]) -> list[Any] | None:
        return None

    def check(self, likes: Sequence[Like]) -> None:
        """Raises an error if the arguments do not fit the variables of the model."""

    def facts(self, like: Like) -> dict[str, Any]:
        return {"path": like.path}

    def reach(self, like: Like) -> str | None:
        return self.sparse

    def choices(self) -> dict[str, Any]:
        """Arguments that choose variables, by name; a part that matches none has `build` warn."""
        return {}

    def settle(self, likes: Sequence[Like]) -> None:
        """Looks up the paths of `choices` among those of the model, see `settled`."""

    def decays(self, like: Like, by_rows: bool) -> bool:
        """Whether this wrapper, not one inside of it, shrinks a variable in the step to come."""
        return False

    def counters(self) -> dict[str, Slot]:
        return {}

    def own_arguments(self) -> list[str]:
        return []

    def workers(self) -> int:
        """How many workers step together."""
        return 1

    def raise_excess(self) -> None:
        """Raises what compiled steps could not."""

    def count(self, name: str) -> int:
        """A counter as a number, 0 before the optimizer is built."""
        return self.known_count(name) or 0

    def known_count(self, name: str) -> int | None:
        """A counter as a number, or None where a step is being compiled."""
        if not self.built:
            return None
        limits = backend.limits(backend.read(self._counters[name]))
        return None if limits is None else limits[1]

    def count_now(self, name: str) -> Any:
        """A counter as a tensor, which a step that is being compiled can go on with."""
        return backend.read(self._counters[name]) + 0

    def set_count(self, name: str, value: int) -> None:
        self._counters[name].assign(value)

    def now(self, value: Any) -> Any:
        """What a hyperparameter (number, schedule, variable or callable) is in this step."""
        if not changes(value):
            return value
        return current(value, backend.read(innermost(self)._iterations))

    def _has(self, hook: str) -> bool:
        return getattr(type(self), hook) is not getattr(WrappingEngine, hook)

    # ---- State ----------------------------------------------------------------------------------

    @tracking.no_automatic_dependency_tracking
    def build(self, variables: Sequence[Any]) -> None:
        """Creates the state of the wrapper and of the inner optimizer."""
        variables = listed("variables", variables)
        likes = [describe(variable, type(self).__name__) for variable in variables]
        mend_loss_scaling(likes)
        if self.built:
            return
        self.settle(likes)
        self.check(likes)
        warn_unmatched(type(self).__name__, self.choices(), likes)
        with backend.build_scope(self, variables):
            if not self.inner_optimizer.built:
                with tracked():
                    self.inner_optimizer.build(variables)
            check_accumulation(self)
            check_alike(self)
            self._likes, self._facts, self._reach = [], [], []
            self._trainable_variables, self._slot_variables = [], []
            self._add_variables(variables, likes)
            whole = Like((), widest([like.dtype for like in likes]), self.name)
            self._counters = {
                name: add_slot(self, None, whole, name, slot)
                for name, slot in self.counters().items()
            }
        self.built = True
        persistence.restore_waiting(self, self._variables)

    @tracking.no_automatic_dependency_tracking
    def extend(self, variables: Sequence[Any]) -> None:
        """Creates the state for further variables, which the optimizer inside knows already.

        They come in the order in which that one knows them.
        """
        likes = [describe(variable, type(self).__name__) for variable in variables]
        self.check([*self._likes, *likes])
        with backend.build_scope(self, variables):
            self._add_variables(list(variables), likes)

    def _add_variables(self, variables: list[Any], likes: list[Like]) -> None:
        for variable, like in zip(variables, likes, strict=True):
            self._trainable_variables_indices[self._var_key(variable)] = len(self._likes)
            self._likes.append(like)
            self._facts.append(self.facts(like))
            # What is overwritten with its gradient takes no steps that there could be hooks around.
            overwritten = self._overwrite_variable_with_gradient(variable)
            self._reach.append(None if overwritten else self.reach(like))
            self._trainable_variables.append(variable)
            mark_as_taken(variable)
            slots = self.slots(like).items()
            self._slot_variables.append(
                {name: add_slot(self, variable, like, name, slot) for name, slot in slots}
            )

    def slot(self, variable: Any, name: str) -> keras.Variable:
        """The state called `name` of this wrapper, or else of the inner optimizer.

        Raises:
            KeyError: if neither has such state; the message names what there is.
        """
        if not self.built:
            raise ValueError(
                f"{type(self).__name__} has no slots before it is built. "
                "Call `optimizer.build(variables)`."
            )
        if variable is not None:
            check_known(self, [variable])
            own = self._slot_variables[self._get_variable_index(variable)]
            if name in own:
                return own[name]
        if name in getattr(self.inner_optimizer, "slot_names", ()):
            return self.inner_optimizer.slot(variable, name)
        raise KeyError(
            f"{type(self).__name__} has no slot {name!r}. Slots there are: {list(self.slot_names)}"
        )

    @property
    def slot_names(self) -> tuple[str, ...]:
        """Names of the slots of the wrapper and of the inner optimizer, if that names them."""
        return self._own_slot_names() + tuple(getattr(self.inner_optimizer, "slot_names", ()))

    @property
    def variables(self) -> list[Any]:
        """The wrapper's own state, then the inner optimizer's."""
        return self._variables[:] + self.inner_optimizer.variables

    def save_own_variables(self, store: Any) -> None:
        # Keras saves the inner optimizer by itself, as it finds it among the attributes.
        persistence.save(store, self._variables, self._roles(), self._waiting)

    def load_own_variables(self, store: Any) -> None:
        names = (*self._own_slot_names(), *self.counters())
        self._waiting = persistence.load(store, self._variables, self._roles(), names, self)

    def _roles(self) -> list[str]:
        own = {id(self._iterations): "iteration"}
        for name in self.own_arguments():
            own[id(getattr(self, name))] = HYPERPARAMETER + name
        if self.built:
            for slots in [*self._slot_variables, self._counters]:
                own.update({id(variable): name for name, variable in slots.items()})
        return [own[id(variable)] for variable in self._variables]

    def _own_slot_names(self) -> tuple[str, ...]:
        return tuple(self.slots(Like((1,), keras.backend.floatx(), "")))

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets the state, own and inner, from arrays in the order of `variables`."""
        own = len(self._variables)
        persistence.set_weights(self, weights[:own], self._variables, self._roles())
        self.inner_optimizer.set_weights(weights[own:])

    # ---- A step ---------------------------------------------------------------------------------

    @backend.outside_compiler
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Updates the variables by their gradients; see `keras_tfopt.Rule.apply`."""
        self._apply(grads, trainable_variables)

    apply_gradients = Engine.apply_gradients

    @backend.outside_compiler
    def apply_around(
        self, step: Step, grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> None:
        """`apply`, with `step(grads, variables)` in the place of that of the inner optimizer.

        It must take that step in the end. Gradients of rows come as `RowGradient`.
        """
        self._apply(grads, trainable_variables, step=step)

    def _apply(
        self,
        grads: Sequence[Any],
        trainable_variables: Sequence[Any] | None,
        summed: bool = False,
        step: Step | None = None,
    ) -> None:
        """`apply`, also of gradients that are already summed over the replicas."""
        step = step or functools.partial(apply_summed, self.inner_optimizer)
        grads, variables = pair(self, grads, trainable_variables)
        if not grads:
            return
        self.raise_excess()
        engines = [p for p in averages.parts(self.inner_optimizer) if isinstance(p, Engine)]
        for engine in engines:  # before a hook has changed anything
            engine.raise_refused()
        with keras.name_scope(self.name), backend.no_gradients():
            grads, variables = self._filter_empty_gradients(grads, variables)
            check_distinct(self, variables)
            indices = [self._get_variable_index(v) for v in variables]
            grads = [
                gradients.check(g, v, self._likes[i])
                for g, v, i in zip(grads, variables, indices, strict=True)
            ]
            if not any(_skips_steps(part) for part in averages.parts(self)):
                for engine in engines:
                    engine.refuse_unless_finite(grads, variables)
            if not summed:
                # Hooks must see the same on all replicas, or these would drift apart.
                grads = self._over_replicas(grads)
            refused = getattr(innermost(self), "_refused_rows", None)
            grads = [gradients.sum_repeated(g, refused) for g in grads]
            grads, accepted, new = self._decide(grads, variables)
            if accepted is None:
                self._step(grads, variables, step)
            else:
                backend.run_if(self, accepted, lambda: self._step(grads, variables, step))
            backend.commit(self, [(self._counters[n], None, v) for n, v in new.items()])
        self._iterations.assign_add(1)

    def _over_replicas(self, grads: list[Any]) -> list[Any]:
        return backend.reduce_replicas(grads)

    def _decide(
        self, grads: list[Any], variables: list[Any]
    ) -> tuple[list[Any], Any, dict[str, Any]]:
        """The gradients to step with, whether to (None: always), and new values of counters."""
        if not self._has("accept_step"):
            return grads, None, {}
        accepted, new = self.accept_step([gradients.values_of(g) for g in grads], self._state())
        return grads, accepted, new

    def _state(self) -> Any:
        """The values of the counters, by name."""
        return collections.namedtuple("State", self._counters)(  # type: ignore[misc]
            *[backend.read(counter) for counter in self._counters.values()]
        )

    def leaves_out_steps(self) -> bool:
        """Whether there may be calls in which the optimizer inside makes no step."""
        return self._has("accept_step")

    def _step(self, grads: list[Any], variables: list[Any], step: Step) -> None:
        """The inner optimizer's step with the hooks around it."""
        indices = [self._get_variable_index(v) for v in variables]
        last = self._is_last_micro_step()
        scalars = self._scalars(indices)
        sums = None
        if last is not None and (self._has("accept") or "rows" in self._reach):
            # This gradient is but a part of that of the step to come.
            sums = [self._summed(g, i) for g, i in zip(grads, indices, strict=True)]
        grads = self.before_step(grads, variables)
        if self._has("before"):
            grads = self._run_before(grads, variables, scalars, last, sums)
        restore = self._snapshot(grads, variables, scalars, sums) if self._has("accept") else []
        done = self._steps_done()
        step(grads, variables)
        moved = None if done is None else ops.not_equal(self._steps_done(), done)
        if moved is not None:
            last = moved if last is None else ops.logical_and(moved, last)
        for variable, accepted, old in restore:
            value = ops.where(accepted, backend.read(variable), old)
            backend.commit(self, [(variable, None, value)])
        if self._has("after"):
            self._run_after(grads, variables, scalars, last, sums)
        self._finish(grads, variables, moved)

    def _finish(self, grads: list[Any], variables: list[Any], moved: Any) -> None:
        """What is done once variables and slots have their new values.

        `moved` is None, or whether the optimizer inside has not left out this step.
        """
        if self._has("after_step"):
            self._run_after_step(variables)

    def _steps_done(self) -> Any:
        """Steps that the optimizers inside have made, if one of them may leave out some."""
        inner = self.inner_optimizer
        while isinstance(inner, WrappingEngine):
            if inner.leaves_out_steps():
                # A number of its own: on PyTorch, what is read goes on counting.
                return backend.read(innermost(self)._iterations) + 0
            inner = inner.inner_optimizer
        return None

    def _summed(self, gradient: Any, index: int) -> tuple[Any, Any]:
        """The gradient with what was accumulated before, and which rows were named in that."""
        total = backend.to_dense(gradient) if _is_rows(gradient) else gradient
        if self.loss_scale_factor is not None:
            total = total / self.loss_scale_factor
        inner = innermost(self)
        total = total + ops.cast(backend.read(inner._accumulated_gradients[index]), total.dtype)
        if not (_is_rows(gradient) and gradient.named):
            return total, None
        named = backend.row_mask(gradient)
        before = inner._touched_rows[index] if isinstance(inner, Engine) else None
        if before is not None:
            named = named | ops.reshape(backend.read(before), named.shape)
        return total, named

    def _scalars(self, indices: list[int]) -> dict[str, dict[str, Any]]:
        micro_steps = self.gradient_accumulation_steps or 1
        step = backend.read(innermost(self)._iterations) // micro_steps + 1
        known = {}
        for dtype in sorted({self._likes[i].dtype for i in indices}):
            # A MultiOptimizer has several and gives none.
            lr = getattr(self, "learning_rate", None)
            lr, number = None if lr is None else scalar(lr, dtype), scalar(step, dtype)
            values = {**self.scalars(lr, number), "step": number}
            known[dtype] = {n: scalar(v, dtype) for n, v in values.items() if v is not None}
        return known

    def _is_last_micro_step(self) -> Any:
        """None, or with accumulation whether the inner optimizer moves the variables this time."""
        micro_steps = self.gradient_accumulation_steps
        if not micro_steps:
            return None
        return ops.equal((backend.read(innermost(self)._iterations) + 1) % micro_steps, 0)

    def _run_before(
        self, grads: list, variables: list, scalars: dict, last: Any, sums: list | None
    ) -> list[Any]:
        def call(g: Any, x: Any, s: Any, t: Any) -> tuple[Any, Any, dict]:
            g, x = self.before(g, x, s, t)
            return g, x, {}

        return self._run("before", call, grads, variables, scalars, last, sums)

    def _run_after(
        self, grads: list, variables: list, scalars: dict, last: Any, sums: list | None
    ) -> None:
        def call(g: Any, x: Any, s: Any, t: Any) -> tuple[Any, Any, dict]:
            x, new = self.after(g, x, s, t)
            return None, x, new

        self._run("after", call, grads, variables, scalars, last, sums)

    def _run(
        self,
        hook: str,
        call: Callable,
        grads: list,
        variables: list,
        scalars: dict,
        last: Any,
        sums: list | None,
    ) -> list[Any]:
        """Runs a hook over the variables that it reaches and writes what it returns.

        Gives the new gradients.
        """
        reached = [self._reach[self._get_variable_index(v)] is not None for v in variables]
        everything, grads = grads, [g for g, r in zip(grads, reached, strict=True) if r]
        if sums is not None:
            sums = [total for total, r in zip(sums, reached, strict=True) if r]
        variables = [v for v, r in zip(variables, reached, strict=True) if r]
        new = iter(self._run_reached(hook, call, grads, variables, scalars, last, sums))
        return [next(new) if r else g for g, r in zip(everything, reached, strict=True)]

    def _run_reached(
        self,
        hook: str,
        call: Callable,
        grads: list,
        variables: list,
        scalars: dict,
        last: Any,
        sums: list | None,
    ) -> list[Any]:
        if not variables:
            return []
        given, facts, in_rows, whole = [], [], [], []
        for number, (gradient, variable) in enumerate(zip(grads, variables, strict=True)):
            index = self._get_variable_index(variable)
            slots = self._slot_variables[index]
            in_parts = self._reach[index] == "rows"
            by_rows = in_parts and is_of_rows(self, index)
            is_rows = _is_rows(gradient)
            named = is_rows and gradient.named
            rows = is_rows and in_parts and (named or by_rows) and sums is None
            if rows:
                g = gradient.values
                mask = None if named else backend.nonzero_rows(g)
                parts = [backend.take(v, gradient.indices) for v in (variable, *slots.values())]
                in_rows.append((variable, slots, gradient.indices))
            else:
                g = backend.to_dense(gradient) if is_rows else gradient
                mask = None
                if sums is not None and in_parts and (named or by_rows):
                    total, before = sums[number]
                    mask = backend.nonzero_rows(total)
                    mask = mask if before is None else mask | before
                elif by_rows:
                    mask = backend.nonzero_rows(g)
                parts = []
                whole += [variable, *slots.values()]
            given.append((g, mask, parts))
            facts.append((self._likes[index], rows, tuple(slots), index))

        def run(values: list, inputs: tuple) -> tuple[tuple, list[tuple]]:
            new_grads, new_parts, writes = [], [], []
            given, scalars, last = inputs
            start = 0
            for (like, rows, names, index), (g, mask, parts) in zip(facts, given, strict=True):
                old, *kept = parts if rows else values[start : start + 1 + len(names)]
                s = dict(zip(names, kept, strict=True))
                t = Scalars(scalars[like.dtype], self._facts[index], rows, backend.norm, mask)
                slots = collections.namedtuple("Slots", names)(**s)  # type: ignore[misc]
                new_g, x, new = call(g, ops.cast(old, like.dtype), slots, t)
                x = _where(last, _where(mask, ops.cast(x, old.dtype), old), old)
                new = {n: _where(last, _where(mask, v, s[n]), s[n]) for n, v in new.items()}
                new_grads.append(None if new_g is g else new_g)
                if rows:
                    new_parts.append((x, new))
                    continue
                writes.append(write(start, x))
                writes += [write(start + 1 + names.index(n), value) for n, value in new.items()]
                start += 1 + len(names)
            return (new_grads, new_parts), writes

        key = (hook, tuple(facts), last is None, tuple(mask is None for _, mask, _ in given))
        new_grads, new_parts = backend.run_in_place(self, key, run, whole, (given, scalars, last))
        writes = []
        for (variable, slots, indices), (x, new) in zip(in_rows, new_parts, strict=True):
            writes.append(write(variable, x, indices))
            writes += [write(slots[name], value, indices) for name, value in new.items()]
        backend.commit(self, writes)
        return [
            gradient if g is None else gradient.map(lambda _, g=g: g) if rows else g
            for gradient, g, (_, rows, _, _) in zip(grads, new_grads, facts, strict=True)
        ]

    def _run_after_step(self, variables: list[Any]) -> None:
        new = self.after_step(variables)
        if new is not None:
            pairs = zip(variables, new, strict=True)
            backend.commit(self, [(v, None, ops.cast(x, v.dtype)) for v, x in pairs])

    def _snapshot(
        self, grads: list, variables: list, scalars: dict, sums: list | None
    ) -> list[tuple]:
        """What to put back where the step is not accepted: `(variable, accepted, old value)`."""
        kept = []
        for number, (gradient, variable) in enumerate(zip(grads, variables, strict=True)):
            if self._overwrite_variable_with_gradient(variable):
                continue
            index = self._get_variable_index(variable)
            like = self._likes[index]
            g = backend.to_dense(gradient) if _is_rows(gradient) else gradient
            if sums is not None:
                g = sums[number][0]
            t = Scalars(scalars[like.dtype], self._facts[index], False, backend.norm)
            accepted = self.accept(g, ops.cast(backend.read(variable), like.dtype), t)
            for owned in [variable, *state_of(self.inner_optimizer, index)]:
                old = backend.copy_of(owned, keras.backend.standardize_dtype(owned.dtype))
                kept.append((owned, accepted, old))
        return kept

    # ---- Averages -------------------------------------------------------------------------------

    def keeps_averages(self) -> bool:
        """Whether this wrapper, not one inside of it, keeps averages of the variables."""
        return self._has("average")

    def averages_now(self, current: Callable[[Any], Any]) -> list[tuple[Any, Any]]:
        """`(variable, average)`, given how to read variables."""
        found = []
        kept = zip(self._trainable_variables, self._likes, self._slot_variables, strict=True)
        for variable, like, slots in kept:
            if self._overwrite_variable_with_gradient(variable):
                continue
            s = collections.namedtuple("Slots", slots)(  # type: ignore[misc]
                *[backend.read(slot) for slot in slots.values()]
            )
            found.append((variable, self.average(ops.cast(current(variable), like.dtype), s)))
        return found

    def averaged(
        self, model: keras.Model, of: Any = None
    ) -> contextlib.AbstractContextManager[None]:
        """A context in which the model has averages for weights; see `keras_tfopt.averaged`."""
        return averages.averaged(model, self, of)

    # ---- Delegation -----------------------------------------------------------------------------

    @property
    def iterations(self) -> Any:
        """Steps of the inner optimizer."""
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self) -> Any:
        """Learning rate of the inner optimizer."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner_optimizer.learning_rate = value

    def scale_loss(self, loss: Any) -> Any:
        """Scales as the inner optimizer does, which also scales back."""
        return self.inner_optimizer.scale_loss(loss)

    # Keras's constructor assigns these before there is an inner optimizer.
    loss_scale_factor = property(
        lambda self: _of_inner(self, "loss_scale_factor"),
        lambda self, value: _set_on_inner(self, "loss_scale_factor", value),
    )
    gradient_accumulation_steps = property(
        lambda self: _of_inner(self, "gradient_accumulation_steps"),
        lambda self, value: _set_on_inner(self, "gradient_accumulation_steps", value),
    )

    @property
    def maximize(self) -> bool:
        """Whether the inner optimizer steps up the gradient."""
        inner = innermost(self)
        parts = inner.optimizers if is_multi_optimizer(inner) else [inner]
        found = {getattr(part, "maximize", False) for part in parts}
        if len(found) > 1:
            raise ValueError(
                f"{type(self).__name__} needs inner optimizers that all have the same `maximize`. "
                "Received: True and False"
            )
        return found.pop()

    def exclude_from_weight_decay(
        self, var_list: Sequence[Any] | None = None, var_names: Sequence[str] | None = None
    ) -> None:
        """Passed on to the inner optimizer."""
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Passed on to the inner optimizer."""
        self.inner_optimizer.finalize_variable_values(var_list)


def check_accumulation(wrapper: WrappingEngine) -> None:
    """Raises an error where a wrapper could not tell micro-steps from steps."""
    inner = innermost(wrapper)
    if not is_multi_optimizer(inner):
        return
    steps = [part.gradient_accumulation_steps for part in inner.optimizers]
    if any(steps):
        raise ValueError(
            f"{type(wrapper).__name__} around a MultiOptimizer needs optimizers in it that do not "
            f"accumulate gradients. Received: gradient_accumulation_steps={steps}. Put the "
            "MultiOptimizer outside, and a wrapper around each of its optimizers"
        )


def check_alike(wrapper: WrappingEngine) -> None:
    """Raises an error where one worker would leave out a step that the others make."""
    if not wrapper._has("accept_step"):
        return
    for part in averages.parts(wrapper.inner_optimizer):
        if isinstance(part, WrappingEngine) and part.workers() > 1:
            outer, inner = type(wrapper).__name__, type(part).__name__
            raise ValueError(
                f"{outer} decides on each worker alone, and {inner} waits for all of them: write "
                f"{inner}({outer}(...)) instead of {outer}({inner}(...))"
            )


def apply_summed(optimizer: Any, grads: list[Any], variables: list[Any]) -> None:
    """`apply` of any optimizer, on gradients that are already summed over the replicas."""
    if isinstance(optimizer, (Engine, WrappingEngine)):
        optimizer._apply(grads, variables, summed=True)
        return
    if backend.replicas() > 1 and not getattr(optimizer, "steps_apart", False):
        # Keras is going to sum over them once more, for rows by putting each in as often as there
        # are replicas; and its optimizers do not sum rows that repeat.
        grads = [backend.to_dense(g) if _is_rows(g) else g for g in grads]
        grads = [g / backend.replicas() for g in grads]
    native = [in_form_for(optimizer, g, v) for g, v in zip(grads, variables, strict=True)]
    if is_multi_optimizer(optimizer):  # which wants all of them
        given = {optimizer._var_key(v): g for v, g in zip(variables, native, strict=True)}
        variables = optimizer._trainable_variables
        native = [given.get(optimizer._var_key(v)) for v in variables]
    optimizer.apply(native, variables)


def in_form_for(optimizer: Any, gradient: Any, variable: Any) -> Any:
    """Give a gradient to the optimizer that moves a variable in a form that it takes."""
    part = part_of(optimizer, variable)
    if isinstance(part, (Engine, WrappingEngine)):
        return gradient
    gradient = backend.in_form_for(part, gradient, variable)
    if part.gradient_accumulation_steps and ops.is_tensor(gradient):
        # TensorFlow adds numbers of one dtype only.
        gradient = ops.cast(gradient, variable.dtype)
    return gradient


def part_of(optimizer: Any, variable: Any) -> Any:
    """The optimizer that moves a variable: the one given, or one of a MultiOptimizer."""
    if not is_multi_optimizer(optimizer):
        return optimizer
    return optimizer.optimizers[optimizer._var_to_optimizer_idx[optimizer._var_key(variable)]]


def _skips_steps(optimizer: Any) -> bool:
    return isinstance(optimizer, WrappingEngine) and optimizer.leaves_out_steps()


def innermost(optimizer: Any) -> Any:
    while isinstance(optimizer, WrappingEngine):
        optimizer = optimizer.inner_optimizer
    return optimizer


def is_of_rows(wrapper: WrappingEngine, index: int) -> bool:
    """Whether the optimizer inside takes this for a variable of rows."""
    inner, index = core_of(wrapper, index)
    return isinstance(inner, Engine) and inner._is_row_variable[index]


def core_of(optimizer: Any, index: int) -> tuple[Any, int]:
    """What moves variable number `index` in the end, and its number there."""
    if isinstance(optimizer, WrappingEngine):
        return core_of(optimizer.inner_optimizer, index)
    if is_multi_optimizer(optimizer):
        variable = optimizer._trainable_variables[index]
        part = part_of(optimizer, variable)
        return core_of(part, part._get_variable_index(variable))
    return optimizer, index


def state_of(optimizer: Any, index: int) -> list[Any]:
    """The state that any optimizer keeps for its variable number `index`."""
    if isinstance(optimizer, WrappingEngine):
        own = list(optimizer._slot_variables[index].values())
        return own + state_of(optimizer.inner_optimizer, index)
    if isinstance(optimizer, Engine):
        return list(optimizer._slot_variables[index].values())
    variable = optimizer._trainable_variables[index]
    if is_multi_optimizer(optimizer):
        part = part_of(optimizer, variable)
        return state_of(part, part._get_variable_index(variable))
    # Keras names state after the variable. No other tie between the two is the same in all of its
    # optimizers. Sums of micro-steps and averages are not state of the rule.
    prefix = path_of(variable).replace("/", "_") + "_"
    others = [
        *getattr(optimizer, "_accumulated_gradients", ()),
        *getattr(optimizer, "_model_variables_moving_average", ()),
    ]
    return [
        v
        for v in optimizer.variables
        if v.name.startswith(prefix)
        and tuple(v.shape) == tuple(variable.shape)
        and not any(v is other for other in others)
    ]


def _is_rows(gradient: Any) -> bool:
    return isinstance(gradient, gradients.Touched)


def _where(condition: Any, new: Any, old: Any) -> Any:
    return new if condition is None else ops.where(condition, new, old)


def check_inner(inner: Any, owner: str) -> Any:
    """The optimizer to go inside of another one, from itself, its name or its configuration."""
    if not isinstance(inner, (str, dict, keras.optimizers.Optimizer)):
        is_class = isinstance(inner, type) and issubclass(inner, keras.optimizers.Optimizer)
        raise TypeError(
            "Argument `inner_optimizer` must be a keras.optimizers.Optimizer, or a name or "
            f"configuration of one. Received: {inner!r}"
            + (f", which is a class: write {owner}({inner.__name__}(...))" if is_class else "")
        )
    inner = optimizer_from(inner)
    if isinstance(inner, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "A LossScaleOptimizer must be the outermost optimizer: write "
            f"LossScaleOptimizer({owner}(...)) instead of {owner}(LossScaleOptimizer(...))."
        )
    return inner


def check_around(cls: type, given: dict[str, Any], inner: Any) -> None:
    """Raises an error for arguments that a wrapper does not have; they may belong inside."""
    inside = set(given) & set(all_arguments(type(inner)))
    for name in inside - set(own_parameters(cls)):
        raise TypeError(
            f"{cls.__name__} has no argument {name!r}, which belongs to the optimizer inside: "
            f"write {cls.__name__}({type(inner).__name__}({name}=...)). Received: "
            f"{name}={given[name]!r}"
        )
    check_arguments(cls.__name__, given, own_parameters(cls))


def _of_inner(wrapper: WrappingEngine, name: str) -> Any:
    inner = wrapper.__dict__.get("inner_optimizer")
    return None if inner is None else getattr(inner, name)


def _set_on_inner(wrapper: WrappingEngine, name: str, value: Any) -> None:
    inner = wrapper.__dict__.get("inner_optimizer")
    if inner is not None:
        setattr(inner, name, value)
