from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.engine import Slot
from keras_tfopt.fields import integer
from keras_tfopt.rule import register
from keras_tfopt.wrapper import Wrapper


@register
class StochasticWeightAveraging(Wrapper):
    r"""Keeps the mean of the weights that training passes through, at equal intervals.

    After each step $t = 1, 2, \ldots$ of the inner optimizer, if $t > t_0$ and $t - 1 - t_0$ is
    divisible by the period, with the new x:

    $$
    a \leftarrow \frac{n a + x}{n + 1}, \qquad n \leftarrow n + 1
    $$

    Args:
        inner_optimizer: Any Keras optimizer, or its name or configuration. A learning rate that is
            cyclical or large and constant gives weights worth averaging.
        start_averaging: $t_0$, steps that are made before the first average, integer >= 0. Defaults
            to 0.
        average_period: Integer >= 1. Defaults to 10.
        name: Name of the optimizer.
        **base: `groups`, which is passed on. Other options belong to `inner_optimizer`.

    Slots: `average`, of the variable's shape, zero until $t_0$, float32 for half-precision
    variables; `count`, a scalar, the number $n$ of weights in it.

    Before the first average, the weights themselves are evaluated and saved in its place.

    Row gradients: passed on; the whole average moves, also where the variable did not.

    Example:

    >>> inner = keras_tfopt.Momentum(0.05)
    >>> optimizer = keras_tfopt.StochasticWeightAveraging(inner, 1000, 100)

    Reference: Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization"
    (2018).

    Differences: none in the numbers from `tensorflow_addons.optimizers.SWA`, in which the average
    of a variable that never has a gradient is zero; here such a variable is its own average. There
    is none in `keras.optimizers` and in TensorFlow 1. Statistics of batch normalization belong to
    the weights that they were taken with; take them anew for the averages.
    """

    flat = True
    rows_alone = True
    needs_gradient = False

    start_averaging: int = integer(0, default=0)
    average_period: int = integer(1, default=10)

    def slots(self, like: Any) -> dict[str, Slot]:
        return {"average": Slot(like.shape), "count": Slot(())}

    def average(self, x: Any, s: Any) -> Any:
        return ops.where(s.count > 0, s.average, x)

    def after(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        since = t.iteration - 1 - self.start_averaging
        takes = ops.logical_and(since >= 0, ops.equal(since % self.average_period, 0))
        mean = (s.average * s.count + x) / (s.count + 1)
        return x, {
            "average": ops.where(takes, mean, s.average),
            "count": ops.where(takes, s.count + 1, s.count),
        }
