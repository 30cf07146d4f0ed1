"""Copies, clones, configurations and `set_weights` of optimizers."""

import copy
import json
import pickle

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.cases import every_case
from tests.helpers.compare import same
from tests.helpers.small_model import gradients, initial
from tests.helpers.stepping import Runner, make_variable, to_numpy
from tests.test_state import OTHERS, STEPS, assert_continue_alike, trained, values
from tests.workers.state_worker import EVERYTHING, MAKERS, everything, train


def trainable():
    """Return the variables that get gradients."""
    return {path: value for path, value in initial().items() if path != "frozen"}


@every_case("case")
@pytest.mark.parametrize("copied", (copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))))
def test_copies_step_independently(case, copied):
    """A copy has the state of the original, and uses it for the variables it is built for."""
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


@pytest.mark.spread
@pytest.mark.parametrize("shape", [(128, 200), (3, 2), (3, 3, 128, 128)])
def test_a_copy_of_an_optimizer_whose_slots_depend_on_the_size(shape):
    """A copy is not built, and has to take state for all that `build` may create."""
    optimizer, v = keras_tfopt.Adafactor(), make_variable("kernel", np.ones(shape, "float32"))
    optimizer.apply([keras.ops.ones(shape)], [v])
    twin = copy.deepcopy(optimizer)
    twin.build([v])
    assert same(values(twin.variables), values(optimizer.variables))


@pytest.mark.slow
def test_copies_of_a_model():
    model = trained(MAKERS["lazy"])
    assert_continue_alike(model, copy.deepcopy(model))


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
        again = read(json.loads(text))  # a fresh copy: Keras's LossScaleOptimizer changes it
        assert type(again) is type(optimizer)
        assert again.get_config() == optimizer.get_config()
    by_class = type(optimizer).from_config(optimizer.get_config())
    assert by_class.get_config() == optimizer.get_config()
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        registered = keras.saving.get_registered_name(type(optimizer))
        assert config["registered_name"] == registered
        assert registered.startswith("keras_tfopt>")


def test_inner_optimizers_by_name_and_configuration():
    stock = keras.optimizers.Adam(0.05, weight_decay=0.1)
    for inner in ("sgd", stock, keras.optimizers.serialize(stock), keras_tfopt.LARS(0.3)):
        optimizer = keras_tfopt.MovingAverage(inner)
        again = keras_tfopt.MovingAverage.from_config(optimizer.get_config())
        assert type(again.inner_optimizer) is type(optimizer.inner_optimizer)
        assert again.inner_optimizer.get_config() == optimizer.inner_optimizer.get_config()


# set_weights


@every_case("case")
def test_set_weights(case):
    plan = gradients(steps=("normal",) * 3)
    first = Runner(case.make(**EVERYTHING_BUT_DECAY), trainable(), "eager")
    second = Runner(case.make(**EVERYTHING_BUT_DECAY), trainable(), "eager")
    for grads in plan:
        first.step(grads)
    weights = values(first.optimizer.variables)
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
