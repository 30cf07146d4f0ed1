from __future__ import annotations

from typing import Any

from keras_tfopt.rule import register
from keras_tfopt.rules import Momentum
from keras_tfopt.wrappers.extension import extend_with_decoupled_weight_decay


@register
class AccumulatedSteps(Momentum):
    """Momentum whose slot holds the last step, learning rate and sign included, as Keras's SGD."""

    momentum = 0.0

    def slots(self, like: Any) -> dict[str, Any]:
        is_zero = isinstance(self.momentum, float) and self.momentum == 0
        return {} if is_zero else super().slots(like)

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        step = -t.lr * g
        if not hasattr(s, "momentum"):
            return x + step, {}
        m = self.momentum * s.momentum + step
        return x + (self.momentum * m + step if self.nesterov else m), {"momentum": m}


@register
class SGDW(extend_with_decoupled_weight_decay(AccumulatedSteps)):  # type: ignore[misc]
    r"""Gradient descent with momentum; variables shrink by themselves, apart from the velocity.

    $$
    \begin{aligned}
    x &\leftarrow x - \lambda x \\
    m &\leftarrow \mu m - \eta g \\
    x &\leftarrow x + m                & \text{(plain)} \\
    x &\leftarrow x + \mu m - \eta g   & \text{(Nesterov)}
    \end{aligned}
    $$

    with the new $m$ in the last line.

    Args:
        learning_rate: $\eta$, number >= 0, schedule or callable. Defaults to 0.001.
        weight_decay: $\lambda$: number >= 0, schedule, scalar variable, or callable without
            arguments. Not multiplied by the learning rate.
        momentum: $\mu$ in [0, 1]. Defaults to 0.
        nesterov: Whether to use Nesterov's variant. Defaults to False.
        decay_variables: Which variables decay; see `keras_tfopt.DecoupledWeightDecay`. Defaults to
            None: all.
        scale_by_learning_rate: Whether the decay is multiplied by the learning rate. Defaults to
            False.
        name: Name of the optimizer.
        **base: Options of the optimizer inside; see `keras_tfopt.Rule`.

    Slots: none. That of the optimizer inside is `momentum`, the last step, unless it is 0.

    Row gradients: touched rows only decay and move.

    Example:

    >>> optimizer = keras_tfopt.SGDW(0.1, weight_decay=1e-4, momentum=0.9)

    Reference: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019).

    Differences: none in the numbers from `tensorflow_addons.optimizers.SGDW`, but that without
    momentum its row gradients do not decay. `keras_tfopt.MomentumW`, of TensorFlow 1, has the
    learning rate outside of the slot, which differs where that changes. `keras.optimizers.SGD`
    multiplies its `weight_decay` by the learning rate.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        *,
        weight_decay: Any,
        momentum: float = 0.0,
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
