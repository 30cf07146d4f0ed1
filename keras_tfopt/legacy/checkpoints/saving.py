"""Checkpoints that `tf.train.Saver` of TensorFlow 1 restores."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_tfopt.checks import check_bool
from keras_tfopt.execution import (
    array_of,
    core,
    described_slots,
    dtype_of,
    is_accumulating,
    path_of,
    shared_slots,
    state_at,
    steps_of,
    sync,
    variables_of,
    write_checkpoint,
)
from keras_tfopt.execution.binding import MASTER
from keras_tfopt.legacy.checkpoints.models import variables_in
from keras_tfopt.legacy.checkpoints.names import AVERAGE, Renaming, laid_by_name, numbered
from keras_tfopt.legacy.checkpoints.origin import (
    check_apart,
    decay_rate,
    keras_optimizer,
    optimizers_in,
    origin_of,
    step_variable,
)
from keras_tfopt.legacy.checkpoints.planning import GLOBAL_STEP
from keras_tfopt.legacy.checkpoints.powers import power_after
from keras_tfopt.legacy.slots import slots_in_order, unwritten_shape


class Written(NamedTuple):
    """A tensor of a file to be."""

    name: str
    dtype: str
    value: Callable[[], np.ndarray]


def save_checkpoint(
    prefix: Any, model: Any, optimizer: Any, name_map: Any = None, *, swapped: bool = False
) -> str:
    """Writes a model and its optimizer as a checkpoint that TensorFlow 1 restores.

    A graph of TensorFlow 1 with variables of these names and the original of the optimizer finds
    there all that `tf.train.Saver().restore(session, prefix)` asks for: weights, slots, powers of
    decay rates, `global_step`, averages. Layers are numbered as if the model were the only one of
    the process, and the name of the model does not appear: `dense/kernel`, `dense_1/kernel`. State
    has the variables' data type, as there. No graph is written, so `import_meta_graph` has nothing
    to read; the file `checkpoint` names the new one the latest. GGT counts its steps in a variable
    of its own, `global_step_1`, as it does where a `global_step` was made before it.

    The file is written under a temporary name first, some tensors at a time, by TensorFlow, on any
    backend of Keras.

    Args:
        prefix: Path, without `.index`. Folders are created.
        model: A `keras.Model` or layer that is built, or a list of variables. Or a list of models,
            of which each has its variables in a scope of its name: `generator/dense/kernel`.
        optimizer: An optimizer of keras_tfopt or of keras_tfopt.legacy that is built, or None. Or a
            list of several, each for variables of its own, in the order in which the program of
            TensorFlow 1 calls `minimize`: `beta1_power` is that of the first, and `beta1_power_1`
            that of the second. `global_step` is the count of the first.
        name_map: As in `load_checkpoint`, but from the names that would be written to those that
            are. State is named after its variable. What becomes None is left out.
        swapped: Whether to write averages under the names of the variables, and the trained values
            behind them, as `swapping_saver()` does.

    Returns:
        The path.

    Raises:
        ImportError: without TensorFlow.
        ValueError: if the optimizer is not built, keeps state for which TensorFlow 1 has no
            variable, or is in the middle of a step that accumulates gradients; if there are no
            averages to swap, or names are not distinct. Nothing has been written then.
        TypeError: for an optimizer that stands for none of TensorFlow 1.
    """
    check_bool("swapped", swapped)
    for one in model if isinstance(model, (list, tuple)) else [model]:
        if isinstance(one, keras.Model):
            sync(one)
    rename = Renaming(name_map)
    contents = {}
    for one in written(model, optimizer, swapped):
        name = rename(one.name)
        if name is None:
            continue
        if name in contents:
            raise ValueError(
                "Argument `name_map` must give each tensor another name. Received: two that are "
                f"{name!r}"
            )
        contents[name] = one._replace(name=name)
    if rename.unused:
        raise ValueError(
            "Argument `name_map` must have keys that are names or scopes here, or patterns found "
            f"in them. Received, found nowhere: {rename.unused[0]!r}. There are: "
            f"{list(contents)[:8]}"
        )
    return write_checkpoint(prefix, [contents[name] for name in sorted(contents)])


def written(model: Any, optimizer: Any, swapped: bool) -> Iterator[Written]:
    """All that a checkpoint of a model and its optimizer consists of."""
    variables, choices = variables_in(model)
    # The last spelling is the barest: no scope of the model, numbers as in a process of its own.
    names = {id(v): name for v, name in zip(variables, choices[-1], strict=True)}
    optimizers = optimizers_in(optimizer)
    if len(optimizers) > 1:
        check_apart(optimizers)
    trained: dict[int, Any] = {}  # by the identity of a variable, what trains it
    for one in optimizers:
        if one is not None:
            trained |= _trained_by(one, names)
    averages = {
        id(v): trained[id(v)]
        for v in variables
        if id(v) in trained and "average" in described_slots(trained[id(v)], v)
    }
    if swapped and not averages:
        raise ValueError("Argument `swapped` must be False: there are no averages. Received: True")

    for variable in variables:
        name, dtype = names[id(variable)], dtype_of(variable)
        trained_value = Written(name, dtype, functools.partial(array_of, variable))
        if id(variable) not in averages:
            yield trained_value
            continue
        value = functools.partial(_array_at, averages[id(variable)], variable, "average")
        average = Written(f"{name}/{AVERAGE}", dtype, value)
        if swapped:
            trained_value, average = (
                trained_value._replace(value=average.value),
                average._replace(value=trained_value.value),
            )
        yield trained_value
        yield average
    if optimizers[0] is not None:
        yield _global_step(optimizers)
    counts: dict[str, int] = {GLOBAL_STEP: 1}
    for one in optimizers if optimizers[0] is not None else ():
        yield from _slots(one, names)
        for shared in (*_shared(one, names), *_counts(one)):
            number = counts.get(shared.name, 0)
            counts[shared.name] = number + 1
            yield shared._replace(name=numbered(shared.name, number))


def _trained_by(optimizer: Any, names: Mapping[int, str]) -> dict[int, Any]:
    """The Keras optimizer, for each variable that it trains; or an error."""
    ours = keras_optimizer(optimizer)
    origin_of(optimizer)  # raises what there is to raise
    trained = variables_of(ours)
    if not trained:
        raise ValueError(
            f"Argument `optimizer` must be built: it has no state yet. Received: {optimizer!r}"
        )
    if is_accumulating(ours):
        raise ValueError(
            "Argument `optimizer` must not be in the middle of a step: TensorFlow 1 has no "
            "variable for accumulated gradients. Received: iterations="
            f"{int(ours.iterations)}, gradient_accumulation_steps="
            f"{core(ours).gradient_accumulation_steps}"
        )
    unknown = [path_of(variable) for variable in trained if id(variable) not in names]
    if unknown:
        raise ValueError(
            f"Argument `model` must have all variables of the optimizer. Received none of "
            f"{unknown[:8]}"
        )
    return {id(variable): ours for variable in trained}


def _slots(optimizer: Any, names: Mapping[int, str]) -> Iterator[Written]:
    origin, ours = origin_of(optimizer), keras_optimizer(optimizer)
    for variable in variables_of(ours):
        shape, dtype = tuple(variable.shape), dtype_of(variable)
        here = described_slots(ours, variable)
        slots = slots_in_order(origin.row, len(shape), here)
        extra = [name for name in here if name not in (*slots, "average", MASTER)]
        if extra:
            raise ValueError(
                f"Argument `optimizer` must keep no state beyond that of {origin.names[0]}: there "
                f"is no variable for it in TensorFlow 1. Received: {extra} of "
                f"{path_of(variable)!r}"
            )
        for slot, suffix in origin.suffixes(origin.bases[0], slots).items():
            value = functools.partial(_array_at if slot in here else _zeros, ours, variable, slot)
            yield Written(f"{names[id(variable)]}/{suffix}", dtype, value)


def _array_at(ours: Any, variable: Any, slot: str) -> np.ndarray:
    return array_of(state_at(ours, variable, slot))


def _zeros(ours: Any, variable: Any, slot: str) -> np.ndarray:
    size = getattr(core(ours), "max_matrix_size", 0)
    return np.zeros(unwritten_shape(slot, tuple(variable.shape), size), "float32")


def _shared(optimizer: Any, names: Mapping[int, str]) -> Iterator[Written]:
    row, ours = origin_of(optimizer).row, keras_optimizer(optimizer)
    trained = variables_of(ours)
    found = shared_slots(ours, trained)
    sizes = [math.prod(variable.shape) for variable in trained]
    their_names = [names[id(variable)] for variable in trained]

    def sorted_by_name(name: str) -> np.ndarray:
        return laid_by_name(_array_at(ours, None, name), their_names, sizes)

    for name in row.shared:
        yield Written(name, found[name].dtype, functools.partial(sorted_by_name, name))
    for name in row.scratch:
        yield Written(name, "float32", functools.partial(np.zeros, sum(sizes), "float32"))


def _global_step(optimizers: Sequence[Any]) -> Written:
    """The training step, which is that of the first optimizer unless one has a variable for it."""
    ours = [keras_optimizer(optimizer) for optimizer in optimizers]
    counters = [one for one in map(step_variable, ours) if one is not None]
    total = int(array_of(counters[0])) if counters else steps_of(ours[0])
    return Written(GLOBAL_STEP, "int64", functools.partial(np.array, total, "int64"))


def _counts(optimizer: Any) -> Iterator[Written]:
    row, ours = origin_of(optimizer).row, keras_optimizer(optimizer)
    steps = steps_of(ours)
    if row.counts:
        yield Written(GLOBAL_STEP, "float32", functools.partial(np.array, steps, "float32"))
    for argument in row.powers:
        beta = decay_rate(ours, row, argument)
        if not isinstance(beta, float):
            raise ValueError(
                f"Argument `optimizer` must have a constant {argument}: TensorFlow 1 keeps a power "
                f"of it. Received: {beta!r}"
            )
        yield Written(f"{argument}_power", "float32", functools.partial(power_after, steps, beta))
