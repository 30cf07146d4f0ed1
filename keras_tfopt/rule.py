"""The base class of rules: hyperparameters as fields, slots, scalars per step, one pure formula."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

import keras

from keras_tfopt.engine import (
    DEFAULTS,
    PATHS,
    Describing,
    Engine,
    Like,
    Slot,
    check_class_attribute,
    check_savable,
    decoded,
    encoded,
    is_ours,
    own_parameters,
)
from keras_tfopt.fields import Fielded

PACKAGE = "keras_tfopt"
OPTIONS: dict[str, Any] = {"name": None, **DEFAULTS}
SCOPES = ("element", "variable", "model")
SPARSE = ("dense", "rows", "move_rows")
Registered = TypeVar("Registered")


class Rule(Fielded, Describing, Engine):
    """Base class of all optimizers of this package, and of your own.

    A subclass declares its hyperparameters, says what state it keeps, and what one step does to one
    variable. The engine does the rest on every backend: row gradients, clipping, weight decay,
    accumulation, loss scaling, averages, half precision, compilation, saving.

    ```python
    @keras_tfopt.register
    class SignDescent(keras_tfopt.Rule):
        sparse = "rows"
        learning_rate: float = 0.001
        beta: float = keras_tfopt.within(0, 1, default=0.9, right_open=True)

        def slots(self, like):
            return {"m": keras_tfopt.zeros(like)}

        def update(self, g, x, s, t):
            m = self.beta * s.m + (1 - self.beta) * g
            return x - t.lr * ops.sign(m), {"m": m}
    ```

    Class attributes:
        scope: What one call of `update` must see. "element": any piece of variables, flattened, so
            the rule may use elementwise operations only. "variable": one variable in its shape.
            "model": all variables at once, as vectors of all their entries in the order of
            `build`. Then `slots` gets a list of likes and describes state of all variables
            together, in which None stands for the number of entries; what must be known of all
            entries comes from `sums` and `solve`, and `update` sees all entries or a piece of
            them. A variable without gradient takes part with zeros and stays as it is, and row
            gradients are made dense. A rule of scope "variable" that is of elements for some
            variables defines `scope_of(like)`.
        sparse: What a row gradient does. "dense": the same as the dense gradient with zeros in the
            other rows. "rows": only touched rows of the variable and of the slots change.
            "move_rows": all rows of the slots change, the variable only in touched rows.
            A rule for which that holds in some variables only defines `takes_rows(like)`.
        flat: With scope "variable": the rule uses elementwise operations, `t.norm`, `t.sum` and
            `t.mean` only, and its slots are of the variable's shape or single numbers, which it
            computes from their old values. So it can run over many variables laid end to end.
        elementwise: The same, and the rule does not use `t.norm`.
        stacked: With scope "variable": whether `update` takes several variables of equal shape and
            facts in one call, stacked along a new first axis. A rule for which that holds in some
            variables only defines `stacks(like)`. Single variables come as they are.
        fused: Whether compiling the rule as a whole makes it faster; False for rules that
            decompose matrices, which XLA does slowly on a CPU.
        second_order: Whether the rule multiplies gradients by more than a diagonal matrix, for
            `keras_tfopt.list_optimizers`.
        ignores_changes: Whether `update` computes the variable from slots alone, not from x, so
            that other changes of it are lost: wrappers that change variables warn of it.
        needs_finite: Whether a gradient whose squares are not finite would spoil the state for
            good, so that eager steps refuse it.

    Touched rows are those that a `RowGradient` names, or that were looked up in a
    `keras_tfopt.layers.Embedding`. Other gradients, whatever their form, touch the rows in which
    they are not zero, if the variable's path matches `row_variables`; other variables get dense
    updates.

    A rule that defines `average(self, x, s)` keeps averages: what it returns for a variable and its
    slots is what `keras_tfopt.averaged` puts in, unless `use_ema` asks for other averages.

    Args:
        learning_rate: Number >= 0, `keras.optimizers.schedules.LearningRateSchedule`, function of
            the number of steps done (a float, 0 at the first step), or function without arguments
            (read once when a step is compiled).
        row_variables: Variables in which rows without gradient are left alone (modes "rows" and
            "move_rows"): regular expressions that are searched in their paths, variables, or
            functions of a variable, one or a list. The default is the table of
            `keras.layers.Embedding`; None is no variable.
        master_weights: Keep a float32 copy of half-precision variables as a slot, so that updates
            below one unit in the last place add up. Slots and arithmetic are float32 in any case.
        maximize: Whether to step up the gradient instead of down. Weight decay still shrinks
            variables.
        clip_unitwise: Number > 0: gradients of units (all that makes one output of a layer) are
            scaled down to at most this part of the norm of the unit's weights, as in adaptive
            gradient clipping (Brock et al. 2021). It comes before other clipping.
        shard_state: Whether slots, averages, accumulators and master weights are split over the
            devices of a JAX mesh (ZeRO-1), also those of wrappers around. It needs a
            `keras.distribution`. State of fewer than 4,096 values, and state of which no axis can
            be divided by the number of devices, stays whole: `keras_tfopt.describe_state` says
            which. On PyTorch, see `keras_tfopt.distributed.ShardedState`.
        groups: Settings for some of the variables, see below.
        slot_dtype: How slots are kept between steps: "float32", "bfloat16" (2 bytes a value,
            rounded up or down at random) or "int8" (1 byte a value, and 4 bytes for every 256
            values, in blocks that have a scale each); or a dictionary from names of slots to
            these. The arithmetic is float32 in any case. Slots stay float32 of variables with
            fewer than 4,096 values, of tables (`row_variables`) that no group has chosen, and of
            float64 variables; so do slots that hold copies of weights, and scalars. Rules with
            slots of other shapes than the variable's want names of slots, and rules of scope
            "model" take "float32" only.
        **base: `name`, `weight_decay` (decoupled: `x -= learning_rate * weight_decay * x` before
            the update; in touched rows only, if the update is), `clipnorm`, `clipvalue`,
            `global_clipnorm`, `use_ema`, `ema_momentum`, `ema_overwrite_frequency`,
            `loss_scale_factor`, `gradient_accumulation_steps`: see `keras.optimizers.Optimizer`.

    Groups: a dictionary from regular expressions, searched in the paths of variables, to settings;
    a function that is given a variable (`path`, `name`, `shape`, `dtype`) and returns settings or
    None, to be registered with Keras for saving; or a list of these. All groups that match a
    variable apply in order, and of a setting that several have, the last one counts. There is one
    count of steps, one learning rate to assign and one global norm for all of them. Settings are

    - `learning_rate_factor`: number >= 0 or schedule, which multiplies the learning rate;
    - `weight_decay`: number >= 0 or schedule, instead of that of the optimizer or of the
      wrapper that decays weights;
    - `frozen`: True for variables that take no steps, count in no norm and have no slots;
    - `max_norm`: number > 0, the largest Euclidean norm of a variable after a step;
    - `clip_unitwise`: as above; None switches it off;
    - `slot_dtype`: as above, for tables, too;
    - hyperparameters of the rule, with the values that the constructor takes.

    With scope "model", rules have no settings for their own hyperparameters, and factors scale the
    step of a variable. `keras_tfopt.layer_decay` and `keras_tfopt.no_decay` make groups for a
    model, `optimizer.describe_groups(model)` shows what they come to.

    ```python
    optimizer = keras_tfopt.Adam(
        1e-3,
        weight_decay=0.05,
        groups={
            r"(bias|gamma|beta)$": {"weight_decay": 0},
            r"^backbone/": {"learning_rate_factor": 0.1},
            r"^head/": {"beta_2": 0.95},
        },
    )
    ```
    """

    if TYPE_CHECKING:
        learning_rate: Any
        _: dataclasses.KW_ONLY
        name: str | None = None
        weight_decay: float | None = None
        clipnorm: float | None = None
        clipvalue: float | None = None
        global_clipnorm: float | None = None
        use_ema: bool = False
        ema_momentum: float = 0.99
        ema_overwrite_frequency: int | None = None
        loss_scale_factor: float | None = None
        gradient_accumulation_steps: int | None = None
        row_variables: Any = r"(^|/)embeddings$"
        master_weights: bool = False
        maximize: bool = False
        clip_unitwise: float | None = None
        shard_state: bool = False
        groups: Any = None
        slot_dtype: Any = "float32"

    _options = OPTIONS

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        cls._own_weight_decay = "weight_decay" in own_parameters(cls)
        cls._own_scalars = cls.scalars is not Rule.scalars
        check_class_attribute(cls, "scope", SCOPES)
        check_class_attribute(cls, "sparse", SPARSE)

    def slots(self, like: Any) -> dict[str, Slot]:
        """Describe the state for a variable of this shape, dtype and path.

        Returns:
            `Slot` descriptions by name; see `zeros` and `full`.
        """
        return {}

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        """Return scalars that are the same for all variables, computed once per step.

        Args:
            lr: Learning rate of this step, a scalar tensor.
            step: Number of this step as a floating-point scalar tensor, 1 at the first.

        Returns:
            Scalars by name; the rule finds them in `t`, with `t.step`.
        """
        return {"lr": lr}

    def facts(self, path: str) -> dict[str, Any]:
        """Return static facts about a variable that rules of scope "variable" find in `t`, by name.

        The default is none. Variables with equal facts share compiled code, so return only facts
        that the rule needs. A rule that also needs shapes defines `facts_of(like)` instead.
        """
        return {}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        """Return the new variable and slots: a pure function that reads hyperparameters only.

        Args:
            g: Gradient, a dense tensor, in float32 or float64.
            x: Variable, of the same shape and dtype.
            s: Slots, as attributes by name.
            t: Scalars, as attributes by name; also `t.iteration` (the number of this step as an
                integer, for what happens in some steps only), `t.rows` (bool: the call sees only
                touched rows), `t.touched` (the mask of touched rows, to broadcast, where the call
                sees all rows but only those move; else None), `t.norm`, `t.sum` and `t.mean`
                (functions: the Euclidean norm, the sum and the mean over a whole variable, to
                broadcast against it; with scope "variable" only) and, with scope "variable", the
                `facts` of the variable; with scope "model", what `sums` and `solve` return.

        Returns:
            The new variable and a dictionary of new slots; slots left out stay as they are. A slot
            that changes in one row only may be given as `Rows(index, value)`.
        """
        raise TypeError(f"{type(self).__name__} must define `update(self, g, x, s, t)`")

    def sums(self, g: Any, x: Any, s: Any, t: Any) -> dict[str, Any]:
        """Return sums over all entries, as small tensors by name; for rules with scope "model".

        It is called with all entries or a piece of them: `g`, `x` before weight decay, and slots
        that have entries. The results of the pieces are added up.
        """
        return {}

    def solve(self, s: Any, t: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Compute tensors from the sums, between `sums` and `update`; for rules with scope "model".

        Args:
            s: The slots without entries, as attributes by name.
            t: Scalars and sums, as attributes by name.

        Returns:
            Small tensors by name, which `update` finds in `t`, and new values of slots without
            entries. A tensor named `decay_factor` multiplies the weight decay of this step.
        """
        return {}, {}

    def hyperparameters(self) -> dict[str, Any]:
        """Return the rule's own arguments, which are all that `update` may read from `self`."""
        names = [name for name in own_parameters(type(self)) if name != "learning_rate"]
        for name in names:
            if not hasattr(self, name):
                raise TypeError(
                    f"{type(self).__name__}.__init__ must keep each of its arguments under its own "
                    f"name, as in `self.{name} = {name}`. Not kept: {name!r}"
                )
        return {name: getattr(self, name) for name in names}

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, serializable."""
        config = super().get_config()
        check_savable("row_variables", self.row_variables)
        config["row_variables"] = encoded(self.row_variables)
        config["master_weights"] = self.master_weights
        for name in ("maximize", "shard_state", "clip_unitwise", "slot_dtype"):
            if getattr(self, name) != DEFAULTS[name]:
                config[name] = getattr(self, name)
        if self.groups is not None:
            check_savable("groups", self.groups)
            config["groups"] = encoded(self.groups)
        if self._no_decay_patterns:
            config["no_weight_decay"] = encoded(self._no_decay_patterns)
        config.update(self.saved_paths())
        hyperparameters = self.hyperparameters()
        for name in self._saved_arguments():
            if name not in hyperparameters:  # the learning rate, which Keras has saved
                continue
            value = hyperparameters[name]
            check_savable(name, value)
            config[name] = encoded(value, name)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict | None = None) -> Rule:
        """Return the optimizer that `get_config` described."""
        own = own_parameters(cls)
        config = {
            name: decoded(value, custom_objects if name in (*own, "groups") else None)
            for name, value in config.items()
        }
        if isinstance(config.get("global_step"), dict):
            raise ValueError(
                f"This {cls.__name__} counts its steps in a variable, which its configuration "
                "cannot hold. Put the variable in its place: "
                f"{cls.__name__}.from_config({{**config, 'global_step': variable}}). "
                f"Received: global_step={config['global_step']!r}"
            )
        excluded, paths = config.pop("no_weight_decay", None), config.pop(PATHS, ())
        optimizer = super().from_config(config, custom_objects=custom_objects)
        optimizer.is_loaded, optimizer._saved_paths = True, tuple(paths)
        if excluded:
            optimizer.exclude_from_weight_decay(var_names=excluded)
        return optimizer


Algorithm = Rule
"""The earlier name of `Rule`."""


def register(cls: Registered) -> Registered:
    """Register a class or function, so that `keras.saving` and `load_model` find it by its name.

    Args:
        cls: A class of optimizers, or a function that is an argument of one. Its name must be
            unique: files contain only `"keras_tfopt>Name"`. A name of this package brings a
            warning.

    Raises:
        TypeError: if it is neither.
    """
    if not inspect.isclass(cls) and not inspect.isfunction(cls):
        raise TypeError(f"`register` takes a class or a function. Received: {cls!r}")
    known = keras.saving.get_registered_object(f"{PACKAGE}>{cls.__name__}")
    if known is not None and is_ours(known) and not is_ours(cls):
        warnings.warn(
            f"{cls.__name__} is the name of another object in this package: what was saved with "
            f"that one will be loaded with {cls!r}. Give it another name, or register it by "
            '`keras.saving.register_keras_serializable("my_package")`',
            stacklevel=2,
        )
    return keras.saving.register_keras_serializable(PACKAGE)(cls)


def zeros(like: Like, signed: bool = True) -> Slot:
    """Describe a slot of the variable's shape that starts at zero.

    Args:
        like: The argument of `Rule.slots`: `shape`, `dtype` and `path` of a variable.
        signed: Whether it may be negative; see `Slot`.
    """
    return Slot(like.shape, signed=signed)


def full(like: Like, value: float, signed: bool = True) -> Slot:
    """Describe a slot of the variable's shape that starts at `value`.

    Args:
        like: The argument of `Rule.slots`: `shape`, `dtype` and `path` of a variable.
        value: Number.
        signed: Whether it may be negative; see `Slot`.
    """
    return Slot(like.shape, value, signed=signed)
