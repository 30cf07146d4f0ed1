"""Run all guides to their end, each on one backend, whatever became of the others.

    python -m integration.guides [--workers N] [--keep] [GUIDE...]

With several workers as many run at a time, in less time; the times that they print are then those
of a busy machine.

What a guide prints and its picture go to build/guides/. With --keep they also go to
docs/measured/guides/, from where the documentation shows them. The last lines are a table of guide,
backend, seconds and status. The exit status is 0 only if every guide ended well, drew its picture
and took at most LIMIT seconds, or what LIMITS says, after which it is stopped.
"""

import argparse
import concurrent.futures
import functools
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "guides"
KEPT = ROOT / "docs" / "measured" / "guides"
LIMIT = 600  # two minutes on a machine that does nothing else, and some patience with others
LIMITS = {"which_optimizer": 3600, "less_memory": 1800}  # 195 and 68 trainings
TOOLS = {"data", "report"}
# A guide is tested quickly on every backend, and runs in full on this one.
BACKENDS = {
    "quickstart": "jax",
    "choosing": "jax",
    "which_optimizer": "jax",
    "from_addons": "torch",
    "from_tf1": "tensorflow",
    "averages": "tensorflow",
    "embeddings": "jax",
    "large_batch": "torch",
    "sparse": "jax",
    "signs": "torch",
    "small_weights": "torch",
    "second_order": "jax",
    "own_optimizer": "tensorflow",
    "switching": "torch",
    "workers": "jax",
    "fine_tuning": "torch",
    "physics_informed": "jax",
    "less_memory": "torch",
}


def names():
    """The names of all that there are."""
    return sorted({path.stem for path in (ROOT / "guides").glob("*.py")} - TOOLS)


def run(guide, workers):
    """On which backend it ran, how many seconds it took, and what became of it."""
    backend = BACKENDS.get(guide, "")
    if not backend:
        return backend, 0.0, "failed: integration/guides.py has no backend for it"
    if importlib.util.find_spec(backend) is None:
        return backend, 0.0, f"failed: {backend} is not installed"
    print(f"{guide} on {backend} ...", flush=True)
    out, text, log = (RESULTS / f"{guide}.{kind}" for kind in ("png", "txt", "log"))
    out.unlink(missing_ok=True)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "KERAS_HOME": str(ROOT / "build" / "keras"),
        "OMP_WAIT_POLICY": "passive",
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers)),
        **os.environ,
        "KERAS_BACKEND": backend,
        "PYTHONPATH": path,
    }
    command = [sys.executable, str(ROOT / "guides" / f"{guide}.py"), "--out", str(out)]
    start, limit = time.monotonic(), LIMITS.get(guide, LIMIT)
    with text.open("w", encoding="utf-8") as file, log.open("w", encoding="utf-8") as errors:
        try:
            code = subprocess.run(
                command, env=environment, stdout=file, stderr=errors, timeout=limit
            ).returncode
            status = "ok" if code == 0 else f"failed: exit status {code}"
        except subprocess.TimeoutExpired:
            status = f"failed: stopped after {limit} s"
    seconds = time.monotonic() - start
    if status == "ok" and not out.exists():
        status = "failed: no picture"
    if status != "ok":
        for file in (text, log):
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            print("\n".join(["", f"The end of {file}:", *lines[-30:], ""]), flush=True)
    return backend, seconds, status


def keep(guide, backend):
    """Put what a guide printed and drew, and where it ran, into the documentation."""
    from integration.benchmarks.results import processor

    KEPT.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(RESULTS / f"{guide}.png", KEPT / f"{guide}.png")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("keras", backend))
    machine = f"{os.cpu_count()} cores, {processor()}"
    printed = (RESULTS / f"{guide}.txt").read_text(encoding="utf-8")
    lines = [line for line in printed.splitlines() if not line.startswith("Curves: ")]
    head = f"{versions}, Python {platform.python_version()}, {machine}"
    text = "\n".join([head, "", *lines]).rstrip().replace(f"{ROOT}{os.sep}", "")
    (KEPT / f"{guide}.txt").write_text(f"{text}\n", encoding="utf-8")


def run_all(chosen=(), workers=1, kept=False):
    """How many ended well, and how many did not."""
    there = names()
    RESULTS.mkdir(parents=True, exist_ok=True)
    guides = sorted(chosen or there, key=[*BACKENDS, *there].index)
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        ran = pool.map(functools.partial(run, workers=workers), guides)
    results = dict(zip(guides, ran, strict=True))
    for guide, (backend, _, status) in results.items():
        if kept and status == "ok":
            keep(guide, backend)

    print(f"\n{'guide':14} {'backend':10} {'seconds':>7}  status")
    for guide, (backend, seconds, status) in results.items():
        print(f"{guide:14} {backend:10} {seconds:>7.0f}  {status}")
    print(f"{'total':14} {'':10} {sum(seconds for _, seconds, _ in results.values()):>7.0f}")
    print(f"What they printed and drew: {RESULTS}")
    passed = sum(status == "ok" for *_, status in results.values())
    return passed, len(results) - passed


def main():
    there = names()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("guides", nargs="*", metavar="GUIDE", help="default: all")
    parser.add_argument("--workers", type=int, default=1, help="how many run at a time")
    parser.add_argument("--keep", action="store_true", help="show the results in docs/")
    options = parser.parse_args()
    chosen = options.guides
    if unknown := set(chosen) - set(there):
        parser.error(f"there are no guides {sorted(unknown)}; there are {there}")
    _, failed = run_all(chosen, options.workers, options.keep)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
