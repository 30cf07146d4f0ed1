"""Add decoupled weight decay to a class of optimizers."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Sequence
from typing import Any

from keras_tfopt.checks import check_bool
from keras_tfopt.engine import is_ours
from keras_tfopt.legacy.optimizer import Optimizer
from keras_tfopt.legacy.select import running
from keras_tfopt.legacy.verb_arguments import check_counter, checked_variables
from keras_tfopt.rule import register
from keras_tfopt.wrappers import DecoupledWeightDecay
from keras_tfopt.wrappers.decay import Decay

# Classes that decay differently in the original when they are extended, with the difference.
_QUIRKS = {
    "LARSOptimizer": (
        "its own `weight_decay` keeps its default and acts as well; in the original the new one "
        "takes its place"
    ),
    "ShampooOptimizer": "variables decay once a step; in the original twice",
}


@register
class DenseDecay(Decay):
    """Shrink a variable in steps with a dense gradient; a row gradient lets nothing decay.

    This is what `tf.contrib.opt` does before `GradientDescentOptimizer`.
    """

    def decays_rows(self) -> bool:
        """Return False: only variables with dense gradients shrink."""
        return False


class DecoupledWeightDecayExtension(running.DecayVerbs):
    """Mixin that shrinks variables before each step. Name it before the optimizer class.

    ```python
    class LazyAdamW(legacy.DecoupledWeightDecayExtension, legacy.LazyAdamOptimizer):
        pass


    optimizer = LazyAdamW(1e-4, learning_rate=0.001)
    optimizer.minimize(loss, decay_var_list=[kernel])
    ```

    A variable shrinks by `weight_decay` times itself; the learning rate does not matter. With a row
    gradient, each touched row shrinks once, and none before `GradientDescentOptimizer`. The step
    itself is that of the optimizer class, by its `compute_gradients` and `apply_gradients`. On
    TensorFlow, that class may be one of `tf.compat.v1.train`.

    Args:
        weight_decay: Number >= 0, variable, schedule or function without arguments. On TensorFlow
            it may also be a tensor, but no schedule.
        **kwargs: Arguments of the optimizer class, by name.
    """

    _weight_decay: Any = None

    def __init__(self, weight_decay: Any, **kwargs: Any):
        if not isinstance(self, running.OptimizerBase):
            raise TypeError(
                "DecoupledWeightDecayExtension is a base class: derive from it and from a class of "
                "optimizers, or call `extend_with_decoupled_weight_decay(cls)`"
            )
        super().__init__(**kwargs)
        self._warn_of_quirks()
        self._weight_decay = weight_decay
        self._prepare_decay()

    def minimize(
        self,
        loss: Any,
        global_step: Any = None,
        var_list: Any = None,
        gate_gradients: int = Optimizer.GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: Any = None,
        decay_var_list: Any = None,
        compiled: bool = False,
        inputs: Sequence[Any] = (),
    ) -> Any:
        """Take a step as `Optimizer.minimize` does; None and [] let all variables decay."""
        check_bool("compiled", compiled)
        if decay_var_list is not None:
            decay_var_list = checked_variables(decay_var_list, TypeError, "decay_var_list")
        computing = {
            "var_list": var_list,
            "gate_gradients": gate_gradients,
            "aggregation_method": aggregation_method,
            "colocate_gradients_with_ops": colocate_gradients_with_ops,
        }
        applying = {"global_step": global_step, "name": name, "decay_var_list": decay_var_list}
        return self._minimize(loss, inputs, grad_loss, computing, applying, compiled)

    @running.outside_compiler
    def apply_gradients(
        self,
        grads_and_vars: Any,
        global_step: Any = None,
        name: str | None = None,
        decay_var_list: Any = None,
    ) -> Any:
        """Update variables as `Optimizer.apply_gradients` does; see `minimize`."""
        given, pairs = self._checked(grads_and_vars)
        check_counter(global_step)
        if decay_var_list is not None:
            decay_var_list = checked_variables(decay_var_list, TypeError, "decay_var_list")
        verb = functools.partial(super().apply_gradients, global_step=global_step, name=name)
        return self._apply_decayed(verb, given, pairs, decay_var_list or None)

    def _make_wrapper(self, inner: Any, weight_decay: Any, **chosen: Any) -> Any:
        """Return the Keras wrapper that decays, around an optimizer."""
        # The original decays in methods that `GradientDescentOptimizer` does not call for rows.
        names = [cls.__name__ for cls in type(self).__mro__]
        cls = DenseDecay if "GradientDescentOptimizer" in names else DecoupledWeightDecay
        return cls(inner, weight_decay, name=inner.name, **chosen)

    def _warn_of_quirks(self) -> None:
        for cls in type(self).__mro__:
            if cls.__name__ in _QUIRKS and is_ours(cls):
                warnings.warn(
                    f"Weight decay with {cls.__name__}: {_QUIRKS[cls.__name__]}", stacklevel=4
                )


def extend_with_decoupled_weight_decay(base_optimizer: Any) -> Any:
    """Return a class that is `base_optimizer` with decoupled weight decay.

    Its constructor takes `weight_decay` and, by name, the arguments of `base_optimizer`; see
    `DecoupledWeightDecayExtension`.

    Args:
        base_optimizer: A class of optimizers: of keras_tfopt.legacy or, on TensorFlow, of
            `tf.compat.v1.train`; or a subclass of one.

    Raises:
        TypeError: if it is anything else.
    """
    extension, base = DecoupledWeightDecayExtension, running.OptimizerBase
    if not (inspect.isclass(base_optimizer) and issubclass(base_optimizer, base)):
        raise TypeError(
            f"Argument `base_optimizer` must be a class of optimizers of {running.MODULES}. "
            f"Received: {base_optimizer!r}"
        )

    def initialize(self: Any, weight_decay: Any, **kwargs: Any) -> None:
        extension.__init__(self, weight_decay, **kwargs)

    initialize.__name__ = "__init__"
    members = {
        "__init__": initialize,
        "__doc__": "A class of optimizers with decoupled weight decay.",
        "__module__": extension.__module__,
    }
    return type("OptimizerWithDecoupledWeightDecay", (extension, base_optimizer), members)


extend_with_weight_decay = extend_with_decoupled_weight_decay
