"""Optimizers around another one, which may be any of `tf.compat.v1.train`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt.checks import check_bool
from keras_tfopt.engine import (
    changes,
    check_distinct,
    prepare,
    tolerating,
    variables_of,
    warn_unmatched,
)
from keras_tfopt.legacy.arguments import OfTable, as_in_the_original, build_optimizer, check_name
from keras_tfopt.legacy.base import OptimizerBase
from keras_tfopt.legacy.checkpoints.names import AVERAGE
from keras_tfopt.legacy.graph import backend, savers
from keras_tfopt.legacy.graph.backend import is_symbolic, native, value_now
from keras_tfopt.legacy.graph.conversion import Converting, keras_of
from keras_tfopt.legacy.graph.hooks import run_hook
from keras_tfopt.legacy.graph.verbs import Verbs
from keras_tfopt.legacy.optimizer import Optimizer, Pairs, inner_of
from keras_tfopt.legacy.saver import SwappingSaver
from keras_tfopt.legacy.table import Row
from keras_tfopt.legacy.verb_arguments import check_counter

v1 = tf.compat.v1


class WrapperVerbs(Converting, OfTable):
    """An optimizer around `opt`, whose compute_gradients and apply_gradients it calls."""

    _never_called = Optimizer._never_called
    _inside = "opt"  # the argument for the optimizer inside
    _has_hooks = True
    _step_name: str | None = None
    """The name of the operation of a step with hooks, if it is not that of the optimizer."""
    _hooks: Any = None  # a Keras wrapper that is never built, for its hooks; None without hooks
    _has_begun = False

    def __init__(self, kind: str, row: Row, arguments: Mapping[str, Any]):
        self._kind, self._row = kind, row
        kinds = "keras_tfopt.legacy, of tf.compat.v1.train or of Keras"
        self._opt = inner_of(self._inside, arguments[self._inside], OptimizerBase, kinds)
        self._arguments = self._changed(dict(arguments))
        for argument in ("use_locking", "colocate_clip_ops_with_vars"):
            check_bool(argument, arguments.get(argument, False))
        name = check_name(arguments.get("name", kind))
        super().__init__(name, arguments.get("use_locking", False))
        if self._has_hooks:
            with backend.apart():
                self._hooks = build_optimizer(kind, row, self._arguments_now())
        self._with_own_slots: list[Any] = []

    def _arguments_now(self) -> dict[str, Any]:
        """Return the arguments, with substitutes for `opt` and for those without a value yet."""
        found = {name: stand_in(value) for name, value in self._arguments.items()}
        return {**found, self._inside: keras.optimizers.SGD()}

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Pairs:
        """Call that of `opt`; see `Optimizer.compute_gradients`."""
        return self._opt.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Call that of `opt`, and run the hooks around it; see `Optimizer.apply_gradients`."""
        given, pairs = self._checked(grads_and_vars)
        check_counter(global_step)
        self._begin_step(global_step)
        self._check_covered(self._covered(pairs))
        is_eager = backend.is_eager()
        if is_eager:  # averages start at the values before the step
            self._create_own_slots(pairs)
        scoped = v1.name_scope(name, self._name) if self._row.scopes else None
        with scoped or contextlib.nullcontext() as own_name:
            done = self._opt.apply_gradients(given, global_step=global_step, name=name)
        if not is_eager:
            self._create_own_slots(pairs)  # after those of `opt`, as in the original
        with backend.following([done]):
            changed = self._run_after(pairs)
        if is_eager or not changed:
            return done
        return backend.group(done, *changed, name=own_name or self._step_name)

    def _covered(self, pairs: Pairs) -> list[Any]:
        return [variable for _, variable in pairs]

    @tf.autograph.experimental.do_not_convert  # AutoGraph fails at methods of a docstring only
    def _check_covered(self, covered: list[Any]) -> None:
        if self._hooks is None:
            return
        likes = [backend.like_of(variable) for variable in covered]
        self._hooks.check(likes)
        if not self._has_begun:
            warn_unmatched(type(self).__name__, self._hooks.choices(), likes)
        self._has_begun = True

    def _create_own_slots(self, pairs: Pairs) -> None:
        """Create averages, which start at the values of the variables."""
        if self._hooks is None:
            return
        likes = [backend.like_of(variable) for _, variable in pairs]
        moved = [variable for gradient, variable in pairs if gradient is not None]
        if any(self._hooks.slots(like) for like in likes):
            check_distinct(self, moved)
            for variable in moved:
                self._create_averages(variable)

    def _create_averages(self, variable: Any) -> None:
        graph = backend.outermost_graph()
        for name in self._hooks.slots(backend.like_of(variable)):
            if self._own_slot(variable, name) is not None:
                continue
            with backend.lifted(), backend.reaching(variable):
                self._get_or_make_slot(variable, backend.initial_value(variable), name, AVERAGE)
                if graph is not None:
                    # Where `tf.compat.v1.moving_average_variables` finds it.
                    v1.add_to_collection(v1.GraphKeys.MOVING_AVERAGE_VARIABLES, native(variable))
            self._with_own_slots.append(variable)

    def _run_after(self, pairs: Pairs) -> list[Any]:
        if self._hooks is None or "after" not in self._hooks.defines:
            return []
        ours = {self._row.renamed.get(name, name): v for name, v in self._arguments.items()}
        values = {n: value_now(v) for n, v in ours.items() if is_symbolic(v) or changes(v)}
        names = self._hooks.slots(backend.like_of(pairs[0][1]))
        return [
            run_hook(
                self._hooks,
                "after",
                gradient,
                variable,
                values,
                {name: self._own_slot(variable, name) for name in names},
                self._use_locking,
            )
            for gradient, variable in pairs
            if gradient is not None and self._is_meant(variable)
        ]

    def _is_meant(self, variable: Any) -> bool:
        """Return whether hooks run on this variable; they run on its name."""
        return True

    def _keras_arguments(self) -> dict[str, Any]:
        """Return the arguments in a form that the Keras optimizer takes."""
        return {**self._arguments, self._inside: keras_of(self._opt)}

    def _hand_over(self) -> None:
        known = variables_of(keras_of(self._opt))  # reading it copies its own state
        if known:
            prepare(self._optimizer, known)
            self._slots_to_keras(known)

    def _adopt(self) -> None:
        theirs = variables_of(self._optimizer)
        natives = self._know(theirs)
        self._check_covered(natives)
        self._create_own_slots([(True, variable) for variable in natives])
        self._slots_from_keras(theirs)

    def get_slot(self, var: Any, name: str) -> Any:
        """Return the wrapper's own slot of this name, or that of `opt`."""
        own = super().get_slot(var, name)
        # Only optimizers of this module know variables of Keras.
        theirs = var if isinstance(self._opt, Optimizer) else native(var)
        return own if own is not None else self._opt.get_slot(theirs, name)

    def get_slot_names(self) -> list[str]:
        """Return the names of the slots there are, in alphabetical order."""
        return sorted({*super().get_slot_names(), *self._opt.get_slot_names()})

    def variables(self) -> list[Any]:
        """Return the wrapper's own, and those of `opt`."""
        return [*super().variables(), *self._opt.variables()]

    def _with_slots(self) -> list[Any]:
        """Return the variables here that have slots of the wrapper."""
        self._take_back()
        return [v for v in self._with_own_slots if backend.is_here(v)]

    def _saver(self, slot: str, var_list: Any, moved: list[Any], name: str, more: Any) -> Any:
        """Return a saver that swaps variables with slots of the wrapper."""
        if backend.outermost_graph() is None:
            moved = [self._as_given(variable) for variable in moved]
            average_of = functools.partial(self._own_slot, name=slot)
            return SwappingSaver(var_list, moved, average_of, name, self)
        pairs = [(variable, self._own_slot(variable, slot)) for variable in moved]
        return savers.swapping_saver(pairs, var_list, name, more)


