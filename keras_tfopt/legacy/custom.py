"""The base class for optimizers in the style of RETURNN, which define one method that assigns."""

from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.checks import check_bool
from keras_tfopt.legacy.arguments import check_name
from keras_tfopt.legacy.select import running


class BaseCustomOptimizer(running.CustomVerbs):
    """Base class of optimizers; a subclass defines `_apply`.

    ```python
    class SignDescent(legacy.BaseCustomOptimizer):
        def _apply(self, grad, var, indices=None):
            step = ops.cast(self._learning_rate_tensor, grad.dtype) * ops.sign(grad)
            return self._assign_sub(ref=var, updates=step, indices=indices)
    ```

    `_create_slots(var_list)` creates state by `_zeros_slot` or `_get_or_make_slot`, and `get_slot`
    returns it. `_prepare` runs before the variables of a step, `_finish` after them. A subclass
    that is written with `keras.ops` runs on all backends. One that is written with `tf` runs on
    TensorFlow, where `_apply` returns the operation in graphs. The rule is compiled only if the
    whole step is. Derive from `keras_tfopt.Rule` if it must be fast, or saved with a model.

    Repeated rows of a row gradient are summed first. RETURNN passes them on without summing.

    Args:
        learning_rate: Number >= 0, variable, schedule or function without arguments; a tensor, too,
            on TensorFlow.
        use_locking: Whether assignments to reference variables of TensorFlow take a lock.
        name: Name of the optimizer. Defaults to that of the class.
    """

    _never_called: frozenset[str] = frozenset()
    _rate: Any = None

    def __init__(self, learning_rate: Any, use_locking: bool = False, name: str | None = None):
        check_bool("use_locking", use_locking)
        name = check_name(type(self).__name__ if name is None else name)
        super().__init__(learning_rate, use_locking, name)

    def _functions(self) -> tuple:
        """Return the functions that the Keras optimizer calls."""
        end = lambda: self._finish([], self._name)  # noqa: E731
        return self._create_slots, self._call_apply, self._begin, end

    def _begin(self, learning_rate: Any) -> None:
        self._rate = learning_rate
        self._prepare()

    def _call_apply(self, grad: Any, var: Any, indices: Any) -> Any:
        return self._apply(grad, var, *([] if indices is None else [indices]))

    def _prepare(self) -> None:
        """Act before the variables of a step; sets `_learning_rate_tensor`."""
        self._learning_rate_tensor = ops.convert_to_tensor(self._rate_now())

    def _apply(self, grad: Any, var: Any, indices: Any = None) -> Any:
        """Assign to the variable and to its slots. Subclasses define this method, the rule.

        Args:
            grad: Gradient, a tensor. Of a row gradient, the values of its rows.
            var: Variable.
            indices: The rows of a row gradient; None if the gradient is dense.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define `_apply(self, grad, var, indices=None)`"
        )

    def _assign_add(self, ref: Any, updates: Any, indices: Any = None) -> Any:
        """Add to a variable or slot, or to some of its rows; return its new value."""
        old = self._gather(ref, indices)
        return self._assign(ref, old + ops.cast(updates, old.dtype), indices)

    def _assign_sub(self, ref: Any, updates: Any, indices: Any = None) -> Any:
        """Subtract from a variable or slot, or from some of its rows; return its new value."""
        old = self._gather(ref, indices)
        return self._assign(ref, old - ops.cast(updates, old.dtype), indices)
