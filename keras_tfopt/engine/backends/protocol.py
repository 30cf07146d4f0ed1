"""The functions that a backend provides: what they take, what they return, what they promise.

The packages `jax`, `tensorflow` and `torch` are such backends; each function is a function of the
package, so there is no `self` there. Only here are they described. `defaults.py` has those that
several backends share.

"Eagerly" means: where values are known. In compiled code, which JAX and `tf.function` trace, only
shapes and dtypes are known. A step of PyTorch is always taken eagerly; it calls compiled functions.

Arguments that appear in many functions:
    engine: The optimizer that takes the step. Functions read what its rule is (`scope`, `flat`,
        `fused`, `rule_to_share`), its cache of compiled functions (`_fast`), its variables
        (`variables`, `_trainable_variables`) and its `_distribution_strategy`.
    variable: A `keras.Variable`; on TensorFlow, it may also be a `tf.Variable`.
    writes: A list of `(variable, indices, value)`. Indices are None, and the value is that of the
        whole variable; or a tensor of shape `(k,)` of distinct rows, and the value has shape
        `(k, *shape[1:])`; or a scalar tensor, and the value is that of one row.
    scalars: What `Rule.scalars` returned for this step, by dtype and number of hyperparameters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import keras

if TYPE_CHECKING:
    from keras_tfopt.engine.all_variables import ModelStep
    from keras_tfopt.engine.hyperparameters import Rates
    from keras_tfopt.engine.moving import Update
    from keras_tfopt.engine.rows import RowGradient
    from keras_tfopt.engine.state import Like


class CompiledSteps(Protocol):
    """The steps that one optimizer takes by `minimize(..., compiled=True)`.

    JAX compiles one for each loss function, as long as that lives, for each set of other arguments,
    and for each set of shapes. What a step reads is an argument of the compiled function if it is
    among the inputs or in a variable. All else is as it was when the step was compiled. On other
    backends, steps run as they are.
    """

    def run(
        self,
        step: Callable[..., Any],
        loss: Callable[..., Any],
        arguments: tuple,
        static: Sequence[Any],
        check: Callable[[], None],
    ) -> Any:
        """Return `step(*arguments)`.

        Args:
            step: Function that takes a training step; it may read and assign variables.
            loss: Function whose gradients the step takes, of the arguments `arguments[0]`.
            arguments: Arrays and numbers, in tuples, lists and dictionaries, or None.
            static: Other values that the step depends on. Objects count as equal if they are the
                same.
            check: Raises an error if the optimizer cannot be compiled.
        """


class Variables(Protocol):
    """What is done with variables."""

    def is_variable(self, value: Any) -> bool:
        """Return whether a value is a variable of Keras or of the backend."""

    def read(self, variable: Any) -> Any:
        """Return the value of a variable as a tensor of its shape and dtype."""

    def number(self, variable: Any) -> float:
        """Return the value of a scalar variable as a Python number, also while a step is traced."""

    def copy_of(self, variable: Any, dtype: str) -> Any:
        """Return the value of a variable in memory of its own, cast to `dtype`.

        Raises:
            RuntimeError: on TensorFlow, if XLA compiles the step that creates the variable.
        """

    def take(self, variable: Any, indices: Any) -> Any:
        """Return the rows `indices`, of shape `(k,)`, of a variable: `(k, *shape[1:])`.

        The whole variable is not copied. On JAX, a row out of range is zero.
        """

    def commit(self, writes: list[tuple[Any, Any, Any]]) -> None:
        """Assign values to variables or to rows of them, in order, on all replicas.

        Values are cast to the dtype of the variable. Rows out of range are left out in code that
        XLA compiles; elsewhere there must be none.
        """

    def accumulate(self, accumulator: Any, gradient: Any) -> None:
        """Add a gradient, a tensor or a `RowGradient` of distinct rows, to a variable."""

    def add_variable(self, engine: Any, variable: Any, **options: Any) -> keras.Variable:
        """Return a new variable of an optimizer, on the devices of `variable`.

        On JAX, its layout is the variable's own if the shape is, and a copy on every device
        otherwise.

        Args:
            engine: The optimizer.
            variable: The variable that it belongs to; None if it belongs to all.
            **options: Arguments of `add_variable` of the optimizer; `shape` is among them.
        """


class Sharding(Protocol):
    """State in shards over devices, where an optimizer has `shard_state`."""

    def sharding_problem(self) -> str | None:
        """Return why there can be no shards here, and what to do; None if there can."""

    def keep_layouts(self, owner: Any, variables: Sequence[Any]) -> None:
        """Bring variables and the state of their optimizer into their layouts, after a step."""

    def part_of(self, variable: Any) -> tuple[str, float]:
        """Return along which axes a variable is split, and which part a device has of it."""


class Tables(Protocol):
    """Tables of embeddings that are divided by rows over devices or workers."""

    def row_shards(self, rows: int, exchange: Any) -> Any:
        """Return how a table of so many rows is divided here; None if one worker has all of it.

        The result has `rows`; `here`, the rows of variables in this process; `layout(shape)`, of a
        table or of state with something for each row; `read(variable)`, the whole as an array;
        `own(array)`, what a variable of this process has of it; and `initializer(whole, columns)`,
        which makes that.

        Args:
            rows: The rows of the whole table.
            exchange: The connection of the workers.

        Raises:
            ValueError: if a table cannot be divided here. The message says why, and what to do.
        """


class Replicas(Protocol):
    """Replicas of `tf.distribute`; elsewhere there is one."""

    has_replicas: bool
    """Whether there may be several."""

    def replicas(self) -> int:
        """Return how many replicas run this code side by side."""

    def reduce_replicas(self, grads: list[Any]) -> list[Any]:
        """Return gradients summed over the replicas. Rows are no longer distinct then."""

    def once(self, function: Callable[[], None]) -> None:
        """Call a function that creates variables, for all replicas together."""

    def build_scope(
        self, engine: Any, variables: Sequence[Any]
    ) -> contextlib.AbstractContextManager:
        """Return a context in which state for these variables is created.

        On TensorFlow it is outside of a `tf.function` that is being traced.

        Raises:
            ValueError: if the optimizer was created under another `tf.distribute.Strategy`.
        """


class Rows(Protocol):
    """Gradients of rows."""

    def from_native(self, gradient: Any, shape: tuple[int, ...]) -> RowGradient | None:
        """Return the rows of a gradient that the backend has in a form of its own, or None.

        These are `tf.IndexedSlices`, sparse COO tensors of torch, and gradients of `look_up`.
        Rows may repeat, and they are not `named`.

        Args:
            gradient: Anything; None is returned for a dense tensor.
            shape: Shape of the variable, for gradients that do not know it.
        """

    def scale_native(self, gradient: Any, scale: Any) -> Any:
        """Return a gradient that `from_native` takes times a scalar tensor, still as rows."""

    def in_form_for(self, optimizer: Any, gradient: Any, variable: Any) -> Any:
        """Return a gradient in a form that an optimizer of Keras or of others takes.

        A `RowGradient` becomes `tf.IndexedSlices` if the optimizer can be traced with them, and a
        dense tensor otherwise.
        """

    def is_dense(self, value: Any) -> bool:
        """Return whether a value is an ordinary tensor, neither sparse nor ragged."""

    def is_ready(self, gradient: Any, variable: Any, like: Like) -> bool:
        """Return whether a gradient is known to need no check and no conversion.

        It has then the shape and dtype of `like`, and is on the device of the variable.
        """

    def sum_repeated(
        self, indices: Any, values: Any, shape: tuple[int, ...], refused: Any
    ) -> tuple[Any, Any]:
        """Return distinct rows and for each the sum of its values.

        On JAX and in XLA, where shapes are static, the result is as long as `indices`: it is padded
        with distinct indices from `shape[0]` on, and zeros.

        Args:
            indices: Integers of shape `(k,)`. Compiled code leaves out those out of range.
            values: Tensor of shape `(k, *shape[1:])`.
            shape: Shape of the variable.
            refused: Integer variable to which compiled code adds the number of indices out of
                range; None if there can be none.
        """

    def row_mask(self, gradient: Any) -> Any:
        """Return which rows a gradient touches, as booleans of shape `(rows, 1, ...)`.

        Of a `RowGradient`, these are the rows in it, without those of zeros if it is not `named`.
        Of a dense tensor, these are the rows that hold anything but zeros.
        """

    def rows_at(self, values: Any, mask: Any) -> tuple[Any, Any]:
        """Return the rows of `values` at which a mask of `row_mask` is true, and their indices.

        On JAX and in XLA, all rows are returned; the others are zero, with indices out of range.
        """

    def to_dense(self, rows: RowGradient) -> Any:
        """Return a row gradient as a tensor of the variable's shape; repeated rows are summed."""


