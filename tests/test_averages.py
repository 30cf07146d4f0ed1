"""Averages take the place of weights in evaluations, in a context and in checkpoints."""

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.cells import exhaustive
from tests.helpers.compare import same
from tests.helpers.programs import AS_USERS, SPREAD, TWO_DEVICES, output_of
from tests.helpers.stepping import BACKEND, several_only, to_numpy

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 4)).astype("float32")
Y = RNG.normal(size=(16, 2)).astype("float32")


def momentum(**base):
    return keras_tfopt.Momentum(0.1, **base)


EMA = {"use_ema": True, "ema_momentum": 0.9}
TWO = {"gradient_accumulation_steps": 2}
FROZEN_BIAS = {"last/bias$": {"frozen": True}}
SOURCES = {
    "MovingAverage": lambda: keras_tfopt.MovingAverage(momentum(), 0.9),
    "SWA": lambda: keras_tfopt.StochasticWeightAveraging(momentum(), 1, 2),
    "Lookahead": lambda: keras_tfopt.Lookahead(momentum(), 4),
    "ScheduleFree": lambda: keras_tfopt.ScheduleFree(momentum()),
    "ScheduleFreeSGD": lambda: keras_tfopt.ScheduleFreeSGD(0.1, 0.8, groups=FROZEN_BIAS),
    "ScheduleFreeAdamW use_ema": lambda: keras_tfopt.ScheduleFreeAdamW(0.1, **EMA),
    "use_ema": lambda: momentum(**EMA),
    "stock use_ema": lambda: keras.optimizers.SGD(0.1, momentum=0.9, **EMA),
    "inside": lambda: keras_tfopt.SkipNonFinite(
        keras_tfopt.DecoupledWeightDecay(keras_tfopt.MovingAverage(keras.optimizers.SGD(0.1)), 0.01)
    ),
    "stock use_ema inside": lambda: keras_tfopt.Multitask(keras.optimizers.Adam(0.1, **EMA)),
    "accumulation": lambda: keras_tfopt.MovingAverage(momentum(**TWO), 0.9),
    "accumulation use_ema": lambda: momentum(**TWO, **EMA),
    "stock accumulation": lambda: keras_tfopt.MovingAverage(keras.optimizers.SGD(0.1, **TWO), 0.9),
    "scaled": lambda: keras_tfopt.LossScaleOptimizer(keras_tfopt.MovingAverage(momentum(), 0.9)),
    "of several": lambda: keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(
            keras_tfopt.MovingAverage(momentum(), 0.9),
            {".*bias": keras_tfopt.Lookahead(momentum(), 4)},
        )
    ),
}


def marks_of(name):
    return several_only if name == "of several" else ()


every_verb = pytest.mark.parametrize("verb", ("evaluate", "predict"))


def make_model(optimizer, **options):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(2, name="last")]
    )
    model.compile(optimizer, "mse", **options)
    return model


def trained(make, steps=6, **options):
    model = make_model(make(), **options)
    for _ in range(steps):
        model.train_on_batch(X, Y)
    return model


def everything(model):
    return [to_numpy(v).copy() for v in (*model.variables, *model.optimizer.variables)]


def mlp(weights, x=X):
    """Return the outputs of the model in NumPy."""
    return np.tanh(x @ weights[0] + weights[1]) @ weights[2] + weights[3]


def averages(path, decay):
    average = path[0]
    for weights in path[1:]:
        average = [decay * a + (1 - decay) * w for a, w in zip(average, weights, strict=True)]
    return average


def schedule_free(path, momentum):
    """Compute x from y after each step, with a constant learning rate: then its weights are 1/t."""
    x = path[0]
    for t, ys in enumerate(path[1:], 1):
        part = 1 / (t * (1 - momentum))
        x = [
            ((1 - 1 / t) * a + part * y) / (1 + momentum * part) for a, y in zip(x, ys, strict=True)
        ]
    return x


