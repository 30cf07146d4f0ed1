"""Reading, writing and naming variables of TensorFlow 1's two kinds: resources and references."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from keras_tfopt.execution.tensorflow import is_variable

v1 = tf.compat.v1


def native(value: Any) -> Any:
    """The variable of TensorFlow in one of Keras; anything else is itself."""
    return value.value if isinstance(value, keras.Variable) else value


def is_reference(variable: Any) -> bool:
    """Whether this is a variable of the older kind, which graphs only have."""
    return bool(getattr(tf.as_dtype(native(variable).dtype), "_is_ref_dtype", False))


def name_of(variable: Any) -> str:
    """The name of a variable, without `:0`."""
    return native(variable).name.split(":")[0]


def dtype_of(variable: Any) -> tf.DType:
    """The data type of what a variable holds."""
    return tf.as_dtype(native(variable).dtype).base_dtype


def shape_of(variable: Any) -> tuple[Any, ...]:
    """The shape of a variable in plain numbers; that of a scalar, if it has no known one."""
    shape = native(variable).shape
    # Behaving as TensorFlow 1 does, TensorFlow iterates over objects here.
    return () if shape.rank is None else tuple(shape.as_list())


def read(variable: Any) -> Any:
    """The value of a variable, for what is computed from it at this place among the operations."""
    variable = native(variable)
    # What reads a reference variable anew can be moved before an assignment when a graph is
    # optimized, whatever it was told to come after; what computes with its value is not.
    if is_reference(variable):
        return in_branch(tf.convert_to_tensor(variable))
    return variable.read_value()


def in_branch(value: Any) -> Any:
    """The same tensor; in a branch of TensorFlow 1's control flow, from an operation of the branch.

    What comes into a branch is an output of its switch. Where such an output is an argument of
    `where` with a constant condition, optimizing the graph makes the branch depend on the other
    output of the switch, and it never runs.
    """
    inside = v1.get_default_graph()._get_control_flow_context() is not None
    return tf.identity(value) if inside else value


def value_now(value: Any, count: Callable[[], Any] | None = None) -> Any:
    """What a hyperparameter is in this step.

    Args:
        value: Number, tensor, variable, schedule or function without arguments.
        count: Function that gives the variable with the number of steps, which a schedule follows;
            None where there are no schedules.
    """
    if is_variable(value):
        return read(value)
    if count is not None and isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
        return value(read(count()))
    return value() if callable(value) else value


@contextlib.contextmanager
def reaching(variable: Any) -> Iterator[None]:
    """A context in which `tf.cond` is one that can reach this, if it is a variable.

    Only the control flow of TensorFlow 1 can reach a reference variable: the later one would read
    it first, which fails before it is initialized, and could not assign to it.
    """
    before = control_flow_util.ENABLE_CONTROL_FLOW_V2
    if is_variable(variable) and is_reference(variable):
        control_flow_util.ENABLE_CONTROL_FLOW_V2 = False
    try:
        yield
    finally:
        control_flow_util.ENABLE_CONTROL_FLOW_V2 = before


def value_of(written: Any) -> Any:
    """The value that a variable has after an operation of `write`."""
    return tf.identity(written)


def write(variable: Any, value: Any, indices: Any = None, use_locking: bool = False) -> Any:
    """An operation that assigns all of a variable, or some rows."""
    variable = native(variable)
    value = tf.cast(value, dtype_of(variable))
    if indices is None:
        return v1.assign(variable, value, use_locking=use_locking)
    return v1.scatter_update(variable, indices, value, use_locking=use_locking)


def group(*operations: Any, name: str | None = None) -> Any:
    """One operation for several; None among them is nothing."""
    return tf.group(*[one for one in operations if one is not None], name=name)


def column(mask: Any, values: Any) -> Any:
    """A mask of rows, shaped to broadcast over them."""
    return tf.reshape(mask, tf.concat([tf.shape(mask), tf.ones([tf.rank(values) - 1], "int32")], 0))


def dense_of(values: Any, indices: Any, variable: Any) -> Any:
    """Rows as a gradient of all of a variable, with zeros elsewhere."""
    shape = tf.shape(native(variable), indices.dtype)
    return tf.scatter_nd(indices[:, None], values, shape)


def mask_of(indices: Any, variable: Any, values: Any) -> Any:
    """Which rows of a variable these are, shaped to broadcast over it."""
    count = tf.shape(native(variable), indices.dtype)[:1]
    return column(tf.scatter_nd(indices[:, None], tf.ones_like(indices), count) > 0, values)


def outermost_graph() -> Any:
    """The graph that state belongs to, None when eager; also asked inside of cond or a function."""
    with tf.init_scope():
        return None if tf.executing_eagerly() else v1.get_default_graph()


def in_a_graph() -> bool:
    """Whether code runs in a graph of TensorFlow 1, at whatever depth of functions."""
    return outermost_graph() is not None


def place() -> tuple:
    """Equal where a tensor that was made once can be used again."""
    graph = v1.get_default_graph()
    return id(graph), id(graph._get_control_flow_context())


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """For making Keras optimizers, whose variables must not get into a graph of TensorFlow 1."""
    with tf.init_scope():
        if tf.executing_eagerly():
            yield
        else:
            with tf.Graph().as_default():
                yield


def following(operations: Sequence[Any]) -> contextlib.AbstractContextManager:
    """A context for what comes after these; None among them is nothing."""
    return tf.control_dependencies([one for one in operations if one is not None])


def lifted() -> contextlib.AbstractContextManager:
    """A context for making state, outside of functions that are being traced."""
    return tf.init_scope()


def add_one_to(counter: Any) -> Any:
    """Counts a step of a function that is being traced; gives the counter, made from None.

    Replicas of a strategy would all count.
    """
    if tf.distribute.has_strategy():
        return counter
    if counter is None:
        with lifted():
            counter = tf.Variable(0, trainable=False, dtype="int64", name="traced_steps")
    counter.assign_add(1)
    return counter


class Switch:
    """Is on within a context: for steps in compiled functions, at the time when they run.

    Operations of a graph of TensorFlow 1, and replicas of a strategy, have what it was when they
    were built.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._variable: Any = None

    def now(self) -> Any:
        """1 or 0."""
        self._make_in_functions()
        in_function = self._variable is not None and not tf.executing_eagerly()
        return read(self._variable) if in_function and _is_shared() else float(self._depth > 0)

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """The context."""
        self._make_in_functions()
        self._turn(1)
        try:
            yield
        finally:
            self._turn(-1)

    def _make_in_functions(self) -> None:
        if self._variable is None and not tf.executing_eagerly() and _is_shared():
            with lifted():
                self._variable = tf.Variable(float(self._depth > 0), trainable=False, name="switch")

    def _turn(self, change: int) -> None:
        self._depth += change
        if self._variable is not None and _is_shared():
            self._variable.assign(float(self._depth > 0))


def _is_shared() -> bool:
    """Whether functions can have a variable in common with what is around them."""
    return outermost_graph() is None and not tf.distribute.has_strategy()


def is_here(variable: Any) -> bool:
    """Whether a variable belongs to the graph that is being built, or is an eager one."""
    graph = outermost_graph()
    in_graph_mode = getattr(variable, "_in_graph_mode", True)
    return variable.graph is graph if in_graph_mode else graph is None


def global_step() -> Any:
    """The count of steps of the graph that is being built, made if there is none."""
    return v1.train.get_or_create_global_step()


def named(tensor: Any, name: str) -> Any:
    """The same tensor, under a name."""
    return tf.identity(tensor, name=name)
