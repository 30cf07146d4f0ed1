"""What test_distribution.py runs once per backend: trains on two devices and on one.

    KERAS_BACKEND=jax python -m tests.distribution_worker OUT.npz

A run is a way to spread the work, a way to make steps, and an optimizer of `RUNS`. It is written as
arrays `<spread>/<steps>/<run>/<array>`: the model's weights and the optimizer's state, which have
to equal those of `one/<steps>/<run>`, and `fact/...`, which says how the work was really spread.
A run that fails is written as `error`, its traceback, so that one failure does not hide the others.

Devices are made before a backend starts, so none of this can happen in the test process. On
PyTorch a device is a process: this one, and a second that it starts.
"""

import contextlib
import functools
import os
import subprocess
import sys
import traceback

DEVICES = 2
if __name__ == "__main__":
    _flag = f"--xla_force_host_platform_device_count={DEVICES}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_flag}"

import keras
import numpy as np
from keras import ops

import keras_tfopt
from tests.cases import CASES
from tests.cells import EXHAUSTIVE, INSTALLED, pick
from tests.compositions import IN_PROCESSES
from tests.stepping import BACKEND, to_numpy

VOCABULARY, WIDTH, LENGTH, CLASSES = 12, 4, 6, 2
UNUSED = (7, 11)  # ids that no batch has
MASKED = 0
BATCH, BATCHES, EPOCHS = 8, 4, 2


# ---- Rules and wrappers for what no public optimizer does ----------------------------------------


class MoveRows(keras_tfopt.Rule):
    """Moments decay in all rows, the variable moves in touched rows."""

    sparse = "move_rows"

    def __init__(self, learning_rate=0.05, beta=0.8, **base):
        super().__init__(learning_rate, **base)
        self.beta = beta

    def slots(self, like):
        return {"m": keras_tfopt.zeros(like)}

    def update(self, g, x, s, t):
        m = self.beta * s.m + (1 - self.beta) * g
        return x - t.lr * m, {"m": m}


class Lopsided(keras_tfopt.Rule):
    """Slots of other shapes than the variable's: one number, and one number a row."""

    scope = "variable"
    sparse = "move_rows"

    def __init__(self, learning_rate=0.5, **base):
        super().__init__(learning_rate, **base)

    def slots(self, like):
        slots = {"size": keras_tfopt.Slot(())}
        if len(like.shape) == 2:
            slots["sizes"] = keras_tfopt.Slot(like.shape[:1], 1.0)
        return slots

    def update(self, g, x, s, t):
        size = 0.9 * s.size + ops.sqrt(ops.sum(ops.square(g)))
        new = {"size": size}
        if len(g.shape) == 2:
            new["sizes"] = s.sizes + ops.sum(ops.square(g), axis=1)
            g = g / ops.expand_dims(ops.sqrt(new["sizes"]), 1)
        return x - t.lr * g / (1 + size), new


class Picky(keras_tfopt.Wrapper):
    """Hooks to which the sum of the gradients is another thing than the gradients of the parts."""

    def slots(self, like):
        return {"largest": keras_tfopt.zeros(like)}

    def before(self, g, x, s, t):
        return ops.tanh(2 * g), 0.99 * x

    def accept(self, g, x, t):
        return ops.mean(ops.abs(g)) > 0.1  # half of the steps of the table

    def after(self, g, x, s, t):
        return x, {"largest": ops.maximum(s.largest, ops.abs(g))}


class Normalized(keras_tfopt.Wrapper):
    """The same with the hooks that see all variables at once."""

    def before_step(self, grads, variables):
        values = [g.values if isinstance(g, keras_tfopt.RowGradient) else g for g in grads]
        total = sum(ops.sum(ops.square(v)) for v in values)
        return [g / (1 + ops.sqrt(total)) for g in grads]

    def after_step(self, variables):
        values = [ops.convert_to_tensor(v) for v in variables]
        total = sum(ops.sum(ops.square(x)) for x in values)
        return [x * (1 - 1e-3 * ops.sqrt(total)) for x in values]


