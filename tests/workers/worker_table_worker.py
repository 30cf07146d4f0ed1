"""A worker of test_divided_tables.py on PyTorch: it trains with some rows of a table.

    python -m tests.workers.worker_table_worker FOLDER [RUN ...]

Each of several processes writes FOLDER/SIZE_RANK.npz: weights, whole state and losses of each run,
as `RUN/NUMBER`, and facts. Without a launcher, one process does the same on whole batches. If other
numbers of workers have saved models in the folder, these are loaded and trained further.
"""

import json
import pathlib
import sys
import traceback

import keras
import numpy as np
import torch

import keras_tfopt as opt
from keras_tfopt.distributed import ShardedState
from tests.helpers.worker_processes import error_of

# The rows are no multiple of the workers.
ROWS, WIDTH, LENGTH, BATCH, STEPS, DISTINCT = 42, 8, 4, 16, 4, 32
RUNS = {
    "LazyAdam": lambda: opt.LazyAdam(0.05, epsilon=1e-3, weight_decay=0.1),
    "catch_up": lambda: opt.LazyAdam(0.05, epsilon=1e-3, catch_up=True),
    "Adagrad": lambda: opt.Adagrad(0.1),
    "Ftrl": lambda: opt.Ftrl(0.1),
    "clipped": lambda: opt.LazyAdam(0.05, epsilon=1e-3, global_clipnorm=0.05),
    "accumulation": lambda: opt.LazyAdam(0.05, epsilon=1e-3, gradient_accumulation_steps=2),
    "ema": lambda: opt.LazyAdam(0.05, epsilon=1e-3, use_ema=True, ema_momentum=0.7),
    "MovingAverage": lambda: opt.MovingAverage(opt.LazyAdam(0.05, epsilon=1e-3), 0.7),
    "Lookahead": lambda: opt.Lookahead(opt.Momentum(0.05), 2),
    "twice": lambda: opt.LazyAdam(0.05, epsilon=1e-3),
}


def initial(shape, dtype=None):
    """An initializer that returns the whole table. Each worker takes its rows."""
    table = np.random.default_rng(5).normal(0, 0.2, (ROWS, WIDTH))
    return keras.ops.convert_to_tensor(table, dtype)


def make_model(twice=False, initializer=initial):
    """Return a model with a table, which is looked up twice if `twice`."""
    ids = keras.Input((LENGTH,), dtype="int32")
    table = opt.layers.Embedding(ROWS, WIDTH, initializer, name="table", shard="rows")
    rows = keras.layers.Flatten()(table(ids))
    if twice:
        rows = keras.layers.Concatenate()([rows, keras.layers.Flatten()(table(ids[:, :2]))])
    model = keras.Model(ids, keras.layers.Dense(2, name="last")(rows))
    last, rng = model.get_layer("last"), np.random.default_rng(0)
    last.set_weights([rng.normal(0, 0.2, w.shape).astype("float32") for w in last.get_weights()])
    return model


def data():
    """Return ids and targets. Ids repeat, some are negative, and some rows are in no batch."""
    rng = np.random.default_rng(1)
    ids = rng.integers(0, ROWS - 3, (STEPS, BATCH, LENGTH)).astype("int32")
    ids[:, :, 0], ids[:, ::2, 1] = 7, -ROWS
    return ids, rng.normal(size=(STEPS, BATCH, 2)).astype("float32")


def mine(array, workers):
    """Return the part of each batch that a worker trains on."""
    return np.concatenate([np.split(batch, workers.size)[workers.rank] for batch in array])


