"""Step optimizers of Keras, or of other packages, inside wrappers: as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.keras_private import is_multi_optimizer
from keras_tfopt.engine.optimizer import Optimizer
from keras_tfopt.engine.state.building import path_of
from keras_tfopt.engine.step import gradients
from keras_tfopt.engine.step.gradients import Incoming
from keras_tfopt.engine.step.moving import Mover


class ForeignMover(Mover):
    """Steps of an optimizer whose rule is not known here, which may be a MultiOptimizer.

    Its sums of micro-steps are filled here, as it would fill them itself, so that wrappers see the
    gradient of a whole step. That gradient is scaled so that the optimizer's own divisions cancel.

    Args:
        optimizer: Any optimizer of Keras.
    """

    def __init__(self, optimizer: Any):
        self.optimizer = optimizer
        self.needs_finite = True  # one of its parts may

    def only_moves(self, as_they_come: bool) -> bool:
        """Return False: what else the optimizer does is not known."""
        return False

    def raise_refused_rows(self) -> None:
        """Raise an error for rows out of range in earlier compiled steps of one of its parts."""
        for part in self._own_parts():
            part.raise_refused_rows()

    def refused_rows(self) -> Any:
        """Return None: the optimizer checks its gradients itself."""

    def refuse_unless_finite(self, grads: list[Any], variables: list[Any]) -> None:
        """Raise an error for gradients that would spoil the state; compiled steps raise none."""
        for part in self._own_parts():
            if part.needs_finite:
                part.refuse_unless_finite(grads, variables)

    def count(self, last: Any) -> None:
        """Count a micro-step that is not the last of a step; the optimizer counts steps."""
        if last is not None:
            self.optimizer._iterations.assign_add(ops.cast(ops.logical_not(last), "int32"))

    def accumulate(self, grads: list[Any], places: list[int]) -> None:
        """Add the gradients of a micro-step to the sums."""
        sums = [self.optimizer._accumulated_gradients[place] for place in places]
        # The optimizer keeps sums in the data types of the variables.
        pairs = zip(grads, sums, strict=True)
        backend.accumulate(sums, [ops.cast(gradients.dense(g), one.dtype) for g, one in pairs])

    def means(self, grads: list[Any], places: list[int]) -> tuple[list[Any], list[Any]]:
        """Return the gradients of a step, and masks of rows that the last micro-step named."""
        sums = [self.optimizer._accumulated_gradients[place] for place in places]
        steps = self.optimizer.gradient_accumulation_steps
        means = [
            ops.cast(backend.read(one), gradients.values_of(g).dtype) / steps
            for one, g in zip(sums, grads, strict=True)
        ]
        return means, [backend.row_mask(g) if gradients.is_named(g) else None for g in grads]

    def forget(self) -> None:
        """Do nothing: the optimizer resets its sums itself."""

    def is_of_rows(self, place: int) -> bool:
        """Return whether one of our optimizers in a MultiOptimizer moves the variable by rows."""
        part, place = self._part_at(place)
        return isinstance(part, Optimizer) and part._pipeline.mover.is_of_rows(place)

    def state_of(self, place: int) -> list[Any]:
        """Return the state of the optimizer for one variable."""
        part, place = self._part_at(place)
        return state_of(part, place)

    def averages_of(self, place: int) -> list[Any]:
        """Return none: those of Keras start at zero, and must become the variable in any case."""
        part, place = self._part_at(place)
        return part._pipeline.mover.averages_of(place) if isinstance(part, Optimizer) else []

    def master_of(self, place: int) -> Any:
        """Return the slot with a variable in full precision of one of our optimizers, or None."""
        part, place = self._part_at(place)
        return part._pipeline.mover.master_of(place) if isinstance(part, Optimizer) else None

    def move(self, incoming: Incoming, joined: Any = None) -> None:
        """Have the optimizer make its step."""
        own, grads = self.optimizer, incoming.grads
        if own.gradient_accumulation_steps:
            # The optimizer adds its sums, and divides by the number of micro-steps.
            backend.clear([own._accumulated_gradients[place] for place in incoming.places])
            grads = [g * own.gradient_accumulation_steps for g in grads]
        if own.loss_scale_factor is not None:
            grads = [gradients.scaled(g, own.loss_scale_factor) for g in grads]
        apply_foreign(own, grads, incoming.variables)

    def _own_parts(self) -> list[Mover]:
        several = is_multi_optimizer(self.optimizer)
        parts = self.optimizer.optimizers if several else [self.optimizer]
        return [part._pipeline.mover for part in parts if isinstance(part, Optimizer)]

    def _part_at(self, place: int) -> tuple[Any, int]:
        """Return the optimizer that moves a variable, and the variable's place in it."""
        variable = self.optimizer._trainable_variables[place]
        part = part_of(self.optimizer, variable)
        return part, part._get_variable_index(variable)


