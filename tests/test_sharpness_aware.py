"""`SharpnessAware`: training by the gradient at the worst point near the weights."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from keras_tfopt import SharpnessAware
from tests.helpers.paths import GOLDEN

FOLDER = GOLDEN / "sam"
# On PyTorch, Keras multiplies a matrix and a vector of float64 in float32.
PRECISION = {"rtol": 1e-12, "atol": 1e-6 if keras.backend.backend() == "torch" else 0}
RECORDED = json.loads((FOLDER / "manifest.json").read_text())["cases"]


class Quadratic(keras.layers.Layer):
    """The loss 0.5 w.A w - b.w, where w joins some variables to a vector."""

    def __init__(self, matrix, vector, values):
        super().__init__(dtype=str(matrix.dtype))
        self.matrix, self.vector = matrix, vector
        self.parts = []
        for name, value in values.items():
            self.parts.append(self.add_weight(shape=value.shape, name=name))
            self.parts[-1].assign(value)

    def call(self, inputs):
        w = ops.concatenate([ops.reshape(part, (-1,)) for part in self.parts])
        matrix, vector = (ops.convert_to_tensor(x, w.dtype) for x in (self.matrix, self.vector))
        loss = 0.5 * ops.sum(w * ops.matmul(matrix, w)) - ops.sum(vector * w)
        return loss + 0 * ops.sum(inputs, axis=-1)


def trainer_of(layer, optimizer, run_eagerly=False, **options):
    inputs = keras.Input((1,), dtype=layer.dtype)
    trainer = SharpnessAware(keras.Model(inputs, layer(inputs)), dtype=layer.dtype, **options)
    trainer.compile(optimizer, loss=lambda y, y_pred: y_pred, run_eagerly=run_eagerly)
    return trainer


def arrays_of(layer):
    return [ops.convert_to_numpy(part) for part in layer.parts]


def step(trainer):
    batch = np.zeros((1, 1), trainer.dtype)
    trainer.train_on_batch(batch, batch[:, 0])


# ---- Formulas ------------------------------------------------------------------------------------


def optimizer_of(constructor):
    config = dict(constructor["config"])
    if constructor["class_name"] == "adamw":
        return keras_tfopt.AdamW(
            config["learning_rate"],
            weight_decay=config["weight_decay"],
            beta_2=config["b2"],
            epsilon=1e-8,
            scale_by_learning_rate=True,
        )
    if constructor["class_name"] == "adam":
        return keras_tfopt.Adam(config["learning_rate"], beta_2=config["b2"], epsilon=1e-8)
    return keras_tfopt.Momentum(config["learning_rate"], config.get("momentum", 0.0))


@pytest.mark.spread
@pytest.mark.parametrize("run_eagerly", [False, True], ids=["compiled", "eager"])
@pytest.mark.parametrize("case", [pytest.param(c, id=Path(c["file"]).stem) for c in RECORDED])
def test_steps_are_those_of_optax(case, run_eagerly):
    """In opaque mode each recorded step is a step here, else the last step of each period."""
    recorded = np.load(FOLDER / case["file"])
    names = [variable["name"] for variable in case["variables"]]
    options = {**case["defaults"], **case["kwargs"]}
    uphill = options["adv_optimizer"]["config"]
    is_normalized = "transforms" in uphill
    uphill = uphill["transforms"][1]["config"] if is_normalized else uphill
    layer = Quadratic(
        recorded["loss/A"], recorded["loss/b"], {name: recorded[f"init/{name}"] for name in names}
    )
    trainer = trainer_of(
        layer,
        optimizer_of(options["optimizer"]),
        run_eagerly,
        rho=uphill["learning_rate"],
        ascent_steps=options["sync_period"] - 1,
        ascent_momentum=uphill.get("momentum", 0.0),
        normalize=is_normalized,
    )
    calls = 1 if options["opaque_mode"] else options["sync_period"]
    bounds = case["tolerances"].get("if_hyperparameters_are_rounded_to_float32", case["tolerances"])
    for last in range(calls, case["steps"] + 1, calls):
        step(trainer)
        for name, value in zip(names, arrays_of(layer), strict=True):
            expected = recorded[f"var/{last}/{name}"]
            np.testing.assert_allclose(value, expected, **bounds["var"], err_msg=f"{last} {name}")


@pytest.mark.parametrize("adaptive, alpha", [(True, 0.0), (False, 0.4), (True, 0.4)])
def test_steps_are_those_of_the_papers(adaptive, alpha):
    """The expected steps of ASAM and GSAM are computed in NumPy from their equations."""
    random = np.random.default_rng(3)
    half, b = random.normal(size=(10, 10)), random.normal(size=10)
    matrix, w = half @ half.T / 10, random.normal(size=10)
    layer = Quadratic(matrix, b, {"first": w[:4], "second": w[4:].reshape(3, 2)})
    trainer = trainer_of(
        layer, keras_tfopt.GradientDescent(0.125), rho=0.25, adaptive=adaptive, alpha=alpha
    )
    for _ in range(4):
        step(trainer)
        g = matrix @ w - b
        scale = np.abs(w) if adaptive else 1.0
        uphill = 0.25 * scale**2 * g / np.linalg.norm(scale * g)
        there = matrix @ (w + uphill) - b
        across = g - (g @ there) / (there @ there) * there
        w = w - 0.125 * (there - alpha * across)
        joined = np.concatenate([part.ravel() for part in arrays_of(layer)])
        np.testing.assert_allclose(joined, w, **PRECISION)


def test_a_gradient_of_zeros_moves_nothing():
    start = {"w": np.float32([1.0, 2.0])}
    layer = Quadratic(np.eye(2, dtype="float32"), start["w"], start)  # at its minimum
    step(trainer_of(layer, keras_tfopt.GradientDescent(0.5), rho=0.5))
    np.testing.assert_array_equal(arrays_of(layer)[0], start["w"])


@pytest.mark.backends("jax", "torch", reason="Keras does not add arrays of shape (0, 3) there")
def test_a_variable_without_numbers_is_left_alone():
    start = {"w": np.float32([1.0, 2.0])}
    ends = []
    for more in ({}, {"none": np.zeros((0, 3), "float32")}):
        layer = Quadratic(2 * np.eye(2, dtype="float32"), 0 * start["w"], {**more, **start})
        step(trainer_of(layer, keras_tfopt.GradientDescent(0.1), rho=0.5))
        ends.append(arrays_of(layer)[-1])
    np.testing.assert_array_equal(*ends)


def test_an_overflow_does_not_stay_in_the_momentum_of_the_ascent():
    start = np.float32([1.0, 2.0])
    layer = Quadratic(np.eye(2, dtype="float32"), np.float32([3.0, 4.0]), {"w": start})
    trainer = trainer_of(layer, keras_tfopt.GradientDescent(0.1), rho=0.1, ascent_momentum=0.5)
    for weights in (start, np.float32([np.inf, 0.0]), start):
        layer.parts[0].assign(weights)
        step(trainer)
    assert np.isfinite(arrays_of(layer)[0]).all()


def test_rho_may_be_a_function_without_arguments():
    layer = Quadratic(np.eye(2, dtype="float32"), np.zeros(2, "float32"), {"w": np.ones(2, "f")})
    step(trainer_of(layer, keras_tfopt.GradientDescent(0.1), rho=lambda: 0.5))
    norm = np.sqrt(2.0)  # the way uphill is along w
    np.testing.assert_allclose(np.linalg.norm(arrays_of(layer)[0]), norm - 0.1 * (norm + 0.5), 1e-6)


def test_rho_follows_its_schedule():
    matrix, start = np.eye(2, dtype="float32"), {"w": np.float32([3.0, 4.0])}
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.5, 5.0])
    layer = Quadratic(matrix, np.zeros(2, "float32"), start)
    trainer = trainer_of(layer, keras_tfopt.GradientDescent(0.1), rho=schedule)
    norms = [5.0]
    for rho in (0.5, 5.0):
        step(trainer)  # along w, so that the norm says everything
        norms.append(norms[-1] - 0.1 * (norms[-1] + rho))
        np.testing.assert_allclose(np.linalg.norm(arrays_of(layer)[0]), norms[-1], 1e-6)


# ---- In fit --------------------------------------------------------------------------------------


def data():
    random = np.random.default_rng(0)
    return random.normal(size=(48, 8)).astype("float32"), random.integers(0, 3, 48)


def network():
    """A network whose layers draw numbers, count statistics and add to the loss."""
    keras.utils.set_random_seed(1)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(16, "relu", kernel_regularizer="l2"),
            layers.ActivityRegularization(l2=1e-3),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(3),
        ]
    )


def fitted(trainer, model, optimizer, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    trainer.compile(optimizer, loss=loss, metrics=["accuracy"])
    history = trainer.fit(*data(), batch_size=16, epochs=2, shuffle=False, verbose=0, **options)
    return history.history, [ops.convert_to_numpy(v) for v in model.weights]


@pytest.mark.spread
def test_with_a_tiny_rho_training_is_plain_training():
    """Losses, metrics, statistics and random numbers are the same."""
    options = {
        "gradient_accumulation_steps": 2,
        "groups": {"bias$": {"learning_rate_factor": 0.5}},
        "use_ema": True,
        "ema_momentum": 0.5,
    }
    plain = network()
    history, weights = fitted(plain, plain, keras_tfopt.Momentum(0.1, 0.9, **options))
    model = network()
    trainer = SharpnessAware(model, rho=1e-30)
    near, same = fitted(trainer, model, keras_tfopt.Momentum(0.1, 0.9, **options))
    for name, values in history.items():
        np.testing.assert_allclose(near[name], values, 1e-6)
    for value, expected in zip(same, weights, strict=True):
        np.testing.assert_allclose(value, expected, 1e-5, 1e-6)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.spread("tensorflow")),
        pytest.param({"ascent_momentum": 0.5, "normalize": False}, marks=pytest.mark.spread("jax")),
    ],
    ids=str,
)
def test_mixed_precision_trains_as_float32_does(options):
    results = []
    for policy, scaled in [("float32", False), ("mixed_float16", True)]:
        keras.utils.set_random_seed(1)
        hidden = keras.layers.Dense(16, "relu", dtype=policy, kernel_regularizer="l2")
        model = keras.Sequential([keras.Input((8,)), hidden, keras.layers.Dense(3, dtype=policy)])
        optimizer = keras_tfopt.Momentum(0.1, 0.9)
        if scaled:
            optimizer = keras_tfopt.LossScaleOptimizer(optimizer, initial_scale=2.0**10)
        results.append(
            fitted(SharpnessAware(model, rho=0.1, **options), model, optimizer)[0]["loss"]
        )
    np.testing.assert_allclose(results[1], results[0], 0.05)  # float16 has 11 bits


def test_an_optimizer_of_keras_takes_the_same_steps_as_ours():
    start, ends = np.float32([1.0, 2.0]), []
    for optimizer in (keras.optimizers.SGD(0.1, 0.9), keras_tfopt.Momentum(0.1, 0.9)):
        layer = Quadratic(np.diag(start), np.float32([3.0, -4.0]), {"w": start})
        trainer = trainer_of(layer, optimizer, rho=0.1)
        for _ in range(3):
            step(trainer)
        ends.append(arrays_of(layer)[0])
    np.testing.assert_allclose(*ends, 1e-4, 1e-5)
    assert np.all(np.abs(ends[0] - start) > 0.01)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_scales_of_float8_are_those_of_plain_training(alpha):
    """They are measured at the weights, and are not part of the norm."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 6)).astype("float32"), rng.normal(size=(8, 4)).astype("float32")
    weights = [rng.normal(size=shape) for shape in ((6, 5), (5,), (5, 4), (4,))]

    def trained(rho, quantized):
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5), keras.layers.Dense(4)])
        model.set_weights(weights)
        if quantized:
            model.quantize("float8")
        trainer = model if rho is None else keras_tfopt.SharpnessAware(model, rho, alpha=alpha)
        trainer.compile(keras_tfopt.GradientDescent(0.1), "mse")
        for _ in range(2):
            trainer.train_on_batch(x, y)
        kernels = [layer.kernel for layer in model.layers]
        return [
            [
                ops.convert_to_numpy(v)
                for v in model.trainable_variables
                if v.overwrite_with_gradient
            ],
            [ops.convert_to_numpy(v) for v in kernels],
        ]

    scales, kernels = trained(1e-9, True)
    plain_scales, plain_kernels = trained(None, True)
    assert len(scales) == len(plain_scales) == 12
    for one, plain in zip(scales + kernels, plain_scales + plain_kernels):
        np.testing.assert_allclose(one, plain, 1e-4, 1e-5)
    far, far_without = trained(0.5, True)[1], trained(0.5, False)[1]
    for one, without, plain in zip(far, far_without, plain_kernels):
        # Eight bits are coarse, but not as coarse as the distance.
        assert np.abs(one - without).max() < 0.3 * np.abs(one - plain).max()


