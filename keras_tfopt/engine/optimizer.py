"""The common base of rules and wrappers as optimizers of Keras: verbs, state, saving."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_tfopt.engine import averages
from keras_tfopt.engine.arguments.options import DEFAULTS
from keras_tfopt.engine.arguments.representation import Shown
from keras_tfopt.engine.arguments.selection import PATHS, named_as_saved, warn_unmatched
from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.keras_private import untracked
from keras_tfopt.engine.persistence import Persistent
from keras_tfopt.engine.state.building import check_distinct, check_known, describe, listed, path_of
from keras_tfopt.engine.state.decoded_slot import seen, tensors
from keras_tfopt.engine.state.state import MASTER, Cache, Entry, Like, State, slots_type
from keras_tfopt.engine.step.divided import check_divided
from keras_tfopt.engine.step.lost_changes import warn_of_lost_changes
from keras_tfopt.engine.step.moving import current_value
from keras_tfopt.engine.step.pipeline import Stepping


class Optimizer(Stepping, Persistent, Shown, keras.optimizers.Optimizer):
    """An optimizer whose step is a `Pipeline` and whose state is a `State`.

    Subclasses set `_pipeline`, and define `_create`, `_entry` and `slot_names`.
    """

    _state: State
    ignores_changes = False
    """Whether a step computes variables from slots alone, so that other changes are lost."""
    changes_variables = False
    """Whether it changes variables in addition to the steps of an optimizer inside."""

    def _start(self) -> None:
        """Set attributes that must exist before Keras's constructor assigns others."""
        self._lock = False
        self._state = State()
        self._fast = Cache()
        # The paths that variables had when the configuration was written.
        self._saved_paths: tuple[str, ...] = ()

    # ---- What subclasses say --------------------------------------------------------------------

    def _create(self, variables: list[Any], likes: list[Like]) -> None:
        """Create the state for the first variables."""
        raise NotImplementedError

    def _entry(self, variable: Any, like: Like, place: int) -> Entry:
        """Create the state for one variable, which has this place among all."""
        raise NotImplementedError

    def choices(self) -> dict[str, Any]:
        """Return the arguments that choose variables, by name.

        `build` warns of patterns and functions that match no variable.
        """
        return {}

    def settle(self, likes: Sequence[Like]) -> None:
        """Replace paths in `choices` by the paths that the variables have in this model."""

    def check(self, likes: Sequence[Like]) -> None:
        """Raise an error if the arguments do not fit the variables of the model."""

    # ---- State ----------------------------------------------------------------------------------

    @untracked
    def build(self, variables: Sequence[Any]) -> None:
        """Create the state for these variables; `fit` and the first `apply` call it.

        Without variables it does nothing: a later call may bring some. Keras makes such a call when
        it loads a model from an .h5 file.
        """
        variables = listed("variables", variables)
        check_distinct(self, variables)
        likes = [describe(variable, type(self).__name__) for variable in variables]
        likes = named_as_saved(likes, self._saved_paths)
        if self.built or not variables:
            return
        if not self.has_state:  # it has state if an earlier call refused saved state
            self._make_state(variables, likes)
            self.has_state = True
            warn_of_lost_changes(self, variables)
        self._restore_waiting()
        self.built = True

    def _make_state(self, variables: list[Any], likes: list[Like]) -> None:
        chosen = self._has_choices()
        if chosen:
            self.settle(likes)
        self.check(likes)
        check_divided(self, variables, likes)
        if chosen:
            warn_unmatched(type(self).__name__, self.choices(), likes)
        self._trainable_variables = []
        with backend.build_scope(self, variables):
            self._create(variables, likes)

    def _has_choices(self) -> bool:
        # The default of `row_variables` is for models with tables, which most models do not have.
        usual: tuple = (None, [], DEFAULTS["row_variables"])
        return any(choice not in usual for choice in self.choices().values())

    def saved_paths(self) -> dict[str, list[str]]:
        """Return what configurations have besides arguments.

        These are the paths of the variables, which may differ in a model that is loaded from a
        file, if there are arguments that choose variables.
        """
        known = [entry.like.path for entry in self._state.entries] or list(self._saved_paths)
        return {PATHS: known} if known and self._has_choices() else {}

    @untracked
    def extend(self, variables: Sequence[Any]) -> None:
        """Create the state for further variables.

        An optimizer inside must have been extended before, and the variables are in its order.
        """
        likes = [describe(variable, type(self).__name__) for variable in variables]
        self.check([*(entry.like for entry in self._state.entries), *likes])
        check_divided(self, variables, likes)
        with backend.build_scope(self, variables):
            self._add_entries(list(variables), likes)

    def _add_entries(self, variables: list[Any], likes: list[Like]) -> list[Entry]:
        first = len(self._state.entries)
        for place, variable in enumerate(variables, first):
            self._trainable_variables_indices[self._var_key(variable)] = place
            self._trainable_variables.append(variable)
        count, overwritten = len(variables), self._overwrite_variable_with_gradient
        # Their state is last: see `overwritten_last`.
        order = sorted(range(count), key=lambda n: overwritten(variables[n]))
        made = {n: self._entry(variables[n], likes[n], first + n) for n in order}
        entries = [made[n] for n in range(count)]
        for entry in entries:
            self._state.add(entry)
        return entries

    def entry_of(self, variable: Any) -> Entry:
        """Return the entry of a variable that the optimizer was built for."""
        return self._state.entries[self._get_variable_index(variable)]

    def slot(self, variable: Any, name: str) -> keras.Variable:
        """Return the state called `name` that belongs to `variable`.

        For state that belongs to all variables together, `variable` is None. A slot that is kept as
        int8 is returned as a `DecodedSlot`: its `value` are the numbers, and `assign` takes some.

        Raises:
            KeyError: if there is no such state; the message lists what there is.
            ValueError: if the optimizer is not built, or not for this variable.
        """
        if not self.built:
            raise ValueError(
                f"{type(self).__name__} has no slots before it is built. "
                "Call `optimizer.build(variables)`."
            )
        if variable is None:
            slots, owner = self._state.shared, "all variables together"
        else:
            check_known(self, [variable])
            slots, owner = seen(self.entry_of(variable)), repr(path_of(variable))
        if name in slots:
            return slots[name]
        inner = getattr(self, "inner_optimizer", None)
        if name in getattr(inner, "slot_names", ()):
            return inner.slot(variable, name)  # type: ignore[union-attr]
        names = sorted(slots) if inner is None else list(self.slot_names)
        raise KeyError(
            f"{type(self).__name__} has no slot {name!r} for {owner}. Slots there are: {names}"
        )

    def read_state(self, state: Any) -> Any:
        """Return the value of a piece of state, even if another worker keeps it."""
        return backend.read(state) if self.shards is None else self.shards.read(state)

    def entries_here(self) -> list[Entry]:
        """Return the entries of variables whose state is on this worker."""
        entries, shards = self._state.entries, self.shards
        return entries if shards is None else [e for e in entries if shards.is_here(e.variable)]

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The names of the slots."""
        raise NotImplementedError

    def _roles(self) -> list[str]:
        roles = {id(self._iterations): "iteration", **self._argument_roles(), **self._state.roles()}
        return [roles[id(variable)] for variable in self._variables]

    def _argument_roles(self) -> dict[int, str]:
        """Return the role of variables that are arguments, by identity."""
        return {}

    def averaged(
        self, model: keras.Model, of: Any = None
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the model has averages instead of weights.

        See `keras_tfopt.averaged`.
        """
        return averages.averaged(model, self, of)

    # ---- Averages -------------------------------------------------------------------------------

    def average(self, x: Any, s: Any) -> Any:
        """Return the value that `keras_tfopt.averaged` puts into the model for a variable.

        It is called with the variable and its slots. Rules and wrappers that do not define it keep
        no averages of their own. With `use_ema`, the average of that option is used instead.
        """
        return x

    def keeps_averages(self) -> bool:
        """Return whether this optimizer, not one inside, keeps averages of the variables."""
        return type(self).average is not Optimizer.average

    def averages_now(self, current: Callable[[Any], Any]) -> list[tuple[Any, Any]]:
        """Return `(variable, average)` for each variable; `current` reads a variable."""
        found: list[tuple[Any, Any]] = []
        for entry in self._state.entries:
            overwritten = self._overwrite_variable_with_gradient(entry.variable)
            if overwritten or entry.settings.frozen and not entry.slots:
                continue
            slots = tensors(entry, self.read_state)
            s = slots_type(slots)(**slots)
            x = current_value(current(entry.variable), slots.get(MASTER), entry.like.dtype)
            found.append((entry.variable, self.average(x, s)))
        return found
