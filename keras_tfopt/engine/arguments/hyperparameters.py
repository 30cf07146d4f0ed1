"""The hyperparameters of a rule for some variables, and the `t` of formulas and hooks."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_tfopt.engine.arguments.options import changes, check_found, current, is_number
from keras_tfopt.engine.state.dither import dither_of
from keras_tfopt.engine.state.state import DITHER, FACTOR, HYPERPARAMETER, Settings

PACKAGE = "keras_tfopt."
ITERATION = "iteration"  # the name of the number of a step as an integer
PLAIN: list[tuple[Any, Any]] = [(1.0, None)]
Compute = Callable[[Any, Mapping[str, Any], Callable[..., dict[str, Any]], tuple], dict[str, Any]]
Known = dict[tuple[str, int], dict[str, Any]]  # scalars by the keys of entries, and by name


def scalar(value: Any, dtype: str) -> Any:
    """Return a number, variable or tensor as a tensor of a data type."""
    # Python numbers are never cast: PyTorch would round them to float32 on the way.
    if isinstance(value, keras.Variable) or ops.is_tensor(value):
        return ops.cast(value, dtype)
    if not isinstance(value, Real) and tuple(getattr(value, "shape", (0,))) != ():
        message = "A hyperparameter must be a number or a scalar tensor"
        raise TypeError(f"{message}. Received: {value!r}")
    return ops.convert_to_tensor(value, dtype)


@dataclasses.dataclass
class Rates:
    """The scalars of a step for variables of one rule, which may have several learning rates.

    Attributes:
        together: Tensors by name: scalars, or vectors with a number for each learning rate.
        count: The number of learning rates.
    """

    together: dict[str, Any]
    count: int

    @functools.cached_property
    def each(self) -> list[dict[str, Any]]:
        """The scalars for each learning rate, by name."""
        if self.count == 1:
            return [self.together]
        several = {n: ops.unstack(v) for n, v in self.together.items() if len(v.shape)}
        return [
            {**self.together, **{name: values[number] for name, values in several.items()}}
            for number in range(self.count)
        ]


class Hyperparameters:
    """The hyperparameters that some variables share. Except for schedules, they are static.

    Learning-rate factors and weight decays are data of a step, so variables that differ in nothing
    else share compiled code.

    Args:
        optimizer: The optimizer.
        own: Hyperparameters that differ from those of the optimizer.
    """

    def __init__(self, optimizer: Any, own: Mapping[str, Any]):
        self._optimizer, self.own = optimizer, own
        self.attributes = optimizer.attributes_with(own) if own else {}
        kept = {n: v for n, v in optimizer._changing.items() if n not in own}
        self.changing = {**kept, **{n: v for n, v in self.attributes.items() if changes(v)}}
        self.follows = optimizer._follows
        # Names of attributes of the rule that are among the scalars of each step.
        self.names = (*self.changing, *self.follows)
        # Pairs of a learning-rate factor and a weight decay; None is the optimizer's weight decay.
        self._rates: list[tuple[Any, Any]] = []

    def at(self, values: Mapping[str, Any]) -> Any:
        """Return the rule with these values of hyperparameters that change."""
        own = self._optimizer
        follows = own._following({**self.own, **values}) if values and self.follows else {}
        return own.with_attributes({**self.attributes, **follows, **values})

    def shrinks(self, settings: Settings) -> bool:
        """Return whether the rule shrinks a variable before its steps."""
        if self._optimizer._own_weight_decay:
            return False
        if settings.decay is None or self._optimizer.decay_is_around:
            return self._optimizer.weight_decay is not None
        return not is_number(settings.decay) or settings.decay > 0

    def rate_of(self, settings: Settings) -> int:
        """Return the index of a variable's factor and weight decay in the vectors of these."""
        own = self._optimizer
        is_mine = not (own._own_weight_decay or own.decay_is_around)
        rate = settings.factor, settings.decay if is_mine else None
        if rate not in self._rates:
            self._rates.append(rate)
        return self._rates.index(rate)

    def factors(self, dtype: str) -> Any:
        """Return the factors of the learning rate: a vector, a scalar, or None where all are 1."""
        factors = [factor for factor, _ in self._rates]
        if all(is_number(factor) and factor == 1 for factor in factors):
            return None
        return _tensor(factors, self._optimizer._iterations, dtype)

    def decays(self, dtype: str) -> Any:
        """Return the weight decays of a step: a vector, a number, or None where there is none."""
        own = self._optimizer
        decays = [own.weight_decay if decay is None else decay for _, decay in self._rates]
        if own._own_weight_decay or all(decay is None for decay in decays):
            return None
        if all(is_number(decay) and decay == decays[0] for decay in decays):
            return decays[0]
        return _tensor([decay or 0.0 for decay in decays], own._iterations, dtype)

    def rates(self, dtype: str, compute: Compute) -> Rates:
        """Return the scalars of this step in one data type, for all learning rates."""
        own, count = self._optimizer, len(self._rates)
        if self._rates == PLAIN:  # most optimizers: this runs in each step
            decay = None if own._own_weight_decay else own.weight_decay
            return Rates(self.scalars(dtype, compute, None, decay), 1)
        factors, decays = self.factors(dtype), self.decays(dtype)
        is_ours = not own._own_scalars or own.scalars.__module__.startswith(PACKAGE)
        if factors is None or count == 1 or is_ours:
            return Rates(self.scalars(dtype, compute, factors, decays), count)
        # A rule of users may compute with numbers only.
        decays = [decays] * count if is_number(decays) or decays is None else ops.unstack(decays)
        pairs = zip(ops.unstack(factors), decays, strict=True)
        each = [self.scalars(dtype, compute, factor, decay) for factor, decay in pairs]
        return Rates({n: ops.stack([one[n] for one in each]) for n in each[0]}, count)

    def scalars(self, dtype: str, compute: Compute, factors: Any, decays: Any) -> dict[str, Any]:
        """Return the scalars that all variables share in this step, in one data type.

        Args:
            dtype: The data type.
            compute: `compute_scalars` of the backend.
            factors: Factors of the learning rate. With a vector, scalars that depend on the
                learning rate are vectors, too.
            decays: The weight decays, like `factors`; None if the rule shrinks nothing.
        """
        own = self._optimizer
        done = iterations = ops.convert_to_tensor(own._iterations)
        if own.global_step is not None:
            done = ops.convert_to_tensor(own.global_step)
        elif own.gradient_accumulation_steps:
            done = iterations // own.gradient_accumulation_steps
        lr = own._get_current_learning_rate()
        if callable(own._learning_rate):
            check_found(lr, own._learning_rate)
        lr = scalar(lr, dtype)
        lr = lr if factors is None else lr * factors
        rounds = own._state.has_rounded
        if not (own._own_scalars or rounds or self.names) and decays is None:  # to be fast
            return {"lr": lr, **numbers_of(done + 1, dtype)}
        given = lr, done, decays, own._own_scalars, rounds, self.names, dtype
        if not self.names:
            return compute(own, self.attributes, scalars_of, given)
        values = {n: scalar(current(v, iterations), dtype) for n, v in self.changing.items()}
        exponent = None
        if own.powers is not None and values:
            exponent = own.powers.exponent(scalar(done + 1, dtype), values)
        return scalars_of(self.at(values), *given, exponent)


