"""Start processes of workers, and read the results that they write."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time
import traceback

import numpy as np

from keras_tfopt.distributed import environment
from keras_tfopt.distributed.launch import free_ports, loopback
from tests.helpers.paths import ROOT
from tests.helpers.programs import search_path
from tests.helpers.stepping import BACKEND


@dataclasses.dataclass
class Ended:
    status: int | None  # None if it was killed at the time limit
    ended: float  # the time, by time.time()
    text: str  # its output


def error_of(action):
    """Return the error that a function raises as text, or "" if it raises none."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def settings(**more):
    """Return environment variables: one thread, the CPU, JAX without x64, one backend alone."""
    hidden = ["unused"] if BACKEND == "tensorflow" else ["unused", "tensorflow"]
    path = search_path(os.environ.get("PYTHONPATH", ""), hidden=hidden)
    known = {k: v for k, v in os.environ.items() if k != "JAX_ENABLE_X64"}
    return {
        **known,
        **loopback(),
        "KERAS_BACKEND": BACKEND,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        **more,
    }


def run(module, *arguments, workers=2, limit=240, **more):
    """Run a module in some workers; return how each ended. They are killed after the limit."""
    ports = free_ports(environment.ports_needed(BACKEND, workers))
    command = [sys.executable, "-m", module, *map(str, arguments)]
    processes = []
    for rank in range(workers):
        own = environment.of_worker(BACKEND, rank, workers, ports)
        processes.append(
            subprocess.Popen(
                command,
                env=settings(**own, **more),
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    deadline, ended = time.monotonic() + limit, {}
    try:
        while len(ended) < workers and time.monotonic() < deadline:
            for rank, process in enumerate(processes):
                if rank not in ended and process.poll() is not None:
                    ended[rank] = process.returncode, time.time()
            time.sleep(0.05)
    finally:
        for process in processes:
            process.kill()
    return [
        Ended(*ended.get(rank, (None, time.time())), process.communicate()[0])
        for rank, process in enumerate(processes)
    ]


def run_alone(module, *arguments, limit=240, **more):
    """Run a module in one process that is no worker; return how it ended."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        env=settings(**more),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit,
    )
    return Ended(done.returncode, time.time(), done.stdout)


def arrays_of_workers(module, folder, fewer):
    """Run a module with 4, 1 and 2 workers, which load what those before have saved.

    With 4, only the runs named in `fewer` are made. Each worker writes `{size}_{rank}.npz` into the
    folder, with arrays `run/number`, and "facts", a text in JSON.

    Returns:
        {(size, rank): {run: {number: array}}}; the run "facts" has what the text says.
    """
    found = {}
    for size, names in ((4, fewer), (1, []), (2, [])):
        arguments = module, folder, *names
        if size > 1:
            ended = run(*arguments, workers=size, limit=600)
        else:
            ended = [run_alone(*arguments, limit=600)]
        for rank, process in enumerate(ended):
            assert process.status == 0, process.text[-4000:]
            arrays: dict = {}
            with np.load(folder / f"{size}_{rank}.npz") as file:
                for key, array in file.items():
                    if key == "facts":
                        arrays["facts"] = json.loads(str(array))
                        continue
                    name, number = key.split("/")
                    arrays.setdefault(name, {})[int(number)] = array
            found[size, rank] = arrays
    return found


def arrays_of(results, size, rank, run):
    """Return the arrays of a run, from what `arrays_of_workers` returned."""
    found = results[size, rank]
    assert run in found, found["facts"].get(run)  # the traceback of a run that failed
    return found[run]


def difference(one, other):
    """Return the largest difference of two runs, relative where numbers are above 1."""
    assert one.keys() == other.keys()
    pairs = [(one[n].astype(float), other[n].astype(float)) for n in one]
    return max(np.max(np.abs(a - b) / np.maximum(1, np.abs(b)), initial=0) for a, b in pairs)


def results_of(module, folder):
    """Run a module that writes the results of its tasks by `write_results`; return them."""
    out = folder / "out.json"
    ended = run_alone(module, out, folder, limit=600)
    assert ended.status == 0, ended.text[-4000:]
    return json.loads(out.read_text())


def found(results, name):
    """Return the result of one task, which must not have failed."""
    result = results[name]
    assert not (isinstance(result, dict) and "error" in result), result["error"]
    return result


def write_results(tasks, out):
    """Write what each task returns to a file, or the traceback if it fails."""
    results = {}
    for name, task in tasks.items():
        try:
            results[name] = task()
        except Exception:
            results[name] = {"error": traceback.format_exc()}
    pathlib.Path(out).write_text(json.dumps(results))
