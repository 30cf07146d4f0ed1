"""The functions of the protocol on PyTorch: the defaults, and those that replace them."""

from keras_tfopt.engine.backends.defaults import *  # noqa: F403
from keras_tfopt.engine.backends.torch.alike import map_alike
from keras_tfopt.engine.backends.torch.compile import compilation
from keras_tfopt.engine.backends.torch.functional import compiled, value_and_gradients
from keras_tfopt.engine.backends.torch.lookup import look_up
from keras_tfopt.engine.backends.torch.loss import check_traceable, loss_and_gradients
from keras_tfopt.engine.backends.torch.pieces import run_in_pieces
from keras_tfopt.engine.backends.torch.rows import (
    from_native,
    in_form_for,
    is_dense,
    row_mask,
    rows_at,
    scale_native,
    sum_repeated,
    to_dense,
)
from keras_tfopt.engine.backends.torch.tracing import (
    as_step,
    asks_for_value,
    gradients,
    outside_compiler,
    place,
    run_on_shapes,
)
from keras_tfopt.engine.backends.torch.updates import (
    compute_scalars,
    execute,
    is_ready,
    run_if,
    run_in_place,
)
from keras_tfopt.engine.backends.torch.values import (
    accumulate,
    add_product,
    add_scaled,
    add_variable,
    all_finite,
    as_bytes,
    bits_of,
    clear,
    combine_rows,
    commit,
    conditional,
    copy_of,
    divide_all,
    eigh,
    from_bits,
    greatest_of_lines,
    has_accelerator,
    is_finite,
    least_of_lines,
    lerp,
    lesser,
    limit_all,
    limits,
    move_toward,
    norm,
    part_of,
    random_state,
    relu,
    row_products,
    row_shards,
    scale_all,
    set_random_state,
    squared_norms,
    take,
)

has_replicas = False