def fit(model, workers):
    x, y = (mine(array, workers) for array in data())
    history = model.fit(x, y, batch_size=BATCH // workers.size, epochs=2, shuffle=False, verbose=0)
    model.losses_found = history.history["loss"]
    return model


def compiled(optimizer, **options):
    model = make_model(**options)
    model.compile(ShardedState(optimizer), "mse")
    return model


def table_of(model):
    """Return the whole table, as it is saved. All workers must call this together."""
    store = {}
    model.get_layer("table").save_own_variables(store)
    return np.asarray(keras.ops.convert_to_numpy(store["0"]))


def whole(model, workers):
    """Return whole weights, whole state, and the mean of the losses of all workers."""
    found = [table_of(model), *model.get_layer("last").get_weights()]
    for part in opt.engine.parts(model.optimizer):
        store = {}
        part.save_own_variables(store)
        found += [np.asarray(store[key]) for key in sorted(store) if key.isdigit()]
    losses = torch.tensor(model.losses_found, dtype=torch.float64)
    if workers.size > 1:
        torch.distributed.all_reduce(losses)
    return [*found, losses.numpy() / workers.size]


def bytes_of(model):
    """Return the bytes of table and slots in the memory of this worker."""
    table = model.get_layer("table").embeddings
    here = [v for v in model.optimizer.variables if v.shape[:1] == table.shape[:1]]
    return sum(v.value.numel() * v.value.element_size() for v in [table, *here])


class Counter:
    """Count the bytes that a worker sends, by kind, while this context is open."""

    def __init__(self):
        self.bytes, self.real = {}, torch.distributed.all_to_all_single

    def __call__(self, output, values, output_counts=None, counts=None):
        workers, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
        counts = counts or [values.shape[0] // workers] * workers
        size = values.element_size() * values[:1].numel()
        away = size * (sum(counts) - counts[rank])
        kind = "counts" if output_counts is None else str(values.dtype).split(".")[-1]
        self.bytes[kind] = self.bytes.get(kind, 0) + away
        return self.real(output, values, output_counts, counts)

    def __enter__(self):
        torch.distributed.all_to_all_single = self
        return self

    def __exit__(self, *error):
        torch.distributed.all_to_all_single = self.real


def exchanged(workers, count=DISTINCT):
    """Return the bytes that this worker sends in a step with `count` distinct ids."""
    model = compiled(opt.LazyAdam(0.05))
    model.optimizer.build(model.trainable_variables)
    # The same number of ids for rows of each worker. Each id comes twice.
    starts = [worker * ROWS // workers.size for worker in range(workers.size)]
    each = count // workers.size
    ids = np.concatenate([np.arange(start, start + each) for start in starts]).astype("int32")
    ids = np.repeat(ids, 2).reshape(-1, LENGTH)
    with Counter() as counter:
        model.train_on_batch(ids, np.zeros((len(ids), 2), "float32"))
    return counter.bytes


def loop(workers, make, nan=None):
    """Train in a loop as users write it. A gradient of one worker may be NaN."""
    model, optimizer = make_model(), make()
    variables = model.trainable_variables
    optimizer.build(variables)
    model.losses_found = []
    for number, batch in enumerate(zip(*data())):
        x, y = (torch.tensor(np.split(part, workers.size)[workers.rank]) for part in batch)
        model.zero_grad()
        loss = torch.mean((model(x) - y) ** 2)
        model.losses_found.append(float(loss))
        optimizer.scale_loss(loss).backward()
        grads = [v.value.grad for v in variables]
        if nan is not None and number == nan[0] and workers.size in (1, nan[1]):
            grads[-1] = grads[-1] * float("nan" if workers.rank == workers.size - 1 else 1)
        optimizer.apply(grads, variables)
    model.optimizer = optimizer
    return model


def refused(workers):
    def step(optimizer):
        model = make_model()
        model.compile(optimizer, "mse")
        before = table_of(model)
        error = error_of(lambda: model.train_on_batch(*(a[0] for a in data())))
        changed = not np.array_equal(before, table_of(model))
        return [error, changed, bool(opt.engine.innermost(optimizer).built)]

    optimizers = {
        "alone": opt.LazyAdam(0.1),
        "dense": ShardedState(opt.Adam(0.1)),
        "SyncReplicas": opt.SyncReplicas(opt.LazyAdam(0.1), None),
        "rows together": ShardedState(opt.NormalizedSGD(0.1)),
        "clipnorm": ShardedState(opt.LazyAdam(0.1, clipnorm=1.0)),
        "int8": ShardedState(opt.LazyAdam(0.1, groups={"embeddings": {"slot_dtype": "int8"}})),
        "max_norm": ShardedState(opt.LazyAdam(0.1, groups={"embeddings": {"max_norm": 1.0}})),
        "wrapper": ShardedState(opt.VariableClipping(opt.LazyAdam(0.1), {"table": [1]}, 1.0)),
    }
    found = {name: step(optimizer) for name, optimizer in optimizers.items()}
    stock = keras.optimizers.Adam(0.1)
    model = make_model()
    model.compile(stock, "mse")
    before = table_of(model)
    error = error_of(lambda: model.train_on_batch(*(a[0] for a in data())))
    found["keras"] = [error, not np.array_equal(before, table_of(model)), False]
    layer = model.get_layer("table")
    found["ids"] = [error_of(lambda: layer(np.array([[0, ROWS]]))), False, False]
    few = opt.layers.Embedding(workers.size - 1, 4, shard="rows")
    found["few"] = [error_of(few.build), False, False]
    scaled = opt.layers.Embedding(ROWS, 4, "glorot_uniform", shard="rows")
    found["initializer"] = [error_of(scaled.build), False, False]
    parallel = torch.nn.parallel.DistributedDataParallel(make_model())
    error = error_of(lambda: parallel(torch.tensor(data()[0][0])))
    found["DistributedDataParallel"] = [error, False, False]
    return found


def drawn():
    """Return how many different rows workers draw that start from one seed."""
    keras.utils.set_random_seed(3)
    layer = opt.layers.Embedding(ROWS, WIDTH, shard="rows")
    layer.build()
    store = {}
    layer.save_own_variables(store)
    return len(np.unique(store["0"][:, 0]))


def main(folder, *names):
    workers = opt.distributed.connect()
    torch.set_num_threads(1)
    size, found = workers.size, {}
    facts = {"bytes": {}}

    def keep(name, model):
        found.update({f"{name}/{n}": a for n, a in enumerate(whole(model, workers))})
        facts["bytes"][name] = bytes_of(model)

    def saving():
        """Save a model, and continue from it and from models of other numbers of workers."""
        path = pathlib.Path(folder) / f"model_{size}_{workers.rank}.keras"
        objects = {"initial": initial}
        model = fit(compiled(RUNS["MovingAverage"]()), workers)
        model.save(path)
        for other in (1, 2, 4):
            own = other == size
            saved = path if own else pathlib.Path(folder) / f"model_{other}_{other - 1}.keras"
            if own or saved.exists():
                loaded = keras.saving.load_model(saved, custom_objects=objects)
                keep(f"from_{other}", fit(loaded, workers))

    def scaling():
        def make():
            inner = ShardedState(opt.LazyAdam(0.05, epsilon=1e-3))
            return opt.LossScaleOptimizer(inner, initial_scale=1024.0)

        keep("scaled", loop(workers, make, nan=(2, size)))

    tasks = {
        name: lambda name=name: keep(
            name, fit(compiled(RUNS[name](), twice=name == "twice"), workers)
        )
        for name in names or RUNS
    }
    tasks |= {"saving": saving} if names else {"scaled": scaling, "saving": saving}
    for name, action in tasks.items():
        try:
            with opt.engine.plain():  # to compile takes longer than all else
                action()
        except Exception:
            facts[name] = traceback.format_exc()
    if size > 1:
        with opt.engine.plain():
            facts["exchanged"] = exchanged(workers)
        facts["drawn"] = drawn()
    if size == 2:
        facts["refused"] = refused(workers)
    model = compiled(opt.LazyAdam(0.05))
    table = opt.describe_state(model.optimizer, model)
    rows = [row for row in table.rows if "table" in (row["variable"] or "")]
    facts["described"] = [[r["shape"], r["split"], r["bytes"], r["bytes_here"]] for r in rows]
    np.savez(f"{folder}/{size}_{workers.rank}.npz", facts=json.dumps(facts), **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
