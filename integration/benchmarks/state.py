"""Adam with slots of fewer bytes against its float32: `python -m integration.benchmarks.state`.

Steps of all contenders take turns in one process. The memory of each is measured in a process of
its own: by how much that grows at most, without weights and gradients. This is the state and what
a step needs while it runs, such as slots that are decoded. On JAX the programs that XLA has
compiled are left out; TensorFlow does not tell them apart. On a GPU it is measured on PyTorch.

Some rows are bounds. "int8 alone" is a rule that only decodes two slots and encodes them again.
"int8 by hand" is Adam in C++, with instructions for vectors of 256 bits; where a C++ compiler and
such a processor are. On PyTorch, "bfloat16 by hand" is a compiled Adam that casts its slots to
bfloat16, rounded to the nearest, which needs no arithmetic.

On PyTorch, with torchao installed (`pip install --no-deps torchao==0.18.0`), its AdamW8bit is a
contender: the same blocks of 256 values and the same table of codes.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import importlib.util
import itertools
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_tfopt
from integration.benchmarks import contenders
from integration.benchmarks.dense import rounds_of
from integration.benchmarks.results import accelerator, markdown, ratio, shown, wait, write
from integration.benchmarks.shapes import WORK, Shapes

STATUS = Path("/proc/self/status")
STOCK = "keras.optimizers.Adam"
CONTENDERS: dict[str, Callable[[], Any]] = {
    dtype: lambda dtype=dtype: keras_tfopt.Adam(
        contenders.LEARNING_RATE, epsilon=1e-7, slot_dtype=dtype
    )
    for dtype in ("float32", "bfloat16", "int8")
}
CONTENDERS[STOCK] = lambda: keras.optimizers.Adam(contenders.LEARNING_RATE)


class Recode(keras_tfopt.Rule):
    """Halve two slots, and leave the variable as it is."""

    def slots(self, like: Any) -> dict[str, Any]:
        return {"m": keras_tfopt.zeros(like), "v": keras_tfopt.zeros(like, signed=False)}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        return x, {"m": 0.5 * s.m, "v": 0.5 * s.v}


ALONE, BY_HAND, IN_CPP = "int8 alone", "bfloat16 by hand", "int8 by hand"
TORCHAO = "torchao.optim.AdamW8bit"
SHAPES = ("one of 20M", "transformer")  # of WORK


def of_torchao(shapes: Shapes) -> Callable[[], None]:
    """A step of torchao's AdamW8bit, which is compiled by torch.compile."""
    from torchao.optim import AdamW8bit

    optimizer = AdamW8bit(
        contenders.torch_parameters(shapes), lr=contenders.LEARNING_RATE, weight_decay=0.0
    )
    return lambda: (optimizer.step(), wait()) and None


def by_hand(shapes: Shapes) -> Callable[[], None]:
    """A step of Adam over one variable with slots that are cast to bfloat16."""
    import torch

    def adam(g: Any, x: Any, m: Any, v: Any, rate: Any) -> None:
        new_m, new_v = 0.9 * m.float() + 0.1 * g, 0.999 * v.float() + 0.001 * g * g
        x.sub_(rate * new_m / (new_v.sqrt() + 1e-7))
        m.copy_(new_m)
        v.copy_(new_v)

    (g,), (x,) = contenders.gradients(shapes), contenders.start(shapes)
    g, x = (keras.ops.convert_to_tensor(array.flatten()) for array in (g, x))
    slots = [torch.zeros_like(x, dtype=torch.bfloat16) for _ in "mv"]
    step, rate = torch.compile(adam), torch.tensor(contenders.LEARNING_RATE)
    return lambda: (step(g, x, *slots, rate), wait()) and None


@functools.cache
def adam_in_cpp() -> Any:
    """Return the function of `int8_by_hand.cpp`; None where that does not compile or run."""
    compiler = shutil.which("c++")
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
    if compiler is None or not {"avx2", "fma"} <= set(flags):
        return None
    options = ["-O3", "-mavx2", "-mfma", "-fopenmp", "-shared", "-fPIC"]
    source = Path(__file__).with_name("int8_by_hand.cpp")
    with tempfile.TemporaryDirectory() as folder:
        library = str(Path(folder) / "adam.so")
        if subprocess.run([compiler, *options, source, "-o", library]).returncode != 0:
            return None
        function = ctypes.CDLL(library).adam_int8
    function.argtypes = [*[ctypes.c_void_p] * 6, ctypes.c_int64, ctypes.c_float]
    function.restype = None
    return function


def in_cpp(x: np.ndarray, g: np.ndarray) -> tuple[Callable[[], None], tuple[np.ndarray, ...]]:
    """Return a step of Adam with int8 slots over flat arrays, and the codes and scales."""
    blocks = x.size // 256
    m, v = np.full(x.size, 127, "uint8"), np.zeros(x.size, "uint8")
    m_scales, v_scales = np.zeros(blocks, "float32"), np.zeros(blocks, "float32")
    arrays = (x, g, m, m_scales, v, v_scales)
    steps = itertools.count(1)

    def step() -> None:
        n = next(steps)
        rate = contenders.LEARNING_RATE * math.sqrt(1 - 0.999**n) / (1 - 0.9**n)
        adam_in_cpp()(*(array.ctypes.data for array in arrays), blocks, rate)

    return step, (m, m_scales, v, v_scales)


def parameters_of(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes)


