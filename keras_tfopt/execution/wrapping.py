"""What surrounds another optimizer's step: delegation, and hooks run on any backend."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops
from keras.src.utils import tracking

from keras_tfopt.execution import gradients, persistence
from keras_tfopt.execution.binding import Cache, Scalars, scalar, write
from keras_tfopt.execution.building import add_slot, describe, pair, path_of
from keras_tfopt.execution.engine import Engine
from keras_tfopt.execution.select import backend
from keras_tfopt.execution.state import Like, Slot


class WrappingEngine(keras.optimizers.Optimizer):
    """Runs a wrapper's hooks around `inner_optimizer.apply`. See `keras_tfopt.Wrapper`."""

    sparse = "dense"
    built: bool

    def __init__(self, inner_optimizer: Any, name: str | None = None, **base: Any):
        self._lock = False
        if base:
            raise TypeError(
                f"{type(self).__name__} takes no options of optimizers; set them on "
                f"`inner_optimizer`. Received: {sorted(base)}"
            )
        inner = check_inner(inner_optimizer, type(self).__name__)
        # A learning rate of its own would be a variable that nobody reads.
        super().__init__(learning_rate=lambda: inner.learning_rate, name=name)
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

    def accept(self, g: Any, x: Any, t: Any) -> Any:
        return True

    def before_step(self, grads: list[Any], variables: list[Any]) -> list[Any]:
        return grads

    def after_step(self, variables: list[Any]) -> list[Any] | None:
        return None

    def _has(self, hook: str) -> bool:
        return getattr(type(self), hook) is not getattr(WrappingEngine, hook)

    # ---- State ----------------------------------------------------------------------------------

    @tracking.no_automatic_dependency_tracking
    def build(self, variables: Sequence[Any]) -> None:
        """Creates the state of the wrapper and of the inner optimizer."""
        if self.built:
            return
        variables = list(variables)
        with backend.build_scope(self, variables):
            if not self.inner_optimizer.built:
                self.inner_optimizer.build(variables)
            self._likes = [describe(variable, type(self).__name__) for variable in variables]
            self._trainable_variables = variables
            for index, variable in enumerate(variables):
                self._trainable_variables_indices[self._var_key(variable)] = index
            self._slot_variables = [
                {n: add_slot(self, v, like, n, slot) for n, slot in self.slots(like).items()}
                for v, like in zip(variables, self._likes, strict=True)
            ]
        self.built = True
        persistence.restore_waiting(self, self._variables)

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
            self._check_variables_are_known([variable])
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
        own = tuple(self.slots(Like((1,), keras.backend.floatx(), "")))
        return own + tuple(getattr(self.inner_optimizer, "slot_names", ()))

    @property
    def variables(self) -> list[Any]:
        """The wrapper's own state, then the inner optimizer's."""
        return self._variables[:] + self.inner_optimizer.variables

    def save_own_variables(self, store: Any) -> None:
        # Keras saves the inner optimizer by itself, as it finds it among the attributes.
        persistence.save(store, self._variables, self._roles(), self._waiting)

    def load_own_variables(self, store: Any) -> None:
        names = tuple(self.slots(Like((1,), keras.backend.floatx(), "")))
        self._waiting = persistence.load(store, self._variables, self._roles(), names, self)

    def _roles(self) -> list[str]:
        slots = [name for own in self._slot_variables for name in own] if self.built else []
        return ["iteration", *slots]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets the state, own and inner, from arrays in the order of `variables`."""
        own = len(self._variables)
        persistence.set_weights(self, weights[:own], self._variables, self._roles())
        self.inner_optimizer.set_weights(weights[own:])

    # ---- A step ---------------------------------------------------------------------------------

    @backend.outside_compiler
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Updates the variables by their gradients; see `keras_tfopt.Algorithm.apply`."""
        self._apply(grads, trainable_variables)

    def _apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None, summed: bool = False
    ) -> None:
        """`apply`, also of gradients that are already summed over the replicas."""
        grads, variables = pair(self, grads, trainable_variables)
        if not grads:
            return
        with keras.name_scope(self.name), backend.no_gradients():
            grads, variables = self._filter_empty_gradients(grads, variables)
            indices = [self._get_variable_index(v) for v in variables]
            grads = [
                gradients.check(g, v, self._likes[i])
                for g, v, i in zip(grads, variables, indices, strict=True)
            ]
            if not summed:
                # Hooks must see the same on all replicas, or these would drift apart.
                grads = backend.reduce_replicas(grads)
            refused = getattr(innermost(self), "_refused_rows", None)
            grads = [gradients.sum_repeated(g, refused) for g in grads]
            last = self._is_last_micro_step()
            scalars = self._scalars(indices)
            grads = self.before_step(grads, variables)
            if self._has("before"):
                grads = self._run_before(grads, variables, scalars, last)
            restore = self._snapshot(grads, variables, scalars) if self._has("accept") else []
        apply_summed(self.inner_optimizer, grads, variables)
        with keras.name_scope(self.name), backend.no_gradients():
            for variable, accepted, old in restore:
                value = ops.where(accepted, backend.read(variable), old)
                backend.commit(self, [(variable, None, value)])
            if self._has("after"):
                self._run_after(grads, variables, scalars, last)
            if self._has("after_step"):
                self._run_after_step(variables)
        self._iterations.assign_add(1)

    def _scalars(self, indices: list[int]) -> dict[str, dict[str, Any]]:
        micro_steps = self.gradient_accumulation_steps or 1
        step = backend.read(innermost(self)._iterations) // micro_steps + 1
        known = {}
        for dtype in sorted({self._likes[i].dtype for i in indices}):
            lr, number = scalar(self.learning_rate, dtype), scalar(step, dtype)
            values = {**self.scalars(lr, number), "step": number}
            known[dtype] = {name: scalar(value, dtype) for name, value in values.items()}
        return known

    def _is_last_micro_step(self) -> Any:
        """None, or with accumulation whether the inner optimizer moves the variables this time."""
        micro_steps = self.gradient_accumulation_steps
        if not micro_steps:
            return None
        return ops.equal((backend.read(innermost(self)._iterations) + 1) % micro_steps, 0)

    def _run_before(self, grads: list, variables: list, scalars: dict, last: Any) -> list[Any]:
        def call(g: Any, x: Any, s: Any, t: Any) -> tuple[Any, Any, dict]:
            g, x = self.before(g, x, s, t)
            return g, x, {}

        return self._run("before", call, grads, variables, scalars, last)

    def _run_after(self, grads: list, variables: list, scalars: dict, last: Any) -> None:
        def call(g: Any, x: Any, s: Any, t: Any) -> tuple[Any, Any, dict]:
            x, new = self.after(g, x, s, t)
            return None, x, new

        self._run("after", call, grads, variables, scalars, last)

    def _run(
        self, hook: str, call: Callable, grads: list, variables: list, scalars: dict, last: Any
    ) -> list[Any]:
        """Runs a hook over all variables and writes what it returns; gives the new gradients."""
        given, facts, in_rows, whole = [], [], [], []
        for gradient, variable in zip(grads, variables, strict=True):
            index = self._get_variable_index(variable)
            slots = self._slot_variables[index]
            by_rows = self.sparse == "rows" and moves_by_rows(self, index)
            is_rows = isinstance(gradient, gradients.Touched)
            named = is_rows and gradient.named
            rows = is_rows and self.sparse == "rows" and (named or by_rows)
            if rows:
                g = gradient.values
                mask = None if named else backend.nonzero_rows(g)
                parts = [backend.take(v, gradient.indices) for v in (variable, *slots.values())]
                in_rows.append((variable, slots, gradient.indices))
            else:
                g = backend.to_dense(gradient) if is_rows else gradient
                mask = backend.nonzero_rows(g) if by_rows else None
                parts = []
                whole += [variable, *slots.values()]
            given.append((g, mask, parts))
            facts.append((self._likes[index], rows, tuple(slots)))

        def run(values: list, inputs: tuple) -> tuple[tuple, list[tuple]]:
            new_grads, new_parts, writes = [], [], []
            given, scalars, last = inputs
            start = 0
            for (like, rows, names), (g, mask, parts) in zip(facts, given, strict=True):
                old, *kept = parts if rows else values[start : start + 1 + len(names)]
                s = dict(zip(names, kept, strict=True))
                t = Scalars(scalars[like.dtype], {"path": like.path}, rows, backend.norm)
                slots = collections.namedtuple("Slots", names)(**s)  # type: ignore[misc]
                g, x, new = call(g, ops.cast(old, like.dtype), slots, t)
                x = _where(last, _where(mask, ops.cast(x, old.dtype), old), old)
                new = {n: _where(last, _where(mask, v, s[n]), s[n]) for n, v in new.items()}
                new_grads.append(g)
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
            gradient.map(lambda _, g=g: g) if rows else g
            for gradient, g, (_, rows, _) in zip(grads, new_grads, facts, strict=True)
        ]

    def _run_after_step(self, variables: list[Any]) -> None:
        new = self.after_step(variables)
        if new is not None:
            pairs = zip(variables, new, strict=True)
            backend.commit(self, [(v, None, ops.cast(x, v.dtype)) for v, x in pairs])

    def _snapshot(self, grads: list, variables: list, scalars: dict) -> list[tuple]:
        """What to put back where the step is not accepted: `(variable, accepted, old value)`."""
        kept = []
        for gradient, variable in zip(grads, variables, strict=True):
            index = self._get_variable_index(variable)
            like = self._likes[index]
            g = backend.to_dense(gradient) if hasattr(gradient, "named") else gradient
            t = Scalars(scalars[like.dtype], {"path": like.path}, False, backend.norm)
            accepted = self.accept(g, ops.cast(backend.read(variable), like.dtype), t)
            for owned in [variable, *state_of(self.inner_optimizer, index)]:
                old = backend.copy_of(owned, keras.backend.standardize_dtype(owned.dtype))
                kept.append((owned, accepted, old))
        return kept

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

    def exclude_from_weight_decay(self, *args: Any, **kwargs: Any) -> None:
        """Passed on to the inner optimizer."""
        self.inner_optimizer.exclude_from_weight_decay(*args, **kwargs)

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Passed on to the inner optimizer."""
        self.inner_optimizer.finalize_variable_values(var_list)


def apply_summed(optimizer: Any, grads: list[Any], variables: list[Any]) -> None:
    """`apply` of any optimizer, on gradients that are already summed over the replicas."""
    if isinstance(optimizer, (Engine, WrappingEngine)):
        optimizer._apply(grads, variables, summed=True)
        return
    if backend.replicas() > 1:  # over which Keras is going to sum
        grads = [g / backend.replicas() for g in grads]
    native = [backend.to_native(g) if isinstance(g, gradients.Touched) else g for g in grads]
    optimizer.apply(native, variables)


def innermost(optimizer: Any) -> Any:
    while isinstance(optimizer, WrappingEngine):
        optimizer = optimizer.inner_optimizer
    return optimizer


def moves_by_rows(wrapper: WrappingEngine, index: int) -> bool:
    """Whether the wrapped optimizer leaves rows without gradient alone in this variable."""
    inner = innermost(wrapper)
    return isinstance(inner, Engine) and inner.moves_by_rows(index)


def state_of(optimizer: Any, index: int) -> list[Any]:
    """The state that any optimizer keeps for its variable number `index`."""
    if isinstance(optimizer, WrappingEngine):
        own = list(optimizer._slot_variables[index].values())
        return own + state_of(optimizer.inner_optimizer, index)
    if isinstance(optimizer, Engine):
        return list(optimizer._slot_variables[index].values())
    # Keras names state after the variable. No other tie between the two is the same in all of its
    # optimizers.
    variable = optimizer._trainable_variables[index]
    prefix = path_of(variable).replace("/", "_") + "_"
    return [
        v
        for v in optimizer.variables
        if v.name.startswith(prefix) and tuple(v.shape) == tuple(variable.shape)
    ]


def _where(condition: Any, new: Any, old: Any) -> Any:
    return new if condition is None else ops.where(condition, new, old)


def check_inner(inner: Any, owner: str) -> Any:
    if not isinstance(inner, (str, dict, keras.optimizers.Optimizer)):
        raise TypeError(
            "Argument `inner_optimizer` must be a keras.optimizers.Optimizer, or a name or "
            f"configuration of one. Received: {inner!r}"
        )
    inner = keras.optimizers.get(inner)
    if isinstance(inner, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "A LossScaleOptimizer must be the outermost optimizer: write "
            f"LossScaleOptimizer({owner}(...)) instead of {owner}(LossScaleOptimizer(...))."
        )
    return inner


def _of_inner(wrapper: WrappingEngine, name: str) -> Any:
    inner = wrapper.__dict__.get("inner_optimizer")
    return None if inner is None else getattr(inner, name)


def _set_on_inner(wrapper: WrappingEngine, name: str, value: Any) -> None:
    inner = wrapper.__dict__.get("inner_optimizer")
    if inner is not None:
        setattr(inner, name, value)
