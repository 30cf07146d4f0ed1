"""Recorded trajectories: reading, comparing and writing them. Knows no optimizer.

A folder holds `manifest.json` and one `.npz` per case. A trajectory is a flat dictionary of arrays
named as in the file: `init/<var>`, `slot_init/<var>/<slot>`, `extra_init/<name>`; for every step
`grad/<step>/<var>`, `var/<step>/<var>`, `slot/<step>/<var>/<slot>`, `extra/<step>/<name>`.
What we compute has the same names, so comparing and writing need no other representation.

Steps count from the entry's `first_step`. Entries of other formats are put into this one when they
are read; see `_FORMATS`.
"""

import dataclasses
import fnmatch
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Arrays = dict[str, np.ndarray]


class Rows(NamedTuple):
    """A recorded sparse gradient; indices may repeat and may be empty."""

    indices: np.ndarray
    values: np.ndarray


Gradient = np.ndarray | Rows | None


class NotReplayable(Exception):
    """A recorded class, argument or circumstance that has no counterpart here (yet)."""


class BadRecording(Exception):
    """The files contradict their manifest, or are in a format that is not handled."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """The array that disagrees most at the first step that disagrees."""

    step: int | None
    """None: before the first step."""
    array: str
    reason: str

    def __str__(self) -> str:
        when = "before the first step" if self.step is None else f"step {self.step}"
        return f"{when}, {self.array}, {self.reason}"


@dataclasses.dataclass(frozen=True)
class Comparison:
    difference: Difference | None
    error: float
    """Largest error over tolerance of all arrays; infinite where one cannot be compared at all."""
    array: str
    """Where that error is."""


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One trajectory: its entry in the manifest and its arrays."""

    entry: Mapping[str, Any]
    folder: Path

    @property
    def name(self) -> str:
        return Path(self.entry["file"]).stem

    @property
    def optimizer(self) -> str:
        return self.entry["optimizer"]

    @property
    def quirk(self) -> bool:
        return self.entry["status"] == "quirk"

    @property
    def float64(self) -> bool:
        return any(v["dtype"] == "float64" for v in self.entry["variables"])

    @property
    def sparse(self) -> bool:
        return any(v["gradient"] == "sparse" for v in self.entry["variables"])

    @property
    def steps(self) -> range:
        """The numbers of the steps, as in the names of the arrays."""
        first = self.entry["first_step"]
        return range(first, first + self.entry["steps"])

    @property
    def learning_rates(self) -> dict[int, float]:
        """What is assigned to the learning rate before a step, by the number of the step."""
        return dict(zip(self.steps, self.entry["learning_rate_per_step"] or (), strict=False))

    @property
    def repeats_rows(self) -> bool:
        """Whether a sparse gradient names a row more than once."""
        return any(
            len(set(gradient.indices)) < len(gradient.indices)
            for name in self.variables
            for step in self.steps
            if isinstance(gradient := self.gradient(name, step), Rows)
        )

    @property
    def has_nan(self) -> bool:
        """Whether a recorded variable or slot holds a number that is none."""
        return any(
            np.isnan(array).any()
            for name, array in self.arrays.items()
            if name.startswith(("var/", "slot/"))
        )

    @property
    def variables(self) -> dict[str, Mapping[str, Any]]:
        """What is recorded of each variable, by its name."""
        return {v["name"]: v for v in self.entry["variables"]}

    @functools.cached_property
    def arrays(self) -> Arrays:
        """The recorded trajectory; it must be complete, or little could be left to compare."""
        with np.load(self.folder / self.entry["file"]) as file:
            arrays = dict(file)
        missing = [name for name in self._promised() if name not in arrays]
        if missing:
            raise BadRecording(f"{self.entry['file']} lacks {', '.join(missing[:3])}")
        return arrays

    def _promised(self) -> Iterator[str]:
        for v in self.entry["variables"]:
            yield f"init/{v['name']}"
            for step in self.steps:
                yield f"var/{step}/{v['name']}"
                yield from (f"slot/{step}/{v['name']}/{slot}" for slot in v["slots"])
                if v["gradient"] == "sparse":
                    yield f"grad/{step}/{v['name']}/indices"
                    yield f"grad/{step}/{v['name']}/values"
                elif v["gradient"] == "dense":
                    yield f"grad/{step}/{v['name']}"
        for step in self.steps:
            extra = self.entry["extra"]
            yield from (f"extra/{step}/{name}" for name in extra["optimizer"] + extra["same_run"])

    def gradient(self, variable: str, step: int) -> Gradient:
        """The recorded gradient of a variable at a step."""
        kind, name = self.variables[variable]["gradient"], f"grad/{step}/{variable}"
        if kind == "none":
            return None
        if kind == "sparse":
            return Rows(self.arrays[f"{name}/indices"], self.arrays[f"{name}/values"])
        return self.arrays[name]

    def compare(self, ours: Arrays, factor: float = 1.0) -> Comparison:
        """Compares every recorded array that is state; what ours lacks is a difference.

        Errors may be `factor` times as large as the recording says.
        """
        worst = Comparison(None, -1.0, "")
        first: tuple[int, float] | None = None
        difference = None
        for name, expected in self.arrays.items():
            if name.startswith("grad/") or (name not in ours and self._is_optional(name)):
                continue
            if _step_of(name) in self.entry.get("unspecified_steps", ()):
                continue
            if name.rsplit("/", 1)[-1] in self.entry.get("sign_ambiguous_slots", ()):
                continue
            error, reason = np.inf, "not exposed by ours"
            if name in ours:
                error, reason = self._error(name, ours[name], expected, factor)
            if error > worst.error:
                worst = Comparison(None, error, name)
            order = (_step_of(name), -error)
            if error > 1 and (first is None or order < first):
                first = order
                difference = Difference(order[0] if order[0] >= 0 else None, name, reason)
        return dataclasses.replace(worst, difference=difference)

    def _error(
        self, name: str, ours: np.ndarray, expected: np.ndarray, factor: float
    ) -> tuple[float, str]:
        """Largest `|ours - expected| / (atol + rtol * |expected|)`, and the same in words."""
        if ours.shape != expected.shape:
            return np.inf, f"shape {ours.shape}, not {expected.shape}"
        if ours.dtype != expected.dtype and not name.startswith("extra"):
            # A float64 recording computed in float32 can stay within the tolerance.
            return np.inf, f"dtype {ours.dtype}, not {expected.dtype}"
        rtol, atol = (factor * bound for bound in self.tolerance_of(name))
        a, b = ours.astype("float64"), expected.astype("float64")
        equal = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            errors = np.where(equal, 0.0, np.abs(a - b) / (atol + rtol * np.abs(b)))
        error = float(np.max(np.where(np.isnan(errors), np.inf, errors), initial=0.0))
        return error, f"error {error:.3g} x tolerance"

    def _is_optional(self, name: str) -> bool:
        """Whether it is a value used in a step, such as a norm, and not state."""
        kind, *_, last = name.split("/")
        return kind == "extra" and last in self.entry["extra"]["same_run"]

    def tolerance_of(self, name: str) -> tuple[float, float]:
        """Recorded relative and absolute tolerance of an array."""
        table = self.entry["tolerance"]
        kind, *_, last = name.split("/")
        if kind in ("init", "var"):
            found = table["var"]
        elif kind in ("slot", "slot_init"):
            found = table["slots"][last]
        elif kind in ("extra", "extra_init"):
            found = table["extra"][last]
        else:
            raise BadRecording(f"array {name} is of no known kind")
        return found["rtol"], found["atol"]


