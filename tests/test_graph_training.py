"""A complete program of TensorFlow 1 runs with our optimizers; only an import is changed."""

import numpy as np
import pytest

from tests.helpers.graphs import tf
from tests.helpers.paths import GOLDEN

datasets = pytest.importorskip("sklearn.datasets")

from integration.tf1 import training

pytestmark = pytest.mark.backends("tensorflow", reason="graphs are TensorFlow's")

RECORDED = GOLDEN / "tf1_training" / "digits.npz"
STEPS = 120


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    images, labels = datasets.load_digits(return_X_y=True)
    random = np.random.RandomState(0)
    path = tmp_path_factory.mktemp("data") / "digits.npz"
    np.savez(
        path,
        images=(images / 16).astype("float32"),
        labels=labels.astype("int64"),
        batches=random.randint(0, len(images), (STEPS, 128)).astype("int64"),
        **{
            "hidden/kernel": (random.randn(64, 32) / 8).astype("float32"),
            "hidden/bias": np.zeros(32, "float32"),
            "output/kernel": (random.randn(32, 10) / 6).astype("float32"),
            "output/bias": np.zeros(10, "float32"),
        },
    )
    return str(path)


def run(data, folder, steps):
    out = folder / f"until_{steps}.npz"
    training.main(data, str(folder), steps, str(out), "keras_tfopt.legacy")
    return dict(np.load(out))


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(data, folder, STEPS)


def test_losses_and_state_equal_those_of_tensorflow_1(whole):
    """It has two optimizers, averages, clipping, a schedule, and 120 steps on real data."""
    recorded, ours = np.load(RECORDED), whole[1]
    assert set(ours) == set(recorded) and len(ours) > STEPS
    for name in recorded:
        np.testing.assert_allclose(ours[name], recorded[name], rtol=1e-4, atol=2e-6, err_msg=name)


def test_an_interrupted_training_continues_to_the_bit(data, whole, tmp_path):
    first = run(data, tmp_path, 70)
    assert int(first["var/global_step"]) == 70
    second = run(data, tmp_path, STEPS)
    assert min(int(n.split("/")[1]) for n in second if n.startswith("loss/")) == 70
    for name, value in {**first, **second}.items():
        if name.startswith("var/") or name in second:
            np.testing.assert_array_equal(second[name], whole[1][name], name)
        else:
            np.testing.assert_array_equal(value, whole[1][name], name)


def test_summaries_and_checkpoints_are_written(whole):
    folder, _ = whole
    (events,) = folder.glob("events.out.tfevents*")
    rates = {
        event.step: value.simple_value
        for event in tf.compat.v1.train.summary_iterator(str(events))
        for value in event.summary.value
        if value.tag == "rate"
    }
    # The hook reads the step before or after it is counted.
    assert STEPS // 20 <= len(rates) <= STEPS // 20 + 2
    for step, rate in rates.items():
        around = [10 * (1 - number / STEPS) ** 2 for number in (step - 1, step)]
        assert min(abs(rate - one) for one in around) < 1e-4 * max(around), step
    saved = tf.train.get_checkpoint_state(str(folder)).all_model_checkpoint_paths
    assert [path.rsplit("-")[-1] for path in saved] == ["0", "40", "80", "120"]
