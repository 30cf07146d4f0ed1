"""Rules on TensorFlow: an inner XLA-compiled function for whole variables, scatters for rows."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from keras_tfopt.execution import binding
from keras_tfopt.execution.rows import RowGradient
from keras_tfopt.execution.settings import is_plain
from keras_tfopt.execution.tensorflow_lookup import look_up  # noqa: F401
from keras_tfopt.execution.tensorflow_loss import (  # noqa: F401
    check_traceable,
    concretely,
    is_variable,
    loss_and_gradients,
    run_step,
)

if TYPE_CHECKING:
    from keras_tfopt.execution.binding import ModelStep, Update
    from keras_tfopt.execution.engine import Engine
    from keras_tfopt.execution.state import Like


# What the optimizers under their names in TensorFlow 1 derive from.
OptimizerBase = tf.compat.v1.train.Optimizer

# Variables of one shape that are updated by one call of compiled code.
GROUP = 8
# Functions that optimizers of equal hyperparameters have in common, and how many are kept.
SHARED = 256
_shared: dict[tuple, Callable] = {}
# Whether optimizers that are not ours take IndexedSlices, as far as has been tried.
_take_slices: Any = weakref.WeakKeyDictionary()


def outside_compiler(function: Callable) -> Callable:
    """Keeps AutoGraph from rewriting the engine where a user's own step is a `tf.function`."""
    return tf.autograph.experimental.do_not_convert(function)


def start_optimizer(optimizer: Any, name: str, use_locking: bool) -> None:
    """What `OptimizerBase` does to begin with."""
    OptimizerBase.__init__(optimizer, use_locking, name)


def no_gradients() -> contextlib.AbstractContextManager:
    return contextlib.nullcontext()


def once(function: Callable[[], None]) -> None:
    """Runs what creates state; in replicas for all of them at once, so that all have the same."""
    if replicas() == 1:
        function()
    else:
        tf.distribute.get_replica_context().merge_call(lambda strategy: function())


def build_scope(engine: Engine, variables: Sequence[Any]) -> contextlib.AbstractContextManager:
    if replicas() > 1:
        return contextlib.nullcontext()
    strategy = engine._distribution_strategy
    if tf.distribute.has_strategy() and tf.distribute.get_strategy() is not strategy:
        raise ValueError(
            f"{type(engine).__name__} was created outside of the `tf.distribute.Strategy` in which "
            "it is used. Create the optimizer, too, inside `with strategy.scope():`"
        )
    scopes = contextlib.ExitStack()
    if not tf.executing_eagerly() and _initialized(variables):
        # Inside a traced training step, what initializes the state would run again at every step.
        # A model that is built by that very step has no values to start from yet: its state is
        # then lifted out of the step by tf.function, behind the model's variables.
        scopes.enter_context(tf.init_scope())
    scopes.enter_context(strategy.scope())
    return scopes


def _initialized(variables: Sequence[Any]) -> bool:
    with tf.init_scope():
        return all(bool(_native(variable).is_initialized()) for variable in variables)


def layout(variable: Any, shape: tuple[int, ...]) -> None:
    return None


def colocated(engine: Engine, variable: Any) -> contextlib.AbstractContextManager:
    if variable is None:
        return contextlib.nullcontext()
    return engine._distribution_strategy.extended.colocate_vars_with(_native(variable))


def read(variable: Any) -> Any:
    return tf.convert_to_tensor(_native(variable))


def number(variable: Any) -> float:
    with tf.init_scope():
        return float(variable.value.numpy())


def check_copyable(variable: Any) -> None:
    """Raises an error where XLA would have to create a variable and a copy of it at once."""
    # TensorFlow has no public word for a variable whose initial value is not computed yet.
    if _in_xla() and type(variable.value).__name__ == "UnliftedInitializerVariable":
        raise RuntimeError(
            "With `jit_compile=True`, a model must be built before the first step where an "
            "optimizer starts state at the weights, as averages do: call `model.build(shape)`, or "
            f"begin it with a `keras.Input`. Received: {variable.path!r}, which is being created"
        )


def copy_of(variable: Any, dtype: str) -> Any:
    return tf.cast(tf.identity(_native(variable)), dtype)


def own(value: Any) -> Any:
    return value


def with_averages(function: Any, *args: Any) -> Any:
    """Runs a batch on averages."""
    with function.swapped():
        return function.function(*args)


