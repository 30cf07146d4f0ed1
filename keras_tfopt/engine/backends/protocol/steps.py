"""Functions of a backend for steps: updates, gradients of a loss, tracing and compiling."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from keras_tfopt.engine.arguments.hyperparameters import Rates
    from keras_tfopt.engine.step.all_variables import ModelStep
    from keras_tfopt.engine.step.moving import Update


class CompiledSteps(Protocol):
    """Run the steps of one optimizer for `minimize(..., compiled=True)`.

    JAX compiles a step for each loss function, each set of other arguments and each set of shapes,
    and keeps it while the loss function exists. Inputs and values of variables are arguments of the
    compiled step. All else that it reads stays as it was when it was compiled. Other backends call
    the step as it is.
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
            step: Function that makes a training step; it may read and assign variables.
            loss: Function whose gradients the step computes; its arguments are `arguments[0]`.
            arguments: Arrays and numbers, in tuples, lists and dictionaries, or None.
            static: Other values that the step depends on. Objects are compared by identity.
            check: Function that raises an error if the optimizer cannot be compiled.
        """


class Updates(Protocol):
    """Steps of a rule."""

    def execute(
        self, engine: Any, updates: list[Update], scalars: dict[tuple[str, int], Rates]
    ) -> None:
        """Run the rule for each update, and assign new variables and slots.

        No variable is in two updates. Rows out of range are padding, and change nothing.
        """

    def compute_scalars(
        self, engine: Any, attributes: Mapping[str, Any], function: Callable, given: tuple
    ) -> dict[str, Any]:
        """Return `function(rule, *given)`, the scalars of a step by name.

        PyTorch compiles it for GPUs, where each operation on a number would be a launch.

        Args:
            engine: The optimizer.
            attributes: Those of the rule that differ from those of the optimizer.
            function: Pure function.
            given: Tensors, and other arguments that are the same in all steps.
        """

    def run_in_pieces(
        self, engine: Any, step: ModelStep, grads: list[Any], scalars: dict[str, Any]
    ) -> bool:
        """Run a step of scope "model" in pieces that fit into the cache; return False if it cannot.

        Args:
            engine: The optimizer.
            step: The rule, the variables and the slots.
            grads: A dense tensor for each variable, or None.
            scalars: The scalars of the step by name, in the dtype of the arithmetic.
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

        TensorFlow compiles it with XLA, once for each key and set of shapes, which updates
        variables in place. JAX updates in place those of which only rows are written.

        Args:
            engine: The optimizer, which keeps the compiled function.
            key: Hashable; equal for functions that differ only in values and inputs.
            function: Pure function that returns a result and a list of writes, in which positions
                in `variables` stand for variables.
            variables: The variables that it reads and writes.
            inputs: Tensors, in lists, tuples and dictionaries.
        """

    def map_alike(
        self,
        engine: Any,
        name: str,
        of: Callable[[Any], Callable[..., list[Any]]],
        keys: Sequence[Any],
        each: Sequence[tuple],
    ) -> list[list[Any]]:
        """Return `of(key)(*tensors)` for all keys and tensors.

        PyTorch calls a function once for many small tensors of equal shapes.

        Args:
            engine: The optimizer.
            name: What the functions do, for an engine that they belong to.
            of: Function from a key to a pure function of tensors, which returns a list of tensors.
                Any of the tensors may be None.
            keys: Hashable; functions of equal keys are equal.
            each: For each key, the tensors.
        """

    def run_if(self, engine: Any, condition: Any, step: Callable[[], None]) -> None:
        """Call a function that assigns variables of the optimizer if a scalar is true.

        Traced code copies no variable for this. On TensorFlow, the condition is outside the
        replicas.
        """


class Tracing(Protocol):
    """Decide what compilers trace, and call functions in a trace."""

    def outside_compiler(self, function: Callable) -> Callable:
        """Return a function that AutoGraph and Dynamo do not convert."""

    def as_step(self, function: Callable) -> Callable:
        """Return a function whose operations are those of steps.

        They are not recorded for a backward pass. Products of matrices are as exact as their data
        type, also where the backend rounds their factors by default: JAX does on GPUs and TPUs,
        unless the user has chosen a precision.
        """

    def concretely(self) -> contextlib.AbstractContextManager:
        """Return a context in which operations on known values are computed even in a trace."""

    def with_averages(self, function: Any, *args: Any) -> Any:
        """Call an `AveragedFunction` for a batch, with averages instead of weights."""

    def run_on_shapes(self, function: Callable, given: Sequence[tuple[tuple, str]]) -> bool:
        """Call a function with tensors without values; return whether it has written to them.

        Only PyTorch has tensors that can be written to. `given` has shapes and dtypes.
        """

    def asks_for_value(self, error: Exception) -> bool:
        """Return whether an error says that code needs the value of such a tensor."""


class LossGradients(Protocol):
    """Gradients of losses, and steps that compute them."""

    def look_up(self, table: Any, ids: Any) -> Any:
        """Return `table[ids]`, with a gradient that `from_native` converts to rows.

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
        """Return a loss, its gradients, and their variables.

        The gradient of a variable on which the loss does not depend is None.

        Args:
            loss: Function of no arguments. The variables that it assigns are assigned.
            variables: Variables to differentiate by; None takes all trainable ones that the loss
                reads.
            seed: Function that returns the gradient to start with, from the loss; None takes ones.
            likely: Variables that the loss probably reads, if `variables` is None.
            by_rows: Whether a table gets a row gradient if the loss only looks rows up in it.
        """

    def value_and_gradients(
        self,
        function: Callable[[list[Any]], Any],
        values: list[Any],
        differentiable: bool = False,
    ) -> tuple[Any, list[Any]]:
        """Return the scalar that a pure function of tensors returns, and its gradients.

        It may be called in compiled code. Gradients are zeros for tensors without influence.

        Args:
            function: Function of a list of tensors, which assigns nothing.
            values: The tensors.
            differentiable: Whether the value and the gradients will be differentiated again. On
                PyTorch, the tensors must then require gradients.
        """

    def compiled(self, function: Callable) -> Callable:
        """Return a pure function, compiled for each set of shapes; on PyTorch, uncompiled."""

    def check_traceable(self, verb: str, assigns: bool = True) -> None:
        """Raise a RuntimeError if a verb is called in a trace where it cannot work.

        Args:
            verb: The name of the verb, for the message.
            assigns: Whether the verb assigns variables.
        """

    def Steps(self) -> CompiledSteps:
        """Return an object that runs the steps of one optimizer, compiled on JAX."""


class Diagnosis(Protocol):
    """Functions for `keras_tfopt.diagnose`."""

    def gradients(
        self, loss: Callable[[], Any], variables: Sequence[Any], eagerly: bool = False
    ) -> list[Any]:
        """Return the gradients of a loss in the form in which `fit` computes them.

        Args:
            loss: Function of no arguments. On JAX, assignments in it have no effect.
            variables: Variables to differentiate by.
            eagerly: Whether TensorFlow runs the loss eagerly.
        """

    def place(self) -> Any:
        """Return a value that is equal within one trace; the body of a loop is a trace apart."""

    def compilation(self, engine: Any) -> str:
        """Describe in words how steps of an optimizer are compiled."""
