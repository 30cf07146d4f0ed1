"""What weight decay around another optimizer is, however that optimizer comes about."""

from __future__ import annotations

from typing import Any

from keras_tfopt.checks import check_bool, check_hyperparameter
from keras_tfopt.execution import Like
from keras_tfopt.rule import register
from keras_tfopt.wrapper import Wrapper
from keras_tfopt.wrappers.choice import check_choice, check_choice_matches, is_chosen


class Decay(Wrapper):
    """Abstract: shrinks variables before the step of the optimizer inside."""

    sparse = "rows"

    def __init__(
        self,
        inner_optimizer: Any,
        weight_decay: Any,
        decay_variables: Any,
        scale_by_learning_rate: bool,
        name: str | None,
    ):
        super().__init__(inner_optimizer, name=name)
        self.weight_decay = check_hyperparameter("weight_decay", weight_decay, 0)
        self.decay_variables = check_choice("decay_variables", decay_variables)
        self.scale_by_learning_rate = check_bool("scale_by_learning_rate", scale_by_learning_rate)

    def check(self, likes: Any) -> None:
        check_choice_matches("decay_variables", self.decay_variables, likes)

    def reach(self, like: Like) -> str | None:
        return self.sparse if is_chosen(like, self.decay_variables) else None

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

    def __init__(
        self,
        inner_optimizer: Any,
        weight_decay: Any,
        decay_variables: Any = None,
        scale_by_learning_rate: bool = False,
        name: str | None = None,
    ):
        super().__init__(
            inner_optimizer, weight_decay, decay_variables, scale_by_learning_rate, name
        )

    def before(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, Any]:
        if t.rows or t.touched is not None:
            return g, x
        return super().before(g, x, s, t)
