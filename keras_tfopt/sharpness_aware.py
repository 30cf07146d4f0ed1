"""Training by the gradient at the worst point near the weights: SAM, ASAM and GSAM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tfopt.checks import check_bool, check_hyperparameter, check_integer
from keras_tfopt.engine import backend
from keras_tfopt.rule import register


@register
class SharpnessAware(keras.Model):
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
    takes part in GSAM (`alpha`). A step takes about twice the time of a plain one.

    Both gradients see the same batch, the same dropout, and the same statistics of normalization
    layers. Running statistics, losses and metrics are those of the first. The trained weights are
    those of `model`: save that one, and use it alone afterwards.

    Gradient accumulation, clipping, averages, groups and loss scaling are options of the
    optimizer, and act on the gradient it is given. With `gradient_accumulation_steps`, each
    micro-batch has its own :math:`e`. A `train_step` or `compute_loss` of the model's own is not
    called.

    Args:
        model: A `keras.Model`, built or not.
        rho: Float > 0, or a schedule of the steps done: the distance. The papers use 0.05 for SAM
            on image nets, up to 0.5 for ASAM. Defaults to 0.05.
        adaptive: Whether distances are relative to each weight's magnitude (ASAM). Defaults to
            False.
        alpha: Float >= 0, or a schedule: the weight of the part at right angles (GSAM, which also
            lets `rho` follow the learning rate). Defaults to 0.
        ascent_steps: Integer >= 1: gradients on the way uphill, each going the distance `rho`
            from where the last one ended. Defaults to 1.
        **kwargs: Those of `keras.Model`: `name`, `dtype`, `trainable`.

    Row gradients: they are made dense, since a step needs every element of both gradients. Large
    tables train faster without this class.

    Raises:
        TypeError: if `model` is no `keras.Model`, or `compile` is given no Keras optimizer.
        ValueError: if a number is out of its range.
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

    Differences: `optax.contrib.sam` with `opaque_mode=True`, a normalized gradient and
    `sync_period = ascent_steps + 1` makes the same steps. A gradient of zeros gives :math:`e = 0`
    here and NaN there. `tf.keras.models.experimental.SharpnessAwareMinimization` of Keras 2 is SAM
    with one step uphill; its `num_batch_splits` is `gradient_accumulation_steps` here.
    """

    def __init__(
        self,
        model: Any,
        rho: Any = 0.05,
        adaptive: bool = False,
        alpha: Any = 0.0,
        ascent_steps: int = 1,
        **kwargs: Any,
    ):
        if not isinstance(model, keras.Model):
            raise TypeError(f"Argument `model` must be a keras.Model. Received: {model!r}")
        super().__init__(**kwargs)
        self.model = model
        self.rho = check_hyperparameter("rho", rho, 0, left_open=True)
        self.alpha = check_hyperparameter("alpha", alpha, 0)
        self.adaptive = check_bool("adaptive", adaptive)
        self.ascent_steps = check_integer("ascent_steps", ascent_steps, 1)

    def build(self, input_shape: Any) -> None:
        """Build the model, too."""
        if not self.model.built:
            self.model.build(input_shape)
        super().build(input_shape)

    def compile(self, optimizer: Any = "rmsprop", *args: Any, **kwargs: Any) -> None:
        """Configure the training as `keras.Model.compile` does.

        Args:
            optimizer: A Keras optimizer, ours or stock, its name or its configuration.
            *args: Those of `keras.Model.compile`: loss, metrics and so on.
            **kwargs: The same.
        """
        if not isinstance(optimizer, (str, dict, keras.optimizers.Optimizer)):
            raise TypeError(
                "Argument `optimizer` must be a Keras optimizer, its name or its configuration. "
                "SharpnessAware computes two gradients in a step and gives the optimizer one, so "
                "it cannot be one that computes gradients itself, as those of keras_tfopt.legacy "
                f"and of PyTorch do. Received: {optimizer!r}"
            )
        super().compile(optimizer, *args, **kwargs)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Configure the training as it was when the model was saved."""
        # That of Keras does nothing where `compile` is a method of the class.
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return what the model returns."""
        return self.model(inputs, training=training)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, in a form that can be saved."""
        serialize = keras.saving.serialize_keras_object
        return {
            **super().get_config(),
            "model": serialize(self.model),
            "rho": serialize(self.rho),
            "adaptive": self.adaptive,
            "alpha": serialize(self.alpha),
            "ascent_steps": self.ascent_steps,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Return the trainer of a configuration."""
        restore = keras.saving.deserialize_keras_object
        parts = {name: restore(config[name], custom_objects) for name in ("model", "rho", "alpha")}
        return cls(**{**config, **parts})

    def train_step(self, *state_and_data: Any) -> Any:
        """Take a training step; return metrics and, on JAX, the new state.

        Args:
            *state_and_data: The batch. On JAX, the state comes before it: the values of trainable,
                other, optimizer's and metrics' variables.
        """
        if len(state_and_data) == 1:
            grads = self._gradients(state_and_data[0])
            self.optimizer.apply(grads, self.trainable_variables)
            return self.get_metrics_result()
        state, data = state_and_data
        variables = (
            self.trainable_variables,
            self.non_trainable_variables,
            self.optimizer.variables,
            self.metrics_variables,
        )
        pairs = [
            pair
            for some, values in zip(variables, state, strict=True)
            for pair in zip(some, values, strict=True)
        ]
        with keras.StatelessScope(state_mapping=pairs) as scope:
            grads = self._gradients(data)
            logs = self.get_metrics_result()
        _, others, _, metrics = ([scope.get_current_value(v) for v in some] for some in variables)
        trained, slots = self.optimizer.stateless_apply(state[2], grads, state[0])
        return logs, (trained, others, slots, metrics)

    def _gradients(self, data: Any) -> list[Any]:
        """Return the gradients that the optimizer takes.

        Variables are as before, but for those that a training call and metrics change.
        """
        strategy = getattr(self, "distribute_strategy", None)
        if strategy is not None and strategy.num_replicas_in_sync > 1:
            raise NotImplementedError(
                "SharpnessAware cannot train on several replicas of tf.distribute: a variable has "
                "one value on all of them. Use JAX with keras.distribution, or one replica"
            )
        if not self.built:  # variables, of which the gradients are, come first
            x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
            self.build(keras.tree.map_structure(lambda tensor: tensor.shape, x))
        variables, others = self.trainable_variables, self.non_trainable_variables
        before, random = [ops.copy(v) for v in others], backend.random_state()
        first = self._gradients_here(data, measure=True)
        after = [ops.copy(v) for v in others]
        home = [ops.copy(v) for v in variables]
        steps = self.optimizer.iterations
        rho, alpha = (
            value(steps) if callable(value) else value for value in (self.rho, self.alpha)
        )
        last = first
        for _ in range(self.ascent_steps):
            for variable, distance in zip(variables, self._uphill(last, rho), strict=True):
                variable.assign_add(distance)
            _assign(others, before)
            backend.set_random_state(random)
            last = self._gradients_here(data, measure=False)
        _assign(variables, home)
        _assign(others, after)
        if isinstance(alpha, float) and alpha == 0:
            return last
        return _without_part_across(first, last, alpha)

    def _gradients_here(self, data: Any, measure: bool) -> list[Any]:
        """Return the gradients of the loss, which is scaled as the optimizer wants, of a batch.

        Args:
            data: The batch.
            measure: Whether metrics count it.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)

        def loss() -> Any:
            y_pred = self(x, training=True)
            value = self.compute_loss(x, y, y_pred, sample_weight, training=True)
            if measure:
                size = ops.shape(keras.tree.flatten(x)[0])[0]
                tracker = next(metric for metric in self.metrics if metric.name == "loss")
                tracker.update_state(value, sample_weight=size)
                self.compute_metrics(x, y, y_pred, sample_weight)
            return self.optimizer.scale_loss(value)

        variables = self.trainable_variables
        _, grads, _ = backend.loss_and_gradients(loss, variables, None, [])
        return [_dense(g, v) for g, v in zip(grads, variables, strict=True)]

    def _uphill(self, grads: Sequence[Any], rho: Any) -> list[Any]:
        """Return how far each variable goes uphill."""
        scales = [ops.absolute(v) if self.adaptive else 1.0 for v in self.trainable_variables]
        grads = [g * s for g, s in zip(grads, scales, strict=True)]
        # Squares of scaled gradients may overflow: make the largest 1 first.
        largest = ops.max(ops.stack([_float32(ops.max(ops.absolute(g))) for g in grads]))
        grads = [g / ops.cast(ops.where(largest > 0, largest, 1.0), g.dtype) for g in grads]
        norm = ops.sqrt(_product(grads, grads))
        factor = ops.where(norm > 0, rho / ops.where(norm > 0, norm, 1.0), 0.0)
        return [g * s * ops.cast(factor, g.dtype) for g, s in zip(grads, scales, strict=True)]


def _dense(gradient: Any, variable: Any) -> Any:
    """Return a gradient as a tensor of the variable's shape."""
    if gradient is None:
        return ops.zeros_like(variable)
    rows = backend.from_native(gradient, variable.shape)
    return gradient if rows is None else backend.to_dense(rows)


def _assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _float32(x: Any) -> Any:
    """Return a tensor as float32, or as it is if that has more digits."""
    return x if keras.backend.standardize_dtype(x.dtype) == "float64" else ops.cast(x, "float32")


def _product(left: Sequence[Any], right: Sequence[Any]) -> Any:
    """Return the sum of products over all variables."""
    return sum(ops.sum(_float32(a) * _float32(b)) for a, b in zip(left, right, strict=True))


def _without_part_across(first: Sequence[Any], last: Sequence[Any], alpha: Any) -> list[Any]:
    """Return `last` less `alpha` times the part of `first` at right angles to it."""
    square = _product(last, last)
    along = _product(first, last) / ops.where(square > 0, square, 1.0)
    across = [a - ops.cast(along, b.dtype) * b for a, b in zip(first, last, strict=True)]
    return [b - _times(alpha, a) for a, b in zip(across, last, strict=True)]


def _times(number: Any, x: Any) -> Any:
    """Return a tensor, times a number or a scalar tensor of any dtype."""
    return (number if isinstance(number, float) else ops.cast(number, x.dtype)) * x
