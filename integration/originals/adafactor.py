"""Originals of Adafactor in optax and timm: rows of `originals.ORIGINALS`."""

from collections.abc import Mapping
from typing import Any

from keras import ops

import keras_tfopt
from integration.originals.modern import NO_DECAY, TORCH, around, without

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
    return around(keras_tfopt.DecoupledWeightDecay, optimizer, given["weight_decay_rate"])


def _adafactor_of_big_vision(given: Mapping[str, Any]) -> Any:
    """The average is multiplied by the learning rate, where ours is one of steps."""
    rest = without(without(given, "of_slot"), "decay_rate")
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


ADAFACTOR: dict[str, dict[str, Any]] = {
    "optax.adafactor": {
        "ours": "Adafactor",
        "arguments": {"weight_decay_mask": None},
        "read": lambda *where: _factor(*where, names=("v_row", "v_col")),
        "other_defaults": _ADAFACTOR,
        "make": _adafactor,
    },
    "timm.optim.adafactor_bv.AdafactorBigVision": {
        "ours": "Adafactor",
        "arguments": {
            **TORCH,
            "momentum_dtype": "of_slot",
            "clipping_threshold": "clip_threshold",
            "beta2_cap": "beta_2_cap",
            **dict.fromkeys(["decay_offset", "eps", "unscaled_wd"]),
        },
        "read": lambda *where: _factor(*where, names=("exp_avg_sq_r", "exp_avg_sq_c")),
        "other_defaults": _BIG_VISION,
        "make": _adafactor_of_big_vision,
    },
    "timm.optim.Adafactor": {
        "ours": "Adafactor",
        "arguments": {**TORCH, "lr": "lr", "beta1": "momentum", "beta2": None, "betas": None},
        "slots": {
            "exp_avg": "m",
            "exp_avg_sq": "v",
            "exp_avg_sq_row": "row",
            "exp_avg_sq_col": "col",
        },
        "other_defaults": {**NO_DECAY, **_ADAFACTOR_OF_TIMM},
        "make": _adafactor_of_timm,
    },
}
