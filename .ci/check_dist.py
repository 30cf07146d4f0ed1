"""Build what would be uploaded, and check it: metadata, and that it holds what it must and no more.

    python .ci/check_dist.py

An sdist is built into dist/, and a wheel from the sdist, with the installed hatchling: nothing is
fetched.
"""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from check_wheel import check_content

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
# Tracked, and of use in a checkout only; hatchling adds .gitignore by itself.
NOT_IN_SDIST = {".gitattributes", ".pre-commit-config.yaml"}
ADDED = {"PKG-INFO"}


def tracked():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}


def check_sdist(sdist):
    root = sdist.name.removesuffix(".tar.gz") + "/"
    with tarfile.open(sdist) as archive:
        names = {m.name for m in archive.getmembers() if m.isfile()}
    assert all(name.startswith(root) for name in names), "not all is in one folder"
    found, expected = {name.removeprefix(root) for name in names}, tracked() - NOT_IN_SDIST | ADDED
    assert found == expected, (
        f"the sdist lacks {sorted(expected - found)} and also has {sorted(found - expected)}"
    )
    return len(found)


def main():
    shutil.rmtree(DIST, ignore_errors=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(DIST), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", wheel, sdist], check=True)
    check_content(wheel)
    count = check_sdist(sdist)
    size = sdist.stat().st_size / 2**20
    print(f"{wheel.name} and {sdist.name} ({count} files, {size:.1f} MB) hold what they must")


if __name__ == "__main__":
    main()
