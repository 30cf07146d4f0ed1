"""How rules run: the only part that imports a backend or touches Keras-private names."""

from keras_tfopt.execution.access import (
    apply_rows,
    as_named_rows,
    slot_names_of,
    slots_of,
    state_variables,
    variables_of,
)
from keras_tfopt.execution.averages import AveragedFunction, averaged, parts, sync
from keras_tfopt.execution.building import check_distinct, path_of, prepare
from keras_tfopt.execution.checkpoint_files import CheckpointFile, Content, write_checkpoint
from keras_tfopt.execution.configuration import decoded, encoded, optimizer_from, portable
from keras_tfopt.execution.construction import has_constructor
from keras_tfopt.execution.engine import Engine
from keras_tfopt.execution.exchanges.workers import clone, mean_gradient, rows_in
from keras_tfopt.execution.gradients import clipped_by_global_norm
from keras_tfopt.execution.imperative import Imperative, assign_rows, take_rows
from keras_tfopt.execution.lookup import (
    exempt_from_rematerialization,
    forget_compiled,
    is_dense,
    layers_of,
    look_up,
    share_rows,
)
from keras_tfopt.execution.loss_gradients import gradients_of_loss
from keras_tfopt.execution.loss_scaling import LossScalingEngine
from keras_tfopt.execution.options import (
    DEFAULTS,
    all_arguments,
    as_schedule,
    changes,
    check_savable,
    is_computed_again,
    is_function_of_step,
    out_of_range,
    own_parameters,
    tolerating,
)
from keras_tfopt.execution.rows import RowGradient
from keras_tfopt.execution.scopes import creating
from keras_tfopt.execution.select import backend
from keras_tfopt.execution.selection import (
    check_choice,
    excluding,
    is_chosen,
    literal,
    no_vectors,
    normalization_and_bias,
    pattern_of,
    settled,
    warn_unmatched,
)
from keras_tfopt.execution.settings import plain
from keras_tfopt.execution.state import Like, Rows, Slot
from keras_tfopt.execution.suggestions import check_arguments, did_you_mean, nearest, short
from keras_tfopt.execution.training_state import (
    array_of,
    core,
    derive,
    described_slots,
    dtype_of,
    follows_schedule,
    is_accumulating,
    set_steps,
    shared_slots,
    state_at,
    steps_of,
)
from keras_tfopt.execution.wrapping import WrappingEngine

check_traceable = backend.check_traceable
combine_rows = backend.combine_rows
row_products = backend.row_products
conditional = backend.conditional
eigh_is_slow = backend.eigh_is_slow
is_variable = backend.is_variable
outside_compiler = backend.outside_compiler
OptimizerBase = backend.OptimizerBase
start_optimizer = backend.start_optimizer
run_step = backend.run_step

__all__ = [
    "check_distinct",
    "CheckpointFile",
    "Content",
    "clone",
    "mean_gradient",
    "rows_in",
    "Imperative",
    "array_of",
    "core",
    "derive",
    "described_slots",
    "dtype_of",
    "follows_schedule",
    "is_accumulating",
    "set_steps",
    "shared_slots",
    "state_at",
    "steps_of",
    "write_checkpoint",
    "apply_rows",
    "as_named_rows",
    "assign_rows",
    "OptimizerBase",
    "check_traceable",
    "start_optimizer",
    "gradients_of_loss",
    "is_variable",
    "outside_compiler",
    "prepare",
    "slot_names_of",
    "slots_of",
    "state_variables",
    "run_step",
    "creating",
    "take_rows",
    "variables_of",
    "AveragedFunction",
    "Engine",
    "Like",
    "LossScalingEngine",
    "RowGradient",
    "Rows",
    "Slot",
    "WrappingEngine",
    "averaged",
    "changes",
    "combine_rows",
    "row_products",
    "conditional",
    "eigh_is_slow",
    "check_choice",
    "excluding",
    "check_savable",
    "has_constructor",
    "is_computed_again",
    "is_chosen",
    "literal",
    "no_vectors",
    "normalization_and_bias",
    "pattern_of",
    "settled",
    "warn_unmatched",
    "is_function_of_step",
    "clipped_by_global_norm",
    "all_arguments",
    "DEFAULTS",
    "as_schedule",
    "check_arguments",
    "decoded",
    "did_you_mean",
    "encoded",
    "exempt_from_rematerialization",
    "forget_compiled",
    "is_dense",
    "layers_of",
    "look_up",
    "share_rows",
    "out_of_range",
    "own_parameters",
    "nearest",
    "optimizer_from",
    "tolerating",
    "parts",
    "path_of",
    "plain",
    "portable",
    "short",
    "sync",
]
