"""Recorded optimizers of TensorFlow Addons under their original names."""

import functools
from collections.abc import Mapping
from typing import Any

from integration import originals
from integration.recordings import Case
from keras_tfopt import addons

EXTENDED = "extend:"


def build(case: Case, **options: Any) -> Any:
    """The optimizer as code for TensorFlow Addons makes it; defaults are its own."""
    optimizer = make(case.optimizer, {**case.entry["kwargs"], **options})
    chosen = case.entry["apply_kwargs"].get("decay_var_list")
    if chosen is not None:
        optimizer.decay_only(chosen)
    return optimizer


def make(name: str, recorded: Mapping[str, Any]) -> Any:
    """The optimizer of a recorded name, with recorded arguments."""
    given = {key: _argument(value) for key, value in recorded.items()}
    if name.startswith(EXTENDED):
        found: Any = originals.KERAS2[name.removeprefix(EXTENDED)]
        if isinstance(found, functools.partial):
            found, given = found.func, {**found.keywords, **given}
        return addons.extend_with_decoupled_weight_decay(found)(**given)
    if name not in addons.CLASSES:
        raise originals.NotReplayable(f"keras_tfopt.addons has no {name!r}")
    return addons.CLASSES[name](**given)


def _argument(value: Any) -> Any:
    if isinstance(value, Mapping) and value.get("class_name") in addons.CLASSES:
        return make(value["class_name"], value["config"])
    return originals.argument(value)
