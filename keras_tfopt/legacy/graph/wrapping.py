"""Optimizers around another one, which may be any of `tf.compat.v1.train`."""

from __future__ import annotations

import types
import warnings
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_tfopt.checks import check_bool, check_hyperparameter, check_number
from keras_tfopt.execution import (
    Like,
    OptimizerBase,
    check_distinct,
    pattern_of,
    prepare,
    variables_of,
    warn_unmatched,
)
from keras_tfopt.execution.graph import (
    Pairs,
    Verbs,
    around,
    dtype_of,
    is_eager,
    is_variable,
    name_of,
    native,
    operations,
    outermost_graph,
    read,
    value_now,
    verbs,
)
from keras_tfopt.legacy.arguments import (
    OriginalAttributes,
    as_in_the_original,
    build_optimizer,
    check_name,
    chosen_dims,
)
from keras_tfopt.legacy.checkpoints.names import AVERAGE
from keras_tfopt.legacy.graph.conversion import Converting, keras_of
from keras_tfopt.legacy.optimizer import Optimizer
from keras_tfopt.legacy.saver import check_moved, check_saver_arguments, eager_saver
from keras_tfopt.legacy.table import Row
from keras_tfopt.wrappers import MovingAverage, VariableClipping
from keras_tfopt.wrappers.dimensions import check_dims, dims_of


class Wrapping(Converting, Verbs, Optimizer):
    """An optimizer around `opt`, whose compute_gradients and apply_gradients it calls."""

    _inside = "opt"  # the argument for the optimizer inside

    def __init__(self, kind: str, row: Row, arguments: Mapping[str, Any]):
        opt = arguments[self._inside]
        if isinstance(opt, keras.optimizers.Optimizer):
            opt = Optimizer(opt)
        if not isinstance(opt, OptimizerBase):
            raise TypeError(
                f"Argument `{self._inside}` must be an optimizer of keras_tfopt.legacy, of "
                f"tf.compat.v1.train or of Keras. Received: {opt!r}"
            )
        self._opt = opt
        self._kind, self._row, self._arguments = kind, row, dict(arguments)
        for argument in ("use_locking", "colocate_clip_ops_with_vars"):
            check_bool(argument, arguments.get(argument, False))
        name = check_name(arguments.get("name", kind))
        super().__init__(name, arguments.get("use_locking", False))

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Pairs:
        """Calls that of `opt`; see `Optimizer.compute_gradients`."""
        return self._opt.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Calls that of `opt`, with what is to be done around it; see `Optimizer`."""
        given = verbs.list_of_pairs(grads_and_vars)
        pairs = verbs.checked_pairs(given, self)
        verbs.check_counter(global_step)
        self._begin_verb()
        self._begin(pairs)
        done = self._opt.apply_gradients(given, global_step=global_step, name=name)
        with operations.following([done]):
            changed = self._after(pairs)
        if is_eager():
            return done
        return operations.group(done, *changed, name=name or self._name)

    def _begin(self, pairs: Pairs) -> None:
        """Before the step: whatever must exist by then."""

    def _after(self, pairs: Pairs) -> list[Any]:
        """After the step: operations."""
        return []

    def _make_keras(self) -> Any:
        return build_optimizer(self._kind, self._row, self._keras_arguments())

    def _keras_arguments(self) -> dict[str, Any]:
        """The arguments in a form that the Keras optimizer takes."""
        return {**self._arguments, "opt": keras_of(self._opt)}

    def _hand_over(self) -> None:
        known = variables_of(keras_of(self._opt))  # which is handed its own part
        if not known:
            return
        prepare(self._keras_optimizer, known)
        for variable, name, slot in self._slots_there():
            own = Verbs.get_slot(self, variable, name)
            if own is not None:
                slot.assign(ops.cast(own.read_value(), slot.dtype))

    def _adopt(self) -> None:
        theirs = variables_of(self._keras_optimizer)
        self._given.update({id(native(variable)): variable for variable in theirs})
        self._begin([(True, native(variable)) for variable in theirs])
        for variable, name, slot in self._slots_there():
            own = Verbs.get_slot(self, variable, name)
            if own is not None:
                own.assign(ops.cast(ops.convert_to_tensor(slot), own.dtype.name))

    def _slots_there(self) -> list[tuple[Any, str, Any]]:
        """The wrapper's own state in the Keras optimizer: variable, name, slot."""
        made = self._keras_optimizer
        names = made._own_slot_names()
        return [
            (variable, name, made.slot(variable, name))
            for variable in variables_of(made)
            for name in names
        ]

    def get_slot(self, var: Any, name: str) -> Any:
        """That of `opt`; here also the wrapper's own."""
        own = super().get_slot(var, name)
        return own if own is not None else self._opt.get_slot(native_for(self._opt, var), name)

    def get_slot_names(self) -> list[str]:
        """The names of the slots there are, in alphabetical order."""
        return sorted({*super().get_slot_names(), *self._opt.get_slot_names()})

    def variables(self) -> list[Any]:
        """The wrapper's own, and those of `opt`."""
        return [*super().variables(), *self._opt.variables()]


