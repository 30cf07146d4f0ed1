"""What Shampoo keeps for one dimension: a sum of products of the gradient, and a root of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_tfopt.checks import check_function_of_step, check_integer
from keras_tfopt.engine import changes, conditional, is_function_of_step, lerp
from keras_tfopt.rules.matrix_roots import inverse_root, use_iteration


def sum_of_products(rule: Any, old: Any, t: Any, matrix: Any) -> Any:
    """Return the sum with the products of this gradient's rows, where an update is due."""

    def updated() -> Any:
        products = matrix @ ops.transpose(matrix)
        is_one = all(map(is_always, (rule.mat_gbar_weight, rule.precond_update_interval), (1, 1)))
        weight = None if is_one else t.mat_gbar_weight * t.precond_update_interval
        return added(rule, old, t, weight, products)

    return _every(rule.precond_update_interval, t.precond_update_interval, t, updated, old)


def added(rule: Any, old: Any, t: Any, weight: Any, new: Any) -> Any:
    """Return the decayed sum with something new; the weight None is 1."""
    # Passes over large matrices that change nothing take as long as others.
    new = new if weight is None else weight * new
    if old is None:
        return new
    return (old if is_always(rule.mat_gbar_decay, 1) else t.mat_gbar_decay * old) + new


def root(rule: Any, old: Any, t: Any, total: Any, exponent: Any) -> Any:
    """Return the inverse root of a sum, where a new one is due."""

    def updated() -> Any:
        size = int(total.shape[0])  # an object where TensorFlow behaves as its version 1
        ridge = rule.epsilon * ops.eye(size, dtype=total.dtype)
        is_root = isinstance(exponent, float) and exponent != 0  # 0 is no root; others change
        iterative = is_root and use_iteration(rule.use_iterative_root, whole_root(exponent))
        return inverse_root(total / size + ridge, exponent, rule.epsilon, iterative)

    return _every(rule.svd_interval, t.svd_interval, t, updated, old)


def _every(fixed: Any, interval: Any, t: Any, updated: Callable[[], Any], old: Any) -> Any:
    """Return `updated()` in every so many steps and `old` in the others, where it is not called."""
    if is_always(fixed, 1):
        return updated()
    due = ops.equal(t.iteration % ops.cast(interval, "int32"), 0)
    return conditional(due, updated, lambda: old)


def is_always(value: Any, number: int) -> bool:
    """Return whether a hyperparameter is this number in every step."""
    return isinstance(value, (int, float)) and value == number


def decayed(old: Any, beta: Any, new: Any) -> Any:
    """Return the average with something new, or the sum where nothing decays."""
    return old + new if is_always(beta, 1) else lerp(old, new, 1 - beta)


def is_due(iteration: Any, first: int, interval: int) -> Any:
    """Return whether a step is the first or, after that, a multiple of the interval."""
    due = ops.logical_or(ops.equal(iteration, first), ops.equal(iteration % interval, 0))
    return ops.logical_and(iteration >= first, due)


def whole_root(exponent: float) -> float:
    """Return the p of a power -1/p, an integer if it is one except for rounding."""
    return round(1 / exponent, 9)


def check_iteration(rule: Any, rank: int) -> None:
    """Raise an error if the iteration cannot take the roots of variables of this rank."""
    if not rule.use_iterative_root:
        return
    if not isinstance(rule.alpha, float) or not whole_root(rule.alpha / rank).is_integer():
        raise ValueError(
            f"With `use_iterative_root=True`, `alpha` must be a number, and {rank} / alpha "
            f"an integer for variables with {rank} dimensions. Received: alpha={rule.alpha!r}"
        )


def check_interval(name: str, value: Any) -> Any:
    """Return an integer >= 1 or what gives one at each step, or raise an error."""
    if changes(value) or is_function_of_step(value):
        return check_function_of_step(name, value, 1)
    return check_integer(name, value, 1)
