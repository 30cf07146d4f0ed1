"""Every optimizer of TensorFlow's past on every backend of Keras 3."""

from typing import TYPE_CHECKING

from keras_tfopt import callbacks as callbacks
from keras_tfopt import distributed as distributed
from keras_tfopt import layers as layers
from keras_tfopt import migrate as migrate
from keras_tfopt import rules as rules
from keras_tfopt import schedules as schedules
from keras_tfopt import solvers as solvers
from keras_tfopt import wrappers as wrappers
from keras_tfopt._version import __version__ as __version__
from keras_tfopt.checks import check_bool as check_bool
from keras_tfopt.checks import check_global_step as check_global_step
from keras_tfopt.checks import check_hyperparameter as check_hyperparameter
from keras_tfopt.checks import check_integer as check_integer
from keras_tfopt.checks import check_number as check_number
from keras_tfopt.diagnosis import Diagnosis as Diagnosis
from keras_tfopt.diagnosis import diagnose as diagnose
from keras_tfopt.distributed import AGN as AGN
from keras_tfopt.distributed import DiLoCo as DiLoCo
from keras_tfopt.distributed import DropStale as DropStale
from keras_tfopt.distributed import ElasticAverage as ElasticAverage
from keras_tfopt.distributed import ModelAverage as ModelAverage
from keras_tfopt.distributed import SyncReplicas as SyncReplicas
from keras_tfopt.engine import RowGradient as RowGradient
from keras_tfopt.engine import Rows as Rows
from keras_tfopt.engine import Slot as Slot
from keras_tfopt.engine import averaged as averaged
from keras_tfopt.engine import describe_state as describe_state
from keras_tfopt.engine import no_vectors as no_vectors
from keras_tfopt.engine import normalization_and_bias as normalization_and_bias
from keras_tfopt.fields import field as field
from keras_tfopt.fields import flag as flag
from keras_tfopt.fields import integer as integer
from keras_tfopt.fields import within as within
from keras_tfopt.groups import layer_decay as layer_decay
from keras_tfopt.groups import no_decay as no_decay
from keras_tfopt.loss_scale_optimizer import LossScaleOptimizer as LossScaleOptimizer
from keras_tfopt.migrate import from_keras as from_keras
from keras_tfopt.migrate import swap_optimizer as swap_optimizer
from keras_tfopt.migrate import to_keras as to_keras
from keras_tfopt.registry import Info as Info
from keras_tfopt.registry import get as get
from keras_tfopt.registry import info as info
from keras_tfopt.registry import list_optimizers as list_optimizers
from keras_tfopt.rule import Algorithm as Algorithm
from keras_tfopt.rule import Rule as Rule
from keras_tfopt.rule import full as full
from keras_tfopt.rule import register as register
from keras_tfopt.rule import zeros as zeros
from keras_tfopt.rules import *  # noqa: F403
from keras_tfopt.sharpness_aware import SharpnessAware as SharpnessAware
from keras_tfopt.wrapper import Wrapper as Wrapper
from keras_tfopt.wrappers import *  # noqa: F403

if not TYPE_CHECKING:  # to type checkers, `as` and `*` say the same
    __all__ = [
        "__version__",
        "callbacks",
        "distributed",
        "layers",
        "migrate",
        "schedules",
        "solvers",
    ]
    __all__ += [name for name, item in dict(vars()).items() if callable(item)]
