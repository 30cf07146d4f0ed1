import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

import keras_tfopt
from tests.reference import Reference
from tests.stepping import BACKEND


class Training:
    """Arguments and a number of steps that bring an optimizer to a minimum.

    The learning rate falls to zero on the way, if `falling`. This is for rules whose steps do not
    shrink by themselves.
    """

    def __init__(self, steps: int, learning_rate: float, falling: bool = False, **arguments: Any):
        self.steps = steps
        if falling:
            schedule = keras.optimizers.schedules.PolynomialDecay
            learning_rate = schedule(learning_rate, steps, end_learning_rate=0.0)
        self.arguments = {"learning_rate": learning_rate, **arguments}


@dataclass(frozen=True)
class Case:
    """The facts of one optimizer that tests need."""

    cls: type
    # Constructor arguments, by a name for each set. Together they reach every branch of the rule.
    # Slow tests take the first set only.
    variants: Mapping[str, Mapping[str, Any]]
    # Training that reaches the minimum of a quadratic function, and of Rosenbrock's. A wrapper
    # that names none is trained as the optimizer inside.
    quadratic: Training | None = None
    rosenbrock: Training | None = None
    # Values that an argument must refuse, in addition to what every number and every flag refuses.
    # Arguments that are neither have to be listed.
    refused: Mapping[str, tuple] = field(default_factory=dict)
    # Numbers among the arguments that may be negative.
    may_be_negative: tuple[str, ...] = ()
    # Numbers among the arguments that cannot change while training.
    fixed: tuple[str, ...] = ()
    # Values for arguments without a default, for tests that are not about them.
    required: Mapping[str, Any] = field(default_factory=dict)
    # Places where the usual tolerance cannot be met, as {"float64 xla": (factor, reason)}. A place
    # is given by any of dtype, variant, mode and backend.
    wider_tolerance: Mapping[str, tuple[float, str]] = field(default_factory=dict)

    # How steps depend on gradients: with `scaling_arguments`, gradients that are c times as large
    # make steps that are c**step_scales_with_power times as large. None: there is no such power.
    step_scales_with_power: int | None = None
    scaling_arguments: Mapping[str, Any] = field(default_factory=dict)
    # A step has a largest size, as steps by signs do: after an infinite gradient the variable is
    # still finite.
    steps_are_bounded: bool = False
    # Steps leave some elements where they are, and depend on how many of those with a gradient.
    masks_elements: bool = False
    # Slots for which a row without a gradient is not the same as a row with a gradient of zeros.
    slots_that_skip_absent_rows: tuple[str, ...] = ()

    # Of a wrapper only. The class of the optimizer inside: it gets the arguments that the wrapper
    # does not have.
    inner: type | None = None
    # Slots of the wrapper that change in rows without a gradient, too.
    slots_that_change_in_all_rows: tuple[str, ...] = ()
    # Slots of the wrapper that hold gradients before clipping and other options of Keras.
    slots_of_raw_gradients: tuple[str, ...] = ()
    # The wrapper leaves rows without a gradient alone, even where the optimizer inside does not.
    acts_in_touched_rows_only: bool = False
    # The wrapper changes variables after the step of the optimizer inside.
    changes_variables_after_the_step: bool = False

    @property
    def name(self) -> str:
        return self.cls.__name__

    @property
    def main(self) -> str:
        """The name of the first variant."""
        return next(iter(self.variants))

    @property
    def sparse(self) -> str:
        """The effect of a row gradient: "dense", "rows" or "move_rows"."""
        return (self.inner or self.cls).sparse

    @property
    def scope(self) -> str:
        """The part that one step of the formula sees: "element", "variable" or "model"."""
        return (self.inner or self.cls).scope

    @property
    def slots_that_workers_share(self) -> tuple[str, ...]:
        """Slots that change when workers exchange them, perhaps after the step."""
        is_over_workers = issubclass(self.cls, keras_tfopt.distributed.OverWorkers)
        return self.slots_that_change_in_all_rows if is_over_workers else ()

    @property
    def reference(self) -> type[Reference]:
        """The class of the same name in tests/reference/, in a file of the same name as the rule's.

        Methods over workers share a file.
        """
        file = self.cls.__module__.rsplit(".", 1)[-1]
        if issubclass(self.cls, keras_tfopt.distributed.OverWorkers):
            file = "over_workers"
        return getattr(importlib.import_module(f"tests.reference.{file}"), self.name)

    @property
    def own_arguments(self) -> dict[str, Any]:
        """Arguments of its own with their defaults, without the learning rate."""
        kinds = [inspect.Parameter.POSITIONAL_OR_KEYWORD]
        if self.inner is not None:  # of a rule, these are options of all optimizers
            kinds.append(inspect.Parameter.KEYWORD_ONLY)
        return {
            p.name: p.default
            for p in inspect.signature(self.cls.__init__).parameters.values()
            if p.kind in kinds and p.name not in ("self", "learning_rate", "name")
        }

    def tolerance(self, dtype="float32", variant=None, mode=None) -> float:
        """The largest error of a step.

        Of a variable it is relative to max(1, |x|), of a slot relative to the largest number that
        the slot has held.
        """
        here = {dtype, variant or self.main, mode, BACKEND}
        places = self.wider_tolerance.items()
        factors = [factor for place, (factor, _) in places if set(place.split()) <= here]
        return {"float32": 1e-6, "float64": 1e-12}[dtype] * max(factors, default=1.0)

    def build(self, **arguments):
        """Return the optimizer with these arguments."""
        arguments = {**self.required, **arguments}
        parameters = set(inspect.signature(self.cls.__init__).parameters)
        if "inner_optimizer" not in parameters:
            return self.cls(**arguments)
        own = parameters & set(arguments)
        outer = {name: arguments.pop(name) for name in own}
        return self.cls(self.inner(**arguments), **outer)

    def make(self, variant=None, **changes):
        """Return the optimizer of a variant, with some arguments changed."""
        return self.build(**{**self.variants[variant or self.main], **changes})

    def make_reference(self, variant=None) -> Reference:
        return self.reference(**self.variants[variant or self.main])
