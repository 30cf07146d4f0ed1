"""Saved state: files of models and weights, files that do not fit, checkpoints of TensorFlow."""

import json

import h5py
import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt.engine.averages import parts
from tests.cells import pick
from tests.helpers.compare import same
from tests.helpers.stepping import Runner, make_variable, to_numpy
from tests.workers.state_worker import (
    BEFORE,
    MAKERS,
    batches,
    everything,
    make_model,
    schedule,
    train,
)

STEPS = list(batches())


OTHERS = {
    **MAKERS,
    "stock inside": lambda: keras_tfopt.MovingAverage(keras.optimizers.Adam(0.05), 0.8),
    "twice": lambda: keras_tfopt.MovingAverage(
        keras_tfopt.MovingAverage(keras_tfopt.LazyAdam(0.05), 0.8), 0.5
    ),
}


every_maker = pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)


def values(variables):
    return [to_numpy(variable) for variable in variables]


def trained(make, steps=BEFORE):
    model = make_model(make())
    train(model, STEPS[:steps])
    return model


def assert_continue_alike(model, again):
    """Assert that two models make the same further steps, to the bit."""
    assert same(everything(model), everything(again))
    for batch in STEPS[BEFORE:]:
        before = everything(model)
        train(model, [batch])
        train(again, [batch])
        assert same(everything(model), everything(again))
        assert not same(everything(model), before)


# Files


@pytest.mark.slow
@every_maker
@pytest.mark.spread("torch")
def test_a_saved_model_continues(make, tmp_path):
    """The model is saved in the middle of an accumulation."""
    model = trained(make)
    model.save(tmp_path / "model.keras")
    assert_continue_alike(model, keras.saving.load_model(tmp_path / "model.keras"))


def is_of_keras(name):
    """Return True if the innermost optimizer is one of Keras."""
    return name in ("scaled", "stock inside", "of_keras") or name.endswith(" of stock Adam")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "is_built"),
    [(name, built) for built in (True, False) for name in OTHERS if built or not is_of_keras(name)],
)
@pytest.mark.spread("torch")
def test_training_continues_from_saved_weights(name, is_built, tmp_path):
    """This works for an optimizer that is not built, too. Keras skips the state there."""
    make = OTHERS[name]
    model, path = trained(make), tmp_path / "model.weights.h5"
    model.save_weights(path)
    again = make_model(make())
    if not is_built:
        again.load_weights(path)
        assert not again.optimizer.built
        path = tmp_path / "again.weights.h5"
        again.save_weights(path)  # state that waits for `build` is saved as well
        again = make_model(make())
        again.load_weights(path)
    again.optimizer.build(again.trainable_variables)
    if is_built:
        again.load_weights(path)
    assert int(to_numpy(again.optimizer.iterations)) == int(to_numpy(model.optimizer.iterations))
    assert_continue_alike(model, again)


def test_a_learning_rate_assigned_after_loading_stays(tmp_path):
    model = trained(lambda: keras_tfopt.LazyAdam(0.05))
    model.save_weights(tmp_path / "model.weights.h5")
    again = make_model(keras_tfopt.LazyAdam(0.05))
    again.load_weights(tmp_path / "model.weights.h5")
    assert int(to_numpy(again.optimizer.iterations)) == BEFORE
    again.optimizer.learning_rate = 0.25
    again.optimizer.build(again.trainable_variables)
    assert float(to_numpy(again.optimizer.learning_rate)) == 0.25
    assert int(to_numpy(again.optimizer.iterations)) == BEFORE
    rest = everything(model)[len(model.trainable_variables) + 2 :]
    assert same(rest, everything(again)[len(model.trainable_variables) + 2 :])


@pytest.mark.parametrize("rate", (0.1, 1.0))  # 1.0 is also the count of steps
def test_float64_state_waits_without_being_rounded(rate):
    first = Runner(keras_tfopt.Momentum(rate), {"kernel": np.ones(3)}, dtype="float64")
    first.step({"kernel": np.full(3, 0.1)})
    store = {}
    first.optimizer.save_own_variables(store)
    again = keras_tfopt.Momentum(rate)
    again.load_own_variables(store)
    second = Runner(again, first.values, dtype="float64")
    assert same(first.snapshot(), second.snapshot())
    assert float(to_numpy(again.learning_rate)) == rate


@pytest.mark.filterwarnings("error:Skipping")
def test_files_without_state(tmp_path):
    """Models may be saved before they are trained or compiled."""
    fresh = make_model(keras_tfopt.LazyAdam(0.125))
    fresh.save(tmp_path / "fresh.keras")
    loaded = keras.saving.load_model(tmp_path / "fresh.keras")
    assert int(to_numpy(loaded.optimizer.iterations)) == 0
    assert float(to_numpy(loaded.optimizer.learning_rate)) == 0.125
    train(loaded, STEPS[:1])

    bare = make_model(None)
    bare.save_weights(tmp_path / "bare.weights.h5")
    new = make_model(keras_tfopt.LazyAdam())
    new.load_weights(tmp_path / "bare.weights.h5")
    assert same(new.get_weights(), bare.get_weights())
    before = values(loaded.optimizer.variables)
    with pytest.warns(UserWarning, match="no saved state for the optimizer"):
        loaded.load_weights(tmp_path / "bare.weights.h5")
    assert same(before, values(loaded.optimizer.variables))


