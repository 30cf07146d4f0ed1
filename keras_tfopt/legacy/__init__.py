"""Optimizers with the names and the verbs of TensorFlow 1 and RETURNN.

Code that was written for `tf.train`, `tf.contrib.opt` or RETURNN changes one import:

```python
import keras_tfopt.legacy as opt

optimizer = opt.LARSOptimizer(0.1, skip_list=["bias"])
optimizer.minimize(lambda: loss(model(x), y))
model.compile(optimizer=optimizer.keras, loss="mse")  # or train as Keras does
```

On the TensorFlow backend every class is a `tf.compat.v1.train.Optimizer`, for graphs and sessions
as well as for eager code; on JAX and PyTorch the verbs are eager.

Constructors, defaults and names of slots are those of the originals. `names()` lists them, with
their counterparts and the differences. `get("lars")` finds a class by its name in a configuration.
`load_checkpoint` restores a checkpoint of `tf.train.Saver`, optimizer state included,
`save_checkpoint` writes one, and `inspect_checkpoint` lists its contents.
"""

from __future__ import annotations

from typing import Any

from keras_tfopt.legacy import sign_decay
from keras_tfopt.legacy.checkpoints import (
    CheckpointMismatch,
    Report,
    inspect_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from keras_tfopt.legacy.naming import CLASSES, OTHERS, get, names
from keras_tfopt.legacy.optimizer import Optimizer
from keras_tfopt.tables import Counterpart

__all__ = [
    "CheckpointMismatch",
    "Counterpart",
    "Optimizer",
    "Report",
    "get",
    "inspect_checkpoint",
    "load_checkpoint",
    "names",
    "save_checkpoint",
    "sign_decay",
    *CLASSES,
    *OTHERS,
]


def __getattr__(name: str) -> Any:
    known = CLASSES | OTHERS
    if name in known:
        return known[name]
    raise AttributeError(
        f"keras_tfopt.legacy has no {name!r}. keras_tfopt.legacy.names() lists what it has"
    )


def __dir__() -> list[str]:
    return sorted(__all__)
