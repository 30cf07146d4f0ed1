"""The rectification and the warm-up that RectifiedAdam and AdaBelief share."""

from __future__ import annotations

from typing import Any

from keras import ops


def rectification(rule: Any, step: Any) -> dict[str, Any]:
    """Return whether the second moment is to be trusted in a step, and the factor that it gets."""
    power = rule.beta_2**step
    longest = 2 / (1 - rule.beta_2) - 1
    length = _length(rule.beta_2, power, longest, step)
    ratio = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    return {
        "is_rectified": ops.cast(length >= rule.sma_threshold, step.dtype),
        "rectification": ops.sqrt(ops.where(ratio > 0, ratio, ops.zeros_like(ratio))),
    }


def _length(beta: Any, power: Any, longest: Any, step: Any) -> Any:
    """Return the length of a simple average that varies as much as the decayed one.

    In the first steps the formula is a difference of two numbers of the size 2 / (1 - beta), in
    which float32 loses even the integer part. The power series of both, in the logarithms, has
    nothing to cancel.
    """
    formula = longest - 2 * step * power / (1 - power)
    rate = -ops.log(ops.convert_to_tensor(beta, step.dtype))
    series = step + 2 / rate * (_tail(rate) - _tail(-ops.log(power)))
    return ops.where(power > 0.9, series, formula)


def _tail(u: Any) -> Any:
    """Return u / (exp(u) - 1) - 1 + u / 2 for small u."""
    square = ops.square(u)
    return square / 12 * (1 - square / 60 * (1 - square / 42 * (1 - square / 40)))


def warmed(rule: Any, lr: Any, step: Any) -> Any:
    """Return the learning rate, which rises in a line and then falls to `min_lr` in another."""
    if not rule.total_steps:
        return lr
    rising = rule.total_steps * rule.warmup_proportion
    falling = max(rule.total_steps - rising, 1)
    fallen = ops.where(step - rising < falling, step - rising, falling * ops.ones_like(step))
    after = lr + (rule.min_lr - lr) / falling * fallen
    return ops.where(step <= rising, lr * step / rising, after) if rising else after
