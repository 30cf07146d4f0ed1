"""Run rules as optimizers of TensorFlow 1: one operation after the other, in any graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as framework

from keras_tfopt.engine.arguments.hyperparameters import ITERATION, Rates
from keras_tfopt.engine.arguments.powers import Exponent
from keras_tfopt.engine.backends.tensorflow import execute
from keras_tfopt.engine.rows import RowGradient, sees_rows
from keras_tfopt.engine.state.state import HYPERPARAMETER, Cache, Like, Slot
from keras_tfopt.engine.step.gradients import refuse_unless_finite
from keras_tfopt.engine.step.kinds import Kind
from keras_tfopt.engine.step.moving import OVER_ONE, Update, bind_rule, rounds
from keras_tfopt.legacy.graph.all_variables import Together
from keras_tfopt.legacy.graph.backend import (
    Variables,
    dtype_of,
    following,
    group,
    in_a_graph,
    in_branch,
    initial_value,
    is_variable,
    like_of,
    native,
    outermost_graph,
    place,
    reaching,
    read,
    row_mask,
    to_dense,
    value_now,
    value_of,
    write,
)
from keras_tfopt.legacy.graph.verbs import Verbs, check_graph
from keras_tfopt.legacy.optimizer import Pairs

# The count of steps that schedules of Keras follow.
STEPS = "iterations"


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known of an original beyond its rule."""

    learning_rate: Any
    changing: Mapping[str, Any]
    """Hyperparameters that are not numbers, by their names in the rule."""
    powers: Mapping[str, str]
    """By hyperparameter, the name of the variable that keeps its running power."""
    global_step: Any = None
    """Variable or number that counts steps: one less than the number of the next step."""
    raised: tuple[str, ...] = ()
    """Hyperparameters that are raised to that number, in single precision or more."""
    counter: tuple[str, str | None] | None = None
    """Name and data type (None: that of the variables) of a count of steps of its own."""
    shared: tuple[str, ...] = ()
    """With scope "model": the slots that are variables; other slots follow from these."""
    scratch: tuple[str, ...] = ()
    """With scope "model": the variable with the gradients of all variables."""
    slots: Callable[[Like, Mapping[str, Slot]], Mapping[str, Slot]] = lambda like, ours: ours
    """Returns the slots to make for a variable, in order, given those of the rule."""
    op_name: Callable[[str], str | None] = lambda slot: None
    """Returns the text in the name of a slot's variable; None for the optimizer's name."""


