"""The program of test_sharding.py on JAX: it trains with and without `shard_state`.

    KERAS_BACKEND=jax python -m tests.workers.sharding_worker OUT.json FOLDER

Devices must be created before JAX starts. So this program is a process of its own.
"""

import functools
import re
import sys
import warnings

from tests.helpers import virtual_devices

if __name__ == "__main__":
    virtual_devices.use(4)

import jax
import keras
import numpy as np

import keras_tfopt as opt
from keras_tfopt.engine.backends.jax import sharding
from tests.helpers.worker_processes import error_of, write_results

ROWS, WIDTH, LENGTH, UNITS, CLASSES, BATCH = 40, 8, 8, 16, 8, 16
sharding.SMALLEST = 16  # the smallest state that is divided; this model is small

RUNS = {
    "accumulation": lambda **o: opt.Adagrad(
        0.05,
        gradient_accumulation_steps=2,
        groups={"bias": {"learning_rate_factor": 0.5}, "first": {"frozen": True}},
        **o,
    ),
    "model": lambda **o: opt.GGT(0.01, window=4, **o),
    "several": lambda **o: opt.DecoupledWeightDecay(
        opt.Lookahead(several(opt.Adam(0.01, **o), opt.Momentum(0.05, **o)), 2), 0.02
    ),
    "MovingAverage": lambda **o: opt.MovingAverage(opt.LazyAdam(0.01, epsilon=1e-3, **o)),
    "options": lambda **o: opt.Adam(
        0.01,
        epsilon=1e-3,
        weight_decay=0.1,
        global_clipnorm=0.1,
        use_ema=True,
        ema_overwrite_frequency=3,
        **o,
    ),
    "stacked": lambda **o: opt.Muon(0.01, **o),
}


def several(first, second):
    """Return an optimizer with another one for the layers "first" and "second"."""
    optimizer_map = keras.optimizers.OptimizerMap(first, {".*(first|second)/.*": second})
    return keras.optimizers.MultiOptimizer(optimizer_map)


DENSE_OR_ROWS = {
    "Adam": lambda **o: opt.Adam(0.01, **o),
    "LazyAdam": lambda **o: opt.LazyAdam(0.01, **o),
}
IN_LOOPS = ("MovingAverage",)
ON_A_MODEL_MESH = ("options", "stacked")


def make_model():
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            opt.layers.Embedding(ROWS, WIDTH, name="table"),
            keras.layers.Flatten(),
            keras.layers.Dense(UNITS, name="first"),
            keras.layers.Dense(UNITS, name="second"),
            keras.layers.Dense(CLASSES, name="last"),
        ]
    )
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(0, 0.2, w.shape).astype("float32") for w in model.get_weights()])
    return model


def data():
    rng = np.random.default_rng(1)
    ids = rng.integers(0, ROWS, (4 * BATCH, LENGTH)).astype("int32")
    return ids, rng.normal(size=(len(ids), CLASSES)).astype("float32")


def fit(optimizer, model=None, epochs=2):
    if model is None:
        model = make_model()
        model.compile(optimizer, "mse")
    model.fit(*data(), batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)
    return model


def step_of(model, optimizer):
    def loss(weights, x, y):
        predicted, _ = model.stateless_call(weights, [], x)
        return jax.numpy.mean((predicted - y) ** 2)

    @jax.jit
    def step(weights, state, x, y):
        return optimizer.stateless_apply(state, jax.grad(loss)(weights, x, y), weights)

    return step


def batches():
    for part in zip(*(np.split(array, 4) for array in data())):
        distribution = keras.distribution.distribution()
        if distribution is not None:
            part = [
                keras.distribution.distribute_tensor(x, distribution.get_data_layout(x.shape))
                for x in part
            ]
        yield part


def loop(optimizer):
    """Train in a loop as users write it."""
    model = make_model()
    optimizer.build(model.trainable_variables)
    step = step_of(model, optimizer)
    variables = [*model.trainable_variables, *optimizer.variables]
    values = [[v.value for v in model.trainable_variables], [v.value for v in optimizer.variables]]
    for x, y in batches():
        values = step(*values, x, y)
    new = list(zip(variables, [*values[0], *values[1]], strict=True))
    model.layouts_kept = all(is_in_layout(variable, value) for variable, value in new)
    for variable, value in new:
        variable.assign(value)
    model.optimizer = optimizer
    return model


def is_in_layout(variable, value):
    layout = variable._layout
    layout = getattr(layout, "backend_layout", layout)  # which Keras 3.12 keeps itself
    return layout is None or value.sharding.is_equivalent_to(layout, value.ndim)


def bytes_of(variables):
    """Return the bytes on one device, and on all devices."""
    here = sum(v.value.addressable_shards[0].data.nbytes for v in variables)
    return here, sum(v.value.nbytes for v in variables)


def difference(one, other):
    pairs = zip(
        [*one.get_weights(), *(v.numpy() for v in one.optimizer.variables)],
        [*other.get_weights(), *(v.numpy() for v in other.optimizer.variables)],
        strict=True,
    )
    return max(float(np.max(np.abs(np.subtract(a, b, dtype=float)), initial=0)) for a, b in pairs)


