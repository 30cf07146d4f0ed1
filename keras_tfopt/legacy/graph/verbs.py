"""The verbs of `tf.compat.v1.train.Optimizer`, which check everything before anything changes."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.trackable.base import Trackable

from keras_tfopt.engine.rows import RowGradient
from keras_tfopt.engine.state.building import check_pairs, tuples_of
from keras_tfopt.legacy.base import OptimizerBase
from keras_tfopt.legacy.graph.backend import (
    Variables,
    dtype_of,
    in_a_graph,
    is_variable,
    name_of,
    native,
    outermost_graph,
    shape_of,
)
from keras_tfopt.legacy.loss_gradients import gradients_of_loss
from keras_tfopt.legacy.optimizer import Optimizer, Pairs
from keras_tfopt.legacy.verb_arguments import (
    check_any_gradient,
    check_computing,
    check_counter,
    check_precision,
    checked_inputs,
    checked_variables,
)


class Verbs(Optimizer):
    """The verbs with variables of TensorFlow: in graphs, in functions, and eagerly.

    In graphs `loss` may be a tensor, and `minimize` and `apply_gradients` return an Operation with
    the name `name`. Arguments that have no meaning on other backends have that of TensorFlow here.
    Variables may be those of Keras, and gradients may be `keras_tfopt.RowGradient`.
    """

    _never_called = frozenset()

    def __init__(self, name: str, use_locking: bool = False):
        OptimizerBase.__init__(self, use_locking, name)
        self._found: list[Any] = []  # variables that the last loss read
        self._given = Variables()  # as the program gave them, of Keras or not

    def _minimize(
        self,
        loss: Any,
        inputs: Any,
        grad_loss: Any,
        computing: dict[str, Any],
        applying: dict[str, Any],
        compiled: bool,
    ) -> Any:
        """Take one step, given further arguments of `compute_gradients` and `apply_gradients`."""
        inputs = checked_inputs(inputs)
        if inputs and not callable(loss):
            raise TypeError(
                "Argument `inputs` must be () unless `loss` is a function, which is called with "
                f"them. Received: {len(inputs)} inputs of the loss {loss!r}"
            )
        var_list = computing["var_list"]
        if var_list is not None:
            computing["var_list"] = checked_variables(var_list, ValueError, more=(tf.Tensor,))
        check_counter(applying["global_step"])
        bound = functools.partial(loss, *inputs) if inputs else loss
        pairs = self.compute_gradients(bound, grad_loss=grad_loss, **computing)
        check_any_gradient(pairs, f" and loss {loss!r}")
        return self.apply_gradients(pairs, **applying)

    def compute_gradients(
        self,
        loss: Any,
        var_list: Any = None,
        gate_gradients: int = OptimizerBase.GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: Any = None,
    ) -> Pairs:
        """Compute gradients, to be processed and handed to `apply_gradients`.

        Args:
            loss: A tensor, in graphs; or a function without arguments that gives one.
            var_list: Variables to differentiate by; also tensors, which nothing can update. None
                takes the trainable variables: those of the graph, or those that `loss` reads.
            gate_gradients: GATE_NONE, GATE_OP or GATE_GRAPH: which gradients are computed before
                the first of them is used.
            aggregation_method: None or a value of `tf.AggregationMethod`.
            colocate_gradients_with_ops: Whether gradients are on the devices of their operations.
            grad_loss: Tensor of the loss's shape that its gradient is multiplied by.

        Returns:
            A list of pairs of a gradient (tensor, `tf.IndexedSlices`, or None) and its variable.

        Raises:
            RuntimeError: if `loss` is a tensor when eager.
            TypeError: if `var_list` holds anything else.
            ValueError: if an argument is not among its values.
        """
        if not callable(loss) and tf.executing_eagerly():
            raise RuntimeError(
                "Argument `loss` must be a function without arguments that computes the loss when "
                "eager: there is no graph to differentiate in. Write "
                f"`minimize(lambda: loss(...))`. Received: {loss!r}"
            )
        check_computing(gate_gradients, aggregation_method, colocate_gradients_with_ops)
        if var_list is not None:
            var_list = checked_variables(var_list, TypeError, more=(tf.Tensor,))
        if callable(loss) and not in_a_graph():
            return self._by_tape(loss, var_list, grad_loss)
        if var_list is not None:
            var_list = [native(variable) for variable in var_list]
        return OptimizerBase.compute_gradients(
            self, loss, var_list, gate_gradients, aggregation_method,
            colocate_gradients_with_ops, grad_loss,
        )  # fmt: skip

    def _by_tape(self, loss: Callable[[], Any], var_list: Any, grad_loss: Any) -> Pairs:
        def scaled() -> Any:
            # Each replica sees a part of the batch, so divide by the number of replicas.
            value = loss()
            return self._scale_loss(value) if tf.distribute.has_strategy() else value

        pairs = gradients_of_loss(scaled, var_list, grad_loss, self._found)
        if var_list is None:
            self._found = [variable for _, variable in pairs]
        return pairs

    def apply_gradients(
        self, grads_and_vars: Iterable[Any], global_step: Any = None, name: str | None = None
    ) -> Any:
        """Update variables by their gradients.

        Args:
            grads_and_vars: Pairs of a gradient (tensor, array, `tf.IndexedSlices`, `RowGradient` or
                None) and a variable.
            global_step: Scalar variable that goes up by one after the update.
            name: Name of the operation returned.

        Returns:
            An Operation, in graphs. When eager, the new value of `global_step`, None without one.

        Raises:
            TypeError: if these are no pairs of a gradient and a variable.
            NotImplementedError: if there is a tensor instead of a variable.
            ValueError: if there are none, all gradients are None, one does not fit its variable,
                or a variable belongs to another graph.
        """
        given, pairs = self._checked(grads_and_vars)
        check_counter(global_step)
        self._given.update(
            {id(own): theirs for (_, own), (_, theirs) in zip(pairs, given, strict=True)}
        )
        self._begin_step(global_step)
        return self._run(pairs, native(global_step), name)

    def _checked(self, grads_and_vars: Any) -> tuple[Pairs, Pairs]:
        """Return pairs of a gradient and a variable twice: as given, and in TensorFlow's form."""
        given = tuples_of(grads_and_vars)
        for pair in given:
            if len(pair) == 2 and isinstance(pair[1], tf.Tensor):
                raise NotImplementedError(
                    "Argument `grads_and_vars` must hold pairs of a gradient and a variable: a "
                    f"tensor cannot be updated. Received: {pair!r}"
                )
        check_pairs(given)
        check_precision(given)
        check_any_gradient(given)
        pairs = [(_gradient(g, native(variable)), native(variable)) for g, variable in given]
        check_graph([variable for _, variable in pairs], self)
        return given, pairs

    def _run(self, pairs: Pairs, global_step: Any, name: str | None) -> Any:
        """Take the step. Everything has been checked before."""
        done = OptimizerBase.apply_gradients(self, pairs, global_step, name)
        if in_a_graph():
            return done
        # A tf.function cannot return an operation.
        with tf.control_dependencies([done] if isinstance(done, tf.Operation) else []):
            return None if global_step is None else global_step.read_value()

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        return self._move(var, grad, None)

    def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
        return self._move(handle, grad, None)

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        return self._move(var, grad.values, grad.indices)

    def _resource_apply_sparse(self, grad: Any, handle: Any, indices: Any) -> Any:
        return self._move(handle, grad, indices)

    def _move(self, variable: Any, g: Any, indices: Any) -> Any:
        """Move a variable by a dense gradient, or by distinct rows; return the operation."""
        raise NotImplementedError

    def get_slot(self, var: Any, name: str) -> Any:
        """Return the state called `name` of a variable; None if there is none, or not yet."""
        if not is_variable(var):
            if isinstance(var, Trackable):
                return None  # tf.train.Checkpoint asks for the slots of all that it saves
            raise TypeError(f"Argument `var` must be a variable. Received: {var!r}")
        self._take_back()
        return self._own_slot(var, name)

    def _own_slot(self, variable: Any, name: str) -> Any:
        return OptimizerBase.get_slot(self, native(variable), name)

    def get_slot_names(self) -> list[str]:
        """Return the names of the slots, in alphabetical order; none before the first step."""
        self._take_back()
        return OptimizerBase.get_slot_names(self)

    def variables(self) -> list[Any]:
        """Return the variables with the state in the graph that is being built, sorted by name."""
        self._take_back()
        return OptimizerBase.variables(self)

    def _take_back(self) -> None:
        """Copy back the state of a Keras optimizer before the state is read."""


