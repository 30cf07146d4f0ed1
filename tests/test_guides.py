"""The guides run as a user runs them, on the backend of the test run, and draw their pictures."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

ROOT = Path(__file__).parents[1]
# What the guides share, and those with a test of their own.
OTHERS = {"data.py", "report.py", "quickstart.py", "averages.py"}
GUIDES = sorted({path.name for path in (ROOT / "guides").glob("*.py")} - OTHERS)

pytestmark = pytest.mark.slow
pytest.importorskip("matplotlib")
pytest.importorskip("mlxtend")


@pytest.mark.parametrize("guide", GUIDES)
def test_guide_runs_and_draws(guide, tmp_path):
    out = tmp_path / "new folder" / "curves.png"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # JAX as users have it: the test run itself has x64 on.
    backend = {"KERAS_BACKEND": keras.backend.backend(), "JAX_ENABLE_X64": "0"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "guides" / guide), "--fast", "--out", str(out)],
        cwd=tmp_path,
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
    assert height > 400 and width > 400
    assert list(tmp_path.iterdir()) == [out.parent]
