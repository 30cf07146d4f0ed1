"""The Keras optimizer of the same rule, and the state on its way between the two."""

from __future__ import annotations

import math
import warnings
from typing import Any

import keras
from keras import ops

from keras_tfopt.execution import (
    array_of,
    derive,
    prepare,
    set_steps,
    slots_of,
    state_at,
    steps_of,
    variables_of,
)
from keras_tfopt.execution.graph import (
    Executor,
    Pairs,
    Verbs,
    in_a_graph,
    is_eager,
    name_of,
    native,
    operations,
    outermost_graph,
)
from keras_tfopt.legacy.checkpoints.names import laid_as_built, laid_by_name
from keras_tfopt.legacy.checkpoints.powers import power_after, steps_of_power

# So many that no power of a decay rate is left.
_MANY = 10**6


class Converting(Verbs):
    """Gives a Keras optimizer, and takes over what that has learned.

    Each side has variables of its own, of other names and data types. The state goes over when
    `keras` is asked for, and back at the next verb.
    """

    _steps_with_keras = False
    _keras_optimizer: Any = None
    _is_there = False  # whether the state that counts is that of the Keras optimizer
    _traced = False  # whether a compiled function may go on changing the state here
    _steps_seen = 0  # of the Keras optimizer, when the state last went over or back
    _traced_seen = 0  # of compiled functions here, when it last went over
    # Steps, for rules that do not count them: eager ones, and those of compiled functions.
    _eager_steps = 0
    _traced_steps: Any = None

    def _make_keras(self) -> Any:
        """A new Keras optimizer."""
        raise NotImplementedError

    def _hand_over(self) -> None:
        """Puts the state into the Keras optimizer."""
        raise NotImplementedError

    def _adopt(self) -> None:
        """Takes the state from the Keras optimizer, which is built."""
        raise NotImplementedError

    @property
    def keras(self) -> Any:
        """The Keras optimizer: for `model.compile`, or for `apply`, `slot` and saving.

        It is the same object in each access. It has the state that the verbs have left when it is
        asked for, and the next verb goes on from the state that it has then; ask for it again after
        that.

        Raises:
            RuntimeError: in graphs of TensorFlow 1, where Keras has no optimizers; or if both have
                been trained with since it was last asked for.
        """
        check_outside_graphs(self)
        if self._keras_optimizer is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the constructor has warned already
                self._keras_optimizer = self._make_keras()
        if not self._is_there or self._has_moved_here():
            self._check_unmoved()
            self._hand_over()
        self._is_there, self._steps_seen = True, self._steps_there()
        self._traced_seen = self._steps_traced()
        return self._keras_optimizer

    def _steps_there(self) -> int:
        return int(array_of(self._keras_optimizer.iterations))

    def _check_unmoved(self) -> None:
        if self._steps_there() != self._steps_seen:
            raise RuntimeError(
                f"Both {type(self).__name__} and its `keras` have been trained with since `keras` "
                "was last asked for, so that neither has the whole state. Ask for `keras` again "
                "before training with it"
            )

    def _take_back(self) -> None:
        """Goes on from the state of the Keras optimizer, where eager and if it is what counts."""
        made = self._keras_optimizer
        if not is_eager() or made is None or not made.built:
            return
        if not self._is_there or self._has_moved_here():
            self._check_unmoved()
            self._is_there = False
            return
        self._is_there, self._steps_seen = False, self._steps_there()
        self._adopt()

    def _has_moved_here(self) -> bool:
        """Whether compiled functions have made steps since the state went over."""
        if self._traced and self._traced_steps is None:  # not counted
            return self._steps_there() == self._steps_seen
        return self._steps_traced() != self._traced_seen

    def _steps_traced(self) -> int:
        # AutoGraph makes a tensor of int(variable).
        return 0 if self._traced_steps is None else int(self._traced_steps.numpy())

    def _run(self, pairs: Pairs, global_step: Any, name: str | None) -> Any:
        self._begin_verb()
        return super()._run(pairs, global_step, name)

    def _begin_verb(self) -> None:
        with operations.lifted():  # also when a function is traced, for its first step
            self._take_back()
        if is_eager():
            self._eager_steps += 1
        elif outermost_graph() is None:
            self._traced = True
            self._traced_steps = operations.add_one_to(self._traced_steps)

    def _steps_of_verbs(self) -> int:
        return self._eager_steps + self._steps_traced()

    def get_slot(self, var: Any, name: str) -> Any:
        """The state called `name` of a variable; None if there is none, or not yet."""
        self._take_back()
        return super().get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """The names of the slots there are, in alphabetical order; none before the first step."""
        self._take_back()
        return super().get_slot_names()

    def variables(self) -> list[Any]:
        """The variables with the state in the graph that is being built, sorted by name."""
        self._take_back()
        return super().variables()


