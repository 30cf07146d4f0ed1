"""Every recording of an implemented optimizer, and the tool that replays them."""

import fnmatch
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_tfopt
from integration import originals, recordings, replay, stepping
from keras_tfopt import legacy
from tests import cells

pytestmark = pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")

ROOT = Path(__file__).parent.parent
TF1 = ROOT / "tests" / "golden" / "tf1"
RETURNN = TF1.parent / "returnn"
ADDONS = TF1.parent / "tfa"
MODERN = TF1.parent / "modern"
WITHOUT_OLD_NAMES = (ADDONS, MODERN)  # in `keras_tfopt.legacy`
BACKEND = keras.backend.backend()

IMPLEMENTED = [
    case
    for folder in (TF1, RETURNN, ADDONS, MODERN)
    for case in recordings.select(folder, quirks=True).cases
    if originals.is_implemented(case.optimizer)
]
DEVIATING = {case.name: case for case in IMPLEMENTED if originals.deviation(case)}
# Quirks of arguments, which need not be given here.
FOLLOWED = ("Muon__optax_dion_7_steps", "ScheduleFreeRAdam__weight_lr_power_zero")
CASES = {
    case.name: case
    for case in IMPLEMENTED
    if (case.name in FOLLOWED or not case.quirk) and case.name not in DEVIATING
}
FIRST_SPARSE = {
    case.optimizer: case
    for case in reversed(CASES.values())
    if case.sparse
    and issubclass(originals.original(case.optimizer).optimizer_class(), keras_tfopt.Rule)
}


WAYS = {label: way for mode in stepping.MODES for label, way in stepping.ways(mode).items()}
PLAIN, *OTHERS = WAYS  # operation by operation; compiled in one way or another
# TensorFlow takes ten times as long, and JAX fifty times: it compiles each operation alone.
PLAIN_IF_FAST = (PLAIN,) if BACKEND == "torch" else ()


def every_way(usual):
    """Parametrize over recordings by their names, and over the ways to make steps.

    Unless the run is exhaustive, they are replayed in the usual ways only: {name: ways}.
    """
    params = []
    for name, ways in usual.items():
        entry = originals.original(CASES[name].optimizer)
        optimizer = "DecoupledWeightDecay" if entry.extends else entry.ours
        ours = pytest.mark.cell(optimizer=optimizer)
        for way in WAYS:
            marks = [ours] if way in ways else [ours, pytest.mark.exhaustive]
            params.append(pytest.param(name, way, id=f"{name}-{way}", marks=marks))
    return pytest.mark.parametrize(("name", "way"), params)


# ---- The recordings ------------------------------------------------------------------------------


def usual(name):
    """All operation by operation where that is fast; every second compiled, on one backend."""
    is_compiled = cells.pick((True, False), "sample", name)
    if is_compiled and cells.pick(cells.INSTALLED, name) == BACKEND:
        return (*PLAIN_IF_FAST, cells.pick(OTHERS, name))
    return PLAIN_IF_FAST


@every_way({name: usual(name) for name in CASES})
def test_recording(name, way):
    outcome = replay.replay(CASES[name], {way: WAYS[way]})
    assert outcome.failure is None
    assert 0 <= outcome.error <= 1


def usual_through_original_names():
    """Of each class one recording, with row gradients and several options where there are."""
    names = [name for name in CASES if CASES[name].folder not in WITHOUT_OLD_NAMES]
    best = sorted(names, key=lambda n: (CASES[n].sparse, len(CASES[n].entry["kwargs"])))
    chosen = set({CASES[name].optimizer: name for name in best}.values())
    return {name: PLAIN_IF_FAST if name in chosen else () for name in names}


@every_way(usual_through_original_names())
def test_recording_through_the_original_names(name, way):
    outcome = replay.replay(CASES[name], {way: WAYS[way]}, through="legacy")
    assert outcome.failure is None
    assert 0 <= outcome.error <= 1


def test_every_original_is_replayed_under_its_name(capsys):
    named = [case for case in CASES.values() if case.folder not in WITHOUT_OLD_NAMES]
    classes = {case.optimizer for case in named}
    extended = "extend_with_decoupled_weight_decay("
    assert set(legacy.names()) >= {name for name in classes if not name.startswith(extended)}
    folder = [str(TF1), "--only", "Momentum__plain"]
    assert run(capsys, *folder, "--through", "legacy")[0] == 0
    status, lines = run(capsys, str(ADDONS), "--only", "*Lookahead*", "--through", "legacy")
    assert status == 1 and "keras_tfopt.legacy has no" in lines[0]


def usual_through_addons():
    return {name: PLAIN_IF_FAST for name, case in CASES.items() if case.folder == ADDONS}