class Numbers(Protocol):
    """Computations that differ between backends."""

    def norm(self, x: Any) -> Any:
        """Return the Euclidean norm of all of `x`, a scalar."""

    def bits_of(self, x: Any) -> Any:
        """Return the bits of float32 numbers as int32."""

    def from_bits(self, bits: Any) -> Any:
        """Return the float32 numbers with these bits."""

    def limits(self, tensor: Any) -> tuple[int, int] | None:
        """Return the least and the largest of some integers; None if empty or not known yet."""

    def is_finite(self, tensor: Any) -> bool | None:
        """Return whether all numbers are finite; None if that is not known yet."""

    def conditional(self, condition: Any, true: Callable[[], Any], false: Callable[[], Any]) -> Any:
        """Return the result of one of two functions of no arguments; the other does not run."""

    def combine_rows(self, weights: Any, rows: Any) -> Any:
        """Return the sum of the k rows of a matrix `(k, n)`, each times its weight, of `(k,)`."""

    def row_products(self, rows: Any, vector: Any) -> Any:
        """Return the scalar product of each row of a matrix `(k, n)` with a vector: `(k,)`."""

    def random_state(self) -> Any:
        """Return the state of the generator that layers draw from; None if it is in variables."""

    def set_random_state(self, state: Any) -> None:
        """Draw again what was drawn after `random_state` returned this."""

    def lerp(self, start: Any, end: Any, weight: Any) -> Any:
        """Return `start + weight * (end - start)`, of tensors and a number."""

    def add_product(self, base: Any, beta: float, left: Any, right: Any, alpha: float) -> Any:
        """Return `beta * base + alpha * left @ right`, of matrices `(n, ..., ...)`."""

    def eigh(self, matrix: Any) -> tuple[Any, Any]:
        """Return ascending eigenvalues and eigenvectors of symmetric matrices `(..., n, n)`."""

    def eigh_is_slow(self) -> bool:
        """Return whether to decompose a matrix takes much longer than some dozens of products."""


