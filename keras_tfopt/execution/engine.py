"""The backend-neutral part of the engine: what happens to gradients, and in which order."""

from __future__ import annotations

import collections
import dataclasses
import math
import numbers
import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops
from keras.src.utils import tracking

from keras_tfopt.execution.rows import RowGradient, _fits
from keras_tfopt.execution.select import backend
from keras_tfopt.execution.state import Like, Rows, Slot

MASTER = "master_weight"


@dataclasses.dataclass(frozen=True)
class Kind:
    """Everything static about one call of a rule. Equal kinds can share compiled code."""

    mode: str  # "dense", "rows", "touched" (rows of a dense gradient that are not zero) or "move"
    dtype: str  # of the arithmetic
    decays: bool  # whether the base's decoupled weight decay applies
    named: bool = False  # rows: all of them are touched, also where the gradient is zero
    path: str | None = None  # for rules that may look at it


@dataclasses.dataclass
class Update:
    """One variable, its slots, its gradient."""

    kind: Kind
    index: int
    variable: Any
    names: tuple[str, ...]  # of the slots
    slots: list[Any]
    gradient: Any  # a tensor or, in mode "rows", a RowGradient of distinct rows
    mask: Any = None  # mode "move": which rows the variable moves in

    def writes(self, new: list[Any], rows: list[Any] | None = None) -> list[tuple[Any, Any, Any]]:
        """What is to be assigned, from new values of variable and slots (None: unchanged)."""
        variables = [self.variable, *self.slots]
        rows = rows or [None] * len(new)
        return [
            _write(v, n, i) for v, n, i in zip(variables, new, rows, strict=True) if n is not None
        ]


def _write(variable: Any, value: Any, indices: Any = None) -> tuple[Any, Any, Any]:
    if isinstance(value, Rows):
        return variable, ops.reshape(value.index, (1,)), ops.expand_dims(value.value, 0)
    return variable, indices, value


class Cache(dict):
    """Compiled functions of one optimizer: copies of the optimizer start with none."""

    def __deepcopy__(self, memo: dict) -> Cache:
        return Cache()

    def __reduce__(self) -> tuple:
        return (Cache, ())


