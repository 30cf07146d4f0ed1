"""Optimizers of Keras and of users inside of our wrappers."""

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.helpers.stepping import BACKEND, Rows, Runner, every_mode, several_only, to_numpy
from tests.test_wrappers import TABLE

# Row gradients of optimizers that are not ours


class Plain(keras.optimizers.Optimizer):
    """An optimizer that divides the gradient. IndexedSlices cannot be divided."""

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, gradient / 8)


class OfSlices(keras.optimizers.Optimizer):
    """An optimizer that adds one to the rows of the gradient."""

    def update_step(self, gradient, variable, learning_rate):
        ones = keras.ops.ones_like(gradient.values)
        variable.scatter_add(type(gradient)(ones, gradient.indices))


STOCK = [
    keras.optimizers.SGD,
    keras.optimizers.RMSprop,
    keras.optimizers.Adam,
    keras.optimizers.Adadelta,
    keras.optimizers.Adagrad,
    keras.optimizers.Adamax,
    keras.optimizers.Adafactor,
    keras.optimizers.Nadam,
    keras.optimizers.Ftrl,
    Plain,
]


def stock_and_scaled():
    """Yield classes with options. Scaling divides gradients, whichever class gets them."""
    for cls in STOCK:
        yield pytest.param(cls, {}, id=cls.__name__)
        marks = [pytest.mark.exhaustive] * (cls.__name__ not in ("SGD", "Adam", "Plain"))
        scaled = {"loss_scale_factor": 2.0}
        yield pytest.param(cls, scaled, id=f"{cls.__name__}-scaled", marks=marks)


@pytest.mark.parametrize(("cls", "options"), stock_and_scaled())
@pytest.mark.spread
@every_mode
def test_row_gradients_for_optimizers_of_others_are_summed(cls, options, mode):
    start = np.arange(15.0).reshape(5, 3)
    values = np.array([[1.0, -2.0, 0.5], [0.25, 1.0, 1.0], [3.0, 0.5, -1.0]])
    by_rows, dense = (
        Runner(keras_tfopt.MovingAverage(cls(0.1, **options), 0.5), {"embeddings": start}, mode)
        for _ in range(2)
    )
    for indices in ([1, 3, 1], []):
        rows = Rows(values[: len(indices)], np.array(indices, "int32"))
        total = np.zeros((5, 3))
        np.add.at(total, rows.indices, rows.values)
        by_rows.step({"embeddings": rows})
        dense.step({"embeddings": total})
    assert np.any(dense.values["embeddings"] != start)
    np.testing.assert_allclose(by_rows.values["embeddings"], dense.values["embeddings"], rtol=1e-6)


@pytest.mark.backends("tensorflow", reason="other backends of Keras have dense gradients")
@every_mode
def test_an_optimizer_that_takes_slices_gets_them(mode):
    inner = keras_tfopt.DecoupledWeightDecay(OfSlices(0.1), 0.5)
    runner = Runner(inner, {"embeddings": np.ones((5, 2))}, mode)
    runner.step({"embeddings": Rows(np.zeros((2, 2)), np.array([3, 1]))})
    assert runner.values["embeddings"][:, 0].tolist() == [1.0, 1.5, 1.0, 1.5, 1.0]


@several_only
@every_mode
def test_rows_stay_rows_for_ours_in_a_multi_optimizer(mode):
    """A named row with a gradient of zero moves by its momentum."""
    ours = keras_tfopt.Momentum(0.5, momentum=0.5)
    several = keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(keras.optimizers.SGD(), {"ours/.*": ours})
    )
    values = {"ours/embeddings": np.zeros((3, 1)), "stock": np.zeros((3, 1))}
    runner = Runner(keras_tfopt.MovingAverage(several, 0.5), values, mode)
    for size in (1.0, 0.0):
        rows = Rows(np.full((1, 1), size), np.array([1], "int32"))
        runner.step({"ours/embeddings": rows, "stock": rows})
    assert runner.values["ours/embeddings"].ravel().tolist() == [0.0, -0.75, 0.0]
    np.testing.assert_allclose(runner.values["stock"].ravel(), [0.0, -0.01, 0.0])


