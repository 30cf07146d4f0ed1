"""The program that runs guides one after the other, in one process that imports Keras once.

    python -m tests.guides_worker FOLDER GUIDE...

It starts each guide as a user does, with `--fast`. Output goes to FOLDER/GUIDE.txt, and the picture
to FOLDER/GUIDE/curves.png. If a guide raises an error, the next ones run all the same.
"""

import contextlib
import runpy
import sys
import time
import traceback
from pathlib import Path

from tests.paths import ROOT

GUIDES = ROOT / "guides"


def main(folder, guides):
    sys.path.insert(0, str(GUIDES))  # as Python does for a script
    for guide in guides:
        start = time.monotonic()
        sys.argv = [f"{guide}.py", "--fast", "--out", str(folder / guide / "curves.png")]
        with (folder / f"{guide}.txt").open("w", encoding="utf-8") as file:
            with contextlib.redirect_stdout(file):
                try:
                    runpy.run_path(str(GUIDES / f"{guide}.py"), run_name="__main__")
                except Exception:
                    traceback.print_exc(file=file)
        print(f"{guide}: {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
