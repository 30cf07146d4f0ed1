"""What weight decay around another optimizer is, however that optimizer comes about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_tfopt.engine import (
    NO_SETTINGS,
    Engine,
    Like,
    Settings,
    check_choice,
    encoded,
    excluding,
    innermost,
    is_chosen,
    settled,
)
from keras_tfopt.fields import field, flag, within
from keras_tfopt.wrapper import Wrapper


class Decay(Wrapper):
    """Abstract: shrinks variables before the step of the optimizer inside."""

    sparse = "rows"
    scope = "element"
    changes_variables = True
    rows_alone = True
    needs_gradient = False

    weight_decay: Any = within(0)
    decay_variables: Any = field(check_choice, default=None)
    scale_by_learning_rate: bool = flag(default=False)

    # Whether the weight decay of groups belongs here; graphs have no groups.
    _has_groups = False

    def __post_init__(self) -> None:
        self._excluded: list[Any] = []
        inner = innermost(self)
        self._has_groups = (
            isinstance(inner, Engine) and not inner.built and not inner.decay_is_around
        )
        if self._has_groups:
            inner.decay_is_around = True

    def exclude_from_weight_decay(
        self, var_list: Sequence[Any] | None = None, var_names: Sequence[str] | None = None
    ) -> None:
        """Exempt variables from the decay, also from that of the optimizer inside.

        To be called before the optimizer is built. What an earlier call exempted decays again.

        Args:
            var_list: Variables to exempt, as `keras_tfopt.normalization_and_bias` gives them.
            var_names: Regular expressions; a variable is exempt if one is found in its path.

        Raises:
            ValueError: if the optimizer is built.
        """
        excluded = excluding(self, var_list, var_names)
        names = [var_names] if isinstance(var_names, str) else var_names
        super().exclude_from_weight_decay(var_list, names)
        self._excluded = excluded

    def choices(self) -> dict[str, Any]:
        excluded = self._excluded
        return {"decay_variables": self.decay_variables, "exclude_from_weight_decay": excluded}

    def settle(self, likes: Sequence[Like]) -> None:
        self.decay_variables = settled(self.decay_variables, likes)
        self._excluded = settled(self._excluded, likes)

    def reach(self, like: Like) -> str | None:
        if self._has_groups and self.settings_of(like).decay == 0:
            return None
        chosen = self.decay_variables is None or is_chosen(like, self.decay_variables)
        return self.sparse if chosen and not is_chosen(like, self._excluded) else None

    def decays_rows(self) -> bool:
        """Return whether the rows of a row gradient decay; otherwise nothing does."""
        return True

    def decays(self, like: Like, by_rows: bool) -> bool:
        if by_rows and not self.decays_rows():
            return False
        now = ops.convert_to_numpy(self.now(self._decay_in(self.settings_of(like))))
        return self.reach(like) is not None and bool(now)

    def own_config(self) -> dict[str, Any]:
        excluded = {"no_weight_decay": encoded(self._excluded)} if self._excluded else {}
        return {**super().own_config(), **excluded}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict | None = None) -> Any:
        """Return the optimizer that `get_config` described."""
        config = dict(config)
        excluded = config.pop("no_weight_decay", None)
        optimizer = cls.made_from(config, custom_objects)
        if excluded:
            optimizer.exclude_from_weight_decay(var_names=excluded)
        return optimizer

    @classmethod
    def made_from(cls, config: dict[str, Any], custom_objects: dict | None) -> Any:
        """Return the optimizer of a configuration that exempts no variables."""
        return super().from_config(config, custom_objects)

    def _decay_in(self, settings: Settings) -> Any:
        """Return the weight decay of variables of which groups say this."""
        of_groups = settings.decay if self._has_groups else None
        return self.weight_decay if of_groups is None else of_groups

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return self.scalars_in(NO_SETTINGS, lr, step)

    def scalars_in(self, settings: Settings, lr: Any, step: Any) -> dict[str, Any]:
        """Return the scalars of variables of which groups say this; `lr` is their own."""
        decay = self.now(self._decay_in(settings))
        if not self.scale_by_learning_rate:
            return {"decay": decay}
        if lr is None:
            raise ValueError(
                "Argument `scale_by_learning_rate` must be False around an optimizer that has no "
                f"learning rate of its own. Received: {self.inner_optimizer!r}"
            )
        decay = ops.cast(decay, lr.dtype) if ops.is_tensor(decay) else decay
        return {"decay": decay * lr}

    def before(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, Any]:
        if (t.rows or t.touched is not None) and not self.decays_rows():
            return g, x
        return g, x - t.decay * x
