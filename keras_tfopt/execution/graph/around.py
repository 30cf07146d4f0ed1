"""What wrappers do around the step of another optimizer of TensorFlow."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as framework
from tensorflow.python.ops.variables import PartitionedVariable
from tensorflow.python.training.saving import saveable_object_util

from keras_tfopt.execution.graph.operations import (
    dtype_of,
    native,
    reaching,
    read,
    write,
)

v1 = tf.compat.v1


def distinct(gradient: Any) -> Any:
    """The rows that a gradient names, once each; None for a gradient of all of a variable."""
    if not isinstance(gradient, tf.IndexedSlices):
        return None
    # Without a reshape, which would take along what this has to come after, and be optimized away.
    return tf.unique(gradient.indices)[0]


def moved(
    function: Callable[[Any, Any], Any],
    variable: Any,
    rows: Any = None,
    use_locking: bool = False,
    **scalars: Any,
) -> Any:
    """An operation that puts a variable, or some rows of it, through a function.

    Args:
        function: From the value and a namespace of scalars, in its data type, to the new value.
        variable: Variable.
        rows: Which rows, or None for all of it.
        use_locking: Whether the assignment takes a lock.
        **scalars: Numbers or scalar tensors.
    """
    variable = native(variable)
    dtype = dtype_of(variable)
    with framework.colocate_with(variable):
        x = read(variable) if rows is None else tf.gather(variable, rows)
        t = types.SimpleNamespace(**{name: tf.cast(v, dtype) for name, v in scalars.items()})
        new = function(x, t)
        with tf.control_dependencies([new]):
            return write(variable, new, rows, use_locking)


def unless_zero(apply: Callable[..., Any]) -> Callable[..., Any]:
    """The function that adds a step to a graph, so that the step rests while a gradient is zero."""

    def rests(grad: Any, variable: Any, *indices: Any) -> Any:
        moves = _any_nonzero(grad)

        def step() -> Any:
            with tf.control_dependencies(
                [one for one in [apply(grad, variable, *indices)] if one is not None]
            ):
                return tf.no_op()

        if tf.executing_eagerly():
            return step() if bool(moves) else tf.no_op()
        return conditional(moves, variable, step, tf.no_op)

    return rests


def conditional(condition: Any, variable: Any, true: Any, false: Any) -> Any:
    """`tf.cond` with functions that read or change a variable, in a graph."""
    with reaching(variable):
        return v1.cond(condition, true, false)


def initial_value(variable: Any) -> Any:
    """What a variable starts from: in graphs before any step, eagerly what it is."""
    variable = native(variable)
    if tf.executing_eagerly():
        return read(variable)
    is_there = v1.is_variable_initialized(variable)
    return conditional(is_there, variable, variable.read_value, lambda: variable.initial_value)


def is_moving(gradient: Any) -> bool:
    """Whether any of a gradient is not zero; None is zero.

    Raises:
        RuntimeError: where that is not known yet.
    """
    if gradient is None:
        return False
    if not tf.executing_eagerly():
        raise RuntimeError(
            "MultitaskOptimizerWrapper around an optimizer of Keras works eagerly only. Use "
            "keras_tfopt.Multitask there"
        )
    return bool(_any_nonzero(gradient))


def _any_nonzero(gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):  # of which rows may cancel
        rows, places = tf.unique(gradient.indices)
        gradient = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.reduce_any(tf.not_equal(gradient, 0))


def mark_as_averaged(variable: Any) -> None:
    """Puts a variable where `tf.compat.v1.moving_average_variables` finds it."""
    v1.add_to_collection(v1.GraphKeys.MOVING_AVERAGE_VARIABLES, native(variable))


def swapping_saver(
    pairs: Iterable[tuple[Any, Any]], var_list: Any, name: str, arguments: Mapping[str, Any]
) -> Any:
    """A `tf.compat.v1.train.Saver` that has averages under the names of variables.

    Args:
        pairs: Variables and their averages.
        var_list: What to save, as `tf.compat.v1.train.Saver` takes it; None is all of the graph.
        name: Name of the saver.
        arguments: Further arguments of the saver.
    """
    if var_list is None:
        var_list = v1.global_variables()
    if not isinstance(var_list, Mapping):
        var_list = saveable_object_util.op_list_to_dict(
            list(var_list), convert_variable_to_tensor=False
        )
    swapped = {}
    for variable, average in pairs:
        swapped[variable.op.name], swapped[average.op.name] = average, variable
    saved = {one.op.name for entry in var_list.values() for one in _slices(entry)}

    def swap(variable: Any) -> Any:
        other = swapped.get(variable.op.name, variable)
        if other.op.name not in saved:
            raise ValueError(
                "Argument `var_list` must hold variables together with their averages. Variable to "
                f"swap with {variable.op.name!r}, not received: {other.op.name!r}"
            )
        return other

    wanted = {
        key: [swap(one) for one in _slices(entry)] if _is_partitioned(entry) else swap(entry)
        for key, entry in var_list.items()
    }
    return v1.train.Saver(wanted, name=name, **arguments)


def _is_partitioned(entry: Any) -> bool:
    return isinstance(entry, (list, tuple, PartitionedVariable))


def _slices(entry: Any) -> list[Any]:
    return list(entry) if _is_partitioned(entry) else [entry]
