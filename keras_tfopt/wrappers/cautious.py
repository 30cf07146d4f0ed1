from __future__ import annotations

import math
from typing import Any

from keras import ops

from keras_tfopt.engine import innermost
from keras_tfopt.fields import within
from keras_tfopt.rule import register
from keras_tfopt.rules.moments import agreement, at_least
from keras_tfopt.wrapper import Wrapper


@register
class Cautious(Wrapper):
    r"""Takes only the part of a step that goes against the gradient, and enlarges it.

    With the step $u$ that the inner optimizer would take from $x$, by gradient $g$:

    $$
    \begin{aligned}
    \phi &= \begin{cases} 1 & u g < 0 \\ 0 & \text{otherwise} \end{cases} \\
    x &\leftarrow x + \frac{\phi u}{\max(\overline{\phi}, \mu)}
    \end{aligned}
    $$

    $\overline{\phi}$ is the mean of $\phi$ over the variable. With `maximize` of the inner
    optimizer, the part that goes along the gradient is taken.

    Args:
        inner_optimizer: Any Keras optimizer with momentum, or its name or configuration. Steps of
            one without momentum go against the gradient anyway.
        min_mean: $\mu$ in (0, 1]: the part of a step grows at most by $1 / \mu$. Defaults to
            0.001.
        name: Name of the optimizer.
        **base: `groups`, which is passed on. Other options belong to `inner_optimizer`.

    Slots: none.

    Row gradients: touched rows only are masked, with the mean over those in which the gradient is
    not zero. Other rows move as the inner optimizer moves them.

    The option `weight_decay` of the inner optimizer is part of its step. Decay that is none of it
    comes from `keras_tfopt.DecoupledWeightDecay`, around or inside.

    Example:

    >>> optimizer = keras_tfopt.Cautious(keras_tfopt.Adam(1e-3))
    >>> optimizer = keras_tfopt.DecoupledWeightDecay(
    ...     optimizer, 0.01, scale_by_learning_rate=True
    ... )  # cautious AdamW

    Reference: Liang et al., "Cautious Optimizers: Improving Training with One Line of Code" (2024).

    Differences: none in the numbers from `caution=True` of AdamW in timm, which is as above with
    epsilon added to the corrected root. The authors' first version has $\overline{\phi} + 1/n$ for
    $n$ elements instead of the maximum. `keras.optimizers` has nothing like it.
    """

    sparse = "rows"
    flat = True
    changes_variables = True
    needs_old = True

    min_mean: float = within(0, 1, default=1e-3, left_open=True, fixed=True)

    def facts(self, like: Any) -> dict[str, Any]:
        return {"maximize": getattr(innermost(self), "maximize", False)}

    def after(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        step = x - t.old
        kept = agreement(step, g if t.maximize else -g)
        in_rows = t.rows or t.touched is not None
        mean = mean_of_rows(kept, g) if in_rows else t.mean(kept)
        part = kept / at_least(mean, self.min_mean)
        return t.old + part * step, {}


def mean_of_rows(values: Any, g: Any) -> Any:
    """Return the mean over the rows in which a gradient is not zero."""
    rows = (-1, math.prod(g.shape[1:]))  # those of a lookup are filled up with zeros
    some = ops.cast(ops.any(ops.reshape(g, rows) != 0, axis=1, keepdims=True), values.dtype)
    count = ops.sum(some) * rows[1]
    total = ops.sum(ops.reshape(values, rows) * some)
    return total / ops.where(count > 0, count, 1.0)