class Engine(keras.optimizers.Optimizer):
    """Runs a rule over the variables of a model, on any backend.

    Subclasses (see `keras_tfopt.Algorithm`) provide `scope`, `sparse`, `slots`, `scalars` and
    `update`.
    """

    scope = "element"
    sparse = "dense"
    _own_weight_decay = False
    built: bool
    _learning_rate: Any

    def __init__(
        self,
        learning_rate: Any,
        *,
        row_variables: Any = r"(^|/)embeddings$",
        master_weights: bool = False,
        **base: Any,
    ):
        self._lock = False
        learning_rate = _check_learning_rate(learning_rate)
        _check_base(base, type(self).__name__)
        super().__init__(learning_rate, **base)
        self.row_variables = row_variables
        self._row_patterns = compile_patterns("row_variables", row_variables)
        if not isinstance(master_weights, bool):
            raise TypeError(
                f"Argument `master_weights` must be a bool. Received: {master_weights!r}"
            )
        self.master_weights = master_weights
        self._initial_learning_rate = learning_rate
        self._no_decay_patterns: list[str] = []
        self._slot_names: tuple[str, ...] | None = None
        self._fast = Cache()

    # ---- What a rule provides -------------------------------------------------------------------

    def slots(self, like: Any) -> dict[str, Slot]:
        """State kept for one variable: names and `Slot` descriptions."""
        return {}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        """What is computed once per step: bias corrections, decayed hyperparameters."""
        return {"lr": lr}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        """The rule: from gradient, variable, slots and scalars to new variable and new slots."""
        raise NotImplementedError(f"{type(self).__name__} must define `update(self, g, x, s, t)`.")

    def hyperparameters(self) -> dict[str, Any]:
        """What the rule may read from `self`."""
        return {}

    # ---- State ----------------------------------------------------------------------------------

    @tracking.no_automatic_dependency_tracking
    def build(self, variables: Sequence[Any]) -> None:
        """Creates the state for these variables; called by `fit` and by the first `apply`."""
        if self.built:
            return
        variables = list(variables)
        likes = [self._like(variable) for variable in variables]
        with backend.build_scope(self):
            self._widen_learning_rate(likes)
            self._likes = likes
            self._trainable_variables = variables
            for index, variable in enumerate(variables):
                self._trainable_variables_indices[self._var_key(variable)] = index
            self._is_row_variable = [
                bool(like.shape) and any(p.search(like.path) for p in self._row_patterns)
                for like in likes
            ]
            self._decays = [self._decays_at(v, l) for v, l in zip(variables, likes, strict=True)]
            self._refused_rows = self.add_variable((), "zeros", "int32", name="refused_rows")
            self._slot_variables = [
                self._add_slots(v, like) for v, like in zip(variables, likes, strict=True)
            ]
            self._model_dtype = backend.widest([like.dtype for like in likes])
            self._model_slots = self._add_model_slots(likes) if self.scope == "model" else {}
            names = dict.fromkeys(name for slots in self._slot_variables for name in slots)
            self._slot_names = (*self._model_slots, *names)
            pairs = list(zip(variables, likes, strict=True))
            self._model_variables_moving_average = (
                [self._add_slot(v, l, "average", Slot(l.shape)) for v, l in pairs]
                if self.use_ema
                else []
            )
            self._accumulated_gradients = (
                [self._add_slot(v, l, "accumulator", Slot(l.shape)) for v, l in pairs]
                if self.gradient_accumulation_steps
                else []
            )
        self.built = True

    def slot(self, variable: Any, name: str) -> keras.Variable:
        """The state called `name` that belongs to `variable`.

        With scope "model", where state belongs to all variables together, `variable` is None.

        Raises:
            KeyError: if there is no such state; the message names what there is.
            ValueError: if the optimizer is not built, or not for this variable.
        """
        if not self.built:
            raise ValueError(
                f"{type(self).__name__} has no slots before it is built. "
                "Call `optimizer.build(variables)`."
            )
        if variable is None:
            slots, owner = self._model_slots, "all variables together"
        else:
            self._check_variables_are_known([variable])
            slots = self._slot_variables[self._get_variable_index(variable)]
            owner = repr(self._path(variable))
        if name not in slots:
            raise KeyError(
                f"{type(self).__name__} has no slot {name!r} for {owner}. "
                f"Slots there are: {sorted(slots)}"
            )
        return slots[name]

    @property
    def slot_names(self) -> tuple[str, ...]:
        """Names of the slots, in the order of creation."""
        if self._slot_names is not None:
            return self._slot_names
        like = Like((1,), keras.backend.floatx(), "")
        return tuple(self.slots([like] if self.scope == "model" else like))

    def _like(self, variable: Any) -> Like:
        dtype = keras.backend.standardize_dtype(variable.dtype)
        path = self._path(variable)
        if not dtype.startswith(("float", "bfloat")):
            raise TypeError(
                f"{type(self).__name__} updates floating-point variables. "
                f"Received: {path!r} of dtype {dtype}"
            )
        return Like(tuple(variable.shape), "float64" if dtype == "float64" else "float32", path)

    def _add_slots(self, variable: Any, like: Like) -> dict[str, Any]:
        if self._overwrite_variable_with_gradient(variable):
            return {}
        slots = dict(self.slots(like)) if self.scope != "model" else {}
        for name, slot in slots.items():
            if not isinstance(slot, Slot):
                raise TypeError(f"`slots` must give a Slot for {name!r}. Received: {slot!r}")
            if self.scope == "element" and tuple(slot.shape) != like.shape:
                raise ValueError(
                    f"Slot {name!r} of an elementwise rule must have the variable's shape "
                    f'{like.shape}. Received: {slot.shape}. Set `scope = "variable"` for others.'
                )
        if self.master_weights and keras.backend.standardize_dtype(variable.dtype) != like.dtype:
            slots[MASTER] = Slot(like.shape, lambda shape, dtype: backend.copy_of(variable, dtype))
        return {name: self._add_slot(variable, like, name, s) for name, s in slots.items()}

    def _add_model_slots(self, likes: list[Like]) -> dict[str, Any]:
        all_variables = Like((), self._model_dtype, self.name)
        return {
            name: self._add_slot(None, all_variables, name, slot)
            for name, slot in self.slots(likes).items()
        }

    def _add_slot(self, variable: Any, like: Like, name: str, slot: Slot) -> keras.Variable:
        initial = slot.initial
        if callable(initial):

            def initializer(shape: Any, dtype: Any = None) -> Any:
                return initial(shape, dtype)
        else:
            initializer = keras.initializers.Constant(initial)
        same_shape = tuple(slot.shape) == like.shape
        with backend.colocated(self, variable):
            return self.add_variable(
                shape=tuple(slot.shape),
                initializer=initializer,
                dtype=slot.dtype or like.dtype,
                layout=getattr(variable, "_layout", None) if same_shape else None,
                name=f"{like.path.replace('/', '_')}_{name}",
            )

    def _widen_learning_rate(self, likes: list[Like]) -> None:
        # Keras keeps the learning rate in floatx, which would round it for float64 variables.
        old = self._learning_rate
        wanted = backend.widest([like.dtype for like in likes])
        if not isinstance(old, keras.Variable) or wanted != "float64" or old.dtype == "float64":
            return
        value = float(backend.number(old))
        unchanged = math.isclose(value, self._initial_learning_rate, rel_tol=1e-6)
        new = self.add_variable(
            (),
            keras.initializers.Constant(self._initial_learning_rate if unchanged else value),
            dtype="float64",
            aggregation="only_first_replica",
            name="learning_rate",
        )
        self._untrack_variable(old)
        # Optimizer state is saved by position: the learning rate stays where Keras has it.
        self._variables.insert(1, self._variables.pop(self._variables.index(new)))
        self._learning_rate = new

    @staticmethod
    def _path(variable: Any) -> str:
        return getattr(variable, "path", None) or variable.name.split(":")[0]

    # ---- A step ---------------------------------------------------------------------------------

    @backend.outside_compiler
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Updates the variables by their gradients.

        Args:
            grads: A gradient for each variable: a tensor or array of the variable's shape, a
                `RowGradient`, a `tf.IndexedSlices`, a sparse COO tensor of torch, or None.
            trainable_variables: The variables. Needed unless the optimizer is built, and then a
                subset of what it was built for; None takes all of them in their order.

        Raises:
            ValueError: on wrong shapes, unknown variables, row indices out of range, or when there
                is no gradient at all. In eager steps nothing has been changed then.
        """
        grads, variables = self._pair(grads, trainable_variables)
        if not grads:
            return
        self._raise_refused()
        with keras.name_scope(self.name):
            grads, variables = self._filter_empty_gradients(grads, variables)
            grads = [self._checked(g, v) for g, v in zip(grads, variables, strict=True)]
            with backend.no_gradients():
                self._apply_checked(grads, variables)
        self._iterations.assign_add(1)

    def _apply_checked(self, grads: list[Any], variables: list[Any]) -> None:
        grads, variables = self._overwrite_variables_directly_with_gradients(grads, variables)
        if not grads:
            return
        grads = backend.reduce_replicas(self, grads, variables)
        grads = [_summed(g, self._refused_rows) for g in grads]
        if self.loss_scale_factor is not None:
            grads = [g / self.loss_scale_factor for g in grads]
        if not self.gradient_accumulation_steps:
            self._step(grads, variables)
            return
        accumulators = [self._accumulated_gradients[self._get_variable_index(v)] for v in variables]
        for accumulator, g in zip(accumulators, grads, strict=True):
            backend.accumulate(self, accumulator, g)
        micro_steps = self.gradient_accumulation_steps

        def step() -> None:
            means = [backend.read(a) / micro_steps for a in accumulators]
            self._step(means, variables)
            for accumulator in self._accumulated_gradients:
                zeros = ops.zeros(accumulator.shape, accumulator.dtype)
                backend.commit(self, [(accumulator, None, zeros)])

        last = ops.equal((backend.read(self._iterations) + 1) % micro_steps, 0)
        backend.run_if(self, last, step)

    def _step(self, grads: list[Any], variables: list[Any]) -> None:
        grads = self._clipped(grads)
        lr, step = self._get_current_learning_rate(), self._step_number()
        if self.scope == "model":
            self._step_model(grads, variables, self._scalars(lr, step, self._model_dtype))
        else:
            updates = [self._plan(g, v) for g, v in zip(grads, variables, strict=True)]
            dtypes = sorted({u.kind.dtype for u in updates})
            backend.execute(self, updates, {d: self._scalars(lr, step, d) for d in dtypes})
        if self.use_ema:
            self._update_averages()
        for variable in variables:
            if variable.constraint is not None:
                backend.commit(self, [(variable, None, variable.constraint(variable))])

    def _step_number(self) -> Any:
        """1 in the first step; accumulated micro-steps are one."""
        done = backend.read(self._iterations)
        return done // (self.gradient_accumulation_steps or 1) + 1

    def _step_model(self, grads: list[Any], variables: list[Any], scalars: dict[str, Any]) -> None:
        """One call for all variables; those without a gradient count with zeros and stay."""
        dtype = self._model_dtype
        given = {self._get_variable_index(v): g for v, g in zip(variables, grads, strict=True)}
        g, x, masters = [], [], []
        for index, variable in enumerate(self._trainable_variables):
            gradient = given.get(index)
            if isinstance(gradient, _Rows):
                gradient = backend.to_dense(gradient)
            g.append(ops.zeros(variable.shape, dtype) if gradient is None else gradient)
            x.append(backend.read(variable))
            master = self._slot_variables[index].get(MASTER)
            masters.append(None if master is None else backend.read(master))
        slots = {name: backend.read(v) for name, v in self._model_slots.items()}
        key = ("model", tuple(sorted(given)))
        call = bind_model_rule(self, self._likes, self._decays, dtype)
        x, masters, slots = backend.compiled(self, key, call)(g, x, masters, slots, scalars)
        writes = [_write(self._model_slots[name], value) for name, value in slots.items()]
        for index in given:
            writes.append((self._trainable_variables[index], None, x[index]))
            if masters[index] is not None:
                writes.append((self._slot_variables[index][MASTER], None, masters[index]))
        backend.commit(self, writes)

    def _pair(self, grads: Sequence[Any], variables: Sequence[Any] | None) -> tuple[list, list]:
        grads = list(grads)
        if variables is None:
            if not self.built:
                raise ValueError(
                    "`trainable_variables` can only be left out once the optimizer is built. "
                    "Pass them, or call `optimizer.build(variables)` first."
                )
            variables = self._trainable_variables
        variables = list(variables)
        if len(grads) != len(variables):
            raise ValueError(
                f"There must be a gradient (or None) for each variable. Received: {len(grads)} "
                f"gradients for {len(variables)} variables"
            )
        if variables and not self.built:
            with keras.name_scope(self.name):
                self.build(variables)
        self._check_variables_are_known(variables)
        return grads, variables

    def _checked(self, gradient: Any, variable: Any) -> Any:
        """The gradient as a tensor or RowGradient of the dtype of the arithmetic, or an error."""
        like = self._likes[self._get_variable_index(variable)]
        named = isinstance(gradient, RowGradient)
        rows = gradient if named else backend.from_native(gradient, like.shape)
        if rows is None:
            gradient = ops.convert_to_tensor(gradient)
            if not _fits(gradient.shape, like.shape):
                raise ValueError(
                    f"The gradient of {like.path!r} must have the variable's shape {like.shape}. "
                    f"Received: shape {tuple(gradient.shape)}"
                )
            return ops.cast(gradient, like.dtype)
        if not like.shape or not _fits(rows.shape, like.shape):
            raise ValueError(
                f"The row gradient of {like.path!r} must be for the variable's shape {like.shape}. "
                f"Received: {rows!r}"
            )
        limits = backend.limits(rows.indices)
        if limits is not None and (limits[0] < 0 or limits[1] >= like.shape[0]):
            raise ValueError(
                f"Row indices of the gradient of {like.path!r} must lie between 0 and "
                f"{like.shape[0] - 1}. Received: indices from {limits[0]} to {limits[1]}"
            )
        values = ops.cast(rows.values, like.dtype)
        return _Rows(values, rows.indices, like.shape, named)

    def _plan(self, gradient: Any, variable: Any) -> Update:
        """Decides how the rule meets this gradient: as a whole or in rows."""
        index = self._get_variable_index(variable)
        like = self._likes[index]
        by_rows = self._is_row_variable[index] and self.sparse != "dense"
        rows = isinstance(gradient, _Rows)
        named = rows and gradient.named
        mode, mask = "dense", None
        if self.sparse == "rows" and (named or by_rows):
            mode = "rows" if rows else "touched"
        elif self.sparse == "move_rows" and (named or by_rows):
            mode = "move"
            mask = backend.row_mask(gradient)
        if rows and mode != "rows":
            gradient = backend.to_dense(gradient)
        kind = Kind(
            mode=mode,
            dtype=like.dtype,
            decays=self._decays[index],
            named=named and mode == "rows",
            path=None if self.scope == "element" else like.path,
        )
        slots = self._slot_variables[index]
        return Update(kind, index, variable, tuple(slots), list(slots.values()), gradient, mask)

    def _scalars(self, lr: Any, step: Any, dtype: str) -> dict[str, Any]:
        lr, step = _scalar(lr, dtype), _scalar(step, dtype)
        scalars = dict(self.scalars(lr, step))
        scalars["step"] = step
        if any(self._decays):
            scalars["weight_decay_rate"] = lr * self.weight_decay
        return {name: _scalar(value, dtype) for name, value in scalars.items()}

    def rule_call(self, update: Update) -> Callable[..., tuple[Any, list[Any]]]:
        """The pure function `(g, x, slots, scalars, mask=None) -> x, slots` for one update."""
        key = ("rule", update.kind, update.names)
        if key not in self._fast:
            self._fast[key] = bind_rule(self, update.kind, update.names)
        return self._fast[key]

    # ---- Base options ---------------------------------------------------------------------------

    def _clipped(self, grads: list[Any]) -> list[Any]:
        if self.clipvalue is not None:
            return [_map(lambda v: ops.clip(v, -self.clipvalue, self.clipvalue), g) for g in grads]
        if self.clipnorm is not None:
            most = self.clipnorm
            return [_scaled(g, most / ops.maximum(_norm([g]), most)) for g in grads]
        if self.global_clipnorm is not None:
            norm = _norm(grads)
            scale = self.global_clipnorm / ops.maximum(norm, self.global_clipnorm)
            # A norm that is not finite must not let the finite gradients pass as if all were well.
            scale = scale + (norm - norm)
            return [_scaled(g, scale) for g in grads]
        return grads

    def exclude_from_weight_decay(
        self, var_list: Sequence[Any] | None = None, var_names: Sequence[str] | None = None
    ) -> None:
        """Exempts variables from weight decay. To be called before the optimizer is built.

        Args:
            var_list: Variables to exempt.
            var_names: Regular expressions; a variable is exempt if one is found in its path.
        """
        if self.built:
            raise ValueError(
                "`exclude_from_weight_decay` must be called before the optimizer is built, because "
                "compiled steps have the selection built in."
            )
        names = [var_names] if isinstance(var_names, str) else list(var_names or [])
        compile_patterns("var_names", names)
        self._no_decay_patterns = names + [
            f"^{re.escape(self._path(variable))}$" for variable in var_list or []
        ]

    def _decays_at(self, variable: Any, like: Like) -> bool:
        if self.weight_decay is None or self._own_weight_decay:
            return False
        return not any(re.search(pattern, like.path) for pattern in self._no_decay_patterns)

    def _update_averages(self) -> None:
        count = self._step_number()
        every = self.ema_overwrite_frequency
        for variable, average in zip(
            self._trainable_variables, self._model_variables_moving_average, strict=True
        ):
            dtype = keras.backend.standardize_dtype(average.dtype)
            x, a = backend.read(variable), backend.read(average)
            value = ops.cast(x, dtype)
            a = self.ema_momentum * a + (1 - self.ema_momentum) * value
            a = ops.where(ops.equal(count, 1), value, a)
            backend.commit(self, [(average, None, a)])
            if every:
                x = ops.where(ops.equal(count % every, 0), ops.cast(a, x.dtype), x)
                backend.commit(self, [(variable, None, x)])

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Puts the averages into the variables when training ends, if `use_ema` asks for it."""
        if not self.use_ema:
            return
        for variable in var_list:
            average = self._model_variables_moving_average[self._get_variable_index(variable)]
            variable.assign(backend.copy_of(average, variable.dtype))

    def _raise_refused(self) -> None:
        refused = backend.limits(backend.read(self._refused_rows))
        if refused is not None and refused[1] > 0:
            self._refused_rows.assign(0)
            raise ValueError(
                "Row indices of gradients must lie between 0 and the number of rows less one. "
                f"Received: {refused[1]} indices out of range in earlier compiled steps, which "
                "left them out"
            )


