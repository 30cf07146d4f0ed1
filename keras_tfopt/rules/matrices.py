"""Rules for matrices, which leave all other variables to another rule."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from keras_tfopt.engine import Like, Settings, changes, is_chosen, settled
from keras_tfopt.rule import Rule, zeros
from keras_tfopt.rules.muon_arguments import ratio, rule_named, scaled_factor

NOT_MATRICES = r"(^|/)(embeddings|[^/]*bias|gamma|beta)$"
_OTHERS = "others_"  # before the names of what the inner rule finds in `t`


class _Inner:
    """The rule for other variables; TensorFlow tracks attributes, but not what is in here."""

    def __init__(self, rule: Any, weight_decay: float | None):
        self.rule, self.weight_decay = rule, weight_decay


class MatrixRule(Rule):
    """Abstract: a rule for matrices, with the fields `others` and what is said of them."""

    scope = "variable"
    stacked = True

    if TYPE_CHECKING:  # fields of the rules
        others: Any
        others_factor: Any
        other_variables: Any
        stack_axes: Any

    def __post_init__(self) -> None:
        inner = rule_named(self.others) if isinstance(self.others, str) else self.others
        self._inner: Any = None
        if inner is not None:
            self._inner = _Inner(inner.formula(), inner.weight_decay)
            self.sparse = inner.sparse

    def _finish(self) -> None:
        super()._finish()
        self._factor_of_others()

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, with the present ratio of learning rates."""
        config = super().get_config()
        if isinstance(self.others, Rule):
            config["others_factor"] = self._factor_of_others()
        return config

    def choices(self) -> dict[str, Any]:
        usual = self.other_variables == NOT_MATRICES  # most models have no such matrices
        chosen = {
            "other_variables": [] if usual else self.other_variables,
            "stack_axes": list(self.stack_axes or []),
        }
        return {**super().choices(), **chosen}

    def settle(self, likes: Sequence[Like]) -> None:
        super().settle(likes)
        self.other_variables = settled(self.other_variables, likes)

    def check(self, likes: Sequence[Like]) -> None:
        super().check(likes)
        name = type(self).__name__
        others = [like.path for like in likes if not self.stacks(like)]
        if self.others is None and others:
            raise ValueError(
                f"{name} moves matrices. Say how scalars, vectors and what `other_variables` "
                f"chooses should move: {name}(others=keras_tfopt.NadamW()). Received: others=None, "
                f"with the variables {others[:5]}"
            )
        for like in likes:
            axes = self._stack_axes(like)
            if axes and (max(axes) >= len(like.shape) or len(like.shape) < len(axes) + 2):
                raise ValueError(
                    "Argument `stack_axes` must leave two axes or more of a variable. Received: "
                    f"{axes} for {like.path!r} of shape {like.shape}"
                )

    def stacks(self, like: Any) -> bool:
        """Return whether a variable is moved as a matrix."""
        return len(like.shape) > 1 and not is_chosen(like, self.other_variables)

    def scope_of(self, like: Any) -> str:
        return self.scope if self.stacks(like) else self._inner.rule.scope_of(like)

    def takes_rows(self, like: Any) -> bool:
        return not self.stacks(like) and self._inner.rule.takes_rows(like)

    def _stack_axes(self, like: Any) -> tuple[int, ...]:
        found = (self.stack_axes or {}).items()
        return next((tuple(axes) for key, axes in found if re.search(key, like.path)), ())

    def settings_of(self, like: Like) -> Settings:
        settings = super().settings_of(like)
        if self.stacks(like):
            return settings
        decay = None if self._inner is None else self._inner.weight_decay
        own = {} if decay is None else {"weight_decay": decay}
        own = {**own, **settings.given}
        own["learning_rate_factor"] = scaled_factor(settings.factor, self._factor_of_others())
        return Settings(settings.groups, own, settings.own)

    def slots(self, like: Any) -> dict[str, Any]:
        if self.stacks(like):
            return {"m": zeros(like)}
        return {} if self._inner is None else self._inner.rule.slots(like)

    def _update_matrix(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        """Return what the rule makes of a matrix, or of several that are stacked."""
        raise NotImplementedError

    def facts_of(self, like: Any) -> dict[str, Any]:
        if self.stacks(like):
            return {"rank": len(like.shape), "stack_axes": self._stack_axes(like)}
        facts = self._inner.rule.facts_of(like) if self._inner.rule.scope == "variable" else {}
        return {"rank": None, **{_OTHERS + name: value for name, value in facts.items()}}

    def _inner_scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        """Return the scalars of the inner rule, under names of their own."""
        inner = {} if self._inner is None else self._inner.rule.scalars(lr, step)
        return {_OTHERS + name: value for name, value in inner.items()}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        if t.rank is not None:
            return (x, {}) if 0 in x.shape else self._update_matrix(g, x, s, t)
        return self._inner.rule.update(g, x, s, t.below(_OTHERS))

    def _factor_of_others(self) -> float:
        """Return the learning rate of `others` as a multiple of the common one."""
        if self.others_factor is not None:
            if changes(self.others_factor):
                raise TypeError(
                    "Argument `others_factor` must be a number >= 0 or None. Received: "
                    f"{self.others_factor!r}"
                )
            return self.others_factor
        if self.others is None or isinstance(self.others, str):
            return 1.0
        return ratio(self._initial_learning_rate, self.others._initial_learning_rate)
