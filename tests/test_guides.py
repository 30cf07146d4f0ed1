"""The guides run with small settings, print their results, and draw their pictures.

`make guides` runs each guide in full on one backend. The tests run it on another installed backend,
and in exhaustive runs on all.
"""

import re
import sys
import time
from pathlib import Path

import keras
import pytest

from integration import guides as runner
from tests import cells
from tests.helpers.paths import ROOT
from tests.helpers.programs import AS_USERS, output_of
from tests.helpers.stepping import BACKEND

GUIDES = ROOT / "guides"
NUMBER = r"\s+-?\d+(?:\.\d+)?(?:e[-+]\d+)?"

# On one worker, because the guides of a run share a process.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("guides")]
pytest.importorskip("matplotlib")
pytest.importorskip("mlxtend")
pytest.importorskip("sklearn")


# Guides that compile many models run where that takes less time.
HOMES = {
    "less_memory": "jax",
    "signs": "tensorflow",
    "switching": "jax",
    "which_optimizer": "torch",
    "workers": "torch",
}


def guides_here():
    """Return the guides that run on this backend."""
    return [guide for guide in runner.names() if cells.EXHAUSTIVE or home(guide) == BACKEND]


def home(guide):
    """Return a backend on which `make guides` does not run the guide, if there is one."""
    others = [name for name in cells.INSTALLED if name != runner.BACKENDS.get(guide)]
    if HOMES.get(guide) in others:
        return HOMES[guide]
    return cells.pick(others or cells.INSTALLED, guide)


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Return a function from a guide to what it printed."""
    folder = tmp_path_factory.mktemp("guides")
    output_of("-m", "tests.workers.guides_worker", folder, *guides_here(), hidden=(), **AS_USERS)

    def text_of(guide):
        text, out = (folder / f"{guide}.txt").read_text("utf-8"), folder / guide / "curves.png"
        assert f"Curves: {out.resolve()}" in text, text[-3000:]
        assert "Traceback" not in text, text[-3000:]

        from matplotlib.image import imread

        height, width, _ = imread(out).shape
        assert height > 450 and width > 500
        assert list(out.parent.iterdir()) == [out]
        return text

    return text_of


def lines(text, names, numbers):
    """Return {name: numbers of the line that begins with it}. Each line has as many numbers."""
    found = {}
    for name in names:
        match = re.search(rf"^ *{re.escape(name)}((?:{NUMBER}){{{numbers}}})$", text, re.MULTILINE)
        assert match, (name, text[-3000:])
        found[name] = [float(number) for number in match[1].split()]
    return found


def quickstart(text):
    """There is a line for each run, no progress bar, and a table at the end."""
    assert "\r" not in text and "===" not in text
    sides = ["keras Embedding, Adam", "keras_tfopt Embedding, LazyAdam"]
    sides += ["keras SGD, momentum 0.9", "keras_tfopt LARS"]
    lines(text, sides, 6)  # rate, steps, validation, test, milliseconds, speed
    runs = re.findall(r"^  (\S.*?) +rate \S+ +\d+ steps, \S+ ms each +validation", text, re.M)
    assert set(runs) == set(sides) and runs.count(sides[1]) == 2  # which continues
    table = text.index("best rate")
    assert text.index("Total time: ") < table and text.index("Curves: ") < table
    if BACKEND == "torch":
        assert re.search(r"^PyTorch compiles .*\n\.\.\. \d+ s. It is kept in /", text, re.M)


def averages(text):
    means = re.search(r"^Mean .* weights (0\.\d+), averages (0\.\d+)$", text, re.MULTILINE)
    best = re.search(r"^Best averages, .*: (0\.\d+)$", text, re.MULTILINE)
    table = re.findall(r"^ +\d+ +0\.\d+ +(0\.\d+)$", text, re.MULTILINE)
    assert len(table) == 8 and best[1] == max(table)
    assert float(means[2]) > float(means[1]) > 0.8  # averages are better, on real data


def second_order(text):
    lines(text, ("Momentum", "Adam", "GGT", "Shampoo"), 5)  # rate, steps, seconds, ms/step, loss


def embeddings(text):
    count = re.search(r"([\d,]+) rows of 32 numbers", text)
    assert int(count[1].replace(",", "")) >= 20_000
    for side in ("keras Adam", "LazyAdam", "LazyAdam, catch_up"):  # rate, ms, s, loss, MB
        assert re.search(rf"^{re.escape(side)}(?:{NUMBER}){{4}}\s+(\d+|-)$", text, re.MULTILINE)


def from_tf1(text):
    table = re.findall(r"^ +\d+ +(0\.\d+) +(0\.\d+) +0\.\d+$", text, re.MULTILINE)
    assert len(table) == 9
    for theirs, ours in table:  # five digits; orders of summation differ
        assert abs(float(theirs) - float(ours)) < 1e-4
    apart = re.search(r"with the state (\S+), with weights alone (\S+)$", text, re.MULTILINE)
    assert float(apart[1]) < 1e-4 < 1e-2 < float(apart[2])
    assert "Written and read again: step 300" in text


def from_addons(text):
    table = re.findall(r"^ +\d+ +(\d\.\d+) +(\d\.\d+)$", text, re.MULTILINE)
    assert len(table) == 10
    for theirs, ours in table:  # five digits; orders of summation differ
        assert abs(float(theirs) - float(ours)) < 1e-3
    assert re.search(
        r"^Losses with the saved configuration: (0|\S+e-\d+) away$", text, re.MULTILINE
    )
    assert "MovingAverage(LAMB(" in text


def choosing(text):
    tried = lines(text, ("ggt", "keras.adam"), 5)  # rate, validation, test, rates, ms/step
    assert all(validation > 0.5 for _, validation, *_ in tried.values())
    assert "r = eta_LARS ||x||" in text  # the formula of `info`
    assert "ftrl" in text.split("rows that a batch does not touch stay:")[1].splitlines()[1]


def which_optimizer(text):
    tasks = ("images", "text", "embedding")
    for task in tasks:
        assert re.search(rf"^{task}: the target is a loss of \d+\.\d+$", text, re.MULTILINE)
    for side in ("AdamW", "Muon"):
        assert len(re.findall(rf"^  {side} +(\d+|\(\d+\.\d+\))$", text, re.M)) == 3
        row = re.search(rf"^{side} +(0\.\d\d|1\.00)((?:{NUMBER}|\s+-)+)$", text, re.MULTILINE)
        assert len(row[2].split()) == 4 * len(tasks)  # rate, steps, ms/step, seconds


def large_batch(text):
    sides = ("Keras SGD, momentum 0.9", "keras_tfopt LARS")
    rows = lines(text, [f"{side}, {way}" for side in sides for way in ("scaled", "tuned")], 2)
    assert all(small > 0.5 for small, _ in rows.values())


def sparse(text):
    rows = re.findall(rf"^(\S.*?)((?:{NUMBER}){{5}})$", text, re.MULTILINE)
    kept = {(side, float(n.split()[0])): float(n.split()[-1]) for side, n in rows}
    assert len(kept) == 5
    for (side, penalty), fraction in kept.items():
        assert penalty > 0
        assert fraction == 1 if side.startswith("Keras") else 0 < fraction < 1, side


def signs(text):
    names = [f"{rule}, {d}" for rule in ("AddSign", "PowerSign") for d in ("no decay", "restarts")]
    for name in names:
        assert re.search(rf"^{name} +rate 0\.4 +validation loss by seed:{NUMBER}$", text, re.M)
        assert re.search(rf"^{name} +mean loss \d\.\d+: [-+]\d\.\d+ beside plain", text, re.M)


def small_weights(text):
    sides = ("Adam alone", "L2 in the loss", "Decoupled decay", "Clipping of units")
    for side in sides:
        assert re.search(rf"^{side}(?:{NUMBER}){{5}} to \d+\.\d+$", text, re.MULTILINE), text
    excess = float(re.search(r"exceeds its limit by (\S+) of it", text)[1])
    assert excess < 1e-5  # rounding of float32, in sums of 784 squares


def own_optimizer(text):
    assert float(re.search(r"difference from NumPy in 100 steps: (\S+);", text)[1]) < 1e-5
    assert "changed the rows [3, 7] of 20." in text
    again = re.search(r"next step (\S+), in the loaded model (\S+);", text)
    assert again[1] == again[2]
    lines(text, ("keras_tfopt.Adam", "AdaBelief"), 1)


def switching(text):
    """With the optimizer's state, the next steps are the same except for rounding."""
    here = keras.backend.backend()
    (name,) = re.findall(r"^going on on (\w+)", text, re.MULTILINE) or [""]
    anew = lines(text, [f"{here}, optimizer anew"], 4)[f"{here}, optimizer anew"]
    if name:
        (apart,) = lines(text, [f"going on on {name}"], 4).values()
        assert max(apart) < 1e-5 < anew[2]
    else:
        assert "No other backend is installed" in text


