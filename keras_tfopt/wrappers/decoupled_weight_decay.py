from __future__ import annotations

from keras_tfopt.rule import register
from keras_tfopt.wrappers.decay import Decay


@register
class DecoupledWeightDecay(Decay):
    r"""Shrinks variables before each step of another optimizer, whose slots never see it.

    $$
    x \leftarrow x - \lambda x, \quad
    \text{or, scaled by the learning rate } \eta, \quad x \leftarrow x - \eta \lambda x
    $$

    Then the inner optimizer takes its step from there.

    Args:
        inner_optimizer: Any Keras optimizer, or its name or configuration.
        weight_decay: $\lambda$: number >= 0, schedule, scalar variable, or callable without
            arguments. A learning rate that falls needs a decay that falls with it, unless it is
            scaled.
        decay_variables: Which variables decay: variables, regular expressions that are searched in
            their paths, or functions that are given `path`, `shape` and `dtype` of a variable as
            attributes, one or a list. A function is saved if it is registered.
            `keras_tfopt.no_vectors` is one. With a model at hand, leave this and call
            `optimizer.exclude_from_weight_decay(keras_tfopt.normalization_and_bias(model))`.
            Defaults to None: all; an empty list is none.
        scale_by_learning_rate: Whether the decay is multiplied by the learning rate. Defaults to
            False, the convention of the paper, of TensorFlow 1 and TensorFlow Addons; True is that
            of `keras.optimizers.AdamW` and of PyTorch.
        name: Name of the optimizer.
        **base: `groups`, which is passed on. Other options belong to `inner_optimizer`.

    Slots: none.

    Row gradients: only touched rows decay, once each, also if the inner optimizer moves all.

    Example:

    >>> inner = keras_tfopt.LazyAdam(0.001)
    >>> decayed = keras_tfopt.no_vectors
    >>> optimizer = keras_tfopt.DecoupledWeightDecay(inner, 1e-4, decay_variables=decayed)

    Reference: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019).

    Differences: `weight_decay` of `keras.optimizers` is scaled by the learning rate.
    `corrected_weight_decay` of timm is scaled by it twice, in units of its first value: here, by a
    schedule for `weight_decay` that is proportional to that of the learning rate, and scaled.
    `tf.contrib.opt` and TensorFlow Addons choose variables in each call, and let row gradients of
    plain gradient descent pass without decay; around LARS and Shampoo, the decay of the former is
    that of LARS, or twice as large. A decay of less than one unit in the last place is lost in
    half-precision variables, unless the inner optimizer keeps `master_weights`.
    """
