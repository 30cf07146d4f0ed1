"""The guide on averages runs as a user runs it, and shows what it says."""

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
pytest.importorskip("sklearn")


def test_the_guide_on_averages(tmp_path):
    out = tmp_path / "curves.png"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    backend = {"KERAS_BACKEND": keras.backend.backend(), "JAX_ENABLE_X64": "0"}
    guide = str(ROOT / "guides" / "averages.py")
    done = subprocess.run(
        [sys.executable, guide, "--epochs", "8", "--out", str(out)],
        cwd=tmp_path,
        env={**os.environ, **backend, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    means = re.search(r"^Mean .* weights (0\.\d+), averages (0\.\d+)$", done.stdout, re.MULTILINE)
    best = re.search(r"^Best averages, .*: (0\.\d+)$", done.stdout, re.MULTILINE)
    table = re.findall(r"^ +\d+ +0\.\d+ +(0\.\d+)$", done.stdout, re.MULTILINE)
    assert len(table) == 8 and best[1] == max(table)
    assert float(means[2]) > float(means[1]) > 0.8  # averages are better, on real data
    from matplotlib.image import imread

    height, width, _ = imread(out).shape
    assert height > 500 and width > 500
