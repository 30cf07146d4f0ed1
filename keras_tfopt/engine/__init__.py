"""Run rules and wrappers as optimizers of Keras, on every backend."""

from keras_tfopt.engine.access import (
    apply_rows,
    array_of,
    as_named_rows,
    average_of,
    dtype_of,
    follows_schedule,
    functions_in,
    is_accumulating,
    keras_optimizers,
    set_steps,
    slot_names_of,
    slots_of,
    state_variables,
    variables_of,
)
from keras_tfopt.engine.arguments.configuration import decoded, encoded, optimizer_from
from keras_tfopt.engine.arguments.construction import has_constructor
from keras_tfopt.engine.arguments.groups import several_paths
from keras_tfopt.engine.arguments.options import (
    DEFAULTS,
    all_arguments,
    as_float,
    as_schedule,
    changes,
    check_countable,
    check_savable,
    check_scalar,
    current,
    in_float32,
    is_computed_again,
    is_function_of_step,
    out_of_range,
    own_parameters,
    takes,
    tolerating,
)
from keras_tfopt.engine.arguments.selection import (
    NORMALIZATION,
    PATHS,
    check_built,
    check_choice,
    excluding,
    is_called,
    is_chosen,
    literal,
    no_vectors,
    normalization_and_bias,
    pattern_of,
    settled,
    warn_unmatched,
)
from keras_tfopt.engine.arguments.suggestions import (
    check_arguments,
    did_you_mean,
    nearest,
    nested,
    short,
)
from keras_tfopt.engine.averages import (
    AveragedFunction,
    assign_averages,
    averaged,
    check_all_here,
    parts,
    swap_averages,
    sync,
)
from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.engine import Engine
from keras_tfopt.engine.inspection import Describing, GroupTable
from keras_tfopt.engine.keras_private import exempt_from_rematerialization, layers_below, layers_in
from keras_tfopt.engine.lookup import divided_table, forget_compiled, is_dense, look_up, share_rows
from keras_tfopt.engine.loss_scaling import LossScalingEngine
from keras_tfopt.engine.nesting import innermost
from keras_tfopt.engine.rows import RowGradient, shards_of
from keras_tfopt.engine.settings import compile_in_background, plain
from keras_tfopt.engine.state.building import check_distinct, path_of, prepare
from keras_tfopt.engine.state.scopes import creating
from keras_tfopt.engine.state.state import NO_SETTINGS, Like, Rows, Settings, Slot
from keras_tfopt.engine.state_table import StateTable, describe_state
from keras_tfopt.engine.step.gradients import all_finite, clipped_by_global_norm
from keras_tfopt.engine.step.results import check_class_attribute
from keras_tfopt.engine.step.shared_code import is_ours
from keras_tfopt.engine.wrapping import WrappingEngine

check_traceable = backend.check_traceable
combine_rows = backend.combine_rows
row_products = backend.row_products
row_shards = backend.row_shards
conditional = backend.conditional
while_loop = backend.while_loop
add_product = backend.add_product
eigh = backend.eigh
eigh_is_slow = backend.eigh_is_slow
lerp = backend.lerp
add_scaled = backend.add_scaled
norm = backend.norm
singular_values = backend.singular_values
is_variable = backend.is_variable
outside_compiler = backend.outside_compiler
Steps = backend.Steps
