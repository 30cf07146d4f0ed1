"""Originals with matrices for the axes of variables: rows of `originals.ORIGINALS`."""

from collections.abc import Mapping, Sequence
from typing import Any

from keras import ops

import keras_tfopt
from integration.originals.modern import DecayOfGradient
from keras_tfopt.rules.blocks import Blocks, merged_shape

_GRAFTING = {
    "SGDPreconditionerConfig": "sgd",
    "AdaGradPreconditionerConfig": "adagrad",
    "RMSpropPreconditionerConfig": "rmsprop",
    "AdamPreconditionerConfig": "adam",
}


def _distributed_shampoo(given: Mapping[str, Any]) -> Any:
    """There, configurations are objects, and -1 stands for what is not given."""
    given = {name: None if value == -1 else value for name, value in given.items()}
    kind = given.pop("preconditioner", {"class_name": ""})["class_name"]
    given["eigenvalue_corrected"] = kind == "EigenvalueCorrectedShampooPreconditionerConfig"
    given |= given.pop("distributed", {"config": {}})["config"]
    grafting = given.pop("graft")
    if grafting is not None:
        given["grafting"] = _GRAFTING[grafting["class_name"]]
        names = {"beta2": "grafting_beta_2", "epsilon": "grafting_epsilon"}
        given |= {names[name]: value for name, value in grafting["config"].items()}
    given["use_iterative_root"] = False  # there, roots are taken by eigenvalues
    coupled = given.pop("kind_of_decay", "").endswith(".L2")
    decay = given.pop("weight_decay")
    if coupled:
        return DecayOfGradient(keras_tfopt.DistributedShampoo(**given), decay)
    return keras_tfopt.DistributedShampoo(weight_decay=decay, **given)


def _slot_of_block(optimizer: Any, variable: Any, name: str, shape: Sequence[int]) -> Any:
    """Return what is recorded of one block: ours are in a batch and filled up with zeros."""
    rule = getattr(optimizer, "inner_optimizer", optimizer)
    block, _, what = name.rpartition(".")
    number = int(block.removeprefix("block_") or 0)
    if what in ("filtered_grad", "adagrad"):
        limit, axes = rule.max_preconditioner_dim, rule.target_parameter_dimensionality
        blocks = Blocks(merged_shape(variable.shape, limit, axes), limit)
        batch = blocks.cut(optimizer.slot(variable, {"adagrad": "v"}.get(what, "m")))
    else:
        names = {"inv_factor_matrix": "H", "factor_matrix": "L", "corrected_eigenvalues": "E"}
        for there, here in names.items():
            what = what.replace(there, here)
        batch = optimizer.slot(variable, what)
    return batch[number][tuple(slice(n) for n in shape)]


class DecayAfterFromSecondStep(keras_tfopt.Wrapper):
    """Decay that shrinks variables after each step but the first, as the original SOAP does."""

    sparse = "rows"
    weight_decay: float = keras_tfopt.within(0)

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        decay = lr * self.weight_decay
        return {"decay": ops.where(step > 1, decay, ops.zeros_like(decay))}

    def after(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        return x - t.decay * x, {}


def _soap(given: Mapping[str, Any]) -> Any:
    """There, -1 is the shampoo_beta that follows beta2."""
    given = dict(given)
    assert given.pop("layout") == "channels_first"
    if given.get("shampoo_beta") == -1:
        del given["shampoo_beta"]
    decay = given.pop("weight_decay")
    optimizer = keras_tfopt.SOAP(**given)
    return DecayAfterFromSecondStep(optimizer, decay) if decay else optimizer


_SOAP: dict[str, Any] = {
    "ours": "SOAP",
    "arguments": {
        "lr": "learning_rate",
        "beta1": "beta_1",
        "beta2": "beta_2",
        "eps": "epsilon",
        "max_precondition_dim": "max_precond_dim",
        "normalize_gradient": "normalize_grads",
        "maximize": None,
        "data_format": "layout",
    },
    "slots": {"exp_avg": "m", "exp_avg_sq": "v"},
    "other_defaults": {
        "shampoo_beta": -1,
        "weight_decay": 0.01,
        "data_format": "channels_first",
    },
    "make": _soap,
    "wider_tolerance": {
        "jit_compile": (10, "XLA's eigenvectors on TensorFlow are off by up to 1e-5 in float64")
    },
    "deviations": {
        "axes of kernels are merged in the order of Keras": lambda case: case.entry["kwargs"].get(
            "merge_dims", False
        ),
    },
}

SECOND_ORDER: dict[str, dict[str, Any]] = {
    "distributed_shampoo.DistributedShampoo": {
        "ours": "DistributedShampoo",
        "arguments": {
            "lr": "learning_rate",
            "beta1": "beta_1",
            "beta2": "beta_2",
            "beta3": "beta_3",
            "grafting_config": "graft",
            "distributed_config": "distributed",
            "preconditioner_config": "preconditioner",
            "weight_decay_type": "kind_of_decay",
            **dict.fromkeys(
                ["iterate_averaging_config", "use_pin_memory", "shampoo_pt2_compile_config"]
            ),
        },
        "other_defaults": {
            "beta3": -1.0,  # for None
            "start_preconditioning_step": -1,
            "grafting_config": None,
            "weight_decay": 0.0,
        },
        "recipes": ("grafting_config", "distributed_config", "preconditioner_config"),
        "make": _distributed_shampoo,
        "read": _slot_of_block,
    },
    "soap.py.SOAP": _SOAP,
    "pytorch_optimizer.SOAP": {
        **_SOAP,
        "other_defaults": {**_SOAP["other_defaults"], "shampoo_beta": None},
    },
}
