"""Build the reference: `python -m integration.reference [--out build/reference]`, on JAX.

A page for every public name, with pictures of every optimizer, and tables of all of them. Nothing
is fetched. Every link within the site is followed; the exit status is 1 if one leads nowhere.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

import keras

import keras_tfopt
from integration.reference import links, names, pages, pictures

ROOT = Path(__file__).resolve().parents[2]


def build(out: Path) -> list[str]:
    """Writes the site into a folder, which it empties before; returns links that lead nowhere."""
    if out.exists():
        if any(out.iterdir()) and not (out / "index.html").exists():
            raise ValueError(f"Argument `--out` must be a new or empty folder. Received: {out}")
        shutil.rmtree(out)
    (out / "pictures").mkdir(parents=True)
    registered = {}
    for name in keras_tfopt.list_optimizers(exclude="keras.*"):
        registered[keras_tfopt.info(name).optimizer_class] = name
        pictures.draw_curve(name, out / "pictures")
        pictures.draw_paths(name, out / "pictures")
    made = [pages.index(), pages.digits(), pages.differences(), pages.defects()]
    made += [pages.tf1(), pages.of_keras()]
    made += [pages.page_of(entry, registered) for entry in names.public()]
    for page in made:
        (out / page.file).write_text(pages.whole(page), encoding="utf-8")
    shutil.copy(Path(__file__).parent / "style.css", out)
    return links.broken(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "reference")
    options = parser.parse_args()
    if keras.backend.backend() != "jax":
        print(
            "The reference is built on JAX, where whole trainings are compiled: set "
            f"KERAS_BACKEND=jax. Received: {keras.backend.backend()!r}",
            file=sys.stderr,
        )
        return 2
    started = time.perf_counter()
    broken = build(options.out)
    count = len(list(options.out.rglob("*.html")))
    print(f"{count} pages in {time.perf_counter() - started:.0f} s: {options.out / 'index.html'}")
    for line in broken:
        print(f"broken: {line}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
