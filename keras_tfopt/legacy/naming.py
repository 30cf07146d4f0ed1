"""The classes under the names of the table, made from it."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any, NamedTuple

import keras

from keras_tfopt.execution import check_arguments, nearest
from keras_tfopt.legacy import functions, sign_decay, workers
from keras_tfopt.legacy.arguments import owner_of
from keras_tfopt.legacy.optimizer import Optimizer
from keras_tfopt.legacy.table import (
    CONTRIB,
    MINIMIZED,
    REQUIRED,
    RETURNN,
    TABLE,
    WITHOUT_MEANING,
    Row,
)

# On TensorFlow they are optimizers of TensorFlow, for its graphs too.
_PLACE = "keras_tfopt.legacy" + (".graph" if keras.backend.backend() == "tensorflow" else "")
custom, decay, rules, getters, wrapping = (
    importlib.import_module(f"{_PLACE}.{name}")
    for name in ("custom", "decay", "rules", "workers", "wrapping")
)

# What a class does besides applying a rule, by `Row.verbs`.
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

# What there is besides the classes of the table: its module, what it maps to, what differs.
OTHERS: dict[str, tuple[Any, str, str, str]] = {
    "BaseCustomOptimizer": (
        custom.BaseCustomOptimizer,
        RETURNN,
        "keras_tfopt.Rule",
        "repeated rows are summed first; nothing returns operations",
    ),
    "AGNCustomGetter": (
        getters.AGNCustomGetter,
        CONTRIB,
        "keras_tfopt.AGN",
        "in eager programs it only tells of the center",
    ),
    "DecoupledWeightDecayExtension": (
        decay.DecoupledWeightDecayExtension,
        CONTRIB,
        "keras_tfopt.DecoupledWeightDecay",
        MINIMIZED,
    ),
    "ElasticAverageCustomGetter": (
        getters.ElasticAverageCustomGetter,
        CONTRIB,
        "keras_tfopt.ElasticAverage",
        "in eager programs it only tells of the center",
    ),
    "ModelAverageCustomGetter": (
        getters.ModelAverageCustomGetter,
        CONTRIB,
        "keras_tfopt.ModelAverage",
        "in eager programs the mean has no variables of its own",
    ),
    "extend_with_decoupled_weight_decay": (
        decay.extend_with_decoupled_weight_decay,
        CONTRIB,
        "keras_tfopt.extend_with_decoupled_weight_decay",
        MINIMIZED,
    ),
    "extend_with_weight_decay": (
        decay.extend_with_weight_decay,
        CONTRIB,
        "keras_tfopt.extend_with_decoupled_weight_decay",
        f"another name of `extend_with_decoupled_weight_decay`; {MINIMIZED}",
    ),
    "clip_gradients_by_global_norm": (
        functions.clip_gradients_by_global_norm,
        CONTRIB,
        "keras_tfopt.clip_gradients_by_global_norm",
        "takes row gradients too",
    ),
    "matrix_square_root": (
        functions.matrix_square_root,
        CONTRIB,
        "keras_tfopt.matrix_square_root",
        "right for matrices of a small norm",
    ),
    "matrix_inverse_pth_root": (
        functions.matrix_inverse_pth_root,
        CONTRIB,
        "keras_tfopt.matrix_inverse_pth_root",
        "right for matrices of a small norm",
    ),
    "get_linear_decay_fn": (
        sign_decay.get_linear_decay_fn,
        CONTRIB,
        "keras_tfopt.schedules.LinearSignDecay",
        "",
    ),
    "get_cosine_decay_fn": (
        sign_decay.get_cosine_decay_fn,
        CONTRIB,
        "keras_tfopt.schedules.CosineSignDecay",
        "",
    ),
    "get_restart_decay_fn": (
        sign_decay.get_restart_decay_fn,
        CONTRIB,
        "keras_tfopt.schedules.RestartSignDecay",
        "`zero_after` may be given with any `num_periods`",
    ),
}


# Arguments that no class of this package has.
OWN_MEANING = {
    "name": "Name of the optimizer.",
    "accum_name": "Suffix of the name of a slot, in graphs and in files.",
    "linear_name": "Suffix of the name of a slot, in graphs and in files.",
    "var_list": "The variables to train, if any are given.",
    "num_worker": "Number of workers; in eager programs that of the connected ones.",
    "is_chief": "Whether this worker takes the mean, in graphs; no meaning elsewhere.",
    "custom_getter": "An `AGNCustomGetter`; in eager programs also None.",
    "ea_custom_getter": "An `ElasticAverageCustomGetter`; in eager programs also None.",
    "ma_custom_getter": "A `ModelAverageCustomGetter`; in eager programs also None.",
    "synchronous": "Whether workers wait for each other at the start, as in eager programs always.",
}


class Counterpart(NamedTuple):
    """What a name of an original is here.

    Attributes:
        source: Module of the original.
        maps_to: Name of the class or function of this package with the same numbers.
        differs: What differs, in words.
    """

    source: str
    maps_to: str
    differs: str


def names() -> dict[str, Counterpart]:
    """Every name of the originals, with its module there, what it maps to, and what differs."""
    found = {
        name: Counterpart(row.source, f"keras_tfopt.{row.ours}", row.differs or "nothing")
        for name, row in TABLE.items()
    }
    found |= {
        name: Counterpart(source, maps_to, differs or "nothing")
        for name, (_, source, maps_to, differs) in OTHERS.items()
    }
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


_POSITIONAL, _KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


def _signature(row: Row) -> inspect.Signature:
    parameters = [inspect.Parameter("self", _POSITIONAL)]
    for name, default in row.arguments.items():
        kind = _KEYWORD if name in row.keywords else _POSITIONAL
        default = inspect.Parameter.empty if default is REQUIRED else default
        parameters.append(inspect.Parameter(name, kind, default=default))
    return inspect.Signature(parameters)


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


def _parameters(name: str) -> Any:
    return inspect.signature(getattr(owner_of(name), name)).parameters


def _meaning(argument: str, default: Any, row: Row) -> str:
    """What to say of an argument."""
    rows = [row] if row.extends is None else [row, TABLE[row.extends]]
    ours = next((r.renamed[argument] for r in rows if argument in r.renamed), argument)
    takers = [r.ours for r in rows if ours in _parameters(r.ours)]
    if argument in WITHOUT_MEANING:
        meaning = "For reference variables, in graphs of TensorFlow; no meaning elsewhere."
    elif argument in OWN_MEANING:
        meaning = OWN_MEANING[argument]
    else:
        meaning = f"`{ours}` of `keras_tfopt.{takers[0]}`."
    return meaning if default is REQUIRED else f"{meaning} Defaults to {default!r}."


def _class(name: str, row: Row) -> type:
    signature = _signature(row)

    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        check_arguments(name, kwargs, row.arguments)
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        arguments = {key: value for key, value in given.arguments.items() if key != "self"}
        if row.extends is None:
            super(own, self).__init__(name, row, arguments)  # type: ignore[arg-type, misc]
        else:
            VERBS[row.verbs].__init__(self, **arguments)  # type: ignore[misc]

    initialize.__signature__ = signature  # type: ignore[attr-defined]
    initialize.__name__ = "__init__"
    initialize.__qualname__ = f"{name}.__init__"
    bases = (VERBS[row.verbs],) + (() if row.extends is None else (CLASSES[row.extends],))
    members: dict[str, Any] = {
        "__init__": initialize,
        "__doc__": _documentation(name, row),
        "__module__": "keras_tfopt.legacy",
    }
    if issubclass(bases[0], workers.OverWorkers) and hasattr(getters, "form_of"):
        # In a graph, an object is of a subclass that works there.
        members["__new__"] = lambda cls, *args, **kwargs: object.__new__(getters.form_of(cls))
    own = type(name, bases, members)
    return own


CLASSES: dict[str, type] = {}
for _name, _row in sorted(TABLE.items(), key=lambda item: item[1].extends is not None):
    CLASSES[_name] = _class(_name, _row)


def get(name: Any) -> Any:
    """The class for a name, as configurations have it; upper and lower case are the same.

    "lars" and "LARSOptimizer" are `LARSOptimizer`. "keras.adamax" is the Keras optimizer of that
    name with the verbs, whose constructor takes what that of Keras takes. A class is itself.

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
    for one, cls in CLASSES.items():
        classes.setdefault(one.removesuffix("Optimizer").lower(), cls)
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
    found = {
        key.lower(): cls
        for key, cls in vars(keras.optimizers).items()
        if inspect.isclass(cls)
        and issubclass(cls, keras.optimizers.Optimizer)
        and cls is not keras.optimizers.Optimizer
    }
    if name not in found:
        raise ValueError(
            f"Argument `name` must be 'keras.' and one of {sorted(found)}. Received: "
            f"{f'keras.{name}'!r}"
        )
    keras_class = found[name]

    def initialize(self: Any, *args: Any, use_locking: bool = False, **kwargs: Any) -> None:
        Optimizer.__init__(self, keras_class(*args, **kwargs), use_locking=use_locking)

    return type(
        keras_class.__name__,
        (Optimizer,),
        {
            "__init__": initialize,
            "__doc__": f"`keras.optimizers.{keras_class.__name__}` with the verbs of `Optimizer`.",
            "__module__": __name__,
        },
    )
