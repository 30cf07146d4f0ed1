"""Numbers that the Keras classes refuse and TensorFlow 1 takes: negative rates, betas of 1."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from keras_tfopt import legacy
from tests.stepping import BACKEND, make_variable, to_numpy

# The variable [1, 2] after three steps with the gradient [0.1, -0.2], in TensorFlow 1.15.5.
NAN = [float("nan")] * 2
TAKEN = {
    "GradientDescentOptimizer": [({"learning_rate": -0.5}, [1.1499999, 1.6999999])],
    "AdamOptimizer": [
        ({"learning_rate": -0.5}, [2.4999914, 0.5000069]),
        ({"learning_rate": 0.5, "beta1": -0.5}, [-0.4999913, 3.4999933]),
        ({"learning_rate": 0.5, "beta1": 1.5}, [-0.4999914, 3.4999934]),
        ({"learning_rate": 0.5, "beta1": 1.0}, NAN),
        ({"learning_rate": 0.5, "beta2": 1.0}, [1.0, 2.0]),
    ],
    "AdagradOptimizer": [({"learning_rate": -0.5}, [1.4337683, 1.2838358])],
    "MomentumOptimizer": [
        ({"learning_rate": -0.5, "momentum": 0.9}, [1.2804999, 1.4390000]),
        ({"learning_rate": 0.5, "momentum": -0.5}, [0.8875, 2.2249999]),
        ({"learning_rate": 0.5, "momentum": 1.5}, [0.5874999, 2.8249998]),
        ({"learning_rate": 0.5, "momentum": 1.5, "use_nesterov": True}, [0.2312499, 3.5374999]),
    ],
    "RMSPropOptimizer": [
        ({"learning_rate": -0.5}, [1.1666180, 1.6679707]),
        ({"learning_rate": 0.5, "momentum": 1.5}, [0.5526134, 2.8923290]),
        ({"learning_rate": 0.5, "decay": 1.5}, [0.8983678, 2.2048354]),
    ],
    "AdadeltaOptimizer": [
        ({"learning_rate": -0.5}, [1.0006785, 1.9993215]),
        ({"learning_rate": 0.5, "rho": -0.5}, [0.9997775, 2.0002222]),
        ({"learning_rate": 0.5, "rho": 1.5}, NAN),
    ],
    "ProximalGradientDescentOptimizer": [
        ({"learning_rate": -0.5, "l1_regularization_strength": 0.1}, [1.3, 1.8499854 - 1.3e-7]),
        ({"learning_rate": 0.5, "l2_regularization_strength": -0.1}, [1.0, 2.6654029]),
    ],
    "LARSOptimizer": [
        ({"learning_rate": -0.5}, [1.0028043, 1.9944026]),
        ({"learning_rate": 0.5, "momentum": 1.5}, [0.9958741, 2.0082352]),
        ({"learning_rate": 0.5, "eeta": -0.1}, [1.2738168, 1.4534606]),
    ],
    "AddSignOptimizer": [
        ({"learning_rate": -0.5}, [1.3000001, 1.3999999]),
        ({"learning_rate": 0.5, "beta": -0.5}, [0.6999999, 2.6000001]),
    ],
    "PowerSignOptimizer": [
        ({"learning_rate": -0.5}, [1.4077423, 1.1845155]),
        ({"learning_rate": 0.5, "beta": 1.5}, [0.9448180, 2.1103640]),
    ],
    "RegAdagradOptimizer": [({"learning_rate": -0.5}, [1.4337683, 1.2838358])],
    "AdaMaxOptimizer": [
        ({"learning_rate": -0.5}, [2.5, 0.5]),
        ({"learning_rate": 0.5, "beta2": 1.5}, [-0.0555555, 3.0555556]),
    ],
    "NadamOptimizer": [({"learning_rate": -0.5}, [3.2976475, -0.2976501])],
    "LazyAdamOptimizer": [({"learning_rate": 0.5, "beta1": -0.5}, [-0.4999913, 3.4999933])],
    "GGTOptimizer": [
        ({"learning_rate": -0.5}, [1.3929120, 1.2141760]),
    ],
    "ShampooOptimizer": [
        ({"global_step": 0, "learning_rate": -0.5}, [1.7214336, 0.5571334]),
        ({"global_step": 0, "gbar_decay": -0.5}, [-0.1282570, 4.2565136]),
        ({"global_step": 0, "gbar_weight": -0.5}, [1.7214336, 0.5571334]),
        ({"global_step": 0, "alpha": -0.5}, [0.9343697, 2.1312609]),
    ],
}


def moved_by(optimizer, steps=3):
    x = make_variable("x", np.array([1.0, 2.0], "f"))
    for _ in range(steps):
        optimizer.apply_gradients([(np.array([0.1, -0.2], "f"), x)])
    return to_numpy(x)


@pytest.mark.parametrize(
    ("name", "arguments", "want"),
    [
        pytest.param(name, arguments, want, id=f"{name} {arguments}")
        for name, runs in TAKEN.items()
        for arguments, want in runs
    ],
)
def test_taken_with_a_warning_as_tensorflow_1_takes_it(name, arguments, want):
    with pytest.warns(UserWarning, match=f"{name}: Argument `.*original") as warned:
        optimizer = getattr(legacy, name)(**arguments)
    assert len(warned) == 1 and warned[0].filename == __file__
    np.testing.assert_allclose(moved_by(optimizer), want, rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("FtrlOptimizer", {"learning_rate": -0.5}),
        ("FtrlOptimizer", {"learning_rate": 0.5, "learning_rate_power": 1.0}),
        ("FtrlOptimizer", {"learning_rate": 0.5, "l1_regularization_strength": -1.0}),
        ("ProximalAdagradOptimizer", {"learning_rate": -0.5}),
        ("AdagradOptimizer", {"learning_rate": 0.5, "initial_accumulator_value": 0.0}),
        ("LARSOptimizer", {"learning_rate": 0.5, "momentum": -0.5}),
        ("LARSOptimizer", {"learning_rate": 0.5, "weight_decay": -0.1}),
        ("PowerSignOptimizer", {"learning_rate": 0.5, "base": -1.0}),
        ("AdamOptimizer", {"learning_rate": float("nan")}),
        ("AdamOptimizer", {"epsilon": -0.5}),  # TensorFlow 1 takes it, our quotient does not
    ],
)
def test_refused_as_tensorflow_1_refuses_it(name, arguments):
    wrong = list(arguments)[-1]
    with pytest.raises(ValueError, match=f"`{wrong}`"):
        getattr(legacy, name)(**arguments)


def test_wrappers_take_what_tensorflow_1_takes():
    """Numbers of TensorFlow 1.15.5."""
    inner = legacy.GradientDescentOptimizer
    step = keras.Variable(0, dtype="int64", trainable=False)
    with pytest.warns(UserWarning, match="`staleness`.*-1"):
        optimizer = legacy.DropStaleGradientOptimizer(inner(0.5), staleness=-1)
    x = make_variable("x", np.array([1.0, 2.0], "f"))
    for _ in range(3):
        optimizer.minimize(lambda: ops.sum(x * x), global_step=step)
    np.testing.assert_array_equal(to_numpy(x), [1.0, 2.0])
    assert int(to_numpy(step)) == 0

    with pytest.warns(UserWarning, match="`max_norm`.*-0.9"):
        optimizer = legacy.VariableClippingOptimizer(inner(0.5), {"x": [0]}, -0.9)
    np.testing.assert_allclose(moved_by(optimizer), [-0.3767705, -0.8173394], rtol=1e-6)
    with pytest.warns(UserWarning, match="`average_decay`.*1.5"):
        optimizer = legacy.MovingAverageOptimizer(inner(0.5), average_decay=1.5)
    np.testing.assert_allclose(moved_by(optimizer), [0.85, 2.3], rtol=1e-6)
    with pytest.warns(UserWarning, match="`weight_decay`.*-0.1"):
        optimizer = legacy.MomentumWOptimizer(-0.1, 0.5, 0.9)
    np.testing.assert_allclose(moved_by(optimizer), [1.0305002, 3.2630000], rtol=1e-6)


def test_keras_classes_stay_strict():
    with pytest.raises(ValueError, match="`learning_rate`.*>= 0.*-0.5"):
        keras_tfopt.Momentum(-0.5)
    with pytest.warns(UserWarning):
        inner = legacy.MomentumOptimizer(-0.5, 0.9)
    with pytest.raises(ValueError, match="`momentum`"):
        keras_tfopt.Momentum(0.5, momentum=1.5)
    with pytest.warns(UserWarning) as warned:
        legacy.MovingAverageOptimizer(inner, average_decay=2.0)
    assert len(warned) == 1


@pytest.mark.parametrize(
    "given", [ops.convert_to_tensor, lambda v: keras.Variable(v, trainable=False)]
)
def test_tensors_and_variables_as_hyperparameters_of_wrappers(given):
    inner = legacy.GradientDescentOptimizer
    optimizer = legacy.VariableClippingOptimizer(inner(0.5), {"x": [0]}, given(0.9))
    np.testing.assert_allclose(moved_by(optimizer), [0.2260509, 0.8711491], rtol=1e-6)
    averages = []
    for decay in (given(0.9), 0.9):
        optimizer = legacy.MovingAverageOptimizer(inner(0.5), average_decay=decay)
        x = make_variable("x", np.array([1.0, 2.0], "f"))
        optimizer.apply_gradients([(np.array([0.1, -0.2], "f"), x)])
        averages.append(to_numpy(optimizer.get_slot(x, "average")))
    np.testing.assert_allclose(*averages, rtol=1e-6)
    np.testing.assert_allclose(averages[0], [0.995, 2.01], rtol=1e-6)


def test_variables_as_hyperparameters_of_wrappers_are_read_in_each_step():
    limit = keras.Variable(0.9, trainable=False)
    optimizer = keras_tfopt.VariableClipping(keras_tfopt.GradientDescent(0.5), {"x": [0]}, limit)
    x = make_variable("x", np.array([3.0, 4.0], "f"))
    for limit_now in (0.9, 0.5):
        limit.assign(limit_now)
        optimizer.apply([ops.zeros(2)], [x])
        assert np.linalg.norm(to_numpy(x)) == pytest.approx(limit_now, rel=1e-6)


@pytest.mark.parametrize("name", ["PowerSignOptimizer", "AddSignOptimizer"])
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_sign_decay_in_fit_and_beside_the_verbs(name, dtype, tmp_path):
    """As long a training, by the verbs alone and by verbs, then `fit` of the loaded model."""

    def make():
        decay = legacy.get_linear_decay_fn(8)
        return getattr(legacy, name)(0.1, sign_decay_fn=decay)

    def model_with(weights=None):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
        model.set_weights([np.array([[0.5], [-1.0]], "f")] if weights is None else weights)
        return model

    x, y = np.array([[1.0, 2.0]], "f"), np.array([[0.25]], "f")

    def by_verbs(optimizer, model, step, count):
        kernel = model.trainable_variables[0]
        for _ in range(count):
            optimizer.minimize(
                lambda: ops.mean(ops.square(ops.subtract(ops.matmul(x, kernel), y))),
                global_step=step,
            )

    step = keras.Variable(0, dtype=dtype, trainable=False)
    whole = model_with()
    by_verbs(make(), whole, step, 6)
    assert float(to_numpy(step)) == 6

    step = keras.Variable(0, dtype=dtype, trainable=False)
    model, optimizer = model_with(), make()
    by_verbs(optimizer, model, step, 2)
    model.compile(optimizer.keras, "mse")
    model.fit(x, y, epochs=2, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    again.fit(x, y, epochs=2, verbose=0)
    np.testing.assert_allclose(again.get_weights()[0], whole.get_weights()[0], rtol=1e-5)


# ---- Changing betas, repeated variables ---------------------------------------------------------

BETAS = ((0.9, 0.99), (0.5, 0.9), (0.8, 0.95), (0.2, 0.5))
# The variable [1, 2] after four steps with these betas and gradients of [0.1 k, -0.2] in step k, in
# TensorFlow 1.15.5, with a learning rate of 0.5.
AFTER_BETAS = {
    "AdamOptimizer": [-0.9211357831954956, 3.9535012245178223],
    "LazyAdamOptimizer": [-0.9211357831954956, 3.9535012245178223],
    "AdaMaxOptimizer": [-1.9299101829528809, 5.171573162078857],
    "NadamOptimizer": [-1.7872004508972168, 4.732095241546631],
}


@pytest.mark.parametrize("through_keras", (None, 2))
@pytest.mark.parametrize("name", AFTER_BETAS)
def test_betas_that_change_are_multiplied(name, through_keras):
    """By the verbs, and with a step of the Keras optimizer in between."""
    b1, b2 = (keras.Variable(b, trainable=False) for b in BETAS[0])
    optimizer = getattr(legacy, name)(0.5, beta1=b1, beta2=b2)
    x = make_variable("x", np.array([1.0, 2.0], "f"))
    for k, (beta1, beta2) in enumerate(BETAS, start=1):
        b1.assign(beta1)
        b2.assign(beta2)
        g = np.array([0.1 * k, -0.2], "f")
        if k == through_keras:
            optimizer.keras.apply([ops.convert_to_tensor(g)], [x])
        else:
            optimizer.apply_gradients([(g, x)])
    np.testing.assert_allclose(to_numpy(x), AFTER_BETAS[name], rtol=1e-4)


@pytest.mark.parametrize("micro_steps", (None, 2))
def test_products_of_betas_are_saved(micro_steps, tmp_path):
    def made(**options):
        rate = keras.Variable(0.9, trainable=False, name="rate")
        optimizer = keras_tfopt.Adam(0.5, beta_1=rate, gradient_accumulation_steps=micro_steps)
        optimizer.keep_powers(["beta_1", "beta_2"])
        x = make_variable("x", np.array([1.0, 2.0], "f"))
        optimizer.build([x])
        return optimizer, rate, x

    optimizer, rate, x = made()
    for value in (0.9, 0.9, 0.5, 0.5):
        rate.assign(value)
        optimizer.apply([np.array([0.1, -0.2], "f")], [x])
    product = 0.9 * 0.9 * 0.5 if micro_steps else 0.9 * 0.9 * 0.9 * 0.5 * 0.5
    np.testing.assert_allclose(to_numpy(optimizer.powers["beta_1"]), product, rtol=1e-6)
    again, rate_again, y = made()
    again.set_weights([to_numpy(v) for v in optimizer.variables])
    y.assign(to_numpy(x))
    rate.assign(0.7)
    rate_again.assign(0.7)
    for one, variable in ((optimizer, x), (again, y)):
        for _ in range(2):
            one.apply([np.array([0.3, -0.2], "f")], [variable])
    np.testing.assert_array_equal(to_numpy(x), to_numpy(y))


# [1, 2] after three steps with the gradients [0.1, 0.2] and [1, 2], in TensorFlow 1.15.5.
TWICE = {
    "GradientDescentOptimizer": [-0.65, -1.3],
    "MomentumOptimizer": [-3.4037793, -6.8075585],
    "AdamOptimizer": [-1.8721002, -0.8721014],
}


@pytest.mark.parametrize("name", TWICE)
def test_a_variable_that_is_listed_twice_moves_twice(name):
    more = {"momentum": 0.9} if name == "MomentumOptimizer" else {}
    optimizer = getattr(legacy, name)(0.5, **more)
    x = make_variable("x", np.array([1.0, 2.0], "f"))
    for _ in range(3):
        optimizer.apply_gradients([(np.array([0.1, 0.2], "f"), x), (np.array([1.0, 2.0], "f"), x)])
    # TensorFlow 1 takes 1 - 0.999 in single precision, which is off by 1.3e-5.
    np.testing.assert_allclose(to_numpy(x), TWICE[name], rtol=3e-5)


def test_minimize_with_a_variable_twice():
    """In TensorFlow 1.15.5, each of the two gets the whole gradient."""
    x = make_variable("x", np.array([1.0, 2.0], "f"))
    legacy.GradientDescentOptimizer(0.5).minimize(lambda: ops.sum(x * x), var_list=[x, x])
    np.testing.assert_allclose(to_numpy(x), [-1.0, -2.0])


def test_repeated_variables_with_accumulation_and_around():
    x = make_variable("x", np.array([1.0, 2.0], "f"))
    optimizer = keras_tfopt.GradientDescent(0.5, gradient_accumulation_steps=2)
    for _ in range(2):
        optimizer.apply([np.array([1.0, 2.0], "f"), np.array([3.0, 4.0], "f")], [x, x])
    np.testing.assert_allclose(to_numpy(x), [-1.0, -1.0])

    for wrap in (keras_tfopt.MovingAverage, lambda inner: keras_tfopt.GGT(0.5)):
        optimizer = wrap(keras_tfopt.Momentum(0.5))
        before = to_numpy(x)
        with pytest.raises(ValueError, match="once.*'x'"):
            optimizer.apply([np.ones(2, "f"), np.ones(2, "f")], [x, x])
        np.testing.assert_array_equal(to_numpy(x), before)


# ---- In graphs ----------------------------------------------------------------------------------

in_graphs = pytest.mark.backends("tensorflow", reason="graphs are TensorFlow's")


def in_session(build, steps, reference):
    """What `build(v, x)` gives a list of, of which the first is run, with the rest after each."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        first, *rest = build(v1, not reference)
        session.run(v1.global_variables_initializer())
        found = []
        for _ in range(steps):
            session.run(first)
            found.append(session.run(rest))
    return found