class ConvertingRule(Converting, Executor):
    """A rule, whose state goes by the names of its slots."""

    def _hand_over(self) -> None:
        made = self._keras_optimizer
        here = self._variables_with_state()
        if not here:
            return
        prepare(made, [self._given.get(id(variable), variable) for variable in here])
        for variable in here:
            for name, slot in slots_of(made, self._given.get(id(variable), variable)).items():
                own = Verbs.get_slot(self, variable, name)
                if own is not None:
                    slot.assign(ops.cast(own.read_value(), slot.dtype))
        for name in self._plan.shared:
            array = laid_as_built(array_of(self._non_slot(name)), *self._layout())
            state_at(made, None, name).assign(array)
        derive(made)
        set_steps(made, self._steps_done())
        for hyperparameter, power in made.powers.items():
            power.assign(ops.cast(self._powers()[hyperparameter].read_value(), power.dtype))

    def _adopt(self) -> None:
        made = self._keras_optimizer
        variables = variables_of(made)
        if not variables:
            return
        natives = [native(variable) for variable in variables]
        self._given.update({id(n): v for n, v in zip(natives, variables, strict=True)})
        self._create_slots(natives)
        for variable, own in zip(variables, natives, strict=True):
            for name, slot in slots_of(made, variable).items():
                kept = Verbs.get_slot(self, own, name)
                if kept is not None:
                    kept.assign(ops.cast(ops.convert_to_tensor(slot), kept.dtype.name))
        for name in self._plan.shared:
            array = array_of(state_at(made, None, name))
            self._non_slot(name).assign(laid_by_name(array, *self._layout()))
        steps = steps_of(made)
        self._eager_steps += steps - self._steps_of_verbs()
        for hyperparameter, power in self._powers().items():
            if steps and hyperparameter in made.powers:
                kept = ops.convert_to_tensor(made.powers[hyperparameter])
                power.assign(ops.cast(kept, power.dtype.name))
                continue
            beta = self._initial(hyperparameter)
            power.assign(ops.cast(power_after(steps, float(array_of(beta))), power.dtype.name))
        if self._plan.counter is not None:
            count = self._count()
            count.assign(ops.cast(steps, count.dtype.name))

    def _variables_with_state(self) -> list[Any]:
        """The variables that eager steps have moved, in the order in which they came."""
        known = self._with_state.values()
        return [v for v in known if not getattr(v, "_in_graph_mode", False)]

    def _layout(self) -> tuple[list[str], list[int]]:
        """Names and sizes of the variables, as they follow one another in the Keras optimizer."""
        variables = variables_of(self._keras_optimizer)
        sizes = [math.prod(operations.shape_of(variable)) for variable in variables]
        return [name_of(variable) for variable in variables], sizes

    def _steps_done(self) -> int:
        """How many steps the state says have been made."""
        if self._plan.counter is not None:
            return int(self._count())
        found = []
        for hyperparameter, power in self._powers().items():
            if hyperparameter in self._plan.changing:
                continue  # a product of several betas does not tell how many
            beta = float(array_of(self._initial(hyperparameter)))
            found.append(steps_of_power(float(array_of(power)), beta))
        known = [steps for steps in found if steps is not None]
        if known:
            return known[-1]
        return max(_MANY, self._steps_of_verbs()) if found else self._steps_of_verbs()


def check_outside_graphs(optimizer: Any) -> None:
    """Raises an error for a Keras optimizer that is asked for in a graph of TensorFlow 1."""
    if in_a_graph():
        raise RuntimeError(
            f"{type(optimizer).__name__}.keras is for eager programs: there are no Keras "
            "optimizers in graphs of tf.compat.v1. Ask for it outside of "
            "`with graph.as_default():`"
        )


def keras_of(optimizer: Any) -> Any:
    """The Keras optimizer of one inside another, or an error."""
    made = getattr(optimizer, "keras", None)
    if not isinstance(made, keras.optimizers.Optimizer):
        raise TypeError(
            f"{type(optimizer).__name__} of tf.compat.v1.train has no counterpart in Keras. Use "
            "the optimizer of that name of keras_tfopt.legacy inside"
        )
    return made
