"""Powers of decay rates, by which the originals count their steps.

After t steps, `beta1_power` is beta1 multiplied t times by beta1, in float32. Numbers below the
smallest normal one become zero.
"""

from __future__ import annotations

import math

import numpy as np

_TINY = float(np.finfo("float32").tiny)
_CHUNK = 2**20


def power_after(steps: int, beta: float) -> np.ndarray:
    """Return the power after some steps, exact to the bit."""
    factor = np.float32(beta)
    value, left = factor, steps
    while left and _TINY <= value < 1:
        chunk = min(left, _CHUNK)
        factors = np.full(chunk + 1, factor, "float32")
        factors[0] = value
        value, left = np.multiply.accumulate(factors)[-1], left - chunk
    return np.asarray(0 if value < _TINY else value, "float32")


def steps_of_power(power: float, beta: float) -> int | None:
    """Return the number of steps that a power gives; None if it has become too small for that.

    Raises:
        ValueError: if it is no power of beta.
    """
    power, factor = float(power), float(np.float32(beta))
    if (0 <= power < _TINY and factor < 1) or factor == 1 == power:
        return None
    if not 0 < power <= factor < 1:
        raise ValueError(f"{power:g} is no power of {beta:g}")
    # The power may have been rounded differently, so take the nearest one.
    near = max(round(math.log(power) / math.log(factor)) - 1, 0)
    around = range(max(near - 2, 0), near + 3)
    errors = {steps: abs(float(power_after(steps, beta)) / power - 1) for steps in around}
    best = min(errors, key=lambda steps: errors[steps])
    if errors[best] > min(0.25 * (1 - factor), 1e-6 * (best + 1)):
        raise ValueError(f"{power:g} is no power of {beta:g}")
    return best
