"""Configurations that TensorFlow Addons saved, in several of its versions."""

import json

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import addons, migrate
from tests.helpers.paths import SIGNATURES
from tests.helpers.stepping import make_variable, to_numpy
from tests.test_addons import CONFIGURATIONS, after_steps, assert_alike, falling

pytestmark = pytest.mark.spread("torch")


@pytest.mark.parametrize("name", [n for n in CONFIGURATIONS if n != "extended"])
def test_saved_configurations_load(name):
    saved = CONFIGURATIONS[name]
    made = keras.saving.deserialize_keras_object(json.loads(json.dumps(saved)))
    assert type(made).__name__ == saved["class_name"]
    if isinstance(made, keras.optimizers.schedules.LearningRateSchedule):
        assert {**made.get_config(), **saved["config"]} == made.get_config()
        return
    renamed = addons.CLASSES[saved["class_name"]]._row.renamed
    for argument, value in saved["config"].items():
        ours = renamed.get(argument, argument)
        if isinstance(value, (int, float)) and ours not in ("decay", "learning_rate"):
            assert getattr(made, ours) == value
    rate = saved["config"].get("learning_rate")
    if isinstance(rate, float) and not saved["config"].get("decay"):
        assert float(to_numpy(made.learning_rate)) == pytest.approx(rate)
    after_steps(made)


# Classes of Keras have no module in configurations of TensorFlow Addons 0.16.
OF_OLD = json.loads((SIGNATURES / "addons_old.json").read_text())
EQUAL_TO_OLD = {
    "MovingAverage": lambda: addons.MovingAverage(keras.optimizers.Adam(falling), 0.9),
    "Lookahead": lambda: addons.Lookahead(
        keras.optimizers.SGD(keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 0.25), 0.5), 3
    ),
    "SWA": lambda: addons.SWA(migrate.RMSprop(epsilon_in_root=False), 5, 3),
    "LAMB": lambda: addons.LAMB(falling),
    "AdamW": lambda: addons.AdamW(addons.TriangularCyclicalLearningRate(0.1, 0.2, 5), 0.01),
}


@pytest.mark.parametrize("name", OF_OLD)
def test_configurations_without_modules_load(name):
    assert_alike(keras.optimizers.deserialize(OF_OLD[name]), EQUAL_TO_OLD[name]())


def old_rmsprop(x, rate, rho, epsilon):
    r = 0.0
    while True:
        g = yield x
        r = rho * r + (1 - rho) * g**2
        x = x - rate * g / (np.sqrt(r) + epsilon)


def old_adagrad(x, rate, start, epsilon):
    a = start
    while True:
        g = yield x
        a = a + g**2
        x = x - rate * g / (np.sqrt(a) + epsilon)


def old_nadam(x, rate, beta_1, beta_2, epsilon, schedule_decay):
    m, v, product, t = 0.0, 0.0, 1.0, 0
    while True:
        g = yield x
        t += 1
        now, next_one = (beta_1 * (1 - 0.5 * 0.96 ** (schedule_decay * n)) for n in (t, t + 1))
        product *= now
        m, v = beta_1 * m + (1 - beta_1) * g, beta_2 * v + (1 - beta_2) * g**2
        mean = (1 - now) * g / (1 - product) + next_one * m / (1 - product * next_one)
        x = x - rate * mean / (np.sqrt(v / (1 - beta_2**t)) + epsilon)


OF_KERAS_2 = {
    "RMSprop": (old_rmsprop, {"learning_rate": 0.01, "rho": 0.9, "epsilon": 1e-2}),
    "Adagrad": (
        old_adagrad,
        {"learning_rate": 0.01, "initial_accumulator_value": 1e-4, "epsilon": 1e-2},
    ),
    "Nadam": (
        old_nadam,
        {"learning_rate": 0.01, "beta_1": 0.9, "beta_2": 0.99, "epsilon": 1e-7, "decay": 0.5},
    ),
}


@pytest.mark.parametrize("name", OF_KERAS_2)
def test_optimizers_of_keras_2_inside_keep_their_conventions(name):
    """Their epsilon is outside of the root; what Nadam calls `decay` is that of its momentum."""
    formula, arguments = OF_KERAS_2[name]
    inner = {"class_name": name, "config": {"name": name, **arguments}}
    optimizer = keras.optimizers.deserialize(
        {"class_name": "Addons>MovingAverage", "config": {"optimizer": inner}}
    )
    steps = formula(1.0, *arguments.values())
    variable, expected = make_variable("x", np.ones(1, "float32")), next(steps)
    with keras_tfopt.engine.plain():
        for g in (0.01, -0.02, 0.03, 0.01, 0.02):
            optimizer.apply([keras.ops.convert_to_tensor([g])], [variable])
            expected = steps.send(g)
    np.testing.assert_allclose(to_numpy(variable)[0], expected, rtol=1e-6)


def test_numbers_of_trained_optimizers_are_floats_in_configurations():
    given = {"learning_rate": 0.01, "grad_averaging": 0.0, "amsgrad": 1.0}
    made = keras.optimizers.deserialize({"class_name": "Addons>NovoGrad", "config": given})
    assert (made.grad_averaging, made.amsgrad) == (False, True)
    given = {"total_steps": 100.0, "warmup_proportion": 0.0, "rectify": True}
    made = keras.optimizers.deserialize({"class_name": "Addons>AdaBelief", "config": given})
    assert made.total_steps == 100 and isinstance(made.total_steps, int)


def test_saved_arguments_have_the_meaning_that_they_had():
    made = keras.optimizers.deserialize(CONFIGURATIONS["LazyAdam, decay"])
    assert_alike(made, addons.LazyAdam(0.01, decay=0.5, clipnorm=1.5))
    made = keras.optimizers.deserialize(CONFIGURATIONS["AdamW"])
    assert_alike(made, addons.AdamW(0.01, 0.002, exclude_from_weight_decay=["bias"]))
    made = keras.optimizers.deserialize(CONFIGURATIONS["MovingAverage"])
    assert made.inner_optimizer.momentum == 0.9


def test_names_in_keras():
    """`keras.optimizers.get` finds the classes by the names "Addons>..."."""
    assert type(keras.optimizers.get("Addons>LAMB")) is addons.LAMB
    assert isinstance(keras.optimizers.get("Addons>Yogi"), keras_tfopt.Yogi)
