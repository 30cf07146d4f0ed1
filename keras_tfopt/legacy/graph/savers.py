"""Make savers of TensorFlow 1 that store some variables under the names of others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.variables import PartitionedVariable
from tensorflow.python.training.saving import saveable_object_util

from keras_tfopt.legacy.graph.backend import native

v1 = tf.compat.v1


def swapping_saver(
    pairs: Iterable[tuple[Any, Any]], var_list: Any, name: str, arguments: Mapping[str, Any]
) -> Any:
    """Return a `tf.compat.v1.train.Saver` with averages under the names of variables.

    Args:
        pairs: Variables and their averages.
        var_list: What to save, as `tf.compat.v1.train.Saver` takes it; None is all of the graph.
        name: Name of the saver.
        arguments: Further arguments of the saver.
    """
    if var_list is None:
        var_list = v1.global_variables()
    if not isinstance(var_list, Mapping):
        var_list = _by_name(var_list)
    swapped = {}
    for variable, average in pairs:
        swapped[variable.op.name], swapped[average.op.name] = average, variable
    saved = {one.op.name for entry in var_list.values() for one in _slices(entry)}

    def swap(variable: Any) -> Any:
        other = swapped.get(variable.op.name, variable)
        if other.op.name not in saved:
            raise ValueError(
                "Argument `var_list` must hold variables together with their averages. Variable to "
                f"swap with {variable.op.name!r}, not received: {other.op.name!r}"
            )
        return other

    wanted = {
        key: [swap(one) for one in _slices(entry)] if _is_partitioned(entry) else swap(entry)
        for key, entry in var_list.items()
    }
    return v1.train.Saver(wanted, name=name, **arguments)


def _by_name(variables: Iterable[Any]) -> dict[str, Any]:
    """Return variables by their names in files; a partitioned one is a list of slices."""
    return saveable_object_util.op_list_to_dict(list(variables), convert_variable_to_tensor=False)


def _is_partitioned(entry: Any) -> bool:
    return isinstance(entry, (list, tuple, PartitionedVariable))


def _slices(entry: Any) -> list[Any]:
    return list(entry) if _is_partitioned(entry) else [entry]


def saver_of_others(
    others: Mapping[Any, Any], var_list: Any, name: str, arguments: Mapping[str, Any]
) -> Any:
    """Return a `tf.compat.v1.train.Saver` with other variables under the names of some.

    Args:
        others: Maps a variable to the one that is stored under its name.
        var_list: What to save, as `tf.compat.v1.train.Saver` takes it; None is all trainable ones.
        name: Name of the saver.
        arguments: Further arguments of the saver.
    """
    chosen = v1.trainable_variables() if var_list is None else var_list
    if not isinstance(chosen, Mapping):
        chosen = _by_name(map(native, chosen))

    def other(variable: Any) -> Any:
        variable = native(variable)
        return others.get(variable, variable)

    saved = {
        key: [other(one) for one in _slices(entry)] if _is_partitioned(entry) else other(entry)
        for key, entry in chosen.items()
    }
    return v1.train.Saver(saved, name=name, **arguments)
