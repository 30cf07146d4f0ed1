"""Recorded trajectories in graphs and sessions, as the originals were recorded."""

import contextlib
import functools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from integration import originals, through_legacy
from integration.recordings import Arrays, Case, Rows
from keras_tfopt import legacy

KINDS = {"resource": True, "reference": False}


def kinds(case: Case) -> list[str]:
    """The kinds of variables that a case was recorded on."""
    if case.entry["resource_variables"] is not True:
        return ["reference"]
    # Quirks are of one kind of variables only; everything else follows the same formulas.
    return ["resource"] if case.quirk else ["resource", "reference"]


def trajectory(case: Case, kind: str) -> Arrays:
    """Our own arrays for a recorded case, under the recorded names."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        run = _Run(case, KINDS[kind], v1, tf)
        session.run(v1.global_variables_initializer())
        ours = {name: array for name, array in case.arrays.items() if name.startswith("grad/")}
        ours |= run.state(session, "init", "slot_init", "extra_init")
        for t in case.steps:
            ours |= run.step(session, t)
            ours |= run.state(session, f"var/{t}", f"slot/{t}", f"extra/{t}")
        return ours


class _Run:
    """The graph of one case."""

    def __init__(self, case: Case, use_resource: bool, v1: Any, tf: Any):
        self.case, self.v1, self.tf = case, v1, tf
        entry, recorded = case.entry, case.arrays
        self.variables = {
            name: v1.get_variable(
                name, initializer=recorded[f"init/{name}"], use_resource=use_resource
            )
            for name in case.variables
        }
        start = np.array(entry["global_step_initial"], "int64")
        count = v1.get_variable(
            "global_step", initializer=start, trainable=False, use_resource=use_resource
        )
        self.global_step = count
        rates = list(case.learning_rates.values())
        self.rate = None
        kwargs = dict(entry["kwargs"])
        if rates:
            self.rate = v1.get_variable("rate", initializer=np.float32(rates[0]), trainable=False)
            kwargs["learning_rate"] = self.rate
        schedule = functools.partial(_schedule, count, v1)
        self.optimizer = through_legacy.make(case.optimizer, kwargs, count, schedule)
        self.placeholders: dict[str, Any] = {}
        pairs = [(self._gradient(name), variable) for name, variable in self.variables.items()]
        self.norm = None
        limit = (entry["gradient_transform"] or {}).get("clip_norm")
        if limit is not None:
            pairs, self.norm = legacy.clip_gradients_by_global_norm(pairs, limit)
        passed = entry.get("global_step_passed", True)
        how: dict[str, Any] = {"global_step": count if passed else None}
        for key, names in entry["apply_kwargs"].items():
            how[key] = [self.variables[name] for name in names]
        self.train = {}
        for phase in dict.fromkeys(entry["phases"] or ["update"]):
            with self._phase(phase):
                self.train[phase] = self.optimizer.apply_gradients(pairs, **how)

    def _phase(self, phase: str) -> Any:
        return contextlib.nullcontext() if phase == "update" else getattr(self.optimizer, phase)()

    def _gradient(self, name: str) -> Any:
        first = self.case.gradient(name, self.case.steps[0])
        if first is None:
            return None
        dtype = self.case.variables[name]["dtype"]
        place = self.v1.placeholder
        if isinstance(first, Rows):
            shape = list(self.variables[name].shape)
            indices = place("int64", [None], name=f"{name}_indices")
            values = place(dtype, [None, *shape[1:]], name=f"{name}_values")
            self.placeholders |= {f"{name}/indices": indices, f"{name}/values": values}
            return self.tf.IndexedSlices(values, indices)
        gradient = place(dtype, self.variables[name].shape, name=f"{name}_gradient")
        self.placeholders[name] = gradient
        return gradient

    def step(self, session: Any, t: int) -> Arrays:
        """Takes a step; gives what belongs to it alone."""
        fed = {}
        for name, placeholder in self.placeholders.items():
            fed[placeholder] = self.case.arrays[f"grad/{t}/{name}"]
        if t in self.case.learning_rates:
            self.rate.load(np.float32(self.case.learning_rates[t]), session)  # type: ignore[attr-defined]
        phase = self.case.entry["phases"][t] if self.case.entry["phases"] else "update"
        wanted = [self.train[phase]] + ([] if self.norm is None else [self.norm])
        _, *norm = session.run(wanted, fed)
        return {} if self.norm is None else {f"extra/{t}/global_norm": norm[0]}

    def state(self, session: Any, variable: str, slot: str, extra: str) -> Arrays:
        """All that the recording has of a moment."""
        original = originals.original(self.case.optimizer)
        wanted = {f"{variable}/{name}": v for name, v in self.variables.items()}
        for name, v in self.variables.items():
            for recorded in self.case.variables[name]["slots"]:
                here = original.slots.get(recorded, recorded).removeprefix("inner.")
                found = self.optimizer.get_slot(v, here)
                if found is not None:
                    wanted[f"{slot}/{name}/{recorded}"] = found
        wanted[f"{extra}/{original.global_step}"] = self.global_step
        for state in self.optimizer.variables():
            name = re.sub(r"(_\d+)?(:0)?$", "", state.name.split("/")[-1])
            if name in self.case.entry["extra"]["optimizer"]:
                wanted[f"{extra}/{name}"] = state
        if "t" in self.case.entry["extra"]["optimizer"]:
            wanted.setdefault(f"{extra}/t", self.global_step)  # kept where a rule reads it
        return {name: np.asarray(value) for name, value in session.run(wanted).items()}


def _schedule(global_step: Any, v1: Any, value: Mapping[str, Any]) -> Any:
    """TensorFlow's own schedule."""
    how = {key: v for key, v in value.items() if key not in ("fn", "passed_as")}
    function = getattr(v1.train, value["fn"])
    counts = {"x" if value["fn"] == "piecewise_constant" else "global_step": global_step}
    if value.get("passed_as") == "callable":
        return lambda: function(**counts, **how)
    return function(**counts, **how)
