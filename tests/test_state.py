"""State that travels: through files, between backends, copies and configurations."""

import copy
import itertools
import json
import os
import pathlib
import pickle
import subprocess
import sys

import h5py
import keras
import numpy as np
import pytest

import keras_tfopt
from tests import state_worker
from tests.cases import CASES, every_case, gradients, initial
from tests.cells import INSTALLED, pick
from tests.state_worker import (
    BEFORE,
    EVERYTHING,
    MAKERS,
    TRAVELLERS,
    batches,
    everything,
    make_model,
    schedule,
    train,
    ways,
)
from tests.stepping import BACKEND, Runner, make_variable, to_numpy

STEPS = list(batches())
OTHERS = {
    **MAKERS,
    "stock inside": lambda: keras_tfopt.MovingAverage(keras.optimizers.Adam(0.05), 0.8),
    "twice": lambda: keras_tfopt.MovingAverage(
        keras_tfopt.MovingAverage(keras_tfopt.LazyAdam(0.05), 0.8), 0.5
    ),
}
every_maker = pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def trained(make, steps=BEFORE):
    model = make_model(make())
    train(model, STEPS[:steps])
    return model


def go_on_alike(model, again):
    """The same further steps of both, to the bit."""
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
@pytest.mark.spread
def test_a_saved_model_goes_on(make, tmp_path):
    """In the middle of an accumulation, with averages, schedule, loss scale."""
    model = trained(make)
    model.save(tmp_path / "model.keras")
    go_on_alike(model, keras.saving.load_model(tmp_path / "model.keras"))


@pytest.mark.slow
@every_maker
@pytest.mark.spread
def test_saved_weights_go_on(make, tmp_path):
    model = trained(make)
    model.save_weights(tmp_path / "model.weights.h5")
    again = make_model(make())
    again.optimizer.build(again.trainable_variables)
    again.load_weights(tmp_path / "model.weights.h5")
    go_on_alike(model, again)


def is_of_keras(name):
    """Whether the optimizer within is one of Keras."""
    return name in ("scaled", "stock inside", "of_keras") or name.endswith(" of stock Adam")


UNBUILT = [name for name in OTHERS if not is_of_keras(name)]


@pytest.mark.slow
@pytest.mark.parametrize("name", UNBUILT)
@pytest.mark.spread
def test_saved_weights_go_on_in_an_optimizer_that_is_not_built_yet(name, tmp_path):
    """Stock Keras skips the state with a warning. (So it does for its own, ours inside or not.)"""
    make = OTHERS[name]
    model = trained(make)
    model.save_weights(tmp_path / "model.weights.h5")
    again = make_model(make())
    again.load_weights(tmp_path / "model.weights.h5")
    assert not again.optimizer.built
    again.save_weights(tmp_path / "again.weights.h5")  # what waits is saved as well
    last = make_model(make())
    last.load_weights(tmp_path / "again.weights.h5")
    last.optimizer.build(last.trainable_variables)
    assert int(to_numpy(last.optimizer.iterations)) == int(to_numpy(model.optimizer.iterations))
    go_on_alike(model, last)


def test_what_is_set_after_loading_stays(tmp_path):
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


def test_float64_state_waits_without_being_rounded():
    first = Runner(keras_tfopt.Momentum(0.1), {"kernel": np.ones(3)}, dtype="float64")
    first.step({"kernel": np.full(3, 0.1)})
    store = {}
    first.optimizer.save_own_variables(store)
    again = keras_tfopt.Momentum(0.1)
    again.load_own_variables(store)
    second = Runner(again, first.values, dtype="float64")
    assert same(first.snapshot(), second.snapshot())
    assert float(to_numpy(again.learning_rate)) == 0.1