# ---- Runs ----------------------------------------------------------------------------------------


def representatives():
    """A public optimizer of each scope and sparse mode there is: the first Case of it."""
    first = {}
    for case in CASES:
        if issubclass(case.cls, keras_tfopt.Rule):
            first.setdefault((case.cls.scope, case.cls.sparse), case)
    return {case.name: case.make for case in first.values()}


def _ggt(**base):
    return keras_tfopt.GGT(0.05, window=2, svd_epsilon=0.05, sigma_epsilon=0.5, **base)


def _lazy(**base):
    return keras_tfopt.LazyAdam(0.05, **base)


PLAIN = {
    **representatives(),
    "LazyAdam": _lazy,
    "MoveRows": MoveRows,
    "Lopsided": Lopsided,
}
EMA = {"use_ema": True, "ema_momentum": 0.7}
OPTIONS = {
    "unclipped": lambda: keras_tfopt.Momentum(0.5),
    "clipnorm": lambda: keras_tfopt.Momentum(0.5, clipnorm=0.02),
    "clipvalue": lambda: keras_tfopt.Momentum(0.5, clipvalue=0.01),
    "global_clipnorm": lambda: keras_tfopt.Momentum(0.5, global_clipnorm=0.05),
    "weight_decay": lambda: _lazy(weight_decay=0.1),
    "loss_scale_factor": lambda: keras_tfopt.Momentum(0.1, loss_scale_factor=1024.0),
    "accumulation": lambda: _lazy(gradient_accumulation_steps=2),
    "accumulation_dense": lambda: keras_tfopt.Adam(
        0.05, gradient_accumulation_steps=3, global_clipnorm=0.05
    ),
    "accumulation_model": lambda: _ggt(gradient_accumulation_steps=2),
    "ema": lambda: _lazy(**EMA),
    "ema_overwrite": lambda: keras_tfopt.Momentum(0.1, ema_overwrite_frequency=2, **EMA),
    "ema_accumulation": lambda: _lazy(
        ema_overwrite_frequency=2, gradient_accumulation_steps=2, **EMA
    ),
    "constraint": lambda: keras_tfopt.Momentum(0.5),  # see `make_model`
    "MovingAverage": lambda: keras_tfopt.MovingAverage(_lazy(), 0.7),
    "MovingAverage_accumulation": lambda: keras_tfopt.MovingAverage(
        _lazy(gradient_accumulation_steps=2), 0.7, num_updates=True
    ),
    "MovingAverage_model": lambda: keras_tfopt.MovingAverage(_ggt(), 0.7),
    "MovingAverage_keras": lambda: keras_tfopt.MovingAverage(keras.optimizers.SGD(0.1), 0.7),
    "VariableClipping": lambda: keras_tfopt.VariableClipping(
        _lazy(), {"table": [1], "kernel": [0]}, 1.0
    ),
    "DecoupledWeightDecay": lambda: keras_tfopt.DecoupledWeightDecay(_lazy(), 0.02),
    "DecoupledWeightDecay_keras": lambda: keras_tfopt.DecoupledWeightDecay(
        keras.optimizers.Adam(0.05), 0.02, keras_tfopt.no_vectors
    ),
    "Multitask": lambda: keras_tfopt.Multitask(keras_tfopt.LARS(0.05)),
    "Lookahead": lambda: keras_tfopt.Lookahead(_lazy(), 2),
    "StochasticWeightAveraging": lambda: keras_tfopt.StochasticWeightAveraging(
        keras.optimizers.Adam(0.05), 1, 2
    ),
    "SkipNonFinite": lambda: keras_tfopt.SkipNonFinite(_lazy()),
    "SkipNonFinite_chain": lambda: keras_tfopt.SkipNonFinite(
        keras_tfopt.Lookahead(
            keras_tfopt.DecoupledWeightDecay(_lazy(gradient_accumulation_steps=2), 0.02), 2
        )
    ),
    "Picky": lambda: Picky(_lazy()),
    "Picky_keras": lambda: Picky(keras.optimizers.Adam(0.05)),
    "Normalized": lambda: Normalized(Picky(keras_tfopt.MovingAverage(keras_tfopt.Adam(0.05)))),
    "LossScale": lambda: keras_tfopt.LossScaleOptimizer(_lazy(), initial_scale=1024.0),
    "LossScale_skips": lambda: keras_tfopt.LossScaleOptimizer(
        keras.optimizers.SGD(0.1), initial_scale=3e38, dynamic_growth_steps=2
    ),
    "LossScale_keras": lambda: keras.optimizers.LossScaleOptimizer(_lazy(), initial_scale=1024.0),
}
RUNS = {**PLAIN, **OPTIONS, **IN_PROCESSES}
CONTROL = "LazyAdam"  # is trained on half of each batch, too: what one device would do alone
SOME = ("global_clipnorm", "accumulation", "accumulation_model", "ema_overwrite", "Picky")
CLIPPED = ("clipnorm", "clipvalue", "global_clipnorm")
EAGER = ("LazyAdam", "MoveRows", "accumulation_model", "ema_overwrite", "Picky")
EVERYWHERE = {CONTROL, "unclipped", *CLIPPED}
# With `keras_tfopt.layers.Embedding` for a layer
LOOKUPS = (
    *PLAIN,
    "clipvalue",
    "global_clipnorm",
    "weight_decay",
    "accumulation",
    "ema_overwrite",
    "MovingAverage",
    "LossScale",
    "LossScale_keras",
)

