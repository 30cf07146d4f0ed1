"""The functions of the protocol on JAX: the defaults, and those that replace them."""

from keras_tfopt.engine.backends.defaults import *  # noqa: F403
from keras_tfopt.engine.backends.jax.decompositions import eigh, singular_values
from keras_tfopt.engine.backends.jax.functional import compiled, value_and_gradients
from keras_tfopt.engine.backends.jax.lookup import from_native, look_up
from keras_tfopt.engine.backends.jax.loss import check_traceable, loss_and_gradients
from keras_tfopt.engine.backends.jax.rows import (
    in_form_for,
    is_dense,
    row_mask,
    rows_at,
    scale_native,
    sum_repeated,
    to_dense,
)
from keras_tfopt.engine.backends.jax.sharding import keep_layouts, part_of, sharding_problem
from keras_tfopt.engine.backends.jax.steps import Steps
from keras_tfopt.engine.backends.jax.tables import row_shards
from keras_tfopt.engine.backends.jax.tracing import (
    asks_for_value,
    compilation,
    concretely,
    gradients,
    outside_compiler,
    place,
    run_on_shapes,
    with_averages,
)
from keras_tfopt.engine.backends.jax.updates import (
    as_step,
    execute,
    is_ready,
    run_if,
    run_in_place,
)
from keras_tfopt.engine.backends.jax.values import (
    accumulate,
    add_variable,
    bits_of,
    clear,
    commit,
    conditional,
    copy_of,
    from_bits,
    has_accelerator,
    is_finite,
    limits,
    move_toward,
    norm,
    row_products,
    take,
    while_loop,
)

has_replicas = False
