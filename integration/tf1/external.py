"""Minimization by SciPy from TensorFlow 1: quadratics, valleys, bounds, constraints, callbacks.

    python integration/tf1/external.py OUT [MODULE]

It runs on TensorFlow 1.15.5 with `tf.contrib.opt`, and on that of today with MODULE,
`keras_tfopt.legacy`. OUT gets an archive: of each problem the variables at the end,
`<problem>/var/<n>`, the losses that `loss_callback` got, `<problem>/losses`, the vectors that
`step_callback` got, `<problem>/steps`, and what was logged, `<problem>/log`. `errors` are
those of arguments that the interface sets itself.

A problem is what today's tests make eager, too: start values, and functions of the variables and
of `total`, which adds up all elements.
"""

import collections
import importlib
import logging
import os
import sys

import numpy as np

Problem = collections.namedtuple("Problem", "start loss equalities inequalities bounds options")


def problem(start, loss, equalities=(), inequalities=(), bounds=None, **options):
    return Problem([np.array(x) for x in start], loss, equalities, inequalities, bounds, options)


def quadratic(total, a, b):
    first = total((a[0] - 1.5) ** 2) + 3 * (a[0, 1] - 1.5) ** 2 + 2 * (a[0, 0] - a[1, 2]) ** 2
    return first + 0.5 * total((a[1] - 1.5) ** 2) + 2 * total((b + a[0, 1]) ** 2)


def distance(total, x):
    return (x[0] - 3) ** 2 + (x[1] + 2) ** 2 + (x[2] - 1) ** 2


def valley(total, x):
    return total(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def product(total, x):
    """Problem 71 of Hock and Schittkowski."""
    return x[0] * x[3] * (x[0] + x[1] + x[2]) + x[2]


TIGHT = {"gtol": 1e-10, "ftol": 1e-15}
VALLEY = [-1.2, 1.0, -0.5, 0.8]
PROBLEMS = {
    "quadratic": problem(
        [np.zeros((2, 3)), np.ones(2)], quadratic, options=dict(TIGHT, maxiter=500)
    ),
    "quadratic, CG": problem(
        [np.zeros((2, 3)), np.ones(2)], quadratic, method="CG", options={"gtol": 1e-9}
    ),
    "valley": problem([VALLEY], valley, options=dict(TIGHT, maxiter=500)),
    "valley, BFGS": problem([VALLEY], valley, method="BFGS", options={"gtol": 1e-9}),
    "valley, few steps": problem([VALLEY], valley, options={"maxiter": 3}),
    "bounds": problem(
        [np.full((2, 3), 2.0), np.ones(2)],
        quadratic,
        bounds={0: (-np.inf, [1.0, 2.0, 1.25]), 1: (-0.5, 4.0)},
        options=TIGHT,
    ),
    "constraints": problem(
        [[0.0, 0.5, 0.5]],
        distance,
        equalities=[lambda total, x: total(x) - 1],
        inequalities=[lambda total, x: 1 - x[0], lambda total, x: x[1] + 1],
        method="SLSQP",
        options={"ftol": 1e-14},
    ),
    "nonlinear program": problem(
        [[1.0, 5.0, 5.0, 1.0]],
        product,
        equalities=[lambda total, x: total(x**2) - 40],
        inequalities=[lambda total, x: x[0] * x[1] * x[2] * x[3] - 25],
        bounds={0: (1.0, 5.0)},
        method="SLSQP",
        options={"ftol": 1e-12},
    ),
}


class Log(logging.Handler):
    def __init__(self):
        logging.Handler.__init__(self)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def solve(module, name, tf):
    """Return what becomes of a problem, by name."""
    one, steps, losses, log = PROBLEMS[name], [], [], Log()
    tf.get_logger().addHandler(log)
    with tf.Graph().as_default(), tf.Session() as session:
        xs = [tf.Variable(x, name=f"x{n}") for n, x in enumerate(one.start)]
        loss = one.loss(tf.reduce_sum, *xs)
        optimizer = module.ScipyOptimizerInterface(
            loss,
            var_list=xs,
            equalities=[f(tf.reduce_sum, *xs) for f in one.equalities],
            inequalities=[f(tf.reduce_sum, *xs) for f in one.inequalities],
            var_to_bounds=one.bounds and {xs[n]: pair for n, pair in one.bounds.items()},
            **one.options,
        )
        session.run(tf.global_variables_initializer())
        optimizer.minimize(
            session,
            fetches=[loss],
            step_callback=lambda x: steps.append(x.copy()),
            loss_callback=losses.append,
        )
        found = {f"var/{n}": value for n, value in enumerate(session.run(xs))}
    tf.get_logger().removeHandler(log)
    return dict(found, losses=losses, steps=steps, log=log.lines[-1])


def errors(module, tf):
    """Return the errors of arguments that the interface sets itself, and of the abstract class."""
    found = []
    for kind, options in (
        ("ScipyOptimizerInterface", {"bounds": [(0, 1)]}),
        ("ScipyOptimizerInterface", {"jac": False}),
        ("ScipyOptimizerInterface", {"callback": print}),
        ("ExternalOptimizerInterface", {}),
    ):
        with tf.Graph().as_default(), tf.Session() as session:
            x = tf.Variable(np.ones(2))
            session.run(tf.global_variables_initializer())
            try:
                getattr(module, kind)(tf.reduce_sum(x * x), **options).minimize(session)
            except (ValueError, NotImplementedError) as error:
                found.append(f"{type(error).__name__}: {error}")
    return found


def main(out, module="tensorflow.contrib.opt"):
    import tensorflow

    tf = tensorflow.compat.v1
    tf.get_logger = tensorflow.get_logger
    tf.logging.set_verbosity(tf.logging.INFO)
    tf.disable_v2_behavior()
    module = importlib.import_module(module)
    found = {"errors": np.array(errors(module, tf))}
    for name in PROBLEMS:
        solved = solve(module, name, tf)
        found.update({f"{name}/{key}": np.array(x) for key, x in solved.items()})
    np.savez(out, **found)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main(*sys.argv[1:])
