"""The program of test_cross_backend.py: it trains on one backend and writes all weights.

    KERAS_BACKEND=torch python -m tests.workers.cross_backend_worker OUT.npz

Keys are `<Case>/<jit>/<epoch>/<weight>`. Values of `<jit>` differ between backends. Without
`--exhaustive`, the program trains the first Case of each kind of rules, and on TensorFlow with one
value of `<jit>`, chosen by a hash.
"""

import sys

import keras
import numpy as np

from tests.cases import CASES, REPRESENTATIVES
from tests.cells import EXHAUSTIVE, is_wanted, pick
from tests.helpers.stepping import BACKEND, plain_unless

JIT = {"tensorflow": (False, True), "jax": (True,), "torch": (False,)}

USUAL = CASES if EXHAUSTIVE else [case for case in CASES if case.name in REPRESENTATIVES]
TRAINED = [case for case in USUAL if is_wanted(case.name)]
VOCABULARY, WIDTH, CLASSES = 12, 4, 3
UNUSED = (7, 11)  # ids that no batch has
MASKED = 0  # ids that are masked: mask_zero


def fit():
    """Train with repeated ids, with masked ids, and with ids that never occur."""
    rng = np.random.default_rng(0)
    used = np.setdiff1d(np.arange(1, VOCABULARY), UNUSED)
    ids = rng.choice(used, size=(24, 6))
    ids[:, 4:] = np.where(rng.random((24, 2)) < 0.7, MASKED, ids[:, 4:])
    ids[:, 1] = ids[:, 0]  # repeated within every row of a batch
    targets = rng.normal(size=(24, CLASSES)).astype("float32")
    weights = [
        rng.normal(size=(VOCABULARY, WIDTH)),
        rng.normal(size=(WIDTH, CLASSES)),
        rng.normal(size=CLASSES),
    ]
    yield "start", weights[0].astype("float32")
    for case in TRAINED:
        for jit in JIT[BACKEND] if EXHAUSTIVE else [pick(JIT[BACKEND], case.name)]:
            model = keras.Sequential(
                [
                    keras.layers.Embedding(VOCABULARY, WIDTH, mask_zero=True),
                    keras.layers.GlobalAveragePooling1D(),
                    keras.layers.Dense(CLASSES),
                ]
            )
            model.build((None, 6))
            model.set_weights(weights)
            model.compile(optimizer=case.make(), loss="mse", jit_compile=jit)
            for epoch in (1, 2):
                # PyTorch compiles rules in the background, for longer than all this takes.
                with plain_unless(BACKEND != "torch"):
                    model.fit(ids, targets, batch_size=8, shuffle=False, verbose=0)
                for name, value in zip(("table", "kernel", "bias"), model.get_weights()):
                    yield f"{case.name}/{'jit' if jit else 'plain'}/{epoch}/{name}", value


if __name__ == "__main__":
    with open(sys.argv[1], "wb") as file:
        np.savez(file, **dict(fit()))
