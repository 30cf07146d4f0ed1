"""A worker of test_sharded_state.py: it trains with `ShardedState`.

    python -m tests.workers.sharded_state_worker FOLDER [RUN ...]

Each of several processes writes FOLDER/SIZE_RANK.npz: weights and whole state of each run, as
`RUN/NUMBER`, and facts. Without a launcher, one process does the same on whole batches. If other
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

PARTS, BATCH, STEPS, ROWS, WIDTH, LENGTH = 2, 4, 4, 12, 4, 3
RUNS = {
    "Momentum": lambda: opt.Momentum(0.05, 0.9, row_variables=None),
    "Adam": lambda: opt.Adam(0.05, epsilon=1e-3, weight_decay=0.1),
    "clipped": lambda: opt.Momentum(0.5, global_clipnorm=0.05),
    "accumulation": lambda: opt.LazyAdam(0.05, epsilon=1e-3, gradient_accumulation_steps=2),
    "ema": lambda: opt.Adam(0.05, epsilon=1e-3, use_ema=True, ema_momentum=0.7),
    "ema_overwrite": lambda: opt.Momentum(
        0.02, use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=3
    ),
    "groups": lambda: opt.Adagrad(
        0.1, groups={"bias": {"learning_rate_factor": 0.5}, "last": {"frozen": True}}
    ),
    "LAMB": lambda: opt.LAMB(0.05),
    "Muon": lambda: opt.Muon(0.05),
    "MovingAverage": lambda: opt.MovingAverage(opt.LazyAdam(0.05, epsilon=1e-3), 0.7),
    "SkipNonFinite": lambda: opt.SkipNonFinite(
        opt.DecoupledWeightDecay(opt.Adam(0.05, epsilon=1e-3), 0.02)
    ),
}


def make_model(embedding=opt.layers.Embedding):
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            embedding(ROWS, WIDTH, name="table"),
            keras.layers.Flatten(),
            keras.layers.Dense(8, name="first"),
            keras.layers.Dense(8, name="second"),
            keras.layers.Dense(2, name="last"),
        ]
    )
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(0, 0.5, w.shape).astype("float32") for w in model.get_weights()])
    return model


def data():
    """Return ids and targets of each step. Ids repeat in a part of a batch, and in both parts."""
    rng = np.random.default_rng(1)
    ids = rng.integers(0, ROWS - 2, (STEPS, PARTS * BATCH, LENGTH)).astype("int32")
    return ids, rng.normal(size=(STEPS, PARTS * BATCH, 2)).astype("float32")


def mine(array, rank, size):
    """Return the part of each batch that a worker trains on."""
    return np.concatenate([np.split(batch, size)[rank] for batch in array])


def fit(model, rank, size):
    x, y = (mine(array, rank, size) for array in data())
    batch = PARTS * BATCH // size
    model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)
    return model


def compiled(optimizer, *embedding):
    model = make_model(*embedding)
    model.compile(optimizer, "mse")
    return model


def state_of(optimizer):
    """Return the whole state, as it is saved. All workers must call this together."""
    found = []
    for part in opt.engine.parts(optimizer):
        store = {}
        part.save_own_variables(store)
        if part is optimizer and isinstance(part, ShardedState):
            continue  # it has a count of its own
        found += [np.asarray(store[key]) for key in sorted(store) if key.isdigit()]
    return found


def bytes_here(optimizer):
    values = [v.value for v in optimizer.variables]
    return sum(v.numel() * v.element_size() for v in values if v.device.type != "meta")


def loop(rank, size, make, nan=None):
    """Train in a loop as users write it. A gradient of one worker may be NaN."""
    model, optimizer = make_model(), make()
    variables = model.trainable_variables
    optimizer.build(variables)
    for number, batch in enumerate(zip(*data())):
        x, y = (torch.tensor(np.split(part, size)[rank]) for part in batch)
        model.zero_grad()
        loss = optimizer.scale_loss(torch.mean((model(x) - y) ** 2))
        loss.backward()
        grads = [v.value.grad for v in variables]
        if nan == (number, rank) or nan and size == 1 and nan[0] == number:
            grads[-1] = grads[-1] * float("nan")
        optimizer.apply(grads, variables)
    model.optimizer = optimizer
    return model


def missing(rank, size, make):
    """Return the weights after steps in which workers have no gradient of some variables.

    The variables are alike, so one could take the place of another. Of a table, only the first
    worker has rows; of one variable, none has a gradient in one step.
    """
    rng = np.random.default_rng(3)
    names = ("a", "b", "c", "d", "table")
    variables = [keras.Variable(rng.normal(size=(6, 2)), name=name) for name in names]
    plan = rng.normal(size=(STEPS, PARTS, 5, 6, 2)).astype("float32")
    there = np.ones((STEPS, PARTS, 5), bool)
    for step in range(STEPS):
        for part in range(PARTS):
            there[step, part, (step + part) % 4] = False
    there[1, :, 3] = False
    there[:, 1, 4] = False
    rows = torch.tensor([1, 4])
    optimizer = make()
    optimizer.build(variables)
    for own, is_there in zip(plan, there):
        mean = np.where(is_there[..., None, None], own, 0).mean(0)
        if size > 1:
            mean, is_there = own[rank], is_there[rank : rank + 1]
        grads = [torch.tensor(g) if any(is_there[:, n]) else None for n, g in enumerate(mean)]
        if grads[4] is not None:
            grads[4] = opt.RowGradient(grads[4][rows], rows, (6, 2))
        optimizer.apply(grads, variables)
    return [np.asarray(v.value.detach()) for v in variables]


def swapped(rank, size):
    """Return the errors of what would read averages of other workers as if they were here."""
    model = fit(compiled(ShardedState(opt.Adam(0.05, use_ema=True))), rank, size)
    swap = opt.callbacks.SwapEMAWeights()
    x, y = (array[0] for array in data())
    return {
        "callback": error_of(lambda: model.evaluate(x, y, callbacks=[swap], verbose=0)),
        "to_keras": error_of(lambda: opt.to_keras(model.optimizer.inner_optimizer)),
    }


def zero(rank, size):
    """Return the weights after the same training with PyTorch's ZeroRedundancyOptimizer."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = make_model(keras.layers.Embedding)
    values = [v.value for v in model.trainable_variables]
    theirs = ZeroRedundancyOptimizer(values, torch.optim.SGD, lr=0.05, momentum=0.9)
    for batch in zip(*data()):
        x, y = (torch.tensor(np.split(part, size)[rank]) for part in batch)
        torch.mean((model(x) - y) ** 2).backward()
        for value in values:
            torch.distributed.all_reduce(value.grad)
            value.grad /= size
        theirs.step()
        theirs.zero_grad()
    return model.get_weights()


