"""A training step that searches along the step of the optimizer."""

from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.checks import check_integer, check_number
from keras_tfopt.engine import backend, dtype_of, path_of
from keras_tfopt.engine.averages import keeps_averages, parts
from keras_tfopt.engine.engine import Engine
from keras_tfopt.engine.state.building import describe
from keras_tfopt.engine.state.scopes import Given
from keras_tfopt.engine.state.state import widest
from keras_tfopt.rule import register
from keras_tfopt.trainer import Trainer, dense
from keras_tfopt.wrappers import VariableClipping


@register
class LineSearch(Trainer):
    r"""Train a model by steps whose length is searched for, in plain `fit`.

    The optimizer says where a step goes, from the weights $w$ to $w + p$. The weights go to
    $w + a p$ with an $a$ that meets the strong Wolfe conditions, with
    $\varphi(a) = L(w + a p)$:

    $$
    \varphi(a) \leq \varphi(0) + c_1 a \varphi'(0), \qquad
    |\varphi'(a)| \leq c_2 |\varphi'(0)|
    $$

    $a = 1$ is tried first. Then $a$ grows until an interval has such a point, in which cubic
    interpolation finds one. Where none is found in `max_evaluations`, the best point with the first
    condition is taken, or the weights stay. They stay where $p$ does not go downhill.

    It is made for `keras_tfopt.LBFGS`, with a batch that is all of the data: with another batch in
    each step, the curvature that the optimizer sees is that of other losses. Each step takes two
    evaluations of the loss or more. All see the same dropout. The trained weights are those of
    `model`: save that one.

    Args:
        model: A `keras.Model`, built or not.
        max_evaluations: Integer >= 1: evaluations in a step after the first. Defaults to 20.
        decrease: $c_1$ in (0, 0.5). Defaults to 1e-4.
        curvature: $c_2$, more than `decrease` and less than 1. Defaults to 0.9.
        **kwargs: Those of `keras.Model`: `name`, `dtype`, `trainable`.

    The loss is that of `compile`. A model with `compute_loss` of its own is not asked.

    Row gradients: they are made dense.

    Raises:
        TypeError: if `model` is no `keras.Model`.
        ValueError: if a number is out of its range; in `compile`, if the optimizer keeps averages;
            there or on `build`, if norms are limited or a variable has a constraint.
        NotImplementedError: in `fit` under a `tf.distribute` strategy of several replicas.

    Example:

    >>> trainer = keras_tfopt.solvers.LineSearch(model)
    >>> trainer.compile(keras_tfopt.LBFGS(memory=20), loss="mse")
    >>> trainer.fit(x, y, batch_size=len(x), epochs=200)

    Reference: Nocedal and Wright, "Numerical Optimization" (2006), section 3.5.

    Differences: `optax.lbfgs` and `torch.optim.LBFGS` keep the last loss and gradient for the next
    step. Here a step begins with an evaluation, since its batch may be another one.
    """

    def __init__(
        self,
        model: Any,
        max_evaluations: int = 20,
        decrease: float = 1e-4,
        curvature: float = 0.9,
        **kwargs: Any,
    ):
        max_evaluations = check_integer("max_evaluations", max_evaluations, 1)
        decrease = check_number("decrease", decrease, 0, 0.5, left_open=True, right_open=True)
        curvature = check_number(
            "curvature", curvature, decrease, 1, left_open=True, right_open=True
        )
        super().__init__(model, **kwargs)
        self.max_evaluations = max_evaluations
        self.decrease, self.curvature = decrease, curvature

    def _check_optimizer(self, optimizer: Any) -> None:
        variables = self.trainable_variables if self.model.built else []
        for variable in variables:
            if variable.constraint is not None:
                _refuse(f"{type(variable.constraint).__name__} of {path_of(variable)!r}")
            if variable.overwrite_with_gradient:
                _refuse(f"{path_of(variable)!r} of float8")
        for part in parts(optimizer):
            name = type(part).__name__
            if keeps_averages(part):
                _refuse(f"{name}, which keeps averages")
            if isinstance(part, VariableClipping):
                _refuse(name)
            for variable in variables if isinstance(part, Engine) else []:
                if part.settings_of(describe(variable, name)).max_norm is not None:
                    _refuse(f"max_norm of {path_of(variable)!r} in the groups of {name}")

    def _gradients(self, data: Any) -> tuple[list[Any], Any]:
        scale = self.optimizer.scale_loss(ops.ones(()))  # the optimizer's step may change it
        loss, grads = self._loss_and_gradients(data, measure=True)
        return grads, (loss, grads, scale)

    def _settle(self, before: Any, after: Any, data: Any, known: Any) -> list[Any]:
        variables = self.trainable_variables
        dtype = widest([dtype_of(variable) for variable in variables])
        start = [ops.cast(x, dtype) for x in before]
        directions = [ops.cast(y, dtype) - x for x, y in zip(start, after, strict=True)]
        loss, grads, scale = known

        def at(length: Any) -> list[Any]:
            places = zip(start, directions, variables, strict=True)
            return [ops.cast(x + length * p, v.dtype) for x, p, v in places]

        def slope(grads: list[Any]) -> Any:
            pairs = zip(grads, directions, strict=True)
            return sum(ops.sum(ops.cast(g, dtype) * p) for g, p in pairs)

        def along(length: Any) -> tuple[Any, Any]:
            def of(values: list[Any]) -> Any:
                with Given(variables, values):
                    return ops.cast(self._loss(data, False, scale), dtype)

            value, found = backend.value_and_gradients(of, at(length))
            return value, slope([dense(g, v) for g, v in zip(found, variables, strict=True)])

        first = ops.cast(loss, dtype)
        given = self.max_evaluations, self.decrease, self.curvature
        return at(search(along, first, slope(grads), *given))


