"""
Title: A physics-informed network: Adam, then L-BFGS
Author: keras_tfopt contributors
Date created: 2026/11/24
Last modified: 2026/11/24
Description: Solve Poisson's equation with a network, by Adam alone and by Adam and L-BFGS.
Accelerator: None
"""

"""
## Full batches, and curvature

A physics-informed network learns a function from the equation that the function solves. There is
no noise: all points are one batch, and the loss can fall by many orders of magnitude. That is where
L-BFGS is better than Adam, which goes on in steps of a fixed length.

The equation is Poisson's on the unit square, with a solution that we know:

$$
\\Delta u = f, \\qquad u = \\sin(2 \\pi x) \\sin(\\pi y), \\qquad f = -5 \\pi^2 u,
\\qquad u = 0 \\text{ on the border}
$$

Both sides begin with the same Adam. Then one goes on with Adam, and the other with L-BFGS of SciPy
by `keras_tfopt.solvers.minimize`, for the same time.
"""

import os
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import keras
import numpy as np
from keras import layers, ops
from matplotlib.figure import Figure
from report import STYLES, backend_name, logarithmic, options, save

import keras_tfopt

args = options(__file__, fast="a few seconds")
seconds = (10.0, 30.0) if not args.fast else (1.0, 3.0)  # Adam on both sides; what follows
steps_per_epoch = 20

"""
## The network

Derivatives of a network by its inputs are another backward pass, which each backend writes in its
own way. A network of dense layers can carry them forward: its layers take and return a value, its
two slopes and its Laplacian, by the chain rule. So the program runs on every backend.
"""


class Tanh(layers.Layer):
    """A dense layer with tanh on a value, two slopes and a Laplacian, stacked in the first axis."""

    def __init__(self, width, activate=True):
        super().__init__()
        self.width, self.activate = width, activate

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], self.width), name="kernel")
        self.bias = self.add_weight(shape=(self.width,), initializer="zeros", name="bias")

    def call(self, parts):
        value, dx, dy, laplacian = ops.unstack(ops.matmul(parts, self.kernel), 4)
        value = value + self.bias
        if not self.activate:
            return ops.stack([value, dx, dy, laplacian])
        z = ops.tanh(value)
        slope = 1 - z * z
        bend = laplacian - 2 * z * (dx * dx + dy * dy)
        return ops.stack([z, slope * dx, slope * dy, slope * bend])


class Solution(keras.Model):
    """The Laplacian of u = x (1 - x) y (1 - y) N(x, y), which is zero on the border."""

    def __init__(self):
        super().__init__()
        self.parts = [Tanh(32), Tanh(32), Tanh(32), Tanh(1, activate=False)]

    def call(self, points):
        return self.with_laplacian(points)[1]

    def with_laplacian(self, points):
        ones, zeros = ops.ones_like(points[:, :1]), ops.zeros_like(points[:, :1])
        unit_x, unit_y = ops.concatenate([ones, zeros], 1), ops.concatenate([zeros, ones], 1)
        parts = ops.stack([2 * points - 1, 2 * unit_x, 2 * unit_y, 0 * points])
        for layer in self.parts:
            parts = layer(parts)
        n, dx, dy, laplacian = ops.unstack(parts, 4)
        x, y = points[:, :1], points[:, 1:]
        over_x, over_y = x * (1 - x), y * (1 - y)
        edge = over_x * over_y
        bend = (
            edge * laplacian
            + 2 * ((1 - 2 * x) * over_y * dx + over_x * (1 - 2 * y) * dy)
            - 2 * (over_x + over_y) * n
        )
        return edge * n, bend


def exact(points):
    return np.sin(2 * np.pi * points[:, :1]) * np.sin(np.pi * points[:, 1:])


"""
## Data

Points of the square with the right side of the equation at each. The error is measured at other
points, against the solution.
"""

random = np.random.default_rng(args.seed)
points = random.uniform(size=(1024, 2)).astype("float32")
right = (-5 * np.pi**2 * exact(points)).astype("float32")
grid = np.stack(np.meshgrid(*[np.linspace(0, 1, 41)] * 2), -1).reshape(-1, 2).astype("float32")
known = exact(grid)


