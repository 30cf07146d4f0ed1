"""The verbs of TensorFlow 1's optimizers around any Keras optimizer."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfopt.checks import check_bool
from keras_tfopt.execution import (
    OptimizerBase,
    RowGradient,
    apply_rows,
    as_named_rows,
    check_traceable,
    gradients_of_loss,
    is_dense,
    is_variable,
    outside_compiler,
    parts,
    path_of,
    prepare,
    run_step,
    slot_names_of,
    slots_of,
    start_optimizer,
    state_variables,
)
from keras_tfopt.execution.verb_arguments import (
    check_any_gradient,
    check_computing,
    check_counter,
    check_precision,
    checked_variables,
    of_tensorflow,
    pairs_of,
)
from keras_tfopt.legacy.arguments import check_name

Pairs = list[tuple[Any, Any]]

# Methods by which optimizers of TensorFlow 1 define their rules.
_RULES = frozenset(
    {
        "_apply",
        "_apply_dense",
        "_apply_sparse",
        "_apply_sparse_duplicate_indices",
        "_resource_apply_dense",
        "_resource_apply_sparse",
        "_resource_apply_sparse_duplicate_indices",
    }
)


class Optimizer(OptimizerBase):
    """The verbs of `tf.train.Optimizer` around a Keras optimizer.

    The classes of this module derive from it, one for each name of the originals. By itself it
    gives the verbs to any Keras optimizer: `legacy.Optimizer(keras.optimizers.Lion(1e-4))`.

    `minimize` is `compute_gradients`, then `apply_gradients`; a subclass may override either, and
    wrappers then call what it defines. `subclass.keras` does without: it is the rule alone.

    Args:
        optimizer: A `keras.optimizers.Optimizer`.
        name: Name of the optimizer. Defaults to that of `optimizer`.
        use_locking: Without meaning: the steps of one optimizer never overlap.

    Attributes:
        GATE_NONE, GATE_OP, GATE_GRAPH: Values of `gate_gradients`, which orders operations in
            graphs and has no meaning here.
    """

    GATE_NONE = 0
    GATE_OP = 1
    GATE_GRAPH = 2
    _steps_with_keras = True  # whether the verbs change the state of `keras` itself
    _never_called = _RULES
    _by_rows = False

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        ignored = sorted(cls._never_called & set(vars(cls)))
        if ignored:
            raise TypeError(
                f"{cls.__name__} defines {ignored}, which nothing would call. Derive it from "
                "`BaseCustomOptimizer` and define `_apply`, or write a keras_tfopt.Rule"
            )

    def __init__(self, optimizer: Any, name: str | None = None, use_locking: bool = False):
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise TypeError(
                "Argument `optimizer` must be a keras.optimizers.Optimizer. Received: "
                f"{optimizer!r}"
            )
        check_bool("use_locking", use_locking)
        start_optimizer(self, check_name(optimizer.name if name is None else name), use_locking)
        self._optimizer = optimizer
        self._memory = _Memory()
        # Whether it makes a difference that a gradient is of looked-up rows.
        self._by_rows = any(getattr(one, "sparse", "dense") != "dense" for one in parts(optimizer))

    # ---- Verbs ----------------------------------------------------------------------------------

    @outside_compiler
    def minimize(
        self,
        loss: Callable[[], Any],
        global_step: Any = None,
        var_list: Any = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: Any = None,
        compiled: bool = False,
    ) -> Any:
        """Takes one step: `compute_gradients`, then `apply_gradients`.

        Args:
            loss: Function without arguments that gives the loss, a tensor. On JAX it runs twice in
                the first step without `var_list`, once to find what it reads.
            global_step: Scalar variable that goes up by one after the update.
            var_list: Variables to train. None takes the trainable ones that `loss` reads.
            gate_gradients: Without meaning; GATE_NONE, GATE_OP or GATE_GRAPH.
            aggregation_method: Without meaning; None or one of TensorFlow's, 0 to 2.
            colocate_gradients_with_ops: Without meaning.
            name: Without meaning.
            grad_loss: Tensor of the loss's shape, or number, that its gradient is multiplied by.
            compiled: On JAX, compile the step and keep it: hundreds of times faster for small
                models. What `loss` closes over is looked up in every call: other arrays are
                arguments of the same compiled step, other numbers, objects and shapes compile
                another one, and what cannot be seen to change is refused. Without effect on
                TensorFlow and PyTorch, which have no need of it.

        Returns:
            The new value of `global_step`, or None without one.

        Raises:
            RuntimeError: if `loss` is not callable, or inside a bare `jax.jit`.
            ValueError: if `var_list` holds anything but variables, no variable has a gradient, or
                an argument is not among its values.
        """
        check_bool("compiled", compiled)
        return self._minimize(
            loss, var_list, {"global_step": global_step, "name": name}, compiled,
            gate_gradients=gate_gradients,
            aggregation_method=aggregation_method,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
            grad_loss=grad_loss,
        )  # fmt: skip

    def _minimize(
        self, loss: Any, var_list: Any, how: dict[str, Any], compiled: bool, **computing: Any
    ) -> Any:
        _check_loss(loss)
        if var_list is not None:
            var_list = checked_variables(var_list, ValueError)
        check_counter(how["global_step"])
        check_traceable("minimize")

        if not compiled:
            return self._both(loss, var_list, how, computing)
        arguments = (self._parts(), loss, var_list, how, computing)
        return run_step(self._memory.steps, _take_step, arguments)

    def _parts(self) -> list[Any]:
        """Whatever decides what a step does: itself, and the Keras optimizer."""
        return [self, self.keras]

    def _both(self, loss: Any, var_list: Any, how: Any, computing: Any) -> Any:
        pairs = self.compute_gradients(loss, var_list=var_list, **computing)
        check_any_gradient(pairs, f" and loss {loss!r}")
        return self.apply_gradients(pairs, **how)

    @outside_compiler
    def compute_gradients(
        self,
        loss: Callable[[], Any],
        var_list: Any = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: Any = None,
    ) -> Pairs:
        """Gradients and variables, to be processed and handed to `apply_gradients`.

        What `loss` assigns (statistics of normalization, states of random generators) is assigned.

        Args:
            loss: As in `minimize`, like the other arguments.
            var_list: Variables to differentiate by.
            gate_gradients: Without meaning.
            aggregation_method: Without meaning.
            colocate_gradients_with_ops: Without meaning.
            grad_loss: As in `minimize`.

        Returns:
            A list of pairs of a gradient and its variable. A gradient is a tensor, a row gradient
            of the backend (tf.IndexedSlices, a sparse tensor of PyTorch), or None where the loss
            does not depend on the variable. On JAX and PyTorch, it is a `keras_tfopt.RowGradient`
            where the loss only looks up rows of the variable, and the optimizer goes by rows.

        Raises:
            RuntimeError: if `loss` is not callable.
            TypeError: if `var_list` holds anything but variables.
            ValueError: if an argument is not among its values.
        """
        _check_loss(loss)
        check_computing(gate_gradients, aggregation_method, colocate_gradients_with_ops)
        if var_list is not None:
            var_list = checked_variables(var_list, TypeError)
        check_traceable("compute_gradients", assigns=False)
        found = gradients_of_loss(loss, var_list, grad_loss, self._memory.found, self._by_rows)
        if var_list is None:
            self._memory.found = found.variables
        return list(zip(found.gradients, found.variables, strict=True))

    @outside_compiler
    def apply_gradients(
        self, grads_and_vars: Iterable[Any], global_step: Any = None, name: str | None = None
    ) -> Any:
        """Updates variables by their gradients.

        Args:
            grads_and_vars: Pairs of a gradient (tensor, array, `RowGradient`, row gradient of the
                backend, or None) and a variable. Row gradients touch all rows that they name.
            global_step: Scalar variable that goes up by one after the update.
            name: Without meaning.

        Returns:
            The new value of `global_step`, or None without one.

        Raises:
            TypeError: if these are no pairs of a gradient and a variable.
            ValueError: if there are none, all gradients are None, or one does not fit its variable.
            RuntimeError: inside a bare `jax.jit`.
        """
        pairs = checked_pairs(grads_and_vars)
        check_counter(global_step)
        check_traceable("apply_gradients")
        self._begin_step(global_step)
        self._step(pairs)
        return count_up(global_step)

    def _begin_step(self, global_step: Any) -> None:
        """What a step depends on besides gradients; before anything changes."""

    def _step(self, pairs: Pairs) -> None:
        prepare(self._optimizer, self._covered(pairs))
        given = [pair for pair in pairs if pair[0] is not None]
        apply_rows(self._optimizer, [g for g, _ in given], [v for _, v in given])

    def _covered(self, pairs: Pairs) -> list[Any]:
        """The variables that need state for a step."""
        return [variable for gradient, variable in pairs if gradient is not None]

    # ---- State ----------------------------------------------------------------------------------

    def get_slot(self, var: Any, name: str) -> Any:
        """The state called `name` of a variable; None if there is none, or not yet."""
        if not is_variable(var):
            raise TypeError(f"Argument `var` must be a variable. Received: {var!r}")
        return slots_of(self._optimizer, var).get(name)

    def get_slot_names(self) -> list[str]:
        """The names of the slots there are, in alphabetical order; none before the first step."""
        return slot_names_of(self._optimizer)

    def variables(self) -> list[Any]:
        """The variables that hold the state: count of steps and slots; none before the first step.

        The originals keep powers of decay rates in the place of the count.
        """
        return state_variables(self._optimizer)

    def get_name(self) -> str:
        """The name of the optimizer."""
        return self._name

    @property
    def keras(self) -> Any:
        """The Keras optimizer: for `model.compile`, or for `apply`, `slot` and saving.

        It is the same object in each access, and shares the state with the verbs.
        """
        return self._optimizer


class _Memory:
    """What is kept from one step to the next that makes no difference to its results."""

    def __init__(self) -> None:
        self.found: list[Any] = []  # variables that the last loss read
        self.steps: dict[Any, Any] = {}  # compiled


def _take_step(parts: list[Any], *arguments: Any) -> Any:
    return parts[0]._both(*arguments)


def _check_loss(loss: Any) -> None:
    if not callable(loss):
        raise RuntimeError(
            "Argument `loss` must be a function without arguments that computes the loss: there "
            f"are no graphs to differentiate in. Received: {loss!r}{of_tensorflow(loss)}"
        )


def checked_pairs(grads_and_vars: Any) -> Pairs:
    """Pairs of a gradient and a variable, row gradients as such; or an error."""
    pairs = pairs_of(grads_and_vars)
    check_precision(pairs)
    if all(is_dense(gradient) for gradient, _ in pairs):
        return pairs
    for pair in pairs:
        if not _is_gradient(pair[0]):
            raise TypeError(
                "Argument `grads_and_vars` must hold gradients that are tensors, row gradients or "
                f"None. Received: {pair[0]!r} for {path_of(pair[1])!r}"
            )
    check_any_gradient(pairs)
    return [(as_named_rows(gradient, variable), variable) for gradient, variable in pairs]


def _is_gradient(value: Any) -> bool:
    if value is None or isinstance(value, (RowGradient, np.ndarray, np.generic)):
        return True
    if isinstance(value, (list, tuple)):
        return all(_is_gradient(item) and item is not None for item in value)
    if isinstance(value, numbers.Real):
        return True
    return ops.is_tensor(value) or all(hasattr(value, name) for name in ("values", "indices"))


def count_up(global_step: Any) -> Any:
    """The value of a counter after one more step."""
    if global_step is None:
        return None
    global_step.assign_add(1)
    return ops.convert_to_tensor(global_step) + 0  # on PyTorch it would go on counting
