"""`migrate.load_state` with files of PyTorch, optax and Keras 3, and with files that do not fit."""

import pickle
import re
import shutil

import h5py
import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import migrate
from tests.helpers.stepping import to_numpy
from tests.test_load_state import (
    FOLDER,
    STEPS,
    batches,
    half_trained,
    losses_of,
    network,
    optimizer_of,
    trained,
)

# Most need PyTorch, and its single operations are the fastest.
pytestmark = pytest.mark.spread("torch")

# {class of torch.optim and a remark: (its arguments, our optimizer)}
TORCH = {
    "Adam": (dict(lr=0.02), lambda: keras_tfopt.Adam(0.02)),
    "Adam amsgrad": (dict(lr=0.02, amsgrad=True), lambda: keras_tfopt.Adam(0.5, amsgrad=True)),
    "AdamW": (dict(lr=0.02, weight_decay=0.1), lambda: keras_tfopt.Adam(0.02, weight_decay=0.1)),
    "SGD": (dict(lr=0.05, momentum=0.9), lambda: keras_tfopt.Momentum(0.05)),
    "SGD nesterov": (
        dict(lr=0.05, momentum=0.9, nesterov=True),
        lambda: migrate.SGD(0.05, momentum=0.9, nesterov=True),
    ),
    "SGD plain": (dict(lr=0.05), lambda: keras_tfopt.GradientDescent(0.05)),
    "RMSprop": (
        dict(lr=0.01, momentum=0.5, centered=True, eps=1e-3),
        lambda: migrate.RMSprop(
            0.01, momentum=0.5, centered=True, rho=0.99, epsilon=1e-3, epsilon_in_root=False
        ),
    ),
    "Adagrad": (
        dict(lr=0.1, eps=1e-2),
        lambda: migrate.Adagrad(0.1, epsilon=1e-2, epsilon_in_root=False),
    ),
    "NAdam": (dict(lr=0.02), lambda: migrate.Nadam(0.02, epsilon=1e-8, momentum_decay=0.004)),
    "Adamax": (dict(lr=0.02), lambda: migrate.Adamax(0.02, epsilon=1e-8)),
    "Adadelta": (dict(lr=1.0, eps=1e-3), lambda: migrate.Adadelta(1.0, rho=0.9, epsilon=1e-3)),
}


