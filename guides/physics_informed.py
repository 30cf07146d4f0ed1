"""
Title: A physics-informed network: Adam, then L-BFGS
Author: keras_tfopt contributors
Date created: 2026/11/24
Last modified: 2026/11/25
Description: Solve Poisson's equation with a network, by Adam alone and by Adam and L-BFGS.
Accelerator: None
"""

"""
## Full batches, and curvature

A physics-informed network learns a function from the equation that the function solves. There is
no noise: all points are one batch, and the loss can fall by many orders of magnitude. Directions of
weak curvature decide how far it falls. L-BFGS learns them, and Adam creeps along them.

The equation is Poisson's on an interval, with a solution that we know:

$$
u'' = f, \\qquad u = \\sin(\\pi x) + \\tfrac{1}{4} \\sin(4 \\pi x), \\qquad u(0) = u(1) = 0
$$

One side is Adam alone. The other begins with Adam, and goes on with L-BFGS of SciPy by
`keras_tfopt.solvers.minimize`. Both have the same time, without compilation.

Adam gets what suits it:

- Three learning rates, each with a cosine decay to zero over all of its time. The best counts.
- float32. In float64 it makes fewer steps, and ended no lower.
- All points in each step. Batches of 64 of the 256 points ended higher, also with more steps.

L-BFGS gets float64: in float32 its line searches end in rounding after a few seconds.

The advantage is not always as large. On the unit square, with $u = \\sin(2 \\pi x) \\sin(\\pi y)$,
2,048 points and wider layers, Adam took batches of 256 points. In 20 seconds it came to three times
the error of L-BFGS. With $\\sin(4 \\pi x) \\sin(2 \\pi y)$, L-BFGS began too far from the solution
and stayed there. So begin with Adam until the error falls.
"""

import os
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # SciPy's vectors are too short for threads
os.environ.setdefault("JAX_ENABLE_X64", "1")  # else JAX rounds float64 to float32

import keras
import numpy as np
from keras import layers, ops
from matplotlib.figure import Figure
from report import STYLES, backend_name, logarithmic, options, save

import keras_tfopt

args = options(__file__, fast="a few seconds")
seconds = 20.0 if not args.fast else 2.0  # for each training
share = 0.2  # of the time, for Adam before L-BFGS
rates = (1e-3, 3e-3, 1e-2) if not args.fast else (3e-3,)
steps_per_epoch, together = 100, 20
if keras.backend.backend() == "torch":  # which makes one step in a call
    together = 1

"""
## The network

Derivatives of a network by its inputs are another backward pass, which each backend writes in its
own way. A network of dense layers can carry them forward: its layers take and return a value, its
slope and its curvature, by the chain rule. So the program runs on every backend.

The hyperbolic tangent is written with `sigmoid`: on JAX and PyTorch, `tanh` of Keras rounds float64
to float32.
"""


class Tanh(layers.Layer):
    """A dense layer with tanh on a value, its slope and its curvature, stacked in one axis."""

    def __init__(self, width, activate=True, dtype=None):
        super().__init__(dtype=dtype)
        self.width, self.activate = width, activate

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], self.width), name="kernel")
        self.bias = self.add_weight(shape=(self.width,), initializer="zeros", name="bias")

    def call(self, parts):
        value, slope, curvature = ops.unstack(ops.matmul(parts, self.kernel), 3)
        value = value + self.bias
        if not self.activate:
            return ops.stack([value, slope, curvature])
        z = 2 * ops.sigmoid(2 * value) - 1
        up = 1 - z * z
        return ops.stack([z, up * slope, up * (curvature - 2 * z * slope * slope)])


class Solution(keras.Model):
    """The curvature of u = x (1 - x) N(x), which is zero at both ends."""

    def __init__(self, dtype):
        super().__init__(dtype=dtype)
        self.parts = [Tanh(width, dtype=dtype) for width in (20, 20)]
        self.parts.append(Tanh(1, activate=False, dtype=dtype))

    def call(self, x):
        return self.with_curvature(x)[1]

    def with_curvature(self, x):
        parts = ops.stack([2 * x - 1, 2 * ops.ones_like(x), ops.zeros_like(x)])
        for layer in self.parts:
            parts = layer(parts)
        n, slope, curvature = ops.unstack(parts, 3)
        edge = x * (1 - x)
        return edge * n, edge * curvature + 2 * (1 - 2 * x) * slope - 2 * n


def exact(x):
    return np.sin(np.pi * x) + np.sin(4 * np.pi * x) / 4


"""
## Data

Points of the interval with the right side of the equation at each. The error is measured at other
points, against the solution.
"""

points = (np.arange(256) + 0.5)[:, None] / 256
right = -(np.pi**2) * (np.sin(np.pi * points) + 4 * np.sin(4 * np.pi * points))
grid = np.linspace(0, 1, 401)[:, None]
known = exact(grid)