def norm(x: Any) -> Any:
    """Euclidean norm of all of `x`."""
    return tf.sqrt(2 * tf.nn.l2_loss(x))


def run_on_shapes(function: Callable, given: Sequence[tuple[tuple, str]]) -> None:
    """Calls a function with tensors that have shapes and dtypes, but no values."""
    tensors = [tf.TensorSpec(*one) for one in given]
    tf.function(function, autograph=False).get_concrete_function(*tensors)


def asks_for_value(error: Exception) -> bool:
    """Whether this is what such a tensor raises where its value is asked for."""
    symbolic = (
        isinstance(error, (NotImplementedError, TypeError)) and "symbolic" in str(error).lower()
    )
    return symbolic or isinstance(error, tf.errors.OperatorNotAllowedInGraphError)


def from_native(gradient: Any, shape: tuple[int, ...]) -> RowGradient | None:
    if not isinstance(gradient, tf.IndexedSlices):
        return None
    known = None
    if gradient.dense_shape is not None:
        known = tf.get_static_value(gradient.dense_shape)
    shape = shape if known is None else tuple(int(size) for size in known)
    return RowGradient._unchecked(gradient.values, tf.reshape(gradient.indices, [-1]), shape)


def scale_native(gradient: Any, scale: Any) -> Any:
    values = gradient.values * tf.cast(scale, gradient.values.dtype)
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)


def is_dense(value: Any) -> bool:
    """Whether ids or a gradient are an ordinary tensor, neither sparse nor ragged."""
    return isinstance(value, tf.Tensor)


def is_ready(gradient: Any, variable: Any, like: Like) -> bool:
    """Whether a gradient is one that needs neither check nor conversion."""
    return False


def limits(tensor: Any) -> tuple[int, int] | None:
    if not tf.executing_eagerly() or tensor.shape.num_elements() == 0:
        return None
    array = tensor.numpy()
    return int(array.min()), int(array.max())


def is_finite(tensor: Any) -> bool | None:
    """Whether all of it is finite; None where that cannot be known yet."""
    if not tf.executing_eagerly():
        return None
    return bool(tf.reduce_all(tf.math.is_finite(tensor)))


def conditional(condition: Any, true: Callable[[], Any], false: Callable[[], Any]) -> Any:
    """The value of one of two functions; the other is not called."""
    return tf.cond(condition, true, false)


def combine_rows(weights: Any, rows: Any) -> Any:
    """The sum of the rows of a matrix, each by its weight."""
    # One loop, with whatever follows; a product would be a call with a result in memory.
    return sum(weights[i] * rows[i] for i in range(rows.shape[0]))


def row_products(rows: Any, vector: Any) -> Any:
    """The scalar product of each of some long rows with a vector."""
    return tf.linalg.matvec(rows, vector)


def eigh_is_slow() -> bool:
    """Whether decomposing a matrix takes much longer here than some dozens of products."""
    return _in_xla() and not tf.config.list_logical_devices("GPU")


def replicas() -> int:
    """How many replicas run this code side by side; outside of `strategy.run` it is one."""
    context = tf.distribute.get_replica_context()
    return 1 if context is None else context.num_replicas_in_sync


def reduce_replicas(grads: list[Any]) -> list[Any]:
    """Sums over the replicas first, so that clipping and rules see what one device would see."""
    if replicas() == 1:
        return grads
    slices = [
        tf.IndexedSlices(g.values, g.indices, tf.constant(g.shape, "int64"))
        if hasattr(g, "named")
        else g
        for g in grads
    ]
    total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, slices)
    return [
        type(g)(s.values, s.indices, g.shape, g.named)  # no longer distinct
        if hasattr(g, "named")
        else tf.ensure_shape(s, g.shape)
        for g, s in zip(grads, total, strict=True)
    ]


def sum_repeated(
    indices: Any, values: Any, shape: tuple[int, ...], refused: Any
) -> tuple[Any, Any]:
    indices, values = tf.reshape(indices, [-1]), tf.reshape(values, [-1, *shape[1:]])
    compiled = not tf.executing_eagerly()
    outside = (indices < 0) | (indices >= shape[0])
    if refused is not None and compiled and replicas() == 1:
        refused.assign(refused.value + tf.reduce_sum(tf.cast(outside, "int32")))
    if _in_xla() and indices.shape[0]:
        return _sum_repeated_in_xla(indices, values, shape[0], outside)
    if refused is not None and compiled and not _in_xla():
        # XLA leaves such rows out when they are written; here they are an error amid a step.
        indices, values = indices[~outside], values[~outside]
    distinct, where = tf.unique(indices)
    return distinct, tf.math.unsorted_segment_sum(values, where, tf.shape(distinct)[0])