class Executor(Verbs):
    """A rule under TensorFlow 1's protocol, on reference variables and resource variables.

    A step does not run the engine's `Pipeline`, because `tf.compat.v1.train.Optimizer` has its own:
    it sums repeated rows, calls a method for each variable, which subclasses and optimizers around
    it may replace, and distributes over the replicas of a strategy. There every write is an
    operation, to be returned and ordered. The engine's `bind_rule` and `ModelStep` move the
    variables, and outside of graphs its `execute`.

    State is in variables that `tf.compat.v1.train.Saver` finds, one set in each graph. The
    arithmetic runs in the data type of the variable, half precision included, as in TensorFlow 1.

    Args:
        rule: The `formula` of an optimizer: hyperparameters and pure functions.
        facts: The facts about the original.
        name: Name of the optimizer, which is part of the names of its variables.
        use_locking: Whether assignments to reference variables take a lock.
    """

    def __init__(self, rule: Any, facts: Facts, name: str, use_locking: bool = False):
        super().__init__(name, use_locking)
        self._rule, self._facts = rule, facts
        self._together = Together(self) if rule.scope == "model" else None
        self._calls = Cache()
        self._now: dict[str, Any] = {}
        self._made: dict[Any, dict[str, Any]] = {}
        self._written: dict[Any, Any] = {}
        self._with_state = Variables()
        self._fast = Cache()
        self._waiting: list[Update] = []
        self._waits_at: Any = None
        self._scalars_waiting: dict[tuple[str, int], Rates] = {}

    # ---- State ----------------------------------------------------------------------------------

    def _create_slots(self, var_list: Iterable[Any]) -> None:
        variables = list(var_list)
        self._assert_valid_dtypes(variables)
        if self._together is not None:
            self._together.create(variables)
            return
        # In the order of the originals: programs may save `tf.global_variables()` by position.
        first = min(variables, key=lambda variable: variable.name)
        for hyperparameter, name in self._facts.powers.items():
            with reaching(self._facts.changing.get(hyperparameter)):
                self._create_non_slot_variable(self._initial(hyperparameter), name, first)
        for variable in variables:
            if id(variable) in self._with_state:
                continue
            self._with_state[id(variable)] = variable
            like = like_of(variable)
            with reaching(variable):  # the shape may come from its initial value
                for name, slot in self._described(like).items():
                    self._make_slot(variable, like, name, slot)
        if self._facts.counter is not None:
            name, dtype = self._facts.counter
            zero = tf.zeros([], dtype or dtype_of(first))
            self._create_non_slot_variable(zero, name, first)

    def _initial(self, hyperparameter: str) -> Any:
        value = self._facts.changing.get(hyperparameter, getattr(self._rule, hyperparameter))
        if is_variable(value):
            return initial_value(value)  # the powers may be initialized before it
        return value() if callable(value) else value

    def _described(self, like: Like) -> Mapping[str, Slot]:
        return self._facts.slots(like, dict(self._rule.slots(like)))

    def _make_slot(self, variable: Any, like: Like, name: str, slot: Slot) -> Any:
        op_name = self._facts.op_name(name) or self._name
        if tuple(slot.shape) == like.shape and slot.initial == 0:
            return self._zeros_slot(variable, name, op_name)
        if not variable.shape.is_fully_defined():
            value = tf.fill(tf.shape(native(variable)), tf.cast(slot.initial, like.dtype))
            return self._get_or_make_slot(variable, value, name, op_name)

        def initial(shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
            if slot.initial == "identity":
                return tf.eye(*slot.shape[-2:], batch_shape=slot.shape[:-2], dtype=dtype)
            return tf.fill(shape, tf.cast(slot.initial, dtype))

        return self._get_or_make_slot_with_initializer(
            variable, initial, tf.TensorShape(slot.shape), tf.as_dtype(like.dtype), name, op_name
        )

    def _create_or_restore_slot_variable(
        self, slot_variable_position: Any, slot_name: str, variable: Any
    ) -> None:
        """Create a slot that `tf.train.Checkpoint` has read, with the shape that the rule wants."""
        like = like_of(variable)
        slot = self._described(like).get(slot_name)
        # Otherwise TensorFlow gives it the variable's shape.
        if slot is not None and tuple(slot.shape) != like.shape and tf.executing_eagerly():
            self._make_slot(variable, like, slot_name, slot)
        super()._create_or_restore_slot_variable(slot_variable_position, slot_name, variable)

    def _state(self, name: str) -> Any:
        return self._get_non_slot_variable(name, graph=outermost_graph())

    def _count(self) -> Any:
        """Return the variable that counts steps, if there is one."""
        return self._state(self._facts.counter[0])  # type: ignore[index]

    def _powers(self) -> dict[str, Any]:
        """Return the variables with powers, by hyperparameter."""
        return {h: self._state(name) for h, name in self._facts.powers.items()}

    # ---- A step ---------------------------------------------------------------------------------

    def _run(self, pairs: Pairs, global_step: Any, name: str | None) -> Any:
        facts = self._facts
        given = [facts.learning_rate, facts.global_step, *facts.changing.values()]
        check_graph(given, self)
        if self._rule.needs_finite:
            known = [(_exact(getattr(g, "values", g)), v) for g, v in pairs if g is not None]
            refuse_unless_finite(self, *zip(*known, strict=True))
        if in_a_graph() or tf.distribute.has_strategy():
            return super()._run(pairs, global_step, name)
        # Outside of graphs, variables of one kind are compiled and updated together.
        self._waiting, self._waits_at = [], place()
        try:
            done = super()._run(pairs, global_step, name)
            for updates in rounds(self._waiting):
                execute(self, updates, self._scalars_waiting)
        finally:
            self._waiting, self._waits_at = [], None
        return done

    def _prepare(self) -> None:
        values = {"learning_rate": self._facts.learning_rate, **self._facts.changing}
        for name in (*self._facts.powers, *self._facts.raised):
            values.setdefault(name, getattr(self._rule, name))
        self._made, self._written = {}, {}
        self._now = {name: value_now(value, self._count) for name, value in values.items()}

    def _scalars(self, dtype: str) -> dict[str, Any]:
        """Return the scalars of this step and the changing hyperparameters, in a data type."""
        key = dtype, place()
        if key not in self._made:
            now = {name: tf.cast(value, dtype) for name, value in self._now.items()}
            lr = now.pop("learning_rate")
            done = self._done()
            step = self._number(now, dtype, done)
            found = dict(self._rule.formula(now).scalars(lr, step))
            if tf.is_tensor(step):
                found["step"] = step
            found = {name: tf.cast(value, dtype) for name, value in found.items()}
            found |= {HYPERPARAMETER + name: v for name, v in now.items()}
            if done is not None:
                found[ITERATION] = tf.cast(done, "int32") + 1
            self._made[key] = found
        return self._made[key]

    def _done(self) -> Any:
        """Return the number of steps before this one, if something counts them."""
        step = native(self._facts.global_step)
        if step is not None:
            return read(step) if is_variable(step) else tf.identity(step)
        return None if self._facts.counter is None else self._count()

    def _number(self, now: Mapping[str, Any], dtype: str, done: Any) -> Any:
        """Return the number of this step, after `done`, or an `Exponent` if powers are kept."""
        if self._facts.powers:
            kept = self._powers().items()
            return Exponent({id(now[name]): tf.cast(power, dtype) for name, power in kept})
        if done is None or self._facts.global_step is None:
            return None if done is None else tf.cast(done, dtype) + 1
        wide = "float64" if dtype == "float64" else "float32"
        step = tf.cast(done, wide) + 1
        powers = {
            id(now[name]): tf.cast(tf.cast(self._now[name], wide) ** step, dtype)
            for name in self._facts.raised
        }
        step = tf.cast(step, dtype)
        return Exponent(powers, step) if powers else step

    def _move(self, variable: Any, g: Any, indices: Any) -> Any:
        if self._together is not None:
            return self._together.move(variable, g, indices)
        like = like_of(variable)
        described = self._rule.slots(like)
        names = tuple(described)
        slots = [self.get_slot(variable, name) for name in names]
        mode, mask = "dense", None
        if indices is not None and self._rule.takes_rows(like):
            mode = self._rule.sparse
        if indices is not None and mode != "rows":
            mask = row_mask(indices, variable, g) if mode == "move_rows" else None
            g = to_dense(g, indices, variable)
        in_rows = mode == "rows"
        # Where the shape is not known, slots have that of the variable.
        by_row = [
            sees_rows(slot, like) if like.shape else slot.by_row is not False
            for slot in described.values()
        ]
        cut = [in_rows, *(in_rows and one for one in by_row)]
        if self._waits_at == place() and variable.constraint is None:
            if in_rows:
                g = RowGradient.unchecked(g, indices, like.shape, named=True)
            kind = self._kind_of(mode, like)
            call = self._call(kind, names)
            update = Update(kind, 0, like, names, slots, tuple(cut), call, variable, g, mask)
            self._waiting.append(update)
            self._scalars_waiting[like.dtype, 0] = Rates(self._scalars(like.dtype), 1)
            return None
        rows = [indices if by_row else None for by_row in cut]
        everything = [variable, *slots]
        old = [self._value_so_far(v, i) for v, i in zip(everything, rows, strict=True)]
        call = self._call(self._kind_of(mode, like), names)
        x, changed = call(in_branch(g), old[0], old[1:], self._scalars(like.dtype), mask)
        new = [x, *changed]
        # Read everything before anything is written.
        with following(new):
            done = {
                (id(v), place()): write(v, value, i, self._use_locking)
                for v, value, i in zip(everything, new, rows, strict=True)
                if value is not None
            }
            self._written |= done
            return group(*done.values())

    def _value_so_far(self, variable: Any, rows: Any) -> Any:
        """Return the value of a variable, or of some rows, after the updates of this step so far.

        A variable that is listed twice moves twice: the second update starts from the first.
        """
        written = self._written.get((id(variable), place()))
        if written is not None:
            variable = value_of(written)
        if rows is not None:
            return tf.gather(variable, rows)
        return read(variable) if written is None else variable

    # `execute` reads these.
    fused = property(lambda self: self._rule.fused)
    flat = property(lambda self: self._rule.flat)

    def rule_to_share(self, number: int = 0) -> tuple[Any, tuple[str, ...]]:
        """Return the rule, and the names of hyperparameters that are scalars of each step."""
        return self._rule.with_attributes(dict.fromkeys(self._changing())), self._changing()

    def _changing(self) -> tuple[str, ...]:
        facts = self._facts
        return tuple(dict.fromkeys([*facts.changing, *facts.powers, *facts.raised]))

    def _kind_of(self, mode: str, like: Like) -> Kind:
        facts = () if self._rule.scope == "element" else tuple(self._rule.facts_of(like).items())
        scope = self._rule.scope_of(like)
        return Kind(mode, like.dtype, scope, decays=False, named=True, facts=facts)

    def _call(self, kind: Kind, names: tuple[str, ...]) -> Callable:
        if (kind, names) not in self._calls:
            self._calls[kind, names] = bind_rule(
                self._rule, kind, names, OVER_ONE, self._changing()
            )
        return self._calls[kind, names]

    def _finish(self, update_ops: list[Any], name_scope: str) -> Any:
        if self._together is not None:
            return self._together.finish(update_ops, name_scope)
        advanced = []
        with following(update_ops):
            for hyperparameter, power in self._powers().items():
                factor = tf.cast(self._now[hyperparameter], dtype_of(power))
                with framework.colocate_with(power):
                    advanced.append(write(power, read(power) * factor, None, self._use_locking))
            if self._facts.counter is not None:
                count = self._count()
                with framework.colocate_with(count):
                    advanced.append(write(count, read(count) + 1, None, self._use_locking))
        return group(*update_ops, *advanced, name=name_scope)


def _exact(values: Any) -> Any:
    """Return numbers in float32 at least, in which squares of halves do not overflow."""
    return tf.cast(values, "float32") if values.dtype.size < 4 else values
