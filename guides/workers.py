"""
Title: From local SGD to DiLoCo: fewer exchanges between workers
Author: keras_tfopt contributors
Date created: 2026/11/21
Last modified: 2026/11/21
Description: Five ways in which two workers train one model, and what each has to exchange.
Accelerator: None
"""

"""
## What workers exchange

Two workers train one model, each on half of the data. The plain way is to average their gradients
in every step. If the connection is slow, they mostly wait. The methods below exchange less often: a
worker takes many steps alone, and then

- `ModelAverage` puts the mean of the models into both ("local SGD");
- `ElasticAverage` pulls both to a common center, and the center to both;
- `AGN` moves a center by the mean of all gradients since then, and starts both from there;
- `DiLoCo` takes the change of the mean of the models as a gradient, and takes a step of Nesterov
  momentum with it.

Next to them are `SyncReplicas`, which is the plain way, and two workers that never exchange
anything. The network classifies scanned digits that come with scikit-learn.

## Two processes

A script that connects runs in as many workers as its launcher starts:

```sh
python -m keras_tfopt.distributed.launch -n 2 script.py
```

This guide starts itself in that way, with a folder for the results, which it then compares.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from matplotlib.figure import Figure
from report import STYLES, backend_name, logarithmic, options, save
from sklearn.datasets import load_digits

import keras_tfopt
from keras_tfopt import distributed
from keras_tfopt.distributed.launch import launch

args = options(__file__, fast="fewer epochs", results="folder of results; given to the workers")
epochs, batch, often = (12 if not args.fast else 4), 20, 20

"""
## Methods

The period says how many updates there are between two exchanges. Inside is momentum, where the
method allows it. The center of `AGN` makes only one step in a period, so it has Adam, whose steps
do not depend on the size of gradients. `DiLoCo` has AdamW inside, as in its paper, and exchanges
least of all. `rho=0` turns off the pull of `ElasticAverage` in each update, which momentum would
multiply. The workers that never exchange use one of these classes without a connection: it then
does what the optimizer inside does.
"""


def momentum():
    return keras_tfopt.Momentum(0.02, 0.9)


methods = {
    "SyncReplicas": (1, lambda: distributed.SyncReplicas(momentum(), None)),
    "ModelAverage": (10, lambda: distributed.ModelAverage(momentum(), 10)),
    "ElasticAverage": (10, lambda: distributed.ElasticAverage(momentum(), 10, 0.4, rho=0)),
    "AGN": (10, lambda: distributed.AGN(keras_tfopt.Adam(0.005), 10)),
    "DiLoCo": (20, lambda: distributed.DiLoCo(keras.optimizers.AdamW(0.002), 0.7, 0.6, 20)),
    "no exchange": (0, momentum),
}

"""
## A worker

`connect` says which worker this process is, and so which part of the data is its own. All workers
have the same number of batches, as they wait for each other. Optimizers find the connection by
themselves; the first weights are those of worker 0.

Each worker measures the loss of its own model on the same images, after every 20 updates, when all
of the methods have just exchanged.
"""


class Measure(keras.callbacks.Callback):
    """Loss on images that nobody trains on, every so many updates."""

    def __init__(self, images, labels):
        super().__init__()
        self.images, self.labels, self.updates, self.losses = images, labels, 0, []

    def on_train_batch_end(self, number, logs=None):
        self.updates += 1
        if self.updates % often == 0:
            found = self.model.evaluate(self.images, self.labels, batch_size=600, verbose=0)
            self.losses.append(float(found))


def network():
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(10)]
    )


def work(folder):
    """Trains this worker's models and leaves their losses in the folder."""
    workers = distributed.connect(timeout=120)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")
    order = np.random.default_rng(args.seed).permutation(len(images))
    train, test = np.split(order, [1200])
    own = train[workers.rank :: workers.size]
    losses = {}
    for name, (_, optimizer) in methods.items():
        keras.utils.set_random_seed(args.seed)
        model = network()
        # TensorFlow cannot exchange in the middle of what XLA compiles.
        on_tensorflow = keras.backend.backend() == "tensorflow"
        model.compile(
            optimizer(),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=False if on_tensorflow else "auto",
        )
        measure = Measure(images[test], labels[test])
        model.fit(
            images[own],
            labels[own],
            batch_size=batch,
            epochs=epochs,
            callbacks=[measure],
            verbose=0,
        )
        losses[name] = measure.losses
        if workers.rank == 0:
            print(f"{name} done", flush=True)
    (folder / f"{workers.rank}.json").write_text(json.dumps(losses))


