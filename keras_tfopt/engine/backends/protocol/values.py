"""Functions of a backend for values: variables, rows, numbers, and where they lie."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import keras

if TYPE_CHECKING:
    from keras_tfopt.engine.rows import RowGradient
    from keras_tfopt.engine.state import Like


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
        `own(array)`, what a variable of this process has of it; and `initializer(whole)`,
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

    def lesser(self, a: Any, b: Any) -> Any:
        """Return the lesser of two float32 tensors each; one of both where there is NaN."""

    def relu(self, x: Any) -> Any:
        """Return float32 numbers, 0 for those below 0; any of both for NaN."""

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

    def add_scaled(self, start: Any, change: Any, factor: Any, reuse: bool = False) -> Any:
        """Return `start + factor * change`, of tensors of one shape and a scalar tensor.

        With `reuse`, the memory of `change` may be written: nobody reads it afterwards.
        """

    def add_product(self, base: Any, beta: float, left: Any, right: Any, alpha: float) -> Any:
        """Return `beta * base + alpha * left @ right`, of matrices or of `n` of them."""

    def has_accelerator(self) -> bool:
        """Return whether there is a GPU or TPU, on which variables are."""

    def eigh(self, matrix: Any) -> tuple[Any, Any]:
        """Return ascending eigenvalues and eigenvectors of symmetric matrices `(..., n, n)`."""

    def singular_values(self, matrix: Any) -> Any:
        """Return descending singular values `(..., k)` of matrices `(..., m, n)`; k the lesser."""

    def eigh_is_slow(self) -> bool:
        """Return whether to decompose a matrix takes much longer than some dozens of products."""
