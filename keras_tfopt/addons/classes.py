"""Make the classes of TensorFlow Addons: ours, with the constructors of the originals."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any

import keras

from keras_tfopt import rules, wrappers
from keras_tfopt.addons import keras2
from keras_tfopt.addons.table import SOURCE, Row
from keras_tfopt.engine import assign_averages, check_arguments, path_of, swap_averages
from keras_tfopt.tables import REQUIRED, as_constructor, in_words_of

PACKAGE = "Addons"

_EXCLUDED = "exclude_from_weight_decay"


class Original:
    """Base of all classes, which takes arguments and configurations of the original."""

    _row = Row()
    names_rows = True

    def _make(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Translate arguments to ours; given are those of the original, or ours by name."""
        row, name = self._row, type(self).__name__
        theirs = {ours: argument for argument, ours in row.renamed.items()}
        kwargs = {theirs.get(key, key): value for key, value in kwargs.items()}
        bound = row.signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = {key: value for key, value in bound.arguments.items() if key != "self"}
        given.update(given.pop("kwargs"))
        given = keras2.arguments(name, given)
        return {row.renamed.get(key, key): value for key, value in given.items()}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict | None = None) -> Any:
        """Return the optimizer that `get_config` described, here or in TensorFlow Addons."""
        config = keras2.arguments(cls.__name__, keras2.configuration(config))
        excluded = config.pop(_EXCLUDED, None)
        config = {key: cls._as_declared(key, v) for key, v in keras2.saved(config).items()}
        config = {cls._row.renamed.get(key, key): value for key, value in config.items()}
        optimizer = super().from_config(config, custom_objects)  # type: ignore[misc]
        keras2.exclude(optimizer, excluded)
        return optimizer

    @classmethod
    def _as_declared(cls, name: str, value: Any) -> Any:
        """Return an argument in a configuration; of one that trained, all numbers are floats."""
        parameter = cls._row.signature.parameters.get(name)
        default = None if parameter is None else parameter.default
        if not (isinstance(default, int) and isinstance(value, float) and value.is_integer()):
            return value
        declared = type(default)(value)
        return declared if declared == value else value


class Averaged(Original):
    """Base of `MovingAverage` and `SWA`: averages can be assigned to the variables."""

    def assign_average_vars(self, var_list: Sequence[Any]) -> None:
        """Assign averages to their variables permanently.

        Args:
            var_list: Variables. A warning names trainable ones that have no average.

        Raises:
            ValueError: before the first step.
        """
        for variable in assign_averages(self, var_list):
            if variable.trainable:
                warnings.warn(f"There is no average of {path_of(variable)!r}", stacklevel=2)


class Swapping(Averaged):
    """Base of `MovingAverage`: weights and averages can change places."""

    _shadowed: list[Any] | None = None

    @property
    def has_shadow_copy(self) -> bool:
        """Return whether `shadow_copy` was called."""
        return self._shadowed is not None

    def shadow_copy(self, model_weights: Sequence[Any]) -> None:
        """Say which weights `swap_weights` swaps.

        Args:
            model_weights: Trained variables.
        """
        # Keras takes variables among the attributes of an optimizer for its state.
        object.__setattr__(self, "_shadowed", list(model_weights))

    def swap_weights(self) -> None:
        """Swap weights and averages; a second call swaps them back.

        Raises:
            RuntimeError: if `shadow_copy` was not called.
        """
        if self._shadowed is None:
            raise RuntimeError("Call `shadow_copy(model.trainable_variables)` first")
        swap_averages(self, self._shadowed)


