"""Give variables the hyperparameters and settings of an optimizer's parameter groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_tfopt.engine.arguments.assignment import built_for
from keras_tfopt.engine.arguments.groups import (
    check_all,
    check_form,
    check_matches,
    settings_of,
)
from keras_tfopt.engine.arguments.hyperparameters import Hyperparameters
from keras_tfopt.engine.arguments.slot_dtype import check_scope
from keras_tfopt.engine.state.state import NO_SETTINGS, Like, Settings


class Grouped:
    """An optimizer with the argument `groups`, and the hyperparameters that follow from it."""

    _groups: Any
    slot_dtype: Any
    built: bool
    _hyperparameters: tuple[Hyperparameters, ...]
    _state: Any

    @property
    def groups(self) -> Any:
        """The argument `groups`, which can be set until the optimizer is built."""
        return self._groups

    @groups.setter
    def groups(self, groups: Any) -> None:
        groups = check_all(self, check_form(groups))
        if self.built and groups != self._groups:
            raise built_for(self, "groups", groups)
        self._groups = groups

    def _finish(self) -> None:
        check_scope(self, self.slot_dtype)
        self._groups = check_all(self, self._groups)

    def check_groups(self, likes: Sequence[Like]) -> None:
        """Raise an error if the groups do not fit the variables of a model."""
        if not self.built:
            self._hyperparameters = (Hyperparameters(self, {}),)
        check_matches(self.groups, likes)
        for like in likes if self.groups is not None else ():
            self.hyperparameters_of(self.settings_of(like))

    def settings_of(self, like: Like) -> Settings:
        """Return the settings of a variable in the groups."""
        return NO_SETTINGS if self.groups is None else settings_of(self, self.groups, like)

    def hyperparameters_of(self, settings: Settings) -> int:
        """Return the index of the hyperparameters for the settings of a variable."""
        for number, known in enumerate(self._hyperparameters):
            if known.own == settings.own:
                return number
        more = Hyperparameters(self, settings.own)
        self._hyperparameters = (*self._hyperparameters, more)
        return len(self._hyperparameters) - 1
