"""The recordings of implemented optimizers, and the ways in which tests replay them."""

import keras_tfopt
from integration import originals, recordings, replay, stepping
from tests.helpers.paths import GOLDEN
from tests.helpers.stepping import BACKEND

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
# Recordings of a quirk that arises only with certain arguments; these are followed.
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
PLAIN, *OTHERS = WAYS  # PLAIN is operation by operation, OTHERS are compiled
# Replaying without compilation takes ten times as long on TensorFlow as on PyTorch, and fifty times
# on JAX, which compiles each operation alone.
PLAIN_IF_FAST = (PLAIN,) if BACKEND == "torch" else ()


def run(capsys, *arguments):
    """Run the program that replays recordings; return its exit status and lines of output."""
    status = replay.main(list(arguments))
    return status, capsys.readouterr().out.splitlines()