def bind_rule(
    rule: Any, kind: Kind, names: tuple[str, ...]
) -> Callable[..., tuple[Any, list[Any]]]:
    """Puts around a rule what belongs to every rule: casts, decay, master weights, the row mask.

    The function is pure and everything static is bound to it, so that it can be compiled. It
    returns the new variable and the new slots in the order of `names`, None for slots that stay.
    """
    slots_of = collections.namedtuple("Slots", [n for n in names if n != MASTER])  # type: ignore[misc]
    rows = kind.mode in ("rows", "touched")
    master_at = names.index(MASTER) if MASTER in names else None

    def call(g: Any, x: Any, slots: Sequence[Any], scalars: dict, mask: Any = None) -> tuple:
        old, kept = x, list(slots)
        master = None if master_at is None else kept.pop(master_at)
        x = start = _current(x, master, kind.dtype)
        if kind.decays:
            x = x - scalars["weight_decay_rate"] * x
        t = Scalars(scalars, kind.path, rows)
        x, new = rule.update(g, x, slots_of(*kept), t)
        if mask is not None:
            x = ops.where(mask, x, start)
        _check_described(rule, new, names)
        changed = [x if name == MASTER else new.get(name) for name in names]
        return ops.cast(x, old.dtype), changed

    return call


def bind_model_rule(
    rule: Any, likes: list[Like], decays: list[bool], dtype: str
) -> Callable[..., tuple[list[Any], list[Any], dict[str, Any]]]:
    """`bind_rule` for a rule over all variables at once."""
    paths = tuple(like.path for like in likes)

    def call(g: list, x: list, masters: list, slots: dict, scalars: dict) -> tuple:
        old = x
        x = [_current(value, master, dtype) for value, master in zip(old, masters, strict=True)]
        if any(decays):
            rate = scalars["weight_decay_rate"]
            x = [v - rate * v if decay else v for v, decay in zip(x, decays, strict=True)]
        t = Scalars(scalars, paths, rows=False)
        s = collections.namedtuple("Slots", slots)(**slots)
        x, new = rule.update([ops.cast(v, dtype) for v in g], x, s, t)
        _check_described(rule, new, slots)
        masters = [None if m is None else v for m, v in zip(masters, x, strict=True)]
        return [ops.cast(v, o.dtype) for v, o in zip(x, old, strict=True)], masters, new

    return call


