"""`ExternalOptimizerInterface` and `ScipyOptimizerInterface`, against TensorFlow 1.15.5."""

import logging
import re

import keras
import numpy as np
import pytest
from keras import ops

from integration.tf1 import external
from keras_tfopt import legacy
from tests.cells import exhaustive
from tests.helpers.paths import GOLDEN

pytest.importorskip("scipy.optimize")
RECORDED = np.load(GOLDEN / "tf1_external" / "external.npz")
in_graphs = pytest.mark.backends("tensorflow", reason="graphs are TensorFlow's")


def recorded(name, key):
    return RECORDED[f"{name}/{key}"]


def check(name, found):
    """Check the final values, and the iterates of methods that SciPy has not changed since.

    The recordings are from SciPy 1.4. It evaluates the start twice for CG, and ends SLSQP by other
    conditions.
    """
    problem = external.PROBLEMS[name]
    for n in range(len(problem.start)):
        np.testing.assert_allclose(
            found[f"var/{n}"], recorded(name, f"var/{n}"), rtol=1e-6, atol=1e-6
        )
    theirs, lines = str(recorded(name, "log")).splitlines(), found["log"].splitlines()
    assert [line.partition(":")[0] for line in lines] == [line.partition(":")[0] for line in theirs]
    assert lines[2] == theirs[2]
    assert lines[4].endswith(f" {len(found['losses'])}")
    method = problem.options.get("method", "L-BFGS-B")
    for key in ("losses", "steps") if method in ("L-BFGS-B", "BFGS") else ():
        first = 10  # later iterates differ by rounding, which the valley amplifies
        np.testing.assert_allclose(
            found[key][:first], recorded(name, key)[:first], rtol=1e-6, atol=1e-6
        )
    if method != "SLSQP":
        assert lines[3].endswith(f" {len(found['steps'])}")


def solved_eagerly(name):
    problem, steps, losses = external.PROBLEMS[name], [], []
    xs = [keras.Variable(x, dtype="float64") for x in problem.start]

    def of(function):
        return lambda: function(ops.sum, *(ops.convert_to_tensor(x) for x in xs))

    bounds = problem.bounds and [(xs[n], pair) for n, pair in problem.bounds.items()]
    interface = legacy.ScipyOptimizerInterface(
        of(problem.loss),
        var_list=xs,
        equalities=[of(f) for f in problem.equalities],
        inequalities=[of(f) for f in problem.inequalities],
        var_to_bounds=bounds,
        **problem.options,
    )
    interface.minimize(
        fetches=[of(problem.loss)],
        step_callback=lambda x: steps.append(x.copy()),
        loss_callback=losses.append,
    )
    found = {f"var/{n}": ops.convert_to_numpy(x) for n, x in enumerate(xs)}
    return {**found, "losses": losses, "steps": steps}


@pytest.mark.backends("torch", reason="the tests of JAX compute in float64")
@pytest.mark.parametrize("method", ("L-BFGS-B", "SLSQP", "trust-constr"))
def test_variables_in_float32(method):
    x = keras.Variable([3.0, 7.0], dtype="float32")
    bounds = None if method == "SLSQP" else [(x, (2.0, 8.0))]
    interface = legacy.ScipyOptimizerInterface(
        lambda: ops.sum(ops.square(ops.convert_to_tensor(x))),
        var_list=[x],
        inequalities=[lambda: x[0] - 2.0, lambda: x[1] - 2.0] if bounds is None else None,
        var_to_bounds=bounds,
        method=method,
    )
    interface.minimize()
    np.testing.assert_allclose(ops.convert_to_numpy(x), 2.0, rtol=1e-3)  # of a barrier
    assert x.dtype == "float32"


@pytest.mark.parametrize("name", external.PROBLEMS)
def test_eager_minimization_equals_the_original(name, caplog):
    # Other tests may have told TensorFlow to be quiet.
    caplog.set_level(logging.INFO, logger="tensorflow")
    caplog.set_level(logging.INFO, logger="keras_tfopt")
    found = solved_eagerly(name)
    check(name, {**found, "log": caplog.messages[-1]})


@in_graphs
@pytest.mark.parametrize(
    ("name", "resources"),
    [
        (name, resources) if number % 2 == resources else exhaustive(name, resources)
        for number, name in enumerate(external.PROBLEMS)
        for resources in (False, True)
    ],
)
def test_minimization_in_graphs_equals_the_original(name, resources):
    import tensorflow as tf

    logger, before = tf.get_logger(), tf.get_logger().level
    logger.setLevel(logging.INFO)
    try:
        check(name, external.solve(legacy, name, Version1(tf, resources)))
    finally:
        logger.setLevel(before)