# {spread: {steps: runs}} of this backend
SPREADS = {
    "tensorflow": {
        "mirrored": {
            "fit": RUNS,
            "lookups": LOOKUPS,
            "loop": PLAIN,
            "rows": PLAIN,
            "eager": EAGER,
            "direct": EAGER,
        },
        # Collectives of CPUs fail in loops and conditions of a graph, also for the optimizers of
        # Keras: this strategy copies instead.
        "copying": {"several": EAGER, "resumed": EAGER},
    },
    "jax": {
        "data_parallel": {"fit": RUNS, "lookups": LOOKUPS, "rows": PLAIN},
        "table_rows": {
            "fit": (*PLAIN, *SOME),
            "lookups": LOOKUPS,
            "rows": PLAIN,
            "eager": EAGER[:2],
        },
        "table_columns": {"fit": PLAIN, "lookups": LOOKUPS},
        "wide_patterns": {"fit": PLAIN},
    },
    "torch": {
        "processes": {
            "loop": RUNS,
            # DistributedDataParallel exchanges dense gradients, which do not tell that a masked row
            # was looked up, and has to decay.
            "lookups": [run for run in LOOKUPS if run != "weight_decay"],
            "sparse": PLAIN,
            "rows": PLAIN,
        }
    },
}[BACKEND]


def is_usual(spread, steps, run):
    """Whether a run belongs to what is not exhaustive: all runs, but not all in every way.

    The first way there is for one backend, by a hash, and for some runs on all. What every backend
    has besides is for one of them, too, and of several spreads of the same one is.
    """
    first = next(iter(SPREADS))
    if EXHAUSTIVE:
        return True
    if spread == first and steps == next(iter(SPREADS[first])):
        return run in EVERYWHERE or pick(INSTALLED, run) == BACKEND
    if steps in ("lookups", "rows") and pick(INSTALLED, steps, run) != BACKEND:
        return False
    alike = [s for s, modes in SPREADS.items() if run in modes.get(steps, ())]
    return pick(alike, steps, run) == spread


def every_run():
    """(spread, steps, run): what is spread, after the same on one device."""
    spread_runs = [
        (spread, steps, run)
        for spread, modes in SPREADS.items()
        for steps, runs in modes.items()
        for run in runs
        if is_usual(spread, steps, run)
    ]
    yield from dict.fromkeys(("one", steps, run) for _, steps, run in spread_runs)
    yield from spread_runs


# ---- The job -------------------------------------------------------------------------------------


