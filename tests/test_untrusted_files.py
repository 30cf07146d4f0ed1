"""Configurations and files of unknown origin: code in them is never run.

Damaged files and other files raise an error, and the optimizer does not change.
test_checkpoint_errors.py tests damaged checkpoints of TensorFlow 1.
"""

import base64
import copy
import io
import json
import pathlib
import pickle
import zipfile

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import legacy
from keras_tfopt.engine.persistence import NO_SLOTS
from tests.cases import every_case
from tests.helpers.compare import same
from tests.helpers.stepping import Runner, make_variable, to_numpy
from tests.workers.state_worker import MAKERS, batches, everything, make_model, train

STEPS = list(batches())


# Code in configurations


@pytest.fixture
def marker(tmp_path):
    """Return the path of a file that dangerous code creates. It must not exist at the end."""
    path = tmp_path / "was here"
    yield path
    assert not path.exists(), "code from a file was run"


def payloads(marker):
    """Yield values that an attacker may put into a configuration to run code."""
    text = f"open({str(marker)!r}, 'w').close()"
    function = lambda *arguments, path=str(marker): [open(path, "w"), 0.1][1]  # noqa: E731
    saved = keras.saving.serialize_keras_object(function)
    assert saved["class_name"] == "__lambda__"
    call = {"config": {"name": text}, "registered_name": None}
    yield saved
    for module, name in (("builtins", "exec"), ("os", "system"), ("subprocess", "run")):
        yield {"module": module, "class_name": name, **call}
        yield {"module": module, "class_name": "function", "config": name, "registered_name": name}
    code = base64.b64encode(pickle.dumps(Dangerous(marker))).decode()
    yield {"class_name": "__lambda__", "config": {"value": code}}
    yield {"class_name": "__bytes__", "config": {"value": code}}


class Dangerous:
    """An object that creates a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


@pytest.mark.spread
@every_case("case")
def test_no_argument_runs_what_it_holds(case, marker):
    """Nothing runs when the configuration is read, nor in a step."""
    names = {*case.own_arguments, "learning_rate", "row_variables", "weight_decay", "name"}
    right = keras.saving.serialize_keras_object(case.make())
    for name in names:
        for payload in payloads(marker):
            config = copy.deepcopy(right)
            inner = config["config"].get("inner_optimizer", config)["config"]
            owner = config["config"] if name in config["config"] else inner
            owner[name] = payload
            with pytest.raises((TypeError, ValueError, AttributeError, ImportError)):
                optimizer = keras.saving.deserialize_keras_object(config)
                Runner(optimizer, {"kernel": np.ones(2)}).step({"kernel": np.ones(2)})
            assert not marker.exists(), (name, payload)


def test_a_model_file_with_code_in_the_configuration_of_its_optimizer(tmp_path, marker):
    model = make_model(keras_tfopt.DecoupledWeightDecay(keras_tfopt.Momentum(0.1), 0.1))
    train(model, STEPS[:1])
    model.save(tmp_path / "model.keras")
    for payload in payloads(marker):

        def change(config, payload=payload):
            config["compile_config"]["optimizer"]["config"]["decay_variables"] = payload

        rewrite(tmp_path / "model.keras", tmp_path / "bad.keras", config=change)
        with pytest.raises((TypeError, ValueError, AttributeError, ImportError)):
            keras.saving.load_model(tmp_path / "bad.keras")


def rewrite(source, target, config=None, weights=None):
    """Write a model file with a changed configuration or other weights."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "config.json" and config is not None:
                content = json.loads(data)
                config(content)
                data = json.dumps(content).encode()
            if name == "model.weights.h5" and weights is not None:
                data = weights(data)
            new.writestr(name, data)


# Pickles instead of arrays


