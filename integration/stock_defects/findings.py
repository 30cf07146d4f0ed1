"""What a probe is, and what it finds: facts that a file in JSON can hold."""

import dataclasses
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

BACKEND = keras.backend.backend()
ROOT = Path(__file__).resolve().parents[2]
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "torch"}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an optimizer did: a number, or the first line of an error."""

    value: float | None = None
    error: str | None = None

    def is_right(self, expected: float, tolerance: float) -> bool:
        return self.error is None and abs(self.value - expected) <= tolerance

    def __str__(self) -> str:
        return self.error if self.error is not None else f"{self.value:.4g}"


@dataclasses.dataclass(frozen=True)
class Finding:
    """The facts of one probe on one backend. `stock` is None where the defect cannot occur."""

    number: str
    defect: str
    measured: str
    expected: float
    tolerance: float
    stock: Outcome | None
    ours: Outcome

    @property
    def stock_has_it(self) -> bool | None:
        if self.stock is None:
            return None
        return not self.stock.is_right(self.expected, self.tolerance)

    @property
    def ours_is_right(self) -> bool:
        return self.ours.is_right(self.expected, self.tolerance)

    def describe_stock(self) -> str:
        if self.stock is None:
            return "not applicable here"
        return f"{'has it' if self.stock_has_it else 'does not'}: {self.stock}"

    def describe_ours(self) -> str:
        return f"{'absent' if self.ours_is_right else 'HAS IT'}: {self.ours}"


@dataclasses.dataclass(frozen=True)
class Probe:
    """`seen_on`: where Keras 3.15.1 has the defect; `backends`: where there can be one."""

    number: str
    defect: str
    measured: str
    seen_on: tuple[str, ...]
    backends: tuple[str, ...]
    function: Callable[[], tuple[float, float, Outcome, Outcome]]

    def run(self) -> Finding:
        if BACKEND not in self.backends:
            nothing = Outcome(error="not run")
            return Finding(self.number, self.defect, self.measured, 0.0, 0.0, None, nothing)
        expected, tolerance, stock, ours = self.function()
        return Finding(
            self.number,
            self.defect,
            self.measured,
            float(expected),
            float(tolerance),
            stock,
            ours,
        )


PROBES: list[Probe] = []


def probe(
    number: str,
    defect: str,
    measured: str,
    seen_on: tuple[str, ...] = tuple(BACKENDS),
    backends: tuple[str, ...] = tuple(BACKENDS),
) -> Callable:
    """Registers a function that returns (expected, tolerance, stock outcome, our outcome)."""

    def add(function: Callable) -> Callable:
        PROBES.append(Probe(number, defect, measured, seen_on, backends, function))
        return function

    return add


def attempt(scenario: Callable[[Any], Any], make: Callable[[], Any]) -> Outcome:
    """Runs a scenario with a new optimizer; whatever goes wrong is a fact too."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Outcome(value=float(scenario(make())))
    except Exception as error:
        return Outcome(error=_first_line(error))


def _first_line(error: BaseException) -> str:
    while error.__context__ is not None:  # what went wrong first
        error = error.__context__
    lines = [re.sub(r"\x1b\[\d+m", "", line).strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith("Exception encountered")]
    text = f"{type(error).__name__}: {lines[0] if lines else ''}"
    return text if len(text) <= 80 else text[:77] + "..."


def as_json(findings: list[Finding]) -> str:
    return json.dumps([dataclasses.asdict(f) for f in findings], indent=1)


def from_json(text: str) -> list[Finding]:
    findings = []
    for entry in json.loads(text):
        entry["stock"] = entry["stock"] and Outcome(**entry["stock"])
        entry["ours"] = Outcome(**entry["ours"])
        findings.append(Finding(**entry))
    return findings