@in_graphs
@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize("name", ["AdamGSOptimizer", "LazyAdamGSOptimizer"])
def test_half_precision_with_a_global_step(name, reference):
    """Numbers of TensorFlow 1.15.5."""
    import tensorflow as tf

    def build(v1, use_resource):
        start = tf.constant([1.0, 2.0, 3.0, 4.0], "float16")
        x = v1.get_variable("x", initializer=start, use_resource=use_resource)
        step = v1.Variable(0, trainable=False)
        optimizer = getattr(legacy, name)(step, 0.01)
        g = tf.constant([0.5, 0.25, 0.1, 0.3], "float16")
        train = optimizer.apply_gradients([(g, x)], global_step=step)
        return train, x, optimizer.get_slot(x, "m"), optimizer.get_slot(x, "v")

    found = in_session(build, 3, reference)
    x, m, v = found[0]
    np.testing.assert_array_equal(x, [0.990234375, 1.990234375, 2.990234375, 3.990234375])
    np.testing.assert_array_equal(
        m, [0.050048828125, 0.0250244140625, 0.010009765625, 0.030029296875]
    )
    np.testing.assert_array_equal(
        v, [0.000244140625, 6.103515625e-05, 9.775161743164062e-06, 8.791685104370117e-05]
    )
    want = [0.9697265625, 1.970703125, 2.970703125, 3.970703125]
    # Two units in the last place: the original computes v by another, equal formula.
    np.testing.assert_allclose(found[2][0].astype("float64"), want, rtol=2**-10)
    want = [0.0007314682006835938, 0.00018286705017089844, 2.92658805e-05, 0.00026345252990722656]
    np.testing.assert_allclose(found[2][2].astype("float64"), want, rtol=2**-8)


