"""All private names of Keras that this package uses, each with the reason.

They exist in Keras 3.12 to 3.15.1. No other file imports from `keras.src`. `ATTRIBUTES` lists
private attributes. `tests/test_architecture.py` finds attributes that are not listed, and
`tests/test_keras_private.py` fails if a name no longer exists.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import get_stateless_scope, in_stateless_scope
from keras.src.saving.keras_saveable import KerasSaveable
from keras.src.utils import tracking

__all__ = ["KerasSaveable", "get_stateless_scope", "in_stateless_scope"]

# {attribute of an object of Keras: why it is read, assigned or called}
ATTRIBUTES = {
    # Optimizers. The base class calls and reads these on ours, too.
    "_accumulated_gradients": "sums of micro-steps go along when an optimizer is converted",
    "_distribution_strategy": "state is created in the strategy of the optimizer, on TensorFlow",
    "_exclude_from_weight_decay": "which variables do not decay, when an optimizer is converted",
    "_exclude_from_weight_decay_pattern": "as before, by names",
    "_filter_empty_gradients": "the warning about variables without a gradient is Keras's",
    "_get_current_learning_rate": "a schedule is called with the count of steps as Keras does",
    "_get_variable_index": "the position of a variable, also of a replica's copy of one",
    "_iterations": "the public `iterations` counts whole steps, this one micro-steps",
    "_learning_rate": "the public `learning_rate` is a schedule's value, not the schedule",
    "_model_variables_moving_average": "averages go along when an optimizer is converted",
    "_overwrite_variable_with_gradient": "variables of float8 scales are set to their gradient",
    "_overwrite_variables_directly_with_gradients": "assigns these",
    "_trainable_variables": "the variables that an optimizer was built for have no public name",
    "_trainable_variables_indices": "an optimizer that is extended must know the new variables",
    "_u_product": "the product of momenta of Nadam, when one is converted",
    "_untrack_variable": "a learning rate that was a variable leaves the state for a schedule",
    "_use_weight_decay": "whether an optimizer of Keras lets a variable decay, for `diagnose`",
    "_var_key": "the key of a variable in `_trainable_variables_indices`",
    "_var_to_optimizer_idx": "which optimizer of a MultiOptimizer a variable belongs to",
    "_variables": "the state without that of an optimizer inside",
    # Variables
    "_autocast": "mixed precision would cast a whole table for a few rows",
    "_deferred_initialize": "gives a variable its first value before its scope ends",
    "_direct_assign": "assigns within a scope that keeps assignments apart",
    "_dtype": "the data type of a variable, whatever mixed precision makes of it",
    "_layout": "state of a variable is laid out over devices as the variable is, on JAX",
    "_value": "the tensor of the backend, whatever scope there is",
    # Layers and models
    "_embeddings": "the table itself; `embeddings` adds what lora has learned",
    "_flatten_layers": "all layers inside of a model, at any depth",
    "_seed_generators": "their states are values that a step changes",
    "_initial_epoch": "where BackupAndRestore tells a run to go on",
    "_remat_mode": "whether a layer is rematerialized, which would lose its row gradients",
}


def is_multi_optimizer(optimizer: Any) -> bool:
    """Return whether this is a `keras.optimizers.MultiOptimizer`, which Keras has since 3.15."""
    cls = getattr(keras.optimizers, "MultiOptimizer", None)
    return cls is not None and isinstance(optimizer, cls)


# ---- What an optimizer finds among its attributes ------------------------------------------------

# Lists of a model's variables must not become part of an optimizer's state. The public way is not
# to keep them as attributes.
untracked = tracking.no_automatic_dependency_tracking


@contextlib.contextmanager
def tracked() -> Iterator[None]:
    """Let Keras track variables that an optimizer keeps as attributes, in this context.

    Keras's Nadam needs that when it is built, and a `build` around it may have turned it off.
    """
    before = tracking.is_tracking_enabled()
    global_state.set_global_attribute("tracking_on", True)
    try:
        yield
    finally:
        global_state.set_global_attribute("tracking_on", before)


# ---- Scopes --------------------------------------------------------------------------------------


def set_stateless_scope(scope: Any) -> None:
    """Make a `keras.StatelessScope`, or None, the current one. Leaving a scope would assign."""
    global_state.set_global_attribute("stateless_scope", scope)


@contextlib.contextmanager
def outside_of_scopes() -> Iterator[None]:
    """Leave all `keras.StatelessScope`s in this context."""
    scope = get_stateless_scope()
    set_stateless_scope(None)
    try:
        yield
    finally:
        set_stateless_scope(scope)


def uninitialized_variables() -> list[Any]:
    """Return the variables created in the current scope that have no value yet."""
    return list(global_state.get_global_attribute("uninitialized_variables") or [])


def forget_uninitialized(variable: Any) -> None:
    """Keep Keras from initializing this variable at the end of the scope."""
    rest = [other for other in uninitialized_variables() if other is not variable]
    global_state.set_global_attribute("uninitialized_variables", rest)


# ---- Layers --------------------------------------------------------------------------------------


def layers_in(model: Any, include_self: bool = True) -> list[Any]:
    """Return all layers of a model, including those inside other layers."""
    return list(model._flatten_layers(include_self=include_self))


def layers_below(layer: Any) -> list[Any]:
    """Return the layers directly inside a model or layer."""
    return list(layer._flatten_layers(include_self=False, recursive=False))


def table_of(layer: Any) -> Any:
    """Return the table of an embedding layer, without what lora has added."""
    return layer._embeddings


def read_uncast(variable: Any) -> None:
    """Let a variable be read in its own dtype under every policy."""
    variable._autocast = False


def exempt_from_rematerialization(layer: Any) -> None:
    """Keep a layer from being computed again in the backward pass."""
    layer._remat_mode = None


def set_initial_epoch(model: Any, epoch: int | None) -> None:
    """Set the epoch at which a run continues; None forgets it."""
    model._initial_epoch = epoch


def initial_epoch(model: Any) -> int | None:
    """Return the epoch at which `keras.callbacks.BackupAndRestore` continues a run, or None."""
    return model._initial_epoch


# ---- PyTorch -------------------------------------------------------------------------------------


def torch_device() -> str:
    """Return the device on which Keras creates PyTorch tensors; "meta" while it infers shapes."""
    from keras.src.backend.torch.core import get_device

    return get_device()
