"""The optimizers once more, in NumPy, written from the papers and from TF1's formulas.

This is the only second writing of a rule, and it shares no code with the package. A reference is
a small class: hyperparameters (with the defaults the package must have too), `slots` and `update`,
and `sparse`, which says what a row gradient means. It computes in the dtype of the variable it is
given, and mutates nothing. Most look at one variable at a time; one that needs all of them
overrides `start` and `advance`.
"""

import numpy as np


class Reference:
    """The base of references: the learning rate, and what a row gradient does."""

    sparse = "dense"  # "dense": as if dense; "rows": touched rows only;
    #                   "move_rows": slots everywhere, the variable in touched rows only

    moves = None  # the slot that steps start from, where it is not the variable

    undecayed = {}  # variables before weight decay, where a test has that

    # The rule divides by <step, change of gradient>. Of random gradients that is nearly zero, and
    # float32 has none of its digits: there, tests take gradients of a quadratic function.
    divides_by_curvature = False

    learning_rate = None
    global_step = None  # what a counter from outside holds, before it is counted up

    def lr(self, step):
        """The learning rate of step `step` (1 at the first); a function gets the count from 0."""
        return self.learning_rate(step - 1) if callable(self.learning_rate) else self.learning_rate

    def count(self, step):
        """The number of step `step` as the rule counts."""
        return step if self.global_step is None else self.global_step + 1

    def start(self, x):
        """Initial slots of all variables: {path: {name: array}}; path None: of all together."""
        return {path: self.slots(value) for path, value in x.items()}

    def advance(self, gradients, x, s, step):
        """Make a step of all variables. A path that `gradients` lacks has gradient None."""
        new = {path: self.step(gradients.get(path), x[path], s[path], step, path) for path in x}
        return {path: n[0] for path, n in new.items()}, {path: n[1] for path, n in new.items()}

    def slots(self, x):
        """Initial slots of one variable by name."""
        raise NotImplementedError

    def update(self, g, x, s, step, path):
        """Make a step on a dense gradient; return the new x and all new slots."""
        raise NotImplementedError

    def update_rows(self, g, x, s, step, path):
        """Make a step on the touched rows, for rules that differ there from dense steps."""
        return self.update(g, x, s, step, path)

    def update_moving(self, g, x, s, step, path, rows):
        """Make a step of all slots, for rules whose other rows differ there from dense steps."""
        return self.update(g, x, s, step, path)

    def step(self, gradient, x, s, step, path=""):
        """Make a step on an array, on a pair (values, indices), or on None."""
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
    """The gradient as an array like x; a pair (values, indices) sums the values of a row."""
    if not isinstance(gradient, tuple):
        return np.asarray(gradient, x.dtype)
    g = np.zeros_like(x)
    for value, index in zip(*gradient, strict=True):
        g[index] += np.asarray(value, x.dtype)
    return g


def _put(array, rows, values):
    if not array.ndim:  # one number for all rows
        return values
    array = array.copy()
    array[rows] = values
    return array