@in_graphs
@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize("name", TWICE)
def test_a_variable_that_is_listed_twice_moves_twice_in_graphs(name, reference):
    import tensorflow as tf

    def build(v1, use_resource):
        more = {"momentum": 0.9} if name == "MomentumOptimizer" else {}
        x = v1.get_variable("x", initializer=tf.constant([1.0, 2.0]), use_resource=use_resource)
        pairs = [(tf.constant([0.1, 0.2]), x), (tf.constant([1.0, 2.0]), x)]
        return getattr(legacy, name)(0.5, **more).apply_gradients(pairs), x

    ((x,),) = in_session(build, 3, reference)[2:]
    np.testing.assert_allclose(x, TWICE[name], rtol=3e-5)


# ---- Attributes of the originals ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "attribute"),
    [
        (lambda: legacy.GradientDescentOptimizer(0.5), "_learning_rate"),
        (lambda: legacy.MomentumOptimizer(0.5, 0.0), "_learning_rate"),
        (lambda: legacy.AdaMaxOptimizer(0.5, beta1=0.0, beta2=0.0), "_lr"),
    ],
)
def test_an_assigned_learning_rate_acts(make, attribute):
    optimizer = make()
    x = make_variable("x", np.array([1.0, 2.0], "f"))
    gradient = np.ones(2, "f")
    optimizer.apply_gradients([(gradient, x)])
    setattr(optimizer, attribute, 0.25)
    optimizer.apply_gradients([(gradient, x)])
    with pytest.warns(UserWarning, match="`learning_rate`.*-1"):
        setattr(optimizer, attribute, -1.0)
    optimizer.apply_gradients([(gradient, x)])
    np.testing.assert_allclose(to_numpy(x), [1.25, 2.25], rtol=1e-5)
    with pytest.raises(TypeError, match="`learning_rate`"):
        setattr(optimizer, attribute, "fast")


