"""Originals of recent papers in optax, timm and pytorch_optimizer: rows of `originals.ORIGINALS`.

Classes are named with their modules, because several packages have one of the same name.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

import keras_tfopt


class DecayAfter(keras_tfopt.Wrapper):
    """Decay that shrinks variables after the step, as timm's LaProp does."""

    sparse = "rows"
    weight_decay: float = keras_tfopt.within(0)

    def after(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        return x - t.lr * self.weight_decay * x, {}


class DecayOfGradient(keras_tfopt.Wrapper):
    """Decay that is added to the gradient, as in timm's ADOPT."""

    sparse = "rows"
    weight_decay: float = keras_tfopt.within(0)

    def before(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, Any]:
        return g + self.weight_decay * x, x


class DecayFromSecondStep(keras_tfopt.Wrapper):
    """Decay in all steps but the first, as in timm's ADOPT."""

    sparse = "rows"
    weight_decay: float = keras_tfopt.within(0)

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        decay = lr * self.weight_decay
        return {"decay": ops.where(step > 1, decay, ops.zeros_like(decay))}

    def before(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, Any]:
        return g, x - t.decay * x


class DecayOfSquaredRate(keras_tfopt.Wrapper):
    """Decay by the square of the learning rate, in units of its first value, as in timm's AdamW."""

    sparse = "rows"
    weight_decay: float = keras_tfopt.within(0)
    unit: float = keras_tfopt.within(0)

    def before(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, Any]:
        return g, x - t.lr * (t.lr / self.unit * self.weight_decay) * x


class Corrected(keras.optimizers.schedules.LearningRateSchedule):
    """A number times the root of the bias correction of a second moment."""

    def __init__(self, number: float, beta: float):
        self.number, self.beta = number, beta

    def __call__(self, step: Any) -> Any:
        beta = ops.convert_to_tensor(self.beta, "float64")
        return self.number * ops.sqrt(1 - beta ** (ops.cast(step, "float64") + 1))


def _around(wrapper: Any, optimizer: Any, decay: float | None) -> Any:
    return wrapper(optimizer, decay) if decay else optimizer


def _without(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key != name}


def _nadam_w(given: Mapping[str, Any]) -> Any:
    chosen = given.get("mask")
    optimizer = keras_tfopt.NadamW(**_without(given, "mask"))
    if chosen is not None:
        optimizer.exclude_from_weight_decay(
            var_names=[f"^{name}$" for name, decays in chosen.items() if not decays]
        )
    return optimizer


def _adopt(given: Mapping[str, Any]) -> Any:
    given = dict(given)
    exponent = given.pop("clip_value_fn", None)
    if exponent is not None:
        given["clip_exponent"] = exponent["config"]["exponent"]
    if "clip_exponent" in given and given["clip_exponent"] is None:
        del given["clip_exponent"]
        given["clipping"] = False
    decay, decoupled = given.pop("weight_decay", None), given.pop("decoupled", False)
    wrapper = DecayFromSecondStep if decoupled else DecayOfGradient
    return _around(wrapper, keras_tfopt.ADOPT(**given), decay)


def _cautious_adam_w(given: Mapping[str, Any]) -> Any:
    """AdEMAMix without its slow average is Adam with epsilon beside the corrected root.

    So are StableAdamW, and Adam, where epsilon is multiplied by the correction.
    """
    names = ("learning_rate", "beta_1", "beta_2", "epsilon")
    arguments = {n: given[n] for n in names if n in given}
    decay, limit = given.get("weight_decay", 0.01), given.get("clip_threshold")
    if limit is not None:
        inner = keras_tfopt.StableAdamW(**arguments, clip_threshold=limit)
    elif given.get("amsgrad", False):
        epsilon = Corrected(arguments.get("epsilon", 1e-8), arguments.get("beta_2", 0.999))
        inner = keras_tfopt.Adam(**{**arguments, "epsilon": epsilon}, amsgrad=True)
    else:
        inner = keras_tfopt.AdEMAMix(alpha=0.0, **arguments)
    optimizer = keras_tfopt.Cautious(inner)
    if given.get("corrected_decay", False):
        return DecayOfSquaredRate(optimizer, decay, unit=given["learning_rate"])
    return keras_tfopt.DecoupledWeightDecay(optimizer, decay, scale_by_learning_rate=True)


def _laprop(given: Mapping[str, Any]) -> Any:
    given = dict(given)
    decay, is_cautious = given.pop("weight_decay", None), given.pop("caution", False)
    laprop = keras_tfopt.LaProp(**given)
    return _around(DecayAfter, keras_tfopt.Cautious(laprop) if is_cautious else laprop, decay)


def _adan(given: Mapping[str, Any]) -> Any:
    given = dict(given)
    if not given.pop("no_prox", False):
        return keras_tfopt.Adan(**given)
    decay = given.pop("weight_decay")
    inner = keras_tfopt.Adan(**given)
    return keras_tfopt.DecoupledWeightDecay(inner, decay, scale_by_learning_rate=True)


_OPTAX = {
    "b1": "beta_1",
    "b2": "beta_2",
    "b3": "beta_3",
    "eps": "epsilon",
    "eps_root": "epsilon_root",
    "mu_dtype": None,
    "mask": None,
}
_TORCH = {
    "lr": "learning_rate",
    "beta1": "beta_1",
    "beta2": "beta_2",
    "beta3": "beta_3",
    "eps": "epsilon",
    # What these would change is not replayed.
    **dict.fromkeys(["caution", "corrected_weight_decay", "fixed_decay", "maximize"]),
    **dict.fromkeys(["foreach", "capturable", "differentiable"]),
}
_MOMENTS = {"exp_avg": "m", "exp_avg_sq": "v"}
_NO_DECAY = {"weight_decay": 0.0}  # none is given here

# Those of an optimizer inside.
_ADAM_W = {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
# Most are not those of Keras, or have another name here.
_ADAFACTOR = {
    "learning_rate": None,
    "min_dim_size_to_factor": 128,
    "decay_rate": 0.8,
    "decay_offset": 0,
    "multiply_by_parameter_scale": True,
    "clipping_threshold": 1.0,
    "momentum": None,
    "weight_decay_rate": None,
    "eps": 1e-30,
    "factored": True,
}
_BIG_VISION = {
    "decay_rate": 0.8,
    "decay_offset": 0,
    "eps": None,  # 1e-30 in float32
    "unscaled_wd": False,
}
_ADAFACTOR_OF_TIMM = {
    "lr": None,
    "eps": 1e-30,
    "eps_scale": 0.001,
    "clip_threshold": 1.0,
    "decay_rate": -0.8,
    "scale_parameter": True,
    "warmup_init": False,
}

MODERN: dict[str, dict[str, Any]] = {
    "optax.lion": {
        "ours": "Lion",
        "arguments": _OPTAX,
        "slots": {"mu": "m"},
        "other_defaults": {"weight_decay": 0.001},
    },
    "optax.nadamw": {
        "ours": "NadamW",
        "arguments": {**_OPTAX, "mask": "mask", "nesterov": "nesterov"},
        "slots": {"mu": "m", "nu": "v"},
        "other_defaults": {"weight_decay": 0.0001, "mask": None, "nesterov": True},
        "make": lambda given: _nadam_w(_without(given, "nesterov")),
    },
    "optax.contrib.ademamix": {
        "ours": "AdEMAMix",
        "arguments": _OPTAX,
        "slots": {"m1": "m", "m2": "m_slow", "nu": "v"},
        # The learning rate has no default there.
        "other_defaults": _NO_DECAY,
    },
    "optax.contrib.simplified_ademamix": {
        "ours": "SimplifiedAdEMAMix",
        "arguments": _OPTAX,
        "slots": {"n": "v"},
        "other_defaults": _NO_DECAY,
    },
    "pytorch_optimizer.AdEMAMix": {
        "ours": "AdEMAMix",
        "arguments": {**_TORCH, "t_alpha_beta3": "warmup_steps", "weight_decouple": "decoupled"},
        "slots": {**_MOMENTS, "exp_avg_slow": "m_slow"},
        "other_defaults": {**_NO_DECAY, "weight_decouple": False},
        "make": lambda given: keras_tfopt.AdEMAMix(**_without(given, "decoupled")),
    },
    "optax.adafactor": {
        "ours": "Adafactor",
        "arguments": {"weight_decay_mask": None},
        "read": lambda *where: _factor(*where, names=("v_row", "v_col")),
        "other_defaults": _ADAFACTOR,
        "make": lambda given: _adafactor(given),
    },
    "timm.optim.adafactor_bv.AdafactorBigVision": {
        "ours": "Adafactor",
        "arguments": {
            **_TORCH,
            "momentum_dtype": "of_slot",
            "clipping_threshold": "clip_threshold",
            "beta2_cap": "beta_2_cap",
            **dict.fromkeys(["decay_offset", "eps", "unscaled_wd"]),
        },
        "read": lambda *where: _factor(*where, names=("exp_avg_sq_r", "exp_avg_sq_c")),
        "other_defaults": _BIG_VISION,
        "make": lambda given: _adafactor_of_big_vision(given),
    },
    "timm.optim.Adafactor": {
        "ours": "Adafactor",
        "arguments": {**_TORCH, "lr": "lr", "beta1": "momentum", "beta2": None, "betas": None},
        "slots": {
            "exp_avg": "m",
            "exp_avg_sq": "v",
            "exp_avg_sq_row": "row",
            "exp_avg_sq_col": "col",
        },
        "other_defaults": {**_NO_DECAY, **_ADAFACTOR_OF_TIMM},
        "make": lambda given: _adafactor_of_timm(given),
    },
    "pytorch_optimizer.CAME": {
        "ours": "CAME",
        "arguments": {
            **_TORCH,
            "eps1": "epsilon_1",
            "eps2": "epsilon_2",
            "ams_bound": None,
            "weight_decouple": "decoupled",
        },
        "slots": {
            **_MOMENTS,
            "exp_avg_sq_row": "row",
            "exp_avg_sq_col": "col",
            "exp_avg_res_row": "residual_row",
            "exp_avg_res_col": "residual_col",
        },
        "other_defaults": {**_NO_DECAY, "weight_decouple": True},
        "make": lambda given: keras_tfopt.CAME(**_without(given, "decoupled")),
    },
    "optax.contrib.adopt": {
        "ours": "ADOPT",
        "arguments": {**_OPTAX, "use_clipping": "clipping"},
        "slots": {"mu": "m", "nu": "v"},
        "make": _adopt,
    },
    "timm.optim.Adopt": {
        "ours": "ADOPT",
        "arguments": {**_TORCH, "clip_exp": "clip_exponent"},
        "slots": _MOMENTS,
        "other_defaults": {**_NO_DECAY, "clip_exp": 0.333, "decoupled": False},
        "make": _adopt,
    },
    "timm.optim.AdamWLegacy": {
        "ours": "Cautious",
        "arguments": {
            **_TORCH,
            "caution": "caution",
            "clipping_threshold": "clip_threshold",
            "corrected_weight_decay": "corrected_decay",
        },
        "slots": {**_MOMENTS, "max_exp_avg_sq": "vhat"},
        "other_defaults": {
            **_ADAM_W,
            "amsgrad": False,
            "clipping_threshold": None,
            "corrected_weight_decay": False,
        },
        "make": _cautious_adam_w,
    },
    "timm.optim.LaProp": {
        "ours": "LaProp",
        "arguments": {**_TORCH, "caution": "caution"},
        "slots": _MOMENTS,
        "other_defaults": {**_NO_DECAY, "caution": False},
        "make": _laprop,
    },
    "timm.optim.Mars": {
        "ours": "MARS",
        "arguments": {
            **_TORCH,
            "mars_type": "form",
            "lr_1d_factor": "factor",
            "caution": "caution",
        },
        "slots": _MOMENTS,
        "unused": ("exp_avg_sq",),  # of matrices, in the form of Lion
        "other_defaults": {
            **_NO_DECAY,
            "mars_type": "adamw",
            "betas_1d": None,
            "lr_1d_factor": 1.0,
            "caution": False,
        },
        "make": lambda given: _mars(given),
    },
    "timm.optim.Adan": {
        "ours": "Adan",
        "arguments": {**_TORCH, "caution": "cautious"},
        "slots": {"exp_avg": "m", "exp_avg_diff": "d", "exp_avg_sq": "n"},
        "other_defaults": {"no_prox": False, "caution": False},
        "make": _adan,
    },
}


def _adafactor(given: Mapping[str, Any]) -> Any:
    """In optax the learning rate is a factor, and the decay is not multiplied by it."""
    if not given["factored"] or given["decay_offset"]:
        raise ValueError(f"Adafactor has no counterpart of what is given: {given}")
    rate, scale = given["learning_rate"], given["multiply_by_parameter_scale"]
    optimizer = keras_tfopt.Adafactor(
        1.0 if rate is None else rate,
        beta_2_decay=-given["decay_rate"],
        epsilon_1=given["eps"],
        clip_threshold=given["clipping_threshold"] or 1e9,  # no limit
        relative_step=False,
        scale_parameter=scale,
        momentum=given["momentum"],
        min_dim_size_to_factor=given["min_dim_size_to_factor"],
    )
    return _around(keras_tfopt.DecoupledWeightDecay, optimizer, given["weight_decay_rate"])


def _adafactor_of_big_vision(given: Mapping[str, Any]) -> Any:
    """The average is multiplied by the learning rate, where ours is one of steps."""
    rest = _without(_without(given, "of_slot"), "decay_rate")
    return keras_tfopt.Adafactor(
        **rest, beta_2_decay=-given["decay_rate"], relative_step=False, scale_parameter=False
    )


def _factor(optimizer: Any, variable: Any, name: str, there: Any, names: tuple[str, str]) -> Any:
    """The first of these names is the mean over the longer axis, the last one if both are equal."""
    if name == "exp_avg":
        return optimizer.slot(variable, "m") / optimizer.learning_rate
    if name not in names:
        return optimizer.slot(variable, {"ema": "m"}.get(name, "v"))
    is_swapped = variable.shape[-2] > variable.shape[-1]
    ours = ("row", "col")[(name == names[1]) != is_swapped]
    return ops.reshape(optimizer.slot(variable, ours), there)


def _adafactor_of_timm(given: Mapping[str, Any]) -> Any:
    """In timm a learning rate switches the relative step and the scale off."""
    if given["warmup_init"]:
        raise ValueError(f"Adafactor has no counterpart of what is given: {given}")
    rate = given["lr"]
    return keras_tfopt.Adafactor(
        0.01 if rate is None else rate,
        beta_2_decay=given["decay_rate"],
        epsilon_1=given["epsilon"],
        epsilon_2=given["eps_scale"],
        clip_threshold=given["clip_threshold"],
        relative_step=rate is None,
        scale_parameter=rate is None and given["scale_parameter"],
        momentum=given.get("momentum"),
        # There, axes have to be longer than this.
        min_dim_size_to_factor=given["min_dim_size_to_factor"] + 1,
        weight_decay=given["weight_decay"],
    )


def _mars(given: Mapping[str, Any]) -> Any:
    """Options of timm for vectors and scalars are a group here."""
    given = dict(given)
    given["form"] = {"adamw": "adam", "lion": "lion"}[given["form"]]
    own = {"learning_rate_factor": given.pop("factor")}
    own |= dict(zip(("beta_1", "beta_2"), given.pop("betas_1d") or (), strict=False))
    groups = None if own == {"learning_rate_factor": 1.0} else [_of_vectors(own)]
    is_cautious = given.pop("caution", False)
    mars = keras_tfopt.MARS(**given, groups=groups)
    return keras_tfopt.Cautious(mars) if is_cautious else mars


def _of_vectors(settings: Mapping[str, Any]) -> Any:
    return lambda variable: settings if len(variable.shape) < 2 else None


def _exponential_decay(init_value: float, transition_steps: int, decay_rate: float) -> Any:
    return lambda step: init_value * decay_rate ** (step / transition_steps)


def _linear_schedule(init_value: float, end_value: float, transition_steps: int) -> Any:
    def at(step: Any) -> Any:
        return init_value + (end_value - init_value) * ops.minimum(step / transition_steps, 1.0)

    return at


def _ademamix_alpha(alpha: float, steps: int) -> Any:
    return lambda step: alpha * ops.minimum(step / steps, 1.0)


def _ademamix_beta3(beta_start: float, beta: float, steps: int) -> Any:
    start, end = math.log(beta_start), math.log(beta)

    def at(step: Any) -> Any:
        part = step / steps
        value = ops.exp(start * end / ((1 - part) * end + part * start))
        return ops.minimum(value, beta)

    return at


def _warmup_cosine(
    init_value: float, peak_value: float, warmup_steps: int, decay_steps: int, end_value: float
) -> Any:
    return keras.optimizers.schedules.CosineDecay(
        init_value,
        decay_steps - warmup_steps,
        alpha=end_value / peak_value,
        warmup_target=peak_value,
        warmup_steps=warmup_steps,
    )


SCHEDULES: dict[str, Callable[..., Any]] = {
    "exponential_decay": _exponential_decay,
    "linear_schedule": _linear_schedule,
    "warmup_cosine_decay_schedule": _warmup_cosine,
    "ademamix_alpha": _ademamix_alpha,
    "ademamix_beta3": _ademamix_beta3,
    # What ADOPT clips by; its exponent is an argument here.
    "power": lambda exponent: {"config": {"exponent": exponent}},
}
