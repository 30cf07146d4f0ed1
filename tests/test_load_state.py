"""State of Keras 2 and TensorFlow Addons: trainings continue with the same losses.

`integration/keras2_files.py` has written the files, and the losses of the next steps.
"""

import json
import shutil

import h5py
import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import migrate
from keras_tfopt.engine import plain
from tests.helpers.paths import GOLDEN
from tests.helpers.stepping import to_numpy

# Single operations are the fastest in PyTorch.
pytestmark = pytest.mark.spread("torch")

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
        name: (getattr(keras_tfopt.addons, told["class"]), {})
        for name, told in TRAININGS.items()
        if name.startswith("addons_")
    },
}
FILES = [(name, file) for name, told in TRAININGS.items() for file in told["files"]]
every_file = pytest.mark.parametrize(("name", "file"), FILES, ids=[file for _, file in FILES])


def optimizer_of(name):
    cls, more = OURS.get(name, (None, {}))
    if cls is None:
        cls = getattr(migrate, name.split("_")[1])
    inner = [inside_of(name)] if "inside" in TRAININGS[name] else []
    return cls(*inner, **TRAININGS[name]["arguments"], **more)


def inside_of(name):
    """Return the optimizer inside of a wrapper of TensorFlow Addons."""
    inside, arguments = TRAININGS[name]["inside"]
    return (getattr(keras_tfopt.addons, inside, None) or getattr(migrate, inside))(**arguments)


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


def half_trained(optimizer):
    """Return a model after three steps."""
    keras.utils.set_random_seed(0)
    model = network()
    model.compile(optimizer, "mse")
    losses_of(model, optimizer, batches()[:3])
    return model


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
    if "inside" in TRAININGS[name]:
        slot = "slow" if name == "addons_Lookahead" else "average"
        kept = to_numpy(optimizer.slot(model.trainable_variables[0], slot))
        np.testing.assert_allclose(kept, TRAININGS[name]["kept"], rtol=1e-5)


def test_a_wrapper_may_be_left_out():
    name = "addons_MovingAverage"
    model, optimizer = network(), inside_of(name)
    report = migrate.load_state(optimizer, model, FOLDER / f"{name}.h5", weights=True)
    assert str(report).count("not used: no wrapper here keeps it") == 4
    losses = losses_of(model, optimizer, batches()[STEPS:])
    np.testing.assert_allclose(losses, TRAININGS[name]["losses"], rtol=1e-5)


@pytest.mark.parametrize(
    ("wrapper", "slot"), [("MovingAverage", "average"), ("Lookahead", "slow"), ("SWA", "average")]
)
def test_state_of_wrappers_that_a_file_does_not_have(wrapper, slot):
    model, inner = network(), keras_tfopt.addons.LazyAdam(0.02)
    optimizer = getattr(keras_tfopt.addons, wrapper)(inner)
    with pytest.raises(ValueError, match=f"{wrapper} keeps '{slot}', which the file does not have"):
        migrate.load_state(optimizer, model, FOLDER / "addons_LazyAdam.h5")
    assert not optimizer.built


def test_two_wrappers_that_keep_the_same():
    inner = keras_tfopt.addons.MovingAverage(inside_of("addons_MovingAverage"))
    model, optimizer = network(), keras_tfopt.addons.MovingAverage(inner)
    with pytest.raises(ValueError, match="both keep \\['average'\\], and files have one"):
        migrate.load_state(optimizer, model, FOLDER / "addons_MovingAverage.h5")
    assert not optimizer.built


@pytest.mark.spread("jax")
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


# ---- .h5 files of Keras 3 --------------------------------------------------------------------


def trained(optimizer, path):
    """Return a model after three steps, which it was saved after."""
    model = half_trained(optimizer)
    model.save(path)
    return model


def rate():
    return keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)


