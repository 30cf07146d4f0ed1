"""Choose the module that runs the verbs: `graph` on TensorFlow, `eager` on the other backends.

Both modules define the same names. Four of these are base classes: `RuleVerbs`, `WrapperVerbs`,
`DecayVerbs` and `CustomVerbs`. Each exists twice because the two modules keep state in different
places:

- `graph` keeps it in slots of `tf.compat.v1.train.Optimizer`. Graphs, reference variables,
  `tf.train.Saver` and optimizers around ours look for it there. A step is a list of operations.
- `eager` keeps it in a Keras optimizer, which makes the step.

Eager code on TensorFlow needs TensorFlow's slots, too: `tf.train.Checkpoint` saves them, a subclass
may define `_apply_dense`, and optimizers of `tf.compat.v1.train` may be around ours or inside. A
class for both modules would hold the code of both, and each method would have to choose. What they
share is in `Optimizer` and in the subclasses of the four. Formulas are those of the engine in both.

The other names are functions of variables (`native`, `read`, `name_of`, `make_variable`), functions
of optimizers (`apart`, `form_of`, `rest_while_zero`, `outside_compiler`), and `OptimizerBase`,
`MODULES`, `log` and `problem_of`.
"""

from __future__ import annotations

import importlib
from typing import Any

import keras

_HERE = "graph" if keras.backend.backend() == "tensorflow" else "eager"

running: Any = importlib.import_module(f"keras_tfopt.legacy.{_HERE}")
"""`keras_tfopt.legacy.graph` or `keras_tfopt.legacy.eager`."""