def _current(variable: Any, master: Any, dtype: str) -> Any:
    """The value to compute with: the master copy, except where the variable was assigned since."""
    x = ops.cast(variable, dtype)
    if master is None:
        return x
    return ops.where(ops.equal(ops.cast(master, variable.dtype), variable), master, x)


def _check_described(rule: Any, new: Any, described: Any) -> None:
    for name in new:
        if name not in described:
            raise KeyError(
                f"{type(rule).__name__}.update returned the slot {name!r}, which `slots` does not "
                f"describe. Described: {list(described)}"
            )


class Scalars:
    """What rules see as `t`: the step's scalars by name, `step`, and static facts of the call."""

    def __init__(self, scalars: dict[str, Any], path: Any, rows: bool):
        for name, value in scalars.items():
            setattr(self, name, value)
        self.path = path
        self.rows = rows


class _Rows(RowGradient):
    """Rows under way through the engine; `named` if the user named them, zero or not."""

    def __init__(self, values: Any, indices: Any, shape: tuple[int, ...], named: bool):
        self.values, self.indices, self.shape, self.named = values, indices, shape, named

    def map(self, function: Any) -> _Rows:
        return _Rows(function(self.values), self.indices, self.shape, self.named)


def _summed(gradient: Any, refused: Any) -> Any:
    if not isinstance(gradient, _Rows):
        return gradient
    indices, values = backend.sum_repeated(
        gradient.indices, gradient.values, gradient.shape, refused
    )
    return _Rows(values, indices, gradient.shape, gradient.named)