def _sum_repeated_in_xla(indices: Any, values: Any, rows: int, outside: Any) -> tuple[Any, Any]:
    """Distinct rows, ascending, padded to the length of `indices` with rows out of range.

    `unique`, whose result has no length that XLA knows, takes several times as long there.
    """
    count = indices.shape[0]
    indices = tf.where(outside, tf.constant(rows, indices.dtype), indices)
    values = tf.where(_column(outside, values), tf.zeros_like(values), values)
    order = tf.argsort(indices)
    ordered = tf.gather(indices, order)
    starts = tf.concat([[0], tf.cast(ordered[1:] != ordered[:-1], "int32")], 0)
    place = tf.cumsum(starts)
    total = tf.math.unsorted_segment_sum(tf.gather(values, order), place, count)
    distinct = tf.math.unsorted_segment_min(ordered, place, count)
    beyond = rows + tf.range(count, dtype=indices.dtype)
    return tf.where(distinct >= rows, beyond, distinct), total


def row_mask(gradient: Any) -> Any:
    """Which rows of the variable a gradient touches, shaped to broadcast over it."""
    if isinstance(gradient, tf.Tensor):
        return nonzero_rows(gradient)
    touched = tf.ones_like(gradient.indices, dtype="int32")
    if not gradient.named:
        touched = tf.cast(_nonzero(gradient.values), "int32")
    mask = tf.math.unsorted_segment_sum(touched, gradient.indices, gradient.shape[0]) > 0
    return tf.reshape(mask, [-1, *[1] * (len(gradient.shape) - 1)])


def nonzero_rows(values: Any) -> Any:
    """Which rows hold anything but zeros, shaped to broadcast over the values."""
    return _column(_nonzero(values), values)


def rows_at(values: Any, mask: Any) -> tuple[Any, Any]:
    """The rows for which a mask of `nonzero_rows` holds, and their numbers.

    XLA knows no length that depends on the mask: there, the others have numbers out of range.
    """
    if not _in_xla():
        indices = tf.where(tf.reshape(mask, [-1]))[:, 0]
        return tf.gather(values, indices), indices
    rows = tf.range(values.shape[0])
    beyond = tf.where(tf.reshape(mask, [-1]), rows, values.shape[0] + rows)
    return tf.where(mask, values, tf.zeros_like(values)), beyond


def to_dense(rows: Any) -> Any:
    total = tf.math.unsorted_segment_sum(rows.values, rows.indices, rows.shape[0])
    return tf.reshape(total, rows.shape)


def take(variable: Any, indices: Any) -> Any:
    # Gathering from the variable itself reads the rows; from its value it would copy the table.
    return tf.gather(_native(variable), indices)


def in_form_for(optimizer: Any, gradient: Any, variable: Any) -> Any:
    """Give a gradient to an optimizer that is not ours in a form that it takes."""
    if not hasattr(gradient, "named"):
        return tf.identity(gradient)  # inside `tf.cond`, Keras takes none from outside of it
    rows = gradient
    if optimizer not in _take_slices:
        _take_slices[optimizer] = _takes_slices(optimizer, rows, variable)
    if not _take_slices[optimizer]:
        return to_dense(rows)
    return tf.IndexedSlices(rows.values, rows.indices, tf.constant(rows.shape, "int64"))


def _takes_slices(optimizer: Any, rows: Any, variable: Any) -> bool:
    """Whether a step with IndexedSlices can be traced; no variable changes here."""
    if type(optimizer).update_step.__module__.startswith("keras."):
        # Keras's own rules mean the same by both forms. But not all of them take slices with its
        # loss scale, or without any row.
        return False
    spec = tf.IndexedSlicesSpec(rows.shape, rows.values.dtype, rows.indices.dtype)
    with tf.init_scope():
        step = tf.function(lambda slices: optimizer.apply([slices], [variable]), autograph=False)
        try:
            step.get_concrete_function(spec)
        except Exception:  # whatever the code of others raises
            return False
    return True


