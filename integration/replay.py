"""Replays recorded trajectories with our optimizers and compares everything after every step.

    KERAS_BACKEND=jax python -m integration.replay tests/golden/tf1 --only 'Adam_*' --mode compiled

A line per failing case says where it first leaves the recorded tolerance; the last line counts.
Cases in which ours differs on purpose are left out, each with a line that says why.
The exit status is 0 only if something passed and nothing failed.

Mode eager calls `optimizer.apply`; on TensorFlow and torch operation by operation, on TensorFlow
also as it is. Mode compiled runs `tf.function` without and with `jit_compile`; `jax.jit` of
`stateless_apply` with donated buffers; on torch, what the engine compiles. On JAX, cases in float64
run with 64-bit types switched on, all others as JAX is set up, by default without.

`--through legacy` makes the optimizers under their original names, with the arguments as recorded
and the defaults of the legacy signatures, and takes the steps by `apply_gradients`. `--through
addons` does so for recordings of TensorFlow Addons, and steps as Keras does. `--through
graph` does so on TensorFlow in a `tf.compat.v1` graph and session, on resource variables and on
reference variables.

Recordings of several workers, which are schedules of events, are for `integration.replay_workers`.
"""

import argparse
import contextlib
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

import keras_tfopt
from integration import (
    originals,
    recordings,
    stepping,
    through_addons,
    through_graph,
    through_legacy,
)
from integration.recordings import Arrays, Case, Gradient


class Outcome(NamedTuple):
    """How a case went: the reason of its failure if there is one, and how close it was."""

    failure: str | None
    error: float
    array: str
    arrays: Arrays | None


def make_variable(name: str, value: np.ndarray) -> keras.Variable:
    """A variable whose path is the recorded name: rules may look at it (skip lists)."""
    *scopes, last = name.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        variable = keras.Variable(value, dtype=str(value.dtype), name=last)
    if variable.path != name:
        raise AssertionError(f"path is {variable.path}, not {name}")
    return variable


def trajectory(
    case: Case, way: stepping.Way, native: bool = False, through: str = "keras"
) -> Arrays:
    """Our own arrays for a recorded case, under the recorded names.

    With `native`, row gradients come in the backend's own form instead of as RowGradient. Steps are
    taken `through` the optimizer itself ("keras"), or the original names ("addons", "legacy").
    """
    entry, recorded = case.entry, case.arrays
    original = originals.original(case.optimizer)
    clip_norm = _clip_norm(entry["gradient_transform"])
    order = sorted(case.variables) if original.by_name else list(case.variables)
    variables = [make_variable(name, recorded[f"init/{name}"]) for name in order]
    start = entry["global_step_initial"]
    global_step = keras.Variable(start, trainable=False, dtype="int32", name="global_step")
    if through == "addons":
        optimizer = through_addons.build(case)
    elif through == "legacy":
        rates = list(case.learning_rates.values())
        rate = keras.Variable(rates[0], trainable=False, name="rate") if rates else None
        optimizer = through_legacy.build(case.optimizer, entry, variables, global_step, rate)
    else:
        optimizer = _optimizer(case, native, global_step)
    optimizer.build(variables)
    step = way(optimizer, variables, native)

    def state(variable: str, slot: str, extra: str, gradients: list[Gradient]) -> Arrays:
        found = {f"{variable}/{v.path}": _array(v) for v in variables}
        for v in variables:
            for name, shape in case.variables[v.path]["slots"].items():
                if original.does_without(name):
                    found[f"{slot}/{v.path}/{name}"] = np.zeros(shape, str(v.dtype))
                if original.read is not None:
                    there = recorded[f"slot/{case.steps[0]}/{v.path}/{name}"].shape
                    value = original.read(optimizer, v, name, there)
                    found[f"{slot}/{v.path}/{name}"] = _array(value)
                    continue
                with contextlib.suppress(KeyError):  # comparing reports what is missing
                    here = original.slots.get(name, name).removeprefix("inner.")
                    value = _array(optimizer.slot(v, here))
                    value = np.broadcast_to(value, shape) if name in original.repeated else value
                    found[f"{slot}/{v.path}/{name}"] = value
        count = int(optimizer.iterations) + entry["global_step_initial"]
        found[f"{extra}/{original.global_step}"] = np.asarray(count)
        others = originals.extras(case.optimizer, entry["kwargs"], optimizer, gradients)
        found |= {f"{extra}/{name}": _array(value) for name, value in others.items()}
        return found

    ours = {name: array for name, array in recorded.items() if name.startswith("grad/")}
    nothing: list[Gradient] = [np.zeros_like(recorded[f"init/{name}"]) for name in order]
    ours |= state("init", "slot_init", "extra_init", nothing)
    for t in case.steps:
        if t in case.learning_rates:
            optimizer.learning_rate = case.learning_rates[t]
        if "learning_rate" in entry["extra"]["same_run"]:
            ours[f"extra/{t}/learning_rate"] = _array(optimizer.learning_rate)
        gradients = [case.gradient(name, t) for name in order]
        if clip_norm is not None:
            gradients, ours[f"extra/{t}/global_norm"] = _clipped(gradients, clip_norm)
        with _phase(optimizer, entry["phases"][t] if entry["phases"] else "update"):
            step(gradients)
        if through != "legacy":
            global_step.assign_add(1)
        ours |= state(f"var/{t}", f"slot/{t}", f"extra/{t}", gradients)
    return ours


def _optimizer(case: Case, native: bool, global_step: Any) -> Any:
    """Ours for a recorded case, with the arguments of the original."""
    entry, original = case.entry, originals.original(case.optimizer)
    # Arguments that were not given are passed too: a default of ours must not decide here.
    defaults = {**original.defaults, **original.other_defaults, **entry["defaults"]}
    arguments = {**defaults, **entry["kwargs"]}
    arguments |= originals.selection(case.optimizer, entry["apply_kwargs"])
    arguments |= _row_variables(case, native)
    return originals.build(case.optimizer, arguments, global_step)


