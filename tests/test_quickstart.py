"""The quickstart guide runs as a user runs it, on the backend of the test run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow
pytest.importorskip("matplotlib")
pytest.importorskip("mlxtend")


def test_quickstart_prints_its_table_and_writes_its_curves(tmp_path):
    out = tmp_path / "new folder" / "curves.png"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # JAX as users have it: the test run itself has x64 on.
    backend = {"KERAS_BACKEND": keras.backend.backend(), "JAX_ENABLE_X64": "0"}
    environment = {**os.environ, **backend, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, str(ROOT / "guides" / "quickstart.py"), "--fast", "--out", str(out)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]

    number = r"\s+\d+(?:\.\d+)?"
    sides = ["keras SGD, momentum 0.9", "keras_tfopt LARS", "keras Adam", "keras_tfopt LazyAdam"]
    for side in sides:  # rate, validation, test, milliseconds, ratio
        assert re.search(rf"^  {re.escape(side)}{number * 5}$", done.stdout, re.MULTILINE), side
    assert f"Curves: {out.resolve()}" in done.stdout
    assert "Total time: " in done.stdout

    from matplotlib.image import imread

    height, width, _ = imread(out).shape
    assert height > 500 and width > 500
    assert list(tmp_path.iterdir()) == [out.parent]
