"""Runs for the pictures: every optimizer on one real task, and on two functions.

Runs on JAX, where a whole training is one compiled loop. The task, the functions, where they start
and the learning rates to choose from are the same for all.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from sklearn.datasets import load_digits

import keras_tfopt

RATES = [10.0 ** (k / 2) for k in range(-7, 4)]  # from 0.0003 to 31.6
EPOCHS, BATCH, HIDDEN, SEED = 20, 64, 32, 0
STEPS = 200  # on a function

# Arguments that have no default, and those whose default is made for other trainings.
ON_DIGITS: dict[str, dict[str, Any]] = {
    "adam_w": {"weight_decay": 1e-4},
    "momentum_w": {"weight_decay": 1e-4},
    "sgd_w": {"weight_decay": 1e-4},
    "decoupled_weight_decay": {"weight_decay": 1e-4},
    "variable_clipping": {"vars_to_clip_dims": {"kernel$": [0]}, "max_norm": 3.0},
    "moving_average": {"average_decay": 0.95},
    "stochastic_weight_averaging": {"start_averaging": 200},
    "distributed_shampoo": {
        "precondition_frequency": 10,
        "grafting": "adam",
        "target_parameter_dimensionality": 2,
    },
    "simplified_ademamix": {"beta_1": 0.9},
    "drop_stale": {"staleness": 0},
    "sync_replicas": {"replicas_to_aggregate": 1},
}
ON_FUNCTIONS: dict[str, dict[str, Any]] = {
    "adam_w": {"weight_decay": 1e-3},
    "momentum_w": {"weight_decay": 1e-3},
    "sgd_w": {"weight_decay": 1e-3},
    "decoupled_weight_decay": {"weight_decay": 1e-3},
    "variable_clipping": {"vars_to_clip_dims": {"point$": [0]}, "max_norm": 2.0},
    "moving_average": {"average_decay": 0.95},
    "stochastic_weight_averaging": {"start_averaging": 100},
    "simplified_ademamix": {"beta_1": 0.9},
    "drop_stale": {"staleness": 0},
    "sync_replicas": {"replicas_to_aggregate": 1},
}
INSIDE = "momentum"  # of wrappers


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of two numbers, where to start on it, and what part of the plane to draw."""

    name: str
    value: Callable[[Any, Any], Any]
    start: tuple[float, float]
    minimum: tuple[float, float]
    part: tuple[float, float, float, float]  # left, right, bottom, top


FUNCTIONS = (
    Function(
        "Rosenbrock",
        lambda x, y: (1 - x) ** 2 + 100 * (y - x**2) ** 2,
        (-1.2, 1.0),
        (1.0, 1.0),
        (-2.0, 2.0, -1.0, 3.0),
    ),
    Function(
        "Beale",
        lambda x, y: (
            (1.5 - x + x * y) ** 2 + (2.25 - x + x * y**2) ** 2 + (2.625 - x + x * y**3) ** 2
        ),
        (1.0, 1.5),
        (3.0, 0.5),
        (-0.5, 4.0, -2.0, 2.5),
    ),
)


@dataclasses.dataclass(frozen=True)
class Path:
    """The points of a run on a function, with its start, and of the averages if there are any."""

    function: Function
    rate: float
    points: np.ndarray
    averages: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Curve:
    """A training on digits: of each epoch the mean loss, and the accuracy in the end."""

    rate: float
    losses: np.ndarray
    validation_loss: float
    accuracy: float
    of_averages: bool


def make(name: str, arguments: dict[str, Any]) -> Any:
    """An optimizer by its name; a wrapper goes around one of the same kind for all."""
    identifier = f"{name}({INSIDE})" if is_wrapper(name) else name
    return keras_tfopt.get(identifier, **arguments)


def is_wrapper(name: str) -> bool:
    """Whether there is another optimizer inside that has to be given."""
    return "inner_optimizer" in keras_tfopt.info(name).defaults


def compared_with(name: str) -> str:
    """The other line of its picture: what is in a wrapper, or else plain gradient descent."""
    return INSIDE if is_wrapper(name) else "gradient_descent"


def _state(optimizer: Any, rate: float) -> list[Any]:
    """Its variables at the start, with this learning rate."""
    innermost = optimizer
    while hasattr(innermost, "inner_optimizer"):
        innermost = innermost.inner_optimizer
    innermost.learning_rate = rate
    return [variable.value for variable in optimizer.variables]


def _step(optimizer: Any, loss: Callable[[Any], Any], weights: Any, state: Any) -> Any:
    """A step as the training step of Keras takes it: the loss scaled, then the gradients."""

    def scaled(weights: Any) -> tuple[Any, Any]:
        mapping = list(zip(optimizer.variables, state, strict=True))
        value = loss(weights)
        with keras.StatelessScope(state_mapping=mapping):
            return optimizer.scale_loss(value), value

    gradients, value = jax.grad(scaled, has_aux=True)(weights)
    return *optimizer.stateless_apply(state, gradients, weights), value


def _averages(optimizer: Any) -> bool:
    """Whether `keras_tfopt.averaged` has something to put in."""
    keeps = getattr(optimizer, "keeps_averages", None)
    return keeps is not None and keeps()


def _put(variables: list[Any], values: Any) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


# ---- Functions -----------------------------------------------------------------------------------


class _Point(keras.Model):
    """A model whose one weight is a point of the plane."""

    def __init__(self, start: tuple[float, float]):
        super().__init__()
        self.point = self.add_weight(shape=(2,), name="point")
        self.point.assign(np.array(start, "float32"))


