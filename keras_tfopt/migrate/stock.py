"""Convert optimizers of Keras 3 to optimizers of this package with the same steps, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_tfopt import rules as tfopt
from keras_tfopt.engine import (
    DEFAULTS,
    Engine,
    WrappingEngine,
    array_of,
    check_all_here,
    forget_compiled,
    innermost,
    path_of,
    slots_of,
    sync,
    variables_of,
)
from keras_tfopt.engine.stock import (
    calls_of,
    exempt_paths,
    extras_of,
    product_of_momenta,
    rate_of,
    set_calls,
)
from keras_tfopt.loss_scale_optimizer import LossScaleOptimizer
from keras_tfopt.migrate import rules
from keras_tfopt.migrate.kinds import DIFFERENT, KINDS, is_of_keras

# Options that Keras does not have, and without which steps are the same, or nearly.
_OF_STATE = ("row_variables", "slot_dtype", "shard_state")
# Options that Keras does not have, and without which steps differ.
_OURS_ALONE = ("master_weights", "maximize", "clip_unitwise", "groups")
# Options that Keras has, too.
_OPTIONS = [name for name in DEFAULTS if name not in (*_OF_STATE, *_OURS_ALONE, "weight_decay")]
_SCALING = ("initial_scale", "dynamic_growth_steps")


def from_keras(optimizer: Any) -> Any:
    """Return an optimizer of this package that continues for one of Keras 3.

    It has the arguments of the given optimizer and, if that is built, its state. So its steps are
    the same, up to rounding. The given optimizer does not change.

    `SGD`, `RMSprop`, `Adagrad`, `Adadelta`, `Adamax`, `Nadam`, `Ftrl` and `Lion` become the classes
    of these names in `keras_tfopt.migrate`; `Adam` and `AdamW` become `keras_tfopt.Adam`, `Lamb`
    becomes `keras_tfopt.LAMB`, and a `LossScaleOptimizer` one of this package.

    Args:
        optimizer: An optimizer of `keras.optimizers`, built or not.

    Raises:
        TypeError: for anything else, your own subclasses included.
        ValueError: if no rule of this package takes the same steps; the message says why.

    Example:

    >>> optimizer = keras_tfopt.from_keras(keras.optimizers.AdamW(1e-3, weight_decay=0.01))

    Differences: repeated rows of a gradient are summed on TensorFlow, which Keras does not do; and
    the state of half-precision variables is in float32.
    """
    name = _name_of(optimizer)
    if name == "LossScaleOptimizer":
        return _rescaled(optimizer, LossScaleOptimizer, from_keras)
    if name in DIFFERENT:
        raise _refusal(optimizer, DIFFERENT[name])
    kind = KINDS[name]
    _check_options(optimizer)
    given = _arguments_of(optimizer, name)
    if optimizer.weight_decay is not None:
        if kind.ours is tfopt.LAMB:
            raise _refusal(
                optimizer,
                "its `weight_decay` is outside of the trust ratio, and that of keras_tfopt.LAMB is "
                "inside: put keras_tfopt.DecoupledWeightDecay(..., scale_by_learning_rate=True) "
                "around keras_tfopt.LAMB",
            )
        given["weight_decay"] = optimizer.weight_decay
    new = kind.ours(rate_of(optimizer), **given, **_options_of(optimizer))
    _exempt(optimizer, new)
    return _with_state(optimizer, new, kind.slots)


def to_keras(optimizer: Any) -> Any:
    """Return an optimizer of Keras 3 that continues for one of this package.

    It is the inverse of `from_keras`. Besides the classes that `from_keras` returns, it takes
    `keras_tfopt.GradientDescent`, `Momentum`, `Adagrad`, `Adadelta`, `AdaMax`, `Ftrl`, `Lion` and,
    once built, `RMSProp`, as far as their steps are those of Keras.

    Args:
        optimizer: An optimizer of this package, built or not.

    Raises:
        TypeError: if it is none.
        ValueError: if no optimizer of Keras takes the same steps; the message says why.

    Example:

    >>> keras_tfopt.to_keras(keras_tfopt.Adam(1e-3, epsilon=1e-7)).get_config()
    """
    if isinstance(optimizer, LossScaleOptimizer):
        return _rescaled(optimizer, keras.optimizers.LossScaleOptimizer, to_keras)
    if not isinstance(optimizer, (Engine, WrappingEngine)):
        raise TypeError(
            "Argument `optimizer` must be an optimizer of keras_tfopt. "
            f"Received: {_described(optimizer)}"
        )
    cls = type(optimizer)
    name = _TO_KERAS.get(cls)
    if name is None:
        raise _refusal(optimizer, "keras.optimizers has none with this rule")
    kind = KINDS[name]
    _check_ours(optimizer)
    given = _arguments_of(optimizer, name)
    changing = [a for a, value in given.items() if not isinstance(value, (bool, int, float))]
    if changing:
        raise _refusal(optimizer, f"`{changing[0]}` is not a number, as Keras wants it")
    if cls is tfopt.Adagrad:
        given["epsilon"] = 0.0
    if optimizer.weight_decay is not None and kind.ours is not tfopt.LAMB:
        given["weight_decay"] = optimizer.weight_decay
        name = "AdamW" if name == "Adam" else name
    new = getattr(keras.optimizers, name)(rate_of(optimizer), **given, **_options_of(optimizer))
    _exempt(optimizer, new)
    slots = {ours: stock for stock, ours in kind.slots.items()}
    return _with_state(optimizer, new, slots)


_TO_KERAS = {
    **{kind.ours: name for name, kind in reversed(KINDS.items())},  # Adam, not AdamW
    tfopt.GradientDescent: "SGD",
    tfopt.Momentum: "SGD",
    tfopt.RMSProp: "RMSprop",
    tfopt.Adagrad: "Adagrad",
    tfopt.Adadelta: "Adadelta",
    tfopt.AdaMax: "Adamax",
    tfopt.Ftrl: "Ftrl",
    tfopt.Lion: "Lion",
}


def twin(optimizer: Any) -> Any:
    """Return a new optimizer of Keras that keeps the same state as one of Keras or of ours.

    Raises:
        ValueError: if Keras has none.
    """
    part = innermost(optimizer) if isinstance(optimizer, (Engine, WrappingEngine)) else optimizer
    name = _TO_KERAS.get(type(part)) if isinstance(part, Engine) else _name_of(part)
    if name not in KINDS:
        raise _refusal(optimizer, "keras.optimizers has none with this rule")
    given = _arguments_of(part, name)
    if name == "AdamW":
        given["weight_decay"] = 0.0
    return getattr(keras.optimizers, name)(rate_of(part), **given, **_options_of(part))


def _arguments_of(optimizer: Any, name: str) -> dict[str, Any]:
    """Return those arguments of an optimizer that the Keras optimizer `name` takes, too."""
    known = [a for a in KINDS[name].arguments if hasattr(optimizer, a)]
    return {argument: getattr(optimizer, argument) for argument in known}


def swap_optimizer(model: keras.Model) -> Any:
    """Replace the optimizer of a compiled model by one of this package; return the new one.

    The model may be in the middle of its training: the next step of `fit` is the same as without
    the change. Losses and metrics stay.

    Args:
        model: A model that was compiled with an optimizer of `keras.optimizers`.

    Raises:
        TypeError, ValueError: as `from_keras`. Nothing has been changed then.

    Example:

    >>> model.compile(optimizer="adam", loss="mse")
    >>> model.fit(x, y)
    >>> keras_tfopt.swap_optimizer(model)
    >>> model.fit(x, y)
    """
    if not isinstance(model, keras.Model) or getattr(model, "optimizer", None) is None:
        raise TypeError(
            "Argument `model` must be a keras.Model that was compiled with an optimizer. "
            f"Received: {_described(model)}"
        )
    sync(model)
    model.optimizer = from_keras(model.optimizer)
    forget_compiled(model)
    return model.optimizer


def _name_of(optimizer: Any) -> str:
    """Return the name in `keras.optimizers` of an optimizer's class."""
    cls = type(optimizer)
    known = (*KINDS, *DIFFERENT, "LossScaleOptimizer")
    if is_of_keras(optimizer) and cls.__name__ in known:
        return cls.__name__
    if isinstance(optimizer, (Engine, WrappingEngine, LossScaleOptimizer)):
        why = "it is an optimizer of keras_tfopt already"
    else:
        why = "a class of yours may take other steps than the class that it derives from"
    raise TypeError(
        f"Argument `optimizer` must be an optimizer of keras.optimizers itself: {why}. "
        f"Received: {_described(optimizer)}"
    )


