"""The documentation in a browser: search, formulas, no errors. `make docs` must have built it."""

import re
import shutil
import subprocess
from pathlib import Path

import keras
import pytest

SITE = Path(__file__).parents[1] / "build" / "docs"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="there is no Chromium"),
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="`make docs` has not run"),
    pytest.mark.skipif(keras.backend.backend() != "jax", reason="one backend is enough"),
]


def opened(path, *options):
    """Return a page as the browser has it after its scripts ran, and what they logged."""
    command = [
        BROWSER,
        *("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000"),
        *("--enable-logging=stderr", *options, f"file://{path}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, re.findall(r".*CONSOLE.*", done.stderr)


def test_search_finds_an_optimizer():
    page, logged = opened(f"{SITE}/search.html?q=LARS", "--dump-dom")
    assert 'href="gallery/lars.html' in page and not logged


@pytest.mark.parametrize("page", ["index", "gallery/lars", "api/keras_tfopt/LARS"])
def test_pages_have_no_errors_and_their_formulas(page):
    found, logged = opened(f"{SITE}/{page}.html", "--dump-dom")
    assert not logged, logged
    if page != "index":
        assert "<mfrac>" in found and "\\frac" not in found


@pytest.mark.parametrize("page", ["index", "recipes", "architecture", "gallery/index"])
def test_pages_fit_a_narrow_window(page, tmp_path):
    """A frame of 400 pixels, as Chromium opens no window that narrow. The width becomes a word."""
    script = "document.body.append(`width ${frame.contentDocument.documentElement.scrollWidth}.`)"
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<iframe id="frame" width="400" height="800" frameborder="0" '
        f'src="file://{SITE}/{page}.html" onload="{script}"></iframe>'
    )
    found, _ = opened(frame, "--dump-dom", "--allow-file-access-from-files")
    assert int(re.search(r"</iframe>width (\d+)\.", found)[1]) <= 400
