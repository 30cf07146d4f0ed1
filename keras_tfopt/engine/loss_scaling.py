"""Scale the loss dynamically, for gradients of any kind, on one or several devices."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tfopt.engine.arguments.configuration import portable
from keras_tfopt.engine.arguments.options import CLIPPING_AND_DECAY, DEFAULTS
from keras_tfopt.engine.arguments.representation import Around
from keras_tfopt.engine.averages import parts
from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.foreign import apply_summed
from keras_tfopt.engine.keras_private import tracked, untracked
from keras_tfopt.engine.nesting import PassingOn, check_around, check_inner, pass_option
from keras_tfopt.engine.persistence import Persistent
from keras_tfopt.engine.state.building import constant, describe, listed, pair
from keras_tfopt.engine.state.state import Cache
from keras_tfopt.engine.step import gradients
from keras_tfopt.engine.step.pipeline import Stepping
from keras_tfopt.engine.wrapping import WrappingEngine


class LossScalingEngine(Persistent, Around, keras.optimizers.LossScaleOptimizer):
    """Divide gradients by the loss scale, and step if all of them are finite.

    It derives from Keras's class so that `compile` does not add scaling again. It has the arguments
    of that class and its own step.
    """

    _own = ("iteration", "learning_rate", "step_counter", "dynamic_scale")
    _is_made = False

    def __init__(
        self,
        inner_optimizer: Any,
        initial_scale: float,
        dynamic_growth_steps: int,
        name: str | None = None,
        **base: Any,
    ):
        self._lock = False
        inner = check_inner(inner_optimizer, type(self).__name__)
        check_around(type(self), base, inner)
        super().__init__(inner, initial_scale, dynamic_growth_steps, name=name)
        self.leave_to_inner(*CLIPPING_AND_DECAY)
        self._fast = Cache()
        self._is_made = True

    def __setattr__(self, name: str, value: Any) -> None:
        # It has a scale of its own in place of `loss_scale_factor`.
        if self._is_made and name in DEFAULTS and name != "loss_scale_factor":
            pass_option(self, name, value)
        else:
            super().__setattr__(name, value)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, serializable."""
        return portable(super().get_config())

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Return the optimizer that `get_config` described."""
        # Older versions of Keras wrote options that have no effect here.
        known = {**DEFAULTS, "dynamic": True}
        config = {n: v for n, v in portable(config).items() if n not in known or v != known[n]}
        return super().from_config(config, custom_objects)

    @untracked
    def build(self, variables: Sequence[Any]) -> None:
        """Create the state of this and of the inner optimizer."""
        variables = listed("variables", variables)
        if self.built or not variables:
            return
        with backend.build_scope(self, variables):
            self._likes = [describe(variable, type(self).__name__) for variable in variables]
            scalar = functools.partial(self.add_variable, (), aggregation="none")
            self.step_counter = scalar("zeros", "int32", name="step_counter")
            self.dynamic_scale = scalar(constant(self.initial_scale), name="dynamic_scale")
            for part in self._wrappers():
                part.workers_agree = True
            # Not by the `build` of Keras's class, in which Nadam loses part of its state.
            if not self.inner_optimizer.built:
                with tracked():
                    self.inner_optimizer.build(variables)
            keras.optimizers.Optimizer.build(self, variables)
        self.built = True
        self._restore_waiting()

    def _wrappers(self) -> list[WrappingEngine]:
        return [p for p in parts(self.inner_optimizer) if isinstance(p, WrappingEngine)]

    def _own_names(self, shape: tuple[int, ...]) -> tuple[str, ...]:
        return self._own[2:]

    def _roles(self) -> list[str]:
        return list(self._own[: len(self._variables)])

    optimizers = PassingOn.optimizers
    exclude_from_weight_decay = PassingOn.exclude_from_weight_decay
    apply_gradients = Stepping.apply_gradients
    # Not the method of Keras's class, which never calls `apply`.
    stateless_apply = Stepping.stateless_apply

    @backend.outside_compiler
    @backend.as_step
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Update the variables by gradients of the scaled loss if all of them are finite."""
        pipeline = getattr(self.inner_optimizer, "_pipeline", None)
        once = pipeline is not None and pipeline.takes_each_once
        grads, variables = pair(self, grads, trainable_variables, once)
        if not grads:
            return
        with keras.name_scope(self.name):
            grads, variables = self._filter_empty_gradients(grads, variables)
            grads = [
                gradients.check(g, v, self._likes[self._get_variable_index(v)])
                for g, v in zip(grads, variables, strict=True)
            ]
            # Sum before the check, so that all replicas get the same result.
            grads = backend.reduce_replicas(grads)
            finite = gradients.all_finite(grads)
            for part in self._wrappers():
                finite = part.agreed(finite)
            scale, counter = backend.read(self.dynamic_scale), backend.read(self.step_counter)

            def step() -> None:
                unscaled = [
                    g
                    if self._overwrite_variable_with_gradient(v)
                    else g / ops.cast(scale, gradients.values_of(g).dtype)
                    for g, v in zip(grads, variables, strict=True)
                ]
                apply_summed(self.inner_optimizer, unscaled, variables)

            backend.run_if(self, finite, step)
            grows = ops.equal(counter, self.dynamic_growth_steps - 1)
            factor = ops.where(finite, ops.where(grows, 2.0, 1.0), 0.5)
            counter = ops.where(ops.logical_and(finite, ~grows), counter + 1, 0)
            writes = [(self.dynamic_scale, scale * factor), (self.step_counter, counter)]
            backend.commit([(v, None, ops.cast(new, v.dtype)) for v, new in writes])