@every_way(usual_through_addons())
def test_recording_through_the_names_of_tensorflow_addons(name, way):
    outcome = replay.replay(CASES[name], {way: WAYS[way]}, through="addons")
    assert outcome.failure is None
    assert 0 <= outcome.error <= 1


# Recordings of TensorFlow Addons that are not replayed through our own classes, and why.
NOT_REPLAYED = {
    "*CyclicalLearningRate__*": "a schedule: test_schedules.py compares it, by number and compiled",
    "SGDW__sparse": "the original does not decay rows of plain gradient descent, ours does",
}


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


def test_every_recording_of_modern_optimizers_is_accounted_for():
    folders = (MODERN, TF1.parent / "sam")
    entries = [
        entry
        for folder in folders
        for entry in json.loads((folder / "manifest.json").read_text())["cases"]
    ]
    names = {Path(entry["file"]).stem: entry for entry in entries}
    assert len(entries) == len(names) == 213
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


@pytest.mark.parametrize("way", WAYS)
def test_addons_follow_the_original_where_our_own_class_deviates(way):
    outcome = replay.replay(DEVIATING["SGDW__sparse"], {way: WAYS[way]}, through="addons")
    assert outcome.failure is None
    assert 0 <= outcome.error <= 1


@pytest.mark.parametrize("name", DEVIATING)
def test_deviations_are_real(name, capsys):
    failure = replay.replay(DEVIATING[name], {PLAIN: WAYS[PLAIN]}).failure
    assert re.match(r"step (\d+), (var|slot|extra)/\1/", failure), failure
    status, lines = run(capsys, str(DEVIATING[name].folder), "--only", name, "--quirks")
    assert status == 1
    assert f"not replayed: {name}: {originals.deviation(DEVIATING[name])}" in lines
    assert lines[-1] == "0 passed, 0 failed"


@pytest.mark.parametrize("pattern", ["Momentum_*", "Adam_*", "LazyAdam_*", "LARS_*"])
def test_patterns_choose_what_they_say(pattern):
    cases = recordings.select(TF1, pattern).cases
    assert len(cases) >= 6
    assert len({case.optimizer for case in cases}) == 1
    assert all(case.name in CASES for case in cases)


@pytest.mark.skipif(BACKEND not in stepping.NATIVE, reason="no row gradients of its own")
@every_way({case.name: (cells.pick(list(WAYS), name),) for name, case in FIRST_SPARSE.items()})
def test_recording_with_row_gradients_of_the_backend(name, way):
    # Such gradients do not touch a row of zeros as the original and RowGradient do, so the paths
    # of the lazy rules part where one occurs.
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


@pytest.mark.parametrize("optimizer", sorted({case.optimizer for case in CASES.values()}))
def test_defaults_are_those_of_the_original(optimizer):
    entry = originals.original(optimizer)
    ours = inspect.signature(entry.optimizer_class()).parameters
    for case in CASES.values():
        if case.optimizer == optimizer:
            for name, value in {**entry.defaults, **case.entry["defaults"]}.items():
                if name == "global_step":  # a constant there, which counts nothing
                    continue
                if name in originals.WITHOUT_MEANING:
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


# ---- The tool ------------------------------------------------------------------------------------


