"""Find the place of each tensor of a file in an optimizer's state, and arguments that differ."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_tfopt.engine import Engine, array_of, path_of, slots_of
from keras_tfopt.engine.stock import extras_of, product_of_momenta, rate_of
from keras_tfopt.migrate import rules
from keras_tfopt.migrate.kinds import KINDS
from keras_tfopt.migrate.report import Row
from keras_tfopt.migrate.saved import FileError, Saved, Tensor, number
from keras_tfopt.migrate.sources import (
    CONVENTIONS,
    FILLED,
    NUMBERS,
    Source,
    class_of,
    needs_of,
    target_of,
)
from keras_tfopt.wrappers import StochasticWeightAveraging

# Arguments that have notes of their own, or that have no effect once there is state.
_NOT_COMPARED = (
    "learning_rate",
    "weight_decay",
    "momentum_decay",
    "initial_accumulator_value",
    "name",
)
PRODUCTS = ("momentum_cache", "_m_cache", "_u_product")
Layout = Callable[[Any, np.ndarray], np.ndarray]


class Assignment(NamedTuple):
    """A variable, and the array that it gets."""

    variable: Any
    array: np.ndarray


class Loader:
    """Find the place of each tensor in the state of an optimizer."""

    def __init__(
        self,
        saved: Saved,
        source: Source,
        core: Any,
        variables: Sequence[Any],
        layout: Layout | None,
    ):
        self.saved, self.source, self.core = saved, source, core
        self.variables, self.layout = variables, layout
        self.target = target_of(source, core)
        self.rows: list[Row] = []

    def check_shapes(self) -> list[dict[str, np.ndarray]]:
        """Return the state of each variable by our names, after checking names and shapes."""
        places = places_by_name(self.saved.tensors, self.variables)
        found: list[dict[str, np.ndarray]] = [{} for _ in self.variables]
        for tensor in self.saved.tensors:
            if tensor.slot not in self.source.slots:
                raise FileError(
                    f"{tensor.name!r} is {tensor.slot!r}, which is no state of this optimizer: "
                    f"known are {list(self.source.slots)}"
                )
            place, slot = places[tensor.variable], self.source.slots[tensor.slot]
            if slot is None:
                self._tell(tensor, "not used: no step reads it")
                continue
            is_number = slot in NUMBERS.get(self.source.rule, ())
            found[place][slot] = self._converted(slot, self._taken(tensor, slot, place, is_number))
        if class_of(self.core) is rules.Nadam:
            found = [{"product": self._product(), **one} for one in found]
        return found

    def check_slots(self, found: list[dict[str, np.ndarray]]) -> None:
        """Raise an error if the file lacks state that the optimizer keeps, or has more."""
        own, cls = _names(self.core), class_of(self.core)
        for variable, given in zip(self.variables, found, strict=True):
            kept = own if not self.core.built else set(_slots(self.core, variable))
            if not kept and own:  # a group says that it is frozen
                continue
            missing = {slot for slot in kept - set(given) if (cls, slot) not in FILLED}
            if missing:
                raise FileError(
                    f"The file has no {sorted(missing)} of {path_of(variable)!r}. It has "
                    f"{self.saved.slots or 'nothing'} of {self._named() or 'no variable'}"
                )
            more = set(given) - kept - {"product"}
            if more:
                raise FileError(
                    f"The file has {sorted(more)} of {path_of(variable)!r}, for which the "
                    f"optimizer has no place: it keeps {sorted(kept)}. Give it the arguments that "
                    "the other one had, as `momentum`, `amsgrad` or `centered`"
                )

    def check_averages(self) -> dict[int, np.ndarray]:
        """Return the averages of `use_ema` by the places of their variables, if it keeps them."""
        if not self.core.use_ema:
            return {}
        places = places_by_name(self.saved.averages, self.variables)
        found = {}
        for tensor in self.saved.averages:
            place = places[tensor.variable]
            found[place] = self._taken(tensor, "average", place)
        return found

    def check_around(self, wrappers: Mapping[str, Any]) -> list[tuple[Any, str, int, Any]]:
        """Return what to assign to wrappers: the wrapper, the slot, the variable's place, a value.

        Args:
            wrappers: The wrappers around the rule, by the names of their slots.
        """
        places = places_by_name(self.saved.around, self.variables)
        found: dict[str, dict[int, Any]] = {name: {} for name in wrappers}
        for tensor in self.saved.around:
            place = places[tensor.variable]
            if tensor.slot in wrappers:
                found[tensor.slot][place] = self._taken(tensor, tensor.slot, place)
            else:
                self._tell(tensor, "not used: no wrapper here keeps it")
        for name, wrapper in wrappers.items():
            if name == "count" and isinstance(wrapper, StochasticWeightAveraging):
                found[name] = dict.fromkeys(found.get("average", ()), self._averaged_by(wrapper))
            missing = [path_of(v) for n, v in enumerate(self.variables) if n not in found[name]]
            if missing:
                raise FileError(
                    f"{type(wrapper).__name__} keeps {name!r}, which the file does not have of "
                    f"{missing}: load the state into the optimizer inside, and put the wrapper "
                    "around it after that"
                )
        return [
            (wrappers[name], name, place, value)
            for name, values in found.items()
            for place, value in values.items()
        ]

    def _averaged_by(self, wrapper: StochasticWeightAveraging) -> int:
        """Return how many weights are in the average, which files do not say."""
        since = (self.saved.steps or 0) - 1 - wrapper.start_averaging
        return since // wrapper.average_period + 1 if since >= 0 else 0

    def assign_averages(self, found: dict[int, np.ndarray]) -> None:
        """Assign averages, or else the values of the variables, at which they begin."""
        for place, kept in enumerate(extras_of(self.core)):
            if "average" in kept:
                value = found.get(place, array_of(self.variables[place]))
                kept["average"].assign(value)

    def assignments(self, found: list[dict[str, np.ndarray]]) -> list[Assignment]:
        """Return what to assign to the state of the optimizer, which is built."""
        pairs = []
        for variable, given in zip(self.variables, found, strict=True):
            for slot, place in _slots(self.core, variable).items():
                filled = FILLED.get((class_of(self.core), slot))
                array = given[slot] if slot in given else np.full(variable.shape, filled)
                pairs.append(Assignment(place, array))
        if class_of(self.core) is rules.Nadam and not isinstance(self.core, Engine):
            pairs.append(Assignment(product_of_momenta(self.core), found[0]["product"]))
        return pairs

    def notes(self) -> list[str]:
        """Return notes on arguments that differ between the file and the optimizer."""
        notes = []
        needs = needs_of(self.source, self.saved)
        for name, value in {**self.saved.arguments, **needs}.items():
            if name in _NOT_COMPARED and name not in needs:
                continue
            own = getattr(self.core, name, CONVENTIONS.get(name))
            mine, theirs = number(own), number(value)
            if isinstance(value, bool) and isinstance(own, bool):
                differs = own != value
            elif mine is None or theirs is None:
                continue
            else:
                differs = not math.isclose(mine, theirs, rel_tol=1e-5, abs_tol=1e-12)
            if differs:
                notes.append(f"`{name}` is {value} in the file, and {own} in the optimizer")
        if self.core.use_ema and not self.saved.averages:
            notes.append("the file has no averages, so those of `use_ema` begin at the weights")
        if self.saved.averages and not self.core.use_ema:
            notes.append("the averages of `use_ema` are not taken: the optimizer has use_ema=False")
        if self.source.rule != "Nadam" and number(self.saved.arguments.get("decay")):
            notes.append(
                f"`decay` is {self.saved.arguments['decay']} in the file: the learning rate fell "
                "there. Pass learning_rate=keras.optimizers.schedules.InverseTimeDecay(rate, 1, "
                "decay)"
            )
        if self.saved.program in ("torch.optim", "optax") and self.source.rule == "Adam":
            notes.append(
                "epsilon is added before the bias correction there, and after it in "
                "keras_tfopt.Adam: steps differ where gradients are as small as epsilon"
            )
        if self.saved.program == "torch.optim" and self.saved.arguments.get("weight_decay"):
            notes.append(
                "weight decay is added to the gradient by torch.optim, but for AdamW; here it is "
                "decoupled, and multiplied by the learning rate"
            )
        return notes

    def _taken(self, tensor: Tensor, slot: str, place: int, is_number: bool = False) -> np.ndarray:
        """Return the array of a tensor for a variable, after checking and reporting it."""
        variable = self.variables[place]
        own, shape = (_as_number(tensor), ()) if is_number else (tensor, variable.shape)
        array = self._fitting(own, variable, shape)
        self._tell(tensor, f"{slot!r} of {path_of(variable)}")
        return array

    def _tell(self, tensor: Tensor, became: str) -> None:
        self.rows.append(Row(tensor.name, tuple(tensor.array.shape), became))

    def _fitting(self, tensor: Tensor, variable: Any, shape: Sequence[int]) -> np.ndarray:
        """Return the array of a tensor in the layout of its variable, after checking it."""
        array, shape = tensor.array, tuple(shape)
        if self.layout is not None and array.shape:
            array = self.layout(variable, array)
        if tuple(array.shape) != shape:
            raise FileError(
                f"{tensor.name!r} has the shape {tuple(array.shape)}, and {path_of(variable)!r} "
                f"has {shape}: the file is of another model"
                + ("" if self.layout else ", or `layout` is needed")
            )
        if array.dtype.kind not in "fiuV":
            raise FileError(f"{tensor.name!r} must hold numbers. Received: {array.dtype}")
        return array

    def _converted(self, slot: str, array: np.ndarray) -> np.ndarray:
        convert = self.target.convert.get(slot)
        if convert is None:
            return array
        rate = self.saved.learning_rate
        rate = number(rate_of(self.core)) if rate is None else rate
        if not rate:
            raise FileError(
                f"{slot!r} is converted with the learning rate, which must be a number > 0. "
                f"Received: {rate_of(self.core)!r}. keras_tfopt.migrate.SGD takes it as it is"
            )
        epsilon = number(self.saved.arguments.get("epsilon"))
        return convert(array, rate, None if self.source.needs else epsilon)

    def _product(self) -> np.ndarray:
        """Return the product of the momenta of Nadam's steps, which not all files have."""
        others = self.saved.others
        for name in PRODUCTS:
            if name in others:
                return np.asarray(others[name])
        decay = getattr(self.core, "momentum_decay", 1.0)
        steps = np.arange(1, (self.saved.steps or 0) + 1)
        return np.prod(self.core.beta_1 * (1 - 0.5 * 0.96 ** (decay * steps)))

    def _named(self) -> str:
        return ", ".join(dict.fromkeys(str(tensor.variable) for tensor in self.saved.tensors))


