"""The reference: what docstrings become, and that a link that leads nowhere is found.

`make reference` builds the whole site, with its pictures, and follows its links.
"""

import html
import inspect
import re
from pathlib import Path

import keras
import pytest

pytest.importorskip("latex2mathml")

import keras_tfopt
from integration.reference import docstrings, links, names

ROOT = Path(__file__).parents[1]
every_name = pytest.mark.parametrize("entry", names.public(), ids=lambda entry: entry.path)


def text_of(page):
    return html.unescape(re.sub(r"<[^>]+>", " ", page))


@every_name
def test_nothing_of_a_docstring_is_lost_or_left_as_source(entry):
    text = inspect.getdoc(entry.item)
    made = docstrings.html(text)
    prose = re.sub(r"<pre>.*?</pre>|<code>.*?</code>", "", made, flags=re.DOTALL)
    assert not re.search(r"[$`\\]|KEPT|CODE\d", text_of(prose)), "Markdown or LaTeX is left"
    # All words outside of formulas are there, in order.
    without = re.sub(r"\$\$.*?\$\$|(?<![\w$`])\$[^$`]+\$", " ", text, flags=re.DOTALL)
    without = re.sub(r">>> |\.\.\. |```\w*|\*\*", " ", without)
    words = re.findall(r"[a-z]{3,}", without.lower())
    found = iter(re.findall(r"[a-z]{3,}", text_of(made).lower()))
    missing = next((word for word in words if word not in found), None)
    assert missing is None, missing


def test_formulas_become_aligned_columns():
    made = docstrings.html(inspect.getdoc(keras_tfopt.Adam))
    formula = made[made.index('<div class="formula">') : made.index("</div>")]
    assert formula.count("<mtr>") == 3 and "<msup>" in formula and "<mfrac>" in formula
    assert "keras_tfopt.Adam" in docstrings.html(inspect.getdoc(keras_tfopt.AdamW))


def test_sections():
    text = """One line.

    More.

    Args:
        first: Number $x$.
            Goes on.

        second, third: Both.

    Slots: none. `a` is
        no slot.

    Example:

    >>> keras_tfopt.get("lars")

    Then more."""
    made = docstrings.html(inspect.cleandoc(text))
    assert re.findall(r"<dt><code>(.*?)</code></dt>", made) == ["first", "second, third"]
    assert "Goes on." in made.split("<dt>")[1] and "<math" in made.split("<dt>")[1]
    assert re.findall(r"<h2>(.*?)</h2>", made) == ["Args", "Slots", "Example"]
    assert ">None. <code>a</code> is" in made and "&gt;&gt;&gt;" not in made
    assert made.rstrip().endswith("<p>Then more.</p>")


def test_broken_links_are_found(tmp_path):
    (tmp_path / "index.html").write_text(
        '<p id="here"><a href="a.html#place"></a><a href="#here"></a><a href="b.html"></a>'
        '<img src="c.svg"><a href="a.html#no"></a><a href="#no"></a>'
        '<a href="https://example.org/x"></a></p>'
    )
    (tmp_path / "a.html").write_text('<h2 id="place"></h2><a href="index.html#here"></a>')
    (tmp_path / "alone.html").write_text("")
    assert links.broken(tmp_path) == [
        "index.html: no file b.html",
        "index.html: no file c.svg",
        "index.html: no place a.html#no",
        "index.html: no place #no",
        "alone.html: no page links to it",
    ]


DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("guides/*.md"), *ROOT.glob("integration/**/*.md")]
)


def anchors(document):
    """As GitHub makes them from headings."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", document, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_of_documents_lead_somewhere(path):
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", path.read_text("utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", target):
            continue
        file, _, place = target.partition("#")
        found = path.parent / file if file else path
        assert found.exists(), target
        assert not place or place in anchors(found.read_text("utf-8")), target


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="the runs of the reference are JAX's")
class TestRuns:
    def test_every_optimizer_has_the_arguments_that_must_be_given(self):
        from integration.reference import runs

        assert runs.unset() == {}

    def test_a_path_is_that_of_plain_steps(self):
        """Of the optimizer outside of the compiled loop, with a gradient by hand."""
        import numpy as np

        from integration.reference import runs

        rosenbrock = runs.FUNCTIONS[0]
        run = runs.path("momentum", rosenbrock)
        x, y = rosenbrock.start
        a = np.zeros(2)
        for k in range(5):
            assert np.allclose(run.points[k], (x, y), rtol=1e-3, atol=1e-4), k
            g = np.array([2 * (x - 1) - 400 * x * (y - x**2), 200 * (y - x**2)])
            a = 0.9 * a + g
            x, y = np.array([x, y]) - run.rate * a
        assert len(run.points) == runs.STEPS + 1 and run.averages is None

    def test_averages_are_seen(self):
        import numpy as np

        from integration.reference import runs

        run = runs.path("moving_average", runs.FUNCTIONS[1])
        a = np.array(run.function.start)
        for k in range(50):
            a = 0.95 * a + 0.05 * run.points[k + 1]
            assert np.allclose(run.averages[k], a, rtol=1e-4, atol=1e-5), k

    def test_pictures(self, tmp_path):
        pytest.importorskip("matplotlib")
        from integration.reference import pictures

        for path in (
            pictures.draw_curve("lars", tmp_path),
            pictures.draw_paths("lars", tmp_path),
        ):
            colors = set(re.findall(r"#([0-9a-f]{6})\b", path.read_text()))
            assert colors and all(c[:2] == c[2:4] == c[4:] for c in colors), "shades of gray only"