class Updates(Protocol):
    """Steps of a rule."""

    def execute(
        self, engine: Any, updates: list[Update], scalars: dict[tuple[str, int], Rates]
    ) -> None:
        """Run the rule for each update, and assign new variables and slots.

        No variable is in two updates. Rows out of range are padding, and change nothing.
        """

    def run_in_pieces(
        self, engine: Any, step: ModelStep, grads: list[Any], scalars: dict[str, Any]
    ) -> bool:
        """Run a step of scope "model" piece by piece in the cache; return False if not done.

        Args:
            engine: The optimizer.
            step: The rule, the variables and the slots.
            grads: A dense tensor for each variable, or None.
            scalars: Those of the one dtype in which the rule computes.
        """

    def run_in_place(
        self,
        engine: Any,
        key: Any,
        function: Callable,
        variables: Sequence[Any],
        inputs: Any,
    ) -> Any:
        """Call `function(values, inputs)`, commit the writes that it returns, return its result.

        TensorFlow compiles it with XLA, once for each key and shapes, so that variables are
        updated where they are. On JAX, variables that are written in part stay in place.

        Args:
            engine: The optimizer, which keeps what is compiled.
            key: Hashable; equal for functions that are equal except for values and inputs.
            function: Pure function that returns a result and a list of writes, with positions in
                `variables` for variables.
            variables: Those that it reads and writes.
            inputs: Tensors, in lists, tuples and dictionaries.
        """

    def run_if(self, engine: Any, condition: Any, step: Callable[[], None]) -> None:
        """Call a function that assigns variables of the optimizer, where a scalar is true.

        Compiled code runs it in a condition that copies no variable, and on TensorFlow outside of
        the replicas.
        """


