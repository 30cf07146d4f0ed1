"""Make the Keras optimizer of the same rule, and copy state between the two."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras import ops

from keras_tfopt.engine import array_of, prepare, set_steps, slots_of, variables_of
from keras_tfopt.legacy.checkpoints.names import laid_as_built, laid_by_name
from keras_tfopt.legacy.checkpoints.powers import power_after, steps_of_power
from keras_tfopt.legacy.checkpoints.training_state import derive, state_at, steps_of
from keras_tfopt.legacy.graph import backend
from keras_tfopt.legacy.graph.backend import in_a_graph, is_eager, native, outermost_graph
from keras_tfopt.legacy.graph.executor import Executor
from keras_tfopt.legacy.graph.verbs import Verbs

# After this many steps, powers of decay rates have become zero.
_MANY = 10**6


class Converting(Verbs):
    """Verbs with a Keras optimizer of the same rule, to which they copy their state.

    Both keep the state in their own variables. Reading `keras` copies it to the Keras optimizer,
    and the next verb copies it back.
    """

    _steps_with_keras = False
    _optimizer: Any = None
    _global_step: Any = None  # of the last verb
    _is_there = False  # whether the Keras optimizer has the newer state
    _traced = False  # whether a compiled function may still change the state here
    _steps_seen = 0  # of the Keras optimizer, when the state was last copied either way
    _traced_seen = 0  # of compiled functions here, when it was last copied to the Keras optimizer
    # Eager steps, and steps in compiled functions, for rules that do not count their steps.
    _eager_steps = 0
    _traced_steps: Any = None

    _make_keras: Callable[[], Any]

    def _hand_over(self) -> None:
        """Copy the state to the Keras optimizer."""
        raise NotImplementedError

    def _adopt(self) -> None:
        """Copy the state from the Keras optimizer, which is built."""
        raise NotImplementedError

    def _own_slots(self, variables: list[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield pairs of slots that both have: that of the Keras optimizer, and ours."""
        for variable in variables:
            for name, slot in slots_of(self._optimizer, variable).items():
                own = self._own_slot(variable, name)
                if own is not None:
                    yield slot, own

    def _slots_to_keras(self, variables: list[Any]) -> None:
        for slot, own in self._own_slots(variables):
            slot.assign(ops.cast(own.read_value(), slot.dtype))

    def _slots_from_keras(self, variables: list[Any]) -> None:
        for slot, own in self._own_slots(variables):
            own.assign(ops.cast(ops.convert_to_tensor(slot), own.dtype.name))

    def _as_given(self, variable: Any) -> Any:
        """Return a variable as the program gave it: of Keras or of TensorFlow."""
        return self._given.get(id(native(variable)), variable)

    def _know(self, variables: list[Any]) -> list[Any]:
        """Remember variables of Keras, and return the TensorFlow variables in them."""
        self._given.update({id(native(variable)): variable for variable in variables})
        return [native(variable) for variable in variables]

    @property
    def keras(self) -> Any:
        """The Keras optimizer: for `model.compile`, or for `apply`, `slot` and saving.

        It is always the same object. Reading this property copies the state of the verbs to it, and
        the next verb continues from its state. Read the property again before you train with it
        again.

        Raises:
            RuntimeError: in graphs of TensorFlow 1, where Keras has no optimizers; or if both made
                steps since the property was last read.
        """
        check_outside_graphs(self)
        if self._optimizer is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the constructor has warned already
                self._optimizer = self._make_keras()
            self._steps_seen = self._steps_there()  # those of an optimizer inside
        if not self._is_there or self._has_moved_here():
            self._check_unmoved()
            self._hand_over()
        self._is_there, self._steps_seen = True, self._steps_there()
        self._traced_seen = self._steps_traced()
        return self._optimizer

    def _steps_there(self) -> int:
        return int(array_of(self._optimizer.iterations))

    def _check_unmoved(self) -> None:
        if self._steps_there() != self._steps_seen:
            raise RuntimeError(
                f"Both {type(self).__name__} and its `keras` have been trained with since `keras` "
                "was last asked for, so that neither has the whole state. Ask for `keras` again "
                "before training with it"
            )

    def _take_back(self) -> None:
        """Copy the state back from the Keras optimizer if it is newer, in eager code."""
        made = self._optimizer
        if not is_eager() or made is None or not made.built:
            return
        if not self._is_there or self._has_moved_here():
            self._check_unmoved()
            self._is_there = False
            return
        self._is_there, self._steps_seen = False, self._steps_there()
        self._adopt()

    def _has_moved_here(self) -> bool:
        """Return whether compiled functions made steps since the state was copied."""
        if self._traced and self._traced_steps is None:  # not counted
            return self._steps_there() == self._steps_seen
        return self._steps_traced() != self._traced_seen

    def _steps_traced(self) -> int:
        # AutoGraph would turn int(variable) into a tensor.
        return 0 if self._traced_steps is None else int(self._traced_steps.numpy())

    def _begin_step(self, global_step: Any) -> None:
        self._global_step = global_step
        with backend.lifted():  # also when a function is traced, for its first step
            self._take_back()
        if is_eager():
            self._eager_steps += 1
        elif outermost_graph() is None:
            self._traced = True
            self._traced_steps = backend.add_one_to(self._traced_steps)

    def _steps_of_verbs(self) -> int:
        return self._eager_steps + self._steps_traced()