def _step_of(name: str) -> int:
    match = re.match(r"(?:var|slot|extra)/(\d+)/", name)
    return int(match.group(1)) if match else -1


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which cases of a folder are to be replayed, and in words what is left out."""

    cases: list[Case]
    left_out: list[str]


def select(
    folder: Path,
    only: str = "*",
    quirks: bool = False,
    deviation: Callable[[Case], str | None] = lambda case: None,
) -> Selection:
    """Chooses cases by a pattern on the file name without its ending, e.g. `Adam_*`.

    A case for which `deviation` gives a reason is left out with this reason, quirk or not.
    """
    manifest = json.loads((folder / "manifest.json").read_text())
    entries = [e for e in manifest["cases"] if fnmatch.fnmatchcase(Path(e["file"]).stem, only)]
    source = manifest.get("source")
    if source not in _FORMATS:
        # These folders describe construction, slots and steps in ways of their own.
        return Selection([], [f"{len(entries)} cases recorded from {source}"] if entries else [])
    entries = [_FORMATS[source](e) for e in entries]
    cases = [Case(e, folder) for e in entries if e["kind"] == "trajectory"]
    reasons = {case: reason for case in cases if (reason := deviation(case))}
    alike = [case for case in cases if case not in reasons]
    chosen = [case for case in alike if quirks or not case.quirk]
    tables = len(entries) - len(cases)
    left_out = [f"{case.name}: {reason}" for case, reason in reasons.items()]
    if tables:
        left_out.append(f"{tables} tables")
    if len(chosen) < len(alike):
        left_out.append(f"{len(alike) - len(chosen)} cases marked quirk (see --quirks)")
    return Selection(chosen, left_out)


def _from_tf1(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"first_step": 0, "learning_rate_per_step": None, **entry}


def _from_returnn(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Steps count from 1; slots, extras and tolerances are listed elsewhere and in other words."""
    taken = [
        *("file", "optimizer", "case", "module", "status", "kwargs", "steps", "notes"),
        *("resource_variables", "learning_rate_per_step"),
    ]
    var, slot = entry["tolerances"]["var"], entry["tolerances"]["slot"]
    slots, extra = entry["slots"], entry["extras"]
    return {
        **{name: entry[name] for name in taken},
        "kind": "trajectory",
        "first_step": 1,
        "defaults": {},
        "apply_kwargs": {},
        "gradient_transform": None,
        "phases": None,
        "global_step_initial": 0,
        "variables": [
            {**v, "slots": dict.fromkeys(slots[v["name"]], v["shape"])} for v in entry["variables"]
        ],
        "extra": {
            "optimizer": [name for name in extra if name != "learning_rate"],
            "same_run": [name for name in extra if name == "learning_rate"],
        },
        "tolerance": {
            "var": var,
            "slots": {name: slot for names in slots.values() for name in names},
            "extra": dict.fromkeys(extra, slot),
        },
    }