def native_for(optimizer: Any, variable: Any) -> Any:
    """A variable in the form that an optimizer knows: of Keras, for those of this module only."""
    return variable if isinstance(optimizer, Optimizer) else native(variable)


class Multitasking(Wrapping):
    """`MultitaskOptimizerWrapper`, which has the name of the optimizer inside.

    It changes the methods of `opt` that add the step of a variable, as the original does.
    """

    _METHODS = (
        "_apply_dense",
        "_apply_sparse",
        "_resource_apply_dense",
        "_resource_apply_sparse",
        "_decay_weights",  # of those with weight decay
    )

    def __init__(self, kind: str, row: Row, arguments: Mapping[str, Any]):
        super().__init__(kind, row, arguments)
        inside = [self._opt]
        while hasattr(inside[-1], "_opt"):
            inside.append(inside[-1]._opt)
        self._filters = not isinstance(inside[-1], Verbs) and isinstance(inside[-1], Optimizer)
        if self._filters:
            return
        for method in self._METHODS:
            for optimizer in inside:
                if hasattr(optimizer, method):
                    setattr(optimizer, method, around.unless_zero(getattr(optimizer, method)))

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Calls that of `opt`, which leaves variables alone whose gradient is zero."""
        given = verbs.list_of_pairs(grads_and_vars)
        if self._filters:  # an optimizer of Keras, which has no such methods
            kept = [around.is_moving(gradient) for gradient, _ in verbs.checked_pairs(given, self)]
            if not any(kept):
                return verbs.counted(global_step)
            given = [(g if k else None, v) for (g, v), k in zip(given, kept, strict=True)]
        return super().apply_gradients(given, global_step, name)

    def get_name(self) -> str:
        """The name of the optimizer inside."""
        return self._opt.get_name()


class Clipping(Wrapping):
    """`VariableClippingOptimizer`, whose dimensions are those of single variables."""

    def __init__(self, kind: str, row: Row, arguments: Mapping[str, Any]):
        super().__init__(kind, row, arguments)
        self._max_norm = _hyperparameter(self, "max_norm", 0, left_open=True)
        # A name is enough to find a variable that is made later; a variable is only itself.
        self._by_name: dict[str, Any] = {}
        self._by_variable: list[tuple[Any, Any]] = []
        self._chosen = chosen_dims(arguments["vars_to_clip_dims"], is_variable)
        for variable, pattern, dims in self._chosen:
            if isinstance(variable, str):
                self._by_name[pattern] = dims
            else:
                self._by_variable.append((native(variable), self._dims(variable, dims)))
        if self._by_name:
            check_dims(self._by_name)

    def _keras_arguments(self) -> dict[str, Any]:
        named = {
            pattern if isinstance(v, str) else pattern_of(self._given.get(id(native(v)), v)): dims
            for v, pattern, dims in self._chosen
        }
        return {**super()._keras_arguments(), "vars_to_clip_dims": named}

    _has_begun = False

    def _dims(self, variable: Any, dims: list[int]) -> Any:
        pattern = {pattern_of(name_of(variable)): dims}
        return dims_of(_like(variable), check_dims(pattern))

    def _begin(self, pairs: Pairs) -> None:
        likes = [_like(variable) for _, variable in pairs]
        for like in likes:
            dims_of(like, self._by_name)
        if not self._has_begun:
            warn_unmatched(type(self).__name__, {"vars_to_clip_dims": [*self._by_name]}, likes)
        self._has_begun = True

    def _after(self, pairs: Pairs) -> list[Any]:
        clipped = []
        for gradient, variable in pairs:
            dims = next((d for v, d in self._by_variable if v is variable), None)
            if dims is None and self._by_name:
                dims = dims_of(_like(variable), self._by_name)
            if gradient is None or dims is None:
                continue
            rows = None if 0 in dims else around.distinct(gradient)
            clipped.append(around.moved(self._clip(dims), variable, rows, self._use_locking))
        return clipped

    def _clip(self, dims: tuple[int, ...]) -> Any:
        def clip(x: Any, _: Any) -> Any:
            max_norm = ops.cast(value_now(self._max_norm), x.dtype)
            t = types.SimpleNamespace(dims=dims, max_norm=max_norm)
            return VariableClipping.after(None, None, x, None, t)[0]  # type: ignore[arg-type]

        return clip


def _hyperparameter(wrapper: Wrapping, name: str, *limits: float, **how: bool) -> Any:
    """An argument that is a number, or a tensor, variable or function that gives one."""
    value = wrapper._arguments[name]
    if is_variable(value) or ops.is_tensor(value):
        return value
    with as_in_the_original(wrapper._kind, wrapper._row):
        return check_hyperparameter(name, value, *limits, **how)


def _like(variable: Any) -> Like:
    return Like(operations.shape_of(variable), dtype_of(variable).name, name_of(variable))


class Averaging(OriginalAttributes, Wrapping):
    """`MovingAverageOptimizer`: averages of the variables, and savers that swap them in."""

    def __init__(self, kind: str, row: Row, arguments: Mapping[str, Any]):
        super().__init__(kind, row, arguments)
        if arguments["sequential_update"] is False:
            warnings.warn(
                "MovingAverageOptimizer: `sequential_update=False` let the original read a "
                "variable before or after its update, as it happened. Here it is always after",
                stacklevel=4,
            )
        check_bool("sequential_update", arguments["sequential_update"])
        self._num_updates = arguments["num_updates"]
        if self._num_updates is not None and not is_variable(self._num_updates):
            if not ops.is_tensor(self._num_updates):
                check_number("num_updates", self._num_updates, 0)
        self._average_decay = _hyperparameter(self, "average_decay", 0, 1)
        self._averaged: list[Any] = []

    def _keras_arguments(self) -> dict[str, Any]:
        # A variable is the count of training steps, which Keras's side counts itself.
        counted = is_variable(self._num_updates)
        more = {"num_updates": True} if counted else {}
        return {**super()._keras_arguments(), **more}

    def _begin(self, pairs: Pairs) -> None:
        check_distinct(self, [variable for gradient, variable in pairs if gradient is not None])
        graph = outermost_graph()
        for gradient, variable in pairs:
            if gradient is None or super().get_slot(variable, "average") is not None:
                continue
            with operations.lifted(), around.reaching(variable):
                value = around.initial_value(variable)
                self._get_or_make_slot(variable, value, "average", AVERAGE)
                if graph is not None:
                    around.mark_as_averaged(variable)
            self._averaged.append(variable)

    def _after(self, pairs: Pairs) -> list[Any]:
        moved = []
        for gradient, variable in pairs:
            if gradient is None:
                continue
            moved.append(
                around.moved(
                    self._move(variable),
                    super().get_slot(variable, "average"),
                    use_locking=self._use_locking,
                )
            )
        return moved

    def _move(self, variable: Any) -> Any:
        def move(average: Any, _: Any) -> Any:
            updates = self._num_updates
            if updates is not None:
                updates = ops.cast(
                    read(updates) if is_variable(updates) else updates, average.dtype
                )
            rule = types.SimpleNamespace(
                average_decay=self._average_decay,
                num_updates=updates,
                start_step=0,
                dynamic_decay=False,
                now=value_now,
            )
            one = ops.ones((), average.dtype)
            t = types.SimpleNamespace(**MovingAverage.scalars(rule, None, one))  # type: ignore[arg-type]
            s = types.SimpleNamespace(average=average)
            return MovingAverage.after(rule, None, read(variable), s, t)[1]["average"]  # type: ignore[arg-type]

        return move

    def swapping_saver(
        self, var_list: Any = None, name: str = "swapping_saver", **kwargs: Any
    ) -> Any:
        """A saver that writes averages under the names of the variables.

        Args:
            var_list: Variables to save, a list or a dictionary of them by name. None is, in graphs,
                all global variables; eagerly, all that have averages, and all other state of the
                optimizer.
            name: Name of the saver.
            **kwargs: What `tf.train.Saver` takes.

        Returns:
            A `tf.compat.v1.train.Saver` in graphs. Eagerly, where that writes no checkpoints for
            TensorFlow 1, an object with its `save(None, path)` and `restore(None, path)`.

        Raises:
            RuntimeError: before the first step.
            ValueError: if a variable has no average, or its average is not among `var_list`.
        """
        check_saver_arguments(kwargs)
        self._take_back()
        here = [v for v in self._averaged if operations.is_here(v)]
        check_moved(here)
        if outermost_graph() is None:
            moved = [self._given.get(id(v), v) for v in here]
            return eager_saver(var_list, moved, self._average_of, name, self)
        pairs = [(variable, self._average_of(variable)) for variable in here]
        return around.swapping_saver(pairs, var_list, name, kwargs)

    def _average_of(self, variable: Any) -> Any:
        return Verbs.get_slot(self, variable, "average")
