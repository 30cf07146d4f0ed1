"""Memory that steps need beyond weights, gradients and state."""

import json
import pathlib

import pytest

from tests.cells import exhaustive, spread
from tests.helpers import virtual_devices, worker_processes
from tests.helpers.programs import output_of
from tests.helpers.stepping import BACKEND, needs_new_xla

# Arguments, and the bytes that may be used besides weights, gradients and state.
WORK = {
    # What XLA keeps grows with the number of variables, whatever the optimizer.
    "many": ({"cls": "Adam", "shapes": [[256, 256]] * 600}, 250e6),
    "one": ({"cls": "Adam", "shapes": [[5000, 8000]]}, 60e6),
    # Whole slots are never in float32. XLA keeps programs for codes.
    "codes": ({"cls": "Adam", "shapes": [[8000, 8000]], "slot_dtype": "int8"}, 110e6),
    # The limit is for TensorFlow, where XLA stores partial sums: each norm takes 1/16 of the
    # variable.
    "norms": ({"cls": "LARS", "shapes": [[5000, 8000]]}, 110e6),
    # Some vectors of the size of the model: momentum, direction, both flat; but never the window.
    "window": ({"cls": "GGT", "shapes": [[5000, 500], [2500000]], "window": 24}, 8 * 4 * 5e6),
}
# Small variables may need a bucket of 4 MB for gradients and one for variables. The process needs
# some more.
BUCKETS = 2 * 4 * 2**20 + 8e6


ROWS, WIDTH = 10**6, 32  # of an embedding table
TABLE = 4 * ROWS * WIDTH

pytestmark = [
    pytest.mark.slow,
    needs_new_xla,
    pytest.mark.skipif(
        not pathlib.Path("/proc/self/clear_refs").exists(), reason="read from /proc"
    ),
]


# Blocks that are freed go back to the system, and do not count as used.
FREED = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def measured(arguments):
    # Compiled as users do: where XLA takes less effort, it keeps more.
    options = {**FREED, "XLA_FLAGS": ""}
    printed = output_of("-m", "tests.workers.memory_worker", json.dumps(arguments), **options)
    return json.loads(printed.splitlines()[-1])


@pytest.mark.parametrize(
    "name", [*map(exhaustive, ("one", "codes", "norms")), *map(spread, ("many", "window"))]
)
def test_a_step_needs_no_second_copy(name):
    arguments, most = WORK[name]
    used = measured(arguments)
    assert most < used["state"]  # or a copy would go unnoticed
    assert used["kept"] + used["passing"] < most, used
    if name == "many":
        assert used["passing"] < BUCKETS, used


@pytest.mark.backends("torch", reason="XLA decides what it stores; on TensorFlow, one array")
def test_a_step_needs_no_gradient_in_float32():
    """The gradients of variables in half precision are cast where a rule uses them."""
    arguments = {"cls": "Adam", "shapes": [[5000, 8000]], "dtype": "bfloat16"}
    used = measured(arguments)
    assert used["kept"] + used["passing"] < 60e6, used


@pytest.mark.parametrize(
    ("layer", "cls", "policy"),
    [
        spread("ours", "LazyAdam", "float32"),
        spread("ours", "LazyAdam", "mixed_bfloat16"),  # Keras casts the table
        exhaustive("stock", "Adam", "float32"),  # shows that the measurement sees a table
    ],
)
def test_a_step_of_rows_needs_no_table(layer, cls, policy):
    """1,024 rows of 32 numbers are 128 KB. Compilers keep more for themselves."""
    used = measured({"layer": layer, "cls": cls, "table": [ROWS, WIDTH], "policy": policy})
    assert used["state"] > 2 * TABLE
    if layer == "ours":
        assert used["kept"] < TABLE / 3 and used["passing"] < TABLE / 16, used
    else:  # the dense gradient is as large as the table, and is measured
        assert used["kept"] + used["passing"] > TABLE / 2, used


@pytest.mark.backends("jax", "torch", reason="tables are divided on these")
@pytest.mark.parametrize(
    ("cls", "slots"),
    [
        pytest.param("LazyAdam", 2, marks=pytest.mark.spread("torch")),
        pytest.param("Ftrl", 2, marks=pytest.mark.spread("jax")),
        exhaustive("Adagrad", 1),
    ],
)
def test_a_step_of_a_divided_table_is_in_place(cls, slots):
    """On four devices of one process, or on two workers.

    What compilers keep differs between runs by up to 20 MB, so the table is a large one.
    """
    arguments = {"layer": "divided", "cls": cls, "table": [2 * ROWS, WIDTH], "policy": "float32"}
    program = "tests.workers.memory_worker", json.dumps(arguments)
    if BACKEND == "jax":
        flags = {"XLA_FLAGS": virtual_devices.flags(4)}
        ended, part = [worker_processes.run_alone(*program, **FREED, **flags)], TABLE / 2
    else:
        ended, part = worker_processes.run(*program, workers=2, **FREED), TABLE
    for process in ended:
        assert process.status == 0, process.text[-4000:]
        used = json.loads(process.text.splitlines()[-1])
        assert used["state"] == pytest.approx(slots * 2 * TABLE / len(ended), rel=1e-4)
        assert used["kept"] < part and used["passing"] < part / 4, used