def _refusal(optimizer: Any, why: str) -> ValueError:
    return ValueError(
        f"{type(optimizer).__name__} cannot be converted with the same steps, because {why}"
    )


def _described(thing: Any) -> str:
    cls = type(thing)
    return f"{thing!r} of {cls.__module__}.{cls.__qualname__}"


def _check_options(optimizer: Any) -> None:
    """Raise an error for options with another meaning in the other package."""
    if optimizer.use_ema and optimizer.gradient_accumulation_steps:
        raise _refusal(
            optimizer,
            "Keras moves averages of `use_ema` with each gradient, and this package with each step "
            "of `gradient_accumulation_steps` gradients",
        )
    if exempt_paths(optimizer) is None:
        raise _refusal(
            optimizer,
            "`exclude_from_weight_decay` was called and it is not built, so the variables are not "
            "known. Call `optimizer.build(model.trainable_variables)` before",
        )


def _check_ours(optimizer: Any) -> None:
    """Raise an error for what the Keras optimizer of that name does not do."""
    cls = type(optimizer)
    check_all_here(optimizer, "`to_keras`")
    for option in _OURS_ALONE:
        if getattr(optimizer, option) not in (None, False):
            raise _refusal(optimizer, f"Keras has no `{option}`")
    for argument, value, what in (
        ("epsilon_in_root", True, "Keras has epsilon inside of the root"),
        ("momentum_decay", 1.0, "Keras has a `momentum_decay` of 1"),
        ("exclude_from_layer_adaptation", None, "Keras adapts the steps of all variables"),
        ("axis", None, "Keras has norms over all axes"),
    ):
        if getattr(optimizer, argument, value) != value:
            raise _refusal(optimizer, what)
    if cls is tfopt.LAMB and optimizer.weight_decay:
        raise _refusal(optimizer, "the decay of Keras's Lamb is outside of the trust ratio")
    if cls is tfopt.Momentum and not isinstance(rate_of(optimizer), float):
        raise _refusal(
            optimizer, "Keras has the learning rate inside of the momentum, so it must be a number"
        )
    if cls is tfopt.RMSProp and not optimizer.built:
        raise _refusal(
            optimizer, "its average starts at one, and that of Keras at zero; once built, it can be"
        )
    by_rows = [
        path_of(v)
        for v in variables_of(optimizer)
        if optimizer.moves_by_rows(v) and cls not in (tfopt.GradientDescent, tfopt.Adagrad)
    ]
    if by_rows and not isinstance(optimizer, rules.Adagrad):
        raise _refusal(
            optimizer,
            f"it leaves rows without gradient alone in {by_rows}, where Keras moves all rows",
        )
    _check_options(optimizer)