def _gradient(gradient: Any, variable: Any) -> Any:
    if gradient is None:
        return None
    name, dtype = name_of(variable), dtype_of(variable)
    if isinstance(gradient, keras.Variable):
        gradient = gradient.value
    if isinstance(gradient, RowGradient):
        gradient = tf.IndexedSlices(
            tf.convert_to_tensor(gradient.values), tf.convert_to_tensor(gradient.indices)
        )
    if isinstance(gradient, tf.IndexedSlices):
        _check_rows(gradient, variable)
        values = _cast(gradient.values, dtype, name)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    numeric = (np.ndarray, np.generic, numbers.Real, list, tuple, tf.Variable)
    if not tf.is_tensor(gradient) and not isinstance(gradient, numeric):
        raise TypeError(
            "Argument `grads_and_vars` must hold gradients that are tensors, row gradients or "
            f"None. Received: {gradient!r} for {name!r}"
        )
    gradient = _cast(tf.convert_to_tensor(gradient), dtype, name)
    if not gradient.shape.is_compatible_with(variable.shape):
        raise ValueError(
            f"The gradient of {name!r} must have its shape {shape_of(variable)}. Received: "
            f"shape {tuple(gradient.shape.as_list())}"
        )
    return gradient


def _cast(gradient: Any, dtype: tf.DType, name: str) -> Any:
    if not (gradient.dtype.is_floating or gradient.dtype.is_integer):
        raise TypeError(
            f"The gradient of {name!r} must be of real numbers. Received: dtype "
            f"{gradient.dtype.name}"
        )
    return tf.cast(gradient, dtype)