class VerbMover(ForeignMover):
    """Steps by a function that calls the optimizer.

    Args:
        optimizer: The optimizer.
        step: Function of gradients and variables that changes the variables.
    """

    def __init__(self, optimizer: Any, step: Callable[[list[Any], list[Any]], None]):
        super().__init__(optimizer)
        self._step = step

    def refused_rows(self) -> Any:
        """Return the counter of the optimizer inside, if it has one."""
        own = isinstance(self.optimizer, Optimizer)
        return self.optimizer._pipeline.mover.refused_rows() if own else None

    def move(self, incoming: Incoming, joined: Any = None) -> None:
        """Call the function."""
        factor, grads = self.optimizer.loss_scale_factor, incoming.grads
        if factor is not None:  # the optimizer divides by it
            grads = [gradients.scaled(g, factor) for g in grads]
        self._step(grads, incoming.variables)


def apply_summed(optimizer: Any, grads: list[Any], variables: list[Any]) -> None:
    """Apply any optimizer to gradients that are already summed over the replicas."""
    if isinstance(optimizer, Optimizer):
        optimizer._pipeline.run(optimizer, grads, variables, summed=True)
    else:
        apply_foreign(optimizer, grads, variables)


def apply_foreign(optimizer: Any, grads: list[Any], variables: list[Any]) -> None:
    """Apply an optimizer of others to gradients that are already summed over the replicas."""
    if backend.replicas() > 1 and not getattr(optimizer, "steps_apart", False):
        # Keras sums over the replicas again. For rows it repeats them, once for each replica, and
        # its optimizers do not sum repeated rows.
        grads = [gradients.dense(g) / backend.replicas() for g in grads]
    native = [in_form_for(optimizer, g, v) for g, v in zip(grads, variables, strict=True)]
    if is_multi_optimizer(optimizer):  # which needs all of its variables
        given = {optimizer._var_key(v): g for v, g in zip(variables, native, strict=True)}
        variables = optimizer._trainable_variables
        native = [given.get(optimizer._var_key(v)) for v in variables]
    optimizer.apply(native, variables)


def in_form_for(optimizer: Any, gradient: Any, variable: Any) -> Any:
    """Return a gradient in a form that the optimizer which moves the variable takes."""
    part = part_of(optimizer, variable)
    if isinstance(part, Optimizer):
        return gradient
    gradient = backend.in_form_for(part, gradient, variable)
    if part.gradient_accumulation_steps and ops.is_tensor(gradient):
        # TensorFlow adds numbers of one dtype only.
        gradient = ops.cast(gradient, variable.dtype)
    return gradient


def part_of(optimizer: Any, variable: Any) -> Any:
    """Return the optimizer that moves a variable: the one given, or one of a MultiOptimizer."""
    if not is_multi_optimizer(optimizer):
        return optimizer
    return optimizer.optimizers[optimizer._var_to_optimizer_idx[optimizer._var_key(variable)]]


def state_of(optimizer: Any, place: int) -> list[Any]:
    """Return the state that any optimizer keeps for the variable at a place."""
    if isinstance(optimizer, Optimizer):
        pipeline = optimizer._pipeline
        around = [v for w in pipeline.wrappers for v in w._state.entries[place].slots.values()]
        return around + pipeline.mover.state_of(place)
    variable = optimizer._trainable_variables[place]
    if is_multi_optimizer(optimizer):
        part = part_of(optimizer, variable)
        return state_of(part, part._get_variable_index(variable))
    # Keras names state after the variable, in all of its optimizers. Nothing else connects the two
    # in all of them. Sums of micro-steps and averages are not state of the rule.
    prefix = path_of(variable).replace("/", "_") + "_"
    others = [
        *getattr(optimizer, "_accumulated_gradients", ()),
        *getattr(optimizer, "_model_variables_moving_average", ()),
    ]
    return [
        v
        for v in optimizer.variables
        if v.name.startswith(prefix)
        and tuple(v.shape) == tuple(variable.shape)
        and not any(v is other for other in others)
    ]