def _options_of(optimizer: Any) -> dict[str, Any]:
    return {"name": optimizer.name, **{name: getattr(optimizer, name) for name in _OPTIONS}}


def _exempt(old: Any, new: Any) -> None:
    exempt = set(exempt_paths(old) or ())
    if exempt:
        new.exclude_from_weight_decay([v for v in variables_of(old) if path_of(v) in exempt])


def _with_state(old: Any, new: Any, slots: Mapping[str, str]) -> Any:
    """Return the new optimizer with the state of the old one."""
    if not old.built:
        return new
    variables = variables_of(old)
    new.build(variables)
    # Keras has the learning rate inside of the momentum.
    scale = -rate_of(old) if type(old) is tfopt.Momentum else 1
    extras = zip(extras_of(old), extras_of(new), strict=True)
    has_averages = calls_of(old) > 0  # before the first step, those of Keras are zero
    for variable, (given, taken) in zip(variables, extras, strict=True):
        for name, value in given.items():
            if name != "average" or has_averages:
                taken[name].assign(array_of(value))
        there, here = slots_of(old, variable), slots_of(new, variable)
        for name, value in there.items():
            if slots.get(name) in here:
                here[slots[name]].assign(scale * array_of(value))
        if isinstance(new, rules.Nadam):
            here["product"].assign(array_of(product_of_momenta(old)))
    if isinstance(old, rules.Nadam) and variables:
        product = array_of(slots_of(old, variables[0])["product"])
        product_of_momenta(new).assign(product)
    set_calls(new, calls_of(old))
    return new


def _rescaled(optimizer: Any, cls: Any, convert: Callable[[Any], Any]) -> Any:
    """Return the LossScaleOptimizer of the other package."""
    given = {name: getattr(optimizer, name) for name in _SCALING}
    new = cls(convert(optimizer.inner_optimizer), name=optimizer.name, **given)
    if optimizer.built:
        new.build(variables_of(optimizer.inner_optimizer))
        for name in ("step_counter", "dynamic_scale"):
            getattr(new, name).assign(array_of(getattr(optimizer, name)))
        set_calls(new, calls_of(optimizer))
    return new