def bytes_of_state(optimizer: Any) -> int:
    """Return the bytes of all variables of an optimizer."""
    dtypes = [np.dtype(keras.backend.standardize_dtype(v.dtype)) for v in optimizer.variables]
    pairs = zip(optimizer.variables, dtypes, strict=True)
    return sum(math.prod(v.shape) * dtype.itemsize for v, dtype in pairs)


def memory(name: str, shapes: Shapes) -> dict[str, float]:
    """Return the bytes of state per parameter, and by how many MB this process grows."""
    # Compilers keep some memory after the first step.
    contenders.of_keras(CONTENDERS[name], [(128, 64), (8,)])()
    before = alive()
    optimizer = CONTENDERS[name]()
    step = contenders.of_keras(lambda: optimizer, shapes)
    for _ in range(3):
        step()
    parameters = parameters_of(shapes)
    found = {"bytes_per_parameter": round(bytes_of_state(optimizer) / parameters, 2)}
    if not (STATUS.exists() if accelerator() is None else contenders.BACKEND == "torch"):
        return found  # nothing tells
    kept = alive() - before - 8 * parameters
    return found | {"megabytes": round((kept + passing(step)) / 1e6, 1)}


def passing(step: Callable[[], None]) -> int:
    """Return how many bytes steps use at most besides what they keep."""
    if accelerator() is not None:
        import torch

        torch.cuda.reset_peak_memory_stats()
        before, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated
    else:
        before, peak = of_process("VmRSS"), lambda: of_process("VmHWM")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts at what there is now
    for _ in range(4):
        step()
    return peak() - before


def alive() -> int:
    """Return the bytes of all that is in use; without garbage."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)  # what has been freed would count, or hide what is new
    if contenders.BACKEND == "jax":
        import jax

        return sum(array.nbytes for array in jax.live_arrays())
    if contenders.BACKEND == "torch" and accelerator() is not None:
        import torch

        return torch.cuda.memory_allocated()
    return of_process("VmRSS")


def of_process(name: str) -> int:
    """Return a size of this process in bytes; 0 where the system does not tell."""
    lines = STATUS.read_text().splitlines() if STATUS.exists() else []
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith(name + ":")), 0)


def memory_elsewhere(name: str, work: str) -> dict[str, float]:
    """Return what `memory` finds in a process of its own."""
    command = [sys.executable, "-m", "integration.benchmarks.state", "--memory", name]
    done = subprocess.run([*command, "--work", work], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(work: str, shapes: Shapes, budget: float) -> list[dict[str, Any]]:
    """Return a row for each contender."""
    steps = {name: contenders.of_keras(make, shapes) for name, make in CONTENDERS.items()}
    steps[ALONE] = contenders.of_keras(
        lambda: Recode(contenders.LEARNING_RATE, slot_dtype="int8"), shapes
    )
    if len(shapes) == 1 and parameters_of(shapes) % 256 == 0 and adam_in_cpp() is not None:
        (x,), (g,) = contenders.start(shapes), contenders.gradients(shapes)
        steps[IN_CPP], _ = in_cpp(x.flatten(), g.flatten())
    if contenders.BACKEND == "torch" and len(shapes) == 1:
        steps[BY_HAND] = by_hand(shapes)
    if contenders.BACKEND == "torch" and importlib.util.find_spec("torchao") is not None:
        steps[TORCHAO] = of_torchao(shapes)
    times = rounds_of(steps, budget)
    return [
        {
            "work": work,
            "slots": name,
            "parameters": parameters_of(shapes),
            "rounds": len(times[name]),
            "milliseconds": round(statistics.median(times[name]), 3),
            "ratio_to_float32": ratio(times, name, "float32"),
        }
        for name in steps
    ]


def table(rows: list[dict[str, Any]]) -> str:
    head = ["variables", "slots", "ms", "ms / float32 (min, max)", "bytes of state per parameter"]
    head += ["state and a step's needs, MB"]
    cells = [
        [
            r["work"],
            r["slots"],
            f"{r['milliseconds']:.2f}",
            "1" if r["slots"] == "float32" else shown(r["ratio_to_float32"]),
            f"{r['bytes_per_parameter']:.2f}" if "bytes_per_parameter" in r else "",
            f"{r['megabytes']:.0f}" if "megabytes" in r else "",
        ]
        for r in rows
    ]
    return markdown(head, cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of rounds each")
    parser.add_argument("--work", nargs="*", choices=WORK, default=SHAPES, help="which variables")
    parser.add_argument("--memory", choices=CONTENDERS, help=argparse.SUPPRESS)  # for the processes
    options = parser.parse_args()
    if options.memory:
        print(json.dumps(memory(options.memory, WORK[options.work[0]]())))
        return
    rows = []
    for work in options.work:
        for row in measure(work, WORK[work](), options.budget):
            is_ours = row["slots"] in CONTENDERS
            rows.append(row | memory_elsewhere(row["slots"], work) if is_ours else row)
            print(json.dumps(rows[-1]), flush=True)
        gc.collect()
    measured = {}
    for r in rows:
        if r["slots"] in ("bfloat16", "int8"):
            name = f"Adam, {r['slots']}, {r['work']}"
            measured[f"{name} / float32"] = r["ratio_to_float32"]["median"]
            measured[f"{name}, bytes of state per parameter"] = r["bytes_per_parameter"]
            measured |= {f"{name}, MB": r["megabytes"]} if "megabytes" in r else {}
    write(options.out / f"state_{contenders.BACKEND}.json", table(rows), rows, measured)


if __name__ == "__main__":
    main()