class Decaying(Original):
    """Base of `AdamW`, `SGDW` and extended classes: a step may name the variables that decay."""

    _decaying: list[str] | None = None

    def apply_gradients(
        self,
        grads_and_vars: Any,
        name: str | None = None,
        decay_var_list: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Take a step.

        Args:
            grads_and_vars: Pairs of a gradient and its variable.
            name: No meaning here.
            decay_var_list: The variables that decay, in this and all other steps. Defaults to None:
                those of the constructor.
            **kwargs: `skip_gradients_aggregation`, which has no meaning here.

        Raises:
            ValueError: if other variables decayed in the steps before.
        """
        check_arguments("apply_gradients", kwargs, ["skip_gradients_aggregation"])
        if decay_var_list is not None:
            self.decay_only([variable.path for variable in decay_var_list])
        return super().apply_gradients(grads_and_vars)  # type: ignore[misc]

    def decay_only(self, paths: Sequence[str]) -> None:
        """Say which variables decay, as `decay_var_list` of the first step does.

        Args:
            paths: Their paths. An empty list means all variables, as in the original.

        Raises:
            ValueError: if the optimizer is built, and these are not those that decay in it.
        """
        chosen = self._decaying
        if chosen is None and not self.built:  # type: ignore[attr-defined]
            self._decaying = sorted(paths)
            self.decay_variables = [f"^{re.escape(path)}$" for path in paths] or None
            self._excluded: list[Any] = []
        elif chosen != sorted(paths):
            raise ValueError(
                "Argument `decay_var_list` must be the same in all steps, beginning with the "
                f"first. Received: {sorted(paths)}, after {chosen}"
            )


class DecayingAsSGDW(Decaying, wrappers.SGDW):
    """Base of `SGDW`: without momentum, variables with row gradients do not decay."""

    def decays_rows(self) -> bool:
        """Return whether there is momentum."""
        momentum = self.inner_optimizer.momentum
        return not (isinstance(momentum, float) and momentum == 0)


_MIXINS = {
    "AdamW": Decaying,
    "MovingAverage": Swapping,
    "SGDW": DecayingAsSGDW,
    "SWA": Averaged,
}


def _documentation(name: str, row: Row) -> str:
    taken = [
        f"    {argument}: `{row.renamed.get(argument, argument)}` of `keras_tfopt.{row.ours}`."
        + ("" if default is REQUIRED else f" Defaults to {default!r}.")
        for argument, default in row.arguments.items()
        if argument not in ("name", "use_locking", _EXCLUDED)
    ]
    if _EXCLUDED in row.arguments:
        taken.append(f"    {_EXCLUDED}: Regular expressions of paths. Defaults to None.")
    if "use_locking" in row.arguments:
        taken.append("    use_locking: No meaning here. Defaults to False.")
    taken += [
        f"    name: Name of the optimizer. Defaults to {name!r}.",
        f"    **kwargs: Options of `keras_tfopt.{row.ours}`; `lr`, the learning rate; `decay`, by "
        "which it falls as `1 / (1 + decay * step)`.",
    ]
    return "\n\n".join(
        [
            f"`{SOURCE}.{name}`: `keras_tfopt.{row.ours}` with the arguments of the original.",
            "\n".join(["Args:", *taken]),
            f"Slots: those of `keras_tfopt.{row.ours}`.",
            f"Example:\n\n>>> optimizer = keras_tfopt.addons.{name}({row.example})",
            f"Reference: that of `keras_tfopt.{row.ours}`.",
            f"Differs from the original: {row.differs or 'in nothing'}.",
        ]
    )


def make_class(name: str, row: Row) -> type:
    """Make the class of this name: ours, with the constructor of the original."""
    base = getattr(rules if hasattr(rules, row.ours) else wrappers, row.ours)
    members = {
        "_row": row,
        "__doc__": _documentation(name, row),
        "__module__": "keras_tfopt.addons",
    }
    own: Any = type(name, (_MIXINS.get(name, Original), base), members)
    ours = own.__init__

    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        given = self._make(args, kwargs)
        excludes = _EXCLUDED in row.arguments or isinstance(self, Decaying)
        excluded = given.pop(_EXCLUDED, None) if excludes else None
        try:
            ours(self, **given)
        except (TypeError, ValueError) as error:
            raise type(error)(in_words_of(row, str(error))) from error
        keras2.exclude(self, excluded)

    if hasattr(ours, "fields"):  # the rule's own arguments, by our names, for the engine
        initialize.fields = ours.fields  # type: ignore[attr-defined]
    own.__init__ = as_constructor(name, row.signature, initialize)
    return keras.saving.register_keras_serializable(PACKAGE, name)(own)