def squares(y, y_pred):
    return ops.sum((y - y_pred) ** 2, axis=-1)


def difference(model):
    """Return by how much the model is off the solution, on the grid."""
    found, _ = model.with_curvature(ops.convert_to_tensor(grid, model.compute_dtype))
    return ops.convert_to_numpy(found) - known


class Measure(keras.callbacks.Callback):
    """Measure the relative error of the solution now and then, and stop when the time is over.

    With a `rate`, it is the learning rate, which falls to zero in this time as a cosine.
    """

    def __init__(self, limit, rate=None):
        super().__init__()
        self.limit, self.rate = limit, rate
        self.times, self.errors = [], []

    def on_train_begin(self, logs=None):
        self.begun, self.last = time.perf_counter(), -np.inf

    def on_epoch_end(self, epoch, logs=None):
        now = time.perf_counter() - self.begun
        if epoch == 0:  # compilation takes no time here, on either side
            self.begun, now = time.perf_counter(), 0.0
        if self.rate is not None:
            part = min(now / self.limit, 1.0)
            self.model.optimizer.learning_rate = self.rate * (1 + np.cos(np.pi * part)) / 2
        if now > self.limit:
            self.model.stop_training = True
        if now - self.last > self.limit / 40 or self.model.stop_training:
            self.times.append(now)
            self.errors.append(np.linalg.norm(difference(self.model)) / np.linalg.norm(known))
            self.last = now
            self.begun += time.perf_counter() - self.begun - now  # nor does measuring


def adam(rate, limit):
    """Train a new model by Adam for some seconds, many steps in one call."""
    keras.utils.set_random_seed(args.seed)
    model, measure = Solution("float32"), Measure(limit, rate)
    batch = [ops.convert_to_tensor(array, "float32") for array in (points, right)]

    def batches():
        while True:
            yield tuple(batch)

    model.compile(keras_tfopt.Adam(rate), loss=squares, steps_per_execution=together)
    history = model.fit(
        batches(),
        steps_per_epoch=steps_per_epoch,
        epochs=10**6,
        callbacks=[measure],
        verbose=0,
        shuffle=False,
    )
    return model, measure, steps_per_epoch * len(history.epoch)


"""
## Training
"""

print(f"keras_tfopt {keras_tfopt.__version__}, {backend_name()}, {os.cpu_count()} CPU cores")
print(f"\n{'':20} {'seconds':>8} {'iterations':>10} {'error':>10}")


def row(name, measure, count):
    print(f"{name:20} {measure.times[-1]:8.1f} {count:10} {measure.errors[-1]:10.1e}", flush=True)


tried = []
for rate in rates:
    _, measure, steps = adam(rate, seconds)
    row(f"Adam, rate {rate:g}", measure, steps)
    tried.append(measure)
alone = min(tried, key=lambda measure: measure.errors[-1])

begun, first, steps = adam(1e-2, share * seconds)
row("Adam before L-BFGS", first, steps)
model = Solution("float64")
model(points[:1])
model.set_weights(begun.get_weights())
second = Measure((1 - share) * seconds)
history = keras_tfopt.solvers.minimize(
    model,
    points,
    right,
    loss=squares,
    callbacks=[second],
    options={"maxiter": 10**6, "maxfun": 10**7, "maxcor": 100, "ftol": 0, "gtol": 0},
    verbose=0,
)
row("L-BFGS after Adam", second, len(history.epoch))

"""
## Results
"""

print(f"\nSciPy: {history.result.message}")
factor = alone.errors[-1] / second.errors[-1]
print(f"The best error of Adam alone is {factor:.1f} times that of Adam and L-BFGS")

figure = Figure(figsize=(11, 5), layout="constrained")
figure.suptitle(f"Poisson's equation on an interval. {backend_name()}")
over_time, over_x = figure.subplots(1, 2)
for measure, rate in zip(tried, rates):
    look = {**STYLES[0], "marker": "", "alpha": 1.0 if measure is alone else 0.3}
    name = f"Adam alone, best rate {rate:g}" if measure is alone else None
    over_time.plot(measure.times, measure.errors, **look, label=name)
look = {**STYLES[1], "marker": ""}
times = [*first.times, *(first.times[-1] + np.asarray(second.times))]
over_time.plot(times, [*first.errors, *second.errors], **look, label="Adam, then L-BFGS")
over_time.axvline(first.times[-1], color="black", linewidth=0.8, linestyle=":")
logarithmic(over_time.yaxis)
over_time.set_xlabel("seconds, without compilation")
over_time.set_ylabel("relative error of the solution (logarithmic)")
over_time.grid(alpha=0.3)
over_time.legend()
over_x.plot(grid, difference(model), **look)
over_x.set(xlabel="x", title="error with L-BFGS")
over_x.grid(alpha=0.3)
save(figure, args.out)
