"""A worker of test_exchanges.py: it trains over workers and writes the results.

    python -m tests.workers.exchange_worker FOLDER [ENGINE]

Each of several processes is started with the environment of its backend, and writes
FOLDER/RANK.json. With an engine of replicas, one process writes the results of all replicas:

    {run: {"weights": [[...] of each replica here], "center": [...] or null, "error": traceback}}
"""

import contextlib
import functools
import json
import pathlib
import sys
import traceback

from tests.helpers import virtual_devices
from tests.helpers.stepping import BACKEND, plain_unless

STARTED = __name__ == "__main__"
ENGINE = sys.argv[2] if STARTED and len(sys.argv) > 2 else None
if ENGINE == "jax_mesh":
    virtual_devices.use(2)

import keras
import numpy as np

import keras_tfopt
import keras_tfopt.distributed as distributed
from tests.cells import EXHAUSTIVE, INSTALLED, pick
from tests.helpers import averaging
from tests.helpers.averaging import BATCH, INPUTS, MOMENTUM, PERIOD, RATE, START, STEPS
from tests.helpers.exchange_loops import LOOPS, two_tensorflow_devices
from tests.helpers.methods import METHODS, momentum

FOLDER = pathlib.Path(sys.argv[1]) if STARTED else None
SHARED = ENGINE in ("jax_mesh", "mirrored")  # replicas in one process


def stale(rank, shared):
    """Return the steps in which `in_a_loop` gives a worker a gradient that is too old."""
    # Replicas of one program cannot be of different ages.
    return (2, 5) if shared or rank == 1 else (5,)


def keras_sgd(**options):
    return keras.optimizers.SGD(RATE, MOMENTUM, **options)


# ---- What runs in every engine -------------------------------------------------------------------


class Run:
    """A model with its data, for the ranks that this process trains."""

    def __init__(self, setup):
        self.strategy, self.ranks = setup
        self.on_mesh = ENGINE == "jax_mesh"
        parts = [averaging.batches(rank) for rank in self.ranks]
        # The batch of a step has the parts of all replicas here.
        self.x, self.y = (np.concatenate(arrays, axis=1) for arrays in zip(*parts))

    def scope(self):
        return self.strategy.scope() if self.strategy else contextlib.nullcontext()

    def model(self, optimizer, layers=lambda: [dense(START)], make=keras.Sequential, **compiled):
        """A model that is compiled with `optimizer()`; both are made under the strategy."""
        with self.scope():
            model = make([keras.Input((INPUTS,)), *layers()])
            if BACKEND == "tensorflow":
                compiled.setdefault("jit_compile", False)
            model.compile(optimizer(), "mse", **compiled)
        return distributed.train_apart(model)

    def fit(self, model, steps=slice(0, STEPS), **how):
        x, y = self.x[steps].reshape(-1, INPUTS), self.y[steps].reshape(-1, 1)
        model.fit(x, y, batch_size=BATCH * len(self.ranks), shuffle=False, verbose=0, **how)
        return self.found(model)

    def found(self, model):
        """Return the weights of each replica here, and the center."""
        optimizer = model.optimizer
        weights = [self.replicas(v) for v in model.trainable_variables]
        center = None
        if "center" in getattr(optimizer, "slot_names", ()):
            parts = [optimizer.slot(v, "center") for v in model.trainable_variables]
            center = joined([self.replicas(part)[0] for part in parts])
        return {"weights": [joined(each) for each in zip(*weights)], "center": center}

    def replicas(self, variable):
        if self.strategy:
            local = self.strategy.experimental_local_results(variable.value)
            return [part.numpy() for part in local]
        if BACKEND == "jax":
            return [np.asarray(s.data, "float64") for s in variable.value.addressable_shards]
        return [keras.ops.convert_to_numpy(keras.ops.cast(variable.value, "float32"))]


def dense(start, dtype="float32"):
    kernel = keras.initializers.Constant(start)
    return keras.layers.Dense(1, kernel_initializer=kernel, dtype=dtype)


def joined(arrays):
    return np.concatenate([np.asarray(array, float).ravel() for array in arrays]).tolist()


def in_fit(run, method, inner=keras_sgd, **compiled):
    return run.fit(run.model(lambda: METHODS[method](inner()), **compiled))


def in_a_loop(run, method):
    model = run.model(lambda: METHODS[method](momentum()))
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
    step = LOOPS[BACKEND](run, model)
    for number, (x, y) in enumerate(zip(run.x, run.y)):
        if method == "DropStale" and number in stale(run.ranks[0], SHARED):
            optimizer.age = 2
        step(x, y)
    return run.found(model)


def accumulating(run, method):
    return in_fit(run, method, lambda: momentum(gradient_accumulation_steps=2))


def with_a_table(run, method):
    """The gradient has rows, of which each worker has others in each batch."""
    run.x = averaging.rows_of(run.x)
    rule = functools.partial(keras_tfopt.GradientDescent, RATE)
    initializer = keras.initializers.Constant(START)

    def layers():
        table = keras_tfopt.layers.Embedding(averaging.ROWS, 1, initializer)
        return [table, keras.layers.GlobalAveragePooling1D()]

    return run.fit(run.model(lambda: METHODS[method](rule()), layers))


