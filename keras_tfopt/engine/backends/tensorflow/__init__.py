"""The functions of the protocol on TensorFlow: the defaults, and those that replace them."""

from keras_tfopt.engine.backends.defaults import *  # noqa: F403
from keras_tfopt.engine.backends.tensorflow.functional import compiled, value_and_gradients
from keras_tfopt.engine.backends.tensorflow.lookup import look_up
from keras_tfopt.engine.backends.tensorflow.loss import check_traceable, loss_and_gradients
from keras_tfopt.engine.backends.tensorflow.rows import (
    from_native,
    in_form_for,
    is_dense,
    row_mask,
    rows_at,
    scale_native,
    sum_repeated,
    to_dense,
)
from keras_tfopt.engine.backends.tensorflow.tracing import (
    asks_for_value,
    compilation,
    concretely,
    gradients,
    outside_compiler,
    place,
    run_on_shapes,
)
from keras_tfopt.engine.backends.tensorflow.updates import (
    execute,
    is_ready,
    reduce_replicas,
    run_if,
    run_in_place,
)
from keras_tfopt.engine.backends.tensorflow.values import (
    accumulate,
    add_variable,
    bits_of,
    build_scope,
    clear,
    commit,
    conditional,
    copy_of,
    eigh_is_slow,
    from_bits,
    has_accelerator,
    is_finite,
    is_variable,
    lifted,
    limits,
    move_toward,
    norm,
    number,
    once,
    read,
    replicas,
    row_products,
    take,
)

has_replicas = True
