"""The program of test_divided_tables.py on JAX: it trains with a divided table, and a whole one.

    KERAS_BACKEND=jax python -m tests.workers.mesh_table_worker OUT.json FOLDER

Devices must be created before JAX starts. So this program is a process of its own.
"""

import functools
import re
import sys
import warnings

from tests.helpers import virtual_devices

if __name__ == "__main__":
    virtual_devices.use(4)

import keras
import numpy as np

import keras_tfopt as opt
from tests.cells import EXHAUSTIVE
from tests.helpers.worker_processes import error_of, write_results
from tests.workers import sharding_worker
from tests.workers.sharding_worker import bytes_of, is_in_layout, step_of

ROWS, WIDTH, LENGTH, BATCH = 40, 8, 4, 16
RUNS = {
    "LazyAdam": lambda: opt.LazyAdam(0.01, epsilon=1e-3, weight_decay=0.1),
    "catch_up": lambda: opt.LazyAdam(0.01, epsilon=1e-3, catch_up=True),
    "Adagrad": lambda: opt.Adagrad(0.05),
    "Ftrl": lambda: opt.Ftrl(0.05),
    "clipped": lambda: opt.LazyAdam(0.01, epsilon=1e-3, clipnorm=0.1),
    "accumulation": lambda: opt.LazyAdam(0.01, epsilon=1e-3, gradient_accumulation_steps=2),
    "ema": lambda: opt.LazyAdam(0.01, epsilon=1e-3, use_ema=True, ema_momentum=0.7),
    "shard_state": lambda **o: opt.LazyAdam(0.01, epsilon=1e-3, **o),
    "clipping": lambda: opt.VariableClipping(
        opt.LazyAdam(0.01, epsilon=1e-3), {"embeddings": [1]}, 0.3
    ),
    "NormalizedSGD": lambda: opt.NormalizedSGD(0.05),
}
RARE = ("four/Adagrad", "four/Ftrl", "two/LazyAdam")  # only in exhaustive runs


def make_model(shard="rows", twice=False):
    """Return a model with a table, which is looked up twice if `twice`, and a dense layer."""
    ids = keras.Input((LENGTH,), dtype="int32")
    table = opt.layers.Embedding(ROWS, WIDTH, name="table", **({"shard": shard} if shard else {}))
    rows = keras.layers.Flatten()(table(ids))
    if twice:
        rows = keras.layers.Concatenate()([rows, keras.layers.Flatten()(table(ids[:, :2]))])
    model = keras.Model(ids, keras.layers.Dense(2, name="last")(rows))
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(0, 0.2, w.shape).astype("float32") for w in model.get_weights()])
    return model


def data():
    """Return ids and targets. Ids repeat, some are negative, and some rows are in no batch."""
    rng = np.random.default_rng(1)
    ids = rng.integers(0, ROWS - 3, (4 * BATCH, LENGTH)).astype("int32")
    ids[:, 0], ids[::2, 1] = 7, -ROWS
    return ids, rng.normal(size=(len(ids), 2)).astype("float32")


def fit(optimizer, model, epochs=2, eager=False):
    if optimizer is not None:
        model.compile(optimizer, "mse", run_eagerly=eager)
    history = model.fit(*data(), batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)
    model.losses_found = history.history["loss"]
    return model


def difference(one, other):
    pairs = [
        *zip(one.get_weights(), other.get_weights(), strict=True),
        *zip(one.optimizer.variables, other.optimizer.variables, strict=True),
        (one.losses_found, other.losses_found),
    ]
    return max(float(np.max(np.abs(np.subtract(a, b, dtype=float)), initial=0)) for a, b in pairs)


@functools.cache
def trained_whole(run, twice, policy):
    """Return a model with a whole table after training, its first table, and its predictions."""
    model = make_model(None, twice)
    start = model.get_weights()[0]
    return fit(RUNS[run](), model), start, predictions(model, run)


