"""`integration.replay`, the program that replays recordings: what passes, fails and is written."""

import fnmatch
import json

import numpy as np
import pytest

import keras_tfopt
from integration import originals, stepping
from tests.helpers.programs import run as run_python
from tests.helpers.replaying import CASES, TF1, run
from tests.helpers.stepping import BACKEND

pytestmark = [
    pytest.mark.spread("torch"),  # these are tests of the program, not of optimizers
    pytest.mark.filterwarnings("ignore:Gradients do not exist for variables"),
]


def variant(folder, name, entry=(), arrays=(), without=()):
    """Write a folder with a changed recording; return its path."""
    case = CASES[name]
    changed = {**case.arrays, **dict(arrays)}
    for array in without:
        del changed[array]
    np.savez(folder / case.entry["file"], **changed)
    manifest = {"format_version": 1, "cases": [{**case.entry, **dict(entry)}]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return str(folder)


@pytest.fixture
def failure(tmp_path, capsys):
    """Return a function that replays a changed recording, which must fail, and returns why."""

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
    """Return {array: a copy in which one number differs by a multiple of its tolerance}."""
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


PLAIN = CASES["Momentum__plain"]
NOT_A_NUMBER = np.where(np.arange(6) == 0, np.nan, PLAIN.arrays["var/3/dense/bias"])
EARLIER_AND_LATER = {
    **perturbed("Momentum__plain", "var/7/scale", by=1000),
    **perturbed("Momentum__plain", "slot/2/scale/momentum", by=5),
}
WARMTH = {
    "entry": {"extra": {"optimizer": ["warmth"], "same_run": []}},
    "arrays": {f"extra/{step}/warmth": np.float32(0) for step in PLAIN.steps},
}
BIAS = "slot/0/dense/bias/momentum"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"arrays": {"extra/4/global_step": np.int64(6)}}, "step 4, extra/4/global_step"),
        ({"arrays": EARLIER_AND_LATER}, "step 2, slot/2/scale/momentum, error "),
        ({"arrays": {"var/3/dense/bias": NOT_A_NUMBER}}, "step 3, var/3/dense/bias, error inf"),
        ({"arrays": {BIAS: np.zeros((1, 6), "float32")}}, f"{BIAS}, shape (6,), not (1, 6)"),
        ({"arrays": {BIAS: np.zeros(6, "float64")}}, f"{BIAS}, dtype float32, not float64"),
        ({"without": ["var/8/scale"]}, "Momentum__plain.npz lacks var/8/scale"),
        (WARMTH, "step 0, extra/0/warmth, not exposed"),
        ({"entry": {"kwargs": {"learning_rate": 0.1, "momentum": 0.5, "impulse": 1}}}, "impulse"),
        (
            {"entry": {"kwargs": {"learning_rate": {"fn": "no_decay"}, "momentum": 0.5}}},
            "there is no counterpart of the argument",
        ),
        ({"entry": {"apply_kwargs": {"decay_var_list": ["x"]}}}, "apply_kwargs is not handled"),
        ({"entry": {"gradient_transform": {"fn": "clip"}}}, "gradient_transform is not handled"),
        ({"entry": {"phases": ["rest"]}}, "phase rest is not handled"),
    ],
)
def test_changed_recording_fails(failure, changes, reason):
    assert reason in failure("Momentum__plain", **changes)


def test_a_slot_that_our_optimizer_lacks_fails(failure):
    case = CASES["Momentum__plain"]
    entry = json.loads(json.dumps({name: case.entry[name] for name in ("variables", "tolerance")}))
    entry["variables"][0]["slots"]["velocity"] = []
    entry["tolerance"]["slots"]["velocity"] = {"rtol": 1e9, "atol": 1e9}
    arrays = {f"slot/{step}/scale/velocity": np.float32(0) for step in case.steps}
    said = failure(case.name, entry, arrays)
    assert said.startswith("step 0, slot/0/scale/velocity, not exposed")


def test_class_that_does_not_exist_fails(failure, monkeypatch):
    entry = {"optimizer": "ImpulseOptimizer"}
    assert "there is no counterpart of Impulse" in failure("Momentum__plain", entry)
    monkeypatch.setitem(originals.ORIGINALS, "ImpulseOptimizer", originals.Original("Impulse"))
    assert "there is no keras_tfopt.Impulse" in failure("Momentum__plain", entry)


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


def test_recordings_of_another_format_are_counted(capsys):
    status, lines = run(capsys, str(TF1.parent / "tf1_distributed"))
    assert status == 1
    assert any(line.startswith("not replayed: ") and "recorded from" in line for line in lines)
    assert lines[-1] == "0 passed, 0 failed"


def test_dump_is_a_recording_of_ours(tmp_path, capsys):
    pattern = "Momentum__[nps]*e"
    status, lines = run(capsys, str(TF1), "--only", pattern, "--dump", str(tmp_path))
    assert status == 0

    # This comparison uses no code of the program.
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

    status, lines = run(capsys, str(tmp_path))  # the dump can be replayed
    assert status == 0


def test_dump_has_our_numbers_and_not_the_recorded_ones(tmp_path, capsys):
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
def test_exit_status_of_the_program(tmp_path):
    folder = variant(tmp_path, "Momentum__plain", {"optimizer": "X"})
    done = run_python("-m", "integration.replay", folder)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == "0 passed, 1 failed"


def test_version_and_mode_are_in_the_dump(tmp_path, capsys, monkeypatch):
    # Steps that are compiled would take long, and are tried in `test_replay`.
    of = {"compiled": stepping.ways("eager")}
    monkeypatch.setattr(stepping, "ways", of.get)
    only, mode = ["--only", "Momentum__plain"], ["--mode", "compiled"]
    run(capsys, str(TF1), *only, *mode, "--dump", str(tmp_path))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    version = f"keras_tfopt {keras_tfopt.__version__}"
    assert manifest["recorded_from"] == f"{version} on {BACKEND}, compiled"
