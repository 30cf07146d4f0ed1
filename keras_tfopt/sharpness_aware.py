"""Training by the gradient at the worst point near the weights: SAM, ASAM and GSAM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tfopt.checks import check_bool, check_hyperparameter, check_integer, check_number
from keras_tfopt.engine import backend, changes, current
from keras_tfopt.rule import register
from keras_tfopt.trainer import Trainer, assign


@register
class SharpnessAware(Trainer):
    r"""Train a model by sharpness-aware minimization (SAM), in plain `fit`.

    A training step computes two gradients of a batch: one at the weights :math:`w`, and one at the
    point uphill from them where the loss is about the largest within a distance :math:`\rho`. The
    optimizer, which may be any, moves the weights by the second:

    .. math::

        g &= \nabla L(w), \qquad
        e = \rho \, \frac{s^2 g}{\lVert s \, g \rVert}, \qquad
        g' = \nabla L(w + e)

        w &\leftarrow \mathrm{optimizer}(w,\; g' - \alpha \, g_\perp)

    The norm is over all trainable variables together. :math:`s = 1` in SAM, and :math:`s = |w|` in
    ASAM (`adaptive`). :math:`g_\perp` is the part of :math:`g` at right angles to :math:`g'`; it
    takes part in GSAM (`alpha`). A step takes about twice the time of a plain one. Scales of float8
    layers are no weights: they stay where they are, and take the values measured at :math:`w`.

    Both gradients see the same batch, the same dropout, and the same statistics of normalization
    layers. Running statistics, losses and metrics are those of the first. The trained weights are
    those of `model`: save that one, and use it alone afterwards.

    Gradient accumulation, clipping, averages, groups and loss scaling are options of the
    optimizer, and act on the gradient it is given. With `gradient_accumulation_steps`, each
    micro-batch has its own :math:`e`. A `train_step` or `compute_loss` of the model's own is not
    called.

    Args:
        model: A `keras.Model`, built or not.
        rho: Float > 0, a schedule of the steps done or a function without arguments: the distance.
            The papers use 0.05 for SAM on image nets, up to 0.5 for ASAM. Defaults to 0.05.
        adaptive: Whether distances are relative to each weight's magnitude (ASAM). Defaults to
            False.
        alpha: Float >= 0, or a schedule: the weight of the part at right angles (GSAM, which also
            lets `rho` follow the learning rate). Defaults to 0.
        ascent_steps: Integer >= 1: gradients on the way uphill, each going the distance `rho`
            from where the last one ended. Defaults to 1.
        ascent_momentum: Float in [0, 1): steps uphill go along :math:`v \leftarrow \mu v + d`
            instead of :math:`d = s^2 g / \lVert s \, g \rVert`. :math:`v` stays from one training
            step to the next, in weights of this model that do not train. Defaults to 0.
        normalize: Whether :math:`d` is divided by the norm; if not, the distance grows with the
            gradient, and `rho` is the learning rate of the steps uphill. Defaults to True.
        **kwargs: Those of `keras.Model`: `name`, `dtype`, `trainable`.

    Row gradients: they are made dense, since a step needs every element of both gradients. Large
    tables train faster without this class.

    Raises:
        TypeError: if `model` is no `keras.Model`, or `compile` is given no Keras optimizer.
        ValueError: if a number is out of its range; or, with `ascent_momentum`, if a layer trains
            that did not when this was built: make a new one then.
        NotImplementedError: in `fit` under a `tf.distribute` strategy of several replicas, whose
            variables cannot have values of their own.

    Example:

    >>> trainer = keras_tfopt.SharpnessAware(model, rho=0.05)
    >>> trainer.compile(keras_tfopt.Momentum(0.1, 0.9), loss="mse")
    >>> trainer.fit(x, y)
    >>> model.save("model.keras")

    References:
        - [Foret et al., 2020](https://arxiv.org/abs/2010.01412) (SAM)
        - [Kwon et al., 2021](https://arxiv.org/abs/2102.11600) (ASAM)
        - [Zhuang et al., 2022](https://arxiv.org/abs/2203.08065) (GSAM)

    Differences: `optax.contrib.sam` with `opaque_mode=True` and `sync_period = ascent_steps + 1`
    makes the same steps, where its `adv_optimizer` is SGD of a normalized gradient, or of the
    gradient itself. Its `reset_state=False` is needed for a momentum uphill. A gradient of zeros
    gives :math:`e = 0` here and NaN there.
    `tf.keras.models.experimental.SharpnessAwareMinimization` of Keras 2 is SAM with one step
    uphill; its `num_batch_splits` is `gradient_accumulation_steps` here.
    """

    def __init__(
        self,
        model: Any,
        rho: Any = 0.05,
        adaptive: bool = False,
        alpha: Any = 0.0,
        ascent_steps: int = 1,
        ascent_momentum: float = 0.0,
        normalize: bool = True,
        **kwargs: Any,
    ):
        super().__init__(model, **kwargs)
        self.rho = _checked("rho", rho, left_open=True)
        self.alpha = _checked("alpha", alpha)
        self.adaptive = check_bool("adaptive", adaptive)
        self.ascent_steps = check_integer("ascent_steps", ascent_steps, 1)
        self.ascent_momentum = check_number(
            "ascent_momentum", ascent_momentum, 0, 1, right_open=True
        )
        self.normalize = check_bool("normalize", normalize)
        self._velocities: list[Any] = []
        self._places: list[int] = []  # identities of the variables that the velocities are of

    def build(self, input_shape: Any) -> None:
        """Build the model, too, and the velocities uphill."""
        super().build(input_shape)
        if self.ascent_momentum and not self._velocities:
            self._velocities = [
                self.add_weight(shape=v.shape, dtype=v.dtype, initializer="zeros", trainable=False)
                for v in self.trainable_variables
            ]
            self._places = list(map(id, self.trainable_variables))

    def _gradients(self, data: Any) -> tuple[list[Any], None]:
        """Return the gradients for the optimizer.

        Variables do not change, except for those that a training call and metrics change.
        """
        variables, velocities = self.trainable_variables, self._velocities_now()
        # Scales of float8 are not weights: their gradients are new values.
        places = [n for n, v in enumerate(variables) if not v.overwrite_with_gradient]
        weights = [variables[n] for n in places]
        velocities = [velocities[n] for n in places] if velocities else []
        kept = {id(v) for v in self._velocities}
        others = [v for v in self.non_trainable_variables if id(v) not in kept]
        before, random = [ops.copy(v) for v in others], backend.random_state()
        _, gradients = self._loss_and_gradients(data, measure=True)
        first = [gradients[n] for n in places]
        after = [ops.copy(v) for v in others]
        home = [ops.copy(v) for v in variables]
        steps = self.optimizer.iterations
        rho, alpha = (current(v, steps) if changes(v) else v for v in (self.rho, self.alpha))
        last = first
        try:
            for _ in range(self.ascent_steps if weights else 0):
                self._go_uphill(weights, last, rho, velocities)
                assign(others, before)
                backend.set_random_state(random)
                _, uphill = self._loss_and_gradients(data, measure=False)
                last = [uphill[n] for n in places]
        finally:  # after an interrupt, too
            assign(variables, home)
            assign(others, after)
        if weights and not (isinstance(alpha, float) and alpha == 0):
            last = _without_part_across(first, last, alpha)
        for n, gradient in zip(places, last, strict=True):
            gradients[n] = gradient
        return gradients, None

    def _velocities_now(self) -> list[Any]:
        """Return the velocities of the variables that train now, if there are any."""
        if not self._velocities:
            return []
        known = dict(zip(self._places, self._velocities, strict=True))
        missing = [v.path for v in self.trainable_variables if id(v) not in known]
        if missing:
            raise ValueError(
                "`ascent_momentum` of SharpnessAware keeps a velocity for each variable that could "
                "be trained when it was built. Make a new SharpnessAware of the model once other "
                f"layers train. Received: without a velocity, {missing}"
            )
        return [known[id(v)] for v in self.trainable_variables]

    def _go_uphill(
        self, weights: Sequence[Any], grads: Sequence[Any], rho: Any, velocities: Sequence[Any]
    ) -> None:
        """Move weights uphill from where they are."""
        ways = self._directions(weights, grads)
        for n, velocity in enumerate(velocities):
            new = self.ascent_momentum * velocity + ways[n]
            # An overflow must not stay: loss scaling only leaves out the step.
            ways[n] = ops.where(ops.isfinite(new), new, velocity.value)
            velocity.assign(ways[n])
        for weight, way in zip(weights, ways, strict=True):
            weight.assign_add(_times(rho, way))

    def _directions(self, weights: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
        """Return the direction of each weight, without `rho` and momentum."""
        scales = [ops.absolute(v) if self.adaptive else 1.0 for v in weights]
        grads = [g * s for g, s in zip(grads, scales, strict=True)]
        if not self.normalize:
            factor = 1.0 / self.optimizer.scale_loss(ops.ones(()))
        else:
            # Squares of scaled gradients may overflow: make the largest 1 first.
            sizes = [_float32(ops.max(ops.absolute(g))) for g in grads if 0 not in g.shape]
            largest = ops.max(ops.stack(sizes)) if sizes else 1.0
            grads = [g / ops.cast(ops.where(largest > 0, largest, 1.0), g.dtype) for g in grads]
            norm = ops.sqrt(_product(grads, grads))
            factor = ops.where(norm > 0, 1.0 / ops.where(norm > 0, norm, 1.0), 0.0)
        return [g * s * ops.cast(factor, g.dtype) for g, s in zip(grads, scales, strict=True)]


def _checked(name: str, value: Any, left_open: bool = False) -> Any:
    """Return a number, a schedule or a function, or raise an error."""
    if isinstance(value, keras.Variable):
        raise TypeError(
            f"Argument `{name}` must be a number, a schedule or a function of the step: a variable "
            f"would be one of the weights that are trained. Received: {value!r}"
        )
    return check_hyperparameter(name, value, 0, left_open=left_open)


def _float32(x: Any) -> Any:
    """Return a tensor as float32, but float64 unchanged."""
    return x if keras.backend.standardize_dtype(x.dtype) == "float64" else ops.cast(x, "float32")


def _product(left: Sequence[Any], right: Sequence[Any]) -> Any:
    """Return the sum of products over all variables."""
    sums = [ops.sum(_float32(a) * _float32(b)) for a, b in zip(left, right, strict=True)]
    return ops.sum(ops.stack(sums))  # which takes sums of float32 and float64


def _without_part_across(first: Sequence[Any], last: Sequence[Any], alpha: Any) -> list[Any]:
    """Return `last` minus `alpha` times the part of `first` at right angles to it."""
    square = _product(last, last)
    along = _product(first, last) / ops.where(square > 0, square, 1.0)
    across = [a - ops.cast(along, b.dtype) * b for a, b in zip(first, last, strict=True)]
    return [b - _times(alpha, a) for a, b in zip(across, last, strict=True)]


def _times(number: Any, x: Any) -> Any:
    """Return a tensor times a number, or times a scalar tensor of any dtype."""
    return (number if isinstance(number, float) else ops.cast(number, x.dtype)) * x