def predictions(model, run):
    """Return predictions after one run. They depend on the table and not on the optimizer."""
    return model.predict(data()[0][:8], verbose=0) if run == "LazyAdam" else 0


def compared(distribution, run, twice=False, policy="float32", eager=False):
    keras.config.set_dtype_policy(policy)
    try:
        keras.distribution.set_distribution(None)
        whole, start, predicted = trained_whole(run, twice, policy)
        keras.distribution.set_distribution(distribution)
        options = {"shard_state": True} if run == "shard_state" else {}
        split = fit(RUNS[run](**options), make_model("rows", twice), eager=eager)
        predicted = predicted - predictions(split, run)
    finally:
        keras.config.set_dtype_policy("float32")
    state = [v for v in split.optimizer.variables if v.shape[:1] == (ROWS,)]
    table = split.get_layer("table").embeddings
    here, bytes_in_all = bytes_of([table, *state])
    unseen = slice(ROWS - 3, ROWS)
    return {
        "difference": difference(whole, split),
        "predicted": float(np.max(np.abs(predicted))),
        "moved": float(np.max(np.abs(whole.get_weights()[0] - start))),
        "unseen_moved": float(np.max(np.abs(split.get_weights()[0][unseen] - start[unseen]))),
        "slots": len(state),
        "part": here / bytes_in_all,
        "in_layout": all(is_in_layout(v, v.value) for v in split.weights),
    }


def exchanged(make):
    """Return the (operation, dtype, shape) of all exchanges in a step, and shapes of all arrays."""
    model, optimizer = make_model(), make()
    optimizer.build(model.trainable_variables)
    values = [[v.value for v in model.trainable_variables], [v.value for v in optimizer.variables]]
    x, y = (array[:BATCH] for array in data())
    layout = keras.distribution.distribution().get_data_layout
    x, y = (keras.distribution.distribute_tensor(a, layout(a.shape)) for a in (x, y))
    program = step_of(model, optimizer).lower(*values, x, y).compile().as_text()
    kinds = "all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute"
    found = []
    for result, name in re.findall(rf"= (.*?) ({kinds})(?:-start)?\(", program):
        for dtype, shape in re.findall(r"([a-z]+\d+)\[([\d,]*)\]", result):
            found.append([name, dtype, [int(n) for n in shape.split(",") if n]])
    shapes = {tuple(map(int, s.split(","))) for s in re.findall(r"f32\[([\d,]+)\]", program)}
    return {"exchanged": sorted(found), "shapes": sorted(shapes)}


def averaging():
    return opt.MovingAverage(opt.LazyAdam(0.01, epsilon=1e-3), 0.7)


def saved(folder):
    """Save a model on four devices; compare how it continues on one and on four."""
    path = f"{folder}/divided.keras"
    keras.distribution.set_distribution(None)
    whole = fit(averaging(), make_model(None))
    whole.save_weights(f"{folder}/whole.weights.h5")
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    model = fit(averaging(), make_model())
    model.save(path)
    other = make_model()
    other.load_weights(f"{folder}/whole.weights.h5", skip_mismatch=True)
    found = {"weights": float(np.max(np.abs(other.get_weights()[0] - whole.get_weights()[0])))}
    fit(None, whole, 1)
    for name, distribution in {"none": None, "four": keras.distribution.DataParallel()}.items():
        keras.distribution.set_distribution(distribution)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = fit(None, keras.saving.load_model(path), 1)
        here, size = bytes_of([model.get_layer("table").embeddings])
        texts = [str(w.message) for w in caught if "shard='rows'" in str(w.message)]
        found[name] = difference(whole, model), here / size, texts[:1]
    return found


