"""Weight decay beside the gradient, added to a class of optimizers."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

from keras_tfopt.checks import check_bool
from keras_tfopt.execution import (
    check_traceable,
    creating,
    outside_compiler,
    pattern_of,
    variables_of,
)
from keras_tfopt.execution.verb_arguments import check_counter, checked_variables
from keras_tfopt.legacy.arguments import as_in_the_original
from keras_tfopt.legacy.optimizer import Optimizer, checked_pairs
from keras_tfopt.legacy.wrapping import step_around
from keras_tfopt.wrappers import DecoupledWeightDecay
from keras_tfopt.wrappers.decay import DenseDecay

# Which bases decay differently in the original, and how.
_QUIRKS = {
    "LARSOptimizer": (
        "its own `weight_decay` keeps its default and acts as well; in the original the new one "
        "takes its place"
    ),
    "ShampooOptimizer": "variables decay once a step; in the original twice",
}


def decay_of(extended: type) -> type:
    """What the decay before a step of this class is.

    The original decays in methods that `GradientDescentOptimizer` does not call for rows.
    """
    names = [cls.__name__ for cls in extended.__mro__]
    return DenseDecay if "GradientDescentOptimizer" in names else DecoupledWeightDecay


def warn_of_quirks(extended: type) -> None:
    """Warns where the decay of the original would have been another."""
    for cls in extended.__mro__:
        if cls.__name__ in _QUIRKS and cls.__module__.startswith("keras_tfopt."):
            warnings.warn(
                f"Weight decay beside {cls.__name__}: {_QUIRKS[cls.__name__]}", stacklevel=4
            )


class Minimizing:
    """`minimize` with the variables that decay."""

    _minimize: Callable[..., Any]

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
    ) -> Any:
        """As `Optimizer.minimize`, with the variables that decay; None and no variables are all."""
        check_bool("compiled", compiled)
        how = {"global_step": global_step, "name": name, "decay_var_list": decay_var_list}
        return self._minimize(
            loss, var_list, how, compiled,
            gate_gradients=gate_gradients,
            aggregation_method=aggregation_method,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
            grad_loss=grad_loss,
        )  # fmt: skip


class DecoupledWeightDecayExtension(Minimizing):
    """To be put before a class of optimizers, whose variables then decay before each step.

    ```python
    class LazyAdamW(legacy.DecoupledWeightDecayExtension, legacy.LazyAdamOptimizer):
        pass


    optimizer = LazyAdamW(1e-4, learning_rate=0.001)
    optimizer.minimize(loss, decay_var_list=[kernel])
    ```

    A variable shrinks by `weight_decay` times itself, not multiplied by the learning rate. Of a row
    gradient, touched rows shrink, once each, but not before `GradientDescentOptimizer`. The step
    itself is that of the class behind, with whatever `compute_gradients` and `apply_gradients` it
    defines.

    Args:
        weight_decay: Number >= 0, variable, schedule or function without arguments.
        **kwargs: Arguments of the class behind, by name.
    """

    _weight_decay: Any = None

    def __init__(self, weight_decay: Any, **kwargs: Any):
        super().__init__(**kwargs)
        warn_of_quirks(type(self))
        self._weight_decay = weight_decay
        # For each choice of variables, a wrapper around one and the same optimizer.
        self._decaying: dict[Any, Any] = {}
        self._wrapper(None)
        self._by_rows = True

    minimize = outside_compiler(Minimizing.minimize)

    @outside_compiler
    def apply_gradients(
        self,
        grads_and_vars: Any,
        global_step: Any = None,
        name: str | None = None,
        decay_var_list: Any = None,
    ) -> Any:
        """As `Optimizer.apply_gradients`, with the variables that decay."""
        pairs = checked_pairs(grads_and_vars)
        check_counter(global_step)
        check_traceable("apply_gradients")
        apply = super().apply_gradients  # type: ignore[misc]
        verb = functools.partial(apply, global_step=global_step, name=name)
        chosen = self._chosen(decay_var_list)
        if chosen is not None:
            chosen &= {pattern_of(v) for gradient, v in pairs if gradient is not None}
            if not chosen:
                return verb(pairs)
        covered = self._covered(pairs)  # type: ignore[attr-defined]
        return step_around(self._wrapper(chosen), verb, pairs, covered)

    def _chosen(self, decay_var_list: Any) -> set[str] | None:
        """Patterns for the variables that decay, None for all."""
        if decay_var_list is None:
            return None
        variables = checked_variables(decay_var_list, TypeError, "decay_var_list")
        return {pattern_of(variable) for variable in variables} or None

    def _wrapper(self, chosen: set[str] | None) -> Any:
        key = None if chosen is None else frozenset(chosen)
        if key not in self._decaying:
            inner = self._optimizer  # type: ignore[attr-defined]
            with creating(), as_in_the_original(type(self).__name__):
                made = self._decaying[key] = decay_of(type(self))(
                    inner,
                    self._weight_decay,
                    decay_variables=None if chosen is None else sorted(chosen),
                    name=inner.name,
                )
                if inner.built:
                    made.build(variables_of(inner))
        return self._decaying[key]

    @property
    def keras(self) -> Any:
        """The Keras optimizer: like `keras_tfopt.DecoupledWeightDecay`, for all variables."""
        return self._decaying[None]


def extension_with(extension: type, base: type, bases: str) -> Callable[[Any], Any]:
    """The function `extend_with_decoupled_weight_decay` for a mixin that adds the decay.

    Args:
        extension: The mixin.
        base: What the classes that it can be put before derive from.
        bases: What classes those are, in words.
    """

    def extend_with_decoupled_weight_decay(base_optimizer: Any) -> Any:
        """A class that is `base_optimizer` with decoupled weight decay.

        Its constructor takes `weight_decay` and, by name, the arguments of `base_optimizer`; see
        `DecoupledWeightDecayExtension`.

        Args:
            base_optimizer: A class of optimizers: of keras_tfopt.legacy or, on TensorFlow, of
                `tf.compat.v1.train`; or a subclass of one.

        Raises:
            TypeError: if it is anything else.
        """
        if not (inspect.isclass(base_optimizer) and issubclass(base_optimizer, base)):
            raise TypeError(
                f"Argument `base_optimizer` must be a class of optimizers of {bases}. Received: "
                f"{base_optimizer!r}"
            )

        def initialize(self: Any, weight_decay: Any, **kwargs: Any) -> None:
            extension.__init__(self, weight_decay, **kwargs)  # type: ignore[misc]

        initialize.__name__ = "__init__"
        members = {
            "__init__": initialize,
            "__doc__": "A class of optimizers with decoupled weight decay.",
            "__module__": extension.__module__,
        }
        name = "OptimizerWithDecoupledWeightDecay"
        return type(name, (extension, base_optimizer), members)

    return extend_with_decoupled_weight_decay


extend_with_decoupled_weight_decay = extend_with_weight_decay = extension_with(
    DecoupledWeightDecayExtension,
    Optimizer,
    "keras_tfopt.legacy",
)