def variant(folder, name, entry=(), arrays=(), without=()):
    """A folder with one recording and changes to it."""
    case = CASES[name]
    changed = {**case.arrays, **dict(arrays)}
    for array in without:
        del changed[array]
    np.savez(folder / case.entry["file"], **changed)
    manifest = {"format_version": 1, "cases": [{**case.entry, **dict(entry)}]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return str(folder)


def run(capsys, *arguments):
    status = replay.main(list(arguments))
    return status, capsys.readouterr().out.splitlines()


@pytest.fixture
def failure(tmp_path, capsys):
    """A function that replays a changed recording, which has to fail, and returns the reason."""

    def of(name, *changes, **more):
        status, lines = run(capsys, variant(tmp_path, name, *changes, **more))
        assert status == 1
        assert lines[0].startswith(f"FAILED {name}: ")
        assert lines[-1] == "0 passed, 1 failed"
        return lines[0].removeprefix(f"FAILED {name}: ")

    return of


def test_unchanged_recording_passes(tmp_path, capsys):
    status, lines = run(capsys, variant(tmp_path, "Momentum__plain"))
    assert status == 0
    assert lines[-1] == "1 passed, 0 failed"


def perturbed(name, array, by):
    """An array moved by a multiple of its tolerance in one place."""
    case = CASES[name]
    changed = np.array(case.arrays[array])
    rtol, atol = case.tolerance_of(array)
    flat = changed.reshape(-1)
    flat[-1] += by * (atol + rtol * abs(flat[-1]))
    return {array: changed}


@pytest.mark.parametrize(
    ("name", "array", "where"),
    [
        ("Momentum__plain", "var/3/dense/kernel", "step 3"),
        ("Momentum__plain", "var/8/scale", "step 8"),
        ("Momentum__plain", "slot/0/dense/bias/momentum", "step 0"),
        ("Momentum__none_gradient", "var/10/frozen", "step 10"),
        ("LazyAdam__defaults", "slot/9/embedding/table/v", "step 9"),
        ("Adam__hyper", "extra/5/beta2_power", "step 5"),
        ("Momentum__exponential_lr_tensor", "extra/2/learning_rate", "step 2"),
        ("CustomAdamOptimizer__hyper", "slot/12/kernel/v", "step 12"),
        ("CustomAdamOptimizer__variable_lr", "extra/1/learning_rate", "step 1"),
        ("Momentum__plain", "slot_init/scale/momentum", "before the first step"),
    ],
)
def test_perturbed_recording_fails(failure, name, array, where):
    said = failure(name, arrays=perturbed(name, array, by=12))
    assert said.startswith(f"{where}, {array}, error 1")
    assert "x tolerance" in said


def test_wrong_count_of_steps_fails(failure):
    said = failure("Momentum__plain", arrays={"extra/4/global_step": np.int64(6)})
    assert said.startswith("step 4, extra/4/global_step")


def test_first_step_that_differs_is_reported(failure):
    name = "Momentum__plain"
    later = perturbed(name, "var/7/scale", by=1000)
    earlier = perturbed(name, "slot/2/scale/momentum", by=5)
    said = failure(name, arrays=later | earlier)
    assert said.startswith("step 2, slot/2/scale/momentum, error ")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_recorded_value_that_is_not_finite_fails(failure, value):
    array = np.array(CASES["Momentum__plain"].arrays["var/3/dense/bias"])
    array[0] = value
    said = failure("Momentum__plain", arrays={"var/3/dense/bias": array})
    assert said.startswith("step 3, var/3/dense/bias, error inf")


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((1, 6), "float32"), "shape (6,), not (1, 6)"),
        (np.zeros(6, "float64"), "dtype float32, not float64"),
    ],
)
def test_wrong_shape_or_dtype_fails(failure, array, reason):
    said = failure("Momentum__plain", arrays={"slot/0/dense/bias/momentum": array})
    assert f"slot/0/dense/bias/momentum, {reason}" in said


def test_slot_that_ours_lacks_fails(failure):
    case = CASES["Momentum__plain"]
    entry = json.loads(json.dumps({name: case.entry[name] for name in ("variables", "tolerance")}))
    entry["variables"][0]["slots"]["velocity"] = []
    entry["tolerance"]["slots"]["velocity"] = {"rtol": 1e9, "atol": 1e9}
    arrays = {f"slot/{step}/scale/velocity": np.float32(0) for step in case.steps}
    said = failure(case.name, entry, arrays)
    assert said.startswith("step 0, slot/0/scale/velocity, not exposed")


def test_extra_that_ours_lacks_fails(failure):
    case = CASES["Momentum__plain"]
    arrays = {f"extra/{step}/warmth": np.float32(0) for step in case.steps}
    said = failure(case.name, {"extra": {"optimizer": ["warmth"], "same_run": []}}, arrays)
    assert said.startswith("step 0, extra/0/warmth, not exposed")


def test_class_that_does_not_exist_fails(failure, monkeypatch):
    entry = {"optimizer": "ImpulseOptimizer"}
    assert "there is no counterpart of Impulse" in failure("Momentum__plain", entry)
    monkeypatch.setitem(originals.ORIGINALS, "ImpulseOptimizer", originals.Original("Impulse"))
    assert "there is no keras_tfopt.Impulse" in failure("Momentum__plain", entry)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"kwargs": {"learning_rate": 0.1, "momentum": 0.5, "impulse": 1}}, "impulse"),
        (
            {"kwargs": {"learning_rate": {"fn": "no_decay"}, "momentum": 0.5}},
            "there is no counterpart of the argument",
        ),
        ({"apply_kwargs": {"decay_var_list": ["scale"]}}, "apply_kwargs is not handled"),
        ({"gradient_transform": {"fn": "clip"}}, "gradient_transform is not handled"),
        ({"phases": ["avoid_updating_slots"]}, "phase avoid_updating_slots is not handled"),
    ],
)
def test_what_is_not_understood_fails(failure, entry, reason):
    assert reason in failure("Momentum__plain", entry)


def test_incomplete_recording_fails(failure):
    said = failure("Momentum__plain", without=["var/8/scale"])
    assert "Momentum__plain.npz lacks var/8/scale" in said


def test_other_cases_are_replayed_after_a_failure(tmp_path, capsys):
    variant(tmp_path, "Momentum__nesterov")
    good = json.loads((tmp_path / "manifest.json").read_text())["cases"]
    variant(tmp_path, "Momentum__plain", {"optimizer": "ImpulseOptimizer"})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["cases"] += good
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    status, lines = run(capsys, str(tmp_path))
    assert status == 1
    assert lines[-1] == "1 passed, 1 failed"


