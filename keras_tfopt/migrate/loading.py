"""State of optimizers from files of other programs, checked whole before anything is changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_tfopt.engine import (
    Engine,
    WrappingEngine,
    innermost,
    path_of,
    set_steps,
    slots_of,
    sync,
    variables_of,
)
from keras_tfopt.engine.stock import product_of_momenta, rate_of, set_calls
from keras_tfopt.migrate import files, rules
from keras_tfopt.migrate.kinds import KINDS
from keras_tfopt.migrate.report import Report, Row
from keras_tfopt.migrate.saved import FileError, Saved, Tensor, number
from keras_tfopt.migrate.sources import (
    CONVENTIONS,
    FILLED,
    Source,
    class_of,
    needs_of,
    source_of,
    target_of,
)

# Of other conventions, which have notes of their own, or without effect once there is state.
_NOT_COMPARED = (
    "learning_rate",
    "weight_decay",
    "momentum_decay",
    "initial_accumulator_value",
    "name",
)
_PRODUCTS = ("momentum_cache", "_m_cache", "_u_product")
Layout = Callable[[Any, np.ndarray], np.ndarray]


class _Assignment(NamedTuple):
    variable: Any
    array: np.ndarray


def load_state(
    optimizer: Any,
    model: Any,
    file: Any,
    *,
    weights: bool = False,
    layout: Layout | None = None,
    name: str | None = None,
    weights_only: bool = True,
) -> Report:
    """Put the state that another program saved into an optimizer; return what became of it.

    Moments and sums of variables, the number of steps and, where both are numbers, the learning
    rate. All is checked before anything is changed. The optimizer is built for the model if it is
    not.

    Args:
        optimizer: An optimizer of this package with the rule of the one in the file, or of Keras.
            In a wrapper, the rule inside gets the state.
        model: The model, which has its variables: `keras.Model`.
        file: A path: a whole model of Keras 2 in `.h5`; a SavedModel folder; a checkpoint of
            TensorFlow 2, with or without `.index`, or its folder; `.keras` or `.weights.h5` of
            Keras 3; what `torch.save` wrote; an `.npz` of an optax state, with names as
            `jax.tree_util.keystr` makes them. Or the `state_dict()` of an optimizer of PyTorch.
        weights: Whether to load the weights of the model, too. Files of Keras 2 and of TensorFlow
            have them. Defaults to False.
        layout: Function of a variable and of an array for it that returns the array in the layout
            of the variable; `keras_tfopt.migrate.torch_layout` for layers of PyTorch. Defaults to
            None: all layouts are the same.
        name: Which optimizer, where a checkpoint has several, by its key. Defaults to None.
        weights_only: False lets files of `torch.save` run any code while they are loaded. Defaults
            to True.

    Returns:
        A `Report`; its text is a table.

    Raises:
        ValueError: if the file does not fit, naming the tensor. Nothing has been changed then.
        ImportError: for files of TensorFlow and PyTorch without these.

    Example:

    >>> model.load_weights("old.h5")
    >>> model.compile(keras_tfopt.Adam(1e-3, epsilon=1e-7), "mse")
    >>> print(keras_tfopt.migrate.load_state(model.optimizer, model, "old.h5"))
    """
    for argument, value in (("weights", weights), ("weights_only", weights_only)):
        if not isinstance(value, bool):
            raise TypeError(f"Argument `{argument}` must be a bool. Received: {value!r}")
    if not isinstance(model, keras.Model):
        raise TypeError(f"Argument `model` must be a keras.Model. Received: {model!r}")
    core = _core(optimizer)
    sync(model)
    variables = variables_of(core) or list(model.trainable_variables)
    if not variables:
        raise ValueError("The model has no variables yet: build it, or call it on a batch")
    saved = files.read(file, core, variables, weights_only, name)
    source = source_of(saved, core)
    loader = _Loader(saved, source, core, variables, layout)
    values = loader.check_shapes()
    loader.check_slots(values)
    loaded = _weights(saved, model) if weights else []
    if not optimizer.built:
        optimizer.build(variables)
    assignments = loader.assignments(values)
    for one in [*assignments, *(pair for _, pair in loaded)]:
        one.variable.assign(one.array)
    if saved.steps is not None:
        _set_steps(optimizer, core, saved.steps)
    notes = [*saved.notes, *loader.notes()]
    if saved.learning_rate is not None and not callable(rate_of(core)):
        core.learning_rate = saved.learning_rate
    rows = [*loader.rows, *_scalar_rows(saved, core), *(row for row, _ in loaded)]
    return Report(_shown(file), f"{saved.cls or source.rule} of {saved.program}", rows, notes)


def torch_layout(variable: Any, array: np.ndarray) -> np.ndarray:
    """Return an array of a layer of PyTorch in the layout of Keras's layer, for `load_state`.

    Kernels of dense layers are transposed; those of convolutions get their two channel axes last.
    What is not called `kernel` stays.

    Args:
        variable: The variable.
        array: The array.
    """
    if path_of(variable).rsplit("/", 1)[-1] != "kernel" or array.ndim < 2:
        return array
    return np.transpose(array, [*range(2, array.ndim), 1, 0])


class _Loader:
    """Finds the place of each tensor."""

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
        """Return the state of each variable, by our names, after checking what it belongs to."""
        places = _places(self.saved.tensors, self.variables)
        found: list[dict[str, np.ndarray]] = [{} for _ in self.variables]
        for tensor in self.saved.tensors:
            slot = self.source.slots.get(tensor.slot)
            if slot is None:
                raise FileError(
                    f"{tensor.name!r} is {tensor.slot!r}, which is no state of this optimizer: "
                    f"known are {list(self.source.slots)}"
                )
            place = places[tensor.variable]
            variable, array = self.variables[place], tensor.array
            if self.layout is not None and array.shape:
                array = self.layout(variable, array)
            shape = () if slot == "product" else tuple(variable.shape)
            if tuple(array.shape) != shape:
                raise FileError(
                    f"{tensor.name!r} has the shape {tuple(array.shape)}, and "
                    f"{path_of(variable)!r} has {shape}: the file is of another model"
                    + ("" if self.layout else ", or `layout` is needed")
                )
            if array.dtype.kind not in "fiuV":
                raise FileError(f"{tensor.name!r} must hold numbers. Received: {array.dtype}")
            found[place][slot] = self._converted(slot, array)
            became = f"{slot!r} of {path_of(variable)}"
            self.rows.append(Row(tensor.name, tuple(tensor.array.shape), became))
        if class_of(self.core) is rules.Nadam:
            found = [{"product": self._product(), **one} for one in found]
        return found

    def check_slots(self, found: list[dict[str, np.ndarray]]) -> None:
        """Raise an error if there is not all that the optimizer keeps, or if there is more."""
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

    def assignments(self, found: list[dict[str, np.ndarray]]) -> list[_Assignment]:
        """Return what is to be assigned to the state of an optimizer that is built."""
        pairs = []
        for variable, given in zip(self.variables, found, strict=True):
            for slot, place in _slots(self.core, variable).items():
                filled = FILLED.get((class_of(self.core), slot))
                array = given[slot] if slot in given else np.full(variable.shape, filled)
                pairs.append(_Assignment(place, array))
        if class_of(self.core) is rules.Nadam and not isinstance(self.core, Engine):
            pairs.append(_Assignment(product_of_momenta(self.core), found[0]["product"]))
        return pairs

    def notes(self) -> list[str]:
        """Return in which arguments the optimizer differs."""
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
        if number(self.saved.arguments.get("decay")):
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
        for name in _PRODUCTS:
            if name in others:
                return np.asarray(others[name])
        decay = getattr(self.core, "momentum_decay", 1.0)
        steps = np.arange(1, (self.saved.steps or 0) + 1)
        return np.prod(self.core.beta_1 * (1 - 0.5 * 0.96 ** (decay * steps)))

    def _named(self) -> str:
        return ", ".join(dict.fromkeys(str(tensor.variable) for tensor in self.saved.tensors))


def _core(optimizer: Any) -> Any:
    """Return the rule inside of an optimizer."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return _core(optimizer.inner_optimizer)
    if isinstance(optimizer, WrappingEngine):
        names = set(optimizer.slot_names) - set(getattr(innermost(optimizer), "slot_names", ()))
        if names:
            raise ValueError(
                f"{type(optimizer).__name__} keeps {sorted(names)}, which files of others do not "
                "have: load the state into the optimizer inside, and put the wrapper around it "
                "after that"
            )
        return _core(optimizer.inner_optimizer)
    is_stock = type(optimizer).__module__.startswith("keras.") and type(optimizer).__name__ in KINDS
    if isinstance(optimizer, Engine) or is_stock:
        return optimizer
    raise TypeError(
        "Argument `optimizer` must be an optimizer of keras_tfopt, or of keras.optimizers one of "
        f"{sorted(KINDS)}. Received: {optimizer!r}"
    )


