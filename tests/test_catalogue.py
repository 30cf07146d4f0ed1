"""The page guides/optimizers.md is up to date with the code that generates it."""

import keras
import pytest

import keras_tfopt
from integration import catalogue, originals
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.spread
PAGE = ROOT / "guides" / "optimizers.md"


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


every_algorithm = pytest.mark.parametrize("cls", catalogue.algorithms(), ids=lambda c: c.__name__)


@every_algorithm
def test_the_page_has_the_current_text_on_an_optimizer(cls, page):
    assert catalogue.page_of(cls) in page, "run `make catalogue`"


def test_the_page_has_the_current_overview(page):
    assert catalogue.overview() in page, "run `make catalogue`"


@every_algorithm
def test_an_optimizer_named_as_one_of_keras_says_how_it_differs(cls):
    names = {name.lower() for name in dir(keras.optimizers)}
    if cls.__name__.lower() in names:
        assert "keras.optimizers" in keras_tfopt.info(cls.__name__).differences


def rows_of(text):
    """Return the cells of the table of recordings, which ends the text."""
    lines = text[text.rindex("| recording |") :].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line]


def test_distances_from_the_originals_are_on_the_page(page):
    """Backends round differently, so only what has a distance of "none" must be the same."""
    now, then = rows_of(catalogue.differences()), rows_of(page)
    assert [row[:3] for row in now] == [row[:3] for row in then], "run `make catalogue`"
    for new, old in zip(now, then, strict=True):
        assert new[5] == old[5] == "none", new
        assert (new[3] == "none") == (old[3] == "none"), (new, old)
    assert len({row[0].split(",")[0] for row in now}) == len(
        [n for n in catalogue.STOCK if originals.is_implemented(n)]
    )
    assert keras_tfopt.Momentum in catalogue.algorithms()
