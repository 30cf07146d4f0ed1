"""RETURNN trains with optimizers of keras_tfopt that its configuration names.

    pip install --no-deps returnn dm-tree
    KERAS_BACKEND=tensorflow python -m integration.returnn_training

Needs `pip install 'keras_tfopt[guides]' tensorflow` besides. A network of RETURNN learns scanned
digits for some hundred steps with each optimizer, by RETURNN's own `Updater`; the slots must be
variables of the graph, and the loss must fall. The exit status is 0 if all of that holds.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np
from sklearn.datasets import load_digits

from keras_tfopt import legacy

PREFIX = "keras_tfopt."

# Name in the configuration, its other options, learning rate, variables that it must have made.
TRAININGS: tuple[tuple[str, dict[str, Any], float, tuple[str, ...]], ...] = (
    ("LazyAdamOptimizer", {"epsilon": 1e-8}, 0.003, ("/Adam", "/Adam_1", "beta1_power")),
    ("LARSOptimizer", {"momentum": 0.9, "eeta": 0.02}, 0.5, ("/LARSOptimizer",)),
    # RETURNN has one of its own under the plain name.
    (f"{PREFIX}NadamOptimizer", {"epsilon": 1e-8}, 0.003, ("/Adam", "/Adam_1", "beta1_power")),
)

NETWORK = {
    "hidden": {"class": "linear", "activation": "relu", "n_out": 64, "from": "data:data"},
    "output": {
        "class": "softmax",
        "from": "hidden",
        "loss": "ce",
        "target": "classes",
    },
}


def register() -> None:
    """Makes the optimizers known to RETURNN under their names, where it has none of that name."""
    from returnn.tf import updater

    updater._init_optimizer_classes_dict()
    known = updater._OptimizerClassesDict
    for name in legacy.names():
        cls = getattr(legacy, name)
        if not (isinstance(cls, type) and issubclass(cls, legacy.Optimizer)):
            continue
        known[f"{PREFIX}{name}".lower()] = cls
        if name.lower() not in known and name.lower().removesuffix("optimizer") not in known:
            updater.register_optimizer_class(cls, name)


def train(
    name: str, options: Mapping[str, Any], learning_rate: float, steps: int = 300
) -> tuple[float, float, list[str]]:
    """Trains a network; gives the first and the last loss, and the names of all variables."""
    import tensorflow as tf
    from returnn.config import Config
    from returnn.tf.network import TFNetwork
    from returnn.tf.updater import Updater

    v1 = tf.compat.v1
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")
    config = Config(
        {
            "extern_data": {
                "data": {"shape": (64,), "dim": 64},
                "classes": {"shape": (), "dim": 10, "sparse": True},
            },
            "optimizer": {"class": name, **options},
            "network": NETWORK,
        }
    )
    losses = []
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(1)
        network = TFNetwork(config=config, train_flag=True)
        network.construct_from_dict(NETWORK)
        network.initialize_params(session)
        updater = Updater(config=config, network=network, initial_learning_rate=learning_rate)
        updater.set_trainable_vars(network.get_trainable_params())
        train_op = updater.get_optim_op()
        updater.init_optimizer_vars(session)
        updater.set_learning_rate(learning_rate, session)
        loss = network.get_objective() / tf.cast(network.get_data_batch_dim(), "float32")
        data = network.extern_data.data
        batches = np.random.RandomState(0).randint(0, len(images), (steps, 128))
        for batch in batches:
            feed = {
                data["data"].placeholder: images[batch],
                data["classes"].placeholder: labels[batch],
            }
            losses.append(session.run([loss, train_op], feed)[0])
        names = [variable.op.name for variable in v1.global_variables()]
    return float(np.mean(losses[:5])), float(np.mean(losses[-20:])), names


def main() -> int:
    register()
    failed = 0
    for name, options, learning_rate, wanted in TRAININGS:
        first, last, variables = train(name, options, learning_rate)
        lacking = [w for w in wanted if not any(v.endswith(w.lstrip("/")) for v in variables)]
        ok = last < 0.2 * first and not lacking
        failed += not ok
        print(f"{name}: loss {first:.3f} -> {last:.3f}, {'ok' if ok else f'FAILED {lacking}'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