def _slots(core: Any, variable: Any) -> dict[str, Any]:
    """Return the state for a variable by our names; that of an optimizer of Keras, too."""
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


def _places(tensors: Sequence[Tensor], variables: Sequence[Any]) -> dict[str | int, int]:
    """Return the place of each variable that a file names: by the names, or by their order."""
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


def _weights(saved: Saved, model: Any) -> list[tuple[Row, _Assignment]]:
    """Return what is to be assigned to the variables of the model."""
    if not saved.weights:
        raise FileError("The file has no weights of a model, or none that are read: weights=False")
    variables = list(model.weights)
    places = _places(saved.weights, variables)
    missing = [path_of(v) for n, v in enumerate(variables) if n not in set(places.values())]
    if missing:
        raise FileError(f"The file has no weights for {missing}")
    found = []
    for tensor in saved.weights:
        variable = variables[places[tensor.variable]]
        if tuple(variable.shape) != tensor.array.shape:
            raise FileError(
                f"{tensor.name!r} has the shape {tensor.array.shape}, and {path_of(variable)!r} "
                f"has {tuple(variable.shape)}: the file is of another model"
            )
        row = Row(tensor.name, tensor.array.shape, path_of(variable))
        found.append((row, _Assignment(variable, tensor.array)))
    return found


def _set_steps(optimizer: Any, core: Any, steps: int) -> None:
    if isinstance(core, Engine):
        set_steps(optimizer, steps)
        return
    set_calls(core, steps * (core.gradient_accumulation_steps or 1))


def _scalar_rows(saved: Saved, core: Any) -> list[Row]:
    is_nadam = class_of(core) is rules.Nadam
    rows = []
    for name, value in saved.others.items():
        used = is_nadam and name in _PRODUCTS
        became = "'product' of all variables" if used else "an argument here, compared in the notes"
        rows.append(Row(name, np.shape(value), became))
    if saved.steps is not None:
        rows.append(Row("iterations", (), f"{saved.steps} steps done"))
    if saved.learning_rate is not None:
        kept = "not used: the optimizer has a schedule" if callable(rate_of(core)) else "assigned"
        rows.append(Row("learning rate", (), f"{saved.learning_rate:.6g}, {kept}"))
    return rows


def _shown(file: Any) -> str:
    return "a dictionary" if isinstance(file, dict) else str(file)
