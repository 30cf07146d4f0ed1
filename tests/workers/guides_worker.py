"""The program that runs guides one after the other, in one process that imports Keras once.

    python -m tests.workers.guides_worker FOLDER GUIDE...

It starts each guide as a user does, with `--fast`. Output goes to FOLDER/GUIDE.txt, and the picture
to FOLDER/GUIDE/curves.png. If a guide raises an error, the next ones run all the same.

On PyTorch steps are plain: compiling rules takes longer than these short trainings.
"""

import contextlib
import runpy
import sys
import time
import traceback
from pathlib import Path

import keras

from keras_tfopt import engine
from tests.helpers.paths import ROOT

GUIDES = ROOT / "guides"


def main(folder, guides):
    sys.path.insert(0, str(GUIDES))  # as Python does for a script
    on_torch = keras.backend.backend() == "torch"
    for guide in guides:
        start = time.monotonic()
        engine.compile_in_background(True)  # which a guide may have changed
        sys.argv = [f"{guide}.py", "--fast", "--out", str(folder / guide / "curves.png")]
        with (folder / f"{guide}.txt").open("w", encoding="utf-8") as file:
            way = engine.plain() if on_torch else contextlib.nullcontext()
            with contextlib.redirect_stdout(file), way:
                try:
                    runpy.run_path(str(GUIDES / f"{guide}.py"), run_name="__main__")
                except Exception:
                    traceback.print_exc(file=file)
        print(f"{guide}: {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
