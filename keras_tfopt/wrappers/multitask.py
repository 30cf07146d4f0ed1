from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_tfopt.checks import check_number
from keras_tfopt.engine import clipped_by_global_norm
from keras_tfopt.rule import register
from keras_tfopt.wrapper import Wrapper


@register
class Multitask(Wrapper):
    r"""Leaves variables alone, slots included, in steps in which their gradient is all zero.

    In training that alternates between tasks, a batch of one task has zero gradients for what only
    the others use. Momentum would go on moving that, and moments would decay.

    $$
    (x, s) \leftarrow \begin{cases}
    (x, s) & \text{if } g = 0 \\
    \text{the inner optimizer's step} & \text{else}
    \end{cases}
    $$

    for each variable $x$ with its slots $s$. The number of steps advances in any case. With
    accumulation, $g$ is the mean over the micro-steps.

    Args:
        inner_optimizer: Any Keras optimizer, or its name or configuration. State that it keeps for
            all variables together, as `keras_tfopt.GGT` does, is not left alone.
        name: Name of the optimizer.
        **base: `groups`, which is passed on. Other options belong to `inner_optimizer`.

    Slots: none.

    Row gradients: zero if the sums of the rows are, also of rows that are named.

    Example:

    >>> optimizer = keras_tfopt.Multitask(keras_tfopt.Adam(0.001))

    Reference: Caruana, "Multitask Learning" (1997), for training that shares variables between
    tasks.

    Differences: none in the numbers from `tf.contrib.opt.MultitaskOptimizerWrapper`.
    `keras.optimizers` move a variable unless its gradient is None.
    """

    def accept(self, g: Any, x: Any, t: Any) -> Any:
        return ops.any(g)


def clip_gradients_by_global_norm(
    gradients: Sequence[Any], clip_norm: float = 20.0
) -> tuple[list[Any], Any]:
    """Scale gradients down together, so that their common norm is at most `clip_norm`.

    `tf.contrib.opt` has a function of this name along with `MultitaskOptimizerWrapper`, and says
    that it looks only at gradients that are not all zero. Zeros add nothing to a norm: it is the
    usual clipping, and so is this.

    Args:
        gradients: Tensors, `RowGradient`s, row gradients of the backend, or None.
        clip_norm: Number > 0. Defaults to 20.

    Returns:
        The gradients, each in the form in which it came, and the norm that they had together.
    """
    clip_norm = check_number("clip_norm", clip_norm, 0, left_open=True)
    return clipped_by_global_norm(gradients, clip_norm)
