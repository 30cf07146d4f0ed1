from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tfopt.engine import check_choice, is_chosen, literal, no_vectors, settled
from keras_tfopt.fields import field, flag, within
from keras_tfopt.rule import Rule, register, zeros
from keras_tfopt.rules.trust_ratio import trust_ratio


def _check_skip_list(name: str, value: Any) -> Any:
    if value is no_vectors:
        raise ValueError(
            f"Argument `{name}` must not be `no_vectors`, which chooses the kernels; write "
            f"`keras_tfopt.normalization_and_bias(model)`. Received: {value!r}"
        )
    return check_choice(name, value, literal=True)


@register
class LARS(Rule):
    r"""Layer-wise adaptive rate scaling: momentum for large batches.

    Each variable gets its own learning rate, in proportion to its norm divided by its gradient's:

    $$
    \begin{aligned}
    r &= \frac{\eta_\text{LARS} \lVert x \rVert}
              {\lVert g \rVert + \lambda \lVert x \rVert + \epsilon}
      \quad \text{if } \lVert x \rVert > 0 \text{ and } \lVert g \rVert > 0
      \text{, else } 1 \\
    h &= \eta r (g + \lambda x) \\
    a &\leftarrow \mu a + h \\
    x &\leftarrow x - a              & \text{(plain)} \\
    x &\leftarrow x - h - \mu a      & \text{(Nesterov)}
    \end{aligned}
    $$

    with Euclidean norms over the whole variable. For large batches, raise the learning rate in
    proportion to the batch size, warm it up linearly over the first epochs, then let it fall by a
    polynomial decay of power 2; skip biases and the parameters of normalization layers, which
    `keras_tfopt.normalization_and_bias` finds in a model.

    Args:
        learning_rate: $\eta$, number >= 0, schedule or callable. It multiplies a step that is
            already $\eta_\text{LARS}$ times the size of the variable, so values from 1 to 30 are
            usual. Defaults to 1.0.
        momentum: $\mu$ in [0, 1]. Defaults to 0.9.
        weight_decay: $\lambda \geq 0$, part of the rule and so in place of Keras's decoupled decay.
            Defaults to 1e-4.
        eeta: $\eta_\text{LARS} \geq 0$, the trust coefficient. Defaults to 1e-3.
        epsilon: Number >= 0. Defaults to 0.
        skip_list: Variables that get plain momentum without weight decay: a list of variables,
            parts of their paths, or compiled regular expressions to search there; or a function
            that is given `path`, `shape` and `dtype` of a variable as attributes. Best is
            `keras_tfopt.normalization_and_bias(model)`: names tell little, `conv1_bn/gamma` is the
            scale of a normalization. Defaults to None.
        nesterov: Defaults to False.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `momentum`, the accumulated step $a$ (learning rate included), of the variable's shape.

    Row gradients: only touched rows change, by the plain momentum of `keras_tfopt.Momentum`:
    learning rate outside of the slot, no trust ratio, no weight decay. This is what the
    original does.

    Example:
    >>> schedule = keras.optimizers.schedules.PolynomialDecay(10.0, decay_steps=1000, power=2)
    >>> skipped = keras_tfopt.normalization_and_bias(model)
    >>> model.compile(optimizer=keras_tfopt.LARS(schedule, skip_list=skipped), loss="mse")

    Reference: You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks" (2017).

    Differences: none from `tf.contrib.opt.LARSOptimizer`, which has no default learning rate. A
    zero gradient gives r = 1 there too, so weight decay then acts at the full learning rate.
    Keras has no LARS.
    """

    scope = "variable"
    flat = True
    sparse = "rows"

    learning_rate: Any = 1.0
    momentum: float = within(0, 1, default=0.9)
    weight_decay: float = within(0, default=1e-4)
    eeta: float = within(0, default=1e-3)
    epsilon: float = within(0, default=0.0)
    skip_list: Any = field(_check_skip_list, default=None)
    nesterov: bool = flag(default=False)

    def slots(self, like: Any) -> dict[str, Any]:
        return {"momentum": zeros(like)}

    def choices(self) -> dict[str, Any]:
        return {**super().choices(), "skip_list": literal(self.skip_list)}

    def settle(self, likes: Any) -> None:
        super().settle(likes)
        self.skip_list = settled(self.skip_list, likes)

    def is_skipped(self, like: Any) -> bool:
        """Return whether `skip_list` has this variable."""
        return is_chosen(like, literal(self.skip_list))

    def facts_of(self, like: Any) -> dict[str, Any]:
        return {"is_skipped": self.is_skipped(like), "is_excluded": self.is_excluded(like)}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        if t.rows:
            a = self.momentum * s.momentum + g
            return x - t.lr * (g + self.momentum * a if self.nesterov else a), {"momentum": a}
        if t.is_skipped:
            h = t.lr * g
        else:
            decay = 0.0 if t.is_excluded else self.weight_decay
            h = t.lr * self._trust_ratio(t.norm(g), t.norm(x), decay) * (g + decay * x)
        a = self.momentum * s.momentum + h
        return x - (h + self.momentum * a if self.nesterov else a), {"momentum": a}

    def compute_lr(self, gradient: Any, variable: Any) -> Any:
        """Return the learning rate that a step with this gradient would use for this variable."""
        x = ops.convert_to_tensor(variable)
        g = ops.cast(ops.convert_to_tensor(gradient), x.dtype)
        g_norm, x_norm = ops.sqrt(ops.sum(ops.square(g))), ops.sqrt(ops.sum(ops.square(x)))
        rule = self.rule_now(keras.backend.standardize_dtype(x.dtype))
        ratio = rule._trust_ratio(g_norm, x_norm, rule.weight_decay)
        return ops.cast(self.learning_rate, x.dtype) * ratio

    def _trust_ratio(self, g_norm: Any, x_norm: Any, weight_decay: Any) -> Any:
        denominator = (g_norm + weight_decay * x_norm + self.epsilon) / self.eeta
        return trust_ratio(x_norm, g_norm, denominator)
