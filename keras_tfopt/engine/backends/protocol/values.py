"""Functions of a backend for variables and their devices, for row gradients and for numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import keras

if TYPE_CHECKING:
    from keras_tfopt.engine.rows import RowGradient
    from keras_tfopt.engine.state.state import Like


class Variables(Protocol):
    """Create, read and write variables."""

    def is_variable(self, value: Any) -> bool:
        """Return whether a value is a variable of Keras or of the backend."""

    def read(self, variable: Any) -> Any:
        """Return the value of a variable as a tensor of its shape and dtype."""

    def number(self, variable: Any) -> float:
        """Return the value of a scalar variable as a Python number.

        On TensorFlow, this also works while a step is traced.
        """

    def lifted(self) -> contextlib.AbstractContextManager:
        """Return a context in which variables have values, even while a step is traced."""

    def copy_of(self, variable: Any, dtype: str) -> Any:
        """Return the value of a variable in memory of its own, cast to `dtype`.

        Raises:
            RuntimeError: on TensorFlow, if XLA compiles the step that creates the variable.
        """

    def take(self, variable: Any, indices: Any) -> Any:
        """Return rows of a variable without a copy of all: `(k, *shape[1:])` for `(k,)` indices.

        On JAX, a row out of range is zero.
        """

    def commit(self, writes: list[tuple[Any, Any, Any]]) -> None:
        """Assign values to variables or to rows of them, in order, on all replicas.

        Values are cast to the dtype of the variable. JAX and XLA ignore rows out of range;
        elsewhere there must be none.
        """

    def accumulate(self, sums: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Add gradients, tensors or `RowGradient`s of distinct rows, to variables.

        Tensors may be in half precision.
        """

    def clear(self, variables: Sequence[Any]) -> None:
        """Assign zero to variables."""

    def move_toward(self, variable: Any, value: Any, weight: Any) -> None:
        """Assign `(1 - weight) * variable + weight * value`, for a scalar of the variable's dtype.

        If the weight is 1, the variable becomes the value.
        """

    def add_variable(self, engine: Any, variable: Any, **options: Any) -> keras.Variable:
        """Return a new variable of an optimizer, on the devices of `variable`.

        On JAX, it has the layout of `variable` if the shapes are equal. Otherwise each device has a
        copy. Options of the optimizer and of tables may divide it further.

        Args:
            engine: The optimizer.
            variable: The variable of the model that it belongs to; None if it belongs to all.
            **options: Arguments of `add_variable` of the optimizer, with `shape` and `initializer`.
        """


class Sharding(Protocol):
    """State that is divided over devices, and layouts of variables."""

    def sharding_problem(self) -> str | None:
        """Return why state cannot be divided here, and what to do; None if it can."""

    def keep_layouts(self, owner: Any, variables: Sequence[Any]) -> None:
        """Put variables and the state of their optimizer back into their layouts after a step.

        Only optimizers with `shard_state` need this.
        """

    def part_of(self, variable: Any) -> tuple[str, float]:
        """Return in words how a variable is divided, and the fraction of it on one device."""


class Tables(Protocol):
    """Tables of embeddings that are divided by rows over devices or workers."""

    def row_shards(self, rows: int, exchange: Any) -> Any:
        """Return how a table is divided by rows; None if one worker has all of it.

        The result has these attributes and methods:
            rows: The number of rows of the whole table.
            here: The number of rows of its variable in this process.
            layout(shape): The layout of the table, or of state with an entry for each row.
            read(variable): The whole table or state as an array.
            own(array): The part of a whole array that belongs into a variable of this process.
            initializer(initializer): The initializer of this part, from that of the whole table.

        Args:
            rows: The number of rows of the whole table.
            exchange: The connection of the workers.

        Raises:
            ValueError: if a table cannot be divided here. The message says why, and what to do.
        """


