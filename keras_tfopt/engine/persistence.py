"""Save, load and set the state of an optimizer: check all of it before anything is changed."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.rows import shards_of, whole_shape
from keras_tfopt.engine.state.conversion import Saved, converted, without_scales
from keras_tfopt.engine.state.state import HYPERPARAMETER, own_copy

LAYOUT, MICRO_STEPS, NO_SLOTS = "layout", "micro_steps", "no_slots"  # entries besides the arrays
# State that exists before the optimizer is built. So do hyperparameters that are variables.
EARLY = ("iteration", "learning_rate")
# Vectors, matrices and kernels of convolutions may differ in slots; so may small and large ones.
SHAPES = [(size,) * rank for size in (1, 2**14) for rank in (1, 2, 4)]
# State that options and kinds of variables add to the slots.
OPTIONAL = ("refused_rows", "master_weight", "average", "accumulator", "touched_rows")


class Persistent:
    """An optimizer whose state is saved, loaded and set by position.

    Variables are identified by position, shape and role, never by path: names that Keras makes up
    differ between two models of the same architecture. An optimizer inside is saved by itself, as
    Keras finds it among the attributes.
    """

    built: bool
    name: Any
    has_state = False
    """Whether `build` has created the state; it may still refuse state that was loaded before."""
    _variables: list[Any]
    _trainable_variables: list[Any]
    gradient_accumulation_steps: int | None
    shards: Any = None
    """Which worker keeps the state of which variable, if workers divide the state."""
    _waiting: Saved | None = None
    """State that was loaded before the optimizer was built."""

    def _roles(self) -> list[str]:
        """Return the role of each variable of this optimizer, without those of one inside."""
        raise NotImplementedError

    def _own_names(self, shape: tuple[int, ...]) -> tuple[str, ...]:
        """Return the names of this optimizer's state for a variable, without one inside.

        The optimizer need not be built.
        """
        raise NotImplementedError

    def _recall(self, saved: Saved) -> tuple[str, ...]:
        """Prepare an optimizer that is not built for saved state.

        Return the names of state that it will have besides those of `_own_names`.
        """
        return ()

    def save_own_variables(self, store: Any) -> None:
        """Write the state and the role of each position; `keras.Model.save` calls it.

        State that was loaded before the optimizer is built is written unchanged.
        """
        saved = self._waiting
        if saved is None:
            roles, arrays = self._roles(), [self._array(variable) for variable in self._variables]
            saved = Saved(roles, arrays, self.gradient_accumulation_steps)
        for position, array in enumerate(saved.arrays):
            store[str(position)] = array
        if saved.micro_steps is not None:
            store[MICRO_STEPS] = np.array(saved.micro_steps)
        if saved.roles:
            text = json.dumps(list(saved.roles)).encode()
            store[LAYOUT] = np.frombuffer(text, dtype="uint8")
        if len(saved.arrays) == 1:
            # One of Keras's own that is not built takes a file with two entries for its own state.
            store[NO_SLOTS] = np.array(1)

    def _array(self, variable: Any) -> np.ndarray:
        parts = shards_of(variable)
        if parts is not None:
            return parts.read(variable)
        if self.shards is None:
            return variable.numpy()
        return np.array(ops.convert_to_numpy(self.shards.read(variable)))

    def load_own_variables(self, store: Any) -> None:
        """Read the state, after checking that it is of this optimizer and of these shapes.

        Before the optimizer is built, slots are kept, and `build` checks and restores them.

        Raises:
            ValueError: if the state is that of another optimizer or of another model. Nothing has
                been changed then.
        """
        keys = set(store.keys())
        if not keys:
            # It is a file of weights only, for which Keras calls this, too.
            if self.built:
                warnings.warn(
                    f"There is no saved state for the optimizer {self.name!r}, which stays as it "
                    "is.",
                    stacklevel=2,
                )
            self._waiting = None
            return
        if LAYOUT not in keys:
            raise ValueError(
                _problem(self)
                + f"it was not written by this package. It holds the entries {sorted(keys)[:8]}. "
                "If the model was trained under the policy 'mixed_float16', for which Keras adds "
                f"a LossScaleOptimizer, set the policy before loading. {_WAY_OUT}"
            )
        steps = int(np.asarray(store[MICRO_STEPS])) if MICRO_STEPS in keys else None
        saved = Saved(_roles_in(store[LAYOUT], self), [], steps)
        for position, role in enumerate(saved.roles):
            if str(position) not in keys:
                raise ValueError(_problem(self) + f"position {position} ({role!r}) is missing")
            array = np.array(store[str(position)])
            if array.dtype.kind not in _NUMBERS:
                raise ValueError(
                    _problem(self) + f"position {position} ({role!r}) must hold numbers. "
                    f"Received: dtype {array.dtype}"
                )
            saved.arrays.append(array)
        saved = self._in_micro_steps(saved)
        if self.built or self.has_state:
            self._waiting = None
            self._restore(saved)
            return
        more = self._recall(saved)
        _check_names(saved, [self._own_names(shape) for shape in SHAPES], more, self)
        early = len(self._variables)
        self._restore(Saved(saved.roles[:early], saved.arrays[:early]))
        self._waiting = saved

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set the state from arrays in the order of `variables`, after checking all of them."""
        own, inner = len(self._variables), getattr(self, "inner_optimizer", None)
        mine = weights if inner is None else weights[:own]
        if not self.built:
            raise ValueError(
                f"The optimizer {self.name!r} has no state to set before it is built. "
                "Call `optimizer.build(variables)`."
            )
        if len(mine) != own:
            raise ValueError(
                f"`set_weights` of the optimizer {self.name!r} takes {own} arrays, "
                f"{_summary(self._roles())}. Received: {len(mine)}"
            )
        arrays = [np.array(ops.convert_to_numpy(weight)) for weight in mine]
        self._restore(Saved(self._roles(), arrays))
        if inner is not None:
            inner.set_weights(weights[own:])

    def _restore_waiting(self) -> None:
        """Restore state that was loaded before the optimizer was built."""
        if self._waiting is not None:
            with backend.build_scope(self, self._trainable_variables):
                self._restore(self._waiting, unless_changed=True)
            self._waiting = None

    def _restore(self, saved: Saved, unless_changed: bool = False) -> None:
        """Restore saved state, after checking that all of it fits.

        With `unless_changed`, state that exists before the optimizer is built was restored before,
        and is left alone if it was assigned since.
        """
        problem, variables, roles = _problem(self), self._variables, self._roles()
        saved = converted(self, saved, roles)
        if all(_is_early(role) for role in saved.roles):
            # The optimizer was saved before its first step: all other state is at its start.
            count = len(saved.roles)
            variables, roles = variables[:count], roles[:count]
        if len(saved.roles) != len(variables):
            raise ValueError(
                problem + f"it has {len(saved.roles)} variables, {_summary(saved.roles)}, and the "
                f"optimizer has {len(roles)}, {_summary(roles)}. Were layers added or frozen after "
                f"it was built, as by `enable_lora`? {_WAY_OUT}"
            )
        for position, (variable, array, role, there) in enumerate(
            zip(variables, saved.arrays, roles, saved.roles, strict=True)
        ):
            if there != role:
                raise ValueError(
                    problem + f"position {position} is {there!r} there and {role!r} here"
                )
            if tuple(array.shape) != whole_shape(variable):
                raise ValueError(
                    problem + f"position {position} ({role!r}) has shape {tuple(array.shape)} "
                    f"there and {whole_shape(variable)} here"
                )
        for variable, array, role in zip(variables, saved.arrays, roles, strict=True):
            if self.shards is not None and not self.shards.is_here(variable):
                continue
            if unless_changed and _is_early(role):
                if not np.isclose(variable.numpy(), array, rtol=1e-6, atol=0):
                    continue
            parts = shards_of(variable)
            variable.assign(own_copy(array if parts is None else parts.own(array)))

    def _in_micro_steps(self, saved: Saved) -> Saved:
        """Return state that counts as many gradients for a step as this optimizer sums.

        Raises:
            ValueError: for a sum of gradients that would be divided by another number. Where this
                optimizer has no sums, `_restore` refuses them.
        """
        there, here = saved.micro_steps, self.gradient_accumulation_steps
        if there in (None, here) or not here:
            return saved
        place = saved.roles.index("iteration")
        steps, left = divmod(int(saved.arrays[place]), there)
        if left and "accumulator" in saved.roles:
            raise ValueError(
                _problem(self) + f"it has the sum of {left} gradients of {there} for a step, and "
                f"gradient_accumulation_steps is {here} here. Load it with {there}, or save after "
                "a whole step"
            )
        arrays = [*saved.arrays]
        arrays[place] = np.array(steps * here, arrays[place].dtype)
        return Saved(saved.roles, arrays, here)