def data(parts=1):
    """Ids that repeat in a sample, that are in one half of a batch only, that are masked.

    Of each batch only the first of some parts, if asked: what one device would see of it.
    """
    rng = np.random.default_rng(0)
    used = np.setdiff1d(np.arange(1, VOCABULARY), UNUSED)
    ids = rng.choice(used, size=(BATCH * BATCHES, LENGTH))
    ids[:, 4:] = np.where(rng.random((len(ids), 2)) < 0.7, MASKED, ids[:, 4:])
    ids[:, 1] = ids[:, 0]
    targets = rng.normal(size=(len(ids), CLASSES)).astype("float32")
    kept = np.arange(len(ids)) % BATCH < BATCH // parts
    return ids[kept].astype("int32"), targets[kept]


def batches():
    ids, targets = (np.split(array, BATCHES) for array in data())
    for _ in range(EPOCHS):
        yield from zip(ids, targets, strict=True)


def named_rows():
    """Values and indices: rows in both halves, in one only, repeated, and named with zeros."""
    rng = np.random.default_rng(2)
    for _ in range(5):
        ids = np.array([1, 3, 3, 5, 1, 6, 8, 5], "int32") + rng.integers(0, 3, dtype="int32")
        values = rng.normal(size=(len(ids), WIDTH)).astype("float32")
        values[[3, 7]] = 0.0
        yield values, ids


def start():
    rng = np.random.default_rng(1)
    shapes = (VOCABULARY, WIDTH), (WIDTH, CLASSES), (CLASSES,)
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


def make_model(run, embedding=keras.layers.Embedding):
    constraint = keras.constraints.MaxNorm(1.0) if run == "constraint" else None
    model = keras.Sequential(
        [
            embedding(
                VOCABULARY, WIDTH, mask_zero=True, embeddings_constraint=constraint, name="table"
            ),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(CLASSES, kernel_constraint=constraint, name="dense"),
        ]
    )
    model.build((None, LENGTH))
    model.set_weights(start())
    return model