LEFT_OUT_STEP = 2, 1  # the number of a step, and the worker that leaves it out


def leaving_out(run, method):
    """One worker leaves out a step, for which its data are NaN."""
    step, rank = LEFT_OUT_STEP
    if rank in run.ranks:
        start = BATCH * list(run.ranks).index(rank)
        run.x[step, start : start + BATCH] = np.nan
    return in_fit(run, method, lambda: keras_tfopt.SkipNonFinite(momentum()))


def evaluated(run, method):
    """Averages are in the model for a while; then the training goes on as if they had not been."""
    inner = functools.partial(keras_tfopt.MovingAverage, average_decay=0.5)
    model = run.model(lambda: METHODS[method](inner(momentum())))
    run.fit(model, slice(0, 2))
    with keras_tfopt.averaged(model):
        averages = run.found(model)["weights"]
    return {**run.fit(model, slice(2, STEPS)), "averages": averages}


def ending_with_averages(run, method):
    """At the end of `fit`, each worker takes its own averages."""
    model = run.model(lambda: METHODS[method](momentum(use_ema=True, ema_momentum=0.5)))
    return {"averages": run.fit(model, slice(0, 2))["weights"]}


def several_steps_at_once(run, method):
    return in_fit(run, method, steps_per_execution=2)


@keras.saving.register_keras_serializable("tests")
class LoadedAfterItsOptimizer(keras.Model):
    """Keras loads what attributes hold in the order of their names."""

    def __init__(self, layers=None):
        super().__init__()
        self.output_layer = layers[1] if layers else keras.layers.Dense(1)
        self.build((None, INPUTS))

    def build(self, shape):
        self.output_layer.build(shape)

    def call(self, x):
        return self.output_layer(x)

    def get_config(self):
        return {}


def resumed_in_another_order(run, method):
    return resumed(run, method, make=LoadedAfterItsOptimizer)


def resumed(run, method, **how):
    """All workers save after four steps, and go on from there."""
    model = run.model(lambda: METHODS[method](momentum()), **how)
    run.fit(model, slice(0, 4))
    path = FOLDER / f"{method}-{run.ranks[0]}.keras"
    model.save(path)
    with run.scope():
        model = keras.models.load_model(path)
    return run.fit(distributed.train_apart(model), slice(4, STEPS))


def from_one_worker(run, method):
    """Several workers go on from what one alone has saved after three steps of `ModelAverage`."""
    exchange = distributed.Alone()
    model = run.model(lambda: distributed.ModelAverage(momentum(), PERIOD, exchange=exchange))
    alone = averaging.batches(0)
    x, y = (part[:3].reshape(-1, part.shape[-1]) for part in alone)
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    path = FOLDER / f"alone-{run.ranks[0]}.keras"
    model.save(path)
    return run.fit(keras.models.load_model(path), slice(3, 6))


def mixed_dtypes(run, method):
    """bfloat16 weights next to float32 ones, averaged after each step."""
    model = run.model(
        lambda: distributed.ModelAverage(momentum(), 1),
        lambda: [dense(1.0, "bfloat16"), dense(1.0)],
    )
    dtypes = {keras.backend.standardize_dtype(v.dtype) for v in model.trainable_variables}
    return {**run.fit(model), "dtypes": sorted(dtypes)}


def other_models(run, method):
    """The models of the workers differ, which is an error for all."""
    units = 1 + run.ranks[0]
    model = keras.Sequential([keras.Input((INPUTS,)), keras.layers.Dense(units)])
    METHODS[method](momentum()).build(model.trainable_variables)


def frozen_alike(run, method):
    """Frozen weights differ until `start_alike`."""
    first = dense(1.0 + run.ranks[0])
    first.trainable = False
    model = run.model(lambda: METHODS[method](momentum()), lambda: [first, dense(START)])
    distributed.start_alike(model)
    return {"frozen": keras.ops.convert_to_numpy(first.kernel).ravel().tolist()}


def metrics_of_all(run, method):
    """`fit` tells the loss over the data of all replicas, whose weights stay equal."""
    model = run.model(lambda: METHODS[method](keras.optimizers.SGD(0.0)), metrics=["mae"])
    x, y = run.x.reshape(-1, INPUTS), run.y.reshape(-1, 1)
    weight = 1.0 + np.arange(len(x)) % 3
    arguments = {"batch_size": BATCH * len(run.ranks), "verbose": 0, "sample_weight": weight}
    fitted = model.fit(x, y, shuffle=False, **arguments).history
    seen = model.evaluate(x, y, return_dict=True, **arguments)
    return {"fitted": {name: values[0] for name, values in fitted.items()}, "evaluated": seen}


def compiled_by_xla(run, method):
    return in_fit(run, method, jit_compile=True)


def inside_another(run, method):
    """A wrapper around the method would sum the gradients of replicas first."""
    return run.fit(run.model(lambda: keras_tfopt.MovingAverage(METHODS[method](momentum()))))