def stand_in(value: Any) -> Any:
    """Return a hyperparameter, or a substitute for one that may have no value yet."""
    return keras.Variable(0.5, trainable=False) if is_symbolic(value) else value


# The methods that update a variable; the last one is that of `DecayVerbs`.
_STEPS = (
    "_apply_dense",
    "_apply_sparse",
    "_resource_apply_dense",
    "_resource_apply_sparse",
    "_decay_weights",
)


def rest_while_zero(optimizer: Any) -> Callable[[Any, Any], Pairs] | None:
    """Make an optimizer leave variables alone while their gradient is zero.

    This changes methods of the optimizer and of those inside, as the original does. An optimizer of
    Keras has no such methods. For it, return a function from a wrapper and its pairs to the pairs
    to pass on.
    """
    inside = [optimizer]
    while hasattr(inside[-1], "_opt"):
        inside.append(inside[-1]._opt)
    if isinstance(inside[-1], Optimizer) and not isinstance(inside[-1], Verbs):
        return _without_zeros
    for one in inside:
        for method in _STEPS:
            if hasattr(one, method):
                setattr(one, method, _unless_zero(getattr(one, method)))
    return None


def _without_zeros(wrapper: Any, grads_and_vars: Any) -> Pairs:
    """Return the given pairs, with None for gradients that are zero."""
    given, pairs = wrapper._checked(grads_and_vars)
    if not backend.is_eager():
        raise RuntimeError(
            "MultitaskOptimizerWrapper around an optimizer of Keras works eagerly only. Use "
            "keras_tfopt.Multitask there"
        )
    moves = [g is not None and bool(_any_nonzero(g)) for g, _ in pairs]
    return [(g if one else None, v) for (g, v), one in zip(given, moves, strict=True)]


