"""L-BFGS with a line search in `fit`, against SciPy, optax and closed forms."""

import warnings

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from keras_tfopt.engine import backend
from keras_tfopt.solvers import LineSearch
from keras_tfopt.solvers.line_search import search

RANDOM = np.random.default_rng(5)


class Point(keras.layers.Layer):
    """A layer that returns a function of its weights, as the loss."""

    def __init__(self, function, start):
        super().__init__(dtype="float64")
        self.function = function
        self.w = self.add_weight(shape=start.shape, name="w")
        self.w.assign(start)

    def call(self, inputs):
        return self.function(self.w) + 0 * ops.sum(inputs, axis=-1)


def trained(function, start, steps, run_eagerly=False, **options):
    """Train; return the loss before each step, and the weights at the end."""
    layer = Point(function, start)
    inputs = keras.Input((1,), dtype="float64")
    trainer = LineSearch(keras.Model(inputs, layer(inputs)), dtype="float64", **options)
    optimizer = keras_tfopt.LBFGS(memory=8)
    trainer.compile(optimizer, loss=lambda y, y_pred: y_pred, run_eagerly=run_eagerly)
    x = np.zeros((1, 1))
    losses = [float(trainer.train_on_batch(x, x[:, 0])) for _ in range(steps)]
    return losses, ops.convert_to_numpy(layer.w)


HALF = RANDOM.normal(size=(12, 12))
MATRIX, RIGHT = HALF @ HALF.T + np.eye(12), RANDOM.normal(size=12)


def quadratic(w):
    matrix, right = (ops.convert_to_tensor(x, "float64") for x in (MATRIX, RIGHT))
    return ops.sum(w * ops.sum(matrix * w, axis=-1)) / 2 - ops.sum(w * right)


def valley(w):
    return ops.sum(100 * (w[1:] - w[:-1] ** 2) ** 2 + (1 - w[:-1]) ** 2)


def wells(w):
    """A function that is not convex: it has two minima in each number."""
    return ops.sum((w**2 - 1) ** 2 + 0.2 * w) + 0.1 * ops.sum(w[1:] * w[:-1])


START = np.tile([-1.2, 1.0], 3)


@pytest.mark.spread("jax")
def test_quadratic():
    losses, w = trained(quadratic, np.zeros(12), 30)
    np.testing.assert_allclose(w, np.linalg.solve(MATRIX, RIGHT), atol=1e-3)
    assert all(b <= a + 1e-6 for a, b in zip(losses, losses[1:]))  # by the Wolfe conditions


@pytest.mark.spread
@pytest.mark.parametrize("function", [valley, wells])
def test_minima_are_those_of_scipy_and_optax(function):
    """They agree to the precision of float32, in which Keras computes mean losses."""
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    optimize = pytest.importorskip("scipy.optimize")
    _, w = trained(function, START, 70)

    def plain(w):
        if function is valley:
            return (100 * (w[1:] - w[:-1] ** 2) ** 2 + (1 - w[:-1]) ** 2).sum()
        return ((w**2 - 1) ** 2 + 0.2 * w).sum() + 0.1 * (w[1:] * w[:-1]).sum()

    gradient = jax.jit(jax.value_and_grad(plain))
    result = optimize.minimize(
        lambda w: tuple(map(np.float64, gradient(w))), START, jac=True, method="L-BFGS-B"
    )
    solver, theirs = optax.lbfgs(), jax.numpy.asarray(START)

    @jax.jit
    def step(w, state):
        value, slope = optax.value_and_grad_from_state(plain)(w, state=state)
        move, state = solver.update(slope, state, w, value=value, grad=slope, value_fn=plain)
        return optax.apply_updates(w, move), state

    state = solver.init(theirs)
    for _ in range(70):
        theirs, state = step(theirs, state)
    assert plain(w) == pytest.approx(result.fun, rel=1e-4, abs=1e-6)
    assert plain(w) == pytest.approx(float(plain(theirs)), rel=1e-4, abs=1e-6)


@pytest.mark.spread("torch")
@pytest.mark.parametrize("function", [valley, wells])
def test_lengths_meet_the_strong_wolfe_conditions(function):
    """The search follows gradients in float64, until these are small."""
    w, lengths = ops.convert_to_tensor(START), []
    for _ in range(12):
        value, (slope,) = backend.value_and_gradients(lambda v: function(v[0]), [w])
        direction = -slope / ops.maximum(ops.sqrt(ops.sum(slope * slope)), 1.0)

        def along(a, w=w, direction=direction):
            value, (slope,) = backend.value_and_gradients(
                lambda v: function(w + v[0] * direction), [a]
            )
            return value, slope

        down = ops.sum(slope * direction)
        if abs(float(down)) < 1e-9:
            break
        a = search(along, value, down, 20, 1e-4, 0.1)
        there, slope_there = along(a)
        assert float(there) <= float(value) + 1e-4 * float(a) * float(down)
        assert abs(float(slope_there)) <= 0.1 * abs(float(down))
        lengths.append(float(a))
        w = w + a * direction
    assert len(set(lengths)) > 3


