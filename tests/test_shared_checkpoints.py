"""Several optimizers in one checkpoint of TensorFlow 1: each finds its own powers of betas."""

import shutil
import sys

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from keras_tfopt import legacy
from tests.cells import exhaustive
from tests.helpers.checkpoints import (
    assert_same,
    contents,
    needs_tensorflow,
    run_program,
    tensorflow_1,
)
from tests.helpers.paths import GOLDEN
from tests.helpers.stepping import to_numpy

pytestmark = needs_tensorflow

RECORDED = GOLDEN / "tf1_programs"
PREFIX = RECORDED / "gan" / "model.ckpt-20"
SIZE, NOISE = 16, 4


def network(name, inputs, outputs):
    layers = [
        keras.layers.Dense(8, activation="leaky_relu", name="hidden"),
        keras.layers.Dense(outputs, name="output"),
    ]
    model = keras.Sequential(layers, name=name)
    model.build((None, inputs))
    return model


@pytest.fixture
def models():
    keras.utils.set_random_seed(0)
    return [network("generator", NOISE, 2), network("discriminator", 2, 1)]


def optimizers(models):
    """Return the two optimizers of the GAN in `integration/tf1/programs.py`."""
    made = [keras_tfopt.Adam(0.005, beta_1=0.5), keras_tfopt.Adam(0.01, beta_1=0.5)]
    for optimizer, model in zip(made, models):
        optimizer.build(model.trainable_variables)
    return made


def without_graph(folder):
    """Copy the checkpoint without its graph; return its prefix."""
    for file in PREFIX.parent.glob("model.ckpt-20.[di]*"):
        shutil.copy(file, folder)
    return folder / PREFIX.name


def cross_entropy(logits, label):
    each = ops.maximum(logits, 0) - logits * label + ops.log1p(ops.exp(-ops.abs(logits)))
    return ops.mean(each)


def to_float(tensor):
    return float(ops.convert_to_numpy(ops.stop_gradient(tensor)))


def train(models, adams, first, last):
    """Train as the program does; return the losses."""
    (generator, discriminator), (g_adam, d_adam) = models, adams
    losses = {}
    for number in range(first, last):
        for turn in range(2):
            random = np.random.RandomState(1000 + 2 * number + turn)
            real = ops.convert_to_tensor((1 + 0.3 * random.randn(SIZE, 2)).astype("float32"))
            z = ops.convert_to_tensor(random.randn(SIZE, NOISE).astype("float32"))

            def d_loss(real=real, z=z):
                made = discriminator(ops.stop_gradient(generator(z)))
                return cross_entropy(discriminator(real), 0.9) + cross_entropy(made, 0.0)

            losses[f"d_loss/{turn}/{number}"] = to_float(d_loss())
            d_adam.minimize(d_loss, var_list=discriminator.trainable_variables)

        def g_loss(z=z):
            return cross_entropy(discriminator(generator(z)), 1.0)

        losses[f"g_loss/{number}"] = to_float(g_loss())
        g_adam.minimize(g_loss, var_list=generator.trainable_variables)
    return losses