@pytest.mark.parametrize(
    ("make", "attribute"),
    [
        (lambda: legacy.MomentumOptimizer(0.5, 0.9), "_momentum"),
        (lambda: legacy.MomentumOptimizer(0.5, 0.9), "_learning_rate_tensor"),
        (legacy.AdamOptimizer, "_beta1"),
        (legacy.AdamOptimizer, "_epsilon"),
        (legacy.AdamOptimizer, "_lr_t"),
        (lambda: legacy.AdamWOptimizer(0.1), "_beta2"),
        (lambda: legacy.MovingAverageOptimizer(legacy.AdamOptimizer()), "_ema"),
        (lambda: legacy.MovingAverageOptimizer(legacy.AdamOptimizer()), "_lr"),
    ],
)
def test_assignments_that_would_not_act_are_refused(make, attribute):
    with pytest.raises(AttributeError, match=type(make()).__name__):
        setattr(make(), attribute, 0.5)


@pytest.mark.backends("jax", "torch", reason="TensorFlow's own protocol calls them there")
@pytest.mark.parametrize("method", ["_prepare", "_create_slots", "_finish"])
def test_methods_that_nothing_calls_are_refused(method):
    with pytest.raises(TypeError, match=method):
        type("Mine", (legacy.AdamOptimizer,), {method: lambda self, *args: None})