SCALED = pytest.mark.backends(
    "tensorflow", "torch", reason="on JAX, Keras's LossScaleOptimizer steps in `jit` only"
)
WRITERS = {
    "stock SGD with a schedule": lambda: keras.optimizers.SGD(rate(), momentum=0.9),
    "stock AdamW in a LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.AdamW(0.1)
    ),
    "Adam in a wrapper": lambda: keras_tfopt.DecoupledWeightDecay(keras_tfopt.Adam(0.1), 0.01),
    "stock RMSprop in a wrapper": lambda: keras_tfopt.SkipNonFinite(
        keras.optimizers.RMSprop(0.1, momentum=0.5, centered=True)
    ),
}


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=[SCALED] if "LossScaleOptimizer" in name else [])
        for name, make in WRITERS.items()
    ],
)
def test_an_h5_file_of_keras_3(make, tmp_path):
    """Keras's `load_model` leaves the state of the optimizer in the file."""
    old, new = make(), make()
    model, other = trained(old, tmp_path / "model.h5"), network()
    report = migrate.load_state(new, other, tmp_path / "model.h5", weights=True)
    is_scaled = isinstance(old, keras.optimizers.LossScaleOptimizer)
    has_own_state = is_scaled or isinstance(old, keras_tfopt.SkipNonFinite)
    assert any("is not taken" in note for note in report.notes) == has_own_state
    if is_scaled:
        old, new = old.inner_optimizer, new.inner_optimizer
    assert int(to_numpy(new.iterations)) == 3
    later = batches()[3:8]
    np.testing.assert_allclose(
        losses_of(other, new, later), losses_of(model, old, later), rtol=1e-6
    )


# ---- Options that keep state -----------------------------------------------------------------


def averages_of(optimizer):
    return [to_numpy(v) for v in optimizer._model_variables_moving_average]


OPTIONS = {
    "ours": keras_tfopt.Adam,
    "stock": keras.optimizers.Adam,
    "ours, a slot with the name of the sum": keras_tfopt.Adagrad,
}


@pytest.mark.parametrize("suffix", (".keras", ".weights.h5", ".h5"))
@pytest.mark.parametrize("cls", [pytest.param(cls, id=name) for name, cls in OPTIONS.items()])
def test_a_number_of_gradients_makes_a_step(cls, suffix, tmp_path):
    """Files have the number of gradients, of which `gradient_accumulation_steps` make a step."""
    old, new = [cls(0.1, gradient_accumulation_steps=2) for _ in range(2)]
    model, other = network(), network()
    model.compile(old, "mse")
    losses_of(model, old, batches()[:6])
    path = tmp_path / f"model{suffix}"
    (model.save_weights if suffix == ".weights.h5" else model.save)(path)
    migrate.load_state(new, other, path)
    other.set_weights(model.get_weights())
    assert int(to_numpy(new.iterations)) == int(to_numpy(old.iterations)) == 3
    later = batches()[6:12]
    np.testing.assert_allclose(
        losses_of(other, new, later), losses_of(model, old, later), rtol=1e-6
    )


