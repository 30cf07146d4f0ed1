"""Move to this package: convert optimizers of Keras 3, load state of other programs, rewrite code.

`keras_tfopt.from_keras`, `keras_tfopt.to_keras` and `keras_tfopt.swap_optimizer` convert optimizers
of Keras 3. `load_state` reads files of Keras 2 and 3, TensorFlow, PyTorch and optax. The classes
here follow the conventions of Keras where ours of the same names differ.
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
