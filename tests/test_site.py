"""Parts of the documentation: docstrings as reStructuredText, links, runs and pictures.

`make docs` builds the site, and fails at any warning of Sphinx.
"""

import importlib.util
import inspect
import re

import pytest

from integration.documentation import names
from tests.helpers.paths import ROOT


def extension(name):
    """Import an extension of Sphinx that `docs/conf.py` loads."""
    path = ROOT / "docs" / "extensions" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


restructured = extension("markdown_docstrings").restructured


@pytest.mark.spread
@pytest.mark.parametrize("entry", names.public(), ids=lambda entry: entry.path)
def test_no_word_of_a_docstring_is_lost(entry):
    text = inspect.getdoc(entry.item)
    made = iter(re.findall(r"[A-Za-z]{3,}", restructured(text)))
    missing = next((word for word in re.findall(r"[A-Za-z]{3,}", text) if word not in made), None)
    assert missing is None, missing


@pytest.mark.spread
def test_markdown_of_docstrings_becomes_restructured_text():
    text = """One line with `code` and $x^2$.

$$
x \\leftarrow x - g
$$

Slots: `m`, of
    its shape.

Args:
    beta: Number in [0, 1], `beta`s.
    **base: Options.

```python
a = 2**3
```"""
    made = restructured(text)
    assert "One line with ``code`` and :math:`x^2`." in made
    assert ".. math::" in made and "    x \\leftarrow x - g" in made
    assert "**Slots.** ``m``, of" in made
    assert "``beta``\\ s" in made and "\\**base:" in made
    assert ".. code-block:: python\n\n    a = 2**3" in made and "$" not in made


DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("guides/*.md"), *ROOT.glob("integration/**/*.md")]
)  # Sphinx checks the links in docs/


def anchors(document):
    """Return the anchors that GitHub gives to headings."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", document, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.spread
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


@pytest.mark.backends("jax", reason="the pictures are made on JAX")
class TestRuns:
    def test_every_optimizer_has_the_arguments_that_must_be_given(self):
        from integration.documentation import runs

        assert runs.unset() == {}

    def test_a_path_has_the_points_of_plain_steps(self):
        import numpy as np

        from integration.documentation import runs

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

    def test_averages_of_a_path(self):
        import numpy as np

        from integration.documentation import runs

        run = runs.path("moving_average", runs.FUNCTIONS[1])
        a = np.array(run.function.start)
        for k in range(50):
            a = 0.95 * a + 0.05 * run.points[k + 1]
            assert np.allclose(run.averages[k], a, rtol=1e-4, atol=1e-5), k

    def test_pictures_are_kept_until_their_code_changes(self, tmp_path, monkeypatch):
        pytest.importorskip("matplotlib")
        from integration.documentation import kept

        names = {path.name for path in kept.sources("lars")}
        assert {"lars.py", "gradient_descent.py", "pipeline.py", "runs.py", "rule.py"} <= names
        assert not {"shampoo.py", "test_site.py"} & names
        drawn = []

        def draw(name, folder):
            drawn.append(name)
            (folder / "lars-digits.svg").write_text(f"picture {len(drawn)}")
            return {"rate": len(drawn)}

        monkeypatch.setattr(kept, "FOLDER", tmp_path / "kept")
        for _ in range(2):
            assert kept.pictures("lars", draw, tmp_path / "site") == {"rate": 1}
        monkeypatch.setattr(kept, "LIBRARIES", ("jax",))  # another version
        assert kept.pictures("lars", draw, tmp_path / "site") == {"rate": 2}
        assert (tmp_path / "site" / "lars-digits.svg").read_text() == "picture 2"
        assert drawn == ["lars", "lars"] and len(list((tmp_path / "kept").iterdir())) == 1

    def test_growth_is_drawn_from_the_table(self, tmp_path):
        pytest.importorskip("matplotlib")
        from integration.documentation import pictures

        page = tmp_path / "page.md"
        page.write_text(
            """
| 10^5 x 64 | 1,024 of a Zipf distribution | 0.4 (0.3) / 6 | 2 (1) / 17 | 1 (1) / 9 | 1.5 (1) / 40 |
| 4 * 10^6 x 64 | the same | 0.5 (0.4) / 380 | 1.6 (1) | 1.1 (1) | 1.7 (2) / 2006 |
| 10^6 x 64 | 65,536, uniform | 33 (33) | 36 (31) | 39 (37) | 20 (20) |
"""
        )
        times = pictures.growth(page)
        assert times["JAX", True] == [(1e5, 0.4), (4e6, 0.5)]
        assert times["PyTorch", False] == [(1e5, 40.0), (4e6, 2006.0)]
        assert times["TensorFlow", False] == [(1e5, 17.0)]  # the second did not fit into memory

        published = ROOT / "docs" / "user_guide" / "embeddings.md"
        times = pictures.growth(published)
        tables = [[rows for rows, _ in times[backend, True]] for backend in pictures.BACKENDS]
        assert tables[0] and all(one == tables[0] for one in tables)
        assert pictures.draw_growth(published, tmp_path / "g.svg").stat().st_size > 1000
