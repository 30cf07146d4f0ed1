"""Originals of recent papers in optax, timm and pytorch_optimizer: rows of `originals.ORIGINALS`.

Classes are named with their modules, because several packages have one of the same name.
"""

from collections.abc import Mapping
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


def around(wrapper: Any, optimizer: Any, decay: float | None) -> Any:
    return wrapper(optimizer, decay) if decay else optimizer


def without(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key != name}


def _nadam_w(given: Mapping[str, Any]) -> Any:
    chosen = given.get("mask")
    optimizer = keras_tfopt.NadamW(**without(given, "mask"))
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
    return around(wrapper, keras_tfopt.ADOPT(**given), decay)


def _cautious_adam_w(given: Mapping[str, Any]) -> Any:
    """AdEMAMix without its slow average is Adam with epsilon added to the corrected root.

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
    return around(DecayAfter, keras_tfopt.Cautious(laprop) if is_cautious else laprop, decay)


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
TORCH = {
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
NO_DECAY = {"weight_decay": 0.0}  # none is given here

# Those of an optimizer inside.
_ADAM_W = {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}

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
        "make": lambda given: _nadam_w(without(given, "nesterov")),
    },
    "optax.contrib.ademamix": {
        "ours": "AdEMAMix",
        "arguments": _OPTAX,
        "slots": {"m1": "m", "m2": "m_slow", "nu": "v"},
        # The learning rate has no default there.
        "other_defaults": NO_DECAY,
    },
    "optax.contrib.simplified_ademamix": {
        "ours": "SimplifiedAdEMAMix",
        "arguments": _OPTAX,
        "slots": {"n": "v"},
        "other_defaults": NO_DECAY,
    },
    "pytorch_optimizer.AdEMAMix": {
        "ours": "AdEMAMix",
        "arguments": {**TORCH, "t_alpha_beta3": "warmup_steps", "weight_decouple": "decoupled"},
        "slots": {**_MOMENTS, "exp_avg_slow": "m_slow"},
        "other_defaults": {**NO_DECAY, "weight_decouple": False},
        "make": lambda given: keras_tfopt.AdEMAMix(**without(given, "decoupled")),
    },
    "pytorch_optimizer.CAME": {
        "ours": "CAME",
        "arguments": {
            **TORCH,
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
        "other_defaults": {**NO_DECAY, "weight_decouple": True},
        "make": lambda given: keras_tfopt.CAME(**without(given, "decoupled")),
    },
    "optax.contrib.adopt": {
        "ours": "ADOPT",
        "arguments": {**_OPTAX, "use_clipping": "clipping"},
        "slots": {"mu": "m", "nu": "v"},
        "make": _adopt,
    },
    "timm.optim.Adopt": {
        "ours": "ADOPT",
        "arguments": {**TORCH, "clip_exp": "clip_exponent"},
        "slots": _MOMENTS,
        "other_defaults": {**NO_DECAY, "clip_exp": 0.333, "decoupled": False},
        "make": _adopt,
    },
    "timm.optim.AdamWLegacy": {
        "ours": "Cautious",
        "arguments": {
            **TORCH,
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
        "arguments": {**TORCH, "caution": "caution"},
        "slots": _MOMENTS,
        "other_defaults": {**NO_DECAY, "caution": False},
        "make": _laprop,
    },
    "timm.optim.Mars": {
        "ours": "MARS",
        "arguments": {
            **TORCH,
            "mars_type": "form",
            "lr_1d_factor": "factor",
            "caution": "caution",
        },
        "slots": _MOMENTS,
        "unused": ("exp_avg_sq",),  # of matrices, in the form of Lion
        "other_defaults": {
            **NO_DECAY,
            "mars_type": "adamw",
            "betas_1d": None,
            "lr_1d_factor": 1.0,
            "caution": False,
        },
        "make": lambda given: _mars(given),
    },
    "timm.optim.Adan": {
        "ours": "Adan",
        "arguments": {**TORCH, "caution": "cautious"},
        "slots": {"exp_avg": "m", "exp_avg_diff": "d", "exp_avg_sq": "n"},
        "other_defaults": {"no_prox": False, "caution": False},
        "make": _adan,
    },
}


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