def _refuse(what: str) -> None:
    raise ValueError(
        "LineSearch makes longer and shorter steps than the optimizer. So there may be no "
        "constraints of variables, no limits of their norms, no averages of them and no scales of "
        f"float8, which would all be of the optimizer's step. Received: {what}"
    )


def search(
    along: Any, first: Any, slope: Any, evaluations: int, decrease: float, curvature: float
) -> Any:
    """Return a step length that meets the strong Wolfe conditions.

    Args:
        along: Function from a length to value and slope, scalar tensors.
        first: Value at 0.
        slope: Slope at 0.
        evaluations: How often `along` may be called.
        decrease: The constant of the first condition.
        curvature: The constant of the second condition.
    """
    zero, one = ops.zeros_like(first), ops.ones_like(first)

    # The interval goes from `low`, the best length with enough decrease, to `high`. It is open
    # until `high` is known. Each end is a length with its value and its slope.
    def unfinished(count: Any, done: Any, closed: Any, a: Any, low: Any, high: Any) -> Any:
        return ops.logical_and(ops.logical_not(done), count < evaluations)

    def step(count: Any, done: Any, closed: Any, a: Any, low: Any, high: Any) -> Any:
        value, derivative = along(a)
        here = ops.stack([a, value, derivative])
        known = ops.logical_and(ops.isfinite(value), ops.isfinite(derivative))
        enough = ops.logical_and(known, value <= first + decrease * a * slope)
        enough = ops.logical_and(enough, ops.logical_or(value < low[1], low[0] <= 0))
        done = ops.logical_and(enough, ops.abs(derivative) <= curvature * ops.abs(slope))
        forward = ops.logical_or(ops.logical_not(closed), high[0] > low[0])
        back = ops.where(forward, derivative, -derivative) >= 0  # the slope points to `low`
        turned = ops.logical_and(enough, back)
        high = ops.where(enough, ops.where(back, low, high), here)
        low = ops.where(enough, here, low)
        closed = ops.logical_or(closed, ops.logical_or(ops.logical_not(enough), turned))
        a = ops.where(closed, _between(low, high), 2 * a)
        return count + 1, done, closed, a, low, high

    start = ops.stack([zero, first, slope])
    downhill = slope < 0
    false = ops.logical_and(downhill, ops.logical_not(downhill))
    state = (ops.cast(zero, "int32"), ops.logical_not(downhill), false, one, start, start)
    return ops.while_loop(unfinished, step, state)[4][0]


def _between(low: Any, high: Any) -> Any:
    """Return the minimum of the cubic through both ends, at least a tenth away from them."""
    width = high[0] - low[0]
    safe = ops.where(ops.equal(width, 0), ops.ones_like(width), width)
    theta = low[2] + high[2] - 3 * (high[1] - low[1]) / safe
    root = ops.sqrt(ops.maximum(theta * theta - low[2] * high[2], ops.zeros_like(width)))
    root = ops.where(width < 0, -root, root)
    bottom = high[2] - low[2] + 2 * root
    part = 1 - (high[2] + root - theta) / ops.where(ops.equal(bottom, 0), root * 0 + 1, bottom)
    usable = ops.logical_and(ops.isfinite(part), ops.logical_not(ops.equal(bottom, 0)))
    part = ops.where(usable, part, ops.ones_like(part) / 2)
    return low[0] + ops.clip(part, 0.1, 0.9) * width