# {source: its averages, from the weights after each step}
FORMULAS = {
    "ScheduleFreeSGD": lambda path: schedule_free(path, 0.8),
    "ScheduleFreeAdamW use_ema": lambda path: averages(path[1:], 0.9),
    "MovingAverage": lambda path: averages(path, 0.9),
    "SWA": lambda path: [np.mean(w, axis=0) for w in zip(path[2], path[4], path[6], strict=True)],
    "use_ema": lambda path: averages(path[1:], 0.9),  # starts at the first new weights
    "stock use_ema": lambda path: averages(path[1:], 0.9),
    "accumulation": lambda path: averages(path[::2], 0.9),
    "accumulation use_ema": lambda path: averages(path[2::2], 0.9),
    "stock accumulation": lambda path: averages(path[::2], 0.9),
    "scaled": lambda path: averages(path, 0.9),
    "inside": lambda path: averages(path, 0.9999),
}


@pytest.mark.spread
@pytest.mark.parametrize("name", [pytest.param(n, marks=marks_of(n)) for n in SOURCES])
def test_averages_are_seen_in_a_context_and_in_evaluations(name):
    """They leave no trace."""
    model = make_model(SOURCES[name]())
    path = [model.get_weights()]
    for _ in range(6):
        model.train_on_batch(X, Y)
        path.append(model.get_weights())
    before = everything(model)
    with keras_tfopt.averaged(model):
        inside = model.get_weights()
    assert same(before, everything(model))
    assert not same(inside, model.get_weights())
    if name in FORMULAS:
        for got, want in zip(inside, FORMULAS[name](path), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
    callback = keras_tfopt.callbacks.EvaluateWithAverages()
    outputs = mlp(inside)
    for verb, arguments, want in (
        (model.evaluate, (X, Y), np.mean((outputs - Y) ** 2)),
        (model.predict, (X,), outputs),
    ):
        raw = verb(*arguments, batch_size=8, verbose=0)
        seen = verb(*arguments, batch_size=8, verbose=0, callbacks=[callback])
        np.testing.assert_allclose(seen, want, rtol=1e-4, atol=1e-5)
        assert not np.allclose(seen, raw, rtol=1e-6)
        assert same(before, everything(model))
        np.testing.assert_array_equal(verb(*arguments, batch_size=8, verbose=0), raw)


EAGERLY, TOGETHER = {"run_eagerly": True}, {"steps_per_execution": 2}
RARE = ("SWA", "Lookahead", "ScheduleFree", "ScheduleFreeSGD")  # evaluated above
WAYS = [
    exhaustive(name, {}) if name in RARE else pytest.param(name, {}, marks=marks_of(name))
    for name in SOURCES
]
# Options of `compile` do not concern optimizers: one of ours and one of Keras try them.
WAYS += [("MovingAverage", EAGERLY), exhaustive("stock use_ema", EAGERLY)]
if BACKEND != "torch":  # Keras has no steps_per_execution there
    WAYS += [(name, TOGETHER) for name in ("MovingAverage", "stock use_ema")]


@pytest.mark.spread
@pytest.mark.parametrize(("name", "options"), WAYS, ids=str)
def test_evaluations_do_not_change_the_training(name, options):
    make = SOURCES[name]
    fit = {"epochs": 3, "batch_size": 4, "shuffle": False, "verbose": 0}
    plain, watched = make_model(make(), **options), make_model(make(), **options)
    plain.fit(X, Y, **fit)
    callback = keras_tfopt.callbacks.EvaluateWithAverages()
    history = watched.fit(X, Y, validation_data=(X, Y), callbacks=[callback], **fit)
    assert same(plain.get_weights(), watched.get_weights())
    state, twin = ([to_numpy(v) for v in m.optimizer.variables] for m in (plain, watched))
    assert same(state, twin)
    with keras_tfopt.averaged(watched):
        last = np.mean((mlp(watched.get_weights()) - Y) ** 2)
    np.testing.assert_allclose(history.history["val_loss"][-1], last, rtol=1e-4)


class Interrupts(keras.callbacks.Callback):
    def __init__(self, error, at):
        super().__init__()
        self.error, self.at = error, at

    def on_test_batch_end(self, batch, logs=None):
        if batch == self.at:
            raise self.error

    on_predict_batch_end = on_test_batch_end


@every_verb
@pytest.mark.parametrize("error", (KeyboardInterrupt(), RuntimeError("from a callback")), ids=repr)
@pytest.mark.parametrize("at", (0, 1))
@pytest.mark.spread
def test_the_model_keeps_its_weights_after_an_exception(verb, error, at):
    model = trained(SOURCES["MovingAverage"])
    before = everything(model)
    raw = model.predict(X, verbose=0)
    arguments = (X,) if verb == "predict" else (X, Y)
    callback = keras_tfopt.callbacks.EvaluateWithAverages()
    with pytest.raises(type(error)):
        getattr(model, verb)(
            *arguments, batch_size=4, verbose=0, callbacks=[callback, Interrupts(error, at)]
        )
    if BACKEND == "jax":
        model.jax_state_sync()  # in an evaluation, Keras keeps the weights elsewhere
    assert same(before[:4], everything(model)[:4])
    np.testing.assert_array_equal(model.predict(X, verbose=0), raw)
    loss = model.evaluate(X, Y, verbose=0)
    np.testing.assert_allclose(loss, np.mean((mlp(before[:4]) - Y) ** 2), rtol=1e-4)
    assert model.evaluate(X, Y, verbose=0, callbacks=[callback]) != loss  # averages again


@pytest.mark.parametrize("error", (KeyboardInterrupt, ValueError))
def test_the_context_restores_after_an_exception(error):
    model = trained(SOURCES["MovingAverage"])
    before = everything(model)
    with pytest.raises(error), model.optimizer.averaged(model):
        model.layers[0].kernel.assign(np.zeros((4, 3)))
        raise error
    assert same(before, everything(model))


def test_half_precision_weights_are_restored_to_the_bit():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, dtype="bfloat16")])
    model.compile(keras_tfopt.MovingAverage(keras_tfopt.Momentum(0.1), 0.7), "mse")
    for _ in range(3):
        model.train_on_batch(X, Y)
    before = everything(model)
    with keras_tfopt.averaged(model):
        inside = [to_numpy(v) for v in model.trainable_variables]
    assert same(before, everything(model))
    for variable, got in zip(model.trainable_variables, inside, strict=True):
        average = to_numpy(model.optimizer.slot(variable, "average"))
        np.testing.assert_allclose(got, average, rtol=2**-8)