def scalars_of(
    rule: Any,
    lr: Any,
    done: Any,
    decays: Any,
    own_scalars: bool,
    rounds: bool,
    names: Sequence[str],
    dtype: str,
    exponent: Any = None,
) -> dict[str, Any]:
    """Return the scalars of a step by name.

    Args:
        rule: The rule with the attributes of the step.
        lr: The learning rate.
        done: The number of steps before, an integer.
        decays: The weight decays; None if the rule shrinks nothing.
        own_scalars: Whether the rule has `scalars`.
        rounds: Whether slots are rounded by chance.
        names: Attributes of the rule that are among the scalars.
        dtype: The data type of the scalars.
        exponent: What stands for the number of the step in powers of decays, if not that itself.
    """
    number = done + 1
    numbers = numbers_of(number, dtype)
    scalars = {"lr": lr}
    if own_scalars:
        scalars = dict(rule.scalars(lr, numbers["step"] if exponent is None else exponent))
    if rounds:
        scalars |= dither_of(number)
    for name in names:
        scalars[HYPERPARAMETER + name] = getattr(rule, name)
    if decays is not None:
        scalars["weight_decay_rate"] = lr * decays
    for name, value in scalars.items():
        scalars[name] = scalar(value, dtype)
    return {**scalars, **numbers}


def numbers_of(number: Any, dtype: str) -> dict[str, Any]:
    """Return the number of a step as `t` has it: in the data type of the scalars, and exactly."""
    return {"step": scalar(number, dtype), ITERATION: ops.cast(number, "int32")}