@pytest.mark.filterwarnings("error:Skipping")
def test_files_without_state(tmp_path):
    """Models that were not trained or not compiled when they were saved."""
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
    before = [to_numpy(v) for v in loaded.optimizer.variables]
    with pytest.warns(UserWarning, match="no saved state for the optimizer"):
        loaded.load_weights(tmp_path / "bare.weights.h5")
    assert same(before, [to_numpy(v) for v in loaded.optimizer.variables])


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
    """What is loaded into LazyAdam built for two variables of shape (3,), and what is said."""
    lazy = store_of(built(keras_tfopt.LazyAdam(), count=2))
    swapped = {**lazy, "layout": layout(lazy, lambda roles: [*roles[:3], *roles[:2:-1]])}
    averages = keras_tfopt.LazyAdam(use_ema=True)
    last = str(max(int(k) for k in lazy if k.isdigit()))
    return {
        "another optimizer": (store_of(built(keras_tfopt.Momentum(), count=2)), ["momentum", "m"]),
        "another count": (store_of(built(keras_tfopt.LazyAdam(), count=3)), ["3 x m", "2 x m"]),
        "another shape": (
            store_of(built(keras_tfopt.LazyAdam(), (2, 2), 2)),
            ["position 3", "'m'", "(2, 2)", "(3,)"],
        ),
        "another option": (store_of(built(averages, count=2)), ["average"]),
        "another order": (swapped, ["position 3", "'v'", "'m'"]),
        "a schedule": (
            store_of(built(keras_tfopt.LazyAdam(schedule()), count=2)),
            ["1 x learning_rate"],
        ),
        "truncated": (without(lazy, last), [f"position {last}", "missing"]),
        "truncated in the middle": (without(lazy, "4"), ["position 4", "missing"]),
        "without a layout": (without(lazy, "layout"), ["not written by this package"]),
        "stock Adam": (
            store_of(built(keras.optimizers.Adam(), count=2)),
            ["not written by this package", "'5'"],
        ),
        "a wrapper": (
            store_of(built(keras_tfopt.MovingAverage(keras_tfopt.LazyAdam()), count=2)),
            ["average"],
        ),
    }


def layout(store, change):
    roles = json.loads(bytes(store["layout"]).decode())
    return np.frombuffer(json.dumps(change(roles)).encode(), dtype="uint8")


@pytest.mark.parametrize("name", refused_stores())
def test_what_does_not_fit_is_refused_before_anything_changes(name):
    store, words = refused_stores()[name]
    optimizer = built(keras_tfopt.LazyAdam(0.3, name="mine"), count=2)
    for variable in optimizer.variables:
        if len(variable.shape):
            variable.assign(np.full(variable.shape, 0.7))
    before = [to_numpy(v) for v in optimizer.variables]
    with pytest.raises(ValueError) as error:
        optimizer.load_own_variables(store)
    for word in ("'mine'", *words):
        assert word in str(error.value), f"{word!r} is not in: {error.value}"
    assert same(before, [to_numpy(v) for v in optimizer.variables])


ONLY_BUILD_CAN_TELL = ("another shape", "another count", "another option", "another order")


@pytest.mark.parametrize("name", [n for n in refused_stores() if n not in ONLY_BUILD_CAN_TELL])
def test_what_cannot_fit_is_refused_before_the_optimizer_is_built(name):
    store, _ = refused_stores()[name]
    optimizer = keras_tfopt.LazyAdam(0.3)
    with pytest.raises(ValueError, match="does not fit the optimizer"):
        optimizer.load_own_variables(store)
    built(optimizer, count=2)
    assert all(not np.any(to_numpy(v)) for v in optimizer.variables[2:])


@pytest.mark.parametrize("name", ONLY_BUILD_CAN_TELL)
def test_what_turns_out_not_to_fit_is_refused_by_build(name):
    store, words = refused_stores()[name]
    optimizer = keras_tfopt.LazyAdam(0.3)
    optimizer.load_own_variables(store)
    with pytest.raises(ValueError) as error:
        built(optimizer, count=2)
    assert all(word in str(error.value) for word in words)
    assert all(not np.any(to_numpy(v)) for v in optimizer.variables[2:])


def test_a_wrapper_refuses_as_well():
    wrapper = built(keras_tfopt.MovingAverage(keras_tfopt.Momentum(), 0.5))
    store = store_of(built(keras_tfopt.LazyAdam()))
    with pytest.raises(ValueError, match="does not fit"):
        wrapper.load_own_variables(store)


@pytest.mark.parametrize("is_built", (True, False))
def test_load_weights_raises_what_the_optimizer_refuses(is_built, tmp_path):
    """Keras collects errors of loading, and raises one at the end that quotes the first."""
    path = tmp_path / "other.weights.h5"
    trained(lambda: keras.optimizers.Adam(0.05)).save_weights(path)
    model = make_model(keras_tfopt.LazyAdam())
    if is_built:
        model.optimizer.build(model.trainable_variables)
    before = [to_numpy(v) for v in model.optimizer.variables]
    with pytest.raises(ValueError, match="not written by this package") as error:
        model.load_weights(path)
    assert "skip_mismatch=True" in str(error.value)
    assert same(before, [to_numpy(v) for v in model.optimizer.variables])

    # the way out that the message names
    with pytest.warns(UserWarning, match="not written by this package"):
        model.load_weights(path, skip_mismatch=True)
    assert same(before, [to_numpy(v) for v in model.optimizer.variables])
    train(model, STEPS[:1])