@pytest.mark.parametrize("suffix", (".keras", ".h5"))
@pytest.mark.parametrize("first", (keras.optimizers.Adam, keras_tfopt.Adam))
@pytest.mark.parametrize("second", (keras.optimizers.Adam, keras_tfopt.Adam))
def test_averages_of_use_ema(first, second, suffix, tmp_path):
    old, new = [cls(0.1, epsilon=1e-7, use_ema=True, ema_momentum=0.5) for cls in (first, second)]
    model, other = trained(old, tmp_path / f"model{suffix}"), network()
    report = migrate.load_state(new, other, tmp_path / f"model{suffix}")
    assert sum("'average' of" in row.became for row in report.rows) == 4
    other.set_weights(model.get_weights())
    for optimizer, one in ((old, model), (new, other)):
        losses_of(one, optimizer, batches()[3:6])
    for mine, theirs in zip(averages_of(new), averages_of(old), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def test_averages_begin_at_the_weights_if_the_file_has_none(tmp_path):
    model, plain_file, file = network(), tmp_path / "plain.h5", tmp_path / "averages.h5"
    trained(keras_tfopt.Adam(0.1), plain_file)
    trained(keras_tfopt.Adam(0.1, use_ema=True), file)
    optimizer = keras_tfopt.Adam(0.1, use_ema=True)
    report = migrate.load_state(optimizer, model, plain_file, weights=True)
    assert any("begin at the weights" in note for note in report.notes)
    for average, weight in zip(averages_of(optimizer), model.get_weights(), strict=True):
        np.testing.assert_array_equal(average, weight)
    report = migrate.load_state(keras_tfopt.Adam(0.1), model, file)
    assert any("use_ema=False" in note for note in report.notes)


def test_a_sum_of_gradients_is_left_out(tmp_path):
    trained(keras_tfopt.Adam(0.1, gradient_accumulation_steps=2), tmp_path / "model.h5")
    optimizer = keras_tfopt.Adam(0.1, gradient_accumulation_steps=2)
    report = migrate.load_state(optimizer, network(), tmp_path / "model.h5")
    assert any("the sum of 1 gradients" in note for note in report.notes)
    assert int(to_numpy(optimizer.iterations)) == 1


# ---- Files that do not fit -------------------------------------------------------------------


def test_h5_files_of_keras_3_that_do_not_fit(tmp_path):
    trained(keras_tfopt.Muon(0.1), tmp_path / "muon.h5")
    trained(keras_tfopt.Adam(0.1), tmp_path / "adam.h5")
    trained(keras.optimizers.Adam(0.1), tmp_path / "stock.h5")
    for name, model, message in (
        ("muon.h5", network(), "only `load_weights` and `load_model` read"),
        ("adam.h5", network(width=4), "has shape"),
        ("stock.h5", network(width=4), "has the shape"),
    ):
        optimizer = keras_tfopt.Adam(0.1)
        with pytest.raises(ValueError, match=message):
            migrate.load_state(optimizer, model, tmp_path / name)
        assert not optimizer.built


@pytest.mark.parametrize("program", ("keras 2", "keras 3"))
def test_a_list_of_names_in_pieces(program, tmp_path):
    """Keras splits lists of names that are longer than 64 KiB."""
    path, model, optimizer = tmp_path / "model.h5", network(), keras_tfopt.Adam(0.1)
    if program == "keras 2":
        shutil.copy(FOLDER / "legacy_Adam.h5", path)
    else:
        trained(keras_tfopt.Adam(0.1), path)
    whole = migrate.load_state(keras_tfopt.Adam(0.1), model, path)
    with h5py.File(path, "a") as file:
        attributes = file["optimizer_weights"].attrs
        names = list(attributes.pop("weight_names"))
        for number, piece in enumerate((names[:3], names[3:5], names[5:])):
            attributes[f"weight_names{number}"] = piece
    assert migrate.load_state(optimizer, model, path).rows == whole.rows
    assert len(whole.rows) > 8


def test_what_legacy_nadam_calls_decay_is_that_of_its_momentum(tmp_path):
    path = shutil.copy(FOLDER / "legacy_Nadam.h5", tmp_path / "model.h5")
    with h5py.File(path, "r+") as file:
        config = json.loads(file.attrs["training_config"])
        config["optimizer_config"]["config"]["decay"] = 0.05
        file.attrs["training_config"] = json.dumps(config)
    for momentum_decay in (0.05, 0.004):
        arguments = {**TRAININGS["legacy_Nadam"]["arguments"], "momentum_decay": momentum_decay}
        optimizer = migrate.Nadam(**arguments)
        report = migrate.load_state(optimizer, network(), path, weights=True)
        assert "learning rate fell" not in str(report)
        note = "`momentum_decay` is 0.05 in the file, and 0.004 in the optimizer"
        assert (note in report.notes) == (momentum_decay == 0.004), report