@in_graphs
def test_an_assigned_learning_rate_acts_in_graphs_on_what_is_built_then():
    import tensorflow as tf

    def build(v1, use_resource):
        x = v1.get_variable("x", initializer=tf.constant([1.0, 2.0]), use_resource=use_resource)
        optimizer = legacy.GradientDescentOptimizer(0.5)
        first = optimizer.apply_gradients([(tf.ones(2), x)])
        optimizer._learning_rate = tf.constant(0.25)
        with tf.control_dependencies([first]):
            return optimizer.apply_gradients([(tf.ones(2), x)]), x

    ((x,),) = in_session(build, 1, False)
    np.testing.assert_allclose(x, [0.25, 1.25])


@in_graphs
def test_prepare_and_create_slots_of_a_subclass_are_called():
    import tensorflow as tf

    class Mine(legacy.MomentumOptimizer):
        def _create_slots(self, var_list):
            super()._create_slots(var_list)
            for variable in var_list:
                self._zeros_slot(variable, "extra", self._name)

        def _prepare(self):
            self._learning_rate = 0.25
            super()._prepare()

    def build(v1, use_resource):
        x = v1.get_variable("x", initializer=tf.constant([1.0, 2.0]), use_resource=use_resource)
        optimizer = Mine(0.5, 0.9)
        train = optimizer.apply_gradients([(tf.ones(2), x)])
        assert optimizer.get_slot_names() == ["extra", "momentum"]
        return train, x

    ((x,),) = in_session(build, 1, False)
    np.testing.assert_allclose(x, [0.75, 1.75])