def _row_variables(case: Case, native: bool) -> dict[str, Any]:
    """The argument that says which variables are updated by rows, without a RowGradient."""
    names = [v["name"] for v in case.entry["variables"] if v["gradient"] == "sparse"]
    return {"row_variables": [f"^{re.escape(name)}$" for name in names]} if native else {}


def _clip_norm(transform: Any) -> float | None:
    """The limit if gradients were clipped by their common norm, None if nothing was done."""
    if transform is None:
        return None
    if transform.get("fn") != "clip_gradients_by_global_norm":
        raise originals.NotReplayable(f"gradient_transform is not handled: {transform}")
    return transform["clip_norm"]


def _clipped(gradients: Sequence[Gradient], clip_norm: float) -> tuple[list[Gradient], np.ndarray]:
    if any(isinstance(g, recordings.Rows) for g in gradients):
        raise originals.NotReplayable("gradient_transform is not handled for row gradients")
    clipped, norm = keras_tfopt.clip_gradients_by_global_norm(gradients, clip_norm)
    return [None if g is None else _array(g) for g in clipped], _array(norm)


def _phase(optimizer: Any, phase: str) -> contextlib.AbstractContextManager[Any]:
    """What a step is made under, named like the method of the optimizer; "update" is nothing."""
    if phase == "update":
        return contextlib.nullcontext()
    if not hasattr(optimizer, phase):
        raise originals.NotReplayable(f"phase {phase} is not handled")
    return getattr(optimizer, phase)()


def _array(value: Any) -> np.ndarray:
    # A copy: on CPU a backend may hand out its own memory, which the next step overwrites.
    if isinstance(value, keras.Variable) or keras.ops.is_tensor(value):
        value = keras.ops.convert_to_numpy(value)
    return np.array(value)


def replay(case: Case, ways: Mapping[str, stepping.Way | None], through: str = "keras") -> Outcome:
    """Replays a case in these ways; reports what fails first, or the least accurate.

    Ways through a graph are kinds of variables, and None.
    """
    worst = Outcome(None, -1.0, "", None)
    for label, way in ways.items():
        which = f" ({label})" if len(ways) > 1 else ""
        try:
            with stepping.precision(case.float64):
                if through == "graph":
                    ours = through_graph.trajectory(case, label)
                else:
                    ours = trajectory(case, way, through=through)
            factor = originals.tolerance_factor(case, label)
            comparison = case.compare(ours, factor)
        except Exception as error:  # whatever goes wrong with a case, the others are still replayed
            return Outcome(_in_words(error) + which, np.inf, "", None)
        if comparison.difference is not None:
            failure = str(comparison.difference) + which
            return Outcome(failure, comparison.error, comparison.array, ours)
        if comparison.error > worst.error:
            worst = Outcome(None, comparison.error, comparison.array, ours)
    return worst


def _in_words(error: Exception) -> str:
    if isinstance(error, (originals.NotReplayable, recordings.BadRecording)):
        return str(error)
    lines = str(error).strip().splitlines() or [""]
    # What is raised while tf.function traces comes with a traceback before it.
    text = lines[-1].strip() if lines[0].startswith("in user code") else lines[0]
    return f"{type(error).__name__}: {text[:300]}"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    backend = keras.backend.backend()
    try:
        selection = recordings.select(
            options.folder, options.only, options.quirks, originals.deviation
        )
    except OSError as error:
        print(f"no recordings: {error}")
        return 1
    if options.dump and options.dump.resolve() == options.folder.resolve():
        print("--dump would overwrite the recordings")
        return 1
    # Keras warns of gradients that are None; recordings have them on purpose.
    warnings.filterwarnings("ignore", "Gradients do not exist for variables")
    outcomes = {}
    for case in selection.cases:
        if options.through == "graph":
            ways = dict.fromkeys(through_graph.kinds(case))
        else:
            ways = stepping.ways(options.mode)
        outcome = replay(case, ways, options.through)
        outcomes[case] = outcome
        if outcome.failure:
            print(f"FAILED {case.name}: {outcome.failure}", flush=True)
    passed = {case: o for case, o in outcomes.items() if not o.failure}

    if options.dump:
        source = f"keras_tfopt {keras_tfopt.__version__} on {backend}, {options.mode}"
        ours = [(case, o.arrays) for case, o in outcomes.items() if o.arrays is not None]
        recordings.write(options.dump, source, ours)
        print(f"wrote {len(ours)} trajectories to {options.dump}")
    for reason in selection.left_out:
        print(f"not replayed: {reason}")
    if not selection.cases:
        print(f"nothing to replay in {options.folder} matches {options.only}")
    if passed:
        case, closest = max(passed.items(), key=lambda item: item[1].error)
        where = f"{case.name}, {closest.array}"
        print(f"{backend}, {options.mode}: at most {closest.error:.2g} x tolerance ({where})")
    failed = len(outcomes) - len(passed)
    print(f"{len(passed)} passed, {failed} failed")
    return 0 if passed and not failed else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m integration.replay", description="Replay recorded trajectories."
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder with manifest.json")
    parser.add_argument("--mode", choices=stepping.MODES, default="eager")
    parser.add_argument(
        "--through", choices=("keras", "addons", "legacy", "graph"), default="keras"
    )
    parser.add_argument("--only", default="*", metavar="PATTERN", help="e.g. 'Adam_*'")
    parser.add_argument("--quirks", action="store_true", help="also cases marked quirk")
    parser.add_argument("--dump", type=Path, metavar="OUT", help="write our trajectories there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
