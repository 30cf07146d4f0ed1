"""Checkpoints of TensorFlow 1: `inspect_checkpoint`, the command line, and large files."""

import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import legacy
from keras_tfopt.legacy.checkpoints import files as checkpoint_files
from keras_tfopt.legacy.checkpoints.files import write_checkpoint
from keras_tfopt.legacy.checkpoints.powers import power_after
from tests.helpers.checkpoints import (
    KINDS,
    NAMES,
    RECORDED,
    adam,
    assert_same,
    contents,
    dense,
    manifest,
    needs_tensorflow,
    recorded,
    write,
)
from tests.helpers.programs import output_of
from tests.helpers.stepping import BACKEND, to_numpy

pytestmark = [pytest.mark.spread("tensorflow"), needs_tensorflow]


def test_inspection_tells_the_recorded_meanings(capsys):
    words = {"trained variable": "variable", "moving average": "moving average"}
    for kind in KINDS:
        for saved in manifest(kind)["checkpoints"]:
            swapped = saved["prefix"].startswith("swapping")
            found = legacy.inspect_checkpoint(RECORDED / kind / saved["prefix"], swapped=swapped)
            printed = capsys.readouterr().out
            by_name = {one.name: one for one in found}
            assert set(by_name) == {v["name"] for v in saved["variables"]}
            for v in saved["variables"]:
                one, meaning = by_name[v["name"]], v["meaning"].replace("'", "")
                assert list(one.shape) == v["shape"] and one.dtype == v["dtype"]
                assert f"  {one.name} " in printed
                if meaning.startswith("slot "):
                    assert one.meaning == meaning == one.target
                elif meaning.startswith("SWAPPED"):
                    assert one.meaning == meaning.removeprefix("SWAPPED: holds the ")
                elif meaning.split(" of ")[0] in words:
                    assert one.meaning.startswith(words[meaning.split(" of ")[0]])
                elif "power" in one.name:
                    rate = manifest(kind)["kwargs"][one.name.removesuffix("_power")]
                    assert f"which is {rate:g} if" in one.meaning
                elif one.name == "global_step":
                    assert one.meaning == "training step 5"
                else:
                    assert "GGTOptimizer" in one.meaning


def test_inspection_with_a_model(capsys):
    found = legacy.inspect_checkpoint(recorded(), dense(), adam())
    assert all(one.target is not None for one in found) and len(found) == 15
    assert "15 restored" in capsys.readouterr().out
    legacy.inspect_checkpoint(recorded(), dense(), keras_tfopt.Momentum(0.1))
    assert "written with AdamOptimizer" in capsys.readouterr().out


def test_command_line(tmp_path, capsys):
    from keras_tfopt.legacy.__main__ import main

    model = str(tmp_path / "model.keras")
    out = str(tmp_path / "out.weights.h5")
    dense().save(model)
    assert main(["inspect", recorded()]) == 0
    assert "slot v of dense_1/kernel" in capsys.readouterr().out
    arguments = ["--set", "beta1=0.77", "--set", "beta2=0.972", "--set", "learning_rate=0.02"]
    convert = ["convert", recorded(), "--model", model, "--optimizer", "adam"]
    assert main([*convert, *arguments, "--out", out]) == 0
    assert "15 restored" in capsys.readouterr().out

    again, optimizer = dense(), adam()
    again.compile(optimizer=optimizer, loss="mse")
    optimizer.build(again.trainable_variables)
    again.load_weights(out)
    theirs = contents(recorded())
    assert_same(again.weights, [theirs[name] for name in NAMES])
    assert_same([optimizer.slot(again.weights[0], "v")], [theirs["dense/kernel/Adam_1"]])
    assert int(optimizer.iterations) == 5

    swapped = [recorded("MovingAverage_Momentum", "swapping/model.ckpt-5"), "--swapped"]
    nested = ["--optimizer", "MovingAverageOptimizer(momentum)", "--set", "learning_rate=0.1"]
    nested += ["--set", "momentum=0.56"]
    whole = str(tmp_path / "out.keras")
    assert main(["convert", *swapped, "--model", model, *nested, "--out", whole]) == 0
    average = keras.saving.load_model(whole).optimizer.variables
    assert any(np.array_equal(to_numpy(v), contents(swapped[0])["dense/kernel"]) for v in average)
    capsys.readouterr()
    for wrong, match in [
        ([*convert, "--out", out], "does not fit"),
        ([*convert, "--out", "x.h5"], "--out must end with"),
        ([*convert, "--set", "gamma=1", "--out", out], "No constructor of 'adam' takes"),
        ([*convert, "--set", "beta1", "--out", out], "ARGUMENT=VALUE"),
        ([*convert, "--map", "dense", "--out", out], "OLD=NEW"),
        (["inspect", recorded("Adam", "x")], "there is none"),
        (["inspect", recorded(), "--optimizer", "adam"], "needs a --model"),
    ]:
        assert main(wrong) == 2
        assert match in capsys.readouterr().err
    assert main([*convert, "--map", "global_step=", *arguments, "--out", out]) == 0


