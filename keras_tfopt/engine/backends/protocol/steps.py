"""Functions of a backend for steps: updates, gradients of a loss, tracing and compiling."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from keras_tfopt.engine.all_variables import ModelStep
    from keras_tfopt.engine.hyperparameters import Rates
    from keras_tfopt.engine.moving import Update


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