class Replicas(Protocol):
    """Replicas of `tf.distribute`; on other backends there is one."""

    has_replicas: bool
    """Whether there may be several."""

    def replicas(self) -> int:
        """Return how many replicas run this code at the same time."""

    def reduce_replicas(self, grads: list[Any]) -> list[Any]:
        """Return gradients summed over the replicas; row gradients may then repeat rows."""

    def once(self, function: Callable[[], None]) -> None:
        """Call a function that creates variables once for all replicas."""

    def build_scope(
        self, engine: Any, variables: Sequence[Any]
    ) -> contextlib.AbstractContextManager:
        """Return a context in which state for these variables is created.

        On TensorFlow, that is outside the `tf.function` that is traced now, if any.

        Raises:
            ValueError: if the optimizer was created under another `tf.distribute.Strategy`.
        """


class Rows(Protocol):
    """Row gradients, and the forms that backends have for them."""

    def from_native(self, gradient: Any, shape: tuple[int, ...]) -> RowGradient | None:
        """Return the rows of a gradient in a form of the backend; None for other gradients.

        Such forms are `tf.IndexedSlices`, sparse COO tensors of torch, and gradients of `look_up`.
        The rows may repeat, and are not `named`.

        Args:
            gradient: Any gradient.
            shape: Shape of the variable, for gradients that do not have it.
        """

    def scale_native(self, gradient: Any, scale: Any) -> Any:
        """Return a gradient that `from_native` converts, times a scalar tensor, as rows."""

    def in_form_for(self, optimizer: Any, gradient: Any, variable: Any) -> Any:
        """Return a gradient in a form that an optimizer which is not ours accepts.

        A `RowGradient` becomes `tf.IndexedSlices` if the optimizer can be traced with them, and a
        dense tensor otherwise.
        """

    def is_dense(self, value: Any) -> bool:
        """Return whether a value is an ordinary tensor, neither sparse nor ragged."""

    def is_ready(self, gradient: Any, variable: Any, like: Like, casts: bool) -> bool:
        """Return whether a gradient is known to need no check and no conversion.

        It then has the shape and dtype of `like`, and is on the device of the variable. With
        `casts`, it may have the dtype of the variable, and compiled code casts it.
        """

    def sum_repeated(
        self, indices: Any, values: Any, shape: tuple[int, ...], refused: Any
    ) -> tuple[Any, Any]:
        """Return distinct rows, and the sum of the values of each.

        JAX and XLA have static shapes, so there the result is as long as `indices`. It is padded
        with distinct indices from `shape[0]` on, and zeros as values.

        Args:
            indices: Integers of shape `(k,)`. Traced code ignores those out of range.
            values: Tensor of shape `(k, *shape[1:])`.
            shape: Shape of the variable.
            refused: Integer variable to which traced code adds the number of indices out of range;
                None if there can be none.
        """

    def row_mask(self, gradient: Any) -> Any:
        """Return which rows a gradient touches, as booleans of shape `(rows, 1, ...)`.

        A `RowGradient` touches its rows, except for rows of zeros if it is not `named`. A dense
        tensor touches the rows that are not all zeros.
        """

    def rows_at(self, values: Any, mask: Any) -> tuple[Any, Any]:
        """Return the rows of `values` where a mask of `row_mask` is true, and their indices.

        JAX and XLA return all rows. The others are zeros, with indices out of range.
        """

    def to_dense(self, rows: RowGradient) -> Any:
        """Return a row gradient as a tensor of the variable's shape, and sum repeated rows."""


class Lists(Protocol):
    """Compute with the numbers of many tensors at once."""

    def squared_norms(self, tensors: Sequence[Any]) -> Any:
        """Return a vector with the squared Euclidean norm of each tensor, in the widest dtype."""

    def scale_all(self, tensors: Sequence[Any], factors: Sequence[Any]) -> list[Any]:
        """Return each tensor times a scalar tensor."""

    def divide_all(self, tensors: Sequence[Any], number: int) -> list[Any]:
        """Return each tensor divided by a number."""

    def limit_all(self, tensors: Sequence[Any], most: float) -> list[Any]:
        """Return the tensors with numbers limited to `-most` and `most`."""

    def all_finite(self, tensors: Sequence[Any]) -> Any:
        """Return whether all numbers of all tensors are finite, as a scalar tensor."""