def trained_in_torch(name):
    """Train with PyTorch; return the optimizer, the weights and the losses of the next steps."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    linear = torch.nn.Linear
    model = torch.nn.Sequential(linear(4, 3), torch.nn.Tanh(), linear(3, 1)).to("cpu")
    optimizer = getattr(torch.optim, name.split()[0])(model.parameters(), **TORCH[name][0])

    def losses(data):
        for x, y in data:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(torch.tensor(x)), torch.tensor(y))
            loss.backward()
            optimizer.step()
            yield loss.item()

    list(losses(batches()[:STEPS]))
    weights = [p.detach().numpy().copy() for p in model.parameters()]
    return optimizer, weights, losses(batches()[STEPS:])


@pytest.mark.parametrize("name", TORCH)
def test_a_training_of_pytorch_continues(name, tmp_path):
    torch = pytest.importorskip("torch")
    old, weights, losses = trained_in_torch(name)
    path = tmp_path / "checkpoint.pt"
    torch.save({"epoch": 3, "optimizer": old.state_dict()}, path)
    model, optimizer = network(), TORCH[name][1]()
    for variable, array in zip(model.trainable_variables, weights):
        variable.assign(migrate.torch_layout(variable, array))
    report = migrate.load_state(optimizer, model, path, layout=migrate.torch_layout)
    assert not [note for note in report.notes if "in the optimizer" in note], report
    mine = losses_of(model, optimizer, batches()[STEPS:])
    np.testing.assert_allclose(mine, list(losses), rtol=1e-5)


def test_a_state_dict_and_its_notes():
    old, _, _ = trained_in_torch("SGD")
    state = old.state_dict()
    state["param_groups"].append({**state["param_groups"][0], "params": [9], "lr": 7.0})
    with pytest.raises(ValueError, match="layout"):
        migrate.load_state(keras_tfopt.Momentum(0.05), network(), state)
    optimizer = keras_tfopt.Momentum(0.05, momentum=0.5)
    report = migrate.load_state(optimizer, network(), state, layout=migrate.torch_layout)
    assert float(to_numpy(optimizer.learning_rate)) == pytest.approx(0.05)  # groups differ in it
    assert "differ in ['lr']" in str(report)
    assert "`momentum` is 0.9 in the file, and 0.5 in the optimizer" in str(report)
    assert "state[0]['momentum_buffer']  (3, 4)  'momentum' of" in str(report)


# {name of the transformation: our optimizer}. All have a learning rate of 0.02.
OPTAX = {
    "adam": lambda: keras_tfopt.Adam(0.02),
    "lion": lambda: migrate.Lion(0.02),
    "sgd": lambda: keras_tfopt.Momentum(0.02),
    "adagrad": lambda: migrate.Adagrad(0.02),
    "rmsprop": lambda: migrate.RMSprop(0.02, epsilon=1e-8),
}


@pytest.mark.backends("jax", reason="optax needs JAX")
@pytest.mark.parametrize("name", OPTAX)
def test_a_training_of_optax_continues(name, tmp_path):
    optax, jax = pytest.importorskip("optax"), pytest.importorskip("jax")
    more = {"momentum": 0.9} if name == "sgd" else {}
    more |= {"decay": 0.9} if name == "rmsprop" else {}
    more |= {"weight_decay": 0.0} if name == "lion" else {}
    rule = getattr(optax, name)(0.02, **more)
    model = network()
    paths = [variable.path for variable in model.trainable_variables]
    params = {p: jax.numpy.asarray(to_numpy(v)) for p, v in zip(paths, model.trainable_variables)}
    state = rule.init(params)

    def loss_of(params, x, y):
        w, a, v, b = [params[path] for path in paths]
        return ((jax.numpy.tanh(x @ w + a) @ v + b - y) ** 2).mean()

    @jax.jit
    def moved(params, state, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        updates, state = rule.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    losses = []
    for step, (x, y) in enumerate(batches()):
        if step == STEPS:
            leaves = jax.tree_util.tree_leaves_with_path(state)
            named = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
            np.savez(tmp_path / "state.npz", **named)
            for path, variable in zip(paths, model.trainable_variables):
                variable.assign(np.asarray(params[path]))
        params, state, loss = moved(params, state, x, y)
        losses.append(float(loss))
    optimizer = OPTAX[name]()
    migrate.load_state(optimizer, model, tmp_path / "state.npz")
    mine = losses_of(model, optimizer, batches()[STEPS:])
    np.testing.assert_allclose(mine, losses[STEPS:], rtol=2e-5)


@pytest.mark.parametrize("suffix", (".keras", ".weights.h5", ".weights.json", ".h5"))
@pytest.mark.parametrize("direction", ("to ours", "to Keras"))
def test_files_of_keras_3(suffix, direction, tmp_path):
    """State goes from keras.optimizers.Adam to keras_tfopt.Adam, and back."""
    adams, shared = [keras.optimizers.Adam, keras_tfopt.Adam], dict(amsgrad=True, epsilon=1e-7)
    first, second = adams if direction == "to ours" else adams[::-1]
    old, new = first(0.02, **shared), second(0.5, **shared)
    model, path = half_trained(old), tmp_path / f"model{suffix}"
    if suffix == ".weights.json":  # several files
        model.save_weights(path, max_shard_size=2e-7)
        assert len(list(tmp_path.glob("*.weights.h5"))) > 1
    else:
        (model.save_weights if suffix == ".weights.h5" else model.save)(path)
    other = network()
    other.set_weights(model.get_weights())
    report = migrate.load_state(new, other, path)
    assert int(to_numpy(new.iterations)) == 3
    assert len([row for row in report.rows if "'vhat'" in row.became]) == 4
    later = batches()[3:8]
    np.testing.assert_allclose(
        losses_of(other, new, later), losses_of(model, old, later), rtol=1e-5
    )


def test_a_file_of_another_of_our_rules(tmp_path):
    """Slots with the same names are not enough: LAMB and Adam both have `m` and `v`."""
    half_trained(keras_tfopt.LAMB(0.02)).save(tmp_path / "lamb.keras")
    half_trained(keras_tfopt.Momentum(0.02)).save(tmp_path / "momentum.keras")
    half_trained(keras_tfopt.LARS(0.02)).save(tmp_path / "lars.keras")
    for optimizer in (keras_tfopt.Adam(), keras.optimizers.Adam()):
        error = unchanged(optimizer, network(), tmp_path / "lamb.keras")
        assert "LAMB, and the optimizer is Adam" in str(error)
    assert "load_weights" in str(unchanged(adam(), network(), tmp_path / "lars.keras"))
    model, optimizer = network(), migrate.SGD(0.5, momentum=0.9)
    migrate.load_state(optimizer, model, tmp_path / "momentum.keras")
    file = keras.saving.load_model(tmp_path / "momentum.keras")
    for old, new in zip(file.trainable_variables, model.trainable_variables):
        there, here = file.optimizer.slot(old, "momentum"), optimizer.slot(new, "momentum")
        np.testing.assert_allclose(to_numpy(here), -0.02 * to_numpy(there), rtol=1e-6)


def test_the_product_of_keras_3_nadam_is_loaded(tmp_path):
    later = batches()[3:6]
    for new in (migrate.Nadam(0.02), keras.optimizers.Nadam(0.02)):
        old = keras.optimizers.Nadam(0.02)
        model, other = trained(old, tmp_path / "model.keras"), network()
        other.set_weights(model.get_weights())
        migrate.load_state(new, other, tmp_path / "model.keras")
        losses = losses_of(other, new, later)
        fresh = keras_tfopt.from_keras(old)
        np.testing.assert_allclose(losses, losses_of(model, fresh, later), rtol=1e-5)


# ---- Files that do not fit -------------------------------------------------------------------


def unchanged(optimizer, model, file, **options):
    """Load a file that must be refused. Check that nothing changes, and return the error."""
    before = [to_numpy(v) for v in [*optimizer.variables, *model.weights]]
    with pytest.raises(Exception) as error:
        migrate.load_state(optimizer, model, file, **options)
    for old, new in zip(before, [*optimizer.variables, *model.weights]):
        np.testing.assert_array_equal(old, to_numpy(new))
    return error.value


def adam():
    return keras_tfopt.Adam(0.1, epsilon=1e-3)


H5 = FOLDER / "legacy_Adam.h5"


def test_a_file_of_another_model():
    for width, weights in ((5, False), (5, True)):
        model = network(width)
        optimizer = adam()
        optimizer.build(model.trainable_variables)
        error = unchanged(optimizer, model, H5, weights=weights)
        assert isinstance(error, ValueError) and "another model" in str(error)
        assert "dense/kernel/m" in str(error) and "(4, 3)" in str(error)
    more = keras.Sequential([keras.Input((4,)), *[keras.layers.Dense(4) for _ in range(3)]])
    assert "another model" in str(unchanged(adam(), more, H5))


@pytest.mark.parametrize(
    ("make", "name", "message"),
    (
        (lambda: keras_tfopt.LARS(0.1), "legacy_Adam", r"Take one of \['Adam'\]"),
        (lambda: keras_tfopt.LAMB(), "legacy_SGD", "GradientDescent"),
        (lambda: keras_tfopt.Adam(amsgrad=True), "legacy_Adam", r"no \['vhat'\] of"),
        (lambda: migrate.SGD(0.1), "legacy_SGD", r"has \['momentum'\].*no place"),
        (lambda: keras_tfopt.Adam(), "new_AdamW", r"has \['vhat'\].*amsgrad"),
        (lambda: keras_tfopt.MovingAverage(keras_tfopt.Adam()), "legacy_Adam", "inside"),
    ),
)
def test_an_optimizer_that_cannot_go_on(make, name, message):
    error = unchanged(make(), network(), FOLDER / f"{name}.h5")
    assert re.search(message, str(error), re.DOTALL), error


def test_momentum_needs_a_learning_rate(tmp_path):
    shutil.copy(FOLDER / "legacy_SGD.h5", tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5", "a") as file:
        text = file.attrs["training_config"].replace("0.05000000074505806", "0.0")
        file.attrs["training_config"] = text
    error = unchanged(keras_tfopt.Momentum(0.0), network(), tmp_path / "x.h5")
    assert "must be a number > 0" in str(error)


def test_files_without_state_of_an_optimizer(tmp_path):
    with h5py.File(tmp_path / "weights.h5", "w") as file:
        file.attrs["layer_names"] = ["dense"]
    assert "no state of an optimizer" in str(unchanged(adam(), network(), tmp_path / "weights.h5"))
    shutil.copy(H5, tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5", "a") as file:
        del file["optimizer_weights"]
    assert "made no step" in str(unchanged(adam(), network(), tmp_path / "x.h5"))
    network().save(tmp_path / "x.keras")
    assert "no state of an optimizer" in str(unchanged(adam(), network(), tmp_path / "x.keras"))


@pytest.mark.parametrize("kept", (0.0, 0.3, 0.9))
def test_truncated_files(kept, tmp_path):
    half_trained(adam()).save(tmp_path / "x.keras")
    shutil.copy(H5, tmp_path / "x.h5")
    np.savez(tmp_path / "x.npz", **{"[0].mu['a']": np.zeros(3)})
    torch = pytest.importorskip("torch")
    torch.save({"state": {}, "param_groups": []}, tmp_path / "x.pt")
    for name in ("x.keras", "x.h5", "x.npz", "x.pt"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[: int(kept * len(content))])
        error = unchanged(adam(), network(), tmp_path / name)
        assert isinstance(error, ValueError) and name in str(error)


def test_weights_in_several_files_of_which_one_is_gone(tmp_path):
    half_trained(adam()).save_weights(tmp_path / "x.weights.json", max_shard_size=2e-7)
    *_, last = sorted(tmp_path.glob("*.h5"))
    last.unlink()
    assert last.name in str(unchanged(adam(), network(), tmp_path / "x.weights.json"))


def test_truncated_checkpoints(tmp_path):
    pytest.importorskip("tensorflow")
    shutil.copytree(FOLDER / "legacy_Adam_checkpoint", tmp_path / "x")
    data = next((tmp_path / "x").glob("*.data*"))
    data.write_bytes(data.read_bytes()[:100])
    assert "damaged" in str(unchanged(adam(), network(), tmp_path / "x" / "ckpt.index"))
    index = tmp_path / "x" / "ckpt.index"
    index.write_bytes(index.read_bytes()[:50])
    assert "damaged" in str(unchanged(adam(), network(), index))


def test_other_things_than_files_of_state(tmp_path):
    (tmp_path / "x.txt").write_text("text")
    assert "none of these" in str(unchanged(adam(), network(), tmp_path / "x.txt"))
    assert "nothing at" in str(unchanged(adam(), network(), tmp_path / "y.h5"))
    assert "a path" in str(unchanged(adam(), network(), 3))


class Planted:
    """An object whose unpickling prints "run"."""

    def __reduce__(self):
        return (print, ("run",))


def test_pickles_are_loaded_on_request_only(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    old, _, _ = trained_in_torch("SGD")
    torch.save({"optimizer": old.state_dict(), "model": Planted()}, tmp_path / "x.pt")
    optimizer, layout = keras_tfopt.Momentum(0.1), migrate.torch_layout
    error = unchanged(optimizer, network(), tmp_path / "x.pt", layout=layout)
    assert "weights_only=False" in str(error) and "run" not in capsys.readouterr().out
    migrate.load_state(optimizer, network(), tmp_path / "x.pt", layout=layout, weights_only=False)
    assert "run" in capsys.readouterr().out
    np.savez(tmp_path / "x.npz", **{"[0].mu['a']": np.array([Planted()], object)})
    assert isinstance(unchanged(adam(), network(), tmp_path / "x.npz"), ValueError)
    (tmp_path / "y.pt").write_bytes(pickle.dumps({"optimizer": Planted()}))
    assert isinstance(unchanged(adam(), network(), tmp_path / "y.pt"), ValueError)
    assert "run" not in capsys.readouterr().out


def test_several_optimizers_in_a_checkpoint(tmp_path):
    tf = pytest.importorskip("tensorflow")
    kernel = tf.Variable(np.ones((4, 1), "float32"), name="dense/kernel")
    graph = tf.train.Checkpoint(
        model=tf.train.Checkpoint(kernel=kernel),
        first=tf.train.Checkpoint(iter=tf.Variable(3, name="Adam/iter")),
        second=tf.train.Checkpoint(iter=tf.Variable(4, name="Adam/iter")),
    )
    graph.write(str(tmp_path / "ckpt"))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)])
    error = unchanged(adam(), model, tmp_path / "ckpt.index")
    assert "['first', 'second']" in str(error) and "`name`" in str(error)


def test_state_goes_to_the_optimizer_inside_a_wrapper_without_slots():
    model = network()
    optimizer = keras_tfopt.DecoupledWeightDecay(adam(), 1e-4)
    migrate.load_state(optimizer, model, H5, weights=True)
    assert int(to_numpy(optimizer.iterations)) == STEPS
    alone, other = optimizer_of("legacy_Adam"), network()
    migrate.load_state(alone, other, H5)
    for variable, same in zip(model.trainable_variables, other.trainable_variables, strict=True):
        moments = to_numpy(optimizer.slot(variable, "m"))
        assert np.any(moments)
        np.testing.assert_array_equal(moments, to_numpy(alone.slot(same, "m")))
