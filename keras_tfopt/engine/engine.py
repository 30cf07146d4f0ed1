"""A rule as an optimizer of Keras: its options, and the state of its variables."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras

from keras_tfopt.engine.arguments.assignment import check_option
from keras_tfopt.engine.arguments.construction import Formulas
from keras_tfopt.engine.arguments.grouping import Grouped
from keras_tfopt.engine.arguments.groups import check_form, settled_groups, variables_in
from keras_tfopt.engine.arguments.hyperparameters import scalar
from keras_tfopt.engine.arguments.options import (
    DEFAULTS,
    changes,
    check_base,
    check_learning_rate,
    check_savable,
    current,
)
from keras_tfopt.engine.arguments.powers import Powers, recall
from keras_tfopt.engine.arguments.selection import excluding, is_chosen, settled
from keras_tfopt.engine.arguments.sharding import check_shard_state
from keras_tfopt.engine.arguments.slot_dtype import as_kept, check_slots, storage
from keras_tfopt.engine.averages import put
from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.optimizer import Optimizer
from keras_tfopt.engine.rows import sees_rows
from keras_tfopt.engine.state.building import add_slot, check_slots_of_elements, constant, path_of
from keras_tfopt.engine.state.conversion import Saved
from keras_tfopt.engine.state.state import (
    HYPERPARAMETER,
    MASTER,
    Cache,
    Entry,
    Like,
    Settings,
    Slot,
    overwritten_last,
    widest,
)
from keras_tfopt.engine.step.all_variables import AllVariablesMover
from keras_tfopt.engine.step.moving import Mover
from keras_tfopt.engine.step.pipeline import Pipeline
from keras_tfopt.engine.step.results import checked_dictionary, checked_slots
from keras_tfopt.engine.step.shared_code import is_ours
from keras_tfopt.engine.step.slicing import shape_of, steps_along
from keras_tfopt.engine.trial import model_trial, trial


class Provided:
    """Defaults of the attributes and methods by which a rule describes itself.

    `keras_tfopt.Rule` documents them.
    """

    scope = "element"
    sparse = "dense"
    flat = False
    elementwise = False
    stacked = False
    # Whether to compile the rule as a whole. If it decomposes matrices, XLA on a CPU is far slower
    # than the backend's own routines.
    fused = True
    second_order = False
    rows_alone = False
    """Whether `update` looks at each row alone, though its scope is "variable"."""
    # Whether a gradient that is not finite would spoil the state permanently.
    needs_finite = False

    if TYPE_CHECKING:
        facts: Callable[[str], dict[str, Any]]

    def derived(self, slots: dict[str, Any]) -> dict[str, Any]:
        """Return slots that are computed from others, and that checkpoints of originals lack."""
        return {}

    def scope_of(self, like: Any) -> str:
        """Return the scope of the rule for this variable."""
        return self.scope

    def takes_rows(self, like: Any) -> bool:
        """Return whether `sparse` holds for this variable; otherwise it is "dense" for it."""
        return True

    def stacks(self, like: Any) -> bool:
        """Return whether `stacked` holds for this variable."""
        return True

    def facts_of(self, like: Like) -> dict[str, Any]:
        """Return facts about a variable that a rule of scope "variable" finds in `t`, by name."""
        return checked_dictionary(self, "facts", self.facts(like.path))


class Engine(Provided, Grouped, Formulas, Optimizer):
    """Runs a rule over the variables of a model, on any backend.

    Subclasses (see `keras_tfopt.Rule`) provide `scope`, `sparse`, `slots`, `scalars` and
    `update`.
    """

    is_engine = True
    mover_class: type[Mover] = Mover
    is_loaded = False  # whether it was made from a configuration
    takes_options = True  # the options of all optimizers; wrappers do not take them
    _own_weight_decay = False
    _own_scalars = False
    # Whether there are variables with a limit for units of their gradients, or for their norms.
    clips_units = bounds_norms = False
    decay_is_around = False
    """Whether the weight decay of groups belongs to a wrapper."""
    _no_decay_patterns: Any = ()  # of `exclude_from_weight_decay`
    global_step = None  # a variable that gives the number of a step instead of `iterations`
    _learning_rate: Any
    _model_variables_moving_average: list[Any]
    _accumulated_gradients: list[Any]

    def __init__(
        self,
        learning_rate: Any,
        *,
        row_variables: Any = DEFAULTS["row_variables"],
        master_weights: bool = False,
        maximize: bool = False,
        clip_unitwise: float | None = None,
        shard_state: bool = False,
        groups: Any = None,
        slot_dtype: Any = "float32",
        **base: Any,
    ):
        if self.is_formula():
            return
        self._lock = False
        learning_rate = check_learning_rate(learning_rate)
        base = check_base(type(self), {**base, "clip_unitwise": clip_unitwise})
        clip_unitwise = base.pop("clip_unitwise")
        super().__init__(learning_rate, **base)
        self._start()
        self.row_variables = check_option("row_variables", row_variables)
        self.master_weights = check_option("master_weights", master_weights)
        self.maximize = check_option("maximize", maximize)
        self.shard_state = check_option("shard_state", shard_state)
        self.clip_unitwise = clip_unitwise
        self._groups = check_form(groups)
        self.slot_dtype = check_option("slot_dtype", slot_dtype)
        self._initial_learning_rate = learning_rate
        self._no_decay_patterns = []
        self._statics = Cache()
        self._changing: dict[str, Any] = {}
        self._hyperparameters = ()
        self.powers: Powers | None = None  # for `beta**step`, as `legacy` wants it
        mover = AllVariablesMover if self.scope == "model" else self.mover_class
        self._pipeline = Pipeline((), mover(self))
        self._engine_attributes = frozenset([*vars(self), "_engine_attributes", "_follows"])

    # ---- What a rule provides; `keras_tfopt.Rule` documents the rest ----------------------------

    if TYPE_CHECKING:
        slots: Callable[[Any], dict[str, Slot]]
        scalars: Callable[[Any, Any], dict[str, Any]]
        hyperparameters: Callable[[], dict[str, Any]]

    def choices(self) -> dict[str, Any]:
        excluded = [] if self.weight_decay is None else self._no_decay_patterns
        return {"row_variables": self.row_variables, "exclude_from_weight_decay": excluded}

    def _has_choices(self) -> bool:
        return self.groups is not None or super()._has_choices()

    def settle(self, likes: Sequence[Like]) -> None:
        self.row_variables = settled(self.row_variables, likes)
        self._no_decay_patterns = settled(self._no_decay_patterns, likes)

    def changing_hyperparameters(self) -> dict[str, Any]:
        """Return the hyperparameters that are not numbers, but give one in each step."""
        own = self.hyperparameters()
        return {name: v for name, v in own.items() if name != "global_step" and changes(v)}

    def rule_now(self, dtype: str) -> Any:
        """Return the rule with the values of its hyperparameters at the next step."""
        changing = self.changing_hyperparameters()
        values = {n: scalar(current(v, self._iterations), dtype) for n, v in changing.items()}
        return self.formula(values)

    def get_config(self) -> dict[str, Any]:
        check_savable("learning_rate", self._learning_rate)
        return super().get_config()

    # ---- State ----------------------------------------------------------------------------------

    def check(self, likes: Sequence[Like]) -> None:
        # A variable among these is part of the state: Keras has tracked it as an attribute.
        check_shard_state(self)
        self._changing = self.changing_hyperparameters()
        self._groups = settled_groups(self.groups, likes)
        self.check_groups(likes)
        if not is_ours(type(self)):  # ours are tested
            (model_trial if self.scope == "model" else trial).check_rule(self, likes)
        check_slots(self, likes)

    def _create(self, variables: list[Any], likes: list[Like]) -> None:
        other, dtype = self._state.other, widest([like.dtype for like in likes])
        if dtype == "float64":
            self._widen_learning_rate()
        other["refused_rows"] = self.add_variable((), "zeros", "int32", name="refused_rows")
        if self.powers is not None:
            self.powers.create(self, dtype)
        if self.use_ema:  # otherwise Keras's callback would take the empty list for averages
            self._model_variables_moving_average = []
        self._accumulated_gradients = []
        self._add_entries(variables, likes)
        if self.scope == "model":
            self._add_model_slots(likes, dtype)

    def extend(self, variables: Sequence[Any]) -> None:
        """Create the state for further variables.

        Raises:
            ValueError: with scope "model", where the state belongs to all variables together.
        """
        if self.scope == "model":
            raise ValueError(
                f"{type(self).__name__} keeps state of all variables together, so it must be built "
                "for all that it is going to update. Received, beyond those: "
                f"{[path_of(variable) for variable in variables]}"
            )
        super().extend(variables)

    def _add_entries(self, variables: list[Any], likes: list[Like]) -> list[Entry]:
        # State is saved by position, one kind after the other.
        entries = super()._add_entries(variables, likes)
        self.clips_units |= any(e.unit_limit is not None for e in entries)
        self.bounds_norms |= any(e.settings.max_norm is not None for e in entries)
        if self.use_ema:
            for e in overwritten_last(entries):
                # Averages start at the values of the variables: training may end before a step.
                e.average = add_slot(
                    self, e.variable, e.like, "average", Slot(e.like.shape, "variable")
                )
            self._model_variables_moving_average += [e.average for e in entries]
        if self.gradient_accumulation_steps:
            for e in overwritten_last(entries):
                # Keras saves .h5 files by paths, and Adagrad has a slot "accumulator".
                e.accumulator = add_slot(
                    self, e.variable, e.like, "summed_gradients", Slot(e.like.shape)
                )
            self._accumulated_gradients += [e.accumulator for e in entries]
            for e in entries:
                # The sum does not show which rows were named: their gradient may be zero.
                if e.sparse != "dense" and e.like.shape:
                    rows = Slot(e.like.shape[:1], 0, "bool")
                    e.touched_rows = add_slot(self, e.variable, e.like, "touched_rows", rows)
        return entries

    def _entry(self, variable: Any, like: Like, place: int) -> Entry:
        settings = self.settings_of(like)
        number = self.hyperparameters_of(settings)
        hyperparameters = self._hyperparameters[number]
        rule = hyperparameters.at({}) if settings.own else self
        has_rows = bool(like.shape) and is_chosen(like, self.row_variables)
        described = self._described_slots(variable, like, rule, settings)
        stored = storage(self, rule, like, described, settings, has_rows)
        described = as_kept(described, stored, like, has_rows)
        slots = {name: add_slot(self, variable, like, name, s) for name, s in described.items()}
        cut = [bool(like.shape), *(sees_rows(slot, like) for slot in described.values())]
        return Entry(
            variable,
            like,
            slots,
            overwritten=self._overwrite_variable_with_gradient(variable),
            cut=tuple(cut),
            facts=rule.facts_of(like) if self.scope == "variable" else {},
            sparse=self.sparse if rule.takes_rows(like) else "dense",
            has_rows=has_rows,
            decays=hyperparameters.shrinks(settings) and not self.is_excluded(like),
            stored=stored,
            settings=settings,
            unit_limit=settings.given.get("clip_unitwise", self.clip_unitwise),
            rule=number,
            rate=hyperparameters.rate_of(settings),
        )

    def _described_slots(
        self, variable: Any, like: Like, rule: Any, settings: Settings
    ) -> dict[str, Slot]:
        if settings.frozen or self._overwrite_variable_with_gradient(variable):
            return {}
        slots = checked_slots(self, rule.slots(like)) if self.scope != "model" else {}
        if self.scope == "element":
            check_slots_of_elements("rule", slots, like)
        if self.master_weights and keras.backend.standardize_dtype(variable.dtype) != like.dtype:
            slots[MASTER] = Slot(like.shape, "variable")
        return slots

    def _add_model_slots(self, likes: list[Like], dtype: str) -> None:
        all_variables = Like((), dtype, self.name)
        described = checked_slots(self, self.slots(likes))
        steps_along(described)
        for name, slot in described.items():
            if None in slot.shape[:-1]:
                raise ValueError(
                    f"In the shape of slot {name!r}, None must stand in the last place. "
                    f"Received: {slot.shape}"
                )
            slot = dataclasses.replace(slot, shape=shape_of(slot, likes))
            self._state.shared[name] = add_slot(self, None, all_variables, name, slot)

    def _widen_learning_rate(self) -> None:
        # Keras keeps the learning rate in floatx, which would round it for float64 variables.
        old = self._learning_rate
        if not isinstance(old, keras.Variable) or old.dtype == "float64":
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
        # State is saved by position, so move the new variable, the last one, to Keras's position.
        self._variables.insert(1, self._variables.pop())
        self._learning_rate = new

    def _argument_roles(self) -> dict[int, str]:
        roles = {id(self._learning_rate): "learning_rate"}
        for name, value in self.hyperparameters().items():
            roles[id(value)] = HYPERPARAMETER + name
        for name, value in variables_in(self.groups):
            roles.setdefault(id(value), f"{HYPERPARAMETER}{name} of a group")
        return roles

    @property
    def slot_names(self) -> tuple[str, ...]:
        """Names of the slots, in the order of creation."""
        if self.built:
            return self._state.slot_names
        return self._own_names((1,))

    def _own_names(self, shape: tuple[int, ...]) -> tuple[str, ...]:
        like = Like(shape, keras.backend.floatx(), "")
        return tuple(self.slots([like] if self.scope == "model" else like))

    def _recall(self, saved: Saved) -> tuple[str, ...]:
        if self.is_loaded:
            recall(self, saved)
        return () if self.powers is None else self.powers.roles(self)

    # ---- Steps ----------------------------------------------------------------------------------

    def rule_to_share(self, number: int = 0) -> tuple[Any, tuple[str, ...]]:
        """Return the rule without the state, which a shared function would keep alive.

        Also return the names of attributes that are among the scalars of each step. `number` is
        that of the hyperparameters.
        """
        own = self._hyperparameters[number]
        return self.with_attributes({**own.attributes, **dict.fromkeys(own.names)}), own.names

    def moves_by_rows(self, variable: Any) -> bool:
        """Return whether usual training leaves rows of a variable without gradient alone."""
        entry = self.entry_of(variable)
        return entry.sparse != "dense" and entry.has_rows

    # ---- Options --------------------------------------------------------------------------------

    def exclude_from_weight_decay(
        self, var_list: Sequence[Any] | None = None, var_names: Sequence[str] | None = None
    ) -> None:
        """Exempt variables from weight decay. Call it before the optimizer is built.

        Args:
            var_list: Variables to exempt.
            var_names: Regular expressions; a variable is exempt if one is found in its path.
        """
        self._no_decay_patterns = excluding(self, var_list, var_names)

    def is_excluded(self, like: Like) -> bool:
        """Return whether `exclude_from_weight_decay` was called for this variable."""
        return is_chosen(like, self._no_decay_patterns)

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Put the averages into the variables when training ends, if `use_ema` asks for it."""
        for variable in var_list if self.use_ema else ():
            average = self.entry_of(variable).average
            if average._value is None:  # the first step of `fit` on JAX has failed
                return
            if self.shards is None:
                put([(variable, backend.copy_of(average, variable.dtype))])
            else:
                variable.assign(self.shards.read(average))