def _check_rows(gradient: tf.IndexedSlices, variable: Any) -> None:
    values, rows = gradient.values.shape, variable.shape
    if rows.rank == 0 or (values.rank and not values[1:].is_compatible_with(rows[1:])):
        raise ValueError(
            f"A gradient of rows of {name_of(variable)!r} must have rows of the variable's shape "
            f"{shape_of(variable)}. Received: values of shape {values}"
        )
    if tf.executing_eagerly() and rows.rank and gradient.indices.shape.num_elements():
        indices = gradient.indices.numpy()
        if indices.min() < 0 or indices.max() >= rows[0]:
            raise ValueError(
                f"A gradient of rows of {name_of(variable)!r} must name rows in [0, {rows[0]}). "
                f"Received: indices from {indices.min()} to {indices.max()}"
            )


def check_graph(values: Iterable[Any], optimizer: Any) -> None:
    """Raise an error for variables or tensors of another graph than the one being built."""
    here = outermost_graph()
    for value in values:
        theirs = _graph_of(value)
        is_eager = theirs is None and is_variable(value)
        if theirs is here or (theirs is None and not is_eager):
            continue
        place = "no graph" if is_eager else "another graph than that which is being built"
        raise ValueError(
            f"{type(optimizer).__name__} was given {value.name!r}, which belongs to {place}. Make "
            "variables, tensors and operations of one training step in one "
            "`with graph.as_default():`"
        )


def _graph_of(value: Any) -> Any:
    """Return the graph of a variable or tensor made in a graph of TensorFlow 1, or None."""
    if is_variable(value):
        value = native(value)
        return value.graph if getattr(value, "_in_graph_mode", True) else None
    is_symbolic = tf.is_tensor(value) and not hasattr(value, "numpy")
    graph = getattr(value, "graph", None) if is_symbolic else None
    while graph is not None and getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    return None if graph is None or graph.building_function else graph
