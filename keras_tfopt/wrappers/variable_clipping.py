from __future__ import annotations

import numbers
from typing import Any

import keras
from keras import ops

from keras_tfopt.algorithm import check_number, register
from keras_tfopt.execution import Like, check_savable, compile_patterns
from keras_tfopt.wrapper import Wrapper
from keras_tfopt.wrappers.choice import check_each_matches, is_chosen, pattern_of


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
        vars_to_clip_dims: Dimensions by variable: a dictionary whose keys are variables or regular
            expressions that are searched in their paths (the first that is found counts), or a
            registered function that is given `path`, `shape` and `dtype` of a variable as
            attributes and returns dimensions, or None for a variable that is not to be clipped.
            Dimensions are lists of integers; `[0]` of a dense kernel is the norm of each unit's
            weights, an empty list is the absolute value of each element.
        max_norm: $c$, number > 0.
        name: Name of the optimizer.

    Slots: none.

    Row gradients: only touched rows are clipped, where the inner optimizer moves only these or the
    gradient is a `RowGradient`; with the first dimension among the dimensions, all of the variable.

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

    def __init__(
        self,
        inner_optimizer: Any,
        vars_to_clip_dims: Any,
        max_norm: float,
        name: str | None = None,
        **base: Any,
    ):
        super().__init__(inner_optimizer, name=name, **base)
        self.vars_to_clip_dims = check_dims(vars_to_clip_dims)
        self.max_norm = check_number("max_norm", max_norm, 0, left_open=True)

    def check(self, likes: Any) -> None:
        if isinstance(self.vars_to_clip_dims, dict):
            parts = self.vars_to_clip_dims
            check_each_matches("vars_to_clip_dims", parts, lambda p, v: is_chosen(v, p), likes)
        elif all(self.vars_to_clip_dims(like) is None for like in likes):
            check_each_matches(
                "vars_to_clip_dims", [self.vars_to_clip_dims], lambda part, like: False, likes
            )
        for like in likes:
            self.facts(like)

    def facts(self, like: Like) -> dict[str, Any]:
        rank, dims = len(like.shape), _dims_of(like, self.vars_to_clip_dims)
        for dim in dims or ():
            if not -rank <= dim < rank:
                raise ValueError(
                    f"Argument `vars_to_clip_dims` must name dimensions of {like.path!r}, which "
                    f"has the shape {like.shape}. Received: {dims!r}"
                )
        return {"dims": None if dims is None else tuple(sorted({d % rank for d in dims}))}

    def reach(self, like: Like) -> str | None:
        dims = self.facts(like)["dims"]
        return None if dims is None else "dense" if 0 in dims else "rows"

    def after(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        # Without dimensions, Keras would take all of them.
        squares = ops.square(x)
        squares = ops.sum(squares, axis=t.dims, keepdims=True) if t.dims else squares
        norm = ops.sqrt(squares)
        # Not a product with `max_norm / maximum(norm, max_norm)`, which moves what is below it.
        return ops.where(norm > self.max_norm, x * (self.max_norm / norm), x), {}


def check_dims(value: Any) -> Any:
    """Returns the dimensions by pattern, or raises an error that names the argument."""
    if callable(value):
        check_savable("vars_to_clip_dims", value)
        return value
    if not isinstance(value, dict) or not value:
        raise TypeError(
            "Argument `vars_to_clip_dims` must be a dictionary from variables or regular "
            f"expressions to dimensions, or a function. Received: {value!r}"
        )
    known = {pattern_of(k) if isinstance(k, keras.Variable) else k: d for k, d in value.items()}
    for key, dims in known.items():
        compile_patterns("vars_to_clip_dims", key)
        is_list = isinstance(dims, (list, tuple))
        if not is_list or not all(isinstance(dim, numbers.Integral) for dim in dims):
            raise TypeError(
                "Argument `vars_to_clip_dims` must give lists of integers. "
                f"Received: {dims!r} for {key!r}"
            )
    return {key: [int(dim) for dim in dims] for key, dims in known.items()}


def _dims_of(like: Like, dims: Any) -> Any:
    if callable(dims):
        return dims(like)
    return next((value for key, value in dims.items() if is_chosen(like, key)), None)
