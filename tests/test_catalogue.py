"""The page of all optimizers is the one that the code makes now."""

import keras
import pytest

import keras_tfopt
from integration import catalogue, originals
from tests.paths import ROOT

PAGE = ROOT / "guides" / "optimizers.md"


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


every_algorithm = pytest.mark.parametrize("cls", catalogue.algorithms(), ids=lambda c: c.__name__)


@pytest.mark.spread
@every_algorithm
def test_what_the_page_says_of_an_optimizer(cls, page):
    assert catalogue.page_of(cls) in page, "run `make catalogue`"


@pytest.mark.spread
def test_the_overview(page):
    assert catalogue.overview() in page, "run `make catalogue`"


@pytest.mark.spread
@every_algorithm
def test_who_shares_a_name_with_keras_says_how_it_differs(cls):
    names = {name.lower() for name in dir(keras.optimizers)}
    if cls.__name__.lower() in names:
        assert "keras.optimizers" in keras_tfopt.info(cls.__name__).differences


def rows_of(text):
    lines = text[text.rindex("| recording |") :].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line]


@pytest.mark.spread
def test_distances_from_the_originals_are_on_the_page(page):
    """On this backend the distances are those on the page, except for rounding."""
    now, then = rows_of(catalogue.differences()), rows_of(page)
    assert [row[:3] for row in now] == [row[:3] for row in then], "run `make catalogue`"
    for new, old in zip(now, then, strict=True):
        assert new[5] == old[5] == "none", new
        assert (new[3] == "none") == (old[3] == "none"), (new, old)
    assert len({row[0].split(",")[0] for row in now}) == len(
        [n for n in catalogue.STOCK if originals.is_implemented(n)]
    )
    assert keras_tfopt.Momentum in catalogue.algorithms()