class Numbers(Protocol):
    """Computations that differ between backends."""

    def norm(self, x: Any) -> Any:
        """Return the Euclidean norm of all of `x`, a scalar."""

    def bits_of(self, x: Any) -> Any:
        """Return the bits of float32 numbers as int32."""

    def from_bits(self, bits: Any) -> Any:
        """Return the float32 numbers with these bits."""

    def lesser(self, a: Any, b: Any) -> Any:
        """Return the elementwise minimum of float32 tensors; where one has NaN, either of both."""

    def relu(self, x: Any) -> Any:
        """Return `max(x, 0)` of float32 numbers; for NaN, either of both."""

    def as_bytes(self, x: Any) -> Any:
        """Return whole numbers from 0 to 255, which are int32, as uint8."""

    def least_of_lines(self, x: Any, lines: Sequence[tuple[float, float]]) -> Any:
        """Return the least of some lines `slope * x + start`, for float32 numbers.

        Args:
            x: The numbers.
            lines: Slopes and starts. Each line is the least somewhere. Slopes rise.
        """

    def greatest_of_lines(self, x: Any, lines: Sequence[tuple[float, float]]) -> Any:
        """Return the greatest of some lines; otherwise as `least_of_lines`."""

    def limits(self, tensor: Any) -> tuple[int, int] | None:
        """Return the least and largest of some integers; None for none of them, or in a trace."""

    def is_finite(self, tensor: Any) -> bool | None:
        """Return whether all numbers are finite; None in a trace."""

    def conditional(self, condition: Any, true: Callable[[], Any], false: Callable[[], Any]) -> Any:
        """Return the result of one of two functions of no arguments; the other does not run."""

    def while_loop(
        self, condition: Callable[..., Any], body: Callable[..., tuple], state: tuple
    ) -> tuple:
        """Return the state after `state = body(*state)`, while `condition(*state)` holds."""

    def combine_rows(self, weights: Any, rows: Any) -> Any:
        """Return `weights @ rows`, for `(k,)` weights and a matrix `(k, n)`."""

    def row_products(self, rows: Any, vector: Any) -> Any:
        """Return `rows @ vector`, for a matrix `(k, n)` and a vector `(n,)`."""

    def random_state(self) -> Any:
        """Return the state of the generator that layers draw from; None if it is in variables."""

    def set_random_state(self, state: Any) -> None:
        """Set this generator to a state that `random_state` returned."""

    def lerp(self, start: Any, end: Any, weight: Any) -> Any:
        """Return `start + weight * (end - start)`, for tensors and a number."""

    def add_scaled(self, start: Any, change: Any, factor: Any, reuse: bool = False) -> Any:
        """Return `start + factor * change`, for tensors of one shape and a scalar tensor.

        With `reuse`, the memory of `change` may be overwritten.
        """

    def add_product(self, base: Any, beta: float, left: Any, right: Any, alpha: float) -> Any:
        """Return `beta * base + alpha * left @ right`, for matrices or batches of matrices."""

    def has_accelerator(self) -> bool:
        """Return whether there is a GPU or TPU, which then holds the variables."""

    def eigh(self, matrix: Any) -> tuple[Any, Any]:
        """Return ascending eigenvalues and eigenvectors of symmetric matrices `(..., n, n)`."""

    def singular_values(self, matrix: Any) -> Any:
        """Return descending singular values `(..., min(m, n))` of matrices `(..., m, n)`."""

    def eigh_is_slow(self) -> bool:
        """Return whether `eigh` takes much longer than dozens of products of its matrix."""