class Version1:
    """`tf.compat.v1` with variables of one kind."""

    def __init__(self, tf, resources):
        self.tf, self.resources, self.get_logger = tf.compat.v1, resources, tf.get_logger

    def __getattr__(self, name):
        return getattr(self.tf, name)

    def Variable(self, *args, **kwargs):
        return self.tf.Variable(*args, use_resource=self.resources, **kwargs)


@in_graphs
def test_errors_are_those_of_the_original():
    import tensorflow as tf

    ours = external.errors(legacy, Version1(tf, True))
    assert ours == RECORDED["errors"].tolist()


@in_graphs
def test_graphs_have_default_variables_and_a_default_session():
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        x, fixed = v1.Variable([7.0, 7.0]), v1.Variable(1.0, trainable=False)
        target = v1.placeholder("float32", ())
        loss = v1.reduce_sum((x - target) ** 2) + fixed
        interface = legacy.ScipyOptimizerInterface(loss, options={"maxiter": 100})
        with pytest.raises(ValueError, match="`session` must be a session"):
            interface.minimize()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            interface.minimize(feed_dict={target: 3.0}, options=v1.RunOptions(trace_level=1))
            np.testing.assert_allclose(session.run(x), [3, 3], atol=1e-4)
            assert session.run(fixed) == 1
        with pytest.raises(TypeError, match="must be tensors in a graph"):
            legacy.ScipyOptimizerInterface(lambda: loss)


class Downhill(legacy.ExternalOptimizerInterface):
    """An algorithm that a user wrote."""

    def _minimize(self, initial_val, loss_grad_func, step_callback, optimizer_kwargs, **_):
        x = initial_val
        for _ in range(optimizer_kwargs["steps"]):
            loss, gradient = loss_grad_func(x)
            x = x - optimizer_kwargs["rate"] * gradient
            step_callback(x)
        return x


def test_an_algorithm_of_a_user():
    x, unused = keras.Variable([4.0, -2.0]), keras.Variable(np.ones((2, 2)))
    seen = []
    interface = Downhill(
        lambda: ops.sum(ops.square(x)) / 2, var_list=[x, unused], rate=0.5, steps=2
    )
    interface.minimize(step_callback=seen.append)
    np.testing.assert_allclose(ops.convert_to_numpy(x), [1, -0.5])
    np.testing.assert_array_equal(ops.convert_to_numpy(unused), np.ones((2, 2)))
    assert [len(one) for one in seen] == [6, 6]


def test_variables_that_the_loss_reads():
    x, fixed = keras.Variable([4.0, -2.0]), keras.Variable([1.0, 1.0], trainable=False)
    legacy.ScipyOptimizerInterface(lambda: ops.sum(ops.square(x - fixed))).minimize()
    np.testing.assert_allclose(ops.convert_to_numpy(x), [1, 1], atol=1e-4)
    np.testing.assert_array_equal(ops.convert_to_numpy(fixed), [1, 1])


def test_an_error_in_the_run_changes_nothing():
    x = keras.Variable([4.0, -2.0])
    interface = legacy.ScipyOptimizerInterface(lambda: ops.sum(ops.square(x)), var_list=[x])

    def refuse(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interface.minimize(step_callback=refuse)
    np.testing.assert_array_equal(ops.convert_to_numpy(x), [4, -2])


@pytest.mark.parametrize(
    "error, text, options",
    [
        (TypeError, "`loss` must be a function without arguments", dict(loss=3.0)),
        (TypeError, "`equalities` must be a function", dict(equalities=[1.0])),
        (TypeError, "`inequalities` must be a list", dict(inequalities=5)),
        (ValueError, "`var_list` must have variables", dict(var_list=[])),
        (ValueError, "must have variables of `var_list`", dict(var_to_bounds=[("x", (0, 1))])),
        (ValueError, "must have pairs", dict(var_to_bounds="x")),
        (ValueError, "must have pairs", dict(var_to_bounds="x", pair=([1, 2, 3], 4))),
    ],
)
def test_bad_input(error, text, options):
    x = keras.Variable([4.0, -2.0])
    if options.get("var_to_bounds") == "x":
        options = {"var_to_bounds": [(x, options.get("pair", 3))]}
    given = {"loss": lambda: ops.sum(ops.square(x)), "var_list": [x], **options}
    with pytest.raises(error, match=re.escape(text)):
        legacy.ScipyOptimizerInterface(**given)


def test_sessions_are_for_graphs():
    x = keras.Variable([4.0, -2.0])
    interface = legacy.ScipyOptimizerInterface(lambda: ops.sum(ops.square(x)))
    with pytest.raises(ValueError, match="`session` and `feed_dict` must be None"):
        interface.minimize(session="session")
