"""The program of test_distribution.py: it trains on two devices and on one.

    KERAS_BACKEND=jax python -m tests.workers.distribution_worker OUT.npz

The name of a run has three parts: how the work is spread, how steps are made, and an optimizer of
`RUNS`. The program writes the weights of the model and the state of the optimizer as arrays
`<spread>/<steps>/<run>/<array>`. They have to equal those of `one/<steps>/<run>`. `fact/...` says
how the work was really spread. If a run fails, its traceback is written as `error`.

Devices have to be created before a backend starts. So this program is a process of its own. On
PyTorch a device is a process, and a launcher starts two.
"""

import contextlib
import datetime
import functools
import os
import sys

from tests.helpers import virtual_devices

if __name__ == "__main__":
    virtual_devices.use(2)

import keras
import numpy as np

import keras_tfopt
from keras_tfopt.layers import Embedding
from tests.helpers import distribution_runs as job
from tests.helpers.distribution_runs import DEVICES, RUNS, fit, make_model, named_rows
from tests.helpers.exchange_loops import on_replicas, two_tensorflow_devices
from tests.helpers.stepping import BACKEND, plain_unless, to_numpy

# ---- TensorFlow ----------------------------------------------------------------------------------


def on_tensorflow(results):
    import tensorflow as tf

    devices = two_tensorflow_devices()
    copying = tf.distribute.ReductionToOneDevice()
    strategies = {
        "one": tf.distribute.get_strategy(),
        "mirrored": tf.distribute.MirroredStrategy(devices),
        "copying": tf.distribute.MirroredStrategy(devices, cross_device_ops=copying),
    }

    def loop(run, strategy, compiled=True, resumed=False):
        """Train in a loop as users write it. `resumed` starts from saved state."""
        with strategy.scope():
            model, optimizer = make_model(run), RUNS[run]()
        variables = model.trainable_variables
        if resumed:
            load(saved(run), optimizer)
        else:
            optimizer.build(variables)

        def step(ids, targets):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(model(ids) - targets)) / (job.BATCH * job.CLASSES)
            optimizer.apply(tape.gradient(loss, variables), variables)

        everywhere = on_replicas(strategy, step, compiled)
        for ids, targets in job.batches():
            everywhere(ids, targets)
        return model, optimizer

    def rows(run, strategy):
        """Train with row gradients that the program makes."""
        with strategy.scope():
            model, optimizer = make_model(run), RUNS[run]()
        table = model.trainable_variables[0]
        optimizer.build([table])

        def step(values, ids):
            gradient = keras_tfopt.RowGradient(values, ids, tuple(table.shape))
            optimizer.apply([gradient], [table])

        everywhere = on_replicas(strategy, step)
        for values, ids in named_rows():
            everywhere(values, ids)
        return model, optimizer

    def direct(run, strategy):
        """Step outside of `strategy.run`: first in the scope of the strategy, then without it."""
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

    @functools.cache
    def saved(run):
        return direct(run, strategies["one"])[1]

    def load(optimizer, other):
        """Copy the state of one optimizer into another."""
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
        "lookups": functools.partial(fit_in, jit_compile=False, embedding=Embedding),
        "several": functools.partial(fit_in, jit_compile=False, steps_per_execution=2),
        "loop": loop,
        "eager": functools.partial(loop, compiled=False),
        "resumed": functools.partial(loop, resumed=True),
        "rows": rows,
        "direct": direct,
    }

    def facts(model, optimizer):
        """Return on how many devices variables are, and by how much their copies differ."""
        variables = [*model.trainable_variables, *optimizer.variables]
        copies = [strategy.experimental_local_results(v.value) for v in variables]
        return {
            "replicas": strategy.num_replicas_in_sync,
            "devices": min(len({copy.device for copy in each}) for each in copies),
            "apart": max(
                job.difference(to_numpy(each[0]), to_numpy(copy))
                for each in copies
                for copy in each
            ),
        }

    for spread, steps, run in job.every_run():
        strategy = strategies[spread]
        train = functools.partial(ways[steps], strategy=strategy)
        results.record(spread, steps, run, train, facts)
    half = functools.partial(fit, parts=DEVICES, jit_compile=False)
    results.record("half", "fit", job.CONTROL, half)

    def strayed(run):
        """Build an optimizer in the scope of a strategy, outside of which it was made."""
        optimizer = RUNS[run]()
        with strategies["mirrored"].scope():
            model = make_model(run)
            optimizer.build(model.trainable_variables)
        return model, optimizer

    results.record("mirrored", "strayed", "LazyAdam", strayed)

    # This fails for Keras's own optimizers as well, which a run of Keras's Adam shows.
    RUNS["keras"] = lambda: keras.optimizers.Adam(0.05)
    for run in ("LazyAdam", "keras"):
        jit = functools.partial(fit_in, strategy=strategies["mirrored"], jit_compile=True)
        results.record("mirrored", "jit", run, jit)


