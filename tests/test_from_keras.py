"""`from_keras` and `to_keras`: the next steps equal those of the optimizer before."""

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import migrate
from keras_tfopt.engine import plain
from tests.helpers.stepping import to_numpy

SCHEDULE = keras.optimizers.schedules.ExponentialDecay(0.02, 2, 0.5)
STOCK = {
    "SGD": dict(learning_rate=0.05),
    "SGD momentum": dict(learning_rate=SCHEDULE, momentum=0.9),
    "SGD nesterov": dict(learning_rate=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "RMSprop": dict(learning_rate=0.01, weight_decay=0.1),
    "RMSprop centered": dict(learning_rate=0.01, momentum=0.9, centered=True, epsilon=1e-3),
    "Adagrad": dict(learning_rate=0.1, epsilon=0.5),
    "Adagrad decay": dict(learning_rate=0.1, initial_accumulator_value=0.0, weight_decay=0.3),
    "Adadelta": dict(learning_rate=1.0, epsilon=1e-3),
    "Adam": dict(learning_rate=SCHEDULE, epsilon=0.01, global_clipnorm=0.5),
    "Adam amsgrad": dict(learning_rate=0.01, amsgrad=True, clipvalue=0.1, weight_decay=0.1),
    "AdamW": dict(learning_rate=0.01, weight_decay=0.2, clipnorm=0.3),
    "Adamax": dict(learning_rate=0.01, epsilon=0.01),
    "Nadam": dict(learning_rate=0.01, epsilon=0.01),
    "Ftrl": dict(learning_rate=0.1, l1_regularization_strength=0.01, beta=0.5),
    "Lion": dict(learning_rate=0.01, weight_decay=0.1),
    "Lamb": dict(learning_rate=0.01, epsilon=0.01),
}
every_stock = pytest.mark.parametrize("name", STOCK)
fast_in_torch = pytest.mark.spread("torch")
BACK = {  # our optimizers, with arguments for which Keras has the same steps
    "GradientDescent": {},
    "Momentum": {"nesterov": True},
    "RMSProp": {"momentum": 0.5},
    "Adagrad": {},
    "Adadelta": {"learning_rate": 1.0},
    "AdaMax": {},
    "Ftrl": {"learning_rate": 0.1},
    "Lion": {},
}


def stock(name, **more):
    return getattr(keras.optimizers, name.split()[0])(**STOCK[name], **more)


def variables():
    rng = np.random.default_rng(0)
    return [
        keras.Variable(rng.normal(size=(3, 2)).astype("float32"), name="kernel"),
        keras.Variable(rng.normal(size=(2,)).astype("float32"), name="bias"),
        keras.Variable(rng.normal(size=(4, 2)).astype("float32"), name="embeddings"),
    ]


def gradients(step):
    """Return gradients. Rows 0 and 1 of the table have one in the first steps only, row 3 never."""
    rng = np.random.default_rng(step)
    given = [rng.normal(size=shape).astype("float32") for shape in ((3, 2), (2,), (4, 2))]
    given[2][3] = 0
    given[2][: 2 if step >= 3 else 0] = 0
    return [keras.ops.convert_to_tensor(g) for g in given]


def moved(optimizer, own, steps):
    """Make some steps; return the variables."""
    for step in steps:
        with plain():  # compiling each rule would take most of the time
            optimizer.apply(gradients(step), own)
    return [to_numpy(v) for v in own]


def assert_move_alike(first, second, own, steps=range(3, 7), **tolerance):
    """Assert that two optimizers move the variables alike, from the same start."""
    start = [to_numpy(v) for v in own]
    new = moved(first, own, steps)
    for v, value in zip(own, start):
        v.assign(value)
    other = moved(second, own, steps)
    assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(new, start))
    for a, b in zip(new, other):
        np.testing.assert_allclose(b, a, **{"rtol": 2e-5, "atol": 2e-6, **tolerance})


@every_stock
def test_the_next_steps_are_the_same(name):
    own, old = variables(), stock(name)
    moved(old, own, range(3))
    new = keras_tfopt.from_keras(old)
    assert int(to_numpy(new.iterations)) == 3
    assert_move_alike(old, new, own)


@fast_in_torch
@every_stock
def test_an_optimizer_that_is_not_built_starts_alike(name):
    old = stock(name)
    new = keras_tfopt.from_keras(old)
    assert not new.built and new.name == old.name
    assert_move_alike(old, new, variables(), steps=range(5))


@fast_in_torch
@every_stock
def test_there_and_back(name):
    own, old = variables(), stock(name)
    moved(old, own, range(3))
    back = keras_tfopt.to_keras(keras_tfopt.from_keras(old))
    assert isinstance(back, type(old)) or name == "Adam amsgrad"
    for a, b in zip(old.variables, back.variables):
        np.testing.assert_allclose(to_numpy(b), to_numpy(a))


@fast_in_torch
@pytest.mark.parametrize("name", BACK)
def test_our_optimizers_continue_in_keras(name):
    own = variables()
    old = keras_tfopt.get(name, **{"learning_rate": 0.02, **BACK[name]}, row_variables=None)
    moved(old, own, range(3))
    assert_move_alike(old, keras_tfopt.to_keras(old), own)


