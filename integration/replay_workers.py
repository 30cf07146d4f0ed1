"""Replays recorded workers in one process and compares everything after every event.

    KERAS_BACKEND=jax python -m integration.replay_workers tests/golden/tf1_distributed

A folder holds `manifest.json` and an `.npz` for each case; its README says what is in them. An
event is a step of a worker, or of all; a gradient being read or applied; or the center aggregating.
What is compared: variables and slots of every worker and of the center, the state of the method
(centers as workers saw them, sums of gradients, tokens), counts, powers of decay rates, and what
an event gave. A line per failing case says where it first leaves the recorded tolerance. The exit
status is 0 only if something passed and nothing failed.
"""

import argparse
import fnmatch
import functools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_tfopt
from integration import originals
from integration.in_process import InProcess
from keras_tfopt.legacy.table import TABLE

METHODS = {
    "AGNOptimizer": keras_tfopt.AGN,
    "DropStaleGradientOptimizer": keras_tfopt.DropStale,
    "ElasticAverageOptimizer": keras_tfopt.ElasticAverage,
    "ModelAverageOptimizer": keras_tfopt.ModelAverage,
    "SyncReplicasOptimizer": keras_tfopt.SyncReplicas,
}
STEP, READ, APPLY, AGGREGATE = range(4)
# Without meaning in one process: there is nothing to wait for before the start.
IGNORED = {"synchronous"}
NOT_NOW = -1  # of what an event gives, where it is another event


class Case:
    """A recorded schedule of events, and the state after each of them."""

    def __init__(self, entry: Mapping[str, Any], folder: Path):
        self.entry = entry
        self.name = Path(entry["file"]).stem
        self.quirk = entry["status"] == "quirk"
        self.path = folder / entry["file"]
        self.variables = [v["name"] for v in entry["variables"]]

    @functools.cached_property
    def arrays(self) -> dict[str, Any]:
        with np.load(self.path) as file:
            found = dict(file)
        lacking = sorted(set(self.entry["array_names"]) - set(found))
        if lacking:
            raise ValueError(f"{self.name} lacks {lacking[:3]}")
        return found

    def gradients(self, worker: int, event: int) -> dict[str, Any]:
        found = {}
        for name in self.variables:
            key = f"worker/{worker}/grad/{name}"
            if key in self.arrays:
                found[name] = self.arrays[key][event]
                continue
            rows = [self.arrays[f"{key}/{event}/{part}"] for part in ("values", "indices")]
            found[name] = keras_tfopt.RowGradient(*rows, self.arrays[f"init/{name}"].shape)
        return found


def cases(folder: Path, only: str = "*") -> list[Case]:
    """The cases of a folder by a pattern on their names, quirks among them."""
    entries = json.loads((folder / "manifest.json").read_text())["cases"]
    return [Case(e, folder) for e in entries if fnmatch.fnmatchcase(Path(e["file"]).stem, only)]


def start(case: Case) -> InProcess:
    """Workers at the beginning of a case."""
    entry = case.entry
    inner = entry["inner_optimizer"]
    inner = originals.build(inner["class_name"] + "Optimizer", inner["config"])
    arguments = {name: v for name, v in entry["kwargs"].items() if name not in IGNORED}
    defaults = TABLE[entry["optimizer"]].arguments
    for name in ("communication_period", "interval_steps"):
        if name in defaults:
            arguments.setdefault(name, defaults[name])
    if entry["average_decay"] is not None:
        arguments["variable_averages"] = entry["average_decay"]
    method = METHODS[entry["optimizer"]](inner, **arguments)
    values = {name: case.arrays[f"init/{name}"] for name in case.variables}
    tokens = -1 if entry["num_tokens"] is None else entry["num_tokens"]
    return InProcess(method, entry["num_workers"], values, initial_tokens=tokens)


def act(run: InProcess, case: Case, event: int) -> dict[str, float]:
    """Makes an event happen; gives what it gave, by the name in the recording."""
    worker, kind = (int(number) for number in case.arrays["schedule"][event])
    if kind == AGGREGATE:
        run.aggregate()
        return {}
    if kind == APPLY:
        run.apply(worker)
        return {f"worker/{worker}/extra/returned": run.stale}
    if kind == READ:
        run.read(worker, case.gradients(worker, event))
        return {}
    if worker >= 0:
        accepted = run.step(worker, case.gradients(worker, event))
        return {f"worker/{worker}/extra/accepted": accepted}
    for number in range(len(run.workers)):
        run.step(number, case.gradients(number, event))
    return {}


