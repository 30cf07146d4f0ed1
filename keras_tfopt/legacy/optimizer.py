"""`minimize`, `compute_gradients` and `apply_gradients` around any Keras optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
from keras import ops

from keras_tfopt.checks import check_bool
from keras_tfopt.engine import (
    Steps,
    apply_rows,
    check_traceable,
    functions_in,
    is_variable,
    outside_compiler,
    parts,
    prepare,
    slot_names_of,
    slots_of,
    state_variables,
)
from keras_tfopt.legacy.arguments import check_name
from keras_tfopt.legacy.base import OptimizerBase
from keras_tfopt.legacy.loss_gradients import gradients_of_loss
from keras_tfopt.legacy.verb_arguments import (
    check_any_gradient,
    check_computing,
    check_counter,
    check_loss,
    checked_inputs,
    checked_pairs,
    checked_variables,
    count_up,
)

Pairs = list[tuple[Any, Any]]

# Methods by which optimizers of TensorFlow 1 define their rules.
_RULES = frozenset(
    {
        "_apply",
        "_apply_dense",
        "_apply_sparse",
        "_apply_sparse_duplicate_indices",
        "_resource_apply_dense",
        "_resource_apply_sparse",
        "_resource_apply_sparse_duplicate_indices",
    }
)


class Optimizer(OptimizerBase):
    """The verbs of `tf.train.Optimizer` around a Keras optimizer.

    The classes of this module derive from it, one for each name of the originals. It also gives the
    verbs to any Keras optimizer: `legacy.Optimizer(keras.optimizers.Lion(1e-4))`.

    `minimize` calls `compute_gradients`, then `apply_gradients`. A subclass may override either,
    and wrappers then call its methods. Its `keras` is the rule alone, without these methods.

    Args:
        optimizer: A `keras.optimizers.Optimizer`.
        name: Name of the optimizer. Defaults to that of `optimizer`.
        use_locking: Without meaning: the steps of one optimizer never overlap.

    Attributes:
        GATE_NONE, GATE_OP, GATE_GRAPH: Values of `gate_gradients`, which orders operations in
            graphs and has no meaning here.
    """

    GATE_NONE = 0
    GATE_OP = 1
    GATE_GRAPH = 2
    _steps_with_keras = True  # whether the verbs change the state of `keras` itself
    _never_called = _RULES
    _by_rows = False

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        ignored = sorted(cls._never_called & set(vars(cls)))
        if ignored:
            raise TypeError(
                f"{cls.__name__} defines {ignored}, which nothing would call. Derive it from "
                "`BaseCustomOptimizer` and define `_apply`, or write a keras_tfopt.Rule"
            )

    def __init__(self, optimizer: Any, name: str | None = None, use_locking: bool = False):
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise TypeError(
                "Argument `optimizer` must be a keras.optimizers.Optimizer. Received: "
                f"{optimizer!r}"
            )
        check_bool("use_locking", use_locking)
        name = check_name(optimizer.name if name is None else name)
        OptimizerBase.__init__(self, use_locking, name)
        self._optimizer = optimizer
        self._found: list[Any] = []  # variables that the last loss read
        self._compiled = Steps()
        # Whether the rule treats row gradients differently from dense ones.
        self._by_rows = any(getattr(one, "sparse", "dense") != "dense" for one in parts(optimizer))

    # ---- Verbs ----------------------------------------------------------------------------------

    def minimize(
        self,
        loss: Callable[..., Any],
        global_step: Any = None,
        var_list: Any = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: Any = None,
        compiled: bool = False,
        inputs: Sequence[Any] = (),
    ) -> Any:
        """Take one step: `compute_gradients`, then `apply_gradients`.

        Args:
            loss: Function that gives the loss, a tensor. It is called as `loss(*inputs)`. On JAX it
                runs twice in the first step without `var_list`, once to find what it reads.
            global_step: Scalar variable that goes up by one after the update.
            var_list: Variables to train. None takes the trainable ones that `loss` reads.
            gate_gradients: Without meaning; GATE_NONE, GATE_OP or GATE_GRAPH.
            aggregation_method: Without meaning; None or one of TensorFlow's, 0 to 2.
            colocate_gradients_with_ops: Without meaning.
            name: Without meaning.
            grad_loss: Tensor of the loss's shape, or number, that its gradient is multiplied by.
            compiled: On JAX, compile the step and keep it as long as the function `loss` lives:
                hundreds of times faster for small models. Arrays that `loss` reads must be in
                `inputs` or in variables of Keras, and no argument of the optimizer may be a
                function without arguments: both are refused otherwise. Numbers, scalar tensors and
                other objects that `loss` reads are as they were in the first step with this
                function. Other shapes of `inputs` compile another step. Without effect on
                TensorFlow and PyTorch.
            inputs: Arguments of `loss`, a tuple: tensors, arrays and numbers, also in lists, tuples
                and dictionaries.

        Returns:
            The new value of `global_step`, or None without one.

        Raises:
            RuntimeError: if `loss` is not callable, or inside a bare `jax.jit`.
            TypeError: if `inputs` is no tuple or list, or holds anything else.
            ValueError: if `var_list` holds anything but variables, no variable has a gradient, an
                argument is not among its values, or a compiled `loss` reads other arrays.
        """
        check_bool("compiled", compiled)
        computing = {
            "var_list": var_list,
            "gate_gradients": gate_gradients,
            "aggregation_method": aggregation_method,
            "colocate_gradients_with_ops": colocate_gradients_with_ops,
        }
        applying = {"global_step": global_step, "name": name}
        return self._minimize(loss, inputs, grad_loss, computing, applying, compiled)

    @outside_compiler
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
        # Check everything before the loss runs: it may assign statistics.
        check_loss(loss)
        inputs = checked_inputs(inputs)
        if computing["var_list"] is not None:
            computing["var_list"] = checked_variables(computing["var_list"], ValueError)
        check_counter(applying["global_step"])
        check_traceable("minimize")
        if is_variable(grad_loss):
            grad_loss = ops.convert_to_tensor(grad_loss)

        def step(inputs: tuple, grad_loss: Any) -> Any:
            bound = functools.partial(loss, *inputs) if inputs else loss
            pairs = self.compute_gradients(bound, grad_loss=grad_loss, **computing)
            check_any_gradient(pairs, f" and loss {loss!r}")
            return self.apply_gradients(pairs, **applying)

        if not compiled:
            return step(inputs, grad_loss)
        static = [self, computing, applying]
        return self._compiled.run(step, loss, (inputs, grad_loss), static, self._check_compilable)

    def _check_compilable(self) -> None:
        """Raise an error if an argument is a function, which a compiled step calls only once."""
        functions = functions_in(self.keras)
        if functions:
            raise ValueError(
                "With `compiled=True`, arguments of an optimizer must not be functions without "
                "arguments, which would run in the first step only: pass a keras.Variable and "
                f"assign to it, or a schedule. Received: functions as {', '.join(functions)}"
            )

    @outside_compiler
    def compute_gradients(
        self,
        loss: Callable[[], Any],
        var_list: Any = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: Any = None,
    ) -> Pairs:
        """Return gradients and variables, to be processed and handed to `apply_gradients`.

        What `loss` assigns (statistics of normalization, states of random generators) is assigned.

        Args:
            loss: Function without arguments that gives the loss, a tensor.
            var_list: Variables to differentiate by.
            gate_gradients: Without meaning.
            aggregation_method: Without meaning.
            colocate_gradients_with_ops: Without meaning.
            grad_loss: As in `minimize`.

        Returns:
            A list of pairs of a gradient and its variable. A gradient is a tensor, a row gradient
            of the backend (tf.IndexedSlices, a sparse tensor of PyTorch), or None where the loss
            does not depend on the variable. On JAX and PyTorch, it is a `keras_tfopt.RowGradient`
            where the loss only looks up rows of the variable, and the optimizer goes by rows.

        Raises:
            RuntimeError: if `loss` is not callable.
            TypeError: if `var_list` holds anything but variables.
            ValueError: if an argument is not among its values.
        """
        check_loss(loss)
        check_computing(gate_gradients, aggregation_method, colocate_gradients_with_ops)
        if var_list is not None:
            var_list = checked_variables(var_list, TypeError)
        check_traceable("compute_gradients", assigns=False)
        pairs = gradients_of_loss(loss, var_list, grad_loss, self._found, self._by_rows)
        if var_list is None:
            self._found[:] = [variable for _, variable in pairs]
        return pairs

    @outside_compiler
    def apply_gradients(
        self, grads_and_vars: Iterable[Any], global_step: Any = None, name: str | None = None
    ) -> Any:
        """Update variables by their gradients.

        Args:
            grads_and_vars: Pairs of a gradient (tensor, array, `RowGradient`, row gradient of the
                backend, or None) and a variable. Row gradients touch all rows that they name.
            global_step: Scalar variable that goes up by one after the update.
            name: Without meaning.

        Returns:
            The new value of `global_step`, or None without one.

        Raises:
            TypeError: if these are no pairs of a gradient and a variable.
            ValueError: if there are none, all gradients are None, or one does not fit its variable.
            RuntimeError: inside a bare `jax.jit`.
        """
        pairs = checked_pairs(grads_and_vars)
        check_counter(global_step)
        check_traceable("apply_gradients")
        self._begin_step(global_step)
        self._step(pairs)
        return count_up(global_step)

    def _begin_step(self, global_step: Any) -> None:
        """Check and remember the global step, before anything changes."""

    def _step(self, pairs: Pairs) -> None:
        prepare(self._optimizer, self._covered(pairs))
        given = [pair for pair in pairs if pair[0] is not None]
        apply_rows(self._optimizer, [g for g, _ in given], [v for _, v in given])

    def _covered(self, pairs: Pairs) -> list[Any]:
        """Return the variables that need state for a step."""
        return [variable for gradient, variable in pairs if gradient is not None]

    # ---- State ----------------------------------------------------------------------------------

    def get_slot(self, var: Any, name: str) -> Any:
        """Return the state called `name` of a variable; None if there is none, or not yet."""
        if not is_variable(var):
            raise TypeError(f"Argument `var` must be a variable. Received: {var!r}")
        return slots_of(self._optimizer, var).get(name)

    def get_slot_names(self) -> list[str]:
        """Return the names of the slots in alphabetical order; none before the first step."""
        return slot_names_of(self._optimizer)

    def variables(self) -> list[Any]:
        """Return the variables with the state, the count of steps and slots.

        There are none before the first step. The originals keep powers of decay rates instead of
        the count.
        """
        return state_variables(self._optimizer)

    def get_name(self) -> str:
        """Return the name of the optimizer."""
        return self._name

    @property
    def keras(self) -> Any:
        """The Keras optimizer, for `model.compile`, or for `apply`, `slot` and saving.

        It is always the same object, and shares the state with the verbs.
        """
        return self._optimizer


def inner_of(
    argument: str,
    opt: Any,
    base: type = Optimizer,
    kinds: str = "keras_tfopt.legacy or one of Keras",
) -> Any:
    """Return an optimizer with verbs, to go inside of another one; or raise an error."""
    if isinstance(opt, keras.optimizers.Optimizer):
        opt = Optimizer(opt)
    if not isinstance(opt, base):
        raise TypeError(f"Argument `{argument}` must be an optimizer of {kinds}. Received: {opt!r}")
    return opt