@pytest.mark.spread
def test_both_optimizers_continue_as_recorded(models):
    """One call loads both models, whose names are the scopes."""
    recorded = np.load(RECORDED / "gan.npz")
    adams = [legacy.AdamOptimizer(0.005, beta1=0.5), legacy.AdamOptimizer(0.01, beta1=0.5)]
    for optimizer, model in zip(adams, models):
        optimizer.keras.build(model.trainable_variables)
    report = legacy.load_checkpoint(PREFIX, models, adams)
    assert report.iterations == [20, 40] and not report.problems
    assert report.steps["beta1_power"] == 40 and report.steps["beta1_power_1"] == 20
    losses = train(models, adams, 20, 22)
    assert len(losses) == 6
    for name, loss in losses.items():
        np.testing.assert_allclose(loss, recorded[name], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(("which", "steps"), [(0, 20), (1, 40)], ids=["generator", "discriminator"])
def test_one_optimizer_finds_its_own_powers(models, which, steps):
    optimizer = optimizers(models)[which]
    report = legacy.load_checkpoint(PREFIX, models, optimizer, strict=False)
    assert report.iterations == int(optimizer.iterations) == steps
    theirs = contents(PREFIX)[f"{models[which].name}/hidden/kernel/Adam_1"]
    assert_same([optimizer.slot(models[which].trainable_variables[0], "v")], [theirs])


def test_without_a_graph_the_user_has_to_say_which_powers(models, tmp_path):
    """Only the graph tells which optimizer a power belongs to."""
    prefix = without_graph(tmp_path)
    g_adam, d_adam = adams = optimizers(models)
    before = [to_numpy(v) for v in models[0].weights]
    for given in (g_adam, adams):
        with pytest.raises(ValueError, match="several optimizers") as raised:
            legacy.load_checkpoint(prefix, models, given, strict=False)
        assert "beta1_power and beta2_power (40 steps)" in str(raised.value)
        assert "beta1_power_1 and beta2_power_1 (20 steps)" in str(raised.value)
    assert_same(models[0].weights, before)
    assert int(g_adam.iterations) == int(d_adam.iterations) == 0

    others = {"beta1_power": None, "beta2_power": None}
    report = legacy.load_checkpoint(prefix, models, g_adam, others, strict=False)
    assert report.iterations == int(g_adam.iterations) == 20

    scopes = {
        f"beta{i}_power{number}": f"{scope}/beta{i}_power"
        for i in (1, 2)
        for number, scope in (("", "discriminator"), ("_1", "generator"))
    }
    report = legacy.load_checkpoint(prefix, models, optimizers(models), scopes)
    assert report.iterations == [20, 40] and not report.problems


def test_a_damaged_graph_counts_as_missing(models, tmp_path):
    prefix = without_graph(tmp_path)
    (tmp_path / "model.ckpt-20.meta").write_bytes(b"\xff" * 100)
    with pytest.raises(ValueError, match="several optimizers"):
        legacy.load_checkpoint(prefix, models, optimizers(models))


def test_powers_of_equal_counts_need_no_graph(models, tmp_path):
    adams = optimizers(models)
    for adam in adams:
        adam.iterations.assign(7)
    path = legacy.save_checkpoint(tmp_path / "model", models, adams)
    again = optimizers(models)
    report = legacy.load_checkpoint(path, models, again)
    assert report.iterations == [7, 7] and not report.problems
    assert {e.name for e in report.of("restored")} >= {"beta1_power", "beta1_power_1"}


def after_3_and_5(models, *optimizers):
    for optimizer, model, steps in zip(optimizers, models, (3, 5)):
        optimizer.build(model.trainable_variables)
        optimizer.iterations.assign(steps)
    return optimizers


def test_two_powers_of_one_optimizer_identify_it(models, tmp_path):
    """Adam has two powers, AdaMax one. So their names have different numbers."""
    adamax, adam = after_3_and_5(models, keras_tfopt.AdaMax(0.01), keras_tfopt.Adam(0.01))
    path = legacy.save_checkpoint(tmp_path / "model", models, [adamax, adam])
    assert {"beta1_power", "beta1_power_1", "beta2_power"} <= set(contents(path))
    adam.iterations.assign(0)
    assert legacy.load_checkpoint(path, models, adam, strict=False).iterations == 5
    with pytest.raises(ValueError, match=r"beta1_power \(3 steps\); beta1_power_1 \(5 steps\)"):
        legacy.load_checkpoint(path, models, adamax, strict=False)


def test_different_betas_identify_powers(models, tmp_path):
    adams = after_3_and_5(models, *(keras_tfopt.Adam(0.01, beta_1=beta) for beta in (0.5, 0.8)))
    path = legacy.save_checkpoint(tmp_path / "model", models, adams[::-1])
    for optimizer in adams:
        optimizer.iterations.assign(0)
    report = legacy.load_checkpoint(path, models, adams)
    assert report.iterations == [3, 5] and not report.problems


def test_round_trip_is_exact(models, tmp_path):
    adams = optimizers(models)
    legacy.load_checkpoint(PREFIX, models, adams)
    path = legacy.save_checkpoint(tmp_path / "model", models, adams[::-1])
    # The discriminator comes first, and the training step is that of the generator.
    theirs = {**contents(PREFIX), "global_step": np.int64(40)}
    assert_same(contents(path), theirs)


@pytest.mark.slow
@pytest.mark.spread
@pytest.mark.parametrize("interpreter", [exhaustive("here"), "TensorFlow 1.15"])
def test_the_program_continues_from_a_written_checkpoint(models, tmp_path, interpreter):
    python = sys.executable if interpreter == "here" else tensorflow_1()
    adams = optimizers(models)
    legacy.load_checkpoint(PREFIX, models, adams)
    legacy.save_checkpoint(tmp_path / "model.ckpt-20", models, adams[::-1])
    arguments = ["gan", tmp_path, "25", tmp_path / "out.npz"]
    done = run_program(python, "programs.py", arguments, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    ours, recorded = np.load(tmp_path / "out.npz"), np.load(RECORDED / "gan.npz")
    losses = [name for name in ours if "loss" in name]
    assert len(losses) == 15
    for name in losses:
        np.testing.assert_allclose(ours[name], recorded[name], rtol=1e-6, atol=1e-7, err_msg=name)


def test_wrong_lists_of_optimizers_are_refused(models, tmp_path):
    g_adam, d_adam = optimizers(models)
    twin = keras_tfopt.Adam()
    with pytest.raises(ValueError, match="are built"):
        legacy.load_checkpoint(PREFIX, models, [g_adam, twin])
    twin.build(models[0].trainable_variables)
    for given, message in (([g_adam, twin], "different variables"), ([], "at least one")):
        with pytest.raises(ValueError, match=message):
            legacy.save_checkpoint(tmp_path / "model", models, given)
        with pytest.raises(ValueError, match=message):
            legacy.load_checkpoint(PREFIX, models, given)
    with pytest.raises(ValueError, match="distinct names"):
        legacy.save_checkpoint(tmp_path / "model", [models[0], models[0]], [g_adam, d_adam])
    assert not list(tmp_path.iterdir())