def fit(run, parts=1, embedding=keras.layers.Embedding, **compile_arguments):
    model, optimizer = make_model(run, embedding), RUNS[run]()
    model.compile(optimizer=optimizer, loss="mse", **compile_arguments)
    ids, targets = data(parts)
    model.fit(ids, targets, batch_size=BATCH // parts, epochs=EPOCHS, shuffle=False, verbose=0)
    return model, optimizer


class Results(dict):
    def record(self, spread, steps, run, train, facts=lambda model, optimizer: {}):
        """Keeps what came of `train(run)`, which returns model and optimizer."""
        try:
            model, optimizer = train(run)
            found = dict(zip(("table", "kernel", "bias"), model.get_weights(), strict=True))
            for number, variable in enumerate(optimizer.variables):
                role = variable.name.rsplit("_", 1)[-1]  # what is before it counts models
                found[f"state/{number} {role}"] = to_numpy(variable)
            for name, fact in facts(model, optimizer).items():
                found[f"fact/{name}"] = np.asarray(fact)
        except Exception:
            found = {"error": np.asarray(traceback.format_exc())}
        self.update({f"{spread}/{steps}/{run}/{name}": value for name, value in found.items()})


# ---- TensorFlow ----------------------------------------------------------------------------------


def on_tensorflow(results):
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration()] * DEVICES
    tf.config.set_logical_device_configuration(cpu, logical)
    devices = [f"CPU:{number}" for number in range(DEVICES)]
    copying = tf.distribute.ReductionToOneDevice()
    strategies = {
        "one": tf.distribute.get_strategy(),
        "mirrored": tf.distribute.MirroredStrategy(devices),
        "copying": tf.distribute.MirroredStrategy(devices, cross_device_ops=copying),
    }

    def loop(run, strategy, compiled=True, resumed=False):
        """A training loop of one's own; perhaps one that goes on from saved state."""
        with strategy.scope():
            model, optimizer = make_model(run), RUNS[run]()
        variables = model.trainable_variables
        if resumed:
            load(saved(run), optimizer)
        else:
            optimizer.build(variables)

        def step(ids, targets):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(model(ids) - targets)) / (BATCH * CLASSES)
            optimizer.apply(tape.gradient(loss, variables), variables)

        def distributed_step(ids, targets):
            strategy.run(step, args=(ids, targets))

        if compiled:
            distributed_step = tf.function(distributed_step)
        for ids, targets in batches():
            distributed_step(*split(strategy, ids, targets))
        return model, optimizer

    def rows(run, strategy):
        """Row gradients that users make."""
        with strategy.scope():
            model, optimizer = make_model(run), RUNS[run]()
        table = model.trainable_variables[0]
        optimizer.build([table])

        def step(values, ids):
            gradient = keras_tfopt.RowGradient(values, ids, tuple(table.shape))
            optimizer.apply([gradient], [table])

        @tf.function
        def distributed_step(values, ids):
            strategy.run(step, args=(values, ids))

        for values, ids in named_rows():
            distributed_step(*split(strategy, values, ids))
        return model, optimizer

    def direct(run, strategy):
        """Steps outside of `strategy.run`: with the strategy in scope, and then without."""
        with strategy.scope():
            model, optimizer = make_model(run), RUNS[run]()
        table, *others = model.trainable_variables
        optimizer.build([table, *others])
        for count, (values, ids) in enumerate(named_rows()):
            grads = [tf.fill(v.shape, 0.1 * count) for v in others]
            grads.insert(0, tf.IndexedSlices(values, ids, tf.constant(table.shape)))
            with strategy.scope() if count < 2 else contextlib.nullcontext():
                optimizer.apply(grads, [table, *others])
        return model, optimizer

    def split(strategy, *arrays):
        """A part of each array for each replica."""
        parts = [np.split(array, strategy.num_replicas_in_sync) for array in arrays]
        return [
            strategy.experimental_distribute_values_from_function(
                lambda context, part=part: tf.constant(part[context.replica_id_in_sync_group])
            )
            for part in parts
        ]

    @functools.cache
    def saved(run):
        return direct(run, strategies["one"])[1]

    def load(optimizer, other):
        """State of one optimizer into another."""
        store = {}
        optimizer.save_own_variables(store)
        other.load_own_variables(store)
        if hasattr(optimizer, "inner_optimizer"):
            load(optimizer.inner_optimizer, other.inner_optimizer)

    def fit_in(run, strategy, **arguments):
        with strategy.scope():
            return fit(run, **arguments)

    ways = {
        "fit": functools.partial(fit_in, jit_compile=False),
        "lookups": functools.partial(
            fit_in, jit_compile=False, embedding=keras_tfopt.layers.Embedding
        ),
        "several": functools.partial(fit_in, jit_compile=False, steps_per_execution=2),
        "loop": loop,
        "eager": functools.partial(loop, compiled=False),
        "resumed": functools.partial(loop, resumed=True),
        "rows": rows,
        "direct": direct,
    }

    def facts(model, optimizer):
        """Whether all variables are on both devices, with the same value."""
        variables = [*model.trainable_variables, *optimizer.variables]
        copies = [strategy.experimental_local_results(v.value) for v in variables]
        return {
            "replicas": strategy.num_replicas_in_sync,
            "devices": min(len({copy.device for copy in each}) for each in copies),
            "in_sync": all(
                np.array_equal(each[0].numpy(), copy.numpy()) for each in copies for copy in each
            ),
        }

    for spread, steps, run in every_run():
        strategy = strategies[spread]
        train = functools.partial(ways[steps], strategy=strategy)
        results.record(spread, steps, run, train, facts)
    half = functools.partial(fit, parts=DEVICES, jit_compile=False)
    results.record("half", "fit", CONTROL, half)

    def strayed(run):
        """An optimizer from outside of the strategy in which it is to work."""
        optimizer = RUNS[run]()
        with strategies["mirrored"].scope():
            model = make_model(run)
            optimizer.build(model.trainable_variables)
        return model, optimizer

    results.record("mirrored", "strayed", "LazyAdam", strayed)

    # Not for us to mend: what Keras's own optimizers do is recorded beside it.
    RUNS["keras"] = lambda: keras.optimizers.Adam(0.05)
    for run in ("LazyAdam", "keras"):
        jit = functools.partial(fit_in, strategy=strategies["mirrored"], jit_compile=True)
        results.record("mirrored", "jit", run, jit)