def state(run: InProcess, case: Case, event: int, gave: Mapping[str, float]) -> dict[str, Any]:
    """Everything there is after an event, by the names in the recording."""
    worker_now, kind_now = (int(number) for number in case.arrays["schedule"][event])
    found: dict[str, Any] = dict(gave)
    config = case.entry["inner_optimizer"]["config"]
    inside_step = case.entry["optimizer"] == "SyncReplicasOptimizer"
    for place, site in [("center", run.center), *_numbered(run.workers)]:
        for name, value in site.values.items():
            found[f"{place}/var/{name}"] = value
            for slot, array in site.slots[name].items():
                found[f"{place}/slot/{name}/{slot}"] = array
                found[f"{place}/{_OWN.get(slot, slot)}/{name}"] = array
        for beta in ("beta1", "beta2"):
            if beta in config:
                found[f"{place}/extra/{beta}_power"] = config[beta] ** (site.iterations + 1)
    for number, (place, worker) in enumerate(_numbered(run.workers)):
        acts = worker_now in (number, -1)
        found[f"{place}/extra/local_step"] = worker.seen if inside_step else worker.updates
        found[f"{place}/extra/read_step"] = worker.seen if acts and kind_now != STEP else NOT_NOW
        found.setdefault(f"{place}/extra/accepted", NOT_NOW)
        found.setdefault(f"{place}/extra/returned", NOT_NOW)
        for name in case.variables:
            # What is recorded of gradients is zero where a worker does not act.
            total = worker.gradients.get(name)
            if total is not None and not isinstance(total, keras_tfopt.RowGradient):
                found[f"{place}/total_grad/{name}"] = np.asarray(
                    keras.ops.convert_to_numpy(total) * acts
                )
        if case.entry["loss"] == "regression" and acts:
            found |= {f"{place}/{key}": v for key, v in loss_at(case, number, event).items()}
    found["center/extra/global_step"] = run.global_step
    found["center/extra/stale_counter"] = run.stale
    found["center/extra/num_accumulated"] = run.accumulated
    found["center/extra/tokens"] = run.tokens
    return found


_OWN = {"gradient_sum": "grad_sum", "local_center": "local_center", "average": "moving_average"}


def _numbered(workers: Sequence[Any]) -> list[tuple[str, Any]]:
    return [(f"worker/{number}", worker) for number, worker in enumerate(workers)]


def loss_at(case: Case, worker: int, event: int) -> dict[str, Any]:
    """Loss and gradients of a regression at what was recorded before the event, in float64."""
    here = f"worker/{worker}"
    x, y = (case.arrays[f"{here}/data/{n}"][event].astype("float64") for n in "xy")

    def before(name: str) -> np.ndarray:
        if event == 0:
            return case.arrays[f"init/{name}"].astype("float64")
        return case.arrays[f"{here}/var/{name}"][event - 1].astype("float64")

    error = x @ before("kernel") + before("bias") - y
    return {
        "extra/loss": 0.5 * np.mean(np.sum(error**2, 1)),
        "grad/kernel": x.T @ error / len(x),
        "grad/bias": np.mean(error, 0),
    }


def compare(case: Case, event: int, found: Mapping[str, Any]) -> tuple[str | None, float, set[str]]:
    """What differs, the largest error over tolerance, and the names of what was compared."""
    worst, seen, problem = 0.0, set(), None
    for name, array in case.arrays.items():
        if name.startswith("init/") or name == "schedule" or "/data/" in name:
            continue
        if "/grad/" in name and name not in found:
            continue  # what it was given
        if name not in found:
            if _says_nothing(name, array[event]):
                continue
            return f"event {event}, {name}: nothing to compare with", np.inf, seen
        want, got = array[event], np.asarray(found[name])
        seen.add(name)
        if got.shape != want.shape:
            return f"event {event}, {name}: shape {got.shape}, not {want.shape}", np.inf, seen
        tolerance = case.entry["tolerances"]["slot" if "slot" in name else "var"]
        allowed = tolerance["atol"] + tolerance["rtol"] * np.abs(want.astype("float64"))
        if np.issubdtype(want.dtype, np.integer):
            allowed = np.full(want.shape, 0.5)
        errors = np.abs(got.astype("float64") - want) / allowed
        largest = float(np.max(errors, initial=0.0))
        if not largest <= 1:
            problem = problem or f"event {event}, {name}: {largest:.3g} x tolerance"
        worst = max(worst, largest)
    return problem, worst, seen


def _says_nothing(name: str, value: Any) -> bool:
    """Whether it is what is recorded of a worker that does not act at an event."""
    quiet = name.endswith(("/loss",)) or "/total_grad/" in name
    return quiet and not np.any(value)


def replay(case: Case) -> tuple[str | None, float]:
    """The first difference if there is one, and the largest error over tolerance."""
    run, worst, compared = start(case), 0.0, set()
    for event in range(case.entry["events"]):
        with keras_tfopt.engine.plain():  # compiling would take longer than all events
            gave = act(run, case, event)
        problem, error, seen = compare(case, event, state(run, case, event, gave))
        if problem is not None:
            return problem, error
        worst, compared = max(worst, error), compared | seen
    given = {name for name in case.arrays if "/grad/" in name or "/data/" in name}
    left = set(case.arrays) - compared - given - {"schedule"}
    left = {name for name in left if not name.startswith("init/")}
    return (f"never compared: {sorted(left)}" if left else None), worst


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m integration.replay_workers", description="Replay recorded workers."
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder with manifest.json")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="e.g. 'AGN*_w2_*'")
    parser.add_argument("--quirks", action="store_true", help="also cases marked quirk")
    options = parser.parse_args(arguments)
    found = cases(options.folder, options.only)
    chosen = [case for case in found if options.quirks or not case.quirk]
    outcomes = {case.name: replay(case) for case in chosen}
    for name, (problem, _) in outcomes.items():
        if problem:
            print(f"FAILED {name}: {problem}")
    failed = sum(problem is not None for problem, _ in outcomes.values())
    if len(chosen) < len(found):
        print(f"not replayed: {len(found) - len(chosen)} cases marked quirk (see --quirks)")
    if len(chosen) > failed:
        error, name = max(
            (error, name) for name, (problem, error) in outcomes.items() if not problem
        )
        print(f"{keras.backend.backend()}: at most {error:.2g} x tolerance ({name})")
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return 0 if chosen and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