def on(distribution, train, make, **options):
    keras.distribution.set_distribution(distribution)
    return train(make(**options))


@functools.cache
def start():
    return make_model().get_weights()


def compared(distribution, train, make):
    one, split = on(None, train, make), on(distribution, train, make, shard_state=True)
    here, whole = bytes_of(split.optimizer.variables)
    in_layout = all(is_in_layout(v, v.value) for v in split.trainable_variables)
    moved = [np.max(np.abs(a - b)) for a, b in zip(start(), one.get_weights(), strict=True)]
    return {
        "difference": difference(one, split),
        "moved": float(max(moved)),
        "part": here / whole,
        "weights_in_layout": in_layout and getattr(split, "layouts_kept", True),
    }


def exchanged(make):
    """Return the (operation, shape) of all that devices exchange in a step."""
    model, optimizer = make_model(), make(shard_state=True)
    optimizer.build(model.trainable_variables)
    values = [[v.value for v in model.trainable_variables], [v.value for v in optimizer.variables]]
    program = step_of(model, optimizer).lower(*values, *next(batches())).compile().as_text()
    found = re.findall(r"= f32\[([\d,]*)\]\S* (all-gather|all-to-all)\(", program)
    return sorted((name, [int(n) for n in shape.split(",")]) for shape, name in found)


def saved(folder):
    """Save a model on four devices; compare how it continues on one and on four."""
    path = f"{folder}/sharded.keras"
    whole = on(None, fit, RUNS["MovingAverage"])
    whole.save(f"{folder}/whole.keras")
    on(keras.distribution.DataParallel(), fit, RUNS["MovingAverage"], shard_state=True).save(path)
    fit(None, whole, 1)
    found = {}
    for name, distribution in {"none": None, "four": keras.distribution.DataParallel()}.items():
        keras.distribution.set_distribution(distribution)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = fit(None, keras.saving.load_model(path), 1)
        here, size = bytes_of(model.optimizer.variables)
        texts = [str(w.message) for w in caught if "shard_state" in str(w.message)]
        found[name] = difference(whole, model), here / size, texts[:1]
    return found


def table():
    """Return what `describe_state` says, with the default limit for small state."""
    sharding.SMALLEST, before = 4096, sharding.SMALLEST
    try:
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, name="d")])
        optimizer = opt.Momentum(0.1, shard_state=True)
        rows = opt.describe_state(optimizer, model).rows
    finally:
        sharding.SMALLEST = before
    return [[r["state"], r["split"], r["bytes"], r["bytes_here"]] for r in rows if r["variable"]]


def refused():
    found = {}
    keras.distribution.set_distribution(None)
    model, optimizer = make_model(), opt.Adam(shard_state=True)
    found["no distribution"] = error_of(lambda: optimizer.build(model.trainable_variables))
    found["built"] = optimizer.built or len(optimizer.variables) > 2
    devices = keras.distribution.list_devices()
    mesh = keras.distribution.DeviceMesh((2, 2), ("batch", "model"), devices)
    distribution = keras.distribution.ModelParallel(
        layout_map=keras.distribution.LayoutMap(mesh), batch_dim_name="data"
    )
    keras.distribution.set_distribution(distribution)
    model = make_model()
    optimizer = opt.Adam(shard_state=True)
    found["no axis"] = error_of(lambda: optimizer.build(model.trainable_variables))
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    model = make_model()
    opt.distributed.connect(engine="jax_mesh")
    outer = opt.ModelAverage(opt.Adam(shard_state=True), 2)
    found["workers"] = error_of(lambda: outer.build(model.trainable_variables))
    opt.distributed.disconnect()
    return found


def main(out, folder):
    devices = keras.distribution.list_devices()
    data_parallel = keras.distribution.DataParallel()
    mesh = keras.distribution.DeviceMesh((2, 2), ("batch", "model"), devices)
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*kernel"], layouts[".*embeddings"] = (None, "model"), ("model", None)
    model_parallel = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    in_fit = [run for run in RUNS if run not in (*IN_LOOPS, *ON_A_MODEL_MESH)]
    jobs = {f"fit/{run}": (data_parallel, fit, RUNS[run]) for run in in_fit}
    jobs |= {f"loop/{run}": (data_parallel, loop, RUNS[run]) for run in IN_LOOPS}
    jobs |= {f"mesh/{run}": (model_parallel, fit, RUNS[run]) for run in ON_A_MODEL_MESH}
    tasks = {name: lambda job=job: compared(*job) for name, job in jobs.items()}
    tasks["saved"] = lambda: saved(folder)
    for name, make in DENSE_OR_ROWS.items():
        tasks[f"exchanged/{name}"] = lambda make=make: on(data_parallel, exchanged, lambda: make)
    tasks["table"] = lambda: on(data_parallel, lambda _: table(), dict)
    tasks["refused"] = refused
    write_results(tasks, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