def arguments_in(scalars: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the values in a step of arguments that change, from its scalars."""
    return {name: scalars[HYPERPARAMETER + name] for name in names}


def scalars_around(wrapper: Any, number: Any, places: Sequence[int]) -> Known:
    """Return the scalars in `t` of a wrapper's hooks in step `number`, by the keys of entries."""
    known = {}
    entries, inner = wrapper._state.entries, wrapper._pipeline.mover.optimizer
    for dtype, rate in sorted({entries[place].scalars for place in places}):
        settings = wrapper._rates[rate]
        # A MultiOptimizer has several learning rates, so hooks get none.
        lr = getattr(inner, "learning_rate", None)
        lr, numbers = None if lr is None else scalar(lr, dtype), numbers_of(number, dtype)
        if lr is not None and FACTOR in settings.given:
            lr = lr * scalar(wrapper.now(settings.factor), dtype)
        given = lr, numbers["step"]
        by_groups = "scalars_in" in wrapper.defines
        found = wrapper.scalars_in(settings, *given) if by_groups else wrapper.scalars(*given)
        values = dict(found)
        for name, value in wrapper._changing.items():
            values[HYPERPARAMETER + name] = wrapper.now(value)
        values = {n: scalar(v, dtype) for n, v in values.items() if v is not None}
        known[dtype, rate] = {**values, **numbers}
    return known


def _tensor(values: Sequence[Any], iterations: Any, dtype: str) -> Any:
    """Return the values of numbers and schedules at a step: a vector, or one value as a scalar."""
    if not any(changes(value) for value in values):
        return ops.convert_to_tensor(values if len(values) > 1 else values[0], dtype)
    now = [ops.cast(current(v, iterations) if changes(v) else v, dtype) for v in values]
    return ops.stack(now) if len(now) > 1 else now[0]


# ---- What formulas and hooks see as `t` ------------------------------------------------------


class Over(NamedTuple):
    """Functions of values of a variable's shape, or of several variables end to end.

    Attributes:
        norm: The Euclidean norm of each variable, to broadcast against the values.
        sum: The sum over each variable.
        mean: The mean of each variable.
    """

    norm: Callable[[Any], Any]
    sum: Callable[[Any], Any]
    mean: Callable[[Any], Any]


def over_sums(total: Callable[[Any], Any]) -> Over:
    """Return the functions that follow from a sum over a variable."""

    def norm(values: Any) -> Any:
        return ops.sqrt(total(ops.square(values)))

    def mean(values: Any) -> Any:
        # On JAX, `ops.mean` rounds to float32.
        return total(values) / max(math.prod(values.shape), 1)

    return Over(norm, total, mean)


mean = over_sums(ops.sum).mean


def sums_of(call: Callable[..., Any], over: Over, g: Any, x: Any, *others: Any) -> list[Any]:
    """Return the norms, sums and means that a call asks for, in the order in which it asks.

    If all are of g and x themselves, return none: there is nothing to compute on the way.
    """
    found: list[Any] = []
    computed = False

    def noted(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(values: Any) -> Any:
            nonlocal computed
            computed |= values is not g and values is not x
            found.append(function(values))
            return found[-1]

        return run

    call(g, x, *others, over=Over(*map(noted, over)))
    return found if computed else []


def known_over(sums: Iterable[Any]) -> Over:
    """Return functions for one call that asks for the sums of `sums_of` again."""
    left = iter(sums)

    def take(values: Any) -> Any:
        return next(left)

    return Over(take, take, take)


def refusing(why: str) -> Over:
    """Return functions that raise an error, which says what to write instead."""

    def refuse(name: str, values: Any) -> Any:
        raise TypeError(f"`t.{name}` is of a whole variable: {why}")

    return Over(*[functools.partial(refuse, name) for name in Over._fields])


REFUSED = refusing(
    'a rule that uses it must have the class attribute `scope = "variable"`. Received: "element"'
)
"""For formulas of elements, which may see any piece of a variable."""


class Scalars:
    """What rules see as `t`: scalars and facts by name, `rows`, `touched`, functions of `Over`."""

    def __getattr__(self, name: str) -> Any:  # called only if there is no such attribute
        raise AttributeError(
            f"`t` has no {name!r}: `scalars` or `facts` of the rule must return it. It has "
            f"{sorted(n for n in vars(self) if not n.startswith('_'))}"
        )

    def __getitem__(self, name: str) -> Any:
        raise TypeError(f"scalars are attributes: write `t.{name}`")

    def __init__(
        self,
        scalars: dict[str, Any],
        facts: dict[str, Any],
        rows: bool,
        over: Over,
        touched: Any = None,
    ):
        for name, value in {**scalars, **facts}.items():
            if not name.startswith((HYPERPARAMETER, DITHER)):
                setattr(self, name, value)
        self.rows = rows
        self.touched = touched
        self._over = over
        self.norm, self.sum, self.mean = over

    def below(self, prefix: str) -> Scalars:
        """Return the scalars of a rule inside, whose names have `prefix` here."""
        known = vars(self).items()
        own = {n.removeprefix(prefix): value for n, value in known if n.startswith(prefix)}
        numbers = {"step": self.step, ITERATION: self.iteration}
        return Scalars({**numbers, **own}, {}, self.rows, self._over, self.touched)