# ---- JAX -----------------------------------------------------------------------------------------


def on_jax(results):
    import jax

    from keras_tfopt.execution import jax as engine

    engine.PIECE = 4  # so that these small tables are updated in several pieces
    devices = keras.distribution.list_devices()
    assert len(devices) == DEVICES

    def sharded(**layouts):
        mesh = keras.distribution.DeviceMesh((1, DEVICES), ("batch", "model"), devices)
        layout_map = keras.distribution.LayoutMap(mesh)
        for pattern, layout in layouts.items():
            layout_map[pattern] = layout
        return keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="batch")

    by_rows, by_columns = ("model", None), (None, "model")
    distributions = {
        "one": None,
        "data_parallel": keras.distribution.DataParallel(devices=devices),
        "table_rows": sharded(**{".*table/embeddings": by_rows, ".*dense/kernel": by_rows}),
        "table_columns": sharded(
            **{".*table/embeddings": by_columns, ".*dense/kernel": by_columns}
        ),
        # Written with weights in mind, but the names of slots match as well, whatever their shape.
        "wide_patterns": sharded(**{".*table.*": by_rows, ".*kernel.*": by_columns}),
    }

    def rows(run):
        """Row gradients that users make."""
        model, optimizer = make_model(run), RUNS[run]()
        table = model.trainable_variables[0]
        optimizer.build([table])

        @jax.jit
        def step(state, values, ids, weights):
            gradient = keras_tfopt.RowGradient(values, ids, tuple(table.shape))
            return optimizer.stateless_apply(state, [gradient], weights)

        distribution = keras.distribution.distribution()
        for values, ids in named_rows():
            if distribution is not None:
                values, ids = (
                    keras.distribution.distribute_tensor(x, distribution.get_data_layout(x.shape))
                    for x in (values, ids)
                )
            state = [v.value for v in optimizer.variables]
            [new], state = step(state, values, ids, [table.value])
            table.assign(new)
            for variable, value in zip(optimizer.variables, state, strict=True):
                variable.assign(value)
        return model, optimizer

    ways = {
        "fit": functools.partial(fit, jit_compile=True),
        "lookups": functools.partial(fit, jit_compile=True, embedding=keras_tfopt.layers.Embedding),
        "eager": functools.partial(fit, jit_compile=False),
        "rows": rows,
    }

    def batch_shard():
        distribution, batch = keras.distribution.distribution(), np.zeros((BATCH, LENGTH))
        if distribution is not None:
            layout = distribution.get_data_layout(batch.shape)
            batch = keras.distribution.distribute_tensor(batch, layout).addressable_shards[0].data
        return batch.shape

    def facts(model, optimizer):
        """Where variables are; whether state of a weight's shape is laid out as the weight."""
        table, kernel, _ = (v.value for v in model.trainable_variables)
        state = [v.value for v in optimizer.variables]
        return {
            "devices": min(len(x.sharding.device_set) for x in (table, kernel, *state)),
            "batch": batch_shard(),
            "table": table.addressable_shards[0].data.shape,
            "kernel": kernel.addressable_shards[0].data.shape,
            "slots": [x.addressable_shards[0].data.shape for x in state if x.shape == table.shape],
        }

    results.record("half", "fit", CONTROL, functools.partial(fit, parts=DEVICES))
    for spread, steps, run in every_run():
        keras.distribution.set_distribution(distributions[spread])
        results.record(spread, steps, run, ways[steps], facts)


# ---- PyTorch -------------------------------------------------------------------------------------