class Tracing(Protocol):
    """What compilers see, and what they do not."""

    def outside_compiler(self, function: Callable) -> Callable:
        """Return a function whose code AutoGraph and Dynamo leave as it is."""

    def without_gradients(self, function: Callable) -> Callable:
        """Return a function whose operations are not recorded for a backward pass."""

    def concretely(self) -> contextlib.AbstractContextManager:
        """Return a context in which operations on known values give values, also in a trace."""

    def with_averages(self, function: Any, *args: Any) -> Any:
        """Return what an `AveragedFunction` returns for a batch, with averages for weights."""

    def run_on_shapes(self, function: Callable, given: Sequence[tuple[tuple, str]]) -> None:
        """Call a function with tensors without values; `given` has their shapes and dtypes."""

    def asks_for_value(self, error: Exception) -> bool:
        """Return whether an error says that the value of such a tensor was asked for."""


class LossGradients(Protocol):
    """Gradients of a loss, and steps that compute them."""

    def look_up(self, table: Any, ids: Any) -> Any:
        """Return `table[ids]`, with a gradient for which `from_native` has rows.

        Args:
            table: Variable of shape `(rows, ...)`.
            ids: Integers of any shape, from -rows to rows - 1.
        """

    def loss_and_gradients(
        self,
        loss: Callable[[], Any],
        variables: Sequence[Any] | None,
        seed: Callable[[Any], Any] | None,
        likely: Sequence[Any],
        by_rows: bool = False,
    ) -> tuple[Any, list[Any], list[Any]]:
        """Return what a loss returns, its gradients, None where it does not depend, and variables.

        Args:
            loss: Function of no arguments. What it assigns is assigned.
            variables: Those to differentiate by; None for all trainable ones that the loss reads.
            seed: From the loss, the gradient to start with; None for ones.
            likely: Variables that the loss probably reads, if `variables` is None.
            by_rows: Whether tables in which the loss only looks rows up get row gradients.
        """

    def value_and_gradients(
        self,
        function: Callable[[list[Any]], Any],
        values: list[Any],
        differentiable: bool = False,
    ) -> tuple[Any, list[Any]]:
        """Return the scalar that a pure function of tensors returns, and its gradients.

        Code that is being compiled may call it. A gradient is zeros where nothing depends.

        Args:
            function: Function of a list of tensors, which assigns nothing.
            values: The tensors.
            differentiable: Whether value and gradients will be differentiated again. On PyTorch,
                the tensors must then require gradients.
        """

    def compiled(self, function: Callable) -> Callable:
        """Return a pure function, compiled once for each set of shapes; the same on PyTorch."""

    def check_traceable(self, verb: str, assigns: bool = True) -> None:
        """Raise a RuntimeError if a verb is called where it cannot work.

        Args:
            verb: Its name, for the message.
            assigns: Whether it assigns variables.
        """

    def Steps(self) -> CompiledSteps:
        """Return an object that runs the steps of one optimizer, compiled on JAX."""


class Diagnosis(Protocol):
    """What `keras_tfopt.diagnose` asks."""

    def gradients(
        self, loss: Callable[[], Any], variables: Sequence[Any], eagerly: bool = False
    ) -> list[Any]:
        """Return gradients as `fit` makes them, of a loss without arguments.

        Args:
            loss: Function of no arguments. On JAX, what it assigns is dropped.
            variables: Those to differentiate by.
            eagerly: Whether TensorFlow runs it eagerly.
        """

    def place(self) -> Any:
        """Return a value that is equal in code that is traced together.

        The body of a loop has a value of its own.
        """

    def compilation(self, engine: Any) -> str:
        """Return in words how steps of an optimizer are compiled."""


class Backend(
    Variables,
    Sharding,
    Tables,
    Replicas,
    Rows,
    Numbers,
    Updates,
    Tracing,
    LossGradients,
    Diagnosis,
    Protocol,
):
    """A backend; see the description of this module."""
