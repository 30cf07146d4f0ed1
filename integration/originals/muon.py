"""Originals of Muon in PyTorch, optax and the repository of its author."""

from collections.abc import Mapping
from typing import Any

import keras_tfopt

# "dion" in optax, of five iterations
_DION = [
    [4.0848, -6.8946, 2.9270],
    [3.9505, -6.3029, 2.6377],
    [3.7418, -5.5913, 2.3037],
    [2.8769, -3.1427, 1.2046],
    [2.8366, -3.0525, 1.2012],
]


def _of_torch(given: Mapping[str, Any]) -> Any:
    return keras_tfopt.Muon(**{**given, "scaling": given["scaling"] or "original"})


def _of_optax(given: Mapping[str, Any]) -> Any:
    """In optax the matrices are those of two dimensions, unless `axes` has them."""
    given = dict(given)
    others = {name: given.pop(name) for name in list(given) if name.startswith("adam_")}
    axes = given.pop("axes") or {}
    if given["ns_coefficients"] == "dion":
        # There, their number counts, whatever `ns_steps` is.
        given |= {"ns_coefficients": _DION, "ns_steps": len(_DION)}
    rms, rate, decay = given.pop("consistent_rms"), given["learning_rate"], others["adam_decay"]
    inner: dict[str, Any] = {"epsilon": given["epsilon"], "weight_decay": decay}
    inner |= {"beta_1": others["adam_b1"], "beta_2": others["adam_b2"]}
    if given["nesterov"]:
        rule = keras_tfopt.NadamW(epsilon_root=others["adam_eps_root"], **inner)
    else:
        rule = keras_tfopt.Adam(**inner)
    first = {name: list(range(a["reduction_axis"])) for name, a in axes.items() if _stacks(a)}
    return keras_tfopt.Muon(
        **given,
        scaling="original" if rms is None else rms,
        bias_correction=True,
        others=rule,
        others_factor=1.0 if others["adam_rate"] is None else others["adam_rate"] / rate,
        stack_axes={f"^{name}$": stack for name, stack in first.items()} or None,
    )


def _stacks(axes: Mapping[str, Any] | None) -> bool:
    return axes is not None and isinstance(axes["reduction_axis"], int) and axes["output_axis"] > 1


def _of_author(given: Mapping[str, Any]) -> Any:
    """Groups are the matrices and what the auxiliary Adam moves."""
    own, other = (*given["groups"], {})[:2]
    rate = own.get("lr", 0.02)
    beta_1, beta_2 = other.get("betas", (0.9, 0.95))
    inner = keras_tfopt.Adam(
        other.get("lr", 3e-4),
        beta_1,
        beta_2,
        other.get("eps", 1e-10),
        weight_decay=other.get("weight_decay", 0.0),
    )
    return keras_tfopt.Muon(
        rate,
        own.get("momentum", 0.95),
        scaling="original",
        weight_decay=own.get("weight_decay", 0.0),
        others=inner,
        stack_axes={"^stack$": [0]},
    )


_MOMENTS = {"exp_avg": "m", "exp_avg_sq": "v"}

MUON: dict[str, dict[str, Any]] = {
    "torch.optim.Muon": {
        "ours": "Muon",
        "arguments": {"lr": "learning_rate", "eps": "epsilon", "adjust_lr_fn": "scaling"},
        "slots": {"momentum_buffer": "m"},
        "other_defaults": {
            "weight_decay": 0.1,
            "adjust_lr_fn": None,
            "ns_coefficients": [3.4445, -4.775, 2.0315],
        },
        "make": _of_torch,
        "deviations": {
            "the original divides by the larger of a norm and epsilon, ours by their sum": (
                lambda case: (
                    case.float64 or case.name.endswith(("tiny_gradients", "full_precision_hyper"))
                )
            )
        },
    },
    "optax.contrib.muon": {
        "ours": "Muon",
        "arguments": {
            "beta": "momentum",
            "eps": "epsilon",
            "ns_coeffs": "ns_coefficients",
            "adam_weight_decay": "adam_decay",
            "adam_learning_rate": "adam_rate",
            "muon_weight_dimension_numbers": "axes",
            "preconditioning": "norm",
            **dict.fromkeys(["weight_decay_mask", "mu_dtype"]),
        },
        "slots": {"mu": "m", "nu": "v"},
        "other_defaults": {
            "eps": 1e-8,
            "weight_decay": 0.0,
            "ns_coeffs": [3.4445, -4.775, 2.0315],
            "preconditioning": "frobenius",
            "adaptive": False,
            "adam_b1": 0.9,
            "adam_b2": 0.999,
            "adam_eps_root": 0.0,
            "adam_weight_decay": 0.0,
            "adam_learning_rate": None,
            "consistent_rms": None,
            "muon_weight_dimension_numbers": None,
        },
        "make": _of_optax,
        "deviations": {
            "`adaptive` has one sum for all matrices of a stack there, here one for each": (
                lambda case: case.name.endswith("adaptive_stack")
            )
        },
    },
    "muon.py.SingleDeviceMuonWithAuxAdam": {
        "ours": "Muon",
        "slots": {"momentum_buffer": "m", **_MOMENTS},
        "make": _of_author,
        "deviations": {
            "the factor of a kernel comes from its height and width there, a slip": (
                lambda case: case.name.endswith("kernels")
            )
        },
    },
}
