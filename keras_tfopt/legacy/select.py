"""Choose the module that runs the verbs: `graph` on TensorFlow, `eager` elsewhere.

Both define the same names. Four are base classes, because state lives in different places:
`RuleVerbs`, `WrapperVerbs`, `DecayVerbs` and `CustomVerbs`. On TensorFlow it is in slots of
`tf.compat.v1.train.Optimizer`, where graphs, reference variables, `tf.train.Saver` and optimizers
around ours look for it, and a step is a list of operations. Elsewhere it is in a Keras optimizer,
which makes the step.

One class for both would need Keras optimizers in graphs, where Keras cannot make variables, or the
slots of TensorFlow on other backends.

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