def run_in_place(
    engine: Engine,
    key: Any,
    function: Callable,
    variables: Sequence[Any],
    inputs: Any,
    sharing_key: tuple | None = None,
) -> Any:
    """Calls `function(values, inputs)`, which returns a result and writes; makes the writes.

    A write is `(position in variables, indices, an index or None, value)`. The whole runs compiled
    by XLA, which is given the variables themselves and updates them where they are. It is compiled
    once per key and shapes; the inputs must be tensors. Engines with one sharing key, which says
    all else that the function depends on, have it in common.
    """
    # Variables with a copy on each of several devices are not for XLA.
    spread = any(isinstance(_native(v), tf.distribute.DistributedValues) for v in variables)
    if is_plain() or spread:
        result, writes = function([read(v) for v in variables], inputs)
        commit(engine, [(variables[n], indices, value) for n, indices, value in writes])
        return result
    if key not in engine._fast:
        compiled = _shared.pop((sharing_key, key), None)
        engine._fast[key] = compiled or _in_place(function)
        if sharing_key is not None:
            _shared[sharing_key, key] = engine._fast[key]  # as the last one
            if len(_shared) > SHARED:
                del _shared[next(iter(_shared))]
    result, later = engine._fast[key]([_native(v) for v in variables], inputs)
    # Of a variable that is written in part, XLA would make a copy.
    commit(engine, [(variables[n], *write) for n, write in later.items()])
    return result


def _in_place(function: Callable) -> Callable:
    def run(variables: list[Any], inputs: Any) -> Any:
        result, writes = function([tf.convert_to_tensor(v) for v in variables], inputs)
        later = {}
        for n, indices, value in writes:
            if indices is None:
                _assign(variables[n], None, value)
            else:
                later[n] = indices, value
        # TensorFlow notes the variables for which a function is traced, and refuses to call it when
        # these are gone. But they are arguments: it is called for others, too.
        tf.compat.v1.get_default_graph()._watched_variables.clear()
        return result, later

    return tf.function(run, jit_compile=True, autograph=False)


def run_in_pieces(
    engine: Engine, step: ModelStep, grads: list[Any], scalars: dict[str, Any]
) -> bool:
    return False  # XLA makes its own passes


def commit(engine: Engine, writes: list[tuple[Any, Any, Any]]) -> None:
    """Assigns `(variable, indices, an index or None, value)`, on all replicas."""
    if not writes:
        return
    if replicas() == 1:
        for variable, indices, value in writes:
            _assign(_native(variable), indices, value)
        return

    def everywhere(strategy: Any, variables: list, indices: list, values: list) -> None:
        for variable, rows, value in zip(variables, indices, values, strict=True):
            strategy.extended.update(variable, _assign, args=(rows, value), group=False)

    variables, indices, values = zip(*[(_native(v), i, x) for v, i, x in writes], strict=True)
    tf.distribute.get_replica_context().merge_call(
        everywhere, args=(list(variables), list(indices), list(values))
    )


def accumulate(engine: Engine, accumulator: Any, gradient: Any) -> None:
    if hasattr(gradient, "named"):
        total = take(accumulator, gradient.indices) + gradient.values
        commit(engine, [(accumulator, gradient.indices, total)])
    else:
        commit(engine, [(accumulator, None, read(accumulator) + gradient)])


def run_if(engine: Engine, condition: Any, step: Callable[[], None]) -> None:
    if tf.executing_eagerly():
        if bool(condition):
            step()
        return
    if replicas() == 1:
        tf.cond(condition, step, lambda: None)
        return

    def everywhere(strategy: Any, condition: Any) -> None:
        # A condition around a merge of the replicas has to be outside of the replicas.
        same = strategy.experimental_local_results(condition)[0]
        tf.cond(same, lambda: strategy.extended.call_for_each_replica(step), lambda: None)

    tf.distribute.get_replica_context().merge_call(everywhere, args=(condition,))


def execute(engine: Engine, updates: list[Update], scalars: dict[str, dict[str, Any]]) -> None:
    groups: dict[tuple, list[Update]] = {}
    for update in updates:
        if update.kind.mode in ("dense", "move"):
            shape, dtype = update.variable.shape, str(update.variable.dtype)
            groups.setdefault((update.kind, update.names, shape, dtype), []).append(update)
    for key, members in groups.items():
        # Alike, they share compiled code; and few calls keep the cost of calling low.
        for start in range(0, len(members), GROUP):
            group = members[start : start + GROUP]
            _run_whole(engine, ("whole", len(group), *key), group, scalars[group[0].kind.dtype])
    writes = []
    for update in updates:
        if update.kind.mode in ("rows", "touched"):
            writes.extend(_run_rows(engine, update, scalars[update.kind.dtype]))
    commit(engine, writes)