def workers(text):
    """Each method exchanges once in a period, and learns."""
    names = "SyncReplicas", "ModelAverage", "ElasticAverage", "AGN", "DiLoCo", "no exchange"
    rows = lines(text, names, 3)  # period, exchanges, loss
    steps = rows["SyncReplicas"][1]
    assert steps >= 100
    for period, exchanges, loss in rows.values():
        assert exchanges == (steps // period if period else 0)
        assert loss < 1.5  # guessing has 2.3


def fine_tuning(text):
    """Every run is there, with six levels of factors."""
    factors = re.findall(r"learning_rate_factor': (\S+)}", text)
    expected = [0.7**below for below in (5, 4, 3, 2, 1, 0)]
    assert [float(factor) for factor in factors] == pytest.approx(expected)
    rows = re.findall(r"^(one rate|layer decay) +rate \S+ +test accuracy (\S+)$", text, re.M)
    assert len(rows) >= 2 and all(0 <= float(accuracy) <= 1 for _, accuracy in rows)
    assert "Best of layer decay" in text


def physics_informed(text):
    """The table has the measured numbers. A few seconds do not show which method is best."""
    names = "Adam, rate 0.003", "Adam before L-BFGS", "L-BFGS after Adam"
    rows = lines(text, names, 3)  # seconds, iterations, error
    assert all(count > 10 and 0 < error < 2 for _, count, error in rows.values())
    assert re.search(r"^SciPy: \S+", text, re.MULTILINE)


def less_memory(text):
    """Each form of the state has a row with its bytes. A few seconds do not compare losses."""
    sides = {"Adam, float32": 8, "Adam, bfloat16": 4, "Adam, int8": 2, "Adafactor": 0}
    means = {}
    for side, least in sides.items():
        row = rf"^text, {side}((?:{NUMBER}){{5}})  (within|below|above)$"
        match = re.search(row, text, re.MULTILINE)
        assert match, (side, text[-3000:])
        _, means[side], low, high, size = map(float, match[1].split())
        assert low <= means[side] <= high and least - 0.01 <= size <= least + 0.5
        assert side != "Adam, float32" or match[2] == "within"
    assert means["Adam, int8"] == pytest.approx(means["Adam, float32"], rel=0.05)
    rows = re.findall(rf"^(Adam, \w+)((?:{NUMBER}){{3}})$", text, re.MULTILINE)
    if Path("/proc/self/clear_refs").exists():  # bytes, MB of state, peak in MB
        ((side, numbers),) = rows
        assert side == "Adam, int8" and 2 < float(numbers.split()[0]) < 2.5


CHECKS = {
    check.__name__: check
    for check in (
        quickstart,
        averages,
        second_order,
        embeddings,
        from_addons,
        from_tf1,
        choosing,
        which_optimizer,
        large_batch,
        sparse,
        signs,
        small_weights,
        own_optimizer,
        switching,
        workers,
        fine_tuning,
        physics_informed,
        less_memory,
    )
}


@pytest.mark.parametrize("guide", guides_here())
def test_guide(guide, printed):
    CHECKS[guide](printed(guide))


@pytest.mark.spread
@pytest.mark.parametrize("guide", runner.names())
def test_head_of_guide(guide):
    text = (GUIDES / f"{guide}.py").read_text("utf-8")
    fields = "Title", "Author", "Date created", "Last modified", "Description", "Accelerator"
    head = re.match('"""\n' + "".join(rf"{f}: (.+)\n" for f in fields) + '"""\n\n"""\n## ', text)
    assert head, text[:400]
    assert head[2] == "keras_tfopt contributors"
    for date in head.group(3, 4):
        time.strptime(date, "%Y/%m/%d")
    assert f"({guide}.py)" in (GUIDES / "README.md").read_text("utf-8")


def test_each_backend_has_a_picture_of_its_own(monkeypatch):
    monkeypatch.syspath_prepend(GUIDES)
    monkeypatch.setattr(sys, "argv", ["quickstart.py"])
    from report import options

    out = options(GUIDES / "quickstart.py", fast="nothing").out
    assert out == GUIDES / "output" / f"quickstart-{BACKEND}.png"


@pytest.mark.spread
def test_one_progress_bar_over_all_runs(monkeypatch, capsys):
    monkeypatch.syspath_prepend(GUIDES)
    from report import Progress

    for terminal in (True, False):
        monkeypatch.setattr(sys.stdout, "isatty", lambda terminal=terminal: terminal)
        progress = Progress(400)
        for _ in range(200):
            progress.step()
        progress.line("a run")
        shown = capsys.readouterr().out
        assert shown.endswith("a run\n")
        assert shown.count("\r[") == (51 if terminal else 0)  # once for each percent
        assert ("\r[############             ]  50 %" in shown) == terminal


@pytest.mark.spread
def test_every_guide_is_checked():
    assert set(CHECKS) == set(runner.names())


@pytest.mark.spread
def test_runner_has_a_backend_for_each_guide():
    chosen = {guide: runner.BACKENDS[guide] for guide in runner.names()}
    assert set(chosen.values()) == {"tensorflow", "jax", "torch"}
