"""Read state of PyTorch's optimizers: an `optimizer.state_dict()`, alone or in a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from keras_tfopt.migrate.saved import FileError, Saved, Tensor

# The class, by the state that a parameter has besides `step`.
_CLASSES = {
    frozenset(): "SGD",
    frozenset({"momentum_buffer"}): "SGD",
    frozenset({"exp_avg", "exp_avg_sq"}): "Adam",
    frozenset({"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}): "Adam",
    frozenset({"exp_avg", "exp_avg_sq", "mu_product"}): "NAdam",
    frozenset({"exp_avg", "exp_inf"}): "Adamax",
    frozenset({"square_avg"}): "RMSprop",
    frozenset({"square_avg", "momentum_buffer"}): "RMSprop",
    frozenset({"square_avg", "grad_avg"}): "RMSprop",
    frozenset({"square_avg", "momentum_buffer", "grad_avg"}): "RMSprop",
    frozenset({"square_avg", "acc_delta"}): "Adadelta",
    frozenset({"sum"}): "Adagrad",
    frozenset({"exp_avg"}): "Lion",
}


def read(path: Path, weights_only: bool) -> Saved:
    """Return the state in a file that `torch.save` wrote."""
    try:
        import torch
    except ImportError:
        raise ImportError("Files of PyTorch are read by PyTorch: `pip install torch`") from None
    import pickle

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=weights_only)
    except pickle.UnpicklingError as error:
        raise FileError(
            f"{path} holds more than tensors, so loading it could run any code. If you trust "
            "whoever wrote it, pass `weights_only=False`"
        ) from error
    except (RuntimeError, EOFError, OSError) as error:
        raise FileError(f"{path} is damaged or not complete: {error}") from error
    return state_of(loaded, path)


def state_of(loaded: Any, path: Any) -> Saved:
    """Return the state in what `torch.load` returned."""
    found = dict(_inside(loaded, ""))
    if len(found) != 1:
        what = f"has the optimizers {list(found)}" if found else "has no state of an optimizer"
        raise FileError(f"{path} {what}; pass the `state_dict()` of one as `file`")
    (state,) = found.values()
    groups = state["param_groups"]
    numbers = [number for group in groups for number in group["params"]]
    tensors, steps = [], 0
    for place, number in enumerate(numbers):
        for name, value in state["state"].get(number, {}).items():
            if name == "step":
                steps = max(steps, int(value))
            elif value is not None:
                array = _array(value)
                tensors.append(Tensor(f"state[{number}][{name!r}]", array, name, place))
    slots = frozenset(tensor.slot for tensor in tensors)
    cls = _CLASSES.get(slots)
    if cls is None:
        raise FileError(
            f"{path} has state {sorted(slots)}, which is of none of torch.optim's "
            f"{sorted(set(_CLASSES.values()))}"
        )
    arguments = {name: value for name, value in groups[0].items() if name != "params"}
    notes = []
    differing = [n for n in arguments if any(g.get(n) != arguments[n] for g in groups)]
    if differing:
        notes.append(f"groups of parameters differ in {differing}: write `groups` for them")
    rate = None if "lr" in differing else float(arguments["lr"])
    known = bool(tensors) and steps > 0  # SGD does not count
    if cls == "SGD":
        notes.append("torch.optim.SGD does not count steps: set `iterations` for a schedule")
    count = steps if known or cls != "SGD" else None
    return Saved("torch.optim", cls, tensors, count, rate, _renamed(arguments), notes=notes)


def _inside(loaded: Any, where: str) -> Any:
    """Yield state dicts of optimizers, each with its place."""
    if not isinstance(loaded, dict):
        return
    if "state" in loaded and "param_groups" in loaded:
        yield where, loaded
        return
    for key, value in loaded.items():
        yield from _inside(value, f"{where}[{key!r}]")


def _renamed(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments under the names of this package."""
    names = {"eps": "epsilon", "alpha": "rho", "lr": "learning_rate"}
    given = {names.get(name, name): value for name, value in arguments.items()}
    if "betas" in given:
        given["beta_1"], given["beta_2"] = given.pop("betas")
    return given


def _array(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if value.is_floating_point() and value.element_size() < 4 else value
        return value.numpy().copy()
    return np.asarray(value)
