"""No optimizer here has the defects of stock ones that integration.stock_defects measures.

The JUnit report says for each defect whether the installed Keras has it. If that differs from what
the probe expects, pytest prints a warning, and the test does not fail.
"""

import warnings

import pytest

from integration.stock_defects import PROBES
from integration.stock_defects.findings import BACKEND, as_json, from_json
from integration.stock_defects.tables import markdown, report

COSTLY = {"1a", "7a", "7b", "8"}  # these start processes or compile several programs


@pytest.mark.parametrize(
    "probe",
    [
        pytest.param(p, id=p.number, marks=[pytest.mark.slow] if p.number in COSTLY else [])
        for p in PROBES
        if BACKEND in p.backends
    ],
)
@pytest.mark.xdist_group("stock_defects")  # some share the output of one process
def test_keras_tfopt_does_not_have_the_defect(probe, record_property):
    finding = probe.run()
    record_property("defect", finding.defect)
    record_property("stock", finding.describe_stock())
    record_property("keras_tfopt", finding.describe_ours())
    print(f"{finding.number} {finding.defect}: stock {finding.describe_stock()}")
    if finding.stock_has_it != (BACKEND in probe.seen_on):
        change = "now has" if finding.stock_has_it else "no longer has"
        warnings.warn(f"Keras {change} defect {finding.number}: {finding.defect}", stacklevel=1)
    assert finding.ours_is_right, f"expected {finding.expected}, {finding.describe_ours()}"


def test_there_is_a_probe_for_each_defect():
    assert {p.number.rstrip("abc") for p in PROBES} == {str(n) for n in range(1, 13)}
    assert len({p.number for p in PROBES}) == len(PROBES)


def test_the_table_shows_what_stock_and_ours_did():
    cheap = [p.run() for p in PROBES if p.number in ("5a", "5b", "9a", "9b")]
    again = from_json(as_json(cheap))
    assert again == cheap
    lines = markdown({BACKEND: again}).split("\n\n")[0].splitlines()
    assert len(lines) == 2 + len(cheap)
    for finding, line in zip(cheap, lines[2:]):
        assert line.count(" | ") == lines[0].count(" | ")
        assert finding.defect in line and str(finding.ours) in line
        assert (f"**{finding.stock}**" in line) == finding.stock_has_it
    assert all(finding.defect in report(cheap) for finding in cheap)