# ---- JAX -----------------------------------------------------------------------------------------


def on_jax(results):
    import jax

    from keras_tfopt.engine.backends.jax import updates

    updates.PIECE = 4  # so that these small tables are updated in several pieces
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
        # These patterns are meant for weights. They match the names of slots of other shapes, too.
        "wide_patterns": sharded(**{".*table.*": by_rows, ".*kernel.*": by_columns}),
    }

    def rows(run):
        """Train with row gradients that the program makes."""
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
        "lookups": functools.partial(fit, jit_compile=True, embedding=Embedding),
        "eager": functools.partial(fit, jit_compile=False),
        "rows": rows,
    }

    def batch_shard():
        distribution, batch = keras.distribution.distribution(), np.zeros((job.BATCH, job.LENGTH))
        if distribution is not None:
            layout = distribution.get_data_layout(batch.shape)
            batch = keras.distribution.distribute_tensor(batch, layout).addressable_shards[0].data
        return batch.shape

    def facts(model, optimizer):
        """Return the shapes of batches, weights and slots on one device."""
        table, kernel, _ = (v.value for v in model.trainable_variables)
        state = [v.value for v in optimizer.variables]
        return {
            "devices": min(len(x.sharding.device_set) for x in (table, kernel, *state)),
            "batch": batch_shard(),
            "table": table.addressable_shards[0].data.shape,
            "kernel": kernel.addressable_shards[0].data.shape,
            "slots": [x.addressable_shards[0].data.shape for x in state if x.shape == table.shape],
        }

    results.record("half", "fit", job.CONTROL, functools.partial(fit, parts=DEVICES))
    for spread, steps, run in job.every_run():
        keras.distribution.set_distribution(distributions[spread])
        results.record(spread, steps, run, ways[steps], facts)


# ---- PyTorch -------------------------------------------------------------------------------------


def on_torch(results):
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    rank = distributed.get_rank()

    class RowEmbedding(keras.layers.Embedding):
        """An embedding whose gradient is a sparse tensor. DDP cannot exchange these."""

        def call(self, ids):
            return torch.nn.functional.embedding(ids.int(), self.embeddings.value, sparse=True)

    def part(array, parallel):
        return torch.tensor(np.split(array, DEVICES)[rank] if parallel else array)

    def loop(run, parallel, embedding=keras.layers.Embedding, exchange="ddp"):
        """Train in a loop as users write it."""
        model, optimizer = make_model(run, embedding), RUNS[run]()
        variables = model.trainable_variables
        optimizer.build(variables)
        net = model
        if parallel and exchange == "ddp":
            net = torch.nn.parallel.DistributedDataParallel(model)
        for ids, targets in job.batches():
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
        """Train with row gradients that the program makes and exchanges."""
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
        """Return whether both processes have the same values."""
        state = [v.value.double().reshape(-1) for v in (*model.variables, *optimizer.variables)]
        mine = torch.cat(state)
        return {
            "devices": distributed.get_world_size(),
            "in_sync": bool(torch.equal(*gather(mine).chunk(DEVICES))),
        }

    ways = {
        "loop": loop,
        "lookups": functools.partial(loop, embedding=Embedding),
        "rows": rows,
        "sparse": functools.partial(loop, embedding=RowEmbedding, exchange="by hand"),
    }
    if rank == 0:
        half = functools.partial(loop, parallel=True, exchange=None)
        results.record("half", "loop", job.CONTROL, half)
    for spread, steps, run in job.every_run():
        with plain_unless(job.is_compiled(run)):
            if spread != "one":
                train = functools.partial(ways[steps], parallel=True)
                results.record(spread, steps, run, train, facts)
            elif rank == 0:
                train = functools.partial(ways[steps], parallel=False)
                results.record(spread, steps, run, train)
    distributed.destroy_process_group()


if __name__ == "__main__":
    results = job.Results()
    {"tensorflow": on_tensorflow, "jax": on_jax, "torch": on_torch}[BACKEND](results)
    if os.environ.get("RANK", "0") == "0":
        with open(sys.argv[1], "wb") as file:
            np.savez(file, **results)
