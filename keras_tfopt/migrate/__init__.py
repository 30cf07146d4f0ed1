"""Moving to this package: optimizers of Keras 3, state of Keras 2, TensorFlow and PyTorch, code.

`keras_tfopt.from_keras`, `keras_tfopt.to_keras` and `keras_tfopt.swap_optimizer` convert optimizers
of Keras 3. The classes here have the conventions of Keras, where ours of these names have others.
`python -m keras_tfopt.migrate` rewrites programs.
"""

from keras_tfopt.migrate.loading import load_state, torch_layout
from keras_tfopt.migrate.report import Report
from keras_tfopt.migrate.rules import (
    SGD,
    Adadelta,
    Adagrad,
    Adamax,
    Ftrl,
    Lion,
    Nadam,
    RMSprop,
)
from keras_tfopt.migrate.stock import from_keras, swap_optimizer, to_keras

__all__ = [
    "Adadelta",
    "Adagrad",
    "Adamax",
    "from_keras",
    "Ftrl",
    "Lion",
    "load_state",
    "Nadam",
    "Report",
    "RMSprop",
    "SGD",
    "swap_optimizer",
    "to_keras",
    "torch_layout",
]
