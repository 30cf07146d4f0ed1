"""Choose the module that runs the verbs: `graph` on TensorFlow, `eager` elsewhere.

Both define the same names. Four are base classes, because state lives in different places:
`RuleVerbs`, `WrapperVerbs`, `DecayVerbs` and `CustomVerbs`. On TensorFlow it is in slots of
`tf.compat.v1.train.Optimizer`, where graphs, reference variables, `tf.train.Saver` and optimizers
around ours look for it, and a step is a list of operations. Elsewhere it is in a Keras optimizer,
which makes the step.

They stay two classes each, though a step could choose at its call. On TensorFlow, eager code keeps
its state in TensorFlow's slots as well: files of `tf.train.Checkpoint` have them, a subclass may
define `_apply_dense`, and optimizers of `tf.compat.v1.train` may be around ours or inside. So one
class would be all of the class for TensorFlow, and all of the class for a Keras optimizer beside
it, with a question in each method. What both say alike is in `Optimizer` and in the subclasses of
the four. A formula is never written twice: both call the engine's.

The other names are functions of variables (`native`, `read`, `name_of`, `is_variable`,
`make_variable`), of optimizers (`apart`, `form_of`, `rest_while_zero`, `outside_compiler`), and
what else differs (`OptimizerBase`, `MODULES`, `log`, `problem_of`).
"""

from __future__ import annotations

import importlib
from typing import Any

import keras

_HERE = "graph" if keras.backend.backend() == "tensorflow" else "eager"

running: Any = importlib.import_module(f"keras_tfopt.legacy.{_HERE}")
"""`keras_tfopt.legacy.graph` or `keras_tfopt.legacy.eager`."""