def _as_number(tensor: Tensor) -> Tensor:
    """Return a tensor that repeats one number as that number."""
    numbers = np.unique(tensor.array)
    return dataclasses.replace(tensor, array=numbers.reshape(())) if numbers.size == 1 else tensor


def places_by_name(tensors: Sequence[Tensor], variables: Sequence[Any]) -> dict[str | int, int]:
    """Return the place of each variable of a file, found by name or by order."""
    names = list(dict.fromkeys(tensor.variable for tensor in tensors))
    paths = [path_of(variable) for variable in variables]
    if all(isinstance(name, int) for name in names):
        beyond = [name for name in names if int(name) >= len(paths)]
        if beyond:
            raise FileError(
                f"The file has state of {len(names)} variables, and the model has {len(paths)}: "
                "the file is of another model"
            )
        return {name: int(name) for name in names}
    found = {
        name: [n for n, path in enumerate(paths) if f"/{path}".endswith(f"/{name}")]
        for name in names
    }
    places = [where[0] for where in found.values() if len(where) == 1]
    if len(set(places)) == len(names):
        return {name: where[0] for name, where in found.items()}
    if len(names) == len(paths):
        return {name: place for place, name in enumerate(names)}
    raise FileError(
        f"The file is of another model: it has state of {names}, and the model has {paths}"
    )


def _slots(core: Any, variable: Any) -> dict[str, Any]:
    """Return the state for a variable by our names, even that of an optimizer of Keras."""
    slots = slots_of(core, variable)
    if isinstance(core, Engine):
        return slots
    ours = KINDS[type(core).__name__].slots
    return {ours[name]: state for name, state in slots.items()}


def _names(core: Any) -> set[str]:
    """Return what an optimizer keeps for variables, by our names."""
    if isinstance(core, Engine):
        return set(core.slot_names)
    variable = keras.Variable(np.zeros((1, 1)), name="any")
    like = type(core).from_config(core.get_config())
    like.build([variable])
    return set(_slots(like, variable))
