"""Load state of optimizers from files of other programs: check all of it, then assign."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from keras_tfopt.engine import (
    Engine,
    WrappingEngine,
    parts,
    path_of,
    set_steps,
    slots_of,
    sync,
    variables_of,
)
from keras_tfopt.engine.arguments.options import check_switch
from keras_tfopt.engine.stock import rate_of, set_calls
from keras_tfopt.migrate import files, rules
from keras_tfopt.migrate.kinds import KINDS, is_of_keras
from keras_tfopt.migrate.placing import PRODUCTS, Assignment, Layout, Loader, places_by_name
from keras_tfopt.migrate.report import Report, Row
from keras_tfopt.migrate.saved import FileError, Saved
from keras_tfopt.migrate.sources import class_of, source_of


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
    """Put the state that another program saved into an optimizer; return a report.

    It takes moments and sums of variables, averages of `use_ema`, the number of steps and, if both
    are numbers, the learning rate. Everything is checked before anything is changed. The optimizer
    is built for the model if it is not built.

    Args:
        optimizer: An optimizer of this package, or of Keras, with the rule of the one in the file.
            In a wrapper, the rule inside gets the state; the slots of the wrapper must be in the
            file, as those of `Lookahead`, `MovingAverage` and `SWA` of TensorFlow Addons are.
        model: The `keras.Model` whose variables it trains.
        file: A path: a whole model in `.h5`; a SavedModel folder; a checkpoint of TensorFlow 2,
            with or without `.index`, or its folder; `.keras`, `.weights.h5` or `.weights.json`
            of Keras 3; what `torch.save` wrote; an `.npz` of an optax state, with names as
            `jax.tree_util.keystr` makes them. Or the `state_dict()` of an optimizer of PyTorch.
        weights: Whether to load the weights of the model, too, from `.h5` files and those of
            TensorFlow. Defaults to False.
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
    check_switch("weights", weights)
    check_switch("weights_only", weights_only)
    if not isinstance(model, keras.Model):
        raise TypeError(f"Argument `model` must be a keras.Model. Received: {model!r}")
    core = _core(optimizer)
    sync(model)
    variables = variables_of(core) or list(model.trainable_variables)
    if not variables:
        raise ValueError("The model has no variables yet: build it, or call it on a batch")
    saved = files.read(file, core, variables, weights_only, name)
    source = source_of(saved, core)
    loader = Loader(saved, source, core, variables, layout)
    values = loader.check_shapes()
    loader.check_slots(values)
    averages = loader.check_averages()
    around = loader.check_around(_wrappers(optimizer))
    loaded = _weights(saved, model) if weights else []
    if not optimizer.built:
        optimizer.build(variables)
    assignments = loader.assignments(values)
    for one in [*assignments, *(pair for _, pair in loaded)]:
        one.variable.assign(one.array)
    loader.assign_averages(averages)
    for wrapper, slot, place, value in around:
        slots_of(wrapper, variables[place])[slot].assign(value)
    if saved.steps is not None and isinstance(core, Engine):
        set_steps(optimizer, saved.steps)
    elif saved.steps is not None:
        set_calls(core, saved.steps * (core.gradient_accumulation_steps or 1))
    notes = [*saved.notes, *loader.notes()]
    if saved.learning_rate is not None and not callable(rate_of(core)):
        core.learning_rate = saved.learning_rate
    rows = [*loader.rows, *_scalar_rows(saved, core), *(row for row, _ in loaded)]
    return Report(_shown(file), f"{saved.cls or source.rule} of {saved.program}", rows, notes)


def torch_layout(variable: Any, array: np.ndarray) -> np.ndarray:
    """Return an array of a layer of PyTorch in the layout of Keras's layer, for `load_state`.

    Kernels of dense layers are transposed. Kernels of convolutions get their two channel axes last.
    Other variables stay unchanged.

    Args:
        variable: The variable.
        array: The array.
    """
    if path_of(variable).rsplit("/", 1)[-1] != "kernel" or array.ndim < 2:
        return array
    return np.transpose(array, [*range(2, array.ndim), 1, 0])


def _core(optimizer: Any) -> Any:
    """Return the rule inside of an optimizer."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return _core(optimizer.inner_optimizer)
    if isinstance(optimizer, WrappingEngine):
        return _core(optimizer.inner_optimizer)
    is_known = is_of_keras(optimizer) and type(optimizer).__name__ in KINDS
    if isinstance(optimizer, Engine) or is_known:
        return optimizer
    raise TypeError(
        "Argument `optimizer` must be an optimizer of keras_tfopt, or of keras.optimizers one of "
        f"{sorted(KINDS)}. Received: {optimizer!r}"
    )


def _wrappers(optimizer: Any) -> dict[str, Any]:
    """Return the wrappers around a rule by the names of the slots that they keep."""
    found: dict[str, Any] = {}
    for part in parts(optimizer):
        if not isinstance(part, WrappingEngine):
            continue
        inside = len(getattr(part.inner_optimizer, "slot_names", ()))
        own = part.slot_names[: len(part.slot_names) - inside]
        if twice := found.keys() & set(own):
            raise FileError(
                f"{[type(found[name]).__name__ for name in twice]} and {type(part).__name__} both "
                f"keep {sorted(twice)}, and files have one: load the state into the optimizer "
                "inside, and put the wrappers around it after that"
            )
        found |= dict.fromkeys(own, part)
    return found


def _weights(saved: Saved, model: Any) -> list[tuple[Row, Assignment]]:
    """Return rows of the report, each with what to assign to a variable of the model."""
    if not saved.weights:
        raise FileError("The file has no weights of a model, or none that are read: weights=False")
    variables = list(model.weights)
    places = places_by_name(saved.weights, variables)
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
        found.append((row, Assignment(variable, tensor.array)))
    return found


def _scalar_rows(saved: Saved, core: Any) -> list[Row]:
    is_nadam = class_of(core) is rules.Nadam
    rows = []
    for name, value in saved.others.items():
        used = is_nadam and name in PRODUCTS
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
