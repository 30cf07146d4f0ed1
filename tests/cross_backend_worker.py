"""What test_cross_backend.py runs once per backend: trains, and writes all weights to a file.

    KERAS_BACKEND=torch python -m tests.cross_backend_worker OUT.npz

Without `--exhaustive` these are the main variants, on TensorFlow each in one way, by a hash; and
prescribed gradients are for the first Case of each kind, as test_contract.py compares each backend
with the references.

Keys are `steps/<Case>-<variant>/<mode>/<step>/<array>` for prescribed gradients, and
`fit/<Case>/<jit>/<epoch>/<weight>` for ordinary training. `<mode>` and `<jit>` differ between
backends: every one of them has to agree with every one of the others.
"""

import sys

import keras
import numpy as np

from tests.cases import CASES, REPRESENTATIVES, gradients, initial
from tests.cells import EXHAUSTIVE, pick
from tests.stepping import BACKEND, Runner

# eager TensorFlow would only repeat what its compiled mode says, slower
STEP_MODES = {"tensorflow": ("compiled", "xla"), "jax": ("compiled",), "torch": ("compiled",)}
JIT = {"tensorflow": (False, True), "jax": (True,), "torch": (False,)}

VOCABULARY, WIDTH, CLASSES = 12, 4, 3
UNUSED = (7, 11)  # ids that no batch has
MASKED = 0  # ids that are masked: mask_zero


def prescribed():
    """Cases and variants that get prescribed gradients."""
    for case in CASES:
        if EXHAUSTIVE:
            yield from ((case, variant) for variant in case.variants)
        elif case.name in REPRESENTATIVES:
            yield case, case.main


def some(options, *words):
    return options if EXHAUSTIVE else (pick(options, *words),)


def steps():
    """Prescribed gradients: dense, rows, repeated rows, None; the variables after every step."""
    for case, variant in prescribed():
        for mode in some(STEP_MODES[BACKEND], "steps", case.name):
            runner = Runner(case.make(variant), initial(), mode)
            for count, grads in enumerate(gradients(), start=1):
                runner.step(grads)
                prefix = f"steps/{case.name}-{variant}/{mode}/{count}"
                for path, value in runner.values.items():
                    yield f"{prefix}/{path}", value


def fit():
    """The same `fit` on the same weights: repeated ids, masked ids, ids that never come."""
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
    yield "fit_start", weights[0].astype("float32")
    for case in CASES:
        for jit in some(JIT[BACKEND], "fit", case.name):
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
                model.fit(ids, targets, batch_size=8, shuffle=False, verbose=0)
                for name, value in zip(("table", "kernel", "bias"), model.get_weights()):
                    yield f"fit/{case.name}/{'jit' if jit else 'plain'}/{epoch}/{name}", value


if __name__ == "__main__":
    with open(sys.argv[1], "wb") as file:
        np.savez(file, **dict([*steps(), *fit()]))