class Measure(keras.callbacks.Callback):
    """Measure the relative error of the solution now and then, and stop when the time is over."""

    def __init__(self, limit, every):
        super().__init__()
        self.limit, self.every = limit, every
        self.times, self.errors = [], []

    def on_train_begin(self, logs=None):
        self.begun, self.last = time.perf_counter(), -np.inf

    def on_epoch_end(self, epoch, logs=None):
        now = time.perf_counter() - self.begun
        if epoch == 0:  # compilation takes no time here, on either side
            self.begun, now = time.perf_counter(), 0.0
        if now > self.limit:
            self.model.stop_training = True
        if now - self.last > self.every or self.model.stop_training:
            self.measure(now)
            self.last = now
            self.begun += time.perf_counter() - self.begun - now  # nor does measuring

    def measure(self, now):
        found = ops.convert_to_numpy(self.model.with_laplacian(ops.convert_to_tensor(grid))[0])
        self.times.append(now)
        self.errors.append(float(np.linalg.norm(found - known) / np.linalg.norm(known)))


def adam(model, limit):
    """Steps of Adam with a falling rate, many in one call."""
    measure = Measure(limit, every=limit / 40)
    batch = ops.convert_to_tensor(points), ops.convert_to_tensor(right)

    def batches():
        while True:
            yield batch

    history = model.fit(
        batches(),
        steps_per_epoch=steps_per_epoch,
        epochs=10**6,
        callbacks=[measure],
        verbose=0,
        shuffle=False,
    )
    return measure, steps_per_epoch * len(history.epoch)


"""
## Training
"""

print(f"keras_tfopt {keras_tfopt.__version__}, {backend_name()}, {os.cpu_count()} CPU cores")
keras.utils.set_random_seed(args.seed)
model = Solution()
model(points[:1])
rate = keras.optimizers.schedules.ExponentialDecay(5e-3, 1000, 0.8)
together = 1 if keras.backend.backend() == "torch" else steps_per_epoch  # PyTorch has one at a time
model.compile(keras_tfopt.Adam(rate), loss="mse", steps_per_execution=together)
first, steps = adam(model, seconds[0])
print(f"Adam on both sides: {steps} steps, relative error {first.errors[-1]:.1e}")
weights = model.get_weights()

alone, steps = adam(model, seconds[1])
model.set_weights(weights)
measure = Measure(seconds[1], every=seconds[1] / 40)
history = keras_tfopt.solvers.minimize(
    model,
    points,
    right,
    loss="mse",
    callbacks=[measure],
    options={"maxiter": 10**6, "maxfun": 10**7, "maxcor": 50, "ftol": 0, "gtol": 0},
    verbose=0,
)

"""
## Results
"""

print(f"SciPy: {history.result.message}")
print(f"\n{'':16} {'seconds':>8} {'iterations':>10} {'lowest error':>15}")
for name, one, count in (
    ("Adam", alone, steps),
    ("Adam, L-BFGS", measure, len(history.epoch)),
):
    print(f"{name:16} {one.times[-1]:8.1f} {count:10} {min(one.errors):15.1e}")
print(
    f"Adam's error is {min(alone.errors) / min(measure.errors):.1f} times that of Adam and L-BFGS"
)

figure = Figure(figsize=(11, 5), layout="constrained")
figure.suptitle(f"Poisson's equation on the unit square. {backend_name()}")
over_time, field = figure.subplots(1, 2)
for (name, one), look in zip({"Adam": alone, "L-BFGS after Adam": measure}.items(), STYLES):
    times = [*first.times, *(first.times[-1] + np.asarray(one.times))]
    over_time.plot(times, [*first.errors, *one.errors], **{**look, "marker": ""}, label=name)
over_time.axvline(first.times[-1], color="black", linewidth=0.8, linestyle=":")
logarithmic(over_time.yaxis)
over_time.set_xlabel("seconds, without compilation")
over_time.set_ylabel("relative error of the solution (logarithmic)")
over_time.grid(alpha=0.3)
over_time.legend()
found = ops.convert_to_numpy(model.with_laplacian(ops.convert_to_tensor(grid))[0])
picture = field.imshow((found - known).reshape(41, 41), extent=(0, 1, 0, 1), origin="lower")
figure.colorbar(picture, ax=field)
field.set_title("error with L-BFGS")
save(figure, args.out)