@pytest.mark.backends("tensorflow", reason="about XLA in TensorFlow")
@pytest.mark.parametrize("layer", (keras.layers.Embedding, keras_tfopt.layers.Embedding))
def test_a_short_last_batch_of_rows_compiled_by_xla(layer):
    """After such a batch TensorFlow does not know the number of rows, which XLA needs."""
    ends = []
    for jit_compile in (True, False):
        inner = keras_tfopt.DropStale(keras.optimizers.Adadelta(0.5), 1)
        model = keras.Sequential([keras.Input((2,), dtype="int32"), layer(6, 3)])
        model.layers[0].set_weights([TABLE])
        optimizer = keras_tfopt.ElasticAverage(inner, 2, rho=0.1)
        model.compile(optimizer, loss="mse", jit_compile=jit_compile)
        x = np.array([[1, 2], [1, 1], [4, 5], [5, 1], [2, 2]])
        model.fit(x, np.zeros((5, 2, 3)), batch_size=2, epochs=2, shuffle=False, verbose=0)
        ends.append(model.get_weights()[0])
    assert np.any(ends[0][[1, 2, 4, 5]] != TABLE[[1, 2, 4, 5]])
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-6)


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
@every_mode
def test_optimizers_of_others_accumulate_half_precision(mode, dtype):
    inner = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    runner = Runner(keras_tfopt.Multitask(inner), {"k": np.ones(2)}, mode, dtype)
    for g in (0.25, 0.75):
        runner.step({"k": np.full(2, g)})
    assert runner.values["k"].tolist() == [0.5, 0.5]


class Shift(keras_tfopt.Wrapper):
    """Adds numbers of a schedule before the step to gradients, and after it to variables."""

    by: float = keras_tfopt.within(0, default=1.0)

    def before_step(self, grads, variables):
        return [g + self.now(self.by) for g in grads]

    def after_step(self, variables):
        return [v + self.now(self.by) for v in variables]


@pytest.mark.parametrize("make", [keras.optimizers.SGD, keras_tfopt.GradientDescent])
@every_mode
def test_hooks_after_the_step_are_in_the_same_step(make, mode):
    by = keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [10.0, 20.0, 30.0])
    runner, x = Runner(Shift(make(0.5), by=by), {"k": np.ones(2)}, mode), 1.0
    for number in (10.0, 20.0, 30.0):
        runner.step({"k": np.ones(2)})
        x += -0.5 * (1 + number) + number
    np.testing.assert_allclose(runner.values["k"], x, rtol=1e-6)


# State that an optimizer of Keras keeps as an attribute


AROUND = {
    "wrapper": lambda inner: keras_tfopt.MovingAverage(inner, 0.5),
    "center": lambda inner: keras_tfopt.AGN(inner, 1),
    "scaled": lambda inner: keras_tfopt.LossScaleOptimizer(inner, initial_scale=1.0),
    "scaled by Keras": lambda inner: keras.optimizers.LossScaleOptimizer(
        keras_tfopt.Multitask(inner), initial_scale=1.0
    ),
}


@pytest.mark.parametrize("around", AROUND)
@every_mode
def test_the_product_of_keras_nadam_is_state(around, mode):
    if BACKEND == "jax" and (around, mode) == ("scaled by Keras", "eager"):
        pytest.skip("Keras's own `apply` leaks tracers on JAX; it is for `stateless_apply`")
    start, plan = {"k": np.ones(3)}, np.random.default_rng(0).normal(size=(4, 3))
    alone = Runner(keras.optimizers.Nadam(0.1), start)
    runner, other = (Runner(AROUND[around](keras.optimizers.Nadam(0.1)), start, mode) for _ in "ab")
    for g in plan[:3]:
        runner.step({"k": g})
        alone.step({"k": g})
    if around != "center":  # there another Nadam moves the variable
        np.testing.assert_allclose(runner.values["k"], alone.values["k"], rtol=1e-6)
    state = [to_numpy(v) for v in runner.optimizer.variables]
    if around == "scaled by Keras":  # its `set_weights` leaves out the optimizer inside
        for variable, value in zip(other.optimizer.variables, state, strict=True):
            variable.assign(value)
    else:
        other.optimizer.set_weights(state)
    other.variables[0].assign(runner.values["k"])
    for each in (runner, other):
        each.step({"k": plan[3]})
    assert np.array_equal(runner.values["k"], other.values["k"])
