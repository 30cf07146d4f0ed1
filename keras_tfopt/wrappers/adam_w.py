from __future__ import annotations

from typing import Any

from keras_tfopt.rule import register
from keras_tfopt.rules import Adam
from keras_tfopt.wrappers.extension import extend_with_decoupled_weight_decay


@register
class AdamW(extend_with_decoupled_weight_decay(Adam)):  # type: ignore[misc]
    r"""Adam whose variables shrink by themselves, apart from the moments.

    $$
    x \leftarrow x - \lambda x, \quad \text{then the step of } \texttt{keras\_tfopt.Adam}
    $$

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.001.
        weight_decay: $\lambda$: number >= 0, schedule, scalar variable, or callable without
            arguments. Not multiplied by the learning rate, so 1e-4 is a lot.
        beta_1: Decay rate of the first moment in [0, 1). Defaults to 0.9.
        beta_2: Decay rate of the second moment in [0, 1). Defaults to 0.999.
        epsilon: Number >= 0. Defaults to 1e-8.
        amsgrad: Whether the denominator never shrinks. Defaults to False.
        decay_variables: Which variables decay; see `keras_tfopt.DecoupledWeightDecay`. Defaults to
            None: all.
        scale_by_learning_rate: Whether the decay is multiplied by the learning rate. Defaults to
            False.
        name: Name of the optimizer.
        **base: Options of the optimizer inside; see `keras_tfopt.Rule`.

    Slots: none. Those of `keras_tfopt.Adam` inside are `m` and `v`, with `amsgrad` also `vhat`.

    Row gradients: touched rows decay, once each; then all rows move, as with `keras_tfopt.Adam`.
    `keras_tfopt.extend_with_decoupled_weight_decay(keras_tfopt.LazyAdam)` moves touched rows only.

    Example:

    >>> optimizer = keras_tfopt.AdamW(0.001, weight_decay=1e-5)
    >>> optimizer.exclude_from_weight_decay(keras_tfopt.normalization_and_bias(model))

    Reference: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019).

    Differences: none in the numbers from `tf.contrib.opt.AdamWOptimizer` and from
    `tensorflow_addons.optimizers.AdamW`, except for their defaults (the latter has `epsilon=1e-7`).
    `keras.optimizers.AdamW` multiplies the decay by the learning rate, as
    `scale_by_learning_rate=True` does here.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        *,
        weight_decay: Any,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        amsgrad: bool = False,
        decay_variables: Any = None,
        scale_by_learning_rate: bool = False,
        name: str | None = None,
        **base: Any,
    ):
        super().__init__(
            learning_rate,
            weight_decay=weight_decay,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            amsgrad=amsgrad,
            decay_variables=decay_variables,
            scale_by_learning_rate=scale_by_learning_rate,
            name=name,
            **base,
        )
