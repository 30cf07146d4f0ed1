"""Defects of Keras's own optimizers, measured, and what becomes of them in keras_tfopt.

    KERAS_BACKEND=jax python -m integration.stock_defects [--json OUT]
    python -m integration.stock_defects --all

One line per defect: what was expected, what the installed Keras does on this backend, what ours
does. With --all, a process per installed backend, and one table of all of them in Markdown.

Every probe runs one scenario with a stock optimizer and with one of ours, and says what is right
from elsewhere: a computation in NumPy, a run on one device, a limit. Nothing here is a stored
result, so a defect that a later Keras has mended shows as mended.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from integration.stock_defects import PROBES
from integration.stock_defects.findings import BACKENDS, ROOT, Finding, as_json, from_json
from integration.stock_defects.mirrored import run_mirrored
from integration.stock_defects.tables import markdown, report


def run_all() -> dict[str, list[Finding]]:
    """The findings of every installed backend, each from a process of its own."""
    found = {}
    for backend in BACKENDS:
        if importlib.util.find_spec(backend) is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "findings.json"
            done = subprocess.run(
                [sys.executable, "-m", "integration.stock_defects", "--json", str(out)],
                cwd=ROOT,
                env={**os.environ, "KERAS_BACKEND": backend},
                capture_output=True,
                text=True,
            )
            if not out.exists():  # its exit status says whether all is right
                raise RuntimeError(f"the process for {backend} failed:\n{done.stderr[-3000:]}")
            found[backend] = from_json(out.read_text())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", metavar="OUT", help="also write the findings to this file")
    parser.add_argument("--all", action="store_true", help="all installed backends, in Markdown")
    parser.add_argument("--mirrored", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.mirrored:
        run_mirrored()
        return 0
    if options.all:
        by_backend = run_all()
        findings = [f for each in by_backend.values() for f in each]
        print(markdown(by_backend))
    else:
        findings = [each.run() for each in PROBES]
        print(report(findings))
    if options.json:
        Path(options.json).write_text(as_json(findings))
    return 0 if all(f.ours_is_right or f.stock is None for f in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
