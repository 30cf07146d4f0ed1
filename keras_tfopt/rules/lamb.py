from __future__ import annotations

import numbers
from typing import Any

from keras import ops

from keras_tfopt.engine import check_choice, is_chosen, settled
from keras_tfopt.fields import field, within
from keras_tfopt.rule import register
from keras_tfopt.rules.moments import Moments, moments, over_root
from keras_tfopt.rules.trust_ratio import trust_ratio


def _check_axis(name: str, value: Any) -> Any:
    axes = list(value) if isinstance(value, (tuple, list)) else [value]
    integers = all(isinstance(a, numbers.Integral) and not isinstance(a, bool) for a in axes)
    if callable(value) or (integers and len(axes)):
        return value
    raise TypeError(
        f"Argument `{name}` must be None (all axes), an integer, a list of integers that is not "
        f"empty, or a function of a variable that returns one of these. Received: {value!r}"
    )


@register
class LAMB(Moments):
    r"""Adam with a step of each layer in proportion to its weights: for large batches.

    $$
    \begin{aligned}
    m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
    v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
    u &= \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon} + \lambda x \\
    r &= \frac{\lVert x \rVert}{\lVert u \rVert}
      \quad \text{if } \lVert x \rVert > 0 \text{ and } \lVert u \rVert > 0
      \text{, else } 1 \\
    x &\leftarrow x - \eta r u
    \end{aligned}
    $$

    where $t$ counts the optimizer's steps from 1, with Euclidean norms over the whole variable, or
    over `axis`.

    BERT is trained with a decay of 0.01, and without decay and ratio in biases and in layer
    normalizations; with the learning rate that rises in a line over the first 10% of the steps or
    less and falls in a line to zero; with gradients clipped to a common norm of 1. The rate is
    0.005 / 2^2.5 at a batch of 1,024, and grows with the root of the batch size:

    ```python
    rate = keras_tfopt.schedules.WarmUpPolynomialDecay(
        0.005 / 2**2.5, warmup_steps=10_000, total_steps=100_000, power=1.0
    )
    optimizer = keras_tfopt.LAMB(rate, weight_decay=0.01, global_clipnorm=1.0)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    ```

    The names are regular expressions; `keras_tfopt.normalization_and_bias` finds the variables
    whatever their names are.

    Args:
        learning_rate: $\eta$, number >= 0, schedule or callable. Defaults to 0.001.
        beta_1: Decay of the first moment, in [0, 1). Defaults to 0.9.
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.999.
        epsilon: Number >= 0 that keeps the denominator from zero. Defaults to 1e-6.
        weight_decay: $\lambda \geq 0$, part of $u$ and so in place of Keras's decoupled decay.
            `exclude_from_weight_decay` exempts variables. Defaults to 0.
        exclude_from_layer_adaptation: Variables for which $r = 1$: variables, regular expressions
            that are searched in their paths, or functions that are given `path`, `shape` and
            `dtype` of a variable as attributes, one or a list. Defaults to None: those that
            `exclude_from_weight_decay` exempts; an empty list is none.
        axis: Axes of the norms, an integer, a list, or a function of a variable that returns one of
            these. Each slice along the other axes gets a ratio of its own: 0 gives one to each
            column of a matrix. In a variable that lacks one of the axes, norms are over all.
            Defaults to None: all.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m` and `v`, the moments, of the variable's shape.

    Row gradients: as if dense. All rows move, and the norms are those of whole variables.

    Example:
    >>> optimizer = keras_tfopt.LAMB(2e-3, weight_decay=0.01)
    >>> optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])

    Reference: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes"
    (2020).

    Differences: none in the numbers from `tensorflow_addons.optimizers.LAMB`, whose constructor
    takes the variables that do not decay. There an empty `exclude_from_layer_adaptation` is as
    None, and there is no `axis`. `keras.optimizers.Lamb` has the decay of all of Keras's optimizers
    outside of the ratio, $x \leftarrow x - \eta \lambda x$ before the step, and no exclusion from
    the ratio: with $\eta = 0.1$, $\lambda = 0.1$, $x = (3, 4)$ and $g = (1, 1)$, the first step
    leads to $(2.66, 3.63)$ here and to $(2.62, 3.61)$ there.
    """

    scope = "variable"

    epsilon = 1e-6
    weight_decay: float = within(0, default=0.0)
    exclude_from_layer_adaptation: Any = field(check_choice, default=None)
    axis: Any = field(_check_axis, default=None)

    def __post_init__(self) -> None:
        self.flat = self.axis is None

    def choices(self) -> dict[str, Any]:
        chosen = self.exclude_from_layer_adaptation
        return {**super().choices(), "exclude_from_layer_adaptation": chosen}

    def settle(self, likes: Any) -> None:
        super().settle(likes)
        self.exclude_from_layer_adaptation = settled(self.exclude_from_layer_adaptation, likes)

    def facts_of(self, like: Any) -> dict[str, Any]:
        excluded, chosen = self.is_excluded(like), self.exclude_from_layer_adaptation
        is_plain = excluded if chosen is None else is_chosen(like, chosen)
        return {"is_excluded": excluded, "has_ratio": not is_plain, "axes": self._axes(like)}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return {"lr": lr, "first": 1 - self.beta_1**step, "second": 1 - self.beta_2**step}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        m, v = moments(self, g, s)
        u = over_root(m / t.first, ops.sqrt(v / t.second), self.epsilon)
        u = u + (0.0 if t.is_excluded else self.weight_decay) * x
        if t.has_ratio:
            x_norm, u_norm = _norm(x, t), _norm(u, t)
            u = trust_ratio(x_norm, u_norm, u_norm) * u
        return x - t.lr * u, {"m": m, "v": v}

    def _axes(self, like: Any) -> tuple[int, ...] | None:
        axis = self.axis(like) if callable(self.axis) else self.axis
        if axis is None:
            return None
        axis = _check_axis("axis", list(axis) if isinstance(axis, range) else axis)
        axes = [int(a) for a in axis] if isinstance(axis, (tuple, list)) else [int(axis)]
        rank = len(like.shape)
        return tuple(axes) if all(-rank <= a < rank for a in axes) else None


def _norm(values: Any, t: Any) -> Any:
    """Return the norm of a variable, or of each of its slices, to broadcast against it."""
    if t.axes is None:
        return t.norm(values)
    return ops.sqrt(ops.sum(ops.square(values), axis=t.axes, keepdims=True))
