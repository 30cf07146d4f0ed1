"""Every recording of an optimizer that we have is replayed."""

import fnmatch
import inspect
import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest

from integration import originals, recordings, replay, stepping
from keras_tfopt import legacy
from tests import cells
from tests.helpers.replaying import (
    ADDONS,
    BACKEND,
    CASES,
    DEVIATING,
    FIRST_SPARSE,
    MODERN,
    OTHERS,
    PLAIN,
    PLAIN_IF_FAST,
    TF1,
    WAYS,
    WITHOUT_OLD_NAMES,
    run,
)

pytestmark = pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")


def every_way(usual):
    """Parametrize over names of recordings and ways to make steps.

    Ways on TensorFlow are "plain", "eager", "tf.function" and "jit_compile". `usual` is
    {name: ways}. Exhaustive runs try all ways.
    """
    params = []
    for name, ways in usual.items():
        entry = originals.original(CASES[name].optimizer)
        optimizer = "DecoupledWeightDecay" if entry.extends else entry.ours
        ours = pytest.mark.cell(optimizer=optimizer)
        for way in WAYS if cells.EXHAUSTIVE else ways:
            params.append(pytest.param(name, way, id=f"{name}-{way}", marks=ours))
    return pytest.mark.parametrize(("name", "way"), params)


# ---- The recordings ------------------------------------------------------------------------------


def usual(name):
    """Return the ways to replay a recording: the plain one if it is fast, for a sixth another, too.

    The other way is compiled, on one backend that a hash chooses.
    """
    if cells.is_every_sixth(name) and cells.pick(cells.INSTALLED, name) == BACKEND:
        # With another word, or the hash that has chosen the backend would choose the way.
        return (*PLAIN_IF_FAST, cells.pick(OTHERS, "way", name))
    return PLAIN_IF_FAST


def usual_through(names):
    """Return {name: ways} for other names of optimizers: plain ones, of every sixth if slow."""
    return {name: PLAIN_IF_FAST or (PLAIN,) * cells.is_every_sixth(BACKEND, name) for name in names}


@pytest.mark.everywhere
@every_way({name: usual(name) for name in CASES})
def test_recording(name, way):
    outcome = replay.replay(CASES[name], {way: WAYS[way]})
    assert outcome.failure is None
    assert 0 <= outcome.error <= 1


def usual_through_original_names():
    """Choose one recording of each class, with row gradients and many arguments if possible."""
    names = [name for name in CASES if CASES[name].folder not in WITHOUT_OLD_NAMES]
    best = sorted(names, key=lambda n: (CASES[n].sparse, len(CASES[n].entry["kwargs"])))
    chosen = {CASES[name].optimizer: name for name in best}.values()
    return {**dict.fromkeys(names, ()), **usual_through(chosen)}


@pytest.mark.everywhere
@every_way(usual_through_original_names())
def test_recording_through_the_original_names(name, way):
    outcome = replay.replay(CASES[name], {way: WAYS[way]}, through="legacy")
    assert outcome.failure is None
    assert 0 <= outcome.error <= 1


@pytest.mark.spread("torch")
def test_every_original_class_is_replayed_by_its_name(capsys):
    named = [case for case in CASES.values() if case.folder not in WITHOUT_OLD_NAMES]
    classes = {case.optimizer for case in named}
    extended = "extend_with_decoupled_weight_decay("
    assert set(legacy.names()) >= {name for name in classes if not name.startswith(extended)}
    folder = [str(TF1), "--only", "Momentum__plain"]
    assert run(capsys, *folder, "--through", "legacy")[0] == 0
    status, lines = run(capsys, str(ADDONS), "--only", "*Lookahead*", "--through", "legacy")
    assert status == 1 and "keras_tfopt.legacy has no" in lines[0]


@pytest.mark.everywhere
@every_way(usual_through(name for name, case in CASES.items() if case.folder == ADDONS))
def test_recording_through_the_names_of_tensorflow_addons(name, way):
    outcome = replay.replay(CASES[name], {way: WAYS[way]}, through="addons")
    assert outcome.failure is None
    assert 0 <= outcome.error <= 1


SPARSE_ADDONS = [name for name, case in CASES.items() if case.folder == ADDONS and case.sparse]


@pytest.mark.spread
@pytest.mark.backends(*stepping.NATIVE, reason="no row gradients of its own")
@every_way(usual_through(SPARSE_ADDONS))
def test_row_gradients_of_the_backend_through_the_names_of_tensorflow_addons(name, way):
    """They touch the rows that they name, whatever the name of the variable."""
    case = CASES[name]
    with stepping.precision(case.float64):
        ours = replay.trajectory(case, WAYS[way], native=True, through="addons")
    assert case.compare(ours).difference is None


# Recordings of TensorFlow Addons that are not replayed through our own classes, and why.
NOT_REPLAYED = {
    "*CyclicalLearningRate__*": "a schedule: test_schedules.py compares it, by number and compiled",
    "SGDW__sparse": "the original does not decay rows of plain gradient descent, ours does",
}


@pytest.mark.spread
def test_every_recording_of_tensorflow_addons_is_accounted_for():
    entries = json.loads((ADDONS / "manifest.json").read_text())["cases"]
    assert len(entries) == len({entry["file"] for entry in entries}) == 152
    left = dict.fromkeys(NOT_REPLAYED, 0)
    for entry in entries:
        name = Path(entry["file"]).stem
        reasons = [pattern for pattern in NOT_REPLAYED if fnmatch.fnmatch(name, pattern)]
        assert (name in CASES) + len(reasons) == 1, f"{name}: replayed, or a reason"
        for pattern in reasons:
            left[pattern] += 1
            is_table = entry.get("kind") == "schedule"
            assert is_table or originals.deviation(DEVIATING[name]) == NOT_REPLAYED[pattern]
    assert list(left.values()) == [11, 1]


