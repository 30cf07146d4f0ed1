from __future__ import annotations

from typing import Any

from keras_tfopt.rule import register
from keras_tfopt.rules import Momentum
from keras_tfopt.wrappers.extension import extend_with_decoupled_weight_decay


@register
class MomentumW(extend_with_decoupled_weight_decay(Momentum)):  # type: ignore[misc]
    r"""Momentum whose variables shrink by themselves, apart from the velocity.

    $$
    x \leftarrow x - \lambda x, \quad \text{then the step of } \texttt{keras\_tfopt.Momentum}
    $$

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.01.
        weight_decay: $\lambda$: number >= 0, schedule, scalar variable, or callable without
            arguments. Not multiplied by the learning rate.
        momentum: Number >= 0. Defaults to 0.9.
        nesterov: Whether to use Nesterov's variant. Defaults to False.
        decay_variables: Which variables decay; see `keras_tfopt.DecoupledWeightDecay`. Defaults to
            None: all.
        scale_by_learning_rate: Whether the decay is multiplied by the learning rate. Defaults to
            False.
        name: Name of the optimizer.
        **base: Options of the optimizer inside; see `keras_tfopt.Rule`.

    Slots: none. That of `keras_tfopt.Momentum` inside is `momentum`.

    Row gradients: touched rows only decay and move.

    Example:

    >>> optimizer = keras_tfopt.MomentumW(0.1, weight_decay=1e-4, nesterov=True)

    Reference: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019), there SGDW.

    Differences: none in the numbers from `tf.contrib.opt.MomentumWOptimizer`, which has no defaults
    for rate and momentum. `keras_tfopt.SGDW`, of TensorFlow Addons, keeps the velocity multiplied
    by the learning rate, which differs where that changes.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        *,
        weight_decay: Any,
        momentum: float = 0.9,
        nesterov: bool = False,
        decay_variables: Any = None,
        scale_by_learning_rate: bool = False,
        name: str | None = None,
        **base: Any,
    ):
        super().__init__(
            learning_rate,
            weight_decay=weight_decay,
            momentum=momentum,
            nesterov=nesterov,
            decay_variables=decay_variables,
            scale_by_learning_rate=scale_by_learning_rate,
            name=name,
            **base,
        )
