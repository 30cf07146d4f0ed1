"""Write checkpoints that `tf.train.Saver` of TensorFlow 1 restores."""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_tfopt.checks import check_bool, one_of
from keras_tfopt.engine import array_of, dtype_of, is_accumulating, path_of, variables_of
from keras_tfopt.engine.state.state import MASTER
from keras_tfopt.legacy.checkpoints.files import write_checkpoint
from keras_tfopt.legacy.checkpoints.models import sync_models, variables_in
from keras_tfopt.legacy.checkpoints.names import AVERAGE, laid_by_name, numbered, renamed
from keras_tfopt.legacy.checkpoints.origin import (
    Origin,
    decay_rate,
    keras_optimizer,
    optimizers_in,
    origin_of,
    step_variable,
)
from keras_tfopt.legacy.checkpoints.planning import GLOBAL_STEP
from keras_tfopt.legacy.checkpoints.powers import power_after
from keras_tfopt.legacy.checkpoints.training_state import (
    core,
    described_slots,
    shared_slots,
    state_at,
    steps_of,
)
from keras_tfopt.legacy.slots import unwritten_shape
from keras_tfopt.legacy.table import Row


class Written(NamedTuple):
    """A tensor to be written."""

    name: str
    dtype: str
    value: Callable[[], np.ndarray]


def save_checkpoint(
    prefix: Any,
    model: Any,
    optimizer: Any,
    name_map: Any = None,
    *,
    swapped: bool = False,
    global_step_dtype: str = "int64",
) -> str:
    """Write a model and its optimizer as a checkpoint that TensorFlow 1 restores.

    A graph of TensorFlow 1 that has variables of these names and the original of the optimizer can
    call `tf.train.Saver().restore(session, prefix)`: the checkpoint has weights, slots, powers of
    decay rates, `global_step` and averages. Layers are numbered as if the model were the only one
    of the process, and the name of the model does not appear: `dense/kernel`, `dense_1/kernel`.
    State has the data type of its variable, as there. No graph is written, so `import_meta_graph`
    has nothing to read. The file `checkpoint` names the new checkpoint the latest. GGT counts its
    steps in its own variable `global_step_1`: the name that it has in a program that makes a
    `global_step` first.

    TensorFlow writes the file, on any backend of Keras. It writes some tensors at a time, and gives
    the file its name at the end.

    Args:
        prefix: Path, without `.index`. Folders are created.
        model: A `keras.Model` or layer that is built, or a list of variables. Or a list of models,
            each of which has its variables in a scope of its name: `generator/dense/kernel`.
        optimizer: An optimizer of keras_tfopt or of keras_tfopt.legacy that is built, or None. Or a
            list of several, each for variables of its own, in the order in which the program of
            TensorFlow 1 calls `minimize`: `beta1_power` is that of the first, and `beta1_power_1`
            that of the second. `global_step` is the count of the first.
        name_map: As in `load_checkpoint`, but from names here to names in the file. State is named
            after its variable. A name that is mapped to None is left out.
        swapped: Whether to write averages under the names of the variables, and the trained values
            under those of averages, as `swapping_saver()` does.
        global_step_dtype: "int64", as `tf.train.get_or_create_global_step` makes it, or "int32", as
            `tf.Variable(0)` does. TensorFlow 1 refuses to restore the other one.

    Returns:
        The path.

    Raises:
        ImportError: without TensorFlow.
        ValueError: if the optimizer is not built, keeps state for which TensorFlow 1 has no
            variable, or is in the middle of a step that accumulates gradients; if there are no
            averages to swap, the data type is another one, or names are not distinct. Nothing has
            been written then.
        TypeError: for an optimizer that has no original in TensorFlow 1.
    """
    check_bool("swapped", swapped)
    one_of("int64", "int32")("global_step_dtype", global_step_dtype)
    sync_models(model)
    tensors = {one.name: one for one in written(model, optimizer, swapped, global_step_dtype)}
    contents, _ = renamed(tensors, name_map)
    return write_checkpoint(prefix, [contents[n]._replace(name=n) for n in sorted(contents)])