def _unless_zero(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that updates a variable, unless the gradient is zero."""

    def rests(grad: Any, variable: Any, *indices: Any) -> Any:
        def step() -> Any:
            with backend.following([apply(grad, variable, *indices)]):
                return tf.no_op()

        moves = _any_nonzero(grad)
        if backend.is_eager():
            return step() if bool(moves) else tf.no_op()
        return backend.conditional(moves, variable, step, tf.no_op)

    return rests


def _any_nonzero(gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):  # repeated rows may cancel
        rows, places = tf.unique(gradient.indices)
        gradient = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.reduce_any(tf.not_equal(gradient, 0))


class DecayVerbs:
    """Weight decay before the verb of a class, which may be one of `tf.compat.v1.train`."""

    # The next base class may not have these.
    _minimize, _checked = Verbs._minimize, Verbs._checked
    _make_wrapper: Callable[..., Any]
    _weight_decay: Any
    _wrapper: Any = None

    def _prepare_decay(self) -> None:
        """Make the hook that decays."""
        with backend.apart(), as_in_the_original(type(self).__name__):
            self._hooks = self._make_wrapper(keras.optimizers.SGD(), stand_in(self._weight_decay))

    def _apply_decayed(self, verb: Callable, given: Pairs, pairs: Pairs, chosen: Any) -> Any:
        """Take a step with decay of the chosen variables; None is all."""
        with backend.following([g for g, _ in pairs]):
            decayed = [
                self._decay_weights(gradient, variable)
                for gradient, variable in pairs
                if gradient is not None
                and (not chosen or any(native(v) is variable for v in chosen))
            ]
        with backend.following(decayed):
            return verb(given)

    def _decay_weights(self, gradient: Any, variable: Any) -> Any:
        """Return the operation that shrinks a variable, or the rows that its gradient names."""
        values = {"weight_decay": value_now(self._weight_decay)}
        locks = getattr(self, "_use_locking", False)
        variable = native(variable)
        return run_hook(self._hooks, "before", gradient, variable, values, use_locking=locks)

    @property
    def keras(self) -> Any:
        """The Keras optimizer: like `keras_tfopt.DecoupledWeightDecay`, for all variables."""
        inside = super().keras  # type: ignore[misc]
        if self._wrapper is None:
            with tolerating(lambda *_: True):  # the constructor has warned already
                self._wrapper = self._make_wrapper(inside, self._weight_decay)
        if variables_of(inside):
            prepare(self._wrapper, variables_of(inside))
        return self._wrapper
