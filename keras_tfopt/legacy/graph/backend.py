"""Operations on variables of TensorFlow 1: resources or references, in graphs or eagerly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from keras_tfopt.engine.backends.tensorflow import is_variable, lifted
from keras_tfopt.engine.state.state import Like

v1 = tf.compat.v1
is_eager = tf.executing_eagerly
value_of = tf.identity  # of an operation of `write`: the value that the variable then has


class Variables(dict):
    """Variables of the program, by identity. A deep copy has the same variables."""

    def __deepcopy__(self, memo: dict) -> Variables:
        return Variables(self)


def native(value: Any) -> Any:
    """Return the TensorFlow variable inside a Keras variable, and anything else unchanged."""
    return value.value if isinstance(value, keras.Variable) else value


def is_reference(variable: Any) -> bool:
    """Return whether this is a reference variable, which only graphs have."""
    return bool(getattr(tf.as_dtype(native(variable).dtype), "_is_ref_dtype", False))


def name_of(variable: Any) -> str:
    """Return the name of a variable, without `:0`."""
    return native(variable).name.split(":")[0]


def dtype_of(variable: Any) -> tf.DType:
    """Return the data type of the value of a variable."""
    return tf.as_dtype(native(variable).dtype).base_dtype


def shape_of(variable: Any) -> tuple[Any, ...]:
    """Return the shape of a variable in plain numbers; () if it is not known."""
    shape = native(variable).shape
    # With `disable_v2_behavior`, iterating over a shape gives objects, not numbers.
    return () if shape.rank is None else tuple(shape.as_list())


def read(variable: Any) -> Any:
    """Return the value that a variable has at this point among the operations."""
    variable = native(variable)
    # Despite control dependencies, graph optimization moves reads and identities of a reference
    # variable before an assignment, and what is computed from them. It leaves this operation.
    if is_reference(variable):
        return tf.ensure_shape(variable, variable.shape)
    return variable.read_value()


def in_branch(value: Any) -> Any:
    """Return the tensor; inside a branch of TensorFlow 1's control flow, an identity of it.

    A tensor enters a branch as an output of its switch. If `where` with a constant condition uses
    it there, graph optimization makes the branch depend on the other output of the switch. Then the
    branch never runs.
    """
    inside = v1.get_default_graph()._get_control_flow_context() is not None
    return tf.identity(value) if inside else value


def value_now(value: Any, count: Callable[[], Any] | None = None) -> Any:
    """Return the value of a hyperparameter in this step.

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
    """Make `tf.cond` build control flow of TensorFlow 1 if this is a reference variable.

    Control flow of TensorFlow 2 reads variables before the branch, which fails while they are not
    initialized. It cannot assign to reference variables either.
    """
    before = control_flow_util.ENABLE_CONTROL_FLOW_V2
    if is_variable(variable) and is_reference(variable):
        control_flow_util.ENABLE_CONTROL_FLOW_V2 = False
    try:
        yield
    finally:
        control_flow_util.ENABLE_CONTROL_FLOW_V2 = before


def write(variable: Any, value: Any, indices: Any = None, use_locking: bool = False) -> Any:
    """Return an operation that assigns all of a variable, or some rows."""
    variable = native(variable)
    value = tf.cast(value, dtype_of(variable))
    if indices is None:
        return v1.assign(variable, value, use_locking=use_locking)
    return v1.scatter_update(variable, indices, value, use_locking=use_locking)


def group(*operations: Any, name: str | None = None) -> Any:
    """Group operations into one, leaving out None."""
    return tf.group(*[one for one in operations if one is not None], name=name)


def column(mask: Any, values: Any) -> Any:
    """Return a mask of rows, shaped to broadcast over them."""
    return tf.reshape(mask, tf.concat([tf.shape(mask), tf.ones([tf.rank(values) - 1], "int32")], 0))


def to_dense(values: Any, indices: Any, variable: Any) -> Any:
    """Return rows as a dense gradient, with zeros in the other rows."""
    shape = tf.shape(native(variable), indices.dtype)
    return tf.scatter_nd(indices[:, None], values, shape)


