"""The classes of the table under their original names, and `get`, which finds one."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from keras_tfopt.engine import check_arguments, keras_optimizers, nearest
from keras_tfopt.legacy import (
    custom,
    decay,
    external,
    functions,
    rules,
    sign_decay,
    workers,
    wrapping,
)
from keras_tfopt.legacy.arguments import owner_of
from keras_tfopt.legacy.optimizer import Optimizer
from keras_tfopt.legacy.select import running
from keras_tfopt.legacy.table import MEANINGS, NAMES, REQUIRED, TABLE, WITHOUT_MEANING, Row
from keras_tfopt.tables import Counterpart, as_constructor, names_in

# The class that adds verbs to a rule, by `Row.verbs`.
VERBS: dict[str, type] = {
    "all variables": rules.AllVariables,
    "averages": wrapping.Averaging,
    "avoided slots": rules.AvoidedSlots,
    "clipping": wrapping.Clipping,
    "decay": decay.DecoupledWeightDecayExtension,
    "elastic": workers.Elastic,
    "ftrl": rules.Named,
    "given variables": rules.GivenVariables,
    "gradient sums": workers.GradientSums,
    "layer rates": rules.LayerRates,
    "means of models": workers.MeansOfModels,
    "rule": rules.Rule,
    "sign decay": rules.SignDecayed,
    "stale gradients": workers.StaleGradients,
    "synchronous replicas": workers.Replicas,
    "wrapper": wrapping.Multitasking,
}

# The functions of the originals, and their classes that are written by hand.
OTHERS: dict[str, Any] = {
    name: next(
        getattr(module, name)
        for module in (custom, decay, external, workers, functions, sign_decay)
        if hasattr(module, name)
    )
    for name in NAMES
    if name not in TABLE
}


def names() -> dict[str, Counterpart]:
    """Return every name of the originals, with its module, counterpart and differences."""
    return names_in(NAMES)


def _documentation(name: str, row: Row) -> str:
    slots = ", ".join(f"`{slot}`" for slot in row.slots)
    arguments = [
        f"    {argument}: {_meaning(argument, default, row)}"
        for argument, default in row.arguments.items()
    ]
    return "\n\n".join(
        [
            f"`{row.source}.{name}`: `keras_tfopt.{row.ours}` with the verbs of `Optimizer`.",
            "\n".join(["Args:", *arguments]),
            f"Slots: {slots or 'none'}.",
            f"Differs from the original: {row.differs or 'in nothing'}.",
        ]
    )


def _meaning(argument: str, default: Any, row: Row) -> str:
    """Describe an argument."""
    rows = [row] if row.extends is None else [row, TABLE[row.extends]]
    ours = next((r.renamed[argument] for r in rows if argument in r.renamed), argument)
    if argument in WITHOUT_MEANING:
        meaning = "For reference variables, in graphs of TensorFlow; no meaning elsewhere."
    elif argument in MEANINGS:
        meaning = MEANINGS[argument]
    else:
        takers = [getattr(owner_of(r.ours), r.ours) for r in rows]
        taker = next(cls.__name__ for cls in takers if ours in inspect.signature(cls).parameters)
        meaning = f"`{ours}` of `keras_tfopt.{taker}`."
    return meaning if default is REQUIRED else f"{meaning} Defaults to {default!r}."


def _class(name: str, row: Row) -> type:
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        check_arguments(name, kwargs, row.arguments)
        given = row.signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        arguments = {key: value for key, value in given.arguments.items() if key != "self"}
        if row.extends is None:
            super(own, self).__init__(name, row, arguments)  # type: ignore[arg-type, misc]
        else:
            VERBS[row.verbs].__init__(self, **arguments)  # type: ignore[misc]

    bases = (VERBS[row.verbs],) + (() if row.extends is None else (CLASSES[row.extends],))
    members: dict[str, Any] = {
        "__init__": as_constructor(name, row.signature, initialize),
        "__doc__": _documentation(name, row),
        "__module__": "keras_tfopt.legacy",
    }
    if issubclass(bases[0], workers.OverWorkers):
        # In a graph, an object is of a subclass that works there.
        members["__new__"] = lambda cls, *args, **kwargs: object.__new__(running.form_of(cls))
    own = type(name, bases, members)
    return own


CLASSES: dict[str, type] = {}
for _name, _row in sorted(TABLE.items(), key=lambda item: item[1].extends is not None):
    CLASSES[_name] = _class(_name, _row)


def get(name: Any) -> Any:
    """Return the class for a name as in configurations, in upper or lower case.

    "lars" and "LARSOptimizer" are `LARSOptimizer`. "keras.adamax" is a class with the verbs around
    the Keras optimizer of that name; its constructor takes the arguments of that optimizer. A class
    is returned unchanged.

    Args:
        name: String, or a class of this module.

    Raises:
        TypeError: if it is neither.
        ValueError: if there is no such optimizer; the message has similar names.

    Example:

    >>> optimizer = keras_tfopt.legacy.get("lars")(0.1)
    """
    if inspect.isclass(name) and issubclass(name, Optimizer):
        return name
    if not isinstance(name, str):
        raise TypeError(
            "Argument `name` must be a string, or a class of optimizers of keras_tfopt.legacy. "
            f"Received: {name!r}"
        )
    key = name.lower()
    if key.startswith("keras."):
        return _of_keras(key.removeprefix("keras."))
    classes = {one.lower(): cls for one, cls in CLASSES.items()}
    classes = {one.removesuffix("optimizer"): cls for one, cls in classes.items()} | classes
    if key in classes:
        return classes[key]
    close = nearest(key, classes)
    raise ValueError(
        "Argument `name` must be that of an optimizer, such as 'lars' or 'LARSOptimizer' (see "
        "keras_tfopt.legacy.names()), or 'keras.' and that of one of Keras. Received: "
        f"{name!r}" + (f". Similar are {close}" if close else "")
    )


@functools.cache
def _of_keras(name: str) -> type:
    found = keras_optimizers()
    if name not in found:
        raise ValueError(
            f"Argument `name` must be 'keras.' and one of {sorted(found)}. Received: "
            f"{f'keras.{name}'!r}"
        )
    keras_class = found[name]

    def initialize(self: Any, *args: Any, use_locking: bool = False, **kwargs: Any) -> None:
        Optimizer.__init__(self, keras_class(*args, **kwargs), use_locking=use_locking)

    members = {
        "__init__": initialize,
        "__doc__": f"`keras.optimizers.{keras_class.__name__}` with the verbs of `Optimizer`.",
        "__module__": __name__,
    }
    return type(keras_class.__name__, (Optimizer,), members)
