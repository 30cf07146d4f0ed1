"""The backend-neutral part of the engine: what happens to gradients, and in which order."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
from keras import ops
from keras.src.utils import tracking

from keras_tfopt.execution import averages, gradients, persistence, trial
from keras_tfopt.execution.binding import (
    HYPERPARAMETER,
    MASTER,
    Cache,
    Kind,
    ModelRule,
    ModelStep,
    ModelVariable,
    Powers,
    Update,
    bind_rule,
    rounds,
    scalar,
    widest,
    write,
)
from keras_tfopt.execution.building import (
    add_slot,
    are_same,
    check_distinct,
    check_known,
    constant,
    describe,
    listed,
    mend_loss_scaling,
    pair,
    path_of,
)
from keras_tfopt.execution.construction import Formulas
from keras_tfopt.execution.options import (
    DEFAULTS,
    changes,
    check_base,
    check_learning_rate,
    check_savable,
    current,
)
from keras_tfopt.execution.representation import Shown
from keras_tfopt.execution.rows import mark_as_taken
from keras_tfopt.execution.select import backend
from keras_tfopt.execution.selection import (
    check_choice,
    excluding,
    is_chosen,
    settled,
    warn_unmatched,
)
from keras_tfopt.execution.state import Like, Slot
from keras_tfopt.execution.verb_arguments import pairs_of


class Engine(Formulas, Shown, keras.optimizers.Optimizer):
    """Runs a rule over the variables of a model, on any backend.

    Subclasses (see `keras_tfopt.Rule`) provide `scope`, `sparse`, `slots`, `scalars` and
    `update`.
    """

    scope = "element"
    sparse = "dense"
    flat = False
    # Whether the rule as a whole is worth compiling. Where it decomposes matrices, XLA on a CPU is
    # slower by far than the backend's own routines.
    fused = True
    second_order = False
    # Whether a gradient that is not finite would spoil the state for good.
    needs_finite = False
    is_engine = True
    takes_options = True  # those that all optimizers have, of which wrappers have none
    _own_weight_decay = False
    _no_decay_patterns: Any = ()  # of `exclude_from_weight_decay`
    _kept_powers: tuple[str, ...] = ()
    _powers: dict[str, Any] = {}
    built: bool
    _learning_rate: Any
    # Of each variable, in the order of building.
    _likes: list[Like]
    _trainable_variables: list[Any]
    _is_row_variable: list[bool]
    _sparse: list[str]
    _decays: list[bool]
    _slot_variables: list[dict[str, Any]]
    _model_variables_moving_average: list[Any]
    _accumulated_gradients: list[Any]
    _touched_rows: list[Any]

    def __init__(
        self,
        learning_rate: Any,
        *,
        row_variables: Any = DEFAULTS["row_variables"],
        master_weights: bool = False,
        maximize: bool = False,
        **base: Any,
    ):
        if self.is_formula():
            return
        self._lock = False
        learning_rate = check_learning_rate(learning_rate)
        check_base(type(self), base)
        super().__init__(learning_rate, **base)
        self.row_variables = check_choice("row_variables", row_variables)
        for name, value in (("master_weights", master_weights), ("maximize", maximize)):
            if not isinstance(value, bool):
                raise TypeError(f"Argument `{name}` must be a bool. Received: {value!r}")
        self.master_weights, self.maximize = master_weights, maximize
        self._initial_learning_rate = learning_rate
        self._no_decay_patterns = []
        self._slot_names: tuple[str, ...] | None = None
        self._waiting: persistence.Saved | None = None
        self._fast = Cache()
        self._statics = Cache()
        self._changing: dict[str, Any] = {}
        self._engine_attributes = frozenset([*vars(self), "_engine_attributes", "_follows"])

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

    def sums(self, g: Any, s: Any, t: Any) -> dict[str, Any]:
        """With scope "model": sums over entries, by name."""
        return {}

    def solve(self, s: Any, t: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """With scope "model": what follows from the sums, and new values of small slots."""
        return {}, {}

    def derived(self, slots: dict[str, Any]) -> dict[str, Any]:
        """With scope "model": slots that follow from the others, so that no original keeps them."""
        return {}

    def takes_rows(self, like: Any) -> bool:
        """Whether `sparse` holds for this variable; where not, row gradients are as if dense."""
        return True

    def facts(self, path: str) -> dict[str, Any]:
        """What a rule of scope "variable" wants to know of a variable, from its path."""
        return {"path": path}

    def facts_of(self, like: Like) -> dict[str, Any]:
        """The same from its shape, dtype and path; for a rule that lets functions choose."""
        return self.facts(like.path)

    def choices(self) -> dict[str, Any]:
        """Arguments that choose variables, by name; a part that matches none has `build` warn."""
        excluded = [] if self.weight_decay is None else self._no_decay_patterns
        return {"row_variables": self.row_variables, "exclude_from_weight_decay": excluded}

    def settle(self, likes: Sequence[Like]) -> None:
        """Looks up the paths of `choices` among those of the model."""
        self.row_variables = settled(self.row_variables, likes)
        self._no_decay_patterns = settled(self._no_decay_patterns, likes)

    def hyperparameters(self) -> dict[str, Any]:
        """What the rule may read from `self`."""
        return {}

    def rule_now(self, dtype: str) -> Any:
        """The rule with the values that its hyperparameters have at the step to come."""
        return self.formula(self._values_now(self._changing_hyperparameters(), dtype))

    def _changing_hyperparameters(self) -> dict[str, Any]:
        own = self.hyperparameters()
        return {name: v for name, v in own.items() if name != "global_step" and changes(v)}

    def _values_now(self, changing: dict[str, Any], dtype: str) -> dict[str, Any]:
        return {n: scalar(current(v, self._iterations), dtype) for n, v in changing.items()}

    def get_config(self) -> dict[str, Any]:
        check_savable("learning_rate", self._learning_rate)
        return super().get_config()

    # ---- State ----------------------------------------------------------------------------------

    @tracking.no_automatic_dependency_tracking
    def build(self, variables: Sequence[Any]) -> None:
        """Creates the state for these variables; called by `fit` and by the first `apply`."""
        variables = listed("variables", variables)
        likes = [describe(variable, type(self).__name__) for variable in variables]
        mend_loss_scaling(likes)
        if self.built:
            return
        self.settle(likes)
        warn_unmatched(type(self).__name__, self.choices(), likes)
        # A variable among them is part of the state: Keras has tracked it as an attribute.
        self._changing = self._changing_hyperparameters()
        if not type(self).__module__.startswith("keras_tfopt."):  # those are known to be right
            trial.check_rule(self, likes)
        with backend.build_scope(self, variables):
            self._widen_learning_rate(likes)
            self._refused_rows = self.add_variable((), "zeros", "int32", name="refused_rows")
            wide = widest([like.dtype for like in likes])
            self._powers = {
                name: self.add_variable((), constant(math.nan), wide, name=f"{name}_power")
                for name in self._kept_powers
                if name in self._changing
            }
            self._likes, self._trainable_variables = [], []
            self._is_row_variable, self._sparse, self._decays = [], [], []
            self._slot_variables = []
            if self.use_ema:  # else Keras's callback would take them for averages
                self._model_variables_moving_average = []
            self._accumulated_gradients, self._touched_rows = [], []
            self._add_variables(variables, likes)
            self._model_dtype = widest([like.dtype for like in likes])
            self._model_slots = self._add_model_slots(likes) if self.scope == "model" else {}
            names = dict.fromkeys(name for slots in self._slot_variables for name in slots)
            self._slot_names = (*self._model_slots, *names)
        self.built = True
        persistence.restore_waiting(self, self.variables)

    @tracking.no_automatic_dependency_tracking
    def extend(self, variables: Sequence[Any]) -> None:
        """Creates the state for further variables, which the optimizer knows from then on.

        Raises:
            ValueError: with scope "model", where the state belongs to all variables together.
        """
        if self.scope == "model":
            raise ValueError(
                f"{type(self).__name__} keeps state of all variables together, so it must be built "
                "for all that it is going to update. Received, beyond those: "
                f"{[path_of(variable) for variable in variables]}"
            )
        likes = [describe(variable, type(self).__name__) for variable in variables]
        with backend.build_scope(self, variables):
            self._widen_learning_rate(likes)
            self._add_variables(list(variables), likes)
        names = [*(self._slot_names or ()), *(n for s in self._slot_variables for n in s)]
        self._slot_names = tuple(dict.fromkeys(names))

    def _add_variables(self, variables: list[Any], likes: list[Like]) -> None:
        pairs = list(zip(variables, likes, strict=True))
        for variable, like in pairs:
            self._trainable_variables_indices[self._var_key(variable)] = len(self._likes)
            self._likes.append(like)
            self._trainable_variables.append(variable)
            mark_as_taken(variable)
            is_row_variable = bool(like.shape) and is_chosen(like, self.row_variables)
            self._is_row_variable.append(is_row_variable)
            self._sparse.append(self.sparse if self.takes_rows(like) else "dense")
            self._decays.append(self._decays_at(variable, like))
            self._slot_variables.append(self._add_slots(variable, like))
        if self.use_ema:
            # Averages start at the variables: training may end before there was a step.
            self._model_variables_moving_average += [
                add_slot(self, v, l, "average", Slot(l.shape, "variable")) for v, l in pairs
            ]
        if self.gradient_accumulation_steps:
            self._accumulated_gradients += [
                add_slot(self, v, l, "accumulator", Slot(l.shape)) for v, l in pairs
            ]
        # A sum does not tell which rows were named: their gradient may be zero.
        # No dictionary, which a tf.train.Checkpoint wants to have strings for keys.
        self._touched_rows += [
            add_slot(self, v, l, "touched_rows", Slot(l.shape[:1], 0, "bool"))
            if self.gradient_accumulation_steps and sparse != "dense" and l.shape
            else None
            for (v, l), sparse in zip(pairs, self._sparse[-len(pairs) :], strict=True)
        ]

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
            check_known(self, [variable])
            slots = self._slot_variables[self._get_variable_index(variable)]
            owner = repr(path_of(variable))
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

    def _add_slots(self, variable: Any, like: Like) -> dict[str, Any]:
        if self._overwrite_variable_with_gradient(variable):
            return {}
        slots = dict(self.slots(like)) if self.scope != "model" else {}
        for name, slot in slots.items():
            if self.scope == "element" and tuple(slot.shape) != like.shape:
                raise ValueError(
                    f"Slot {name!r} of an elementwise rule must have the variable's shape "
                    f'{like.shape}. Received: {slot.shape}. Set `scope = "variable"` for others.'
                )
        if self.master_weights and keras.backend.standardize_dtype(variable.dtype) != like.dtype:
            slots[MASTER] = Slot(like.shape, "variable")
        return {name: add_slot(self, variable, like, name, s) for name, s in slots.items()}

    def _add_model_slots(self, likes: list[Like]) -> dict[str, Any]:
        all_variables = Like((), self._model_dtype, self.name)
        entries = sum(math.prod(like.shape) for like in likes)
        slots = {}
        for name, slot in self.slots(likes).items():
            if None in slot.shape[:-1]:
                raise ValueError(
                    f"In the shape of slot {name!r}, None must stand in the last place. "
                    f"Received: {slot.shape}"
                )
            slot = dataclasses.replace(slot, shape=tuple(d or entries for d in slot.shape))
            slots[name] = add_slot(self, None, all_variables, name, slot)
        return slots

    def _widen_learning_rate(self, likes: list[Like]) -> None:
        # Keras keeps the learning rate in floatx, which would round it for float64 variables.
        old = self._learning_rate
        wanted = widest([like.dtype for like in likes])
        if not isinstance(old, keras.Variable) or wanted != "float64" or old.dtype == "float64":
            return
        value = float(backend.number(old))
        unchanged = math.isclose(value, self._initial_learning_rate, rel_tol=1e-6)
        new = self.add_variable(
            (),
            constant(self._initial_learning_rate if unchanged else value),
            dtype="float64",
            aggregation="only_first_replica",
            name="learning_rate",
        )
        self._untrack_variable(old)
        # Optimizer state is saved by position: the learning rate stays where Keras has it.
        self._variables.insert(1, self._variables.pop(self._variables.index(new)))
        self._learning_rate = new

    def _roles(self) -> list[str]:
        """What each of `variables` is, in order."""
        own = {id(v): name for v, name in [(self._iterations, "iteration")]}
        own[id(self._learning_rate)] = "learning_rate"
        for name, value in self.hyperparameters().items():
            own[id(value)] = HYPERPARAMETER + name
        if self.built:
            own[id(self._refused_rows)] = "refused_rows"
            for slots in [*self._slot_variables, self._model_slots]:
                own.update({id(variable): name for name, variable in slots.items()})
            own.update({id(v): f"{name}_power" for name, v in self._powers.items()})
            kept = getattr(self, "_model_variables_moving_average", ())
            own.update({id(v): "average" for v in kept})
            own.update({id(v): "accumulator" for v in self._accumulated_gradients})
            own.update({id(v): "touched_rows" for v in self._touched_rows})
        return [own[id(variable)] for variable in self.variables]

    def save_own_variables(self, store: Any) -> None:
        """Writes the state; `keras.Model.save` and `save_weights` call it."""
        persistence.save(store, self.variables, self._roles(), self._waiting)

    def load_own_variables(self, store: Any) -> None:
        """Reads the state, after checking that it is of this optimizer and of these shapes.

        Before the optimizer is built, slots are kept aside, and checked and restored by `build`.
        """
        self._waiting = persistence.load(
            store, self.variables, self._roles(), self.slot_names, self
        )

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets the state from arrays in the order of `variables`, after checking all of them."""
        persistence.set_weights(self, weights, self.variables, self._roles())

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
        self._apply(grads, trainable_variables)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        """`apply`, given pairs of a gradient and a variable; returns the number of steps done."""
        pairs = pairs_of(grads_and_vars)
        self.apply([g for g, _ in pairs], [variable for _, variable in pairs])
        return self._iterations

    def _apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None, summed: bool = False
    ) -> None:
        """`apply`, also of gradients that are already summed over the replicas."""
        grads, variables = pair(self, grads, trainable_variables)
        if not grads:
            return
        self.raise_refused()
        with keras.name_scope(self.name):
            grads, variables = self._filter_empty_gradients(grads, variables)
            grads = [
                gradients.check(g, v, self._likes[i])
                for g, v, i in zip(grads, variables, self._positions_of(variables), strict=True)
            ]
            self.refuse_unless_finite(grads, variables)
            if self.scope == "model":
                check_distinct(self, variables)
            with backend.no_gradients():
                self._apply_checked(grads, variables, summed)
        self._iterations.assign_add(1)

    def refuse_unless_finite(self, grads: list[Any], variables: list[Any]) -> None:
        """Raises an error for gradients that would spoil the state; compiled steps cannot."""
        if not self.needs_finite:
            return
        for g, variable in zip(grads, variables, strict=True):
            if backend.is_finite(gradients.values_of(g)) is False:
                raise ValueError(
                    f"{type(self).__name__} keeps sums of gradients and needs finite ones. "
                    f"Received: NaN or infinity in the gradient of {path_of(variable)!r}; nothing "
                    "has been changed. Under mixed_float16, use a LossScaleOptimizer"
                )

    def _apply_checked(self, grads: list[Any], variables: list[Any], summed: bool) -> None:
        grads, variables = self._overwrite_variables_directly_with_gradients(grads, variables)
        if not grads:
            return
        if not summed:
            grads = backend.reduce_replicas(grads)
        grads = [gradients.sum_repeated(g, self._refused_rows) for g in grads]
        if self.loss_scale_factor is not None:
            grads = [g / self.loss_scale_factor for g in grads]
        if not self.gradient_accumulation_steps:
            self._step(grads, variables)
            return
        places = self._positions_of(variables)
        accumulators = [self._accumulated_gradients[place] for place in places]
        touched = [
            self._touched_rows[place] if getattr(g, "named", False) else None
            for place, g in zip(places, grads, strict=True)
        ]
        for accumulator, rows, g in zip(accumulators, touched, grads, strict=True):
            backend.accumulate(self, accumulator, g)
            if rows is not None:
                backend.commit(self, [(rows, g.indices, ops.ones_like(g.indices, dtype="bool"))])
        micro_steps = self.gradient_accumulation_steps

        # A variable that is listed twice has one sum.
        owners = dict(zip(places, variables, strict=True))
        named = {place for place, rows in zip(places, touched, strict=True) if rows is not None}

        def step() -> None:
            means = [backend.read(self._accumulated_gradients[p]) / micro_steps for p in owners]
            masks = [backend.read(self._touched_rows[p]) if p in named else None for p in owners]
            self._step(means, list(owners.values()), masks)
            for sums in [*self._accumulated_gradients, *self._touched_rows]:
                if sums is not None:
                    backend.commit(self, [(sums, None, ops.zeros(sums.shape, sums.dtype))])

        last = ops.equal((backend.read(self._iterations) + 1) % micro_steps, 0)
        backend.run_if(self, last, step)

    def _step(
        self, grads: list[Any], variables: list[Any], touched: list[Any] | None = None
    ) -> None:
        touched = touched or [None] * len(grads)
        grads = gradients.clip_and_orient(self, grads)
        lr, step = self._get_current_learning_rate(), self._rule_step()
        if self.scope == "model":
            self._step_model(grads, variables, self._scalars(lr, step, self._model_dtype))
        else:
            places = self._positions_of(variables)
            plans = zip(grads, variables, places, touched, strict=True)
            updates = [self._plan(*each) for each in plans]
            dtypes = sorted({u.kind.dtype for u in updates})
            scalars = {d: self._scalars(lr, step, d) for d in dtypes}
            # A variable that is listed twice moves twice.
            repeats = not isinstance(places, range)
            for one in rounds(updates) if repeats else [updates]:
                backend.execute(self, one, scalars)
            self._advance_powers()
        if self.use_ema:
            self._update_averages()
        for variable in variables:
            if variable.constraint is not None:
                backend.commit(self, [(variable, None, variable.constraint(variable))])

    def _step_number(self) -> Any:
        """1 in the first step; accumulated micro-steps are one."""
        done = backend.read(self._iterations)
        return done // (self.gradient_accumulation_steps or 1) + 1

    def _rule_step(self) -> Any:
        """What the rule takes for the number of this step."""
        outside = getattr(self, "global_step", None)
        return self._step_number() if outside is None else backend.read(outside) + 1

    def _step_model(self, grads: list[Any], variables: list[Any], scalars: dict[str, Any]) -> None:
        """One call for all variables; those without a gradient count with zeros and stay."""
        given = dict(zip(self._positions_of(variables), grads, strict=True))
        members, end = [], 0
        for index, (variable, like) in enumerate(
            zip(self._trainable_variables, self._likes, strict=True)
        ):
            start, end = end, end + math.prod(like.shape)
            master = self._slot_variables[index].get(MASTER)
            members.append(ModelVariable(variable, like, start, end, self._decays[index], master))
        step = ModelStep(self._model_rule(), members, self._model_slots)
        g = [given.get(index) for index in range(len(members))]
        g = [backend.to_dense(one) if isinstance(one, gradients.Touched) else one for one in g]
        if not backend.run_in_pieces(self, step, g, scalars):
            self._run_whole(step, g, scalars)

    def _model_rule(self) -> ModelRule:
        key = "model rule"
        if key not in self._fast:
            along = [name for name, slot in self.slots(self._likes).items() if None in slot.shape]
            self._fast[key] = ModelRule(
                *self.rule_to_share(),
                list(self._model_slots),
                along,
                self._model_dtype,
                backend.norm,
            )
        return self._fast[key]

    def _run_whole(self, step: ModelStep, grads: list[Any], scalars: dict[str, Any]) -> None:
        members, names = step.variables, list(step.slots)
        owners = [i for i, one in enumerate(members) if one.master is not None]
        count, first = len(members), len(members) + len(owners)
        given = [i for i, g in enumerate(grads) if g is not None]

        def run(values: list[Any], inputs: tuple) -> tuple[None, list[tuple]]:
            copies = dict(zip(owners, values[count:first], strict=True))
            slots = dict(zip(names, values[first:], strict=True))
            x, masters, new = step.new_values(
                values[:count], [copies.get(i) for i in range(count)], slots, *inputs
            )
            writes = [write(i, x[i]) for i in given]
            writes += [write(count + n, masters[i]) for n, i in enumerate(owners) if i in given]
            writes += [write(first + names.index(name), value) for name, value in new.items()]
            return None, writes

        zeros = functools.partial(ops.zeros, dtype=self._model_dtype)
        grads = [
            zeros(one.like.shape) if g is None else g for one, g in zip(members, grads, strict=True)
        ]
        everything = [one.variable for one in members]
        everything += [members[i].master for i in owners] + list(step.slots.values())
        backend.run_in_place(self, ("model", tuple(given)), run, everything, (grads, scalars))

    def _plan(self, gradient: Any, variable: Any, index: int, touched: Any) -> Update:
        """Decides how the rule meets this gradient: as a whole or in rows.

        `touched` says which rows of a dense gradient were named when it was summed up, or is None.
        """
        rows = isinstance(gradient, gradients.Touched)
        mode, named, mask = "dense", False, None
        if self._sparse[index] != "dense":
            mode, named, mask = self._row_mode(gradient, index, touched)
        if rows and mode != "rows":
            gradient = backend.to_dense(gradient)
        kind, names, slots, cut = self._static(index, mode, named)
        like = self._likes[index]
        return Update(kind, index, like, variable, names, slots, cut, gradient, mask)

    def _row_mode(self, gradient: Any, index: int, touched: Any) -> tuple[str, bool, Any]:
        """Mode, whether rows are named, and mask of a variable whose rule may go by rows."""
        rows = isinstance(gradient, gradients.Touched)
        named = gradient.named if rows else touched is not None
        if not (named or self._is_row_variable[index]):
            return "dense", False, None
        if self._sparse[index] == "rows":
            return "rows" if rows else "touched", named, touched
        mask = backend.row_mask(gradient)
        if touched is not None:
            mask = mask | ops.reshape(touched, mask.shape)
        return "move", False, mask

    def moves_by_rows(self, index: int) -> bool:
        """Whether rows without gradient are left alone in this variable in ordinary training."""
        return self._sparse[index] != "dense" and self._is_row_variable[index]

    def _positions_of(self, variables: Sequence[Any]) -> Sequence[int]:
        """Places of variables in the order of building."""
        # Keras's own way to look them up costs as much as the update of small variables.
        if are_same(variables, self._trainable_variables):
            return range(len(variables))
        return [self._get_variable_index(variable) for variable in variables]

    def _static(self, index: int, mode: str, named: bool) -> tuple[Kind, tuple, list, tuple]:
        """The part of an update that is the same in every step: kind, names, slots and cut."""
        key = (index, mode, named)
        static = self._statics.get(key)
        if static is None:
            like, slots = self._likes[index], self._slot_variables[index]
            kind = Kind(
                mode=mode,
                dtype=like.dtype,
                decays=self._decays[index],
                named=named,
                facts=() if self.scope == "element" else tuple(self.facts_of(like).items()),
            )
            described = {} if self.scope == "model" else self.slots(like)
            cut = [bool(like.shape)]
            for name, slot in slots.items():
                by_row = described[name].by_row if name in described else None
                same = bool(like.shape) and tuple(slot.shape[:1]) == like.shape[:1]
                cut.append(same if by_row is None else by_row)
            static = self._statics[key] = kind, tuple(slots), list(slots.values()), tuple(cut)
        return static

    def _scalars(self, lr: Any, step: Any, dtype: str) -> dict[str, Any]:
        lr, step = scalar(lr, dtype), scalar(step, dtype)
        values = self._values_now(self._changing, dtype)
        # A power is known by its base, which must not be a variable: TensorFlow reads it anew.
        values |= {name: values[name] + 0 for name in self._powers}
        rule = self.formula(values) if values else self
        powers = {id(values[name]): self._product_of(name, values[name]) for name in self._powers}
        scalars = dict(rule.scalars(lr, Powers(powers, step) if powers else step))
        scalars["step"] = step
        changed = {n: getattr(rule, n) for n in self._changing_attributes()}
        scalars.update({HYPERPARAMETER + name: value for name, value in changed.items()})
        if any(self._decays):
            scalars["weight_decay_rate"] = lr * self.weight_decay
        return {name: scalar(value, dtype) for name, value in scalars.items()}

    def keep_powers(self, names: Iterable[str]) -> None:
        """Raises hyperparameters that change as TensorFlow 1 does, by the product of all steps.

        To be called before `build`. Otherwise `beta**step` is of the value in that step alone.
        """
        self._kept_powers = tuple(names)

    def _product_of(self, name: str, now: Any) -> Any:
        power = ops.cast(backend.read(self._powers[name]), now.dtype)
        return ops.where(ops.isnan(power), now, power)  # not a number before the first step

    def _advance_powers(self) -> None:
        for name, variable in self._powers.items():
            now = scalar(current(self._changing[name], self._iterations), variable.dtype)
            backend.commit(self, [(variable, None, self._product_of(name, now) * now)])

    @property
    def powers(self) -> dict[str, Any]:
        """By hyperparameter, the variable with the product that the next step uses."""
        return self._powers

    def rule_call(self, update: Update) -> Callable[..., tuple[Any, list[Any]]]:
        """The pure function `(g, x, slots, scalars, mask=None) -> x, slots` for one update."""
        key = ("rule", update.kind, update.names)
        if key not in self._fast:
            rule, changing = self.rule_to_share()
            self._fast[key] = bind_rule(rule, update.kind, update.names, backend.norm, changing)
        return self._fast[key]

    def rule_to_share(self) -> tuple[Any, tuple[str, ...]]:
        """The rule without the state, which a function that is shared would keep alive.

        With it come the names of attributes that are among the scalars of each step.
        """
        changing = self._changing_attributes()
        return self.with_attributes(dict.fromkeys(changing)), changing

    def _changing_attributes(self) -> tuple[str, ...]:
        return (*self._changing, *self._follows)

    # ---- Base options ---------------------------------------------------------------------------

    def exclude_from_weight_decay(
        self, var_list: Sequence[Any] | None = None, var_names: Sequence[str] | None = None
    ) -> None:
        """Exempts variables from weight decay. To be called before the optimizer is built.

        Args:
            var_list: Variables to exempt.
            var_names: Regular expressions; a variable is exempt if one is found in its path.
        """
        self._no_decay_patterns = excluding(self, var_list, var_names)

    def is_excluded(self, like: Like) -> bool:
        """Whether `exclude_from_weight_decay` was called for this variable."""
        return is_chosen(like, self._no_decay_patterns)

    def _decays_at(self, variable: Any, like: Like) -> bool:
        if self.weight_decay is None or self._own_weight_decay:
            return False
        return not self.is_excluded(like)

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

    def averaged(
        self, model: keras.Model, of: Any = None
    ) -> contextlib.AbstractContextManager[None]:
        """A context in which the model has the averages of `use_ema` for weights.

        See `keras_tfopt.averaged`.
        """
        return averages.averaged(model, self, of)

    def raise_refused(self) -> None:
        """Raises an error for rows out of range in earlier steps, which could not."""
        if not self.built:
            return
        refused = backend.limits(backend.read(self._refused_rows))
        if refused is not None and refused[1] > 0:
            self._refused_rows.assign(0)
            raise ValueError(
                "Row indices of gradients must lie between 0 and the number of rows less one. "
                f"Received: {refused[1]} indices out of range in earlier compiled steps, which "
                "left them out"
            )
