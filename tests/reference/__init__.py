"""References: the formulas of all optimizers in NumPy, written from papers and from TensorFlow 1.

References share no code with the package. A reference is a small class. Its constructor has the
hyperparameters, with the same defaults as the package. `slots` and `update` are the formula, and
`sparse` says how a row gradient is handled. A reference computes in the dtype of the variable, and
changes no argument. Most formulas are about one variable; a reference that needs all variables
overrides `start` and `advance`.
"""

import numpy as np


class Reference:
    """The base class: it reads learning rates, and handles row gradients."""

    # What a row gradient changes. "dense": everything, as a dense gradient with rows of zeros.
    # "rows": touched rows only. "move_rows": all rows of slots, and touched rows of the variable.
    sparse = "dense"

    moves = None  # the name of the slot to which steps are added, if it is not the variable

    undecayed = {}  # variables before weight decay, in tests with weight decay

    # The rule divides by <step, change of gradient>. With random gradients that is nearly zero, and
    # inexact in float32. So in float32, tests take gradients of a quadratic function.
    divides_by_curvature = False

    learning_rate = None
    global_step = None  # the value of a counter of the program, before the step

    def lr(self, step):
        """Return the learning rate of a step. The first step is 1; functions count from 0."""
        return self.learning_rate(step - 1) if callable(self.learning_rate) else self.learning_rate

    def count(self, step):
        """Return the number of the step that the formula uses."""
        return step if self.global_step is None else self.global_step + 1

    def start(self, x):
        """Return the first slots as {path: {name: array}}; the path None has shared slots."""
        return {path: self.slots(value) for path, value in x.items()}

    def advance(self, gradients, x, s, step):
        """Make a step of all variables. A path that `gradients` lacks has gradient None."""
        new = {path: self.step(gradients.get(path), x[path], s[path], step, path) for path in x}
        return {path: n[0] for path, n in new.items()}, {path: n[1] for path, n in new.items()}

    def slots(self, x):
        """Return the first slots of a variable as {name: array}."""
        raise NotImplementedError

    def update(self, g, x, s, step, path):
        """Make a step with a dense gradient; return the new variable and all new slots."""
        raise NotImplementedError

    def update_rows(self, g, x, s, step, path):
        """Make a step of the touched rows. Override it if this differs from `update`."""
        return self.update(g, x, s, step, path)

    def update_moving(self, g, x, s, step, path, rows):
        """Make a step of all rows of slots. Override it if this differs from `update`."""
        return self.update(g, x, s, step, path)

    def step(self, gradient, x, s, step, path=""):
        """Make a step with a gradient: an array, a pair (values, indices), or None."""
        if gradient is None:
            return x, s
        g = dense(gradient, x)
        if not isinstance(gradient, tuple):
            return self.update(g, x, s, step, path)
        rows = sorted({int(index) for index in gradient[1]})

        if self.sparse == "dense":
            return self.update(g, x, s, step, path)
        if self.sparse == "move_rows":
            moved, s = self.update_moving(g, x, s, step, path, rows)
            return _put(x, rows, moved[rows]), s

        part = {name: value[rows] if value.ndim else value for name, value in s.items()}
        new_x, new_s = self.update_rows(g[rows], x[rows], part, step, path)
        return _put(x, rows, new_x), {name: _put(s[name], rows, new_s[name]) for name in s}


def dense(gradient, x):
    """Return the gradient as an array like `x`. Values of a repeated row are added."""
    if not isinstance(gradient, tuple):
        return np.asarray(gradient, x.dtype)
    g = np.zeros_like(x)
    for value, index in zip(*gradient, strict=True):
        g[index] += np.asarray(value, x.dtype)
    return g


def _put(array, rows, values):
    if not array.ndim:  # it is one number for all rows
        return values
    array = array.copy()
    array[rows] = values
    return array