def test_load_model_raises_what_the_optimizer_refuses(tmp_path):
    path = tmp_path / "model.weights.h5"
    model = trained(lambda: keras_tfopt.LazyAdam(0.05))
    model.save_weights(path)
    with h5py.File(path, "r+") as file:
        del file["optimizer"]["vars"]["4"]
    again = make_model(keras_tfopt.LazyAdam(0.05))
    with pytest.raises(ValueError, match=r"position 4 \('v'\) is missing"):
        again.load_weights(path)


@pytest.mark.filterwarnings("ignore:Skipping variable loading")
def test_stock_optimizers_do_not_take_ours_for_theirs(tmp_path):
    path = tmp_path / "ours.weights.h5"
    trained(lambda: keras_tfopt.LazyAdam(0.05)).save_weights(path)
    stock = make_model(keras.optimizers.Adam(0.05))
    stock.optimizer.build(stock.trainable_variables)
    stock.load_weights(path)  # skipped, with a warning
    assert int(to_numpy(stock.optimizer.iterations)) == 0


# Between backends

several_backends = pytest.mark.skipif(len(INSTALLED) < 2, reason="needs two backends")


@pytest.fixture(scope="module")
def travelled(tmp_path_factory):
    root = pathlib.Path(__file__).parents[1]
    folder = tmp_path_factory.mktemp("travelled")
    environment = {k: v for k, v in os.environ.items() if k != "JAX_ENABLE_X64"}
    for stage, backend in itertools.product(("train", "continue"), INSTALLED):
        if backend == BACKEND:
            state_worker.main(stage, folder)
            continue
        done = subprocess.run(
            [sys.executable, "-m", "tests.state_worker", stage, str(folder)],
            env={**environment, "KERAS_BACKEND": backend},
            cwd=root,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{stage} on {backend}:\n{done.stderr[-4000:]}"
    return folder


def arrays(path):
    with np.load(path) as file:
        return [file[key] for key in file]


def travellers():
    cases = {case.name for case in CASES}
    for name in TRAVELLERS:
        marks = [pytest.mark.cell(optimizer=name)] if name in cases else []
        yield pytest.param(name, marks=marks)


@pytest.mark.slow
@pytest.mark.xdist_group("travelled")
@several_backends
@pytest.mark.backends(INSTALLED[0], reason=f"all backends at once: in the run of {INSTALLED[0]}")
@pytest.mark.parametrize("name", travellers())
def test_training_goes_on_on_another_backend(name, travelled):
    # Each backend computes gradients in its own way: see test_same_fit of test_cross_backend.py.
    tolerance = 1e-6 if name in MAKERS else 1e-5
    for source, target in ways(name):
        expected = arrays(travelled / f"{source}_{name}_after.npz")
        for suffix in ("", "_h5") if name == "lazy" else ("",):
            got = arrays(travelled / f"{source}_{name}_on_{target}{suffix}.npz")
            assert len(got) == len(expected) > 4
            for a, b in zip(got, expected):
                assert a.shape == b.shape
                if a.size:
                    error = np.max(
                        np.abs(np.subtract(a, b, dtype="float64")) / np.maximum(1, np.abs(b))
                    )
                    assert error <= tolerance, f"{source} on {target}{suffix}: {error:.1e}"


@several_backends
def test_every_way_between_backends_is_gone():
    gone = {way for name in TRAVELLERS for way in ways(name)}
    assert gone == set(itertools.permutations(INSTALLED, 2))


# tf.train.Checkpoint


def checkpoints():
    """Each optimizer at one time only, unless the run is exhaustive."""
    times = "built", "before build", "before the model is trained"
    for name in OTHERS:
        usual = pick(times, "checkpoint", name)
        for when in times:
            yield pytest.param(name, when, marks=[pytest.mark.exhaustive] * (when != usual))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow's own checkpoints")
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
    status = checkpoint.restore(path)  # of what is not there yet when it is created
    if when == "before the model is trained":
        train(model, STEPS[BEFORE:4])
        train(again, STEPS[BEFORE:4])
    elif when == "before build":
        again.optimizer.build(again.trainable_variables)
    status.assert_consumed()
    assert same(everything(model), everything(again))


# Copies


def trainable():
    """The variables that get gradients."""
    return {path: value for path, value in initial().items() if path != "frozen"}


@every_case("case")
@pytest.mark.parametrize("copied", (copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))))
def test_copies_step_independently(case, copied):
    """A copy has the state, and takes it to the variables that it is built for."""
    plan = gradients(steps=("normal",) * 4)
    first = Runner(case.make(), trainable(), "eager")
    for grads in plan[:2]:
        first.step(grads)
    twin = Runner(copied(first.optimizer), first.values, "eager")
    assert twin.optimizer is not first.optimizer
    assert type(twin.optimizer) is case.cls
    start = first.snapshot()
    assert same(start, twin.snapshot())

    twin.step(plan[2])
    assert same(start, first.snapshot())  # only the twin has moved
    assert not same(start, twin.snapshot())
    first.step(plan[2])
    assert same(first.snapshot(), twin.snapshot())
    first.step(plan[3])
    assert not same(first.snapshot(), twin.snapshot())