@pytest.mark.parametrize("weights_only", (True, False))
def test_checkpoints_hold_the_averages(tmp_path, weights_only):
    model = make_model(SOURCES["MovingAverage"]())
    path = tmp_path / ("last.weights.h5" if weights_only else "last.keras")
    checkpoint = keras_tfopt.callbacks.AveragesCheckpoint(path, save_weights_only=weights_only)
    plain = make_model(SOURCES["MovingAverage"]())
    fit = {"epochs": 2, "batch_size": 4, "shuffle": False, "verbose": 0}
    model.fit(X, Y, callbacks=[checkpoint], **fit)
    plain.fit(X, Y, **fit)
    assert same(everything(plain)[:4], everything(model)[:4])
    if weights_only:
        loaded = make_model("sgd")
        loaded.load_weights(path, skip_mismatch=True)
    else:
        loaded = keras.saving.load_model(path, compile=False)
    with keras_tfopt.averaged(model):
        assert same(loaded.get_weights(), model.get_weights())
    assert not same(loaded.get_weights(), model.get_weights())


@pytest.mark.spread("torch")
def test_the_best_by_averages_is_kept(tmp_path):
    model = make_model(SOURCES["MovingAverage"]())
    path = tmp_path / "best.weights.h5"
    history = model.fit(
        X,
        Y,
        validation_data=(X, Y),
        epochs=4,
        verbose=0,
        callbacks=[
            keras_tfopt.callbacks.EvaluateWithAverages(),
            keras_tfopt.callbacks.AveragesCheckpoint(
                path, save_weights_only=True, save_best_only=True
            ),
        ],
    )
    loaded = make_model("sgd")
    loaded.load_weights(path, skip_mismatch=True)
    best = min(history.history["val_loss"])
    np.testing.assert_allclose(loaded.evaluate(X, Y, verbose=0), best, rtol=1e-5)


# Errors


def refused(model, *words, of=None, callbacks=1):
    before = everything(model)
    evaluation = [keras_tfopt.callbacks.EvaluateWithAverages(of) for _ in range(callbacks)]
    with pytest.raises(ValueError) as error:
        model.evaluate(X, Y, verbose=0, callbacks=evaluation)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert same(before, everything(model))
    model.evaluate(X, Y, verbose=0)


@pytest.mark.spread("torch")
def test_no_averages_before_the_first_step():
    model = make_model(SOURCES["MovingAverage"]())
    with pytest.raises(ValueError, match="before the first step"):
        with keras_tfopt.averaged(model):
            pass
    model.optimizer.build(model.trainable_variables)
    refused(model, "before the first step", "MovingAverage")


