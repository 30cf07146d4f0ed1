"""A wrapper as an optimizer of Keras: hooks around the step of the optimizer inside."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras

from keras_tfopt.engine.arguments import assignment
from keras_tfopt.engine.arguments.construction import Constructed, instance
from keras_tfopt.engine.arguments.hyperparameters import Known, arguments_in
from keras_tfopt.engine.arguments.options import AVERAGING, CLIPPING_AND_DECAY, DEFAULTS
from keras_tfopt.engine.averages import parts
from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.foreign import ForeignMover, VerbMover, state_of
from keras_tfopt.engine.keras_private import tracked
from keras_tfopt.engine.nesting import (
    PassingOn,
    check_accumulation,
    check_alike,
    check_around,
    check_inner,
    check_not_outermost,
    innermost,
    pass_groups,
    pass_option,
)
from keras_tfopt.engine.optimizer import Optimizer
from keras_tfopt.engine.rows import sees_rows
from keras_tfopt.engine.state.building import add_slot, check_slots_of_elements, generators_of
from keras_tfopt.engine.state.state import (
    HYPERPARAMETER,
    NO_SETTINGS,
    Entry,
    Like,
    Settings,
    Slot,
    widest,
)
from keras_tfopt.engine.step import gradients, hooks
from keras_tfopt.engine.step.gradients import Incoming
from keras_tfopt.engine.step.pipeline import Pipeline
from keras_tfopt.engine.step.results import (
    check_class_attribute,
    check_counted,
    check_result,
    checked_before,
    checked_list,
    checked_slots,
)
from keras_tfopt.engine.step.shared_code import is_ours
from keras_tfopt.engine.trial import trial

Step = Callable[[list[Any], list[Any]], None]  # of gradients and variables
# Gradients to continue with, whether to make the step (None: yes), and new counters.
Decision = tuple[list[Any], Any, dict[str, Any]]

# Hooks and methods of `WrappingEngine` that a step calls only on wrappers that define them.
ASKED = (
    *hooks.HOOKS,
    "raise_late_errors",
    "own_gradients",
    "completed",
    "decide",
    "scalars_in",
    "meet",
)


class Hooks(Constructed):
    """Defaults of the attributes and hooks of a wrapper; `keras_tfopt.Wrapper` documents them."""

    defines: frozenset[str] = frozenset()
    """Which of `ASKED` the class defines."""
    sparse = "dense"
    scope = "variable"
    flat = False
    needs_old = False
    needs_gradient = True
    rows_alone = False
    """Whether the hooks look at each row of a table alone."""
    by_rate = True
    """Whether `t` may differ between variables with different learning rates or weight decays."""

    if TYPE_CHECKING:  # `keras_tfopt.Wrapper` has them
        slots: Callable[[Like], dict[str, Slot]]
        scalars: Callable[[Any, Any], dict[str, Any]]
        own_arguments: Callable[[], list[str]]
        changing_arguments: Callable[[], dict[str, Any]]

    def counters(self) -> dict[str, Slot]:
        return {}

    def before(self, g: Any, x: Any, s: Any, t: Any) -> tuple:
        return g, x

    def after(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        return x, {}

    def accept(self, g: Any, x: Any, t: Any) -> Any:
        return True

    def accept_step(self, grads: list[Any], s: Any) -> tuple[Any, dict[str, Any]]:
        return True, {}

    def before_step(self, grads: list[Any], variables: list[Any]) -> list[Any]:
        return grads

    def after_step(self, variables: list[Any]) -> list[Any] | None:
        return None

    def facts(self, like: Like) -> dict[str, Any]:
        return {}

    def reach(self, like: Like) -> str | None:
        return self.sparse

    def decays(self, like: Like, by_rows: bool) -> bool:
        """Return whether the wrapper shrinks a variable in the next step."""
        return False

    def workers(self) -> int:
        """Return the number of workers that step together."""
        return 1

    def agreed(self, condition: Any) -> Any:
        """Return whether a condition holds on all workers that step together."""
        return condition

    def leaves_out_steps(self) -> bool:
        """Return whether the optimizer inside may make no step in some calls."""
        return "accept_step" in self.defines


class WrappingEngine(Hooks, PassingOn, Optimizer):
    """Run a wrapper's hooks around the step of `inner_optimizer`; see `keras_tfopt.Wrapper`."""

    is_engine = True
    workers_agree = False
    """Whether a LossScaleOptimizer around it asks all workers before each step."""
    _engine_attributes: frozenset[str] = frozenset()

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        own = ((name, getattr(cls, name, None)) for name in ASKED)
        cls.defines = frozenset(n for n, f in own if f is not getattr(WrappingEngine, n, None))
        if {"before", "after"} & vars(cls).keys():
            cls.needs_gradient = vars(cls).get("needs_gradient", True)  # not that of other hooks
        check_class_attribute(cls, "scope", ("variable", "element"))
        check_class_attribute(cls, "sparse", ("dense", "rows"))

    def __init__(self, inner_optimizer: Any, name: str | None = None, **base: Any):
        self._lock = False
        inner = check_inner(inner_optimizer, type(self).__name__)
        groups = base.pop("groups", None)
        check_around(type(self), base, inner)
        check_not_outermost(inner, type(self).__name__)
        # With its own learning rate, there would be a variable that nothing reads.
        super().__init__(learning_rate=lambda: inner.learning_rate, name=name)
        self.leave_to_inner(*CLIPPING_AND_DECAY, *AVERAGING)
        self._start()
        self.inner_optimizer = inner
        inside = pipeline_of(inner)
        self._pipeline = Pipeline((self, *inside.wrappers), inside.mover)
        self._changing: dict[str, Any] = {}
        self._done = None
        # The settings of variables in groups that matter to hooks, by index.
        self._rates: tuple[Settings, ...] = ()
        if groups is not None:
            pass_groups(self, innermost(self), groups)
        self._own_code = object()  # see `code_of`
        self._engine_attributes = frozenset([*vars(self), "_engine_attributes", "_is_made"])

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_made:
            if name in DEFAULTS and name not in self.own_arguments():
                pass_option(self, name, value)
                return
            value = assignment.checked(self, name, value)
        super().__setattr__(name, value)
        if self._is_made and name in self.own_arguments():
            self._changing = self.changing_arguments()
            for part in parts(self):  # their compiled code has the earlier value
                getattr(part, "_statics", {}).clear()
                getattr(part, "_fast", {}).clear()

    # ---- State ----------------------------------------------------------------------------------

    def _create(self, variables: list[Any], likes: list[Like]) -> None:
        counters = checked_slots(self, self.counters(), "counters")
        self._changing = self.changing_arguments()
        if not is_ours(type(self)):  # ours are tested
            trial.check_hooks(self, likes)
        if not self.inner_optimizer.built:
            with tracked():
                self.inner_optimizer.build(variables)
        check_accumulation(self)
        check_alike(self)
        self._add_entries(variables, likes)
        whole = Like((), widest([like.dtype for like in likes]), self.name)
        for name, slot in counters.items():
            self._state.shared[name] = add_slot(self, None, whole, name, slot)
        for name, generator in generators_of(self).items():
            # Compiled steps of JAX keep what they assign to a part of the state only.
            self._state.other[f"state of {name}"] = generator.state
            self._variables.append(generator.state)

    def _entry(self, variable: Any, like: Like, place: int) -> Entry:
        described = checked_slots(self, self.slots(like))
        if self.scope == "element":
            check_slots_of_elements("wrapper", described, like)
        slots = {name: add_slot(self, variable, like, name, s) for name, s in described.items()}
        # A variable that is overwritten with its gradient takes no steps, so no hooks run.
        overwritten = self._overwrite_variable_with_gradient(variable)
        reach = None if overwritten else self._checked_reach(like)
        # Optimizers of Keras overwrite it themselves.
        own = isinstance(self._pipeline.mover.optimizer, Optimizer)
        return Entry(
            variable,
            like,
            slots,
            self.facts(like),
            overwritten and own,
            cut=(bool(like.shape), *(sees_rows(slot, like) for slot in described.values())),
            settings=self.settings_of(like),
            scalars=(like.dtype, self._rate_of(self.settings_of(like))),
            reach=reach,
            master=self._pipeline.mover.master_of(place),
        )

    def _has_choices(self) -> bool:
        inner = self.inner_optimizer
        return super()._has_choices() or isinstance(inner, Optimizer) and inner._has_choices()

    def _checked_reach(self, like: Like) -> str | None:
        reach = self.reach(like)
        if reach not in ("dense", "rows", None):
            raise ValueError(
                f'{type(self).__name__}.reach must return "dense", "rows" or None. '
                f"Received: {reach!r}"
            )
        return reach

    def _rate_of(self, settings: Settings) -> int:
        """Return the index of the scalars of a variable."""
        for number, known in enumerate(self._rates):
            same = known.factor == settings.factor and known.decay == settings.decay
            if same or not self.by_rate:
                return number
        self._rates = (*self._rates, settings if self.by_rate else NO_SETTINGS)
        return len(self._rates) - 1

    @property
    def slot_names(self) -> tuple[str, ...]:
        """Names of the slots of the wrapper and of the inner optimizer, if that names them."""
        own = tuple(self.slots(Like((1,), keras.backend.floatx(), "")))
        return own + tuple(getattr(self.inner_optimizer, "slot_names", ()))

    def _own_names(self, shape: tuple[int, ...]) -> tuple[str, ...]:
        return (*self.slots(Like(shape, keras.backend.floatx(), "")), *self.counters())

    @property
    def variables(self) -> list[Any]:
        """The wrapper's own state, then the inner optimizer's."""
        return self._variables[:] + self.inner_optimizer.variables

    def _argument_roles(self) -> dict[int, str]:
        return {id(getattr(self, name)): HYPERPARAMETER + name for name in self.own_arguments()}

    def hooks_alone(self, values: Mapping[str, Any] | None = None) -> Any:
        """Return the `self` of hooks that are compiled alone, with what the constructor has set.

        Args:
            values: Arguments with other values, by name.
        """
        own = {name: getattr(self, name) for name in self.own_arguments()}
        own.update({n: v for n, v in vars(self).items() if n not in self._engine_attributes})
        return instance(type(self), {**own, **(values or {})})

    def hooks_in(self, scalars: Mapping[str, Any]) -> Any:
        """Return the `self` of hooks of one variable, in which all arguments are numbers.

        Args:
            scalars: The scalars of a step.
        """
        if not self._changing:
            return self
        return self.hooks_alone(arguments_in(scalars, self._changing))

    def known_count(self, name: str) -> int | None:
        """Return a counter as a number, or None while a step is being compiled."""
        if not self.built:
            return None
        limits = backend.limits(backend.read(self._state.shared[name]))
        return None if limits is None else limits[1]

    def count(self, name: str) -> int:
        """Return a counter as a number, 0 before the optimizer is built."""
        return self.known_count(name) or 0

    def count_now(self, name: str) -> Any:
        """Return a counter as a tensor, also while a step is being compiled."""
        return backend.read(self._state.shared[name]) + 0

    def set_count(self, name: str, value: int) -> None:
        self._state.shared[name].assign(value)

    # ---- A step ---------------------------------------------------------------------------------

    @backend.outside_compiler
    def apply_around(
        self, step: Step, grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> None:
        """Make a step in which `step(grads, variables)` replaces that of the inner optimizer.

        The function must make the inner optimizer's step. It gets row gradients as `RowGradient`.
        """
        mover = VerbMover(self._pipeline.mover.optimizer, step)
        Pipeline((self,), mover).run(self, grads, trainable_variables)

    def is_of_rows(self, place: int) -> bool:
        """Return whether the optimizer inside moves this variable by rows."""
        return self._pipeline.mover.is_of_rows(place)

    # ---- What the pipeline asks -----------------------------------------------------------------

    def decide(self, grads: list[Any], variables: list[Any]) -> Decision:
        """Decide whether the optimizer inside makes this step, and by which gradients."""
        if not ("accept_step" in self.defines and grads):  # without gradients, all are frozen
            return grads, None, {}
        values = [gradients.values_of(g) for g in grads]
        result = self.accept_step(values, self.counters_now())
        check_counted(self, result, self._state.shared)
        return grads, keras.ops.convert_to_tensor(result[0], "bool"), result[1]

    def counters_now(self) -> Any:
        """Return the values of the counters, as attributes by name."""
        counters = {n: backend.read(counter) for n, counter in self._state.shared.items()}
        return collections.namedtuple("State", counters)(**counters)  # type: ignore[misc]

    def run_before(self, incoming: Incoming, scalars: Known) -> list[Any]:
        """Run `before_step` and `before`; return the new gradients."""
        if "before_step" in self.defines:
            grads = self.before_step(incoming.grads, incoming.variables)
            grads = checked_list(self, "before_step", grads, len(incoming.grads))
            incoming = incoming._replace(grads=grads)
        if "before" not in self.defines:
            return incoming.grads

        def call(own: Any, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, Any, dict]:
            return checked_before(self, own.before(g, x, s, t), g, x, s._asdict())

        return hooks.run(self, "before", call, incoming, scalars)

    def run_after(
        self, incoming: Incoming, scalars: Known, done: Any, old: list[Any] | None
    ) -> None:
        """Run `after` and `after_step`, whose `now` gives values at the count `done`."""
        if "after" in self.defines:
            method = f"{type(self).__name__}.after"

            def call(own: Any, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, Any, dict]:
                result = own.after(g, x, s, t)
                return None, *check_result(method, result, x, s._asdict())

            hooks.run(self, "after", call, incoming, scalars, old)
        if "after_step" not in self.defines:
            return
        self._done = done
        try:
            new = self.after_step(incoming.variables)
        finally:
            self._done = None
        if new is not None:
            new = checked_list(self, "after_step", new, len(incoming.variables))
            pairs = zip(incoming.variables, new, strict=True)
            backend.commit([(v, None, keras.ops.cast(x, v.dtype)) for v, x in pairs])

    def state_inside(self, place: int) -> list[Any]:
        """Return the state that the optimizer inside keeps for one variable."""
        return state_of(self.inner_optimizer, place)


def pipeline_of(optimizer: Any) -> Pipeline:
    """Return the pipeline of any optimizer."""
    if isinstance(optimizer, Optimizer):
        return optimizer._pipeline
    return Pipeline((), ForeignMover(optimizer))
