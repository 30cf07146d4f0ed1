"""Schedules, beside the recorded tables of the originals and the formulas."""

import json
import math
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_tfopt import schedules
from tests.stepping import to_numpy

TF1 = Path(__file__).parent / "golden" / "tf1"
ENTRY = next(
    case
    for case in json.loads((TF1 / "manifest.json").read_text())["cases"]
    if case["file"] == "sign_decay__tables.npz"
)
ORIGINALS = {
    "get_linear_decay_fn": schedules.LinearSignDecay,
    "get_cosine_decay_fn": schedules.CosineSignDecay,
    "get_restart_decay_fn": schedules.RestartSignDecay,
}
CLASSES = tuple(ORIGINALS.values())


def at(schedule, step):
    return float(to_numpy(schedule(step)))


@pytest.mark.parametrize("table", ENTRY["tables"], ids=lambda table: str(table["table"]))
def test_recorded_tables(table):
    schedule = ORIGINALS[table["fn"]](**table["kwargs"])
    with np.load(TF1 / ENTRY["file"]) as arrays:
        steps, expected = (arrays[f"{table['table']}/{name}"] for name in ("steps", "values"))
    assert len(steps) > table["kwargs"]["decay_steps"]
    found = [at(schedule, keras.ops.convert_to_tensor(step, "int32")) for step in steps]
    np.testing.assert_allclose(found, expected, **ENTRY["tolerance"])


@pytest.mark.parametrize("cls", CLASSES)
def test_the_end_is_exact(cls):
    """At the last step and long after it, with steps that have no inverse in binary."""
    for decay_steps in (1, 3, 10, 49, 10_000):
        for step in (decay_steps, decay_steps + 1, 2**24 + 1):
            if cls is schedules.RestartSignDecay:
                assert at(cls(decay_steps, num_periods=3), step) == 1.0
                assert at(cls(decay_steps, num_periods=3, zero_after=3), step) == 0.0
            else:
                assert at(cls(decay_steps), step) == 0.0
        assert at(cls(decay_steps), 0) == 1.0


def test_formulas_of_another_number_of_periods():
    cosine, restart = (cls(8, num_periods=1.25, zero_after=1) for cls in CLASSES[1:])
    for step in range(10):
        turns = 1.25 * min(step, 8) / 8
        wave, descent = (1 + math.cos(2 * math.pi * turns)) / 2, (1 + math.cos(math.pi * turns)) / 2
        assert at(cosine, step) == pytest.approx(0.0 if turns >= 1 else wave, abs=1e-6)
        assert at(restart, step) == pytest.approx(0.0 if turns >= 1 else descent, abs=1e-6)


@pytest.mark.parametrize("cls", CLASSES)
def test_configuration(cls):
    arguments = {"decay_steps": 7}
    if cls is not schedules.LinearSignDecay:
        arguments |= {"num_periods": 1.5, "zero_after": 1.25}
    text = json.dumps(keras.saving.serialize_keras_object(cls(**arguments)))
    again = keras.saving.deserialize_keras_object(json.loads(text))
    assert type(again) is cls and again.get_config() == arguments
    assert keras.saving.get_registered_name(cls) == f"keras_tfopt>{cls.__name__}"


@pytest.mark.parametrize("cls", CLASSES)
def test_wrong_arguments(cls):
    wrong = [("decay_steps", value) for value in (0, -3, 2.5, "7", None, True)]
    if cls is not schedules.LinearSignDecay:
        wrong += [("num_periods", value) for value in (0, -1.0, math.nan, "1", None)]
        wrong += [("zero_after", value) for value in (0, -1.0, math.inf, "1", True)]
    for name, value in wrong:
        with pytest.raises((TypeError, ValueError), match=f"`{name}`.*Received: "):
            cls(**{"decay_steps": 7, name: value})


def test_warm_up_then_polynomial_decay():
    """Up in a line; then, counted from there, Keras's polynomial decay."""
    peak, warmup, total, power = 8.0, 5, 25, 2.0
    schedule = schedules.WarmUpPolynomialDecay(peak, warmup, total, power)
    decay = keras.optimizers.schedules.PolynomialDecay(peak, total - warmup, 0.0, power)
    for step in range(30):
        expected = peak * (step + 1) / warmup if step < warmup else at(decay, step - warmup)
        assert at(schedule, step) == pytest.approx(expected, rel=1e-6, abs=1e-7)
    assert at(schedule, warmup - 1) == at(schedule, warmup) == peak
    assert at(schedules.WarmUpPolynomialDecay(peak, 0, total), 0) == peak
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    assert isinstance(again, schedules.WarmUpPolynomialDecay)
    assert again.get_config() == schedule.get_config()


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        ((-1.0, 5, 25), ValueError, "peak"),
        ((1.0, -1, 25), ValueError, "warmup_steps"),
        ((1.0, 2.5, 25), TypeError, "warmup_steps"),
        ((1.0, 5, 5), ValueError, "total_steps"),
        ((1.0, 5, 25, 0), ValueError, "power"),
    ],
)
def test_warm_up_refuses(arguments, error, name):
    with pytest.raises(error, match=f"`{name}`"):
        schedules.WarmUpPolynomialDecay(*arguments)
