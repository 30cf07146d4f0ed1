"""Run the checks, each to its end whatever became of the others, and add up what they counted.

    python .ci/check.py [--fast] [--part I] [--workers N] [--minutes M] SUITE...
                        [-- PYTEST_ARGUMENT...]

A SUITE is the name of a Keras backend, `guides`, which runs all of these in full, or one of `lint`,
`shell`, `dist` and `docs`, which are commands.
Where no more than FEW tests of a backend's part failed, they run again in a process of their own.
One that passes then counts as passed, and the last lines name it: it depends on chance, or on what
else the machine does, and that is to be mended, too.
With `--minutes` each part of a backend has its share of the time. Tests that would begin later are
skipped, and the last lines count them: a slow machine then says what it found before it is stopped.
With `-- --exhaustive` the matrix of optimizers and invariants is printed, of this run and, with
`--part`, of the parts that ran before. The last line reads `N passed, N failed`, followed by
`, N skipped` where there are any. The exit status is 0 only if every suite passed something and
nothing failed.
"""

import argparse
import collections
import concurrent.futures
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matrix

unsteady = []  # tests that failed, and passed when they ran again
too_late = collections.Counter()  # {backend and file: tests that did not run for want of time}

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "test-results"
COMPILED = ROOT / "build" / "compiled"
BACKENDS = ("tensorflow", "jax", "torch")
# A process can compile so much only: see --part in tests/conftest.py.
PARTS = {"tensorflow": 2, "jax": 2, "torch": 2}
EXHAUSTIVE_PARTS = 12
# How long a part of a backend takes, in comparison with the others.
WEIGHTS = {"tensorflow": 4, "jax": 2, "torch": 3}
FEW = 5
# Compiling takes most of the time of tests, whose programs then run for milliseconds. In usual runs
# XLA optimizes operations as for users and makes machine code for a CPU with less effort, which
# saves a quarter of the time on JAX. Exhaustive runs compile as users do.
QUICK_COMPILATION = {
    "tensorflow": "--xla_backend_optimization_level=0",
    "jax": "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false",
}
# Suites that are commands, each of which has to end well: modules, or a file.
COMMANDS = {
    "lint": (
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("mypy",),
        ("lint-imports", "--no-cache"),
        ("codespell_lib", "--dictionary=-", "--dictionary=.ci/words.txt"),
        (".ci/prose.py",),
    ),
    "shell": (
        ("keras_tfopt", "list", "ada*", "--exclude", "keras.*", "--source", "tf.train"),
        ("keras_tfopt", "list", "--second-order"),
        ("keras_tfopt", "info", "LARSOptimizer"),
        ("keras_tfopt.migrate", "tests/scripts/after/classifier.py", "--diff"),
    ),
    "dist": ((".ci/check_dist.py",),),
    "docs": (
        ("sphinx", "-q", "-W", "--keep-going", "docs", "build/docs"),
        ("pytest", "-q", "docs/test_site.py"),
    ),
}