def row_mask(indices: Any, variable: Any, values: Any) -> Any:
    """Return a mask of these rows of a variable, shaped to broadcast over it."""
    count = tf.shape(native(variable), indices.dtype)[:1]
    return column(tf.scatter_nd(indices[:, None], tf.ones_like(indices), count) > 0, values)


def outermost_graph() -> Any:
    """Return the graph that state belongs to, even inside `cond` or a function; None if eager."""
    with lifted():
        return None if tf.executing_eagerly() else v1.get_default_graph()


def in_a_graph() -> bool:
    """Return whether code runs in a graph of TensorFlow 1, even inside functions."""
    return outermost_graph() is not None


def place() -> tuple:
    """Return a key of the current place in a graph. Tensors can be reused at equal keys."""
    graph = v1.get_default_graph()
    return id(graph), id(graph._get_control_flow_context())


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Make Keras optimizers in this context without adding variables to a TensorFlow 1 graph."""
    with lifted():
        if tf.executing_eagerly():
            yield
        else:
            with tf.Graph().as_default():
                yield


def following(operations: Sequence[Any]) -> contextlib.AbstractContextManager:
    """Return a context for operations that run after these, leaving out None."""
    return tf.control_dependencies([one for one in operations if one is not None])


def add_one_to(counter: Any) -> Any:
    """Count a step of a function that is being traced, and return the counter.

    It is made if it is None. Under a strategy nothing is counted, since each replica would count.
    """
    if tf.distribute.has_strategy():
        return counter
    if counter is None:
        with lifted():
            counter = tf.Variable(0, trainable=False, dtype="int64", name="traced_steps")
    counter.assign_add(1)
    return counter


class Switch:
    """A switch that is on within a context, and in compiled functions that run in it.

    Operations of a TensorFlow 1 graph, and replicas of a strategy, keep the state that the switch
    had when they were built.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._variable: Any = None

    def now(self) -> Any:
        """Return 1 or 0."""
        self._make_in_functions()
        in_function = self._variable is not None and not tf.executing_eagerly()
        return read(self._variable) if in_function and _is_shared() else float(self._depth > 0)

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Turn it on in this context."""
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
    """Return whether functions can share a variable with the code around them."""
    return outermost_graph() is None and not tf.distribute.has_strategy()


def is_here(variable: Any) -> bool:
    """Return whether a variable belongs to the graph that is being built, or is an eager one."""
    graph = outermost_graph()
    in_graph_mode = getattr(variable, "_in_graph_mode", True)
    return variable.graph is graph if in_graph_mode else graph is None


def distinct(gradient: Any) -> Any:
    """Return each row that a gradient names once, on any replica; None if it is dense."""
    if not isinstance(gradient, tf.IndexedSlices):
        return None
    rows, replica = gradient.indices, tf.distribute.get_replica_context()
    if replica is not None and replica.num_replicas_in_sync > 1:
        rows = replica.all_gather(rows, axis=0)
    # No reshape: it would be optimized away, together with its control dependencies.
    return tf.unique(rows)[0]


def conditional(condition: Any, variable: Any, true: Any, false: Any) -> Any:
    """Return the `tf.cond`, in a graph, of functions that read or change a variable."""
    with reaching(variable):
        return v1.cond(condition, true, false)


def initial_value(variable: Any) -> Any:
    """Return the initial value of a variable in graphs, and its current value eagerly."""
    variable = native(variable)
    if tf.executing_eagerly():
        return read(variable)
    is_there = v1.is_variable_initialized(variable)
    return conditional(is_there, variable, variable.read_value, lambda: variable.initial_value)


def like_of(variable: Any) -> Like:
    """Describe a variable: shape, data type and name."""
    return Like(shape_of(variable), dtype_of(variable).name, name_of(variable))


def is_symbolic(value: Any) -> bool:
    """Return whether a hyperparameter is a tensor or variable, which may have no value yet."""
    return is_variable(value) or tf.is_tensor(value)


class Later:
    """Stand for a hyperparameter that is a variable or tensor, while arguments are checked.

    Args:
        value: The variable or tensor.
    """

    def __init__(self, value: Any):
        self.value = value

    def __call__(self) -> Any:
        """Return the variable or tensor."""
        return self.value

    def __repr__(self) -> str:
        return repr(self.value)