def written(
    model: Any, optimizer: Any, swapped: bool, step_dtype: str = "int64"
) -> Iterator[Written]:
    """Yield all tensors of a checkpoint of a model and its optimizer."""
    variables, choices = variables_in(model)
    # The last spelling is without the name of the model, with layers numbered within the model.
    names = {id(v): name for v, name in zip(variables, choices[-1], strict=True)}
    optimizers = [one for one in optimizers_in(optimizer) if one is not None]
    trained: dict[int, Any] = {}  # Keras optimizers by the identity of their variables
    for one in optimizers:
        trained |= _trained_by(one, names)
    averages = {
        id(v): functools.partial(_array_at, trained[id(v)], v, "average")
        for v in variables
        if id(v) in trained and "average" in described_slots(trained[id(v)], v)
    }
    if swapped and not averages:
        raise ValueError("Argument `swapped` must be False: there are no averages. Received: True")

    for variable in variables:
        name, dtype = names[id(variable)], dtype_of(variable)
        values = [functools.partial(array_of, variable)]
        if id(variable) in averages:
            values.insert(0 if swapped else 1, averages[id(variable)])
        for key, value in zip((name, f"{name}/{AVERAGE}"), values, strict=False):
            yield Written(key, dtype, value)
    if optimizers:
        yield _global_step(optimizers, step_dtype)
    counts = collections.Counter([GLOBAL_STEP])
    for one in optimizers:
        origin, ours = origin_of(one), keras_optimizer(one)
        yield from _slots(origin, ours, names)
        outermost, _, rest = origin.scope.partition("/")
        scope = f"{numbered(outermost, counts[outermost])}/{rest}" if outermost else ""
        counts[outermost] += 1
        for shared in (*_shared(origin.row, ours, names), *_counts(origin.row, ours)):
            name = f"{scope}{shared.name}"
            yield shared._replace(name=numbered(name, counts[name]))
            counts[name] += 1


def _trained_by(optimizer: Any, names: Mapping[int, str]) -> dict[int, Any]:
    """Return the Keras optimizer for each variable that it trains, or raise an error."""
    ours = keras_optimizer(optimizer)
    origin_of(optimizer)  # raises an error if there is none
    trained = variables_of(ours)
    if not trained:
        raise ValueError(
            f"Argument `optimizer` must be built: it has no state yet. Received: {optimizer!r}"
        )
    if is_accumulating(core(ours)):
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


def _slots(origin: Origin, ours: Any, names: Mapping[int, str]) -> Iterator[Written]:
    for variable in variables_of(ours):
        here = described_slots(ours, variable)
        suffixes = origin.suffixes(origin.bases[0], variable, here)
        extra = [name for name in here if name not in (*suffixes, "average", MASTER)]
        if extra:
            raise ValueError(
                f"Argument `optimizer` must keep no state beyond that of {origin.names[0]}: there "
                f"is no variable for it in TensorFlow 1. Received: {extra} of "
                f"{path_of(variable)!r}"
            )
        for slot, suffix in suffixes.items():
            value = functools.partial(_array_at if slot in here else _zeros, ours, variable, slot)
            yield Written(f"{names[id(variable)]}/{suffix}", dtype_of(variable), value)


def _array_at(ours: Any, variable: Any, slot: str) -> np.ndarray:
    return array_of(state_at(ours, variable, slot))


def _zeros(ours: Any, variable: Any, slot: str) -> np.ndarray:
    size = getattr(core(ours), "max_matrix_size", 0)
    return np.zeros(unwritten_shape(slot, tuple(variable.shape), size), "float32")


def _shared(row: Row, ours: Any, names: Mapping[int, str]) -> Iterator[Written]:
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


def _global_step(optimizers: Sequence[Any], dtype: str) -> Written:
    """Return the training step: of a variable given for it, else of the first optimizer."""
    ours = [keras_optimizer(optimizer) for optimizer in optimizers]
    counters = [one for one in map(step_variable, ours) if one is not None]
    total = int(array_of(counters[0])) if counters else steps_of(ours[0])
    return Written(GLOBAL_STEP, dtype, functools.partial(np.array, total, dtype))


def _counts(row: Row, ours: Any) -> Iterator[Written]:
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