# ---- Large files


PROGRAM = """
import sys
from pathlib import Path
import keras, keras_tfopt, numpy
import tensorflow  # so that its own memory is not counted
from keras_tfopt import legacy

def memory(what):
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith(what)) / 1024

prefix, rows = sys.argv[1], int(sys.argv[2])
table = keras_tfopt.layers.Embedding(rows, 64, name="embedding")
model = keras.Sequential([keras.Input((1,), dtype="int32"), table])
optimizer = keras_tfopt.LazyAdam()
optimizer.build(model.trainable_variables)
for slot in ("m", "v"):  # zeros take no memory before they are written
    state = optimizer.slot(table.embeddings, slot)
    state.assign(keras.ops.ones((rows, 64)))
    float(state[0, 0])  # a backend may return before it has computed
Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
before = memory("VmRSS")
report = legacy.load_checkpoint(prefix, model, optimizer)
more = memory("VmHWM") - before
model.compile(optimizer=optimizer, loss="mse")
for _ in range(2):
    model.train_on_batch(numpy.zeros((8, 1), "int32"), numpy.zeros((8, 1, 64)))
first, last = (keras.ops.convert_to_numpy(table.embeddings[n]) for n in (0, rows - 1))
print()
print(more, before, report.iterations, float(first[5]), float(last[5]))
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_gigabyte(tmp_path):
    """Only one tensor at a time is in memory, besides the model."""
    rows = 1_400_000
    table = np.random.default_rng(0).standard_normal((rows, 64), "float32")
    name = "embedding/embeddings"
    arrays = {name: table, f"{name}/Adam": table, f"{name}/Adam_1": table}
    powers = {f"beta{i}_power": power_after(7, beta) for i, beta in ((1, 0.9), (2, 0.999))}
    prefix = write(tmp_path / "large", {**arrays, **powers, "global_step": np.array(7)})
    size = sum(p.stat().st_size for p in tmp_path.iterdir())
    assert size > 1e9
    printed = output_of("-c", PROGRAM, prefix, rows, timeout=None)
    *_, more, before, steps, first, last = printed.split()
    assert int(steps) == 7 and float(last) == table[-1, 5]
    assert float(first) != table[0, 5]  # training has changed this row
    assert "s/MB" in printed  # the progress bar
    one = table.nbytes / 2**20
    assert float(before) > 3 * one  # the model is there
    # The tensor is there twice, in TensorFlow and as an array, and on PyTorch once more, as Keras
    # copies arrays there. A second model would be three more.
    print(f"{BACKEND}: {float(more) / one:.2f} tables")
    assert float(more) < (3.5 if BACKEND == "torch" else 2.5) * one


def test_writing_in_groups_gives_one_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_files, "GROUP", 100)
    arrays = {f"v{i}": np.full(20, i, "float32") for i in range(7)}
    prefix = write(tmp_path / "model", arrays)
    assert len(list(tmp_path.glob("model.data-*"))) > 1
    assert_same(contents(prefix), arrays)
    assert not list(tmp_path.glob("*temp*"))

    def fail():
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        write_checkpoint(tmp_path / "other", [("a", "float32", fail)])
    assert not list(tmp_path.glob("other*"))


@pytest.mark.parametrize("relative", [True, False])
def test_the_file_checkpoint_lists_all_of_a_folder(relative, tmp_path, monkeypatch):
    import tensorflow as tf

    monkeypatch.chdir(tmp_path)
    folder = Path("run") if relative else tmp_path / "run"
    prefixes = [write(folder / f"model-{n}", {"v": np.zeros(1, "float32")}) for n in (1, 2, 1)]
    assert tf.train.latest_checkpoint(str(folder)) == prefixes[-1]
    state = tf.train.get_checkpoint_state(str(folder))
    assert list(state.all_model_checkpoint_paths) == prefixes[1:]