def environment(backend, exhaustive=True):
    """The variables of a test run. A default that the user has set stays as the user set it."""
    defaults = {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        # Keras reads defaults (float type, data format) from its home: use an empty one.
        "KERAS_HOME": str(ROOT / "build" / "keras"),
        # What one process has compiled, others take: tests compile the same rules for variables of
        # the same shapes. (TensorFlow knows compiled code by numbers that processes count.)
        "JAX_COMPILATION_CACHE_DIR": str(COMPILED / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "TORCHINDUCTOR_CACHE_DIR": str(COMPILED / "torch"),
        # Every worker is a process: threads on top of them would compete for the same cores.
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        # Workers that share an accelerator must not each reserve most of its memory.
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    if not exhaustive and backend in QUICK_COMPILATION:
        defaults["XLA_FLAGS"] = QUICK_COMPILATION[backend]
    # Hundreds of processes import Keras, the package and the tests: Python compiles these once.
    own = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**defaults, **own, "KERAS_BACKEND": backend}


def line_of(command):
    if command[0] == "lint-imports":  # which is no module
        return [str(Path(sys.executable).with_name(command[0])), *command[1:]]
    how = [] if command[0].endswith(".py") else ["-m"]
    return [sys.executable, *how, *command]


def run(command, env):
    print("\n$ " + " ".join(command), flush=True)
    return subprocess.run(line_of(command), cwd=ROOT, env=env).returncode


def run_suite(suite, options):
    if suite == "guides":
        return run_guides(options)
    return run_backend(suite, options)


def counts_of(commands):
    """(counts, seconds) of a suite whose commands run in a pool; waits for them."""
    ended = [command.result() for command in commands]
    failed = sum(not ok for ok, _ in ended)
    return (len(ended) - failed, failed, 0), sum(seconds for _, seconds in ended)


def run_quietly(command):
    """Whether a command ended well, and seconds; it prints when it has ended."""
    start = time.monotonic()
    done = subprocess.run(
        line_of(command),
        cwd=ROOT,
        env=environment("jax"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    print("\n$ " + " ".join(command) + "\n" + done.stdout, end="", flush=True)
    return done.returncode == 0, time.monotonic() - start


def run_guides(options):
    sys.path.insert(0, str(ROOT))
    from integration import guides

    return *guides.run_all(workers=options.workers), 0


def run_backend(backend, options):
    print(f"\n== {backend}", flush=True)
    parts = EXHAUSTIVE_PARTS if is_exhaustive(options) else PARTS.get(backend, 1)
    for report in RESULTS.glob(f"{backend}-*.xml"):
        if options.part is None or not report.stem.endswith(f"-of-{parts}"):
            report.unlink()  # or the matrix would have tests twice
    numbers = [options.part] if options.part else range(1, parts + 1)
    counts = [run_part(backend, number, parts, options) for number in numbers]
    return tuple(map(sum, zip(*counts, strict=True)))


def is_exhaustive(options):
    return "--exhaustive" in options.pytest_arguments


def run_part(backend, number, parts, options):
    report = RESULTS / f"{backend}-{number}-of-{parts}.xml"
    report.unlink(missing_ok=True)
    arguments = [f"--override-ini=cache_dir={RESULTS / report.stem}"]
    if options.fast:
        arguments += ["-m", "not slow"]
    arguments += options.pytest_arguments
    own = [f"--part={number}/{parts}"]
    if options.minutes:
        share = (options.end - time.time()) * WEIGHTS[backend] / options.weight_left
        own.append(f"--until={time.time() + share:.0f}")
        options.weight_left -= WEIGHTS[backend]
    status = run_tests(backend, report, options.workers, [*own, *arguments])
    passed, failed, skipped = count(report)
    too_late.update(f"{backend}: {file}" for file in files_of_late(report))
    if failed == 0 and (status != 0 or passed == 0):
        print(f"{backend}: {passed} tests passed and pytest ended with status {status}", flush=True)
        failed = 1
    elif 0 < failed <= FEW:
        once_more = RESULTS / "again" / report.name
        once_more.unlink(missing_ok=True)
        # Without part and time: pytest reads only their files, of which it would take a part.
        only_failed = ["--last-failed", "--last-failed-no-failures=none"]
        run_tests(backend, once_more, 1, [*only_failed, *arguments])
        mended = names_of_passed(once_more)
        unsteady.extend(f"{backend}: {name}" for name in mended)
        passed, failed = passed + len(mended), failed - len(mended)
    return passed, failed, skipped


def run_tests(backend, report, workers, arguments):
    spread = ["-n", str(workers), "--dist=loadgroup", "--no-loadscope-reorder"]
    where = f"--junitxml={report.relative_to(ROOT)}"
    own = environment(backend, exhaustive="--exhaustive" in arguments)
    return run(["pytest", "-q", *spread, where, *arguments], own)


def names_of_passed(report):
    """Return the names of the tests in a JUnit report that passed."""
    if not report.exists():
        return []
    cases = ElementTree.parse(report).iter("testcase")
    return [f"{case.get('classname')}.{case.get('name')}" for case in cases if not bad(case)]


def files_of_late(report):
    """Return, for each test in a JUnit report that was skipped for want of time, its file."""
    if not report.exists():
        return []
    return [
        case.get("classname")
        for case in ElementTree.parse(report).iter("testcase")
        if any("no time is left" in child.get("message", "") for child in case.iter("skipped"))
    ]


def bad(case):
    """Return what else than passed a test of a JUnit report is, or nothing."""
    return {child.tag for child in case} & {"failure", "error", "skipped"}


def count(report):
    """Count (passed, failed, skipped) in a JUnit report; all zero where pytest left none."""
    passed = failed = skipped = 0
    if report.exists():
        for case in ElementTree.parse(report).iter("testcase"):
            outcomes = bad(case)
            if outcomes & {"failure", "error"}:
                failed += 1
            elif outcomes:
                skipped += 1
            else:
                passed += 1
    return passed, failed, skipped


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    suites = (*COMMANDS, *BACKENDS, "guides")
    parser.add_argument("suites", nargs="+", choices=suites, metavar="SUITE")
    parser.add_argument("--fast", action="store_true", help="leave out the tests marked slow")
    parser.add_argument(
        "--part", type=int, help=f"one of the {EXHAUSTIVE_PARTS} parts of an exhaustive run only"
    )
    parser.add_argument("--minutes", type=float, help="time for the tests of all backends")
    parser.add_argument("--workers", type=int, default=2, help="processes that run tests")
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:split])
    options.pytest_arguments = arguments[split + 1 :]
    if options.part and not (is_exhaustive(options) and options.part <= EXHAUSTIVE_PARTS):
        parser.error(f"--part is one of 1 to {EXHAUSTIVE_PARTS}, with -- --exhaustive")

    if options.minutes is not None and (is_exhaustive(options) or options.minutes <= 0):
        parser.error("--minutes is a positive number, and not for -- --exhaustive")
    if options.minutes:
        options.end = time.time() + 60 * options.minutes
        options.weight_left = sum(WEIGHTS[s] * PARTS[s] for s in options.suites if s in PARTS)

    RESULTS.mkdir(parents=True, exist_ok=True)
    if not (options.fast or options.part):  # nothing of other versions, perhaps
        shutil.rmtree(COMPILED, ignore_errors=True)
    # One command after the other, while the tests run: the longest leaves most of a machine idle.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        chosen = [suite for suite in COMMANDS if suite in options.suites]
        commands = {s: [pool.submit(run_quietly, c) for c in COMMANDS[s]] for s in chosen}
        results = {}
        for suite in options.suites:
            if suite not in commands:
                start = time.monotonic()
                counts = run_suite(suite, options)
                results[suite] = counts, time.monotonic() - start
        results |= {suite: counts_of(running) for suite, running in commands.items()}

    if is_exhaustive(options):
        print(flush=True)
        matrix.summary(sorted(RESULTS.glob("*.xml")))
    print()
    for suite, ((passed, failed, skipped), seconds) in results.items():
        counts = f"{passed:>6} passed {failed:>6} failed {skipped:>6} skipped"
        print(f"{suite:<10} {counts} {seconds:>6.0f} s")
    if unsteady:
        print("Failed, and passed when run again:", *unsteady, sep="\n  ")
    if too_late:
        print(f"Tests that did not run in {options.minutes:g} minutes:")
        print(*(f"  {number:>5} of {file}" for file, number in too_late.items()), sep="\n")
    passed, failed, skipped = map(sum, zip(*(c for c, _ in results.values()), strict=True))
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