def test_no_archive_of_arrays_is_unpickled(tmp_path, marker):
    kernel = make_variable("kernel", np.ones(2))
    optimizer = legacy.MovingAverageOptimizer(legacy.GradientDescentOptimizer(0.5), 0.5)
    optimizer.apply_gradients([(np.ones(2, "float32"), kernel)])
    saver = optimizer.swapping_saver([kernel])
    path = saver.save(None, str(tmp_path / "averages.npz"))
    with np.load(path) as file:
        arrays = dict(file)
    before = [to_numpy(kernel)]
    dangerous = np.empty((), object)
    dangerous[()] = Dangerous(marker)
    name = next(iter(arrays))
    np.savez(tmp_path / "pickled.npz", **{**arrays, name: dangerous})
    data = pathlib.Path(path).read_bytes()
    (tmp_path / "cut.npz").write_bytes(data[: len(data) // 2])
    (tmp_path / "no.npz").write_bytes(b"nothing of the kind")
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps(Dangerous(marker)))
    (tmp_path / "one.npz").write_bytes(data)
    np.savez(tmp_path / "renamed.npz", **{f"other_{k}": v for k, v in arrays.items()})
    np.savez(tmp_path / "reshaped.npz", **{k: np.ones((3, *v.shape)) for k, v in arrays.items()})
    for bad in ("pickled", "cut", "no", "pickle", "renamed", "reshaped"):
        with pytest.raises(ValueError, match=bad):
            saver.restore(None, str(tmp_path / f"{bad}.npz"))
        assert same(before, [to_numpy(kernel)]), bad
    saver.restore(None, str(tmp_path / "one.npz"))


def test_no_stored_state_is_unpickled(marker):
    optimizer = keras_tfopt.LazyAdam(0.1, name="mine")
    optimizer.build([make_variable("kernel", np.ones(2))])
    store = {}
    optimizer.save_own_variables(store)
    dangerous = np.empty((), object)
    dangerous[()] = Dangerous(marker)
    buffer = io.BytesIO()
    np.save(buffer, dangerous, allow_pickle=True)
    before = [to_numpy(v) for v in optimizer.variables]
    for wrong in (dangerous, buffer.getvalue(), np.array(["text"] * 2), np.ones(2, "complex64")):
        for key in store:
            with pytest.raises(ValueError, match="does not fit the optimizer 'mine'"):
                optimizer.load_own_variables({**store, key: wrong})
            assert same(before, [to_numpy(v) for v in optimizer.variables])


# Damage


def damaged_layouts():
    yield from (b"", b"\xff\xfe", b"{", b"[", b"null", b"3", b'"text"', b"[3, 4]", b"[null]", b"{}")
    yield json.dumps([["iteration"]]).encode()
    yield json.dumps({"iteration": "iteration"}).encode()
    yield json.dumps(["iteration"] * 1000).encode()


@pytest.mark.parametrize("built", (True, False))
def test_damaged_layouts_of_state(built):
    first = keras_tfopt.LazyAdam(0.1)
    first.build([make_variable("kernel", np.ones(2))])
    store = {}
    first.save_own_variables(store)
    second = keras_tfopt.LazyAdam(0.2, name="mine")
    if built:
        second.build([make_variable("kernel", np.ones(2))])
    before = [to_numpy(v) for v in second.variables]
    layouts = [np.frombuffer(layout, "uint8") for layout in damaged_layouts()]
    for layout in (*layouts, np.float32(3), np.ones((2, 2)), np.array(["text"])):
        with pytest.raises(ValueError, match="does not fit the optimizer 'mine'"):
            second.load_own_variables({**store, "layout": layout})
        assert same(before, [to_numpy(v) for v in second.variables])
    second.build([make_variable("kernel", np.ones(2))])
    second.load_own_variables(store)
    assert float(to_numpy(second.learning_rate)) == np.float32(0.1)


@every_case("case")
def test_state_with_one_entry_that_is_wrong(case):
    """An entry is missing, has another shape, or is no number. Then the right state is loaded."""
    runner = Runner(case.make(), {"kernel": np.ones((3, 2)), "embeddings": np.ones((4, 2))})
    optimizers = [runner.optimizer]
    while hasattr(optimizers[-1], "inner_optimizer"):
        optimizers.append(optimizers[-1].inner_optimizer)
    runner.step({"kernel": np.ones((3, 2)), "embeddings": np.ones((4, 2))})
    for optimizer in optimizers:
        store = {}
        optimizer.save_own_variables(store)
        before = runner.snapshot()
        # The mark has no state, and files of older versions lack it.
        for key, array in {k: v for k, v in store.items() if k != NO_SLOTS}.items():
            others = [np.ones((7, *np.shape(array)), "float32"), np.array("text")]
            stores = [{**store, key: other} for other in others]
            stores.append({k: v for k, v in store.items() if k != key})
            for wrong in stores:
                with pytest.raises(ValueError, match="does not fit the optimizer"):
                    optimizer.load_own_variables(wrong)
                assert same(before, runner.snapshot())
        optimizer.load_own_variables(store)
        assert same(before, runner.snapshot())


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    model = make_model(MAKERS["lazy"]())
    train(model, STEPS[:3])
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    return folder


ERRORS = (OSError, ValueError, KeyError, zipfile.BadZipFile)


def test_truncated_files_of_weights(saved, tmp_path):
    """A file is read completely or not at all."""
    model = make_model(MAKERS["lazy"]())
    train(model, STEPS[:2])
    before = everything(model)
    data = (saved / "model.weights.h5").read_bytes()
    bad = tmp_path / "bad.weights.h5"
    for length in (0, 1, 100, len(data) // 2, len(data) - 1000, len(data) - 1):
        bad.write_bytes(data[:length])
        with pytest.raises(ERRORS):
            model.load_weights(bad)
        assert same(before, everything(model)), length
    (tmp_path / "renamed.npz").write_bytes(data)
    with pytest.raises(ERRORS, match="Invalid|npz|format|supported"):
        model.load_weights(tmp_path / "renamed.npz")
    model.load_weights(saved / "model.weights.h5")
    assert not same(before, everything(model))


def test_damaged_model_files(saved, tmp_path):
    source, bad = saved / "model.keras", tmp_path / "bad.keras"
    rewrite(source, bad, weights=lambda data: data[: len(data) // 2])
    with pytest.raises(ERRORS):
        keras.saving.load_model(bad)

    def another_rule(config):
        optimizer = config["compile_config"]["optimizer"]
        optimizer.update(class_name="Adagrad", registered_name="keras_tfopt>Adagrad")
        for name in ("beta_1", "beta_2", "epsilon", "amsgrad", "catch_up"):
            del optimizer["config"][name]

    rewrite(source, bad, config=another_rule)
    with pytest.raises(ValueError, match="does not fit the optimizer"):
        keras.saving.load_model(bad)

    def unknown(config):
        config["compile_config"]["optimizer"]["config"]["momentun"] = 0.9

    rewrite(source, bad, config=unknown)
    with pytest.raises((TypeError, ValueError), match="momentun"):
        keras.saving.load_model(bad)
    assert type(keras.saving.load_model(source).optimizer) is keras_tfopt.LazyAdam