def _scalar(value: Any, dtype: str) -> Any:
    # Python numbers are never cast: on the way they would be rounded to float32 on torch.
    if isinstance(value, keras.Variable) or ops.is_tensor(value):
        return ops.cast(value, dtype)
    return ops.convert_to_tensor(value, dtype)


def _map(function: Any, gradient: Any) -> Any:
    return gradient.map(function) if isinstance(gradient, _Rows) else function(gradient)


def _scaled(gradient: Any, scale: Any) -> Any:
    return _map(lambda values: values * ops.cast(scale, values.dtype), gradient)


def _norm(grads: list[Any]) -> Any:
    values = [g.values if isinstance(g, _Rows) else g for g in grads]
    widest = backend.widest([keras.backend.standardize_dtype(v.dtype) for v in values])
    return ops.sqrt(sum(ops.cast(ops.sum(ops.square(v)), widest) for v in values))


def compile_patterns(argument: str, patterns: Any) -> list[re.Pattern]:
    """Regular expressions from None, a string, a compiled pattern, or several of them."""
    if patterns is None:
        return []
    if isinstance(patterns, (str, re.Pattern)):
        patterns = [patterns]
    try:
        return [re.compile(pattern) for pattern in patterns]
    except (TypeError, re.error) as error:
        raise type(error if isinstance(error, TypeError) else ValueError())(
            f"Argument `{argument}` must be a regular expression or a list of them ({error}). "
            f"Received: {patterns!r}"
        ) from None


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _check_learning_rate(value: Any) -> Any:
    if isinstance(value, keras.optimizers.schedules.LearningRateSchedule) or callable(value):
        return value
    if not _is_number(value):
        raise TypeError(
            "Argument `learning_rate` must be a number >= 0, a "
            "keras.optimizers.schedules.LearningRateSchedule or a callable without arguments. "
            f"Received: {value!r}"
        )
    value = float(value)
    if not value >= 0 or math.isinf(value):
        raise ValueError(f"Argument `learning_rate` must be finite and >= 0. Received: {value!r}")
    return value


def _check_base(base: dict[str, Any], owner: str) -> None:
    """Keras takes most of its base options unseen; a wrong one would only show in the numbers."""
    for name in ("weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "loss_scale_factor"):
        value = base.get(name)
        if value is None:
            continue
        lowest = ">= 0" if name == "weight_decay" else "> 0"
        if not _is_number(value):
            raise TypeError(
                f"Argument `{name}` must be None or a number {lowest}. Received: {value!r}"
            )
        if not (value >= 0 if name == "weight_decay" else value > 0) or math.isinf(value):
            raise ValueError(
                f"Argument `{name}` must be None or a finite number {lowest}. Received: {value!r}"
            )
    steps = base.get("gradient_accumulation_steps")
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, numbers.Integral)):
        raise TypeError(
            "Argument `gradient_accumulation_steps` must be None or an integer >= 2. "
            f"Received: {steps!r}"
        )
    momentum = base.get("ema_momentum")
    if momentum is not None and not (_is_number(momentum) and 0 <= momentum <= 1):
        raise ValueError(f"Argument `ema_momentum` must lie in [0, 1]. Received: {momentum!r}")
