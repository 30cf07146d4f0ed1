"""Time per evaluation of a loss of 1M parameters: `python -m integration.benchmarks.solvers`.

`keras_tfopt.solvers.minimize` against `scipy.optimize.minimize` with a loss and gradient that the
backend compiles and no Keras in between: the same network, data and method. `keras_tfopt.LBFGS` in
`LineSearch` against `optax.lbfgs` on JAX and `torch.optim.LBFGS` on PyTorch. Runs take turns. Time
is divided by evaluations of loss and gradient. Those of `LineSearch` are counted on PyTorch; on JAX
they are two for each step, the fewest that there can be, so its ratio is an upper bound.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
from keras import ops

import keras_tfopt
from integration.benchmarks.results import markdown, shown, write

BACKEND = keras.backend.backend()
WIDTH, INPUTS, SAMPLES, ITERATIONS = 950, 64, 512, 10


def network(width: int = WIDTH) -> keras.Model:
    """Return a network; by default it has a million parameters."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(width, "tanh"), keras.layers.Dense(width, "tanh")]
    model = keras.Sequential([keras.Input((INPUTS,)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    return model


def data(samples: int = SAMPLES) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(size=(samples, INPUTS)).astype("float32")
    return x, np.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]


class Ours:
    """Runs of `minimize`."""

    def __init__(self, width: int, samples: int):
        self.model, (self.x, self.y) = network(width), data(samples)
        self.start = self.model.get_weights()

    def run(self, iterations: int) -> int:
        """Return the number of evaluations."""
        self.model.set_weights(self.start)
        history = keras_tfopt.solvers.minimize(
            self.model, self.x, self.y, options={"maxiter": iterations}, verbose=0
        )
        return history.result.nfev


class Alone:
    """Runs of SciPy on a function of the backend."""

    def __init__(self, width: int, samples: int):
        model, (x, y) = network(width), data(samples)
        self.start = np.concatenate([w.ravel() for w in model.get_weights()]).astype("float64")
        self.shapes = [w.shape for w in model.get_weights()]
        self.make = getattr(self, BACKEND)
        self.x, self.y = (ops.convert_to_tensor(a) for a in (x, y))

    def run(self, iterations: int) -> int:
        """Return the number of evaluations. The function is compiled anew, as in `minimize`."""
        import scipy.optimize

        function, options = self.make(), {"maxiter": iterations}
        result = scipy.optimize.minimize(
            function, self.start, jac=True, method="L-BFGS-B", options=options
        )
        return result.nfev

    def parts(self, vector, split, reshape):
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        return [reshape(p, s) for p, s in zip(split(vector, sizes), self.shapes)]

    def jax(self) -> Callable:
        import jax
        import jax.numpy as jnp

        @jax.jit
        @jax.value_and_grad
        def evaluate(vector, x, y):
            def split(vector, sizes):
                return jnp.split(vector, np.cumsum(sizes)[:-1])

            w1, b1, w2, b2, w3, b3 = self.parts(vector, split, jnp.reshape)
            hidden = jnp.tanh(jnp.tanh(x @ w1 + b1) @ w2 + b2)
            return jnp.mean((hidden @ w3 + b3 - y) ** 2)

        def function(vector):
            value, gradient = evaluate(vector.astype("float32"), self.x, self.y)
            return float(value), np.asarray(gradient, "float64")

        return function

    def tensorflow(self) -> Callable:
        import tensorflow as tf

        @tf.function
        def evaluate(vector, x, y):
            with tf.GradientTape() as tape:
                tape.watch(vector)
                w1, b1, w2, b2, w3, b3 = self.parts(vector, tf.split, tf.reshape)
                hidden = tf.tanh(tf.tanh(x @ w1 + b1) @ w2 + b2)
                value = tf.reduce_mean((hidden @ w3 + b3 - y) ** 2)
            return value, tape.gradient(value, vector)

        def function(vector):
            value, gradient = evaluate(tf.constant(vector, "float32"), self.x, self.y)
            return float(value), gradient.numpy().astype("float64")

        return function

    def torch(self) -> Callable:
        import torch

        def function(vector):
            given = torch.tensor(vector, dtype=torch.float32, requires_grad=True)
            w1, b1, w2, b2, w3, b3 = self.parts(given, torch.split, torch.reshape)
            hidden = torch.tanh(torch.tanh(self.x @ w1 + b1) @ w2 + b2)
            value = torch.mean((hidden @ w3 + b3 - self.y) ** 2)
            (gradient,) = torch.autograd.grad(value, given)
            return value.item(), gradient.numpy().astype("float64")

        return function


class Counting(keras_tfopt.solvers.LineSearch):
    """Count evaluations of the loss, where they are not compiled."""

    evaluations = 0

    def _loss(self, data, measure):
        self.evaluations += 1
        return super()._loss(data, measure)


class Trained:
    """Steps of `LBFGS` in `LineSearch`."""

    def __init__(self, width: int, samples: int):
        self.trainer = Counting(network(width))
        self.trainer.compile(keras_tfopt.LBFGS(memory=10), loss="mse")
        self.x, self.y = data(samples)

    def run(self, iterations: int) -> int:
        """Return the number of evaluations, or the fewest there can be: two for each step."""
        before = self.trainer.evaluations
        for _ in range(iterations):
            self.trainer.train_on_batch(self.x, self.y)
        return max(self.trainer.evaluations - before, 2 * iterations)


class Optax:
    """Steps of `optax.lbfgs`, which counts evaluations of its line search."""

    def __init__(self, width: int, samples: int):
        import jax
        import optax

        model, (self.x, self.y) = network(width), data(samples)
        self.weights = [np.asarray(w) for w in model.get_weights()]
        solver = optax.lbfgs(memory_size=10)

        def loss(weights, x, y):
            w1, b1, w2, b2, w3, b3 = weights
            hidden = jax.numpy.tanh(jax.numpy.tanh(x @ w1 + b1) @ w2 + b2)
            return jax.numpy.mean((hidden @ w3 + b3 - y) ** 2)

        @jax.jit
        def step(weights, state, x, y):
            value, slope = jax.value_and_grad(loss)(weights, x, y)
            move, state = solver.update(
                slope,
                state,
                weights,
                value=value,
                grad=slope,
                value_fn=lambda w: loss(w, x, y),
            )
            return optax.apply_updates(weights, move), state

        self.step, self.state = step, solver.init(self.weights)

    def run(self, iterations: int) -> int:
        """Return the number of evaluations: one for each step, and those of the line search."""
        import jax

        count = 0
        for _ in range(iterations):
            self.weights, self.state = self.step(self.weights, self.state, self.x, self.y)
            count += 1 + int(self.state[-1].info.num_linesearch_steps)
        jax.block_until_ready(self.weights)
        return count


class Torch:
    """Steps of `torch.optim.LBFGS`, which counts evaluations."""

    def __init__(self, width: int, samples: int):
        import torch

        model, (x, y) = network(width), data(samples)
        self.x, self.y = torch.tensor(x), torch.tensor(y)
        self.weights = [torch.tensor(w, requires_grad=True) for w in model.get_weights()]
        self.solver = torch.optim.LBFGS(
            self.weights, max_iter=1, history_size=10, line_search_fn="strong_wolfe"
        )

    def loss(self):
        import torch

        w1, b1, w2, b2, w3, b3 = self.weights
        self.solver.zero_grad()
        hidden = torch.tanh(torch.tanh(self.x @ w1 + b1) @ w2 + b2)
        value = torch.mean((hidden @ w3 + b3 - self.y) ** 2)
        value.backward()
        return value

    def run(self, iterations: int) -> int:
        """Return the number of evaluations."""
        for _ in range(iterations):
            self.solver.step(self.loss)
        state = self.solver.state[self.weights[0]]
        count, state["func_evals"] = state["func_evals"], 0
        return count


def measure(sides: dict[str, type], rounds: int, width: int, samples: int, iterations: int) -> dict:
    """Return milliseconds per evaluation of two sides, and their ratio."""
    runs = {name: side(width, samples) for name, side in sides.items()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, one in runs.items():
            start = time.perf_counter()
            evaluations = one.run(iterations)
            if number:  # the first compiles what is kept
                times[name].append(1000 * (time.perf_counter() - start) / evaluations)
    ours, peer = times.values()
    ratios = sorted(a / b for a, b in zip(ours, peer))
    return {
        "backend": BACKEND,
        "milliseconds": {n: round(statistics.median(t), 2) for n, t in times.items()},
        "ratio": {
            "median": round(statistics.median(ratios), 3),
            "min": round(ratios[0], 3),
            "max": round(ratios[-1], 3),
        },
    }


def table(found: list[dict]) -> str:
    rows = []
    for r in found:
        (ours, a), (peer, b) = r["milliseconds"].items()
        rows.append([r["backend"], ours, f"{a:.2f}", peer, f"{b:.2f}", shown(r["ratio"])])
    return markdown(["backend", "ours", "ms", "peer", "ms", "ours / peer (min, max)"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    pairs = [{"minimize": Ours, "scipy": Alone}]
    if BACKEND == "jax":
        pairs.append({"LBFGS, LineSearch": Trained, "optax.lbfgs": Optax})
    if BACKEND == "torch":
        pairs.append({"LBFGS, LineSearch": Trained, "torch.optim.LBFGS": Torch})
    found = [measure(sides, options.rounds, WIDTH, SAMPLES, ITERATIONS) for sides in pairs]
    measured = {" / ".join(r["milliseconds"]): r["ratio"]["median"] for r in found}
    write(options.out / f"solvers_{BACKEND}.json", table(found), found, measured)


if __name__ == "__main__":
    main()
