"""Defects of Keras's own optimizers, measured by probes; `__main__.py` runs them."""

from integration.stock_defects import findings, mirrored, options, own_rules, rows, state

_MODULES = (mirrored, options, own_rules, rows, state)  # which have registered their probes
PROBES = sorted(findings.PROBES, key=lambda probe: (int(probe.number.rstrip("abc")), probe.number))
