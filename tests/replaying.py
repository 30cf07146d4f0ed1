"""The recordings of implemented optimizers, and the ways in which tests replay them."""

import keras_tfopt
from integration import originals, recordings, replay, stepping
from tests.paths import GOLDEN
from tests.stepping import BACKEND

TF1, RETURNN = GOLDEN / "tf1", GOLDEN / "returnn"
ADDONS, MODERN = GOLDEN / "tfa", GOLDEN / "modern"
WITHOUT_OLD_NAMES = (ADDONS, MODERN)  # in `keras_tfopt.legacy`

IMPLEMENTED = [
    case
    for folder in (TF1, RETURNN, ADDONS, MODERN)
    for case in recordings.select(folder, quirks=True).cases
    if originals.is_implemented(case.optimizer)
]
DEVIATING = {case.name: case for case in IMPLEMENTED if originals.deviation(case)}
# Quirks of arguments, which need not be given here.
FOLLOWED = ("Muon__optax_dion_7_steps", "ScheduleFreeRAdam__weight_lr_power_zero")
CASES = {
    case.name: case
    for case in IMPLEMENTED
    if (case.name in FOLLOWED or not case.quirk) and case.name not in DEVIATING
}
FIRST_SPARSE = {
    case.optimizer: case
    for case in reversed(CASES.values())
    if case.sparse
    and issubclass(originals.original(case.optimizer).optimizer_class(), keras_tfopt.Rule)
}


WAYS = {label: way for mode in stepping.MODES for label, way in stepping.ways(mode).items()}
PLAIN, *OTHERS = WAYS  # operation by operation; compiled in one way or another
# TensorFlow takes ten times as long, and JAX fifty times: it compiles each operation alone.
PLAIN_IF_FAST = (PLAIN,) if BACKEND == "torch" else ()


def run(capsys, *arguments):
    """Run the program that replays recordings; return its exit status and the lines it prints."""
    status = replay.main(list(arguments))
    return status, capsys.readouterr().out.splitlines()