def _from_addons(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """As RETURNN's, with the constructor as a recipe of nested classes."""
    if entry.get("kind") == "schedule":
        return entry
    extras = dict.fromkeys(entry["extras"])
    common = {"resource_variables": True, "learning_rate_per_step": None, "extras": extras}
    return {
        **_from_returnn({**entry, **common, "optimizer": entry["constructor"]["class_name"]}),
        "apply_kwargs": entry["apply_kwargs"],
        "unspecified_steps": entry["unspecified_steps"],
    }


def _from_modern(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """As TensorFlow Addons', of several packages; a list of betas is beta1, beta2, ..."""
    if entry.get("kind", "trajectory") != "trajectory":
        return entry
    arguments = {name: _without_betas(entry[name]) for name in ("kwargs", "defaults")}
    common = {"resource_variables": True, "learning_rate_per_step": None, **entry}
    extras = dict.fromkeys(entry["extras"])
    name = f"{entry['module']}.{entry['constructor']['class_name']}"
    return {
        **_from_returnn({**common, "optimizer": name, "extras": extras}),
        **arguments,
        "tolerance": entry["tolerances"],
        "sign_ambiguous_slots": entry.get("sign_ambiguous_slots", ()),
    }


def _without_betas(arguments: Mapping[str, Any]) -> dict[str, Any]:
    others = {name: value for name, value in arguments.items() if name != "betas"}
    betas = arguments.get("betas") or ()
    return {**others, **{f"beta{i}": beta for i, beta in enumerate(betas, start=1)}}


# By the manifest's `source`; without one it is the format of this module.
_FORMATS: dict[str | None, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    None: _from_tf1,
    "RETURNN": _from_returnn,
    "TensorFlow Addons": _from_addons,
    "modern optimizers, each from its original; see `origin` of a case": _from_modern,
}


def write(folder: Path, recorded_from: str, trajectories: list[tuple[Case, Arrays]]) -> None:
    """Writes trajectories in the format that `select` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    for case, arrays in trajectories:
        np.savez_compressed(folder / case.entry["file"], **arrays)  # type: ignore[arg-type]
    manifest = {
        "format_version": 1,
        "recorded_from": recorded_from,
        "cases": [dict(case.entry) for case, _ in trajectories],
        "checkpoints": [],
        "not_recorded": [],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