@fast_in_torch
def test_options_with_state():
    own = variables()
    averages = {"use_ema": True, "ema_overwrite_frequency": 5}
    for options in (averages, {"gradient_accumulation_steps": 2}):
        old = keras.optimizers.Adam(0.01, **options)
        moved(old, own, range(3))
        assert_move_alike(old, keras_tfopt.from_keras(old), own, steps=range(3, 8))


def test_variables_that_do_not_decay():
    own = variables()
    old = keras.optimizers.AdamW(0.01, weight_decay=0.5)
    old.exclude_from_weight_decay(var_names=["bias"])
    with pytest.raises(ValueError, match="exclude_from_weight_decay.*not built"):
        keras_tfopt.from_keras(old)
    old.build(own)
    new = keras_tfopt.from_keras(old)
    assert_move_alike(old, new, own)
    assert_move_alike(new, keras_tfopt.to_keras(new), own)


@pytest.mark.backends("tensorflow", "torch", reason="Keras's apply works in compiled steps on JAX")
def test_a_loss_scale():
    own = variables()
    old = keras.optimizers.LossScaleOptimizer(stock("SGD momentum"), initial_scale=4.0)
    moved(old, own, range(3))
    new = keras_tfopt.from_keras(old)
    assert isinstance(new, keras_tfopt.LossScaleOptimizer)
    assert float(to_numpy(new.dynamic_scale)) == 4 and int(to_numpy(new.step_counter)) == 3
    assert_move_alike(old, new, own)


class Own(keras.optimizers.SGD):
    pass


@pytest.mark.parametrize(
    ("make", "error", "message"),
    (
        (lambda: "adam", TypeError, "'adam'"),
        (lambda: Own(0.1), TypeError, "class of yours"),
        (lambda: keras_tfopt.Adam(), TypeError, "already"),
        (lambda: keras.optimizers.Adafactor(), ValueError, "factors the last two axes"),
        (lambda: keras.optimizers.Lamb(0.1, weight_decay=0.1), ValueError, "trust ratio"),
        (
            lambda: keras.optimizers.Adam(use_ema=True, gradient_accumulation_steps=2),
            ValueError,
            "averages of `use_ema`",
        ),
    ),
)
def test_what_from_keras_refuses(make, error, message):
    with pytest.raises(error, match=message):
        keras_tfopt.from_keras(make())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    (
        (lambda: keras.optimizers.Adam(), TypeError, "an optimizer of keras_tfopt"),
        (lambda: keras_tfopt.LARS(0.1), ValueError, "none with this rule"),
        (lambda: keras_tfopt.Adam(groups={"bias": {"frozen": True}}), ValueError, "no `groups`"),
        (lambda: keras_tfopt.Momentum(SCHEDULE), ValueError, "inside of the momentum"),
        (lambda: keras_tfopt.RMSProp(), ValueError, "starts at one"),
        (lambda: keras_tfopt.LAMB(weight_decay=0.1), ValueError, "trust ratio"),
        (lambda: migrate.Nadam(momentum_decay=0.004), ValueError, "`momentum_decay` of 1"),
        (lambda: migrate.Adagrad(epsilon_in_root=False), ValueError, "inside of the root"),
    ),
)
def test_what_to_keras_refuses(make, error, message):
    with pytest.raises(error, match=message):
        keras_tfopt.to_keras(make())


def test_row_variables_are_refused():
    optimizer = keras_tfopt.Momentum(0.1)
    optimizer.build(variables())
    with pytest.raises(ValueError, match=r"rows .* \['embeddings'\]"):
        keras_tfopt.to_keras(optimizer)


def trained(swap):
    """Return the losses of a training. The optimizer may be swapped in the middle."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Embedding(9, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,), dtype="int32"), *layers])
    model.compile(optimizer=keras.optimizers.Nadam(0.05), loss="mse", metrics=["mae"])
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 9, (16, 3)), rng.normal(size=(16, 1)).astype("float32")
    # In one batch, no row repeats: Keras does not sum rows on TensorFlow.
    x = np.array([np.random.default_rng(n).permutation(9)[:3] for n in range(16)])
    fit = dict(batch_size=1, shuffle=False, verbose=0)
    losses = model.fit(x, y, epochs=1, **fit).history["loss"]
    if swap:
        assert model.optimizer is not keras_tfopt.swap_optimizer(model)
        assert isinstance(model.optimizer, migrate.Nadam)
    return losses + model.fit(x, y, epochs=3, **fit).history["loss"]


def test_swapping_in_the_middle_of_a_training():
    np.testing.assert_allclose(trained(True), trained(False), rtol=1e-4)


def test_a_model_without_an_optimizer_is_refused():
    with pytest.raises(TypeError, match="compiled"):
        keras_tfopt.swap_optimizer(keras.Sequential([keras.layers.Dense(1)]))


@fast_in_torch
@pytest.mark.parametrize("name", ("SGD", "RMSprop", "Adagrad", "Nadam", "Ftrl"))
def test_the_classes_are_saved(name, tmp_path):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(getattr(migrate, name)(0.01), "mse")
    own = model.trainable_variables
    with plain():
        model.optimizer.apply([keras.ops.ones(v.shape) for v in own], own)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras").optimizer
    assert type(loaded) is type(model.optimizer)
    assert loaded.get_config() == model.optimizer.get_config()
    for a, b in zip(model.optimizer.variables, loaded.variables):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))