@pytest.mark.spread("tensorflow")
def test_compiled_and_eager_steps_are_alike():
    losses, _ = trained(valley, START, 5, run_eagerly=True)
    expected, _ = trained(valley, START, 5)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_a_network_in_fit():
    """It has metrics, dropout, which is constant within a step, and statistics."""
    keras.utils.set_random_seed(1)
    x = RANDOM.normal(size=(64, 4)).astype("float32")
    y = np.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]
    layers = [keras.layers.Dense(16, "tanh"), keras.layers.BatchNormalization()]
    layers += [keras.layers.Dropout(0.05), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    trainer = LineSearch(model)
    trainer.compile(keras_tfopt.LBFGS(), loss="mse", metrics=["mae"])
    history = trainer.fit(x, y, batch_size=64, epochs=30, verbose=0).history
    assert history["loss"][-1] < history["loss"][0] / 5 and "mae" in history
    assert not np.allclose(model.layers[1].moving_mean, 0)


def test_a_step_that_goes_uphill_is_not_made():
    layer = Point(lambda w: ops.sum(w * w), np.ones(3))
    inputs = keras.Input((1,), dtype="float64")
    trainer = LineSearch(keras.Model(inputs, layer(inputs)), dtype="float64")
    trainer.compile(keras.optimizers.SGD(0.1), loss=lambda y, y_pred: y_pred)
    trainer.optimizer.learning_rate = -0.1
    trainer.train_on_batch(np.zeros((1, 1)), np.zeros(1))
    np.testing.assert_array_equal(ops.convert_to_numpy(layer.w), np.ones(3))


@pytest.mark.parametrize("scale", [keras.optimizers, keras_tfopt])
def test_a_loss_scale_that_grows_changes_no_step(scale):
    x = RANDOM.normal(size=(32, 2)).astype("float32")
    y = x @ np.array([[1.0], [-2.0]], "float32")

    def losses(optimizer):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.set_weights([np.zeros((2, 1)), np.zeros(1)])
        trainer = LineSearch(model)
        trainer.compile(optimizer, loss="mse")
        return [float(trainer.train_on_batch(x, y)) for _ in range(6)]

    growing = {"initial_scale": 16.0, "dynamic_growth_steps": 2}
    optimizer = scale.LossScaleOptimizer(keras_tfopt.GradientDescent(0.01), **growing)
    expected = losses(keras_tfopt.GradientDescent(0.01))
    np.testing.assert_allclose(losses(optimizer), expected, rtol=1e-5)
    assert np.all(np.diff(expected) < 0)


class WithoutBuild(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)


@pytest.mark.parametrize(
    "make",
    [LineSearch, lambda model: keras_tfopt.SharpnessAware(model, ascent_momentum=0.5)],
    ids=["LineSearch", "SharpnessAware"],
)
def test_a_model_that_is_not_built(make):
    trainer = make(WithoutBuild())
    trainer.compile(keras_tfopt.GradientDescent(0.01), loss="mse")
    x = np.ones((4, 3), "float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses = trainer.fit(x, x[:, :1], epochs=3, batch_size=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("optimizer", "constraint", "text"),
    [
        (lambda: keras_tfopt.MovingAverage("sgd"), None, "MovingAverage, which keeps averages"),
        (lambda: keras_tfopt.Momentum(use_ema=True), None, "Momentum, which keeps averages"),
        (lambda: keras_tfopt.Lookahead("sgd"), None, "Lookahead, which keeps averages"),
        (lambda: keras_tfopt.VariableClipping("sgd", {".": []}, 1.0), None, "VariableClipping"),
        (lambda: keras_tfopt.Momentum(groups={".": {"max_norm": 1.0}}), None, "max_norm"),
        (lambda: "sgd", "non_neg", "NonNeg of '.*kernel'"),
    ],
)
def test_refuses_what_would_be_of_the_optimizer_s_own_step(optimizer, constraint, text):
    dense = keras.layers.Dense(1, kernel_constraint=constraint)
    model = keras.Sequential([keras.Input((2,)), dense])
    before = model.get_weights()
    trainer, x = LineSearch(model), np.ones((3, 2), "float32")
    with pytest.raises(ValueError, match=text):
        trainer.compile(optimizer(), loss="mse")
        trainer.fit(x, x[:, :1], verbose=0)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_refuses_scales_of_float8():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.quantize("float8")
    with pytest.raises(ValueError, match="_scale' of float8"):
        LineSearch(model).compile("sgd", loss="mse")


def test_saved_and_loaded(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    trainer = LineSearch(model, max_evaluations=5, decrease=0.01, curvature=0.5)
    trainer.compile(keras_tfopt.GradientDescent(), loss="mse")
    x = np.ones((3, 2), "float32")
    trainer.fit(x, x[:, :1], epochs=2, verbose=0)
    trainer.save(tmp_path / "trainer.keras")
    loaded = keras.saving.load_model(tmp_path / "trainer.keras")
    assert (loaded.max_evaluations, loaded.decrease, loaded.curvature) == (5, 0.01, 0.5)
    np.testing.assert_allclose(loaded.predict(x, verbose=0), trainer.predict(x, verbose=0))


@pytest.mark.spread
@pytest.mark.parametrize(
    "error, text, options",
    [
        (TypeError, "`model` must be a keras.Model", dict(model=3)),
        (ValueError, "`max_evaluations` must be an integer >= 1", dict(max_evaluations=0)),
        (ValueError, r"`decrease` must be a number in \(0, 0.5\)", dict(decrease=0.5)),
        (
            ValueError,
            r"`curvature` must be a number in \(0.2, 1\)",
            dict(decrease=0.2, curvature=0.2),
        ),
    ],
)
def test_bad_input(error, text, options):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(error, match=text):
        LineSearch(**{"model": model, **options})