# Refusals


def built(optimizer, shape=(3,), count=1):
    optimizer.build([make_variable(f"v{i}/kernel", np.ones(shape)) for i in range(count)])
    return optimizer


def store_of(optimizer):
    store = {}
    optimizer.save_own_variables(store)
    return store


def without(store, key):
    return {k: v for k, v in store.items() if k != key}


def refused_stores():
    """Return {name: (state that does not fit a LazyAdam of two variables, words of the error)}."""

    def of(optimizer, shape=(3,), count=2):
        return store_of(built(optimizer, shape, count))

    lazy = of(keras_tfopt.LazyAdam())
    swapped = {**lazy, "layout": layout(lazy, lambda roles: [*roles[:3], *roles[:2:-1]])}
    last = str(max(int(k) for k in lazy if k.isdigit()))
    foreign = "not written by this package"
    shapes = ["position 3", "'m'", "(2, 2)", "(3,)"]
    return {
        "another optimizer": (of(keras_tfopt.Momentum()), ["momentum", "m"]),
        "another count": (of(keras_tfopt.LazyAdam(), count=3), ["3 x m", "2 x m"]),
        "another shape": (of(keras_tfopt.LazyAdam(), (2, 2)), shapes),
        "another option": (of(keras_tfopt.LazyAdam(use_ema=True)), ["average"]),
        "another order": (swapped, ["position 3", "'v'", "'m'"]),
        "a schedule": (of(keras_tfopt.LazyAdam(schedule())), ["1 x learning_rate"]),
        "truncated": (without(lazy, last), [f"position {last}", "missing"]),
        "truncated in the middle": (without(lazy, "4"), ["position 4 ('v') is missing"]),
        "without a layout": (without(lazy, "layout"), [foreign]),
        "stock Adam": (of(keras.optimizers.Adam()), [foreign, "'5'"]),
        "a wrapper": (of(keras_tfopt.MovingAverage(keras_tfopt.LazyAdam())), ["average"]),
    }


@pytest.mark.parametrize("is_built", [True, False])
def test_a_sum_of_gradients_is_not_divided_by_another_number(is_built):
    def make(steps):
        variable = make_variable("v", np.zeros(2))
        optimizer = keras_tfopt.GradientDescent(1.0, gradient_accumulation_steps=steps)
        return optimizer, variable, lambda: optimizer.apply([np.ones(2, "float32")], [variable])

    def load(optimizer, variable, store):
        if is_built:
            optimizer.build([variable])
        optimizer.load_own_variables(store)
        optimizer.build([variable])

    old, _, step = make(4)
    with keras_tfopt.engine.plain():
        for _ in range(6):
            step()
        new, variable, _ = make(2)
        with pytest.raises(ValueError, match="sum of 2 gradients of 4.*_steps is 2 here"):
            load(new, variable, store_of(old))
        assert to_numpy(new.iterations) == 0
        for _ in range(2):
            step()
        new, variable, step = make(2)
        load(new, variable, store_of(old))
        for _ in range(2):
            step()
    np.testing.assert_array_equal(to_numpy(variable), -np.ones(2))