@pytest.mark.slow
def test_copies_of_a_model():
    model = trained(MAKERS["lazy"])
    go_on_alike(model, copy.deepcopy(model))


def test_clones_of_a_model():
    """Keras compiles a clone with a new optimizer of the same configuration."""
    model = trained(MAKERS["average"])
    clone = keras.models.clone_model(model)
    assert type(clone.optimizer) is keras_tfopt.MovingAverage
    assert clone.optimizer is not model.optimizer
    assert int(to_numpy(clone.optimizer.iterations)) == 0
    inner = model.optimizer.inner_optimizer.get_config()
    assert clone.optimizer.inner_optimizer.get_config() == inner
    before = everything(model)
    train(clone, STEPS[:1])
    assert same(before, everything(model))


# Configurations


@pytest.mark.parametrize("name", OTHERS)
def test_configuration_through_keras_saving(name):
    optimizer = OTHERS[name]()
    text = json.dumps(keras.saving.serialize_keras_object(optimizer))
    config = json.loads(text)
    for read in (keras.saving.deserialize_keras_object, keras.optimizers.get):
        again = read(json.loads(text))  # Keras's LossScaleOptimizer takes its config apart
        assert type(again) is type(optimizer)
        assert again.get_config() == optimizer.get_config()
    by_class = type(optimizer).from_config(optimizer.get_config())
    assert by_class.get_config() == optimizer.get_config()
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        assert config["registered_name"] == f"keras_tfopt>{type(optimizer).__name__}"


def test_inner_optimizers_by_name_and_configuration():
    stock = keras.optimizers.Adam(0.05, weight_decay=0.1)
    for inner in ("sgd", stock, keras.optimizers.serialize(stock), keras_tfopt.LARS(0.3)):
        optimizer = keras_tfopt.MovingAverage(inner)
        again = keras_tfopt.MovingAverage.from_config(optimizer.get_config())
        assert type(again.inner_optimizer) is type(optimizer.inner_optimizer)
        assert again.inner_optimizer.get_config() == optimizer.inner_optimizer.get_config()


@keras_tfopt.register
class SignDescent(keras_tfopt.Rule):
    """An optimizer of a user's."""

    def __init__(self, learning_rate=0.01, strength=1.0, **base):
        super().__init__(learning_rate, **base)
        self.strength = strength

    def update(self, g, x, s, t):
        return x - t.lr * self.strength * keras.ops.sign(g), {}


def test_an_optimizer_of_a_user_is_saved_as_well(tmp_path):
    model = trained(lambda: SignDescent(0.03, strength=0.5, clipnorm=1.0))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert type(again.optimizer) is SignDescent
    assert again.optimizer.strength == 0.5 and again.optimizer.clipnorm == 1.0
    go_on_alike(model, again)


# set_weights


@every_case("case")
def test_set_weights(case):
    plan = gradients(steps=("normal",) * 3)
    first = Runner(case.make(**EVERYTHING_BUT_DECAY), trainable(), "eager")
    second = Runner(case.make(**EVERYTHING_BUT_DECAY), trainable(), "eager")
    for grads in plan:
        first.step(grads)
    weights = [to_numpy(v) for v in first.optimizer.variables]
    second.optimizer.set_weights(weights)
    for a, b in zip(first.variables, second.variables):
        b.assign(to_numpy(a))
    assert same(first.snapshot(), second.snapshot())
    before = second.snapshot()
    wrong = [*weights[:-1], np.zeros((9, 9))]
    for bad in (weights[:-1], [*weights, np.zeros(2)], wrong):
        with pytest.raises(ValueError):
            second.optimizer.set_weights(bad)
    assert same(before, second.snapshot())
    with pytest.raises(ValueError, match="built"):
        case.make().set_weights(weights)


EVERYTHING_BUT_DECAY = {k: v for k, v in EVERYTHING.items() if k != "weight_decay"}
