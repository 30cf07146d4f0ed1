"""The guides run as a user runs them, on the backend of the test run, and draw their pictures."""

import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest

GUIDES = Path(__file__).parents[1] / "guides"
TOOLS = {"data", "report"}  # what the guides share

pytestmark = pytest.mark.slow
pytest.importorskip("matplotlib")
pytest.importorskip("mlxtend")
pytest.importorskip("sklearn")


def printed_by(guide, folder, *arguments):
    """What a guide prints; it has to end well, to draw its picture and to leave nothing else."""
    out = folder / "new folder" / "curves.png"
    path = os.pathsep.join(filter(None, [str(GUIDES.parent), os.environ.get("PYTHONPATH")]))
    # JAX as users have it: the test run itself has x64 on.
    backend = {"KERAS_BACKEND": keras.backend.backend(), "JAX_ENABLE_X64": "0"}
    done = subprocess.run(
        [sys.executable, str(GUIDES / f"{guide}.py"), *arguments, "--out", str(out)],
        cwd=folder,
        env={**os.environ, **backend, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"Curves: {out.resolve()}" in done.stdout

    from matplotlib.image import imread

    height, width, _ = imread(out).shape
    assert height > 500 and width > 500
    assert list(folder.iterdir()) == [out.parent]
    return done.stdout


def quickstart(folder):
    text = printed_by("quickstart", folder, "--fast")
    number = r"\s+\d+(?:\.\d+)?"
    sides = ["keras SGD, momentum 0.9", "keras_tfopt LARS", "keras Adam", "keras_tfopt LazyAdam"]
    for side in sides:  # rate, validation, test, milliseconds, ratio
        assert re.search(rf"^  {re.escape(side)}{number * 5}$", text, re.MULTILINE), side
    assert "Total time: " in text


def averages(folder):
    text = printed_by("averages", folder, "--epochs", "8")
    means = re.search(r"^Mean .* weights (0\.\d+), averages (0\.\d+)$", text, re.MULTILINE)
    best = re.search(r"^Best averages, .*: (0\.\d+)$", text, re.MULTILINE)
    table = re.findall(r"^ +\d+ +0\.\d+ +(0\.\d+)$", text, re.MULTILINE)
    assert len(table) == 8 and best[1] == max(table)
    assert float(means[2]) > float(means[1]) > 0.8  # averages are better, on real data


def second_order(folder):
    text = printed_by("second_order", folder, "--fast")
    number = r"\s+\d+(?:\.\d+)?"
    for side in ("Momentum", "Adam", "GGT", "Shampoo"):  # rate, steps, seconds, ms/step, loss
        assert re.search(rf"^{side}{number * 5}$", text, re.MULTILINE), side


def embeddings(folder):
    text = printed_by("embeddings", folder, "--fast")
    count = re.search(r"([\d,]+) rows of 32 numbers", text)
    assert int(count[1].replace(",", "")) >= 100_000
    number = r"\s+\d+(?:\.\d+)?"
    for side in ("keras Adam", "LazyAdam", "LazyAdam, catch_up"):  # rate, ms, s, loss, MB
        assert re.search(rf"^{re.escape(side)}{number * 4}\s+(\d+|-)$", text, re.MULTILINE), side


def from_tf1(folder):
    pytest.importorskip("tensorflow")
    text = printed_by("from_tf1", folder)
    table = re.findall(r"^ +\d+ +(0\.\d+) +(0\.\d+) +0\.\d+$", text, re.MULTILINE)
    assert len(table) == 9
    for theirs, ours in table:  # five digits; orders of summation differ
        assert abs(float(theirs) - float(ours)) < 1e-4
    apart = re.search(r"with the state (\S+), with weights alone (\S+)$", text, re.MULTILINE)
    assert float(apart[1]) < 1e-4 < 1e-2 < float(apart[2])
    assert "Written and read again: step 300" in text


CHECKS = {
    check.__name__: check for check in (quickstart, averages, second_order, embeddings, from_tf1)
}


@pytest.mark.parametrize("guide", sorted({p.stem for p in GUIDES.glob("*.py")} - TOOLS))
def test_guide(guide, tmp_path):
    CHECKS[guide](tmp_path)