def _run_whole(engine: Engine, key: tuple, group: list[Update], scalars: dict[str, Any]) -> None:
    call, sharing_key = engine.rule_call(group[0]), None
    if not engine.fused:
        for update in group:
            x, *slots = [read(v) for v in (update.variable, *update.slots)]
            x, slots = call(update.gradient, x, slots, scalars, update.mask)
            commit(engine, update.writes([x, *slots]))
        return
    if key not in engine._fast and not is_plain() and (engine.scope == "element" or engine.flat):
        rule, changing = engine.rule_to_share()
        sharing_key = binding.sharing_key(engine, rule, changing)
        call = binding.bind_rule(rule, group[0].kind, group[0].names, norm, changing)
    variables = [v for update in group for v in (update.variable, *update.slots)]
    each = len(variables) // len(group)

    def run(values: list[Any], inputs: tuple[list[tuple], dict]) -> tuple[None, list[tuple]]:
        writes = []
        for number, (g, mask, norms) in enumerate(inputs[0]):
            start = number * each
            x, *slots = values[start : start + each]
            known = {id(v): n for v, n in zip((g, x), norms, strict=False)}
            y, changed = call(g, x, slots, inputs[1], mask, _norm_or(known))
            new = [(start + n, None, v) for n, v in enumerate([y, *changed]) if v is not None]
            writes += new
        return None, writes

    given = []
    for update in group:
        # Outside of XLA, which sums in order and on one core.
        norms = [norm(update.gradient), norm(read(update.variable))] if engine.flat else []
        given.append((update.gradient, update.mask, norms))
    run_in_place(engine, key, run, variables, (given, scalars), sharing_key)


def _norm_or(known: dict[int, Any]) -> Callable[[Any], Any]:
    return lambda x: known[id(x)] if id(x) in known else norm(x)


def gradients(
    loss: Callable[[], Any], variables: Sequence[Any], eagerly: bool = False
) -> list[Any]:
    """Gradients of a loss without arguments."""
    values = [_native(variable) for variable in variables]

    def run() -> list[Any]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for value in values:
                tape.watch(value)
            result = loss()
        return tape.gradient(result, values)

    # A loop that is run eagerly hands over rows, one that is traced does not.
    return run() if eagerly else tf.function(run, autograph=False)()


def place() -> Any:
    """Equal for code that is traced together; the body of a loop has a place of its own."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def compilation(engine: Any) -> str:
    compiled = [
        f for f in getattr(engine, "_fast", {}).values() if hasattr(f, "get_concrete_function")
    ]
    if not compiled:
        return "run by tf.function of the training step"
    return "whole variables compiled by XLA, rows by tf.function of the training step"


def _run_rows(engine: Engine, update: Update, scalars: dict[str, Any]) -> list[tuple]:
    """The writes of a step on some rows."""
    variables = [update.variable, *update.slots]
    cut = update.cut
    if update.kind.mode == "rows":
        indices, g = update.gradient.indices, update.gradient.values
    else:
        touched = _nonzero(update.gradient)
        if update.mask is not None:
            touched |= update.mask
        indices = tf.where(touched)[:, 0]
        g = tf.gather(update.gradient, indices)
    old = [
        take(v, indices) if by_row else read(v) for v, by_row in zip(variables, cut, strict=True)
    ]
    x, slots = engine.rule_call(update)(g, old[0], old[1:], scalars)
    new = [x, *slots]
    if update.kind.mode == "rows" and not update.kind.named:
        # Masked ids put rows of zeros into the gradient; on other backends these are untouched.
        touched = _nonzero(g)
        new = [
            tf.where(_column(touched, a), a, b) if a is not None and by_row else a
            for a, b, by_row in zip(new, old, cut, strict=True)
        ]
    return update.writes(new, [indices if by_row else None for by_row in cut])


def _assign(variable: Any, indices: Any, value: Any) -> None:
    value = tf.cast(value, variable.dtype)
    if indices is None:
        variable.assign(value)
    else:
        variable.scatter_update(tf.IndexedSlices(value, indices))


def _in_xla() -> bool:
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def _native(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable


def _nonzero(values: Any) -> Any:
    return tf.reduce_any(values != 0, axis=list(range(1, len(values.shape))))


def _column(mask: Any, values: Any) -> Any:
    return tf.reshape(mask, [-1, *[1] * (len(values.shape) - 1)])
