"""Models that train another model by a training step of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tfopt.engine import backend, own_parameters


class Trainer(keras.Model):
    """Train a model by more than one evaluation of the loss in a step.

    In a subclass, `_gradients` returns the gradients for the optimizer, and `_settle` the weights
    after the optimizer's step. The trained weights are those of `model`.

    Args:
        model: A `keras.Model`, built or not.
        **kwargs: Those of `keras.Model`.
    """

    def __init__(self, model: Any, **kwargs: Any):
        if not isinstance(model, keras.Model):
            raise TypeError(f"Argument `model` must be a keras.Model. Received: {model!r}")
        super().__init__(**kwargs)
        self.model = model

    def build(self, input_shape: Any) -> None:
        """Build the model, too."""
        if not self.model.built:
            # Not by its `build`, which models need not have.
            self.model(keras.tree.map_shape_structure(_symbolic, input_shape))
        if self.compiled:
            self._check_optimizer(self.optimizer)
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
                f"{type(self).__name__} computes gradients itself, so the optimizer cannot be one "
                "that does, as those of keras_tfopt.legacy and of PyTorch do. Received: "
                f"{optimizer!r}"
            )
        optimizer = keras.optimizers.get(optimizer)
        self._check_optimizer(optimizer)
        super().compile(optimizer, *args, **kwargs)

    def _check_optimizer(self, optimizer: Any) -> None:
        """Raise an error for an optimizer that cannot train the model in this way."""

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Configure the training as it was when the model was saved."""
        # Keras's method does nothing if the class overrides `compile`.
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, in a form that can be saved."""
        serialize = keras.saving.serialize_keras_object
        # A subclass may save an argument itself, and keep it under another name.
        own = [name for name in own_parameters(type(self)) if hasattr(self, name)]
        return {**{name: serialize(getattr(self, name)) for name in own}, **super().get_config()}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Return the trainer of a configuration."""
        own = [name for name in own_parameters(cls) if name in config]
        restore = keras.saving.deserialize_keras_object
        return cls(**{**config, **{name: restore(config[name], custom_objects) for name in own}})

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return what the model returns."""
        return self.model(inputs, training=training)

    def train_step(self, *state_and_data: Any) -> Any:
        """Take a training step; return metrics and, on JAX, the new state.

        Args:
            *state_and_data: The batch. On JAX, the state comes before it: the values of trainable,
                other, optimizer's and metrics' variables.
        """
        if len(state_and_data) == 1:
            (data,) = state_and_data
            grads, known = self._checked_gradients(data)
            before = [ops.copy(v) for v in self.trainable_variables]
            self.optimizer.apply(grads, self.trainable_variables)
            after = [v.value for v in self.trainable_variables]
            try:
                settled = self._settle(before, after, data, known)
            except BaseException:  # an interrupt, too
                assign(self.trainable_variables, before)
                raise
            if settled is not None:
                assign(self.trainable_variables, settled)
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
            grads, known = self._checked_gradients(data)
            logs = self.get_metrics_result()
        _, others, _, metrics = ([scope.get_current_value(v) for v in some] for some in variables)
        trained, slots = self.optimizer.stateless_apply(state[2], grads, state[0])
        with keras.StatelessScope(state_mapping=pairs):
            settled = self._settle(state[0], trained, data, known)
        return logs, (trained if settled is None else settled, others, slots, metrics)

    def _checked_gradients(self, data: Any) -> tuple[list[Any], Any]:
        strategy = getattr(self, "distribute_strategy", None)
        if strategy is not None and strategy.num_replicas_in_sync > 1:
            raise NotImplementedError(
                f"{type(self).__name__} cannot train on several replicas of tf.distribute: a "
                "variable has one value on all of them. Use JAX with keras.distribution, or one "
                "replica"
            )
        if not self.built:  # gradients need variables
            x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
            self.build(keras.tree.map_structure(lambda tensor: tensor.shape, x))
        return self._gradients(data)

    def _gradients(self, data: Any) -> tuple[list[Any], Any]:
        """Return the gradients for the optimizer, and a value that is passed to `_settle`."""
        raise NotImplementedError

    def _settle(self, before: Any, after: Any, data: Any, known: Any) -> list[Any] | None:
        """Return the new weights; None leaves the weights of the optimizer's step.

        Args:
            before: The values of the variables before the step of the optimizer.
            after: The values after it.
            data: The batch.
            known: The second value that `_gradients` returned.
        """
        return None

    def _loss_and_gradients(self, data: Any, measure: bool) -> tuple[Any, list[Any]]:
        """Return the loss of a batch, scaled by the optimizer, and its dense gradients.

        Args:
            data: The batch.
            measure: Whether metrics count it.
        """
        variables = self.trainable_variables
        value, grads, _ = backend.loss_and_gradients(
            lambda: self._loss(data, measure), variables, None, []
        )
        return value, [dense(g, v) for g, v in zip(grads, variables, strict=True)]

    def _loss(self, data: Any, measure: bool, scale: Any = None) -> Any:
        """Return the loss of a batch times `scale`, by default that of the optimizer."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        y_pred = self(x, training=True)
        value = self.compute_loss(x, y, y_pred, sample_weight, training=True)
        if measure:
            size = ops.shape(keras.tree.flatten(x)[0])[0]
            tracker = next(metric for metric in self.metrics if metric.name == "loss")
            tracker.update_state(value, sample_weight=size)
            self.compute_metrics(x, y, y_pred, sample_weight)
        if scale is not None:
            return value * ops.cast(scale, value.dtype)
        return self.optimizer.scale_loss(value)


def _symbolic(shape: Any) -> Any:
    return keras.Input(batch_shape=shape)


def assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Assign a value to each variable."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def dense(gradient: Any, variable: Any) -> Any:
    """Return a gradient as a tensor of the variable's shape."""
    if gradient is None:
        return ops.zeros(variable.shape, dtype=variable.dtype)
    rows = backend.from_native(gradient, variable.shape)
    return gradient if rows is None else backend.to_dense(rows)
