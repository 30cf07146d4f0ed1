"""The program of test_state*.py: it trains and saves models, or continues with saved ones.

    KERAS_BACKEND=jax python -m tests.workers.state_worker train FOLDER
    KERAS_BACKEND=torch python -m tests.workers.state_worker continue FOLDER

It runs once for each backend and stage. Without `--exhaustive`, each optimizer continues on one
other backend.

`train` writes `FOLDER/<backend>_<case>.keras` (and `.weights.h5`) after some steps, and the weights
after some more. `continue` reads what the other backends have written, makes the same further
steps, and writes the weights.
"""

import itertools
import pathlib
import sys

import keras
import numpy as np

import keras_tfopt
from tests.cases import CASES
from tests.cells import EXHAUSTIVE, INSTALLED, is_wanted
from tests.helpers.compositions import IN_PROCESSES
from tests.helpers.stepping import BACKEND, to_numpy

EVERYTHING = {
    "use_ema": True,
    "ema_momentum": 0.7,
    "gradient_accumulation_steps": 2,
    "global_clipnorm": 1.0,
    "weight_decay": 0.2,
}


def schedule():
    return keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.9)


@keras_tfopt.register
def slow_tables(variable):
    return {"learning_rate_factor": schedule()} if variable.name == "embeddings" else None


LazyAdamW = keras_tfopt.extend_with_decoupled_weight_decay(keras_tfopt.LazyAdam)
# The state is saved after three steps, which is in the middle of an accumulation.
MAKERS = {
    "lazy": lambda: keras_tfopt.LazyAdam(0.05, **EVERYTHING),
    "ggt": lambda: keras_tfopt.GGT(0.01, window=4),
    "average": lambda: keras_tfopt.MovingAverage(
        keras_tfopt.LARS(schedule(), eeta=0.05, skip_list=["bias"]), 0.8
    ),
    "chain": lambda: keras_tfopt.SkipNonFinite(
        keras_tfopt.Lookahead(
            keras_tfopt.StochasticWeightAveraging(
                keras_tfopt.DecoupledWeightDecay(
                    keras_tfopt.VariableClipping(
                        keras_tfopt.Multitask(
                            keras_tfopt.LazyAdam(0.05, gradient_accumulation_steps=2)
                        ),
                        {".": []},
                        1.0,
                    ),
                    schedule(),
                ),
                0,
                2,
            ),
            2,
        )
    ),
    "decay": lambda: LazyAdamW(
        0.05, weight_decay=schedule(), decay_variables=keras_tfopt.no_vectors
    ),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(
        keras_tfopt.LazyAdam(0.05), initial_scale=64.0, dynamic_growth_steps=4
    ),
    "of_keras": lambda: keras_tfopt.LossScaleOptimizer(
        keras_tfopt.MovingAverage(keras.optimizers.Adam(0.05), 0.8), initial_scale=64.0
    ),
    "groups": lambda: keras_tfopt.MovingAverage(
        keras_tfopt.Adam(0.05, weight_decay=0.2),
        0.8,
        groups=[{"kernel$": {"beta_2": 0.9, "weight_decay": 0.1}}, slow_tables],
    ),
    **IN_PROCESSES,
}
# These continue on another backend. In exhaustive runs, every optimizer does.
TRAVELLERS = {**MAKERS, **{case.name: case.make for case in CASES if EXHAUSTIVE}}
TRAVELLERS = {name: make for name, make in TRAVELLERS.items() if is_wanted(name)}
BEFORE, AFTER = 3, 3
JIT = BACKEND == "jax"  # the others compile for seconds what makes the same steps


def make_model(optimizer):
    model = keras.Sequential(
        [
            keras.layers.Input((4,), dtype="int32"),
            keras.layers.Embedding(6, 3),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    if optimizer is not None:
        model.compile(optimizer, "mse", jit_compile=JIT)
    return model


def batches():
    rng = np.random.default_rng(1)
    for _ in range(BEFORE + AFTER):
        yield rng.integers(0, 5, size=(4, 4)), rng.normal(size=(4, 2)).astype("float32")


def train(model, steps):
    model.jit_compile = JIT  # also if it comes from another backend
    with keras_tfopt.engine.plain():
        for x, y in steps:
            model.train_on_batch(x, y)


def everything(model):
    """Return all weights of a model and of its optimizer."""
    variables = (*model.trainable_variables, *model.optimizer.variables)
    return [to_numpy(v) for v in variables]


def ways(name):
    """Return pairs of backends, which save and which continue; one pair unless exhaustive."""
    every = list(itertools.permutations(INSTALLED, 2))
    # There are more trainings than pairs, so each pair occurs.
    return every if EXHAUSTIVE else [every[list(TRAVELLERS).index(name) % len(every)]]


def main(stage, folder):
    steps = list(batches())
    if stage == "train":
        for name, make in TRAVELLERS.items():
            if BACKEND not in {source for source, _ in ways(name)}:
                continue
            model = make_model(make())
            train(model, steps[:BEFORE])
            model.save(folder / f"{BACKEND}_{name}.keras")
            model.save_weights(folder / f"{BACKEND}_{name}.weights.h5")
            train(model, steps[BEFORE:])
            np.savez(folder / f"{BACKEND}_{name}_after.npz", *everything(model))
        return
    for name, make in TRAVELLERS.items():
        for source in [source for source, target in ways(name) if target == BACKEND]:
            path = folder / f"{source}_{name}.keras"
            model = keras.saving.load_model(path)
            train(model, steps[BEFORE:])
            np.savez(folder / f"{path.stem}_on_{BACKEND}.npz", *everything(model))
            if name == "lazy":
                model = make_model(make())
                model.load_weights(path.with_suffix(".weights.h5"))  # before there is any state
                train(model, steps[BEFORE:])
                np.savez(folder / f"{path.stem}_on_{BACKEND}_h5.npz", *everything(model))


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