KINDS = {
    "fit": (in_fit, METHODS),
    "loop": (in_a_loop, METHODS),
    "accumulating": (accumulating, METHODS),
    "table": (with_a_table, ["AGN", "SyncReplicas"]),
    "leaving_out": (leaving_out, ["ModelAverage"]),
    "evaluated": (evaluated, ["ModelAverage"]),
    "ending_with_averages": (ending_with_averages, ["ModelAverage"]),
    "several_steps": (several_steps_at_once, ["ModelAverage", "SyncReplicas"]),
    "resumed": (resumed, METHODS),
    "resumed_in_order": (resumed_in_another_order, ["ModelAverage"]),
    "from_one": (from_one_worker, ["ModelAverage"]),
    "mixed_dtypes": (mixed_dtypes, ["ModelAverage"]),
    "other_models": (other_models, ["AGN"]),
    "frozen_alike": (frozen_alike, ["ModelAverage"]),
    "metrics_of_all": (metrics_of_all, ["ModelAverage"]),
    "compiled_by_xla": (compiled_by_xla, ["ModelAverage", "SyncReplicas"]),
    "inside": (inside_another, ["ModelAverage"]),
}
# None: each worker is a process.
ENGINES = {
    "tensorflow": [None, "mirrored"],
    "jax": [None, "jax_mesh", "mesh_of_processes"],
    "torch": [None],
}[BACKEND]
# Keras has no `steps_per_execution` on PyTorch. On TensorFlow it is a loop, in which replicas
# cannot be merged. Replicas in one process have one model. Only TensorFlow refuses XLA.
LEFT_OUT = {
    None: {"metrics_of_all", *{"torch": ["several_steps"]}.get(BACKEND, [])},
    "mirrored": {"several_steps", "from_one", "other_models", "frozen_alike", "compiled_by_xla"},
    "jax_mesh": {"from_one", "other_models", "frozen_alike"},
    "mesh_of_processes": set(KINDS) - {"fit"},
}
# Of slow kinds, only these methods run in these engines, unless exhaustive.
FIRST = ["AGN", "SyncReplicas"]  # they sum weights and gradients, and have a center, a condition
IN_PART = {
    **{(engine, "resumed"): ["ElasticAverage", "AGN"] for engine in ("mirrored", "jax_mesh")},
    **{(engine, "fit"): FIRST for engine in ("mirrored", "jax_mesh", "mesh_of_processes")},
    (None, "several_steps"): ["ModelAverage"],
    ("jax_mesh", "several_steps"): ["SyncReplicas"],
}
if BACKEND != "tensorflow":
    for _names in LEFT_OUT.values():
        _names.add("compiled_by_xla")


def runs(engine):
    """Return (kind, method) of everything to be run in an engine."""
    left_out = LEFT_OUT[engine]
    return [
        (kind, method)
        for kind, (_, methods) in KINDS.items()
        if kind not in left_out
        for method in methods
        if EXHAUSTIVE or is_usual(engine, kind, method)
    ]


def is_usual(engine, kind, method):
    """Return whether a run is part of the usual suite.

    Of kinds that try all methods, each run takes place in one engine of one backend, which hashes
    choose; those of `fit` with the methods in FIRST do in every engine. Workers with gradients of
    different ages need processes, so `DropStale` is tried in all engines of its backend.
    """
    if (engine, kind) in IN_PART:
        return method in IN_PART[engine, kind]
    if KINDS[kind][1] is not METHODS or (kind == "fit" and method in FIRST):
        return True
    if pick(INSTALLED, kind, method) != BACKEND:
        return False
    able = [e for e in ENGINES if kind not in LEFT_OUT[e] and (e, kind) not in IN_PART]
    return method == "DropStale" or pick(able, kind, method) == engine


def connect():
    """Return the strategy, or None, and the ranks of the workers that run here."""
    if ENGINE != "mirrored":
        engine = "jax_mesh" if ENGINE == "mesh_of_processes" else ENGINE
        workers = distributed.connect(timeout=60, engine=engine)
        return None, (range(workers.size) if SHARED else [workers.rank])
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(two_tensorflow_devices())
    with strategy.scope():
        workers = distributed.connect()
    return strategy, range(workers.size)


def main():
    if BACKEND == "torch":
        import torch

        torch.set_num_threads(1)
    setup = connect()
    assert distributed.current().size == averaging.WORKERS
    results = {}
    for kind, method in runs(ENGINE):
        keras.utils.set_random_seed(0)
        # In "fit" the optimizer inside is one of Keras; "inside" exchanges after a rule of ours.
        is_compiled = BACKEND != "torch" or kind in ("fit", "inside") or EXHAUSTIVE
        try:
            with plain_unless(is_compiled):
                found = KINDS[kind][0](Run(setup), method)
        except Exception:
            found = {"error": traceback.format_exc()}
        results[f"{kind}/{method}"] = found
    (FOLDER / f"{setup[1][0]}.json").write_text(json.dumps(results))
    distributed.disconnect()


if __name__ == "__main__":
    main()