@pytest.mark.spread("torch")
def test_tables_train_as_with_dense_gradients():
    results = []
    for layer in (keras.layers.Embedding, keras_tfopt.layers.Embedding):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([layer(9, 4), keras.layers.Flatten(), keras.layers.Dense(1)])
        trainer = SharpnessAware(model, rho=0.1)
        trainer.compile(keras_tfopt.Adagrad(0.1), loss="mse")
        ids = np.arange(12).reshape(6, 2) % 9
        trainer.fit(ids, np.ones((6, 1)), batch_size=3, epochs=2, shuffle=False, verbose=0)
        results.append([ops.convert_to_numpy(v) for v in model.weights])
    for stock, ours in zip(*results, strict=True):
        np.testing.assert_allclose(ours, stock, 1e-5, 1e-6)


def test_a_saved_trainer_is_loaded_with_its_state(tmp_path):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    trainer = SharpnessAware(
        model, rho=0.2, adaptive=True, alpha=0.1, ascent_steps=2, ascent_momentum=0.5
    )
    fitted(trainer, model, keras_tfopt.Momentum(0.1, 0.9))
    trainer.save(tmp_path / "trainer.keras")
    loaded = keras.models.load_model(tmp_path / "trainer.keras")
    configs = [one.get_config() for one in (loaded, trainer)]
    assert [c.pop("model")["class_name"] for c in configs] == ["Sequential"] * 2
    assert configs[0] == configs[1]
    assert loaded.evaluate(*data(), verbose=0) == trainer.evaluate(*data(), verbose=0)
    pairs = zip(
        [*trainer.weights, *trainer.optimizer.variables],
        [*loaded.weights, *loaded.optimizer.variables],
        strict=True,
    )
    for old, new in pairs:
        np.testing.assert_array_equal(ops.convert_to_numpy(new), ops.convert_to_numpy(old))