if args.results:
    work(Path(args.results))
    distributed.disconnect()
    sys.exit()

"""
## Two workers

If one of them fails, the other ends with an error that names the missing one. The launcher returns
the status of the one that failed first.
"""

with tempfile.TemporaryDirectory() as folder:
    command = [sys.executable, __file__, "--results", folder, "--seed", str(args.seed)]
    status = launch(2, command + ["--fast"] * args.fast)
    if status:
        raise RuntimeError(f"The workers ended with status {status}")
    found = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in (0, 1)]

"""
## Results

Workers that have just exchanged have one model, except under `ElasticAverage`, which keeps them
apart: the loss is the mean over the workers. In one run of this guide, on JAX with seed 0, model
averaging came to the loss of the plain way, 0.14, with a tenth of its exchanges, and DiLoCo with a
twentieth. Optimizers inside and their rates differ, so this does not say which method is best. On
digits, workers that never exchange are not far behind.
"""

losses = {name: np.mean([one[name] for one in found], axis=0) for name in methods}
updates = often * np.arange(1, len(losses["DiLoCo"]) + 1)

print(f"keras_tfopt {keras_tfopt.__version__}, {backend_name()}, seed {args.seed}")
print(f"{'method':16} {'period':>6} {'exchanges':>9} {'loss':>8}")
for name, (period, _) in methods.items():
    exchanges = updates[-1] // period if period else 0
    print(f"{name:16} {period:>6} {exchanges:>9} {losses[name][-1]:>8.3f}")

figure = Figure(figsize=(12, 5), layout="constrained")
by_update, by_exchange = figure.subplots(1, 2, sharey=True)
for (name, (period, _)), look in zip(methods.items(), STYLES):
    by_update.plot(updates, losses[name], **look, ms=5, label=name)
    if period:
        by_exchange.plot(updates / period, losses[name], **look, ms=5)
    else:
        by_exchange.axhline(losses[name][-1], color=look["color"], ls=look["linestyle"])
logarithmic(by_exchange.xaxis)
for panel, label in ((by_update, "updates of each worker"), (by_exchange, "exchanges")):
    panel.set_xlabel(label)
    logarithmic(panel.yaxis)
    panel.grid(alpha=0.3, which="both")
by_update.set_ylabel("loss on other images (cross-entropy, nats)")
by_update.legend()
figure.suptitle(f"Digits, two workers with a half of the images each. {backend_name()}")
save(figure, args.out)

"""
## Other ways to connect

`connect` finds the engine of the backend by what the launcher has set, and its documentation has
the table: `torch.distributed`, `jax.distributed`, TensorFlow's collectives, the devices of a JAX
mesh, and the replicas of a `MirroredStrategy`. Replicas of a mesh train apart after
`keras_tfopt.distributed.train_apart(model)`.

Another engine is one class, a subclass of `keras_tfopt.distributed.Exchange` with

- `rank` and `size`;
- `all_reduce_sum(tensors)`, inside a step. Nothing else is exchanged there: a mean is the sum over
  the size, and to leave out some workers is to sum zeros from them;
- `broadcast(arrays)` and `gather(text)`, on the host, when an optimizer is built.

It may define `cond(predicate, function, tensors)`, if the backend allows no exchange inside of its
own condition. `connect(engine=MyExchange())` makes it the one that optimizers find.
"""