def refused(devices):
    def built(rows=ROWS, **options):
        opt.layers.Embedding(rows, WIDTH, **options, shard="rows").build()

    found = {}
    keras.distribution.set_distribution(None)
    found["no distribution"] = error_of(built)
    mesh = keras.distribution.DeviceMesh((2, 2), ("batch", "model"), devices)
    layouts = keras.distribution.LayoutMap(mesh)
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="data")
    )
    found["no axis"] = error_of(built)
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    found["rows"] = error_of(lambda: built(41))
    found["many"] = error_of(lambda: built(10**10))
    model, optimizers = make_model(), {}
    before = model.get_weights()
    optimizers["dense"] = opt.Adam(0.1)
    optimizers["model"] = opt.GGT(0.1, window=2)
    optimizers["inside"] = opt.MovingAverage(keras.optimizers.Adam(0.1))
    for name, optimizer in optimizers.items():
        model.compile(optimizer, "mse")
        found[name] = error_of(lambda: model.fit(*data(), verbose=0))
    optimizer = opt.LazyAdam(0.1)
    found["ids"] = error_of(lambda: model.get_layer("table")(np.array([[0, ROWS]])))
    found["changed"] = any(not np.array_equal(*p) for p in zip(before, model.get_weights()))
    found["built"] = [n for n, o in optimizers.items() if o.built]
    opt.distributed.connect(engine="jax_mesh")
    found["apart"] = error_of(built)
    opt.distributed.disconnect()
    return found


def outside():
    """Return for a whole and a divided table which samples with ids out of range give NaN."""
    found = []
    for shard in (None, "rows"):
        distribution = keras.distribution.DataParallel() if shard else None
        keras.distribution.set_distribution(distribution)
        model = make_model(shard)
        model.compile(RUNS["LazyAdam"](), "mse")
        x, y = (array[:BATCH].copy() for array in data())
        x[0, 2], x[5, 1] = ROWS, -ROWS - 1
        found.append(np.isnan(model.predict_on_batch(x)).any(axis=1).tolist())
    return found


def large():
    """Compare the initial numbers of a large divided table with those of a whole one."""
    tables = []
    for distribution in (None, keras.distribution.DataParallel()):
        keras.distribution.set_distribution(distribution)
        shard = None if distribution is None else "rows"
        keras.utils.set_random_seed(3)
        layer = opt.layers.Embedding(2**19, 32, shard=shard)
        layer.build()
        tables.append(np.asarray(layer.embeddings.value))
        value = layer.embeddings.value
    return float(np.max(np.abs(np.subtract(*tables)))), value.addressable_shards[0].data.shape


def main(out, folder):
    devices = keras.distribution.list_devices()
    sharding_worker.sharding.SMALLEST = 16
    four = keras.distribution.DataParallel()
    mesh = keras.distribution.DeviceMesh((2, 2), ("batch", "model"), devices)
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*kernel"] = (None, "model")
    places = {
        "one": {"distribution": keras.distribution.DataParallel(devices=devices[:1])},
        "two": {"distribution": keras.distribution.DataParallel(devices=devices[:2])},
        "mesh": {
            "distribution": keras.distribution.ModelParallel(
                layout_map=layouts, batch_dim_name="batch"
            )
        },
        "bfloat16": {"distribution": four, "policy": "mixed_bfloat16"},
        "twice": {"distribution": four, "twice": True},
        "eager": {"distribution": four, "eager": True},
    }
    jobs = {f"four/{run}": {"distribution": four, "run": run} for run in RUNS}
    jobs |= {f"{name}/LazyAdam": {**how, "run": "LazyAdam"} for name, how in places.items()}
    wanted = [name for name in jobs if EXHAUSTIVE or name not in RARE]
    tasks = {name: lambda job=jobs[name]: compared(**job) for name in wanted}
    tasks["saved"] = lambda: saved(folder)
    tasks["refused"] = lambda: refused(devices)
    tasks["outside"], tasks["large"] = outside, large

    def exchange():
        keras.distribution.set_distribution(four)
        return exchanged(lambda: opt.LazyAdam(0.01))

    tasks["exchanged"] = exchange
    write_results(tasks, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
