from __future__ import annotations

from typing import Any

from keras import ops

from keras_tfopt.engine import Like
from keras_tfopt.fields import field, within
from keras_tfopt.rule import register
from keras_tfopt.wrapper import Wrapper
from keras_tfopt.wrappers.dimensions import NAME, check_dims, clipped, dims_of, settled_dims


@register
class VariableClipping(Wrapper):
    r"""Keeps the norms of variables, or of their rows or columns, below a limit.

    After each step of the inner optimizer, with the norm over the given dimensions:

    $$
    x \leftarrow x \frac{c}{\max(\|x\|_2, c)}
    $$

    Args:
        inner_optimizer: Any Keras optimizer, or its name or configuration. Another
            `VariableClipping` gives other variables other limits.
        vars_to_clip_dims: Dimensions by variable: a dictionary from regular expressions that are
            searched in the paths of variables (the first that is found counts); a list of pairs of
            dimensions after a variable, such an expression, or a function that is given `path`,
            `shape` and `dtype` of a variable as attributes and returns whether they are its
            dimensions; or a function that returns dimensions, or None for a variable that is not
            to be clipped.
            Dimensions are lists of integers; `[0]` of a dense kernel is the norm of each unit's
            weights, an empty list is the absolute value of each element.
        max_norm: $c$: number > 0, schedule, scalar variable, or callable without arguments.
        name: Name of the optimizer.
        **base: `groups`, which is passed on. Other options belong to `inner_optimizer`.

    Slots: none.

    Row gradients: only touched rows are clipped, also if the inner optimizer moves all; with the
    first dimension among the dimensions, all of the variable.

    Example:

    >>> unit_norms = {"kernel$": [0]}
    >>> optimizer = keras_tfopt.VariableClipping(keras_tfopt.Momentum(0.1), unit_norms, 2.0)

    Reference: Hinton et al., "Improving neural networks by preventing co-adaptation of feature
    detectors" (2012), who bound the norms of the weights into each unit.

    Differences: `tf.contrib.opt.VariableClippingOptimizer` subtracts the correction of a row as
    often as the row is named in a sparse gradient, so that the norms of repeated rows end below the
    limit or even grow; here a row is clipped once. Constraints of `keras.layers` act on variables
    of one layer and on all of their rows.
    """

    sparse = "rows"

    by_rate = False

    vars_to_clip_dims: Any = field(lambda name, value: check_dims(value))
    max_norm: Any = within(0, left_open=True)

    def scalars(self, lr: Any, step: Any) -> dict[str, Any]:
        return {"max_norm": self.now(self.max_norm)}

    def check(self, likes: Any) -> None:
        for like in likes:
            dims_of(like, self.vars_to_clip_dims)

    def settle(self, likes: Any) -> None:
        self.vars_to_clip_dims = settled_dims(self.vars_to_clip_dims, likes)

    def choices(self) -> dict[str, Any]:
        return {NAME: clipped(self.vars_to_clip_dims)}

    def facts(self, like: Like) -> dict[str, Any]:
        return {"dims": dims_of(like, self.vars_to_clip_dims)}

    def reach(self, like: Like) -> str | None:
        dims = dims_of(like, self.vars_to_clip_dims)
        return None if dims is None else "dense" if 0 in dims else "rows"

    def after(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        # Without dimensions, Keras would take all of them.
        squares = ops.square(x)
        squares = ops.sum(squares, axis=t.dims, keepdims=True) if t.dims else squares
        norm = ops.sqrt(squares)
        # Not a product with `max_norm / maximum(norm, max_norm)`, which moves what is below it.
        return ops.where(norm > t.max_norm, x * (t.max_norm / norm), x), {}
