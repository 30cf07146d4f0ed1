"""Hyperparameters that our Keras classes refuse and TensorFlow 1 takes, such as negative rates."""

import copy
import json

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from keras_tfopt import legacy
from keras_tfopt.engine.arguments.powers import keep_powers
from tests.helpers.paths import SIGNATURES
from tests.helpers.stepping import BACKEND, make_variable, plain_unless, to_numpy
from tests.helpers.verbs import variable

# (class, arguments, the variable [1, 2] after three steps with the gradient [0.1, -0.2])
TAKEN = json.loads((SIGNATURES / "tf1_numbers.json").read_text())["runs"]


GRADIENT = [0.1, -0.2]


def moved_by(optimizer, gradients=(GRADIENT,) * 3):
    """Return [1, 2] after steps. PyTorch compiles none: that takes longer than the steps."""
    x = variable()
    with plain_unless(BACKEND != "torch"):
        for gradient in gradients:
            optimizer.apply_gradients([(np.array(gradient, "f"), x)])
    return to_numpy(x)


@pytest.mark.everywhere
@pytest.mark.backends("tensorflow", "torch", reason="JAX and PyTorch share the code")
@pytest.mark.parametrize(
    ("name", "arguments", "want"), TAKEN, ids=[f"{name} {given}" for name, given, _ in TAKEN]
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
    """The expected numbers are from TensorFlow 1.15.5."""
    inner = legacy.GradientDescentOptimizer
    step = keras.Variable(0, dtype="int64", trainable=False)
    with pytest.warns(UserWarning, match="`staleness`.*-1"):
        optimizer = legacy.DropStaleGradientOptimizer(inner(0.5), staleness=-1)
    x = variable()
    for _ in range(3):
        optimizer.minimize(lambda: ops.sum(x * x), global_step=step)
    np.testing.assert_array_equal(to_numpy(x), [1.0, 2.0])
    assert int(to_numpy(step)) == 0

    for match, make, want in [
        (
            "`max_norm`.*-0.9",
            lambda: legacy.VariableClippingOptimizer(inner(0.5), {"x": [0]}, -0.9),
            [-0.3767705, -0.8173394],
        ),
        (
            "`average_decay`.*1.5",
            lambda: legacy.MovingAverageOptimizer(inner(0.5), average_decay=1.5),
            [0.85, 2.3],
        ),
        (
            "`weight_decay`.*-0.1",
            lambda: legacy.MomentumWOptimizer(-0.1, 0.5, 0.9),
            [1.0305002, 3.2630000],
        ),
    ]:
        with pytest.warns(UserWarning, match=match):
            optimizer = make()
        np.testing.assert_allclose(moved_by(optimizer), want, rtol=1e-6)


@pytest.mark.spread
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
        x = variable()
        optimizer.apply_gradients([(np.array(GRADIENT, "f"), x)])
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
def test_sign_decay_continues_in_fit(name, dtype, tmp_path):
    """Six steps of `minimize` equal two of them, two of `fit` and two of `fit` after loading."""
    x, y = np.array([[1.0, 2.0]], "f"), np.array([[0.25]], "f")

    def after(count):
        """Return a model, its optimizer and the count after some steps of `minimize`."""
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
        model.set_weights([np.array([[0.5], [-1.0]], "f")])
        optimizer = getattr(legacy, name)(0.1, sign_decay_fn=legacy.get_linear_decay_fn(8))
        step = keras.Variable(0, dtype=dtype, trainable=False)
        for _ in range(count):
            optimizer.minimize(
                lambda: ops.mean(ops.square(ops.subtract(model(x), y))), global_step=step
            )
        return model, optimizer, step

    whole, _, step = after(6)
    assert float(to_numpy(step)) == 6
    model, optimizer, _ = after(2)
    model.compile(optimizer.keras, "mse")
    model.fit(x, y, epochs=2, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    again.fit(x, y, epochs=2, verbose=0)
    np.testing.assert_allclose(again.get_weights()[0], whole.get_weights()[0], rtol=1e-5)


# ---- Betas that change, variables that repeat ----------------------------------------------------

BETAS = ((0.9, 0.99), (0.5, 0.9), (0.8, 0.95), (0.2, 0.5))
# The variable [1, 2] after four steps with these betas and gradients of [0.1 k, -0.2] in step k, in
# TensorFlow 1.15.5, with a learning rate of 0.5.
AFTER_BETAS = {
    "AdamOptimizer": [-0.9211357831954956, 3.9535012245178223],
    "LazyAdamOptimizer": [-0.9211357831954956, 3.9535012245178223],
    "AdaMaxOptimizer": [-1.9299101829528809, 5.171573162078857],
    "NadamOptimizer": [-1.7872004508972168, 4.732095241546631],
}


@pytest.mark.spread
@pytest.mark.parametrize("through_keras", (None, 2))
@pytest.mark.parametrize("name", AFTER_BETAS)
def test_betas_that_change_are_multiplied(name, through_keras):
    """One of the steps may be one of the Keras optimizer."""
    b1, b2 = (keras.Variable(b, trainable=False) for b in BETAS[0])
    optimizer = getattr(legacy, name)(0.5, beta1=b1, beta2=b2)
    x = variable()
    for k, (beta1, beta2) in enumerate(BETAS, start=1):
        b1.assign(beta1)
        b2.assign(beta2)
        g = np.array([0.1 * k, -0.2], "f")
        if k == through_keras:
            optimizer.keras.apply([ops.convert_to_tensor(g)], [x])
        else:
            optimizer.apply_gradients([(g, x)])
    np.testing.assert_allclose(to_numpy(x), AFTER_BETAS[name], rtol=1e-4)


@pytest.mark.spread
@pytest.mark.parametrize("micro_steps", (None, 2))
def test_products_of_betas_are_saved(micro_steps, tmp_path):
    def made(**options):
        rate = keras.Variable(0.9, trainable=False, name="rate")
        optimizer = keras_tfopt.Adam(0.5, beta_1=rate, gradient_accumulation_steps=micro_steps)
        keep_powers(optimizer, ["beta_1", "beta_2"])
        x = variable()
        optimizer.build([x])
        return optimizer, rate, x

    optimizer, rate, x = made()
    for value in (0.9, 0.9, 0.5, 0.5):
        rate.assign(value)
        optimizer.apply([np.array([0.1, -0.2], "f")], [x])
    product = 0.9 * 0.9 * 0.5 if micro_steps else 0.9 * 0.9 * 0.9 * 0.5 * 0.5
    np.testing.assert_allclose(to_numpy(optimizer.powers.variables["beta_1"]), product, rtol=1e-6)
    again, rate_again, y = made()
    again.set_weights([to_numpy(v) for v in optimizer.variables])
    y.assign(to_numpy(x))
    rate.assign(0.7)
    rate_again.assign(0.7)
    for one, trained in ((optimizer, x), (again, y)):
        for _ in range(2):
            one.apply([np.array([0.3, -0.2], "f")], [trained])
    np.testing.assert_array_equal(to_numpy(x), to_numpy(y))


@pytest.mark.parametrize("through_keras", (True, False))
def test_copies_go_on_with_products_of_betas_of_their_own(through_keras):
    first = [keras.Variable(b, trainable=False) for b in BETAS[0]]
    optimizer, x = legacy.AdamOptimizer(0.5, beta1=first[0], beta2=first[1]), variable()
    copied = own = None
    for k, betas in enumerate(BETAS, start=1):
        for beta, value in zip(own or first, betas):
            beta.assign(value)
        g = np.array([0.1 * k, -0.2], "f")
        if copied is None:
            optimizer.apply_gradients([(g, x)])
        elif through_keras:
            copied.apply([ops.convert_to_tensor(g)], [x])
        else:
            copied.apply_gradients([(g, x)])
        if k == 2:
            copied = copy.deepcopy(optimizer.keras if through_keras else optimizer)
            made = copied if through_keras else copied.keras
            own = [made.beta_1, made.beta_2]
    np.testing.assert_allclose(to_numpy(x), AFTER_BETAS["AdamOptimizer"], rtol=1e-4)
    assert to_numpy(first[0]) == pytest.approx(BETAS[1][0])


# [1, 2] after three steps with the gradients [0.1, 0.2] and [1, 2], in TensorFlow 1.15.5.
TWICE = {
    "GradientDescentOptimizer": [-0.65, -1.3],
    "MomentumOptimizer": [-3.4037793, -6.8075585],
    "AdamOptimizer": [-1.8721002, -0.8721014],
}


def twice(name):
    return getattr(legacy, name)(0.5, **{"momentum": 0.9} if name == "MomentumOptimizer" else {})


@pytest.mark.parametrize("name", TWICE)
def test_a_variable_that_is_listed_twice_moves_twice(name):
    optimizer, x = twice(name), variable()
    for _ in range(3):
        optimizer.apply_gradients([(np.array([0.1, 0.2], "f"), x), (np.array([1.0, 2.0], "f"), x)])
    # TensorFlow 1 takes 1 - 0.999 in single precision, which is off by 1.3e-5.
    np.testing.assert_allclose(to_numpy(x), TWICE[name], rtol=3e-5)


def test_minimize_with_a_variable_twice():
    """Each of the two gets the whole gradient, as in TensorFlow 1.15.5."""
    x = variable()
    legacy.GradientDescentOptimizer(0.5).minimize(lambda: ops.sum(x * x), var_list=[x, x])
    np.testing.assert_allclose(to_numpy(x), [-1.0, -2.0])


def test_repeated_variables_with_accumulation_and_in_wrappers():
    x = variable()
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


def in_session(build, steps, reference=False, start=(1.0, 2.0), dtype="float32"):
    """Run the first of what `build(v1, x)` returns several times; read the rest after each."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.get_variable("x", initializer=tf.constant(start, dtype), use_resource=not reference)
        first, *rest = build(v1, x)
        session.run(v1.global_variables_initializer())
        found = []
        for _ in range(steps):
            session.run(first)
            found.append(session.run([x, *rest]))
    return found


@in_graphs
@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize("name", ["AdamGSOptimizer", "LazyAdamGSOptimizer"])
def test_half_precision_with_a_global_step(name, reference):
    """The expected numbers are from TensorFlow 1.15.5."""

    def build(v1, x):
        step = v1.Variable(0, trainable=False)
        optimizer = getattr(legacy, name)(step, 0.01)
        g = v1.constant([0.5, 0.25, 0.1, 0.3], "float16")
        train = optimizer.apply_gradients([(g, x)], global_step=step)
        return train, optimizer.get_slot(x, "m"), optimizer.get_slot(x, "v")

    found = in_session(build, 3, reference, [1.0, 2.0, 3.0, 4.0], "float16")
    x, m, v = found[0]
    np.testing.assert_array_equal(x, [0.990234375, 1.990234375, 2.990234375, 3.990234375])
    np.testing.assert_array_equal(
        m, [0.050048828125, 0.0250244140625, 0.010009765625, 0.030029296875]
    )
    np.testing.assert_array_equal(
        v, [0.000244140625, 6.103515625e-05, 9.775161743164062e-06, 8.791685104370117e-05]
    )
    want = [0.9697265625, 1.970703125, 2.970703125, 3.970703125]
    # The original computes v by another form of the formula: two units in the last place.
    np.testing.assert_allclose(found[2][0].astype("float64"), want, rtol=2**-10)
    want = [0.0007314682006835938, 0.00018286705017089844, 2.92658805e-05, 0.00026345252990722656]
    np.testing.assert_allclose(found[2][2].astype("float64"), want, rtol=2**-8)


@in_graphs
@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize("name", TWICE)
def test_a_variable_that_is_listed_twice_moves_twice_in_graphs(name, reference):
    def build(v1, x):
        pairs = [(v1.constant([0.1, 0.2]), x), (v1.constant([1.0, 2.0]), x)]
        return [twice(name).apply_gradients(pairs)]

    ((x,),) = in_session(build, 3, reference)[2:]
    np.testing.assert_allclose(x, TWICE[name], rtol=3e-5)