@pytest.mark.spread("torch")
def test_an_optimizer_without_averages():
    """The error says which optimizers keep averages."""
    refused(trained(momentum), "no averages", "MovingAverage", "use_ema", "Momentum")


@pytest.mark.spread("torch")
def test_two_wrappers_with_averages():
    """`of` has to say which averages are meant."""

    def make():
        return keras_tfopt.MovingAverage(keras_tfopt.Lookahead(momentum(), 4), 0.5)

    model = trained(lambda: keras_tfopt.SkipNonFinite(make()))
    ways = ("(`optimizer.inner_optimizer`)", "(`optimizer.inner_optimizer.inner_optimizer`)")
    refused(model, "MovingAverage", "Lookahead", "by `of`", *ways)
    refused(model, "that keeps averages", "(`optimizer`)", *ways, of=model.optimizer)
    model = trained(make)
    outer, inner = model.optimizer, model.optimizer.inner_optimizer
    for of, name in ((outer, "average"), (inner, "slow")):
        with keras_tfopt.averaged(model, of=of):
            kernel = to_numpy(model.layers[0].kernel)
        assert np.array_equal(kernel, to_numpy(outer.slot(model.layers[0].kernel, name)))
    refused(model, "of", of=momentum())


@pytest.mark.spread("torch")
def test_an_optimizer_of_another_model_is_refused():
    model = trained(SOURCES["MovingAverage"])
    with pytest.raises(ValueError, match="variables of the model.*MovingAverage.*another model"):
        model.optimizer.averaged(keras.models.clone_model(model)).__enter__()
    # A model around it, and a part of it, have some of the variables.
    average = to_numpy(model.optimizer.slot(model.layers[0].kernel, "average"))
    for other in (keras.Sequential([model]), keras.Sequential(model.layers[:1])):
        with keras_tfopt.averaged(other, model.optimizer):
            assert np.array_equal(to_numpy(model.layers[0].kernel), average)


@pytest.mark.spread("torch")
def test_a_second_context_inside_is_refused():
    model = trained(SOURCES["MovingAverage"])
    before = everything(model)
    with keras_tfopt.averaged(model):
        inside = everything(model)
        refused(model, "already")
        with pytest.raises(ValueError, match="already"):
            with keras_tfopt.averaged(model):
                pass
        assert same(inside, everything(model))
    assert same(before, everything(model))
    refused(model, "one callback", callbacks=2)


@pytest.mark.spread("torch")
def test_a_training_inside_of_the_context_is_refused_afterwards():
    model = trained(SOURCES["MovingAverage"])
    before = model.get_weights()
    with pytest.raises(RuntimeError, match="cannot be trained.*6 steps before, 8 after"):
        with keras_tfopt.averaged(model):
            model.fit(X, Y, epochs=2, batch_size=len(X), verbose=0)
    assert same(before, model.get_weights())


# Several devices

TRAINING = """
rng = np.random.default_rng(0)
x, y = (rng.normal(size=(16, n)).astype("float32") for n in (4, 2))

def train(average):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile(keras_tfopt.MovingAverage(keras_tfopt.LazyAdam(0.1), 0.8), "mse")
    averages = [keras_tfopt.callbacks.EvaluateWithAverages()] * average
    fit = {"epochs": 2, "batch_size": 8, "shuffle": False, "verbose": 0}
    history = model.fit(x, y, validation_data=(x, y), callbacks=averages, **fit).history
    weights = model.get_weights()
    with model.optimizer.averaged(model):
        inside = model.get_weights()
    assert all(map(np.array_equal, weights, model.get_weights()))
    return history["val_loss"], weights, inside

with scope():
    (losses, weights, inside), plain = train(True), train(False)
last = np.mean((x @ inside[0] + inside[1] - y) ** 2)
np.testing.assert_allclose(losses[-1], last, rtol=1e-4, atol=1e-5)
assert all(map(np.array_equal, weights, plain[1])), "training was disturbed"
assert losses != plain[0]
"""
PROGRAM = TWO_DEVICES + SPREAD + TRAINING


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", reason="Keras spreads no training on PyTorch by itself")
@pytest.mark.spread
def test_averages_on_two_devices():
    """The assertions of a program that evaluates on two devices hold."""
    output_of("-c", PROGRAM, **AS_USERS)