_WAY_OUT = (
    "To load the model's weights without it, pass `skip_mismatch=True` to `load_weights` or "
    "`compile=False` to `load_model`"
)


# Kinds of NumPy dtypes: booleans, integers, floating-point numbers, and "V" for bfloat16.
_NUMBERS = "biufV"


def _roles_in(layout: Any, optimizer: Any) -> list[str]:
    """Return the roles of the positions from the entry with the layout."""
    try:
        roles = json.loads(np.asarray(layout).astype("uint8").tobytes().decode())
    except (TypeError, ValueError):
        roles = None
    if not (isinstance(roles, list) and all(isinstance(role, str) for role in roles)):
        raise ValueError(
            _problem(optimizer) + f"its entry {LAYOUT!r}, a list of names as JSON, is damaged"
        )
    return roles


def _problem(optimizer: Any) -> str:
    return f"The saved state does not fit the optimizer {optimizer.name!r}: "


def _is_early(role: str) -> bool:
    return role in EARLY or role.startswith(HYPERPARAMETER)


def _check_names(
    saved: Saved, by_shape: Sequence[Sequence[str]], more: Sequence[str], optimizer: Any
) -> None:
    """Raise an error if the names of saved slots are not those of the optimizer."""
    there = {_without_number(r) for r in without_scales(saved.roles) if not _is_early(r)}
    here = [{_without_number(name) for name in names} for names in by_shape]
    needed, known = set.intersection(*here), set.union(*here, OPTIONAL, more)
    if there and not needed <= there <= known:
        names = list(dict.fromkeys(name for some in by_shape for name in some))
        raise ValueError(
            _problem(optimizer) + f"it has {_summary(saved.roles)}, and the optimizer has "
            f"the slots {names}. {_WAY_OUT}"
        )


def _without_number(role: str) -> str:
    """Return the common name of slots that exist for each dimension of a variable."""
    return re.sub(r"_\d+$", "", role)


def _summary(roles: Sequence[str]) -> str:
    counts = {role: list(roles).count(role) for role in dict.fromkeys(roles)}
    return ", ".join(f"{count} x {role}" for role, count in counts.items())