# ---- Rows that were looked up -------------------------------------------------------------------


def by_take(table, ids):
    return ops.take(table, ids, axis=0)


def by_index(table, ids):
    if BACKEND == "tensorflow":  # which has no such index
        return by_take(table, ids)
    return ops.convert_to_tensor(table)[ops.convert_to_tensor(ids)]


# A table under any name, looked up in each step, with the same id twice and with a factor of zero.
STEPS = [([1, 1, 2], 3.0), ([0, 2, 3], 1.0), ([1, 3, 0], 0.0)]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("look_up", [by_take, by_index])
@pytest.mark.parametrize(
    "make",
    [
        lambda: legacy.LazyAdamOptimizer(0.5),
        lambda: legacy.MomentumOptimizer(0.5, 0.9),
        lambda: legacy.MomentumWOptimizer(0.1, 0.5, 0.9),
        lambda: legacy.VariableClippingOptimizer(legacy.AdamOptimizer(0.5), {"table": [1]}, 1.0),
        lambda: legacy.MovingAverageOptimizer(legacy.MomentumOptimizer(0.5, 0.9)),
    ],
)
def test_looked_up_rows_of_any_table_are_touched(make, look_up, compiled):
    """As with the gradient of rows that TensorFlow computes: all that are named, and no others."""
    table = make_variable("table", np.arange(10.0, dtype="f").reshape(5, 2))
    twin = make_variable("table", np.arange(10.0, dtype="f").reshape(5, 2))
    kernel = make_variable("kernel", np.ones((2, 2), "f"))
    optimizer, told = make(), make()
    for ids, factor in STEPS:
        ids = np.array(ids)

        def loss(ids=ids, factor=factor):
            rows = look_up(table, ids)
            return factor * (ops.sum(rows) + ops.sum(look_up(table, ids[:1]))) + ops.sum(kernel)

        optimizer.minimize(loss, compiled=compiled)
        named = np.concatenate([ids, ids[:1]])
        gradient = keras_tfopt.RowGradient(np.full((4, 2), factor, "f"), named, (5, 2))
        told.apply_gradients([(gradient, twin)])
        np.testing.assert_allclose(to_numpy(table), to_numpy(twin), rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(to_numpy(table)[4], [8.0, 9.0])


@pytest.mark.parametrize(
    "loss",
    [
        lambda v: ops.sum(ops.take(v, np.array([1, 2]), axis=0)) + 0.5 * ops.sum(v[3:] * v[3:]),
        lambda v: ops.sum(ops.take(v, np.array([1]), axis=1)),
        lambda v: ops.sum(ops.matmul(np.array([[0.0, 1.0, 1.0, 0.0, 0.0]], "f"), v)),
    ],
)
def test_other_uses_give_dense_gradients(loss):
    """Rows of zeros in them are rows of an ordinary gradient: their moments decay."""
    table = make_variable("table", np.ones((5, 2), "f"))
    ((gradient, _),) = legacy.LazyAdamOptimizer(0.5).compute_gradients(lambda: loss(table))
    assert type(gradient).__name__ not in ("RowGradient", "IndexedSlices")
    assert tuple(gradient.shape) == (5, 2)
