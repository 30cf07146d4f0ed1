"""Optimizers, schedules and the callback of TensorFlow Addons, under their names.

Code that was written for `tensorflow_addons` changes one import:

```python
import keras_tfopt.addons as tfa_optimizers

optimizer = tfa_optimizers.LAMB(0.001, weight_decay=0.01, exclude_from_weight_decay=["bias"])
model.compile(optimizer=optimizer, loss="mse")
```

Names, order and defaults of arguments are those of TensorFlow Addons 0.23. Every class is one of
`keras_tfopt` with another constructor, so it works on all backends, and takes the options of Keras.
With this module imported, `keras.optimizers.get("Addons>LAMB")` finds them, and configurations that
TensorFlow Addons has saved load. `names()` lists all names, with counterparts and differences.
"""

from __future__ import annotations

from typing import Any

import keras

from keras_tfopt.addons.abstract import AveragedOptimizerWrapper, DecoupledWeightDecayExtension
from keras_tfopt.addons.checkpoint import AverageModelCheckpoint
from keras_tfopt.addons.classes import PACKAGE, Averaged, Decaying, make_class
from keras_tfopt.addons.decay import extend_with_decoupled_weight_decay
from keras_tfopt.addons.multi import MultiOptimizer
from keras_tfopt.addons.table import NAMES, TABLE
from keras_tfopt.schedules import (
    CyclicalLearningRate,
    ExponentialCyclicalLearningRate,
    Triangular2CyclicalLearningRate,
    TriangularCyclicalLearningRate,
)
from keras_tfopt.tables import Counterpart, names_in

CLASSES = {name: make_class(name, row) for name, row in TABLE.items()}

for _cls in CLASSES.values():
    if issubclass(_cls, Averaged):
        AveragedOptimizerWrapper.register(_cls)
    if issubclass(_cls, Decaying):
        DecoupledWeightDecayExtension.register(_cls)

_SCHEDULES = (
    CyclicalLearningRate,
    TriangularCyclicalLearningRate,
    Triangular2CyclicalLearningRate,
    ExponentialCyclicalLearningRate,
)
# Their names in files of TensorFlow Addons, which differ from ours.
keras.saving.get_custom_objects().update(
    {f"{PACKAGE}>{schedule.__name__}": schedule for schedule in _SCHEDULES}
)

__all__ = [
    "AveragedOptimizerWrapper",
    "AverageModelCheckpoint",
    "Counterpart",
    "CyclicalLearningRate",
    "DecoupledWeightDecayExtension",
    "ExponentialCyclicalLearningRate",
    "extend_with_decoupled_weight_decay",
    "MultiOptimizer",
    "names",
    "Triangular2CyclicalLearningRate",
    "TriangularCyclicalLearningRate",
    *CLASSES,
]


def names() -> dict[str, Counterpart]:
    """Return every name of TensorFlow Addons, with its counterpart and differences."""
    return names_in(NAMES)


def __getattr__(name: str) -> Any:
    if name in CLASSES:
        return CLASSES[name]
    raise AttributeError(
        f"keras_tfopt.addons has no {name!r}. keras_tfopt.addons.names() lists what it has"
    )


def __dir__() -> list[str]:
    return sorted(__all__)
