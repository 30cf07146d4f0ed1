"""Open the built documentation in a browser: search, formulas, errors, narrow windows.

`make docs` runs this after it has built the site. Without Chromium it is skipped.
"""

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

DOCS = Path(__file__).parent
SITE = DOCS.parent / "build" / "docs"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--enable-logging=stderr",
    "--allow-file-access-from-files",
    "--virtual-time-budget=20000",
    "--dump-dom",
)
# Pages that are written by hand, and one of each kind that is made.
MADE = ("gallery/index", "gallery/lars", "guides/choosing", "api/keras_tfopt/LARS", "search")
PAGES = [
    page
    for path in sorted(DOCS.rglob("*.md"))
    if (page := path.relative_to(DOCS).with_suffix("").as_posix()).partition("/")[0]
    not in ("api", "gallery", "guides")
]
NARROW = 400  # pixels

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="there is no Chromium"),
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="`make docs` has not run"),
]


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """A function from an address to the page after its scripts ran, and what these logged."""
    profile = tmp_path_factory.mktemp("browser")

    def open_page(address):
        command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
        return done.stdout, re.findall(r".*CONSOLE.*", done.stderr)

    return open_page


FRAMES = """<body><script>
const found = {}, pages = PAGES;
for (const page of pages) {
  const frame = document.createElement("iframe");
  frame.width = WIDTH; frame.height = 800; frame.style.border = 0;
  frame.onload = () => {
    const inside = frame.contentDocument;
    const formulas = [...inside.querySelectorAll("math")];
    found[page] = {
      title: inside.title,
      width: inside.documentElement.scrollWidth,
      heights: formulas.map(formula => formula.getBoundingClientRect().height),
      source: inside.querySelector("article")?.innerText.includes("\\\\frac"),
      broken: [...inside.images].filter(image => !image.complete || !image.naturalWidth).length,
    };
    if (Object.keys(found).length == pages.length) {
      const result = document.createElement("pre");
      result.id = "found";
      result.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(found))));
      document.body.replaceChildren(result);
    }
  };
  frame.src = "SITE/" + page + ".html";
  document.body.append(frame);
}
</script></body>"""


@pytest.fixture(scope="module")
def frames(opened, tmp_path_factory):
    """What a browser makes of each page in a narrow frame, and what the pages logged."""
    text = FRAMES.replace("PAGES", json.dumps([*PAGES, *MADE])).replace("WIDTH", str(NARROW))
    path = tmp_path_factory.mktemp("frames") / "frames.html"
    path.write_text(text.replace("SITE", f"file://{SITE}"), "utf-8")
    page, logged = opened(f"file://{path}")
    result = re.search(r'<pre id="found">([^<]+)</pre>', page)
    assert result, page[-2000:]
    return json.loads(base64.b64decode(result[1])), logged


def test_no_page_logs_an_error(frames):
    assert not frames[1], frames[1]


@pytest.mark.parametrize("page", [*PAGES, *MADE])
def test_a_page_fits_a_narrow_window(frames, page):
    found = frames[0][page]
    assert found["title"] and found["width"] <= NARROW
    assert not found["broken"], "pictures are missing"


@pytest.mark.parametrize("page", ["gallery/lars", "api/keras_tfopt/LARS"])
def test_formulas_are_drawn(frames, page):
    found = frames[0][page]
    assert max(found["heights"]) > 60 and not found["source"]  # five lines of equations


def test_search_finds_an_optimizer(opened):
    page, logged = opened(f"file://{SITE}/search.html?q=LARS")
    assert re.search(r'<li[^>]*>.*?href="gallery/lars\.html', page, re.S) and not logged