def test_nothing_selected_is_no_success(tmp_path, capsys):
    for arguments in ([str(TF1), "--only", "Momentum"], [str(tmp_path)]):
        status, lines = run(capsys, *arguments)
        assert status == 1
        assert not any("FAILED" in line for line in lines)
    status, lines = run(capsys, str(TF1), "--only", "*__tables")
    assert status == 1
    assert "not replayed: 3 tables" in lines
    assert lines[-1] == "0 passed, 0 failed"


def test_quirks_are_replayed_on_request(tmp_path, capsys):
    folder = variant(tmp_path, "Momentum__plain", {"status": "quirk"})
    status, lines = run(capsys, folder)
    assert status == 1
    assert "not replayed: 1 cases marked quirk (see --quirks)" in lines
    status, lines = run(capsys, folder, "--quirks")
    assert status == 0
    assert lines[-1] == "1 passed, 0 failed"


@pytest.mark.parametrize("folder", ["tf1_distributed"])
def test_formats_to_come_are_counted(capsys, folder):
    status, lines = run(capsys, str(TF1.parent / folder))
    assert status == 1
    assert any(line.startswith("not replayed: ") and "recorded from" in line for line in lines)
    assert lines[-1] == "0 passed, 0 failed"


@pytest.mark.parametrize("mode", stepping.MODES)
def test_dump_is_a_recording_of_ours(tmp_path, capsys, mode):
    pattern = "Momentum__[nps]*e"
    status, lines = run(
        capsys, str(TF1), "--only", pattern, "--mode", mode, "--dump", str(tmp_path)
    )
    assert status == 0

    # A comparison that has nothing from the tool.
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    files = {entry["file"] for entry in manifest["cases"]}
    recorded = {p.name for p in TF1.glob("Momentum__*") if fnmatch.fnmatch(p.stem, pattern)}
    assert files == recorded == {p.name for p in tmp_path.glob("*.npz")}
    assert len(files) == int(lines[-1].split()[0]) >= 2
    for entry in manifest["cases"]:
        ours, theirs = np.load(tmp_path / entry["file"]), np.load(TF1 / entry["file"])
        assert set(ours) == set(theirs)
        for name in theirs:
            kind, last = name.split("/")[0], name.split("/")[-1]
            if kind == "grad":
                np.testing.assert_array_equal(ours[name], theirs[name])
                continue
            group = {"init": "var", "slot_init": "slots", "slot": "slots"}.get(kind, kind)
            tolerance = entry["tolerance"]["extra" if group == "extra_init" else group]
            tolerance = tolerance if group == "var" else tolerance[last]
            np.testing.assert_allclose(ours[name], theirs[name], **tolerance, err_msg=name)

    status, lines = run(capsys, str(tmp_path), "--mode", mode)  # it is replayable in turn
    assert status == 0


def test_dump_holds_what_ours_computes_where_it_differs(tmp_path, capsys):
    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    arrays = perturbed("Momentum__plain", "var/3/dense/kernel", by=50)
    folder = variant(source, "Momentum__plain", arrays=arrays)
    assert run(capsys, folder, "--dump", str(target))[0] == 1
    ours = np.load(target / "Momentum__plain.npz")["var/3/dense/kernel"]
    original = CASES["Momentum__plain"].arrays["var/3/dense/kernel"]
    np.testing.assert_allclose(ours, original, rtol=1e-5, atol=1e-6)
    before = (source / "manifest.json").read_bytes()
    assert run(capsys, folder, "--dump", folder)[0] == 1
    assert (source / "manifest.json").read_bytes() == before


@pytest.mark.slow
@pytest.mark.spread
def test_exit_status_of_the_program(tmp_path):
    good = [str(TF1), "--only", "Momentum__plain"]
    for arguments, status, last in [
        (good, 0, "1 passed, 0 failed"),
        ([variant(tmp_path, "Momentum__plain", {"optimizer": "X"})], 1, "0 passed, 1 failed"),
    ]:
        done = subprocess.run(
            [sys.executable, "-m", "integration.replay", *arguments],
            cwd=ROOT,
            env={**os.environ, "KERAS_BACKEND": BACKEND},
            capture_output=True,
            text=True,
        )
        assert done.returncode == status, done.stderr
        assert done.stdout.splitlines()[-1] == last


def test_version_is_in_the_dump(tmp_path, capsys):
    run(capsys, str(TF1), "--only", "Momentum__plain", "--dump", str(tmp_path))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["recorded_from"] == f"keras_tfopt {keras_tfopt.__version__} on {BACKEND}, eager"
