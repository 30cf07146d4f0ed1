from __future__ import annotations

from typing import Any

from keras_tfopt.checks import check_integer, check_number
from keras_tfopt.engine import Describing, LossScalingEngine
from keras_tfopt.rule import register


@register
class LossScaleOptimizer(Describing, LossScalingEngine):
    r"""Scales the loss, so that small gradients do not vanish in float16, by a factor that adapts.

    The loss is multiplied by the scale $c$ and the gradients $g$ of that are divided by it:

    $$
    \begin{aligned}
    \text{all of } g \text{ finite:} \quad & \text{inner step with } g / c; \quad
        c \leftarrow 2c \text{ after } n \text{ such steps in a row} \\
    \text{else:} \quad & \text{no step}; \quad c \leftarrow c / 2
    \end{aligned}
    $$

    Under the policy `mixed_float16`, `compile` puts an optimizer into Keras's class of this name,
    unless it is in one of the two already. Use this class for row gradients: Keras's class makes
    those of `keras_tfopt.layers.Embedding` dense, so that a step costs as much as the whole table.

    Args:
        inner_optimizer: Any Keras optimizer, or its name or configuration. Its own
            `loss_scale_factor` is set to None, or gradients would be scaled twice.
        initial_scale: First $c$, number > 0. Defaults to 2**15.
        dynamic_growth_steps: $n$, integer >= 1. Defaults to 2000.
        name: Name of the optimizer.
        **base: None; options of optimizers belong to `inner_optimizer`, and the error says so.

    Slots: none. `optimizer.dynamic_scale` is $c$, and `optimizer.step_counter` the number of finite
    steps since it changed. Both are saved.

    Row gradients: passed on as they are, of every kind that the inner optimizer takes.

    Example:

    >>> keras.config.set_dtype_policy("mixed_float16")
    >>> optimizer = keras_tfopt.LossScaleOptimizer(keras_tfopt.LazyAdam())
    >>> model.compile(optimizer=optimizer)

    Reference: Micikevicius et al., "Mixed Precision Training" (2018).

    Differences: `keras.optimizers.LossScaleOptimizer` scales by the same numbers. It reads all of a
    gradient: rows whose gradient is zero do not count as touched, and sparse tensors of torch and a
    `RowGradient` are errors. It asks one replica of a `tf.distribute` strategy alone whether its
    gradients are finite. On JAX, its `apply` works in compiled steps only.
    """

    def __init__(
        self,
        inner_optimizer: Any,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        name: str | None = None,
        **base: Any,
    ):
        super().__init__(
            inner_optimizer,
            check_number("initial_scale", initial_scale, 0, left_open=True),
            check_integer("dynamic_growth_steps", dynamic_growth_steps, 1),
            name=name,
            **base,
        )
