"""Moving to this package: optimizers of Keras 3, state of Keras 2, TensorFlow and PyTorch, code.

`keras_tfopt.from_keras`, `keras_tfopt.to_keras` and `keras_tfopt.swap_optimizer` convert optimizers
of Keras 3. `python -m keras_tfopt.migrate` rewrites programs.
"""

from keras_tfopt.migrate.loading import load_state as load_state
from keras_tfopt.migrate.loading import torch_layout as torch_layout
from keras_tfopt.migrate.report import Report as Report
from keras_tfopt.migrate.rules import SGD as SGD
from keras_tfopt.migrate.rules import Adadelta as Adadelta
from keras_tfopt.migrate.rules import Adagrad as Adagrad
from keras_tfopt.migrate.rules import Adamax as Adamax
from keras_tfopt.migrate.rules import Ftrl as Ftrl
from keras_tfopt.migrate.rules import Lion as Lion
from keras_tfopt.migrate.rules import Nadam as Nadam
from keras_tfopt.migrate.rules import RMSprop as RMSprop
from keras_tfopt.migrate.stock import from_keras as from_keras
from keras_tfopt.migrate.stock import swap_optimizer as swap_optimizer
from keras_tfopt.migrate.stock import to_keras as to_keras