def on_torch(results, port=None):
    """Rank 0, or with the port at which it waits, rank 1."""
    import datetime

    import torch
    from torch import distributed

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a host's own name need not resolve
    torch.set_num_threads(1)
    rank = 0 if port is None else 1
    patience = datetime.timedelta(seconds=120)
    store = distributed.TCPStore(
        "127.0.0.1", port or 0, DEVICES, rank == 0, patience, wait_for_workers=False
    )
    other = None
    if rank == 0:
        command = [sys.executable, "-m", "tests.distribution_worker", "--rank-1", str(store.port)]
        other = subprocess.Popen(command)
    distributed.init_process_group(
        "gloo", store=store, rank=rank, world_size=DEVICES, timeout=patience
    )

    class RowEmbedding(keras.layers.Embedding):
        """An embedding whose gradient is a sparse tensor; these are not for DDP to exchange."""

        def call(self, ids):
            return torch.nn.functional.embedding(ids.int(), self.embeddings.value, sparse=True)

    def part(array, parallel):
        return torch.tensor(np.split(array, DEVICES)[rank] if parallel else array)

    def loop(run, parallel, embedding=keras.layers.Embedding, exchange="ddp"):
        """A training loop of one's own."""
        model, optimizer = make_model(run, embedding), RUNS[run]()
        variables = model.trainable_variables
        optimizer.build(variables)
        net = model
        if parallel and exchange == "ddp":
            net = torch.nn.parallel.DistributedDataParallel(model)
        for ids, targets in batches():
            loss = torch.mean((net(part(ids, parallel)) - part(targets, parallel)) ** 2)
            net.zero_grad()
            optimizer.scale_loss(loss).backward()
            grads = [v.value.grad for v in variables]
            if parallel and exchange == "by hand":
                for g in grads:
                    distributed.all_reduce(g)
                grads = [g / DEVICES for g in grads]
            with torch.no_grad():
                optimizer.apply(grads, variables)
        return model, optimizer

    def rows(run, parallel):
        """Row gradients that users make, exchanged by users."""
        model, optimizer = make_model(run), RUNS[run]()
        table = model.trainable_variables[0]
        optimizer.build([table])
        for values, ids in named_rows():
            values, ids = part(values, parallel), part(ids, parallel)
            if parallel:
                values, ids = gather(values), gather(ids)
            optimizer.apply([keras_tfopt.RowGradient(values, ids, tuple(table.shape))], [table])
        return model, optimizer

    def gather(tensor):
        parts = [torch.empty_like(tensor) for _ in range(DEVICES)]
        distributed.all_gather(parts, tensor)
        return torch.cat(parts)

    def facts(model, optimizer):
        """Whether both processes have the same values."""
        state = [v.value.double().reshape(-1) for v in (*model.variables, *optimizer.variables)]
        mine = torch.cat(state)
        return {
            "devices": distributed.get_world_size(),
            "in_sync": bool(torch.equal(*gather(mine).chunk(DEVICES))),
        }

    ways = {
        "loop": loop,
        "lookups": functools.partial(loop, embedding=keras_tfopt.layers.Embedding),
        "rows": rows,
        "sparse": functools.partial(loop, embedding=RowEmbedding, exchange="by hand"),
    }
    if rank == 0:
        half = functools.partial(loop, parallel=True, exchange=None)
        results.record("half", "loop", CONTROL, half)
    for spread, steps, run in every_run():
        if spread != "one":
            train = functools.partial(ways[steps], parallel=True)
            results.record(spread, steps, run, train, facts)
        elif rank == 0:
            train = functools.partial(ways[steps], parallel=False)
            results.record(spread, steps, run, train)
    distributed.destroy_process_group()
    if other is not None:
        assert other.wait(timeout=60) == 0


if __name__ == "__main__":
    results = Results()
    if sys.argv[1] == "--rank-1":
        on_torch(results, int(sys.argv[2]))
        sys.stderr.write("".join(f"{k}: {v}\n" for k, v in results.items() if "/error" in k))
    else:
        {"tensorflow": on_tensorflow, "jax": on_jax, "torch": on_torch}[BACKEND](results)
        with open(sys.argv[1], "wb") as file:
            np.savez(file, **results)