# Recordings of modern optimizers that `test_recording` does not replay, and why.
ELSEWHERE = {
    "*OneCycle__*": "a schedule: test_schedules.py",
    "SGDR__*": "a schedule: test_schedules.py",
    "Warmup*__*": "a schedule: test_schedules.py",
    "LayerDecay__*": "a table: test_layer_decay.py",
    "AdaptiveGradClip__*[a-z_]s": "a table: test_layer_decay.py",
    "AdaptiveGradClip__hyper": "a table: test_layer_decay.py",
    "AdaptiveGradClip__axis_*": "a table of norms over axes of choice; ours are those of units",
    "SAM__*": "a training step of a model: test_sharpness_aware.py",
}
QUIRKS = {
    "ScheduleFreeAdamW__optax_warmup": "weights are those of the next step in the warm-up",
    "ScheduleFreeSGD__optax_warmup": "weights are those of the next step in the warm-up",
    "Adan__optax": "differences have the weight that the paper gives to their averages",
    "CAME__ams_bound": "the maximum is divided by the decay, and rooted twice",
    "SOAP__precondition_1d": "depends on the order of equal eigenvalues: test_soap.py",
}


@pytest.mark.spread
def test_every_recording_of_modern_optimizers_is_accounted_for():
    folders = (MODERN, TF1.parent / "sam")
    entries = [
        entry
        for folder in folders
        for entry in json.loads((folder / "manifest.json").read_text())["cases"]
    ]
    names = {Path(entry["file"]).stem: entry for entry in entries}
    assert len(entries) == len(names) == 214
    for name, entry in names.items():
        reasons = [p for p in ELSEWHERE if fnmatch.fnmatchcase(name, p)]
        reasons += [reason for reason in (QUIRKS.get(name),) if reason]
        assert (name in CASES) + (name in DEVIATING) + len(reasons) == 1, (name, reasons)
        if name in QUIRKS:
            assert entry["status"] == "quirk"
        elif reasons and not name.startswith("SAM__"):
            assert entry["kind"] in ("schedule", "table", "parameter_groups")
    assert sum(name in CASES for name in names) >= 160
    assert set(QUIRKS) <= set(names)


@pytest.mark.spread("torch")
@pytest.mark.parametrize("way", WAYS)
def test_addons_follow_the_original_where_our_own_class_deviates(way):
    outcome = replay.replay(DEVIATING["SGDW__sparse"], {way: WAYS[way]}, through="addons")
    assert outcome.failure is None
    assert 0 <= outcome.error <= 1


@pytest.mark.spread("torch")
@pytest.mark.parametrize("name", DEVIATING)
def test_deviations_are_real(name, capsys):
    failure = replay.replay(DEVIATING[name], {PLAIN: WAYS[PLAIN]}).failure
    assert re.match(r"step (\d+), (var|slot|extra)/\1/", failure), failure
    status, lines = run(capsys, str(DEVIATING[name].folder), "--only", name, "--quirks")
    assert status == 1
    assert f"not replayed: {name}: {originals.deviation(DEVIATING[name])}" in lines
    assert lines[-1] == "0 passed, 0 failed"


@pytest.mark.spread
@pytest.mark.backends(*stepping.NATIVE, reason="no row gradients of its own")
@every_way(
    # Compiled steps of PyTorch get such gradients in `test_rows`.
    {
        case.name: PLAIN_IF_FAST or (cells.pick(list(WAYS), case.name, "way"),)
        for case in FIRST_SPARSE.values()
    }
)
def test_recording_with_row_gradients_of_the_backend(name, way):
    # The original and RowGradient touch a row of zeros, gradients of the backend do not. After such
    # a row, lazy rules take other steps.
    case = CASES[name]
    lazy = originals.original(case.optimizer).optimizer_class().sparse != "dense"
    zeros = [step for step in case.steps if names_a_row_of_zeros(case, step)]
    parting = min(zeros, default=case.steps.stop)
    assert parting > 0
    with stepping.precision(case.float64):
        difference = case.compare(replay.trajectory(case, WAYS[way], native=True)).difference
    assert difference is None or (lazy and difference.step >= parting), difference


def names_a_row_of_zeros(case, step):
    gradients = [case.gradient(name, step) for name in case.variables]
    return any(
        not g.values[g.indices == row].sum(0).any()
        for g in gradients
        if isinstance(g, recordings.Rows)
        for row in set(g.indices)
    )


@pytest.mark.spread
@pytest.mark.parametrize("optimizer", sorted({case.optimizer for case in CASES.values()}))
def test_defaults_are_those_of_the_original(optimizer):
    entry = originals.original(optimizer)
    ours = inspect.signature(entry.optimizer_class()).parameters
    for case in CASES.values():
        if case.optimizer == optimizer:
            for name, value in {**entry.defaults, **case.entry["defaults"]}.items():
                if name == "global_step" or name in originals.WITHOUT_MEANING:
                    continue
                if name in entry.other_defaults:
                    assert value == entry.other_defaults[name]
                    continue
                if entry.arguments.get(name, name) is None:  # has no counterpart here
                    assert not value
                    continue
                assert ours[entry.arguments.get(name, name)].default == value, name


@pytest.mark.parametrize("name", ["kernel", "dense/kernel", "a/b/c"])
def test_variables_have_the_recorded_paths(name):
    variable = replay.make_variable(name, np.ones((2, 1)))
    assert variable.path == name
    assert keras.backend.standardize_dtype(variable.dtype) == "float64"
