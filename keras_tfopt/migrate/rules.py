"""Rules that follow the conventions of Keras 2 and 3, which differ from those of this package."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tfopt import rules
from keras_tfopt.engine import Slot
from keras_tfopt.fields import flag, within
from keras_tfopt.rule import Rule, full, zeros
from keras_tfopt.rules.moments import Moments, moments, over_root, quotient
from keras_tfopt.rules.shrinkage import soft_threshold
from keras_tfopt.wrappers.sgd_w import AccumulatedSteps

# Files must tell them from the rules of the same names.
register = keras.saving.register_keras_serializable("keras_tfopt.migrate")


@register
class SGD(AccumulatedSteps):
    r"""Gradient descent with the learning rate inside of the momentum.

    $$
    \begin{aligned}
    m &\leftarrow \mu m - \eta g \\
    x &\leftarrow x + m                & \text{(plain)} \\
    x &\leftarrow x + \mu m - \eta g   & \text{(Nesterov)}
    \end{aligned}
    $$

    Args:
        learning_rate: $\eta$, number >= 0, schedule or callable. Defaults to 0.01.
        momentum: $\mu$ in [0, 1]. Defaults to 0.
        nesterov: Whether to step to where the momentum leads. Defaults to False.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `momentum`, the last step, of the variable's shape; none without momentum.

    Row gradients: as if dense.

    Example:
    >>> model.compile(optimizer=keras_tfopt.migrate.SGD(0.1, momentum=0.9))

    Reference: `keras.optimizers.SGD`, and of Keras 2 both classes of this name.

    Differences: none from these. `keras_tfopt.Momentum` has the learning rate outside of the slot,
    and moves touched rows of tables only.
    """

    sparse = "dense"


@register
class RMSprop(Rule):
    r"""Gradients divided by a moving average of their size that starts at zero.

    $$
    \begin{aligned}
    r &\leftarrow \rho r + (1 - \rho) g^2 \\
    c &\leftarrow \rho c + (1 - \rho) g           & \text{(centered; else } c = 0 \text{)} \\
    u &= \eta \frac{g}{\sqrt{r - c^2 + \epsilon}} \\
    x &\leftarrow x - u, \quad \text{or} \quad a \leftarrow \mu a + u, \; x \leftarrow x - a
    \end{aligned}
    $$

    Args:
        learning_rate: $\eta$, number >= 0, schedule or callable. Defaults to 0.001.
        rho: Decay of the averages, in [0, 1]. Defaults to 0.9.
        momentum: $\mu$ in [0, 1]. Defaults to 0.
        epsilon: Number >= 0. Defaults to 1e-7.
        centered: Whether to subtract the square of the average gradient. Defaults to False.
        epsilon_in_root: Whether epsilon is inside of the root, as in Keras 3. The legacy class of
            Keras 2 has it inside with momentum, and outside without, as PyTorch always has.
            Defaults to True.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `rms`, the average $r$; `momentum`, $a$, unless it is 0; `mg`, $c$, if centered; all of
    the variable's shape.

    Row gradients: as if dense.

    Example:
    >>> model.compile(optimizer=keras_tfopt.migrate.RMSprop(1e-3, momentum=0.9))

    Reference: `keras.optimizers.RMSprop`, and of Keras 2 both classes of this name.

    Differences: a difference $r - c^2$ that rounding makes negative counts as zero, which gives NaN
    there. `keras_tfopt.RMSProp` starts its average at one.
    """

    learning_rate: Any = 0.001
    rho: float = within(0, 1, default=0.9)
    momentum: float = within(0, 1, default=0.0)
    epsilon: float = within(0, default=1e-7)
    centered: bool = flag(default=False)
    epsilon_in_root: bool = flag(default=True)

    def slots(self, like: Any) -> dict[str, Any]:
        """Describe the averages, and the momentum if there is one."""
        momentum = {} if _is_zero(self.momentum) else {"momentum": zeros(like)}
        centered = {"mg": zeros(like)} if self.centered else {}
        return {"rms": zeros(like), **momentum, **centered}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        """Return the new variable and the new averages."""
        new = {"rms": self.rho * s.rms + (1 - self.rho) * ops.square(g)}
        variance = new["rms"]
        if self.centered:
            new["mg"] = self.rho * s.mg + (1 - self.rho) * g
            variance = variance - ops.square(new["mg"])
            variance = ops.where(variance < 0, ops.zeros_like(variance), variance)
        step = t.lr * quotient(g, _root(self, variance))
        if hasattr(s, "momentum"):
            step = new["momentum"] = self.momentum * s.momentum + step
        return x - step, new


@register
class Adagrad(Rule):
    r"""Steps that shrink with the sum of all squared gradients, with an epsilon.

    $$
    \begin{aligned}
    a &\leftarrow a + g^2 \\
    x &\leftarrow x - \eta \frac{g}{\sqrt{a + \epsilon}}
    \end{aligned}
    $$

    Args:
        learning_rate: $\eta$, number >= 0, schedule or callable. Defaults to 0.001.
        initial_accumulator_value: Number >= 0 at which $a$ starts. Defaults to 0.1.
        epsilon: Number >= 0. Defaults to 1e-7.
        epsilon_in_root: Whether epsilon is inside of the root, as in Keras 3, or added to the root,
            as in the legacy class of Keras 2 and in PyTorch. Defaults to True.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `accumulator`, the sum $a$, of the variable's shape.

    Row gradients: only touched rows change, as if dense. With a `weight_decay`, all rows decay.

    Example:
    >>> model.compile(optimizer=keras_tfopt.migrate.Adagrad(0.1))

    Reference: `keras.optimizers.Adagrad`, and of Keras 2 both classes of this name.

    Differences: where the denominator is zero, the gradient has always been, and nothing moves;
    Keras makes that NaN. `keras_tfopt.Adagrad` has no epsilon.
    """

    sparse = "rows"

    learning_rate: Any = 0.001
    initial_accumulator_value: float = within(0, default=0.1, fixed=True)
    epsilon: float = within(0, default=1e-7)
    epsilon_in_root: bool = flag(default=True)

    def takes_rows(self, like: Any) -> bool:
        """Return whether rows without gradient stay as they are, as they do without decay."""
        return self.weight_decay is None

    def slots(self, like: Any) -> dict[str, Any]:
        """Describe the sum."""
        return {"accumulator": full(like, self.initial_accumulator_value)}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        """Return the new variable and the new sum."""
        a = s.accumulator + ops.square(g)
        return x - t.lr * quotient(g, _root(self, a)), {"accumulator": a}


@register
class Adadelta(rules.Adadelta):
    r"""`keras_tfopt.Adadelta` with the epsilon of Keras, whose averages decay in all rows.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.001.
        rho: Decay of the averages, in [0, 1]. Defaults to 0.95.
        epsilon: Number > 0. Defaults to 1e-7.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `accum` and `accum_update`, as those of `keras_tfopt.Adadelta`.

    Row gradients: as if dense.

    Example:
    >>> model.compile(optimizer=keras_tfopt.migrate.Adadelta(1.0))

    Reference: `keras.optimizers.Adadelta`, and of Keras 2 both classes of this name.

    Differences: none.
    """

    sparse = "dense"
    epsilon = 1e-7


@register
class Adamax(rules.AdaMax):
    r"""`keras_tfopt.AdaMax` with the epsilon of Keras, whose averages decay in all rows.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.001.
        beta_1: Decay of the first moment, in [0, 1). Defaults to 0.9.
        beta_2: Decay of the largest gradient, in [0, 1). Defaults to 0.999.
        epsilon: Number >= 0. Defaults to 1e-7.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m` and `v`, as those of `keras_tfopt.AdaMax`.

    Row gradients: as if dense.

    Example:
    >>> model.compile(optimizer=keras_tfopt.migrate.Adamax(2e-3))

    Reference: `keras.optimizers.Adamax`, and of Keras 2 both classes of this name.

    Differences: none.
    """

    sparse = "dense"
    epsilon = 1e-7


@register
class Nadam(Moments):
    r"""Adam with Nesterov's look ahead, and a momentum that grows from step to step.

    $$
    \begin{aligned}
    \mu_t &= \beta_1 \left(1 - \tfrac12\, 0.96^{\psi t}\right), \qquad
    p \leftarrow \mu_t\, p \\
    m &\leftarrow \beta_1 m + (1 - \beta_1) g \\
    v &\leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
    x &\leftarrow x - \eta \left(\frac{\mu_{t+1} m}{1 - \mu_{t+1}\, p}
        + \frac{(1 - \mu_t) g}{1 - p}\right) \Big/
        \left(\sqrt{\frac{v}{1 - \beta_2^t}} + \epsilon\right)
    \end{aligned}
    $$

    where $t$ counts the optimizer's steps from 1, and $p$ starts at one.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 0.001.
        beta_1: Decay of the first moment, in [0, 1). Defaults to 0.9.
        beta_2: Decay of the second moment, in [0, 1). Defaults to 0.999.
        epsilon: Number >= 0. Defaults to 1e-7.
        momentum_decay: $\psi \geq 0$, how fast the momentum grows: 1 in Keras 3 and in the newer
            class of Keras 2, 0.004 in the legacy class, in PyTorch and in Dozat's report. Defaults
            to 1.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m` and `v`, the moments, of the variable's shape, and `product`, the scalar $p$.

    Row gradients: as if dense.

    Example:
    >>> model.compile(optimizer=keras_tfopt.migrate.Nadam(1e-3))

    Reference: Dozat, "Incorporating Nesterov Momentum into Adam" (2016); `keras.optimizers.Nadam`.

    Differences: $p$ is kept for each variable, so for one without a gradient in some steps it rests
    in these; Keras has one for all variables. `keras_tfopt.Nadam` has a constant momentum.
    """

    scope = "variable"

    epsilon = 1e-7
    momentum_decay: float = within(0, default=1.0)

    def slots(self, like: Any) -> dict[str, Any]:
        """Describe the moments, and the product of all momenta so far."""
        return {**super().slots(like), "product": Slot((), 1.0, by_row=False)}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        """Return the momenta of this step and of the next."""

        def momentum(step: Any) -> Any:
            return self.beta_1 * (1 - 0.5 * 0.96 ** (self.momentum_decay * step))

        now, after = momentum(step), momentum(step + 1)
        return {"lr": lr, "now": now, "next": after, "seen": 1 - self.beta_2**step}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        """Return the new variable, moments and product."""
        m, v = moments(self, g, s)
        product = s.product * t.now
        ahead = t.next * m / (1 - product * t.next) + (1 - t.now) * g / (1 - product)
        step = over_root(ahead, ops.sqrt(v / t.seen), self.epsilon)
        return x - t.lr * step, {"m": m, "v": v, "product": product}


@register
class Ftrl(rules.Ftrl):
    r"""`keras_tfopt.Ftrl` with the `beta` of Keras, which computes all rows anew at each step.

    $$
    q = \frac{a^{-p} + \beta}{\eta} + 2 \lambda_2
    $$

    Args:
        learning_rate: $\eta$, number >= 0, schedule or callable. Defaults to 0.001.
        learning_rate_power: $p$, number <= 0. Defaults to -0.5.
        initial_accumulator_value: Number >= 0 at which $a$ starts. Defaults to 0.1.
        l1_regularization_strength: $\lambda_1 \geq 0$. Defaults to 0.
        l2_regularization_strength: $\lambda_2 \geq 0$. Defaults to 0.
        l2_shrinkage_regularization_strength: $\lambda_s \geq 0$. Defaults to 0.
        beta: $\beta \geq 0$, a further penalty in units of the learning rate. Defaults to 0.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `accum` and `linear`, as those of `keras_tfopt.Ftrl`.

    Row gradients: as if dense.

    Example:
    >>> model.compile(optimizer=keras_tfopt.migrate.Ftrl(0.1, beta=1.0))

    Reference: McMahan et al., "Ad Click Prediction: a View from the Trenches" (2013);
    `keras.optimizers.Ftrl`, and of Keras 2 both classes of this name.

    Differences: none but for two divisions by zero, of which `keras_tfopt.Ftrl` tells.
    """

    sparse = "dense"

    beta: float = within(0, default=0.0)

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        """Return the learning rate, and the penalty that `beta` adds."""
        # With a learning rate of zero nothing changes, whatever the penalty is.
        return {"lr": lr, "penalty": self.beta / ops.where(lr > 0, lr, ops.ones_like(lr))}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        """Return the new variable and the new sums."""
        _, new = super().update(g, x, s, t)
        q = self._power(new["accum"]) / t.lr + 2 * self.l2_regularization_strength + t.penalty
        shrunk = soft_threshold(-new["linear"], self.l1_regularization_strength) / q
        shrunk = ops.where(q <= 0, ops.zeros_like(shrunk), shrunk)
        return ops.where(t.lr <= 0, x, shrunk), new


@register
class Lion(rules.Lion):
    r"""`keras_tfopt.Lion` that moves all rows of a table at each step.

    Args:
        learning_rate: Number >= 0, schedule or callable. Defaults to 1e-4.
        beta_1: Weight of the average in a step, in [0, 1]. Defaults to 0.9.
        beta_2: Decay of the average, in [0, 1]. Defaults to 0.99.
        **base: Options of every optimizer, see `keras_tfopt.Rule`.

    Slots: `m`, as that of `keras_tfopt.Lion`.

    Row gradients: as if dense.

    Example:
    >>> model.compile(optimizer=keras_tfopt.migrate.Lion(1e-4))

    Reference: Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023);
    `keras.optimizers.Lion`.

    Differences: none.
    """

    sparse = "dense"


def _is_zero(value: Any) -> bool:
    return isinstance(value, float) and value == 0


def _root(rule: Any, squares: Any) -> Any:
    """Return the root of squares with epsilon, which is inside it or added to it."""
    if rule.epsilon_in_root:
        return ops.sqrt(squares + rule.epsilon)
    return ops.sqrt(squares) + rule.epsilon
