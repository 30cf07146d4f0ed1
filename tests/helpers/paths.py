"""Folders of the project."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"  # recordings
SIGNATURES = ROOT / "tests" / "signatures"  # names and arguments of the originals