def refused(size):
    variables, built = make_model().trainable_variables, opt.Adam(0.1)
    built.build(variables)
    inner = {
        "model": lambda: opt.GGT(0.1, window=2),
        "built": lambda: built,
        "keras": lambda: keras.optimizers.Adam(0.1),
        "workers": lambda: opt.SyncReplicas(opt.Adam(0.1), None),
        "twice": lambda: ShardedState(opt.Adam(0.1)),
        "shard_state": lambda: opt.Adam(0.1, shard_state=True),
    }
    found = {
        name: error_of(lambda make=make: ShardedState(make()).build(variables))
        for name, make in inner.items()
    }
    found["inside"] = error_of(lambda: opt.MovingAverage(ShardedState(opt.Adam(0.1))))
    return found


def main(folder, *names):
    workers = opt.distributed.connect()
    rank, size = workers.rank, workers.size
    torch.set_num_threads(1)
    found, facts = {}, {"bytes": {}, "rank": rank, "size": size}

    def keep(name, model, averages=False):
        arrays = [*model.get_weights(), *state_of(model.optimizer)]
        if averages:
            with opt.averaged(model):
                arrays += model.get_weights()
        found.update({f"{name}/{n}": np.asarray(a) for n, a in enumerate(arrays)})
        facts["bytes"][name] = bytes_here(model.optimizer)

    def attempt(name, action):
        try:
            action()
        except Exception:
            facts[name] = traceback.format_exc()

    for name in names or RUNS:
        make = RUNS[name]
        averages = name in ("ema", "MovingAverage")

        def run(name=name, make=make, averages=averages):
            # PyTorch's own optimizer, with which this is compared, moves all rows.
            tables = [keras.layers.Embedding] if name == "Momentum" else []
            with opt.engine.plain():  # to compile takes longer than all else
                keep(name, fit(compiled(ShardedState(make()), *tables), rank, size), averages)

        attempt(name, run)

    def skipping():
        def make():
            return ShardedState(opt.SkipNonFinite(opt.Adam(0.05, epsilon=1e-3)))

        keep("nan", loop(rank, size, make, nan=(1, size - 1)))

    def scaling():
        def make():
            inner = ShardedState(opt.Adam(0.05, epsilon=1e-3))
            return opt.LossScaleOptimizer(inner, initial_scale=1024.0)

        keep("scaled", loop(rank, size, make, nan=(2, size - 1)))

    def saving():
        """Save a model, and continue from it and from models of other numbers of workers."""
        path = pathlib.Path(folder) / f"model_{size}_{rank}.keras"
        model = fit(compiled(ShardedState(RUNS["MovingAverage"]())), rank, size)
        model.save(path)
        for other in (1, 2, 4):
            # Any worker's file has everything.
            own = other == size
            saved = path if own else pathlib.Path(folder) / f"model_{other}_{other - 1}.keras"
            if own or saved.exists():
                keep(f"from_{other}", fit(keras.saving.load_model(saved), rank, size))

    def diagnosing():
        model = fit(compiled(ShardedState(RUNS["MovingAverage"]())), rank, size)
        before = [*model.get_weights(), *state_of(model.optimizer)]
        report = opt.diagnose(model, batch=tuple(mine(array[:1], rank, size) for array in data()))
        after = [*model.get_weights(), *state_of(model.optimizer)]
        facts["undone"] = len(report.rows), all(map(np.array_equal, before, after))

    tasks = {"saving": saving} if names else {"nan": skipping, "scaled": scaling, "saving": saving}
    if size == 2:
        tasks["undone"] = diagnosing
    for name, action in tasks.items():
        with opt.engine.plain():
            attempt(name, action)
    if size <= 2 and not names:
        around = {"sharded": ShardedState, "sync": lambda inner: opt.SyncReplicas(inner, None)}
        for name, make in around.items():
            arrays = missing(rank, size, lambda make=make: make(opt.Momentum(0.1, 0.9)))
            if name == "sync":
                arrays.pop()  # a row is divided by the number of workers that have it
            found.update({f"missing_{name}/{n}": a for n, a in enumerate(arrays)})
        facts["swapped"] = swapped(rank, size)
    if size > 1:
        found.update({f"zero/{n}": a for n, a in enumerate(zero(rank, size))})
        facts["refused"] = refused(size)
    table = opt.describe_state(*described())
    facts["part"], facts["splits"] = table.here / table.total, [r["split"] for r in table.rows]
    np.savez(f"{folder}/{size}_{rank}.npz", facts=json.dumps(facts), **found)


def described():
    model = keras.Sequential([keras.Input((16,)), *(keras.layers.Dense(16) for _ in range(8))])
    return ShardedState(opt.Adam(0.1)), model


if __name__ == "__main__":
    main(*sys.argv[1:])
