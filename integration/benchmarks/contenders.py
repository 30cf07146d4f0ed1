"""One step of an optimizer over given variables and gradients: ours, Keras's and the peer's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import keras_tfopt
from integration.benchmarks.results import BACKEND, wait
from integration.benchmarks.shapes import Shapes

LEARNING_RATE = 1e-3

# The rule, its bytes moved per parameter in float32 (read and written once each), Keras's own.
RULES: dict[str, tuple[Callable, int, Callable | None]] = {
    "Adam": (
        lambda: keras_tfopt.Adam(LEARNING_RATE, epsilon=1e-7),
        28,
        lambda: keras.optimizers.Adam(LEARNING_RATE),
    ),
    "Momentum": (
        lambda: keras_tfopt.Momentum(LEARNING_RATE, momentum=0.9),
        20,
        lambda: keras.optimizers.SGD(LEARNING_RATE, momentum=0.9),
    ),
    "LARS": (lambda: keras_tfopt.LARS(LEARNING_RATE), 28, None),
    "LAMB": (lambda: keras_tfopt.LAMB(LEARNING_RATE), 40, None),
    "RMSProp": (
        lambda: keras_tfopt.RMSProp(LEARNING_RATE, momentum=0.9),
        28,
        lambda: keras.optimizers.RMSprop(LEARNING_RATE, momentum=0.9),
    ),
    "AddSign": (lambda: keras_tfopt.AddSign(LEARNING_RATE), 20, None),
    "PowerSign": (lambda: keras_tfopt.PowerSign(LEARNING_RATE), 20, None),
    "Nadam": (
        lambda: keras_tfopt.Nadam(LEARNING_RATE),
        28,
        lambda: keras.optimizers.Nadam(LEARNING_RATE),
    ),
    "AdaMax": (
        lambda: keras_tfopt.AdaMax(LEARNING_RATE),
        28,
        lambda: keras.optimizers.Adamax(LEARNING_RATE),
    ),
    "Ftrl": (
        lambda: keras_tfopt.Ftrl(LEARNING_RATE),
        28,
        lambda: keras.optimizers.Ftrl(LEARNING_RATE),
    ),
}
# The first of them on all kinds of variables; of the others, one large and many small ones will do.
EVERYWHERE = ("Adam", "Momentum", "LARS")


def gradients(shapes: Shapes) -> list[np.ndarray]:
    return [_normal(np.random.default_rng(n), shape) for n, shape in enumerate(shapes)]


def start(shapes: Shapes) -> list[np.ndarray]:
    return [0.05 * _normal(np.random.default_rng([1, n]), s) for n, s in enumerate(shapes)]


def _normal(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return normal numbers; of very many, some repeatedly."""
    drawn = random.standard_normal(min(math.prod(shape), 1 << 25), dtype="float32")
    return drawn.reshape(shape) if drawn.size == math.prod(shape) else np.resize(drawn, shape)


def of_keras(make: Callable, shapes: Shapes) -> Callable[[], list[Any]]:
    """A step of any Keras optimizer, the way `fit` of this backend runs it.

    This step and that of a peer return the variables.
    """
    variables = [keras.Variable(x, name=f"v{i}") for i, x in enumerate(start(shapes))]
    optimizer = make()
    optimizer.build(variables)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        given = [tf.constant(g) for g in gradients(shapes)]
        step = tf.function(lambda: optimizer.apply(given, variables), autograph=False)
        return lambda: (step(), optimizer.iterations.numpy()) and variables
    if BACKEND == "torch":
        import torch

        given = [keras.ops.convert_to_tensor(g) for g in gradients(shapes)]

        def run() -> list[Any]:
            with torch.no_grad():
                optimizer.apply(given, variables)
            wait()
            return variables

        return run
    import jax

    given = [jax.numpy.asarray(g) for g in gradients(shapes)]
    step = jax.jit(
        lambda x, state, g: optimizer.stateless_apply(state, g, x),
        donate_argnums=(0, 1),
        keep_unused=True,  # a model reads all variables, and gets back those that are given
    )
    state = [[v.value for v in variables], [v.value for v in optimizer.variables]]

    def run_jax() -> list[Any]:
        state[:] = step(*state, given)
        jax.block_until_ready(state)
        return state[0]

    return run_jax


def peer(rule: str, shapes: Shapes) -> tuple[str, Callable[[], list[Any]]]:
    """The fastest hand-made counterpart on this backend, and its name."""
    if (BACKEND, rule) in PEERS:
        return PEERS[BACKEND, rule](shapes)
    # The price of what the rule does beyond momentum, which reads and writes as little as any.
    return "keras_tfopt.Momentum", of_keras(RULES["Momentum"][0], shapes)