def path(name: str, function: Function) -> Path:
    """The run with the learning rate that ends lowest."""
    model = _Point(function.start)
    optimizer = make(name, ON_FUNCTIONS.get(name, {}))
    optimizer.build(model.trainable_variables)
    start = [model.point.value]

    def step(carry: Any, _: Any) -> Any:
        weights, state, _ = _step(optimizer, lambda w: function.value(w[0][0], w[0][1]), *carry)
        return (weights, state), (weights, state)

    run = jax.jit(lambda state: jax.lax.scan(step, (start, state), None, length=STEPS)[1])
    best: tuple[float, float, Any] | None = None
    for rate in RATES:
        (points,), states = run(_state(optimizer, rate))
        with np.errstate(invalid="ignore", over="ignore"):
            end = float(function.value(*np.array(points[-1], "float64")))
        # Not a lucky end of a run that had left the picture.
        left, right, bottom, top = function.part
        x, y = points[:, 0], points[:, 1]
        inside = bool(jnp.all((left < x) & (x < right) & (bottom < y) & (y < top)))
        if inside and np.isfinite(end) and (best is None or end < best[1]):
            best = rate, end, (points, states)
    if best is None:
        raise RuntimeError(f"{name} leaves the picture of {function.name} at every learning rate.")
    rate, _, (points, states) = best
    averages = None
    if _averages(optimizer):
        averages = np.array(
            [
                _averaged_point(model, optimizer, points[k], [state[k] for state in states])
                for k in range(STEPS)
            ]
        )
    return Path(function, rate, np.array([function.start, *np.array(points)]), averages)


def _averaged_point(model: Any, optimizer: Any, point: Any, state: Any) -> np.ndarray:
    _put([model.point], [point])
    _put(optimizer.variables, state)
    with keras_tfopt.averaged(model, optimizer):
        return np.array(model.point.value)


# ---- Digits --------------------------------------------------------------------------------------


@functools.cache
def digits() -> tuple[Any, Any, Any, Any]:
    """1,280 images to train on and 517 to choose the learning rate by, with their labels."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(x))
    x, y = (x[order] / 16).astype("float32"), y[order].astype("int32")
    return x[:1280], y[:1280], x[1280:], y[1280:]


def network() -> keras.Model:
    """A network with one hidden layer, with the same initial weights each time."""
    random.seed(SEED)  # of the initializers; keras.utils.set_random_seed imports TensorFlow, too
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(HIDDEN, activation="tanh"),
            keras.layers.Dense(10),
        ]
    )


def _loss(model: keras.Model, weights: Any, x: Any, y: Any) -> Any:
    logits, _ = model.stateless_call(weights, [], x)
    return jnp.mean(keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))


@functools.cache
def curve(name: str) -> Curve:
    """The training with the learning rate that has the lowest loss on the other images."""
    x, y, x_other, y_other = digits()
    model = network()
    optimizer = make(name, ON_DIGITS.get(name, {}))
    optimizer.build(model.trainable_variables)
    start = [variable.value for variable in model.trainable_variables]
    orders = np.random.default_rng(SEED)
    order = np.concatenate([orders.permutation(len(x)) for _ in range(EPOCHS)])
    batches = order.reshape(-1, BATCH)

    def step(carry: Any, rows: Any) -> Any:
        weights, state, value = _step(
            optimizer, lambda w: _loss(model, w, jnp.array(x)[rows], jnp.array(y)[rows]), *carry
        )
        return (weights, state), value

    run = jax.jit(lambda state: jax.lax.scan(step, (start, state), batches))
    best: Curve | None = None
    for rate in RATES:
        (weights, state), losses = run(_state(optimizer, rate))
        if not np.isfinite(losses).all():
            continue
        _put(model.trainable_variables, weights)
        _put(optimizer.variables, state)
        if averages := _averages(optimizer):
            with keras_tfopt.averaged(model, optimizer):
                weights = [jnp.array(variable.value) for variable in model.trainable_variables]
        logits, _ = model.stateless_call(weights, [], x_other)
        found = Curve(
            rate,
            np.array(losses).reshape(EPOCHS, -1).mean(axis=1),
            float(_loss(model, weights, x_other, y_other)),
            float(np.mean(np.argmax(logits, axis=1) == y_other)),
            averages,
        )
        if best is None or found.validation_loss < best.validation_loss:
            best = found
    if best is None:
        raise RuntimeError(f"{name} diverges on digits at every learning rate of {RATES}.")
    return best


def call(name: str, arguments: dict[str, Any], rate: float) -> str:
    """How an optimizer of a picture was made, as code."""
    cls = keras_tfopt.info(name).optimizer_class.__name__
    given = [f"{key}={value!r}" for key, value in arguments.items()]
    inner = keras_tfopt.info(INSIDE).optimizer_class.__name__
    if is_wrapper(name):
        given = [f"keras_tfopt.{inner}({rate:.2g})", *given]
    else:
        given = [f"learning_rate={rate:.2g}", *given]
    return f"keras_tfopt.{cls}({', '.join(given)})"


def unset() -> dict[str, set[str]]:
    """Optimizers with arguments that must be given and are not, here."""
    return {
        name: missing
        for name in keras_tfopt.list_optimizers(exclude="keras.*")
        if (missing := _required(name) - set(ON_DIGITS.get(name, {})))
    }


def _required(name: str) -> set[str]:
    defaults = keras_tfopt.info(name).defaults.items()
    return {k for k, v in defaults if v is inspect.Parameter.empty and k != "inner_optimizer"}
