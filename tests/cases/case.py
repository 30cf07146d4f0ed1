import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

import keras_tfopt
from tests.helpers.stepping import BACKEND
from tests.reference import Reference


class Training:
    """Arguments and a number of steps that bring an optimizer to a minimum.

    If `falling`, the learning rate falls linearly to zero. Rules whose steps do not shrink by
    themselves need that.
    """

    def __init__(self, steps: int, learning_rate: float, falling: bool = False, **arguments: Any):
        self.steps = steps
        if falling:
            schedule = keras.optimizers.schedules.PolynomialDecay
            learning_rate = schedule(learning_rate, steps, end_learning_rate=0.0)
        self.arguments = {"learning_rate": learning_rate, **arguments}


@dataclass(frozen=True)
class Case:
    """What tests need to know of one optimizer."""

    cls: type
    # Constructor arguments, by a name for each set. Together they reach every branch of the rule.
    # Slow tests take the first set only.
    variants: Mapping[str, Mapping[str, Any]]
    # Trainings that reach the minimum of a quadratic function, and of Rosenbrock's. A wrapper
    # without them is trained as the optimizer inside.
    quadratic: Training | None = None
    rosenbrock: Training | None = None
    # Values that an argument must refuse. Tests add values that any number or any flag refuses.
    # Arguments that are neither numbers nor flags must be listed here.
    refused: Mapping[str, tuple] = field(default_factory=dict)
    # Numbers among the arguments that may be negative.
    may_be_negative: tuple[str, ...] = ()
    # Numbers among the arguments that cannot change while training.
    fixed: tuple[str, ...] = ()
    # Values for arguments without a default, for tests of other things.
    required: Mapping[str, Any] = field(default_factory=dict)
    # Where the usual tolerance cannot be met: {"float64 xla": (factor, reason)} multiplies it by
    # `factor`. A key has words for any of dtype, variant, mode and backend.
    wider_tolerance: Mapping[str, tuple[float, str]] = field(default_factory=dict)

    # With `scaling_arguments`, gradients that are c times as large make steps that are
    # c**step_scales_with_power times as large. It is None if no power describes the steps.
    step_scales_with_power: int | None = None
    scaling_arguments: Mapping[str, Any] = field(default_factory=dict)
    # The size of steps is bounded, so a variable is finite after an infinite gradient.
    steps_are_bounded: bool = False
    # The rule does not step some elements with a gradient; how many these are changes the others.
    masks_elements: bool = False
    # Slots that a gradient of zeros for a row changes in another way than no gradient for the row.
    slots_that_skip_absent_rows: tuple[str, ...] = ()

    # The rest is about wrappers. The class of the optimizer inside, which gets the arguments that
    # the wrapper does not have.
    inner: type | None = None
    # Slots of the wrapper that also change in rows without a gradient.
    slots_that_change_in_all_rows: tuple[str, ...] = ()
    # Slots of the wrapper that hold gradients before clipping and other options of Keras.
    slots_of_raw_gradients: tuple[str, ...] = ()
    # The wrapper itself changes only rows with a gradient. The optimizer inside may change others.
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
        """How a row gradient is handled: "dense", "rows" or "move_rows"; see `Reference.sparse`."""
        return (self.inner or self.cls).sparse

    @property
    def scope(self) -> str:
        """What the formula computes at once: an "element", a "variable" or the "model"."""
        return (self.inner or self.cls).scope

    @property
    def slots_that_workers_share(self) -> tuple[str, ...]:
        """Names of slots that workers exchange, which may change them after the step."""
        is_over_workers = issubclass(self.cls, keras_tfopt.distributed.OverWorkers)
        return self.slots_that_change_in_all_rows if is_over_workers else ()

    @property
    def reference(self) -> type[Reference]:
        """The class in tests/reference/ that has the same name, in a file of the same name.

        References of optimizers over workers are in one file.
        """
        file = self.cls.__module__.rsplit(".", 1)[-1]
        if issubclass(self.cls, keras_tfopt.distributed.OverWorkers):
            file = "over_workers"
        return getattr(importlib.import_module(f"tests.reference.{file}"), self.name)

    @property
    def own_arguments(self) -> dict[str, Any]:
        """{argument: default} without the learning rate and options of Keras."""
        kinds = [inspect.Parameter.POSITIONAL_OR_KEYWORD]
        if self.inner is not None:  # keyword-only arguments of rules are options of Keras
            kinds.append(inspect.Parameter.KEYWORD_ONLY)
        return {
            p.name: p.default
            for p in inspect.signature(self.cls.__init__).parameters.values()
            if p.kind in kinds and p.name not in ("self", "learning_rate", "name")
        }

    def tolerance(self, dtype="float32", variant=None, mode=None) -> float:
        """Return the largest error that a step may have.

        Errors of variables are relative to max(1, |x|). Errors of a slot are relative to the
        largest number that it has held.
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