def torch_parameters(shapes: Shapes) -> list[Any]:
    """Return parameters of PyTorch that have gradients."""
    import torch

    parameters = []
    for x, g in zip(start(shapes), gradients(shapes), strict=True):
        parameters.append(torch.nn.Parameter(keras.ops.convert_to_tensor(x)))
        parameters[-1].grad = keras.ops.convert_to_tensor(g)
    return parameters


def _torch(name: str, **options: Any) -> Callable:
    def make(shapes: Shapes) -> tuple[str, Callable[[], list[Any]]]:
        import torch

        parameters = torch_parameters(shapes)
        optimizer = getattr(torch.optim, name)(parameters, fused=True, **options)
        return f"torch.optim.{name}(fused=True)", lambda: (optimizer.step(), wait()) and parameters

    return make


def apply_adam(x: list[Any], m: list[Any], v: list[Any], given: list[Any], t: Any) -> None:
    """Make a step of TensorFlow's fused Adam, the t-th; t is a float32 tensor."""
    import tensorflow as tf

    for one, first, second, g in zip(x, m, v, given, strict=True):
        tf.raw_ops.ResourceApplyAdam(
            var=one.handle,
            m=first.handle,
            v=second.handle,
            beta1_power=0.9**t,
            beta2_power=0.999**t,
            lr=LEARNING_RATE,
            beta1=0.9,
            beta2=0.999,
            epsilon=1e-7,
            grad=g,
        )


def _tensorflow_adam(shapes: Shapes) -> tuple[str, Callable[[], list[Any]]]:
    import tensorflow as tf

    x, m, v = _tensorflow_state(shapes, 3)
    given = [tf.constant(g) for g in gradients(shapes)]
    step = tf.Variable(0, dtype="int64")

    @tf.function(autograph=False)
    def run() -> None:
        apply_adam(x, m, v, given, tf.cast(step.assign_add(1), "float32"))

    return "tf.raw_ops.ResourceApplyAdam", lambda: (run(), step.numpy()) and x


def _tensorflow_momentum(shapes: Shapes) -> tuple[str, Callable[[], list[Any]]]:
    import tensorflow as tf

    x, a = _tensorflow_state(shapes, 2)
    given = [tf.constant(g) for g in gradients(shapes)]
    step = tf.Variable(0, dtype="int64")

    @tf.function(autograph=False)
    def run() -> None:
        step.assign_add(1)
        for one, slot, g in zip(x, a, given):
            tf.raw_ops.ResourceApplyMomentum(
                var=one.handle, accum=slot.handle, lr=LEARNING_RATE, grad=g, momentum=0.9
            )

    return "tf.raw_ops.ResourceApplyMomentum", lambda: (run(), step.numpy()) and x


def _tensorflow_state(shapes: Shapes, count: int) -> list[list[Any]]:
    import tensorflow as tf

    values = start(shapes)
    first = [tf.Variable(x) for x in values]
    return [first, *([tf.Variable(np.zeros_like(x)) for x in values] for _ in range(count - 1))]


def optax_step(rule: Any, shapes: Shapes) -> Callable[[], list[Any]]:
    """A step of an optimizer of optax, jitted, in place of its variables."""
    import jax
    import optax

    x = [jax.numpy.asarray(value) for value in start(shapes)]
    given = [jax.numpy.asarray(g) for g in gradients(shapes)]

    def one(x: Any, state: Any, g: Any) -> tuple:
        updates, state = rule.update(g, state, x)
        return optax.apply_updates(x, updates), state

    step = jax.jit(one, donate_argnums=(0, 1))
    state = [x, rule.init(x)]

    def run() -> list[Any]:
        state[:] = step(*state, given)
        jax.block_until_ready(state)
        return state[0]

    return run


def _optax(name: str, **options: Any) -> Callable:
    def make(shapes: Shapes) -> tuple[str, Callable[[], list[Any]]]:
        import optax

        rule = getattr(optax, name)(LEARNING_RATE, **options)
        return f"optax.{name}, jitted and donated", optax_step(rule, shapes)

    return make


PEERS: dict[tuple[str, str], Callable] = {
    ("torch", "Adam"): _torch("Adam", lr=LEARNING_RATE, eps=1e-7),
    ("torch", "Momentum"): _torch("SGD", lr=LEARNING_RATE, momentum=0.9),
    ("tensorflow", "Adam"): _tensorflow_adam,
    ("tensorflow", "Momentum"): _tensorflow_momentum,
    ("jax", "Adam"): _optax("adam", eps=1e-7),
    ("jax", "Momentum"): _optax("sgd", momentum=0.9),
}