# ---- Bad input -----------------------------------------------------------------------------------


@pytest.mark.spread
@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"model": "net"}, TypeError, "`model` must be a keras.Model"),
        ({"rho": 0.0}, ValueError, r"`rho` must be .*\(0, inf\).*0\.0"),
        ({"rho": float("nan")}, ValueError, "`rho`"),
        ({"rho": "0.1"}, TypeError, "`rho`"),
        ({"rho": keras.Variable(0.1)}, TypeError, "`rho` must be .* would be one of the weights"),
        ({"alpha": -0.1}, ValueError, r"`alpha` must be .*\[0, inf\)"),
        ({"adaptive": 1}, TypeError, "`adaptive` must be True or False"),
        ({"ascent_momentum": 1.0}, ValueError, r"`ascent_momentum` must be .*\[0, 1\).*1\.0"),
        ({"normalize": None}, TypeError, "`normalize` must be True or False"),
        ({"ascent_steps": 0}, ValueError, "`ascent_steps` must be .*>= 1"),
    ],
)
def test_bad_arguments_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        SharpnessAware(**{"model": network(), **options})


@pytest.mark.parametrize("optimizer", [None, keras_tfopt.legacy.MomentumOptimizer, object()])
def test_optimizers_that_cannot_be_given_a_gradient_are_refused(optimizer):
    if callable(optimizer):
        optimizer = optimizer(0.1, 0.9)
    trainer = SharpnessAware(network())
    with pytest.raises(TypeError, match=r"`optimizer` must be a Keras.*computes gradients itself"):
        trainer.compile(optimizer, loss="mse")
    assert not trainer.compiled
