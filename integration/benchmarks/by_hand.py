"""Steps as one writes them by hand for one rule and one backend, as bounds.

`least_step` moves as many bytes as a rule, with next to no arithmetic, compiled and in place.
`step_of_soap` and `step_of_shampoo` are formulas in the backend's operations: without options,
checks, or state that can be saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from integration.benchmarks import contenders
from integration.benchmarks.results import wait
from integration.benchmarks.shapes import Shapes

BACKEND = contenders.BACKEND
RATE = contenders.LEARNING_RATE

Step = Callable[[Any, list[Any]], list[Any]]
"""From the gradient of a variable, and the variable and its slots, to the latter anew."""


def carried(steps: list[Step], given: list, states: list[list], fused: bool = False) -> list:
    """Return calls that replace states by what functions make of them.

    Args:
        steps: The functions.
        given: A gradient for each variable.
        states: For each variable, that itself and its slots.
        fused: Whether the backend compiles the operations to few loops, in place. JAX does anyway.
    """
    given = [ops.convert_to_tensor(g) for g in given]
    states = [[ops.convert_to_tensor(value) for value in own] for own in states]
    return [_CARRIED[BACKEND](step, given, states, fused) for step in steps]


def _carried_by_torch(step: Step, given: list, states: list[list], fused: bool) -> Callable:
    import torch

    def replaced() -> None:
        states[:] = map(step, given, states)
        wait()

    def in_place(given: list, states: list[list]) -> None:
        for g, own in zip(given, states):
            for old, new in zip(own, step(g, own)):
                old.copy_(new)

    if not fused:
        return replaced
    compiled = torch.compile(in_place, fullgraph=True, isolate_recompiles=True)
    return lambda: (compiled(given, states), wait()) and None


def _carried_by_jax(step: Step, given: list, states: list[list], _: bool) -> Callable:
    import jax

    def all_of(states: list[list], given: list) -> list[list]:
        return list(map(step, given, states))

    # What is written and not read is kept for its memory.
    jitted = jax.jit(all_of, donate_argnums=0, keep_unused=True)

    def run() -> None:
        states[:] = jitted(states, given)
        jax.block_until_ready(states)

    return run


def _carried_by_tensorflow(step: Step, given: list, states: list[list], fused: bool) -> Callable:
    import tensorflow as tf

    for own in states:  # the first of several steps makes variables of all
        own[:] = [v if isinstance(v, tf.Variable) else tf.Variable(v) for v in own]

    @tf.function(autograph=False, jit_compile=fused)
    def run() -> None:
        for g, own in zip(given, states):
            for old, new in zip(own, step(g, [value.read_value() for value in own])):
                old.assign(new)

    return lambda: (run(), tf.test.experimental.sync_devices()) and None


_CARRIED = {
    "torch": _carried_by_torch,
    "jax": _carried_by_jax,
    "tensorflow": _carried_by_tensorflow,
}


def least_step(shapes: Shapes, read: int, written: int, before: int = 0) -> Callable[[], None]:
    """Return a call that reads and writes as many numbers for each of all variables.

    Args:
        shapes: Those of the variables: all have as many columns, and are one matrix here.
        read: Arrays that are read: the gradient, all slots, and the variable if there is one more
            than are written.
        written: Arrays that are written: the slots and the variable.
        before: How many of what is read are read once more before, for a mean.
    """

    def step(g: Any, own: list[Any]) -> list[Any]:
        *slots, x = own
        if before:
            g = g + ops.sum(sum([*slots, x, g][-before:])) / size
        # XLA copies what is written before others are, unless it ends with a sum as these do.
        slots = [0.9 * slot + 0.1 * g for slot in slots]
        total = sum(slots)
        return [*slots, 0.9 * x + 0.1 * total if read > written else total]

    columns, size = shapes[0][-1], sum(map(math.prod, shapes))
    matrix = [(size // columns, columns)]  # XLA takes one thread for a vector
    (g,), (x,) = contenders.gradients(matrix), contenders.start(matrix)
    return carried([step], [g], [[x.copy() for _ in range(written)]], fused=True)[0]


def lerp(start: Any, end: Any, weight: float) -> Any:
    if BACKEND == "torch":
        import torch

        return torch.lerp(start, end, weight)
    return start + weight * (end - start)


def step_of_soap(g: Any, state: list[Any]) -> list[Any]:
    x, m, v, rows, columns, left, right = state
    turned = ops.transpose(left) @ g @ right
    m, v = lerp(m, g, 0.05), lerp(v, turned * turned, 0.05)
    direction = (ops.transpose(left) @ m @ right) / (ops.sqrt(v) + 1e-8)
    x = x - RATE * (left @ direction @ ops.transpose(right))
    rows = lerp(rows, g @ ops.transpose(g), 0.05)
    columns = lerp(columns, ops.transpose(g) @ g, 0.05)
    return [x, m, v, rows, columns, left, right]


def bases_of_soap(g: Any, state: list[Any]) -> list[Any]:
    x, m, v, rows, columns, left, right = state
    bases = []
    for axis, (total, basis) in enumerate([(rows, left), (columns, right)]):
        image = total @ basis
        order = ops.argsort(-ops.sum(basis * image, axis=0))
        v = ops.take(v, order, axis=axis)
        bases.append(ops.qr(ops.take(image, order, axis=1))[0])
    return [x, m, v, rows, columns, *bases]


def step_of_shampoo(g: Any, state: list[Any]) -> list[Any]:
    """Return the state after a step of DistributedShampoo, grafted to Adam."""
    x, m, v, rows, columns, left, right = state
    rows = lerp(rows, g @ ops.transpose(g), 0.01)
    columns = lerp(columns, ops.transpose(g) @ g, 0.01)
    m, v = lerp(m, g, 0.1), lerp(v, g * g, 0.001)
    direction = left @ m @ right
    adam = m / (ops.sqrt(v) + 1e-10)
    factor = ops.sqrt(ops.sum(adam * adam) / ops.sum(direction * direction))
    return [x - RATE * factor * direction, m, v, rows, columns, left, right]


def roots_of_shampoo(g: Any, state: list[Any]) -> list[Any]:
    roots = []
    for total in state[3:5]:
        values, vectors = ops.eigh(total)
        roots.append((vectors * (ops.relu(values) + 1e-6) ** -0.25) @ ops.transpose(vectors))
    return [*state[:5], *roots]


def with_matrices(steps: list[Step], shapes: Shapes) -> list[Callable[[], None]]:
    """Return calls of functions of a variable, two moments, two sums of products and two bases."""
    states = []
    for x in contenders.start(shapes):
        squares = [np.eye(n, dtype="float32") for n in x.shape]
        moments = [np.zeros_like(x), np.ones_like(x)]
        states.append([x, *moments, *squares, *squares])
    return carried(steps, contenders.gradients(shapes), states)
