"""Weight decay beside the gradient, added to a class of optimizers of TensorFlow."""

from __future__ import annotations

import types
from typing import Any

from keras import ops

from keras_tfopt.checks import check_hyperparameter
from keras_tfopt.execution import OptimizerBase, prepare, tolerating, variables_of
from keras_tfopt.execution.graph import (
    Verbs,
    around,
    is_variable,
    native,
    operations,
    value_now,
    verbs,
)
from keras_tfopt.execution.verb_arguments import checked_variables
from keras_tfopt.legacy.arguments import as_in_the_original
from keras_tfopt.legacy.decay import Minimizing, decay_of, extension_with, warn_of_quirks
from keras_tfopt.wrappers import DecoupledWeightDecay
from keras_tfopt.wrappers.decay import DenseDecay


class DecoupledWeightDecayExtension(Minimizing):
    """To be put before a class of optimizers, whose variables then decay before each step.

    ```python
    class LazyAdamW(legacy.DecoupledWeightDecayExtension, tf.compat.v1.train.AdamOptimizer):
        pass


    optimizer = LazyAdamW(1e-4, learning_rate=0.001)
    train_op = optimizer.minimize(loss, decay_var_list=[kernel])
    ```

    A variable shrinks by `weight_decay` times itself, not multiplied by the learning rate. Of a row
    gradient, touched rows shrink, once each, but not before `GradientDescentOptimizer`. The step
    itself is that of the class behind, which may be one of this module or of `tf.compat.v1.train`.

    Args:
        weight_decay: Number >= 0, tensor, variable or function without arguments.
        **kwargs: Arguments of the class behind, by name.
    """

    _weight_decay: Any = None

    def __init__(self, weight_decay: Any, **kwargs: Any):
        super().__init__(**kwargs)
        warn_of_quirks(type(self))
        if not (is_variable(weight_decay) or ops.is_tensor(weight_decay)):
            with as_in_the_original(type(self).__name__):
                check_hyperparameter("weight_decay", weight_decay, 0)
        self._weight_decay = weight_decay

    # The class behind may have none that is called so.
    _minimize = Verbs._minimize

    def apply_gradients(
        self,
        grads_and_vars: Any,
        global_step: Any = None,
        name: str | None = None,
        decay_var_list: Any = None,
    ) -> Any:
        """As `Optimizer.apply_gradients`, with the variables that decay."""
        given = verbs.list_of_pairs(grads_and_vars)
        pairs = verbs.checked_pairs(given, self)
        verbs.check_counter(global_step)
        chosen = None
        if decay_var_list is not None:
            chosen = checked_variables(decay_var_list, TypeError, "decay_var_list")
        with operations.following([g for g, _ in pairs]):
            decayed = [
                self._decay_weights(gradient, variable)
                for gradient, variable in pairs
                if gradient is not None
                and (not chosen or any(native(v) is variable for v in chosen))
            ]
        with operations.following(decayed):
            return super().apply_gradients(given, global_step=global_step, name=name)  # type: ignore[misc]

    def _decay_weights(self, gradient: Any, variable: Any) -> Any:
        """The operation that shrinks a variable, or the rows that its gradient names."""
        rows = around.distinct(gradient)
        if rows is not None and decay_of(type(self)) is DenseDecay:
            return None
        return around.moved(
            _shrink,
            variable,
            rows,
            getattr(self, "_use_locking", False),
            decay=value_now(self._weight_decay),
        )

    @property
    def keras(self) -> Any:
        """The Keras optimizer: like `keras_tfopt.DecoupledWeightDecay`, for all variables."""
        inside = super().keras  # type: ignore[misc]
        if self._around is None:
            decay = decay_of(type(self))
            with tolerating(lambda *_: True):  # the constructor has warned already
                self._around = decay(inside, self._weight_decay, name=inside.name)
        if variables_of(inside):
            prepare(self._around, variables_of(inside))
        return self._around

    _around: Any = None


def _shrink(x: Any, t: Any) -> Any:
    rule: Any = types.SimpleNamespace()
    return DecoupledWeightDecay.before(rule, None, x, None, t)[1]


extend_with_decoupled_weight_decay = extend_with_weight_decay = extension_with(
    DecoupledWeightDecayExtension,
    OptimizerBase,
    "keras_tfopt.legacy or of tf.compat.v1.train",
)