class ConvertingRule(Converting, Executor):
    """A rule, whose state is copied slot by slot, by name."""

    def _hand_over(self) -> None:
        made = self._optimizer
        here = [self._as_given(variable) for variable in self._variables_with_state()]
        if not here:
            return
        prepare(made, here)
        self._slots_to_keras(here)
        for name in self._facts.shared:
            array = laid_as_built(array_of(self._state(name)), *self._layout())
            state_at(made, None, name).assign(array)
        derive(made)
        set_steps(made, self._steps_done())
        for hyperparameter, power in _powers_of(made).items():
            power.assign(ops.cast(self._powers()[hyperparameter].read_value(), power.dtype))
        self._tell_keras(self._global_step)

    def _tell_keras(self, global_step: Any) -> None:
        """Give the Keras optimizer the global step, if it needs it."""

    def _adopt(self) -> None:
        made = self._optimizer
        variables = variables_of(made)
        if not variables:
            return
        self._create_slots(self._know(variables))
        self._slots_from_keras(variables)
        for name in self._facts.shared:
            array = array_of(state_at(made, None, name))
            self._state(name).assign(laid_by_name(array, *self._layout()))
        steps = steps_of(made)
        self._eager_steps += steps - self._steps_of_verbs()
        for hyperparameter, power in self._powers().items():
            if steps and hyperparameter in _powers_of(made):
                kept = ops.convert_to_tensor(_powers_of(made)[hyperparameter])
                power.assign(ops.cast(kept, power.dtype.name))
                continue
            beta = self._initial(hyperparameter)
            power.assign(ops.cast(power_after(steps, float(array_of(beta))), power.dtype.name))
        if self._facts.counter is not None:
            count = self._count()
            count.assign(ops.cast(steps, count.dtype.name))

    def _variables_with_state(self) -> list[Any]:
        """Return the variables that eager steps have moved, in the order of their first steps."""
        known = self._with_state.values()
        return [v for v in known if not getattr(v, "_in_graph_mode", False)]

    def _layout(self) -> tuple[list[str], list[int]]:
        """Return names and sizes of the variables, in the order of the Keras optimizer."""
        variables = variables_of(self._optimizer)
        sizes = [math.prod(backend.shape_of(variable)) for variable in variables]
        return [backend.name_of(variable) for variable in variables], sizes

    def _steps_done(self) -> int:
        """Return the number of steps done, by the state."""
        if self._facts.counter is not None:
            return int(self._count())
        found = []
        for hyperparameter, power in self._powers().items():
            if hyperparameter in self._facts.changing:
                continue  # the product of different betas does not give their number
            beta = float(array_of(self._initial(hyperparameter)))
            found.append(steps_of_power(float(array_of(power)), beta))
        known = [steps for steps in found if steps is not None]
        if known:
            return known[-1]
        return max(_MANY, self._steps_of_verbs()) if found else self._steps_of_verbs()


def _powers_of(made: Any) -> dict[str, Any]:
    """Return the variables with powers of hyperparameters that a Keras optimizer keeps."""
    return {} if made.powers is None else made.powers.variables


def check_outside_graphs(optimizer: Any) -> None:
    """Raise an error for a Keras optimizer that is asked for in a graph of TensorFlow 1."""
    if in_a_graph():
        raise RuntimeError(
            f"{type(optimizer).__name__}.keras is for eager programs: there are no Keras "
            "optimizers in graphs of tf.compat.v1. Ask for it outside of "
            "`with graph.as_default():`"
        )


def keras_of(optimizer: Any) -> Any:
    """Return the Keras optimizer of an optimizer inside another one, or raise an error."""
    made = getattr(optimizer, "keras", None)
    if not isinstance(made, keras.optimizers.Optimizer):
        raise TypeError(
            f"{type(optimizer).__name__} of tf.compat.v1.train has no counterpart in Keras. Use "
            "the optimizer of that name of keras_tfopt.legacy inside"
        )
    return made
