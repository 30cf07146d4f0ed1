"""State of Keras 2 and TensorFlow Addons: trainings continue with the same losses.

`integration/keras2_files.py` has written the files, and the losses of the next steps.
"""

import json

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import migrate
from keras_tfopt.engine import plain
from tests.paths import GOLDEN
from tests.stepping import to_numpy

FOLDER = GOLDEN / "keras2"
TRAININGS = json.loads((FOLDER / "trainings.json").read_text())
STEPS = 40
OUTSIDE = {"epsilon_in_root": False}
# Our class and arguments, if they are not the class of that name in keras_tfopt.migrate. In Keras 2
# Adam has an epsilon of 1e-7.
OURS = {
    "new_AdamW": (keras_tfopt.Adam, {"epsilon": 1e-7}),
    "new_Adam": (keras_tfopt.Adam, {}),
    "legacy_Adam": (keras_tfopt.Adam, {}),
    "legacy_RMSprop": (migrate.RMSprop, OUTSIDE),
    "legacy_Adagrad": (migrate.Adagrad, OUTSIDE),
    "legacy_Nadam": (migrate.Nadam, {"momentum_decay": 0.004}),
    **{
        f"addons_{name}": (getattr(keras_tfopt.addons, name), {})
        for name in ("LAMB", "LazyAdam", "RectifiedAdam", "AdamW", "SGDW")
    },
}
FILES = [(name, file) for name, told in TRAININGS.items() for file in told["files"]]
every_file = pytest.mark.parametrize(("name", "file"), FILES, ids=[file for _, file in FILES])


def optimizer_of(name):
    cls, more = OURS.get(name, (None, {}))
    if cls is None:
        cls = getattr(migrate, name.split("_")[1])
    return cls(**TRAININGS[name]["arguments"], **more)


def network(width=3):
    layers = [keras.layers.Dense(width, "tanh"), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((4,)), *layers])


def batches():
    random = np.random.RandomState(0)
    x = random.randn(STEPS + 10, 8, 4).astype("float32")
    y = np.tanh(x.sum(-1, keepdims=True)) + 0.1 * random.randn(STEPS + 10, 8, 1)
    return list(zip(x, y.astype("float32")))


def losses_of(model, optimizer, data):
    """Train without `fit`, which would compile; return the loss before each step."""
    losses = []
    for x, y in data:
        w, a, v, b = [to_numpy(variable) for variable in model.trainable_variables]
        hidden = np.tanh(x @ w + a)
        error = hidden @ v + b - y
        losses.append(float(np.mean(error**2)))
        back = 2 * error / error.size
        inner = (back @ v.T) * (1 - hidden**2)
        gradients = [x.T @ inner, inner.sum(0), hidden.T @ back, back.sum(0)]
        gradients = [keras.ops.convert_to_tensor(g.astype("float32")) for g in gradients]
        with plain():
            optimizer.apply(gradients, model.trainable_variables)
    return losses


@every_file
def test_a_training_continues(name, file):
    if not file.endswith(".h5"):
        pytest.importorskip("tensorflow")
    model, optimizer = network(), optimizer_of(name)
    report = migrate.load_state(optimizer, model, FOLDER / file, weights=True)
    assert int(to_numpy(optimizer.iterations)) == STEPS
    assert not [note for note in report.notes if "in the optimizer" in note], report
    losses = losses_of(model, optimizer, batches()[STEPS:])
    np.testing.assert_allclose(losses, TRAININGS[name]["losses"], rtol=1e-5)


@pytest.mark.spread
@pytest.mark.parametrize("name", ("new_Nadam", "addons_LAMB"))
def test_a_training_continues_in_fit(name):
    model = network()
    model.compile(optimizer_of(name), "mse")
    migrate.load_state(model.optimizer, model, FOLDER / f"{name}.h5", weights=True)
    losses = []
    for x, y in batches()[STEPS:]:
        model.reset_metrics()  # or Keras 3.12 returns the mean over all batches so far
        losses.append(float(model.train_on_batch(x, y)))
    np.testing.assert_allclose(losses, TRAININGS[name]["losses"], rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in TRAININGS if name.startswith("new_")])
def test_a_training_continues_with_the_optimizer_of_keras_3(name):
    given = TRAININGS[name]
    model, optimizer = network(), getattr(keras.optimizers, given["class"])(**given["arguments"])
    migrate.load_state(optimizer, model, FOLDER / f"{name}.h5", weights=True)
    losses = losses_of(model, optimizer, batches()[STEPS:])
    np.testing.assert_allclose(losses, given["losses"], rtol=1e-5)
