"""What the rules of Adam's family share."""

from __future__ import annotations

from typing import Any

from keras import ops


def moments(rule: Any, g: Any, s: Any) -> tuple[Any, Any]:
    """The decayed averages of the gradient and of its square."""
    m = rule.beta_1 * s.m + (1 - rule.beta_1) * g
    v = rule.beta_2 * s.v + (1 - rule.beta_2) * ops.square(g)
    return m, v


def corrected_rate(rule: Any, lr: Any, step: Any) -> Any:
    """The learning rate with the corrections for both moments starting at zero."""
    return lr * ops.sqrt(1 - rule.beta_2**step) / (1 - rule.beta_1**step)


def quotient(m: Any, denominator: Any) -> Any:
    """The quotient with a denominator >= 0; where that is zero, so is what is above it."""
    return ops.where(denominator > 0, m / denominator, m)
