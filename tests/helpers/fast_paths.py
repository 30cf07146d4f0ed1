"""Variables and optimizers for tests of compiled paths, and a short training of them."""

import keras
import numpy as np

import keras_tfopt

SHAPES = [(7, 5), (5,), (), (400, 400), (3, 2, 2), (1,), (0, 4)]  # the fourth is large for torch
OPTIMIZERS = {
    "momentum": lambda: keras_tfopt.Momentum(0.1, nesterov=True),
    "adam_decayed": lambda: keras_tfopt.Adam(0.01, weight_decay=0.1),
    "lars": lambda: keras_tfopt.LARS(1.0, eeta=0.1, skip_list=["v1"]),
}
OF_ALL_SCOPES = {
    **OPTIMIZERS,
    # Vectors and the large variable are left to NadamW, a rule of elements.
    "muon": lambda: keras_tfopt.Muon(0.01, other_variables="v3"),
    # Rules that keep a number for each variable.
    "laprop": lambda: keras_tfopt.LaProp(0.01),
    "schedule_free": lambda: keras_tfopt.ScheduleFreeAdamW(0.01, weight_decay=0.1),
    "novo_grad": lambda: keras_tfopt.NovoGrad(0.1),
    # Rules with sums and means over each variable.
    "stable_adam_w": lambda: keras_tfopt.StableAdamW(0.01, clip_threshold=0.5),
    "cautious_adan": lambda: keras_tfopt.Adan(0.01, cautious=True),
    "schedule_free_sgd": lambda: keras_tfopt.ScheduleFreeSGD(0.1),
}


def variables(dtype="float32"):
    random = np.random.default_rng(0)
    return [
        keras.Variable(random.standard_normal(s), name=f"v{i}", dtype=dtype)
        for i, s in enumerate(SHAPES)
    ]


def train(optimizer, values, steps=3, shapes=SHAPES):
    random = np.random.default_rng(1)
    for _ in range(steps):
        optimizer.apply([random.standard_normal(s).astype("float32") for s in shapes], values)
    state = [v for e in optimizer._state.entries for v in e.slots.values()]
    return [keras.ops.convert_to_numpy(keras.ops.cast(v, "float32")) for v in [*values, *state]]
