"""guides/errors.md: what it says raises an error does, and what is to be written instead works."""

import re
from pathlib import Path

import pytest

from tests.programs import run

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "guides" / "errors.md").read_text("utf-8")
CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRELUDE, *SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)


def sections():
    """The message, the code that raises it and the code that works, of each section."""
    for section in SECTIONS:
        head, text = section.split("\n", 1)
        message, backends = re.fullmatch(r"`+(.+?)`+(?: \((.+)\))?", head).groups()
        marks = [pytest.mark.spread]
        if backends:
            reason = f"an error on {backends}"
            marks.append(pytest.mark.backends(*backends.split(", "), reason=reason))
        yield pytest.param(message, *CODE.findall(text), id=message, marks=marks)


def errors_of(code, folder):
    """Run code in a process of its own; return what it writes to stderr if it fails."""
    done = run("-c", code, cwd=folder)
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize(("message", "wrong", "right"), sections())
def test_a_section(message, wrong, right, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (prelude,) = CODE.findall(PRELUDE)
    if wrong.startswith("import keras\n"):  # about what a program imports
        names = {}
        exec(prelude, names)
        names["model"].compile(names["keras_tfopt"].LARS(0.1), "mse")
        names["model"].save("model.keras")
        assert message in errors_of(wrong, tmp_path)
        assert errors_of(right, tmp_path) == ""
        return
    with pytest.raises(Exception) as error:
        exec(prelude + wrong, {})
    assert message in str(error.value)
    exec(prelude + right, {})


def test_sections_are_in_the_order_of_their_messages():
    heads = [section.split("\n", 1)[0].strip("`") for section in SECTIONS]
    assert heads == sorted(heads) and len(heads) > 10
