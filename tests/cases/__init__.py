"""A `Case` for each public optimizer, which says what tests need to know of it.

Tests that are about all optimizers loop over CASES and name none.
"""

import inspect

import keras
import pytest

from tests.cases import addons, modern, over_workers, rules, second_order, wrappers
from tests.helpers.stepping import MODES

RULES = (*rules.CASES, *addons.CASES, *modern.CASES, *second_order.CASES)
CASES = (*RULES, *wrappers.CASES, *over_workers.CASES)
every_rule = pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in RULES])


def every_case(*names):
    """Parametrize over CASES, or over CASES and their variants: `every_case("case", "variant")`."""
    if names == ("case",):
        params = [pytest.param(case, id=case.name) for case in CASES]
    else:
        params = [
            pytest.param(case, variant, id=f"{case.name}-{variant}")
            for case in CASES
            for variant in case.variants
        ]
    return pytest.mark.parametrize(names, params)


def main_variant_in_all_modes(others, is_rare=lambda case, variant, mode: False):
    """Parametrize over all modes for the main variant, and over `others` for the other variants.

    Only exhaustive runs have those for which `is_rare` returns True.
    """
    params = [
        pytest.param(
            *(case, variant, mode),
            id=f"{case.name}-{variant}-{mode}",
            marks=pytest.mark.exhaustive if is_rare(case, variant, mode) else (),
        )
        for case in CASES
        for variant in case.variants
        for mode in (MODES if variant == case.main else others)
    ]
    return pytest.mark.parametrize(("case", "variant", "mode"), params)


def of_each_kind(cases):
    """Parametrize over Cases, of which usual runs have the representatives only."""
    params = [
        pytest.param(case, id=case.name, marks=[pytest.mark.exhaustive] * is_alike)
        for case in cases
        for is_alike in [case.name not in REPRESENTATIVES]
    ]
    return pytest.mark.parametrize("case", params)


def training_of(case, function):
    """Return the Training of a Case that minimizes a function, "quadratic" or "rosenbrock"."""
    own = getattr(case, function)
    return own or next(getattr(other, function) for other in CASES if other.cls is case.inner)


def keras_options():
    """Return names of the options that the optimizer classes of Keras take on this backend."""
    constructors = [
        vars(c)["__init__"]
        for c in keras.optimizers.Optimizer.__mro__[:-1]
        if "__init__" in vars(c)
    ]
    names = {name for each in constructors for name in inspect.signature(each).parameters}
    names -= {"self", "args", "kwargs", "learning_rate"}
    assert {"name", "clipnorm", "weight_decay", "use_ema"} <= names
    return names


def _representatives():
    """Return names of Cases: the first of each kind that the engine handles differently."""
    first = {}
    for case in CASES:
        kind = case.inner is None, case.scope, (case.inner or case.cls).flat, case.sparse
        first.setdefault(kind, case)
    return {case.name for case in first.values()}


# Tests that do not depend on formulas of rules run in full for these only: see tests/cells.py.
REPRESENTATIVES = _representatives()
