"""`keras_tfopt.legacy`: wrappers, weight decay, savers, and rules that users write."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from keras_tfopt import legacy
from tests.helpers.stepping import to_numpy
from tests.helpers.verbs import counter, variable


class Doubling(legacy.GradientDescentOptimizer):
    """An optimizer that a user wrote: it doubles gradients and clips them at 3."""

    def compute_gradients(self, *args, **kwargs):
        pairs = super().compute_gradients(*args, **kwargs)
        return [(None if g is None else 2 * g, v) for g, v in pairs]

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        self.seen = [(type(g), v.path) for g, v in grads_and_vars]
        capped = [(ops.clip(g, -3.0, 3.0) if ops.is_tensor(g) else g, v) for g, v in grads_and_vars]
        return super().apply_gradients(capped, global_step=global_step, name=name)


AROUND = {
    "MovingAverageOptimizer": lambda o, x: legacy.MovingAverageOptimizer(o, 0.5),
    "VariableClippingOptimizer": lambda o, x: legacy.VariableClippingOptimizer(
        o, [(x, [0])], 100.0
    ),
    "MultitaskOptimizerWrapper": lambda o, x: legacy.MultitaskOptimizerWrapper(o),
    "both": lambda o, x: legacy.MultitaskOptimizerWrapper(legacy.MovingAverageOptimizer(o, 0.5)),
}


@pytest.mark.parametrize("around", AROUND)
def test_methods_of_the_optimizer_inside_are_called(around):
    x, y, step = variable([0.0, 0.0]), variable([1.0], "y"), counter()
    inner = Doubling(1.0)
    optimizer = AROUND[around](inner, x)

    def loss():
        return ops.sum(x * np.array([1.0, 10.0], "f"))

    new = optimizer.minimize(loss, global_step=step, var_list=[x, y])
    np.testing.assert_allclose(to_numpy(x), [-2.0, -3.0])
    assert int(new) == int(step) == 1
    assert [path for _, path in inner.seen] == ["x", "y"]
    assert inner.seen[1][0] is type(None), "wrappers pass on variables without a gradient"
    rows = keras_tfopt.RowGradient(np.ones(2, "f"), [1, 1], (2,))
    optimizer.apply_gradients([(rows, x)])
    assert issubclass(inner.seen[0][0], keras_tfopt.RowGradient)
    np.testing.assert_allclose(to_numpy(x), [-2.0, -5.0])


def test_the_extension_calls_the_next_base_class():

    class Extended(legacy.DecoupledWeightDecayExtension, Doubling):
        pass

    x = variable([1.0])
    optimizer = Extended(0.5, learning_rate=1.0)
    optimizer.minimize(lambda: ops.sum(x * 10.0))
    np.testing.assert_allclose(to_numpy(x), [0.5 - 3.0])


def test_extended_gradient_descent_in_keras(tmp_path):
    """Rows do not decay in `fit`, nor after a model was saved and loaded."""
    cls = legacy.extend_with_decoupled_weight_decay(legacy.GradientDescentOptimizer)
    model = keras.Sequential(
        [keras.Input((1,), dtype="int32"), keras.layers.Embedding(3, 2), keras.layers.Dense(1)]
    )
    model.compile(optimizer=cls(0.5, learning_rate=0.0).keras, loss="mse")
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for one in (model, loaded):
        table, kernel = (to_numpy(v) for v in one.trainable_variables[:2])
        one.fit(np.array([[0], [1]]), np.ones((2, 1, 1)), batch_size=2, verbose=0)
        np.testing.assert_array_equal(to_numpy(one.trainable_variables[0]), table)
        np.testing.assert_allclose(to_numpy(one.trainable_variables[1]), kernel / 2)


# ---- Moving averages -----------------------------------------------------------------------------


def test_moving_average_and_its_saver(tmp_path):
    x, y = variable([1.0, 2.0]), variable(np.ones((1, 2)), "scope/y")
    optimizer = legacy.MovingAverageOptimizer(legacy.GradientDescentOptimizer(1.0), 0.75)
    with pytest.raises(RuntimeError, match="before `swapping_saver`"):
        optimizer.swapping_saver()
    for _ in range(2):
        optimizer.minimize(lambda: ops.sum(x) + 2 * ops.sum(y))
    trained = {"x": to_numpy(x), "scope/y": to_numpy(y)}
    average = [1.0, 2.0] - 0.25 * np.array([1, 1]) - 0.25 * (2 - 0.25)
    np.testing.assert_allclose(to_numpy(optimizer.get_slot(x, "average")), average)

    path = optimizer.swapping_saver().save(None, str(tmp_path / "model.npz"), global_step=2)
    assert path.endswith("model-2.npz")
    with np.load(path) as file:
        arrays = dict(file)
    assert set(arrays) == {
        "x", "x/ExponentialMovingAverage", "scope/y", "scope/y/ExponentialMovingAverage",
    }  # fmt: skip
    np.testing.assert_allclose(arrays["x"], average)
    np.testing.assert_array_equal(arrays["scope/y/ExponentialMovingAverage"], trained["scope/y"])

    x.assign(to_numpy(x) * 0)
    optimizer.get_slot(x, "average").assign(to_numpy(x) * 0)
    optimizer.swapping_saver().restore(None, path)
    np.testing.assert_array_equal(to_numpy(x), trained["x"])
    np.testing.assert_allclose(to_numpy(optimizer.get_slot(x, "average")), average)


def test_saver_of_some_variables(tmp_path):
    """A saver takes variables by name, and refuses one without an average."""
    x, y = variable([1.0]), variable([[2.0]], "y")
    optimizer = legacy.MovingAverageOptimizer(legacy.AdamOptimizer())
    optimizer.minimize(lambda: ops.sum(x))
    with pytest.raises(ValueError, match="'y'.*no step has moved"):
        optimizer.swapping_saver([x, y])
    with pytest.raises(TypeError, match="max_keep"):
        optimizer.swapping_saver(max_keep=3)
    saver = optimizer.swapping_saver({"other": x}, name="mine", max_to_keep=3)
    assert saver.name == "mine"
    path = saver.save(None, str(tmp_path / "some.npz"))
    optimizer.minimize(lambda: ops.sum(x) + ops.sum(y))
    before = to_numpy(x)
    with pytest.raises(ValueError, match="array 'x' of shape"):
        optimizer.swapping_saver([x]).restore(None, path)
    np.savez(tmp_path / "wrong.npz", **{"x": np.zeros(1), "x/ExponentialMovingAverage": [[1.0]]})
    with pytest.raises(ValueError, match=r"one of shape \(1, 1\)"):
        optimizer.swapping_saver([x]).restore(None, str(tmp_path / "wrong.npz"))
    np.testing.assert_array_equal(to_numpy(x), before)
    with pytest.raises(ValueError, match="`sess`"):
        saver.save("session", path)


# ---- Clipping, tasks, decay ----------------------------------------------------------------------


def test_variables_are_clipped_by_their_names_or_themselves():
    x, y = variable([[3.0, 4.0]]), variable([10.0], "y")
    for dims in ([(x, [1])], {"x": [1]}):
        x.assign(np.array([[3.0, 4.0]], "f"))
        optimizer = legacy.VariableClippingOptimizer(
            legacy.GradientDescentOptimizer(0.0), dims, 2.5
        )
        optimizer.apply_gradients([(np.ones((1, 2), "f"), x), (np.ones(1, "f"), y)])
        np.testing.assert_allclose(to_numpy(x), [[1.5, 2.0]], rtol=1e-6)
    np.testing.assert_allclose(to_numpy(y), [10.0])
    with pytest.raises(ValueError, match="more than once"):
        legacy.VariableClippingOptimizer(optimizer, [(x, [0]), ("x", [1])], 1.0)


def test_clipped_variables_may_be_missing_in_a_step():
    x, y = variable([3.0, 4.0]), variable([10.0], "y")
    optimizer = legacy.VariableClippingOptimizer(
        legacy.MomentumOptimizer(0.0, 0.9), [(x, [0])], 2.5
    )
    optimizer.minimize(lambda: ops.sum(y))
    np.testing.assert_allclose(to_numpy(x), [3.0, 4.0])
    optimizer.minimize(lambda: ops.sum(x))
    np.testing.assert_allclose(to_numpy(x), [1.5, 2.0], rtol=1e-6)


def test_decay_of_some_variables():
    """Variables of `decay_var_list` decay. With None or [], all variables decay."""
    x, y = variable([1.0]), variable([1.0], "y")
    cls = legacy.extend_with_weight_decay(legacy.MomentumOptimizer)
    optimizer = cls(0.5, learning_rate=1.0, momentum=0.0)
    pairs = [(np.zeros(1, "f"), x), (np.zeros(1, "f"), y)]
    optimizer.apply_gradients(pairs, decay_var_list=[y])
    assert optimizer.get_slot_names() == ["momentum"]
    assert to_numpy(optimizer.get_slot(x, "momentum")).tolist() == [0.0]
    assert (float(to_numpy(x)[0]), float(to_numpy(y)[0])) == (1.0, 0.5)
    optimizer.minimize(lambda: 0 * ops.sum(x) + 0 * ops.sum(y), decay_var_list=x)
    assert (float(to_numpy(x)[0]), float(to_numpy(y)[0])) == (0.5, 0.5)
    for everything in (None, []):
        optimizer.apply_gradients(pairs, decay_var_list=everything)
    assert (float(to_numpy(x)[0]), float(to_numpy(y)[0])) == (0.125, 0.125)
    optimizer.apply_gradients(pairs[:1], decay_var_list=[y])
    assert (float(to_numpy(x)[0]), float(to_numpy(y)[0])) == (0.125, 0.125)
    assert int(optimizer.keras.iterations) == 5, "there is one count for all variables"
    assert isinstance(optimizer.keras, keras_tfopt.DecoupledWeightDecay)
    with pytest.raises(TypeError, match="`decay_var_list`"):
        optimizer.apply_gradients(pairs, decay_var_list=["y"])
    with pytest.raises(TypeError):
        cls(0.5, 1.0, 0.0)  # other arguments must be keywords, as in the original


def test_wrappers_around_optimizers_of_keras():
    """A wrapper takes an optimizer of Keras inside."""
    x = variable([1.0])
    optimizer = legacy.MovingAverageOptimizer(keras.optimizers.SGD(1.0), 0.5)
    optimizer.minimize(lambda: ops.sum(x))
    assert to_numpy(x).tolist() == [0.0]
    assert to_numpy(optimizer.get_slot(x, "average")).tolist() == [0.5]


# ---- Rules that users write ----------------------------------------------------------------------


class OwnMomentum(legacy.BaseCustomOptimizer):
    """A rule as users of RETURNN write it."""

    def __init__(self, decay=0.5, **kwargs):
        super().__init__(**kwargs)
        self.decay = decay
        self.calls = []

    def _create_slots(self, var_list):
        for v in var_list:
            self._zeros_slot(v, "m", self._name)

    def _prepare(self):
        super()._prepare()
        self.calls.append("prepare")

    def _finish(self, update_ops, name_scope):
        self.calls.append("finish")

    def _apply(self, grad, var, indices=None):
        m = self.get_slot(var, "m")
        self._assign(m, self.decay * self._gather(m, indices), indices)
        self._assign_add(m, grad, indices)
        step = ops.cast(self._learning_rate_tensor, grad.dtype) * self._gather(m, indices)
        return self._assign_sub(ref=var, updates=step, indices=indices)


def test_a_custom_rule_needs_apply_only():

    class SignDescent(legacy.BaseCustomOptimizer):
        def _apply(self, grad, var, indices=None):
            return self._assign_sub(var, self._learning_rate_tensor * ops.sign(grad), indices)

    x, step = variable([1.0, 1.0]), counter()
    optimizer = SignDescent(learning_rate=0.25)
    new = optimizer.minimize(lambda: ops.sum(x * np.array([5.0, -5.0], "f")), global_step=step)
    assert to_numpy(x).tolist() == [0.75, 1.25]
    assert int(new) == 1 and optimizer.get_name() == "SignDescent"
    with pytest.raises(NotImplementedError, match="must define `_apply"):
        legacy.BaseCustomOptimizer(0.1).minimize(lambda: ops.sum(x))


def test_a_custom_rule_equals_momentum():
    x, twin = variable(np.ones((4, 2))), variable(np.ones((4, 2)), "twin")
    optimizer = OwnMomentum(learning_rate=0.5)
    ours = legacy.MomentumOptimizer(0.5, 0.5)
    rows = np.array([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]], "f")
    for gradient in (np.ones((4, 2), "f"), keras_tfopt.RowGradient(rows, [3, 1, 3], (4, 2))):
        optimizer.apply_gradients([(gradient, x)])
        ours.apply_gradients([(gradient, twin)])
    np.testing.assert_allclose(to_numpy(x), to_numpy(twin))
    m = to_numpy(optimizer.get_slot(x, "m"))
    np.testing.assert_allclose(m, to_numpy(ours.get_slot(twin, "momentum")))
    assert optimizer.calls == ["prepare", "finish"] * 2
    assert optimizer.get_slot_names() == ["m"]


def test_a_custom_rule_trains_a_model():
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    twin = keras.models.clone_model(model)
    twin.set_weights(model.get_weights())
    x, y = np.random.RandomState(0).randn(2, 32, 2).astype("f")
    optimizer = OwnMomentum(learning_rate=0.1)
    model.compile(optimizer=optimizer.keras, loss="mse")
    twin.compile(optimizer=keras_tfopt.Momentum(0.1, 0.5), loss="mse")
    for one in (model, twin):
        one.fit(x, y[:, :1], batch_size=8, epochs=1, shuffle=False, verbose=0)
    for a, b in zip(model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    with pytest.raises(NotImplementedError, match="keras_tfopt.Rule"):
        optimizer.keras.get_config()


def test_get_or_make_slot_starts_at_the_given_value():

    class Anchored(legacy.BaseCustomOptimizer):
        def _create_slots(self, var_list):
            for v in var_list:
                self._get_or_make_slot(v, ops.convert_to_tensor(v) + 1, "anchor", self._name)

        def _apply(self, grad, var, indices=None):
            return self._assign(var, self.get_slot(var, "anchor"))

    x = variable([1.0, 2.0])
    Anchored(0.1).minimize(lambda: ops.sum(x))
    assert to_numpy(x).tolist() == [2.0, 3.0]


def test_amsgrad_creates_slots_of_given_variables_at_once():
    x = variable([1.0])
    optimizer = legacy.AMSGradOptimizer(var_list=[x])
    assert optimizer.get_slot_names() == ["m", "v", "v_hat"]
    assert to_numpy(optimizer.get_slot(x, "v_hat")).tolist() == [0.0]


def test_steps_of_a_wrapper_and_of_its_keras_optimizer_take_turns():
    x = keras.Variable([1.0, 2.0])
    optimizer = legacy.MovingAverageOptimizer(legacy.AdamOptimizer(0.1), 0.5)
    for step in (1, 2):
        optimizer.minimize(lambda: ops.sum(ops.square(x)))
        assert int(optimizer.keras.iterations) == step
    optimizer.keras.apply([2 * x], [x])
    optimizer.minimize(lambda: ops.sum(ops.square(x)))
    assert int(optimizer.keras.iterations) == 4