@pytest.mark.parametrize(("there", "here"), [(3, 4), (2, 3), (4, 2)])
@pytest.mark.parametrize("around", [lambda inner: inner, keras_tfopt.MovingAverage])
def test_whole_steps_count_where_other_numbers_of_gradients_make_a_step(there, here, around):
    def make(steps):
        inner = keras_tfopt.GradientDescent(1.0, gradient_accumulation_steps=steps)
        return around(inner), make_variable("v", np.zeros(2))

    def step(optimizer, variable):
        optimizer.apply([np.ones(2, "float32")], [variable])
        return float(to_numpy(variable)[0])

    with keras_tfopt.engine.plain():
        old, variable = make(there)
        for _ in range(2 * there):
            step(old, variable)
        new, variable = make(here)
        new.build([variable])
        for one, other in zip(parts(old), parts(new), strict=True):
            other.load_own_variables(store_of(one))
        assert to_numpy(new.iterations) == 2
        moved = [step(new, variable) for _ in range(2 * here)]
    assert moved == [-float(n // here) for n in range(1, 2 * here + 1)]


def layout(store, change):
    roles = json.loads(bytes(store["layout"]).decode())
    return np.frombuffer(json.dumps(change(roles)).encode(), dtype="uint8")


@pytest.mark.parametrize("name", refused_stores())
def test_state_that_does_not_fit_is_refused_and_changes_nothing(name):
    store, words = refused_stores()[name]
    optimizer = built(keras_tfopt.LazyAdam(0.3, name="mine"), count=2)
    for variable in optimizer.variables:
        if len(variable.shape):
            variable.assign(np.full(variable.shape, 0.7))
    before = values(optimizer.variables)
    with pytest.raises(ValueError) as error:
        optimizer.load_own_variables(store)
    for word in ("'mine'", *words):
        assert word in str(error.value), f"{word!r} is not in: {error.value}"
    assert same(before, values(optimizer.variables))


ONLY_BUILD_CAN_TELL = ("another shape", "another count", "another option", "another order")


@pytest.mark.parametrize("name", [n for n in refused_stores() if n not in ONLY_BUILD_CAN_TELL])
def test_state_that_cannot_fit_is_refused_before_the_optimizer_is_built(name):
    store, _ = refused_stores()[name]
    optimizer = keras_tfopt.LazyAdam(0.3)
    with pytest.raises(ValueError, match="does not fit the optimizer"):
        optimizer.load_own_variables(store)
    built(optimizer, count=2)
    assert all(not np.any(to_numpy(v)) for v in optimizer.variables[2:])


@pytest.mark.parametrize("name", ONLY_BUILD_CAN_TELL)
def test_state_that_does_not_fit_the_variables_is_refused_by_build(name):
    store, words = refused_stores()[name]
    optimizer = keras_tfopt.LazyAdam(0.3)
    optimizer.load_own_variables(store)
    variables = [make_variable(f"v{i}/kernel", np.ones(3)) for i in range(2)]
    for _ in range(2):  # also if the step is tried again
        with pytest.raises(ValueError) as error:
            optimizer.apply([np.ones(v.shape) for v in variables], variables)
        assert all(word in str(error.value) for word in words)
    assert not any(np.any(to_numpy(v)) for v in optimizer.variables[2:])
    optimizer.load_own_variables(store_of(built(keras_tfopt.LazyAdam(0.3), count=2)))
    optimizer.apply([np.ones(v.shape) for v in variables], variables)
    assert len(optimizer.variables) == 7 and int(optimizer.iterations) == 1


def test_a_wrapper_refuses_as_well():
    wrapper = built(keras_tfopt.MovingAverage(keras_tfopt.Momentum(), 0.5))
    store = store_of(built(keras_tfopt.LazyAdam()))
    with pytest.raises(ValueError, match="does not fit"):
        wrapper.load_own_variables(store)


@pytest.mark.parametrize("is_built", (True, False))
@pytest.mark.parametrize(
    ("make", "removed", "says"),
    [
        (lambda: keras.optimizers.Adam(0.05), None, "not written by this package"),
        (lambda: keras_tfopt.LazyAdam(0.05), "4", r"position 4 \('v'\) is missing"),
    ],
)
def test_load_weights_raises_what_the_optimizer_refuses(make, removed, says, is_built, tmp_path):
    """Keras collects errors of loading. At the end it raises one that quotes the first."""
    path = tmp_path / "other.weights.h5"
    trained(make).save_weights(path)
    if removed is not None:
        with h5py.File(path, "r+") as file:
            del file["optimizer"]["vars"][removed]
    model = make_model(keras_tfopt.LazyAdam())
    if is_built:
        model.optimizer.build(model.trainable_variables)
    before = values(model.optimizer.variables)
    with pytest.raises(ValueError, match=says) as error:
        model.load_weights(path)
    assert ("skip_mismatch=True" in str(error.value)) == (removed is None)
    assert same(before, values(model.optimizer.variables))

    # the option that the message names
    with pytest.warns(UserWarning, match=says):
        model.load_weights(path, skip_mismatch=True)
    assert same(before, values(model.optimizer.variables))
    train(model, STEPS[:1])


@pytest.mark.filterwarnings("ignore:Skipping variable loading")
def test_optimizers_of_keras_skip_our_state(tmp_path):
    path = tmp_path / "ours.weights.h5"
    trained(lambda: keras_tfopt.LazyAdam(0.05)).save_weights(path)
    stock = make_model(keras.optimizers.Adam(0.05))
    stock.optimizer.build(stock.trainable_variables)
    stock.load_weights(path)
    assert int(to_numpy(stock.optimizer.iterations)) == 0


# tf.train.Checkpoint


def checkpoints():
    """Yield each optimizer with a moment to restore it; with all moments if exhaustive."""
    times = "built", "before build", "before the model is trained"
    for name in OTHERS:
        usual = pick(times, "checkpoint", name)
        for when in times:
            yield pytest.param(name, when, marks=[pytest.mark.exhaustive] * (when != usual))


@pytest.mark.backends("tensorflow", reason="TensorFlow's own checkpoints")
@pytest.mark.parametrize(("name", "when"), checkpoints())
def test_tensorflow_checkpoint(name, when, tmp_path):
    import tensorflow as tf

    make = OTHERS[name]
    model = trained(make)
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path / "ckpt")

    again = make_model(make())
    checkpoint = tf.train.Checkpoint(model=again, optimizer=again.optimizer)
    if when == "built":
        again.optimizer.build(again.trainable_variables)
    status = checkpoint.restore(path)  # also of variables that are created later
    if when == "before the model is trained":
        train(model, STEPS[BEFORE:4])
        train(again, STEPS[BEFORE:4])
    elif when == "before build":
        again.optimizer.build(again.trainable_variables)
    status.assert_consumed()
    assert same(everything(model), everything(again))
