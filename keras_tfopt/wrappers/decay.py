"""What weight decay around another optimizer is, however that optimizer comes about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_tfopt.checks import check_bool, check_hyperparameter
from keras_tfopt.execution import Like, check_choice, encoded, excluding, is_chosen, settled
from keras_tfopt.rule import register
from keras_tfopt.wrapper import Wrapper


class Decay(Wrapper):
    """Abstract: shrinks variables before the step of the optimizer inside."""

    sparse = "rows"

    def __init__(
        self,
        inner_optimizer: Any,
        weight_decay: Any,
        decay_variables: Any = None,
        scale_by_learning_rate: bool = False,
        name: str | None = None,
        **base: Any,
    ):
        super().__init__(inner_optimizer, name=name, **base)
        self.weight_decay = check_hyperparameter("weight_decay", weight_decay, 0)
        self.decay_variables = check_choice("decay_variables", decay_variables)
        self.scale_by_learning_rate = check_bool("scale_by_learning_rate", scale_by_learning_rate)
        self._excluded: list[Any] = []

    def exclude_from_weight_decay(
        self, var_list: Sequence[Any] | None = None, var_names: Sequence[str] | None = None
    ) -> None:
        """Exempts variables from the decay, also from that of the optimizer inside.

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
        chosen = self.decay_variables is None or is_chosen(like, self.decay_variables)
        return self.sparse if chosen and not is_chosen(like, self._excluded) else None

    def decays(self, like: Like, by_rows: bool) -> bool:
        now = ops.convert_to_numpy(self.now(self.weight_decay))
        return self.reach(like) is not None and bool(now)

    def own_config(self) -> dict[str, Any]:
        excluded = {"no_weight_decay": encoded(self._excluded)} if self._excluded else {}
        return {**super().own_config(), **excluded}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict | None = None) -> Any:
        """The optimizer that `get_config` described."""
        config = dict(config)
        excluded = config.pop("no_weight_decay", None)
        optimizer = cls.made_from(config, custom_objects)
        if excluded:
            optimizer.exclude_from_weight_decay(var_names=excluded)
        return optimizer

    @classmethod
    def made_from(cls, config: dict[str, Any], custom_objects: dict | None) -> Any:
        """The optimizer of a configuration that exempts no variables."""
        return super().from_config(config, custom_objects)

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        decay = self.now(self.weight_decay)
        if not self.scale_by_learning_rate:
            return {"decay": decay}
        if lr is None:
            raise ValueError(
                "Argument `scale_by_learning_rate` must be False around an optimizer that has no "
                f"learning rate of its own. Received: {self.inner_optimizer!r}"
            )
        return {"decay": decay * lr}

    def before(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, Any]:
        return g, x - t.decay * x


@register
class DenseDecay(Decay):
    """Decay in steps with a gradient of all of a variable; rows never decay.

    That of `tf.contrib.opt` beside `GradientDescentOptimizer`; see `keras_tfopt.legacy`.
    """

    def decays(self, like: Like, by_rows: bool) -> bool:
        return not by_rows and super().decays(like, by_rows)

    def before(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, Any]:
        if t.rows or t.touched is not None:
            return g, x
        return super().before(g, x, s, t)
