"""Check that what a release says of itself agrees: version, changelog and citation.

python .ci/check_release.py [--tag]

With --tag, the changelog must have a section of this version. Without, it may have one of changes
that are not released.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def found(file, pattern, what):
    """Return what a pattern captures in a file; `what` says in words what that is."""
    match = re.search(pattern, (ROOT / file).read_text("utf-8"), re.M)
    if match is None:
        sys.exit(f"{file} lacks {what}")
    return match[1]


def main():
    version = found("keras_tfopt/_version.py", r'^__version__ = "([^"]+)"', "a version")
    cited = found("CITATION.cff", r"^version: (\S+)", "a version")
    if cited != version:
        sys.exit(f"CITATION.cff has version {cited}, the package {version}")
    heading = rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d"
    wanted = f"a section '## [{version}] - YEAR-MONTH-DAY'"
    if "--tag" not in sys.argv[1:]:
        heading += r"|\[Unreleased\]"
        wanted += " or '## [Unreleased]'"
    found("CHANGELOG.md", rf"^## ({heading})$", wanted)
    print(f"version, changelog and citation agree on {version}")


if __name__ == "__main__":
    main()
