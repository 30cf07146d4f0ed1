from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.checks import check_global_step
from keras_tfopt.fields import field, within
from keras_tfopt.rule import Rule, full, register, zeros
from keras_tfopt.rules.shrinkage import soft_threshold


@register
class AdagradDA(Rule):
    r"""Adagrad by dual averaging: sparse linear models from the sums of all gradients.

    $$
    \begin{aligned}
    G &\leftarrow G + g \\
    H &\leftarrow H + g^2 \\
    x &\leftarrow -\eta \frac{\operatorname{sign}(G) \max(|G| - \lambda_1 T, 0)}
                             {\lambda_2 T \eta + \sqrt{H}}
    \end{aligned}
    $$

    where $T$ counts steps from 1. The old $x$ does not appear: what the weights started at is lost
    at the first step, and so is whatever else changes them, such as the base option `weight_decay`.
    This is for convex problems that may start at zero; networks need another optimizer.

    Args:
        learning_rate: $\eta$, number >= 0, schedule or callable. It scales the weights themselves:
            if it falls, they shrink. Defaults to 0.1.
        global_step: Scalar `keras.Variable` that counts training steps; T is its value + 1.
            Defaults to None: T is the optimizer's own count.
        initial_gradient_squared_accumulator_value: Number > 0 at which $H$ starts. Defaults to 0.1.
        l1_regularization_strength: $\lambda_1 \geq 0$. Defaults to 0.
        l2_regularization_strength: $\lambda_2 \geq 0$. Defaults to 0.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `gradient_accumulator`, $G$, and `gradient_squared_accumulator`, $H$, of the variable's
    shape.

    Row gradients: only touched rows of the variable and of the slots change, with the present T.
    The other rows keep their values, although the dense rule would shrink them as T grows.

    Example:
    >>> model.compile(optimizer=keras_tfopt.AdagradDA(0.5, l1_regularization_strength=1e-3))

    Reference: Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online Learning and
    Stochastic Optimization" (2011); Xiao, "Dual Averaging Methods" (2010).

    Differences: none from `tf.train.AdagradDAOptimizer` with the same `global_step`, which is
    required there; there is no default learning rate there. Keras has no AdagradDA.
    """

    sparse = "rows"
    ignores_changes = True

    learning_rate: Any = 0.1
    global_step: Any = field(lambda _, value: check_global_step(value), default=None)
    initial_gradient_squared_accumulator_value: float = within(
        0, default=0.1, left_open=True, fixed=True
    )
    l1_regularization_strength: float = within(0, default=0.0)
    l2_regularization_strength: float = within(0, default=0.0)

    def slots(self, like: Any) -> dict[str, Any]:
        return {
            "gradient_accumulator": zeros(like),
            "gradient_squared_accumulator": full(
                like, self.initial_gradient_squared_accumulator_value, signed=False
            ),
        }

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        l1 = self.l1_regularization_strength * step
        return {"lr": lr, "l1": l1, "l2": self.l2_regularization_strength * step * lr}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        total = s.gradient_accumulator + g
        squares = s.gradient_squared_accumulator + ops.square(g)
        x = t.lr * soft_threshold(-total, t.l1) / (t.l2 + ops.sqrt(squares))
        return x, {"gradient_accumulator": total, "gradient_squared_accumulator": squares}
