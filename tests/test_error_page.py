"""Pages of errors: the wrong code raises the error, and the code to write instead works."""

import re
import shutil
import warnings

import keras
import pytest

from tests.helpers.paths import GOLDEN, ROOT
from tests.helpers.programs import output_of

PAGES = ("guides/errors.md", "docs/migration/errors.md")
KERAS2 = GOLDEN / "keras2"
CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def parts_of(page):
    """Return the code before all examples of a page, and the sections."""
    prelude, *sections = re.split(r"^## ", (ROOT / page).read_text("utf-8"), flags=re.MULTILINE)
    (code,) = CODE.findall(prelude)
    return code, sections


def sections():
    """Yield for each section: page, message, the code that raises it, and the code that works."""
    for page, section in [(name, one) for name in PAGES for one in parts_of(name)[1]]:
        head, text = section.split("\n", 1)
        message, backends = re.fullmatch(r"`+ ?(.+?) ?`+(?: \((.+)\))?", head).groups()
        wrong, right = CODE.findall(text)
        # An error about imports needs a process, which begins fastest on JAX.
        marks = [pytest.mark.spread(*["jax"] if is_about_imports(wrong) else [])]
        if backends:
            reason = f"an error on {backends}"
            marks.append(pytest.mark.backends(*backends.split(", "), reason=reason))
        yield pytest.param(page, message, wrong, right, id=message, marks=marks)


def is_about_imports(wrong):
    return wrong.startswith("import keras\n")


BOTH = """
try:
    exec({!r}, {{}})
except Exception as error:
    print(error)
exec({!r}, {{}})
"""


@pytest.mark.parametrize(("page", "message", "wrong", "right"), sections())
def test_a_section(page, message, wrong, right, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(KERAS2 / "legacy_Adam.h5", "old.h5")
    shutil.copytree(KERAS2 / "legacy_Adam_checkpoint", "old")
    prelude, _ = parts_of(page)
    if is_about_imports(wrong):
        names = {}
        exec(prelude, names)
        names["model"].compile(names["keras_tfopt"].LARS(0.1), "mse")
        names["model"].save("model.keras")
        assert message in output_of("-c", BOTH.format(wrong, right), cwd=tmp_path)
        return
    with warnings.catch_warnings():
        with pytest.raises(Exception) as error:
            exec(prelude + wrong, {})
        assert message in str(error.value)
        keras.utils.clear_session(free_memory=False)  # resets the numbers in names
        exec(prelude + right, {})


@pytest.mark.spread
@pytest.mark.parametrize("page", PAGES)
def test_sections_are_in_the_order_of_their_messages(page):
    heads = [section.split("\n", 1)[0].strip("` ") for section in parts_of(page)[1]]
    assert heads == sorted(heads) and len(heads) > 10
