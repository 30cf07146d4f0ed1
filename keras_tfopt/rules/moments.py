"""What the rules of Adam's family share."""

from __future__ import annotations

import math
from typing import Any

from keras import ops

from keras_tfopt.fields import within
from keras_tfopt.rule import Rule, zeros

SMALLEST = 1e-30  # of an epsilon that leaves no denominator zero


class Moments(Rule):
    """Abstract: a rule with decayed averages of the gradient and of its square."""

    learning_rate: Any = 0.001
    beta_1: float = within(0, 1, default=0.9, right_open=True)
    beta_2: float = within(0, 1, default=0.999, right_open=True)
    epsilon: float = within(0, default=1e-8)

    def slots(self, like: Any) -> dict[str, Any]:
        return {"m": zeros(like), "v": zeros(like, signed=False)}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return {"rate": corrected_rate(self, lr, step)}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        m, v = moments(self, g, s)
        return x - t.rate * over_root(m, ops.sqrt(v), self.epsilon), {"m": m, "v": v}


def moments(rule: Any, g: Any, s: Any) -> tuple[Any, Any]:
    """Return the decayed averages of the gradient and of its square."""
    m = rule.beta_1 * s.m + (1 - rule.beta_1) * g
    v = rule.beta_2 * s.v + (1 - rule.beta_2) * ops.square(g)
    return m, v


def largest(old: Any, v: Any) -> Any:
    """Return the largest second moment so far, from that of earlier steps; NaN stays NaN."""
    return ops.where(old >= v, old, v)


def corrected_rate(rule: Any, lr: Any, step: Any) -> Any:
    """Return the learning rate with the corrections for both moments starting at zero."""
    return lr * ops.sqrt(1 - rule.beta_2**step) / (1 - rule.beta_1**step)


def quotient(m: Any, denominator: Any) -> Any:
    """Return the quotient with a denominator >= 0; where that is zero, so is the numerator."""
    return ops.where(denominator > 0, m / denominator, m)


def over_root(m: Any, root: Any, epsilon: Any) -> Any:
    """Return m / (root + epsilon), where m is zero if that is."""
    if isinstance(epsilon, float) and epsilon > SMALLEST:
        return m / (root + epsilon)
    return quotient(m, root + epsilon)


def at_least(value: Any, low: Any) -> Any:
    """Return the larger of a tensor and a number; NaN stays NaN."""
    # On PyTorch, `ops.maximum` rounds to float32. XLA computes the operands of `ops.where` apart.
    return ops.clip(value, low * ops.ones_like(value), math.inf)


def at_most(value: Any, high: Any) -> Any:
    """Return the smaller of a tensor and a number; NaN stays NaN."""
    return ops.clip(value, -math.inf, high * ops.ones_like(value))


def agreement(a: Any, b: Any) -> Any:
    """Return 1 where two values have the same sign, 0 where they have not or one is zero."""
    # XLA computes the mean of a sign in one loop with it, and stores the results of comparisons.
    return ops.relu(ops.sign(a * b))


def sign(value: Any) -> Any:
    """Return the sign of a tensor, NaN where it is NaN."""
    # On PyTorch `ops.sign` of NaN is 0, and takes longer.
    one = ops.ones_like(value)
    return ops.where(value > 0, one, ops.where(value < 0, -one, value))
