"""Write files of Keras 2 and of TensorFlow Addons in the middle of trainings, and how these go on.

    python integration/keras2_files.py tests/golden/keras2 [tf_keras | addons]

The first needs `tf-keras==2.21.0` and `tensorflow==2.21.0`, the second `tensorflow-addons==0.23.0`
and `tensorflow==2.15.1` on Python 3.9, 3.10 or 3.11. Neither needs this package.
"""

import importlib.metadata
import json
import os
import shutil
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

STEPS, FURTHER = 40, 10
# {name: (class, arguments, kinds of files)}; epsilons are large, so that their places matter.
NEW = {
    "SGD": ("SGD", dict(learning_rate=0.05, momentum=0.9, nesterov=True), ["h5"]),
    "Adam": ("Adam", dict(learning_rate=0.02, epsilon=1e-3), ["h5", "checkpoint"]),
    "AdamW": ("AdamW", dict(learning_rate=0.02, weight_decay=0.1, amsgrad=True), ["h5"]),
    "RMSprop": (
        "RMSprop",
        dict(learning_rate=0.01, momentum=0.5, centered=True, epsilon=1e-3),
        ["h5"],
    ),
    "Adagrad": ("Adagrad", dict(learning_rate=0.1, epsilon=1e-2), ["h5"]),
    "Adadelta": ("Adadelta", dict(learning_rate=1.0, epsilon=1e-3), ["h5"]),
    "Adamax": ("Adamax", dict(learning_rate=0.02), ["h5", "saved_model"]),
    "Nadam": ("Nadam", dict(learning_rate=0.02), ["h5", "checkpoint"]),
    "Ftrl": ("Ftrl", dict(learning_rate=0.1, l1_regularization_strength=1e-3, beta=0.1), ["h5"]),
}
LEGACY = {
    "SGD": ("SGD", dict(learning_rate=0.05, momentum=0.9), ["h5"]),
    "Adam": ("Adam", dict(learning_rate=0.02, epsilon=1e-3), ["h5", "checkpoint", "saved_model"]),
    "RMSprop": ("RMSprop", dict(learning_rate=0.01, epsilon=1e-3), ["h5", "checkpoint"]),
    "Adagrad": ("Adagrad", dict(learning_rate=0.1, epsilon=1e-2), ["h5"]),
    "Adadelta": ("Adadelta", dict(learning_rate=1.0, epsilon=1e-3), ["h5"]),
    "Adamax": ("Adamax", dict(learning_rate=0.02), ["h5"]),
    "Nadam": ("Nadam", dict(learning_rate=0.02), ["h5", "checkpoint"]),
    "Ftrl": ("Ftrl", dict(learning_rate=0.1, l1_regularization_strength=1e-3, beta=0.1), ["h5"]),
}
ADDONS = {
    "LAMB": ("LAMB", dict(learning_rate=0.01, weight_decay=0.01), ["h5", "checkpoint"]),
    "LazyAdam": ("LazyAdam", dict(learning_rate=0.02), ["h5"]),
    "RectifiedAdam": ("RectifiedAdam", dict(learning_rate=0.02), ["h5"]),
    "AdamW": ("AdamW", dict(learning_rate=0.02, weight_decay=1e-3), ["h5"]),
    "SGDW": ("SGDW", dict(learning_rate=0.05, weight_decay=1e-3, momentum=0.9), ["h5"]),
    "AdaBelief": ("AdaBelief", dict(learning_rate=0.02, epsilon=1e-4, amsgrad=True), ["h5"]),
    "COCOB": ("COCOB", {}, ["h5"]),
    "ConditionalGradient": (
        "ConditionalGradient",
        dict(learning_rate=0.99, lambda_=1.0, ord="fro"),
        ["h5"],
    ),
    "NovoGrad": (
        "NovoGrad",
        dict(learning_rate=0.02, beta_2=0.9, weight_decay=1e-3, grad_averaging=True),
        ["h5", "checkpoint"],
    ),
    "NovoGrad_amsgrad": ("NovoGrad", dict(learning_rate=0.02, amsgrad=True), ["h5"]),
    "ProximalAdagrad": (
        "ProximalAdagrad",
        dict(learning_rate=0.05, l1_regularization_strength=1e-3),
        ["h5"],
    ),
    "Yogi": ("Yogi", dict(learning_rate=0.02), ["h5", "checkpoint"]),
}
# {name: (class, arguments, class inside, its arguments, kinds of files)}
WRAPPERS = {
    "Lookahead": (
        "Lookahead",
        dict(sync_period=6),
        "RectifiedAdam",
        dict(learning_rate=0.02),
        ["h5", "checkpoint"],
    ),
    "MovingAverage": (
        "MovingAverage",
        dict(average_decay=0.9),
        "SGD",
        dict(learning_rate=0.05, momentum=0.9),
        ["h5", "checkpoint", "saved_model"],
    ),
    "SWA": (
        "SWA",
        dict(start_averaging=10, average_period=4),
        "LazyAdam",
        dict(learning_rate=0.02),
        ["h5", "checkpoint"],
    ),
}


def batches():
    random = np.random.RandomState(0)
    x = random.randn(STEPS + FURTHER, 8, 4).astype("float32")
    y = np.tanh(x.sum(-1, keepdims=True)) + 0.1 * random.randn(STEPS + FURTHER, 8, 1)
    return list(zip(x, y.astype("float32")))


def main(folder, keras, families, versions):
    told = folder / "trainings.json"
    trainings = json.loads(told.read_text()) if told.exists() else {}
    for family, (classes, cases) in families.items():
        for name, (cls, arguments, *inside, kinds) in cases.items():
            key = f"{family}_{name}"
            keras.backend.clear_session()
            keras.utils.set_random_seed(1)
            layers = [keras.layers.Dense(3, "tanh", input_shape=(4,)), keras.layers.Dense(1)]
            model = keras.Sequential(layers)
            optimizer = made(keras, classes, cls, arguments, *inside)
            model.compile(optimizer, "mse")
            data = batches()
            for x, y in data[:STEPS]:
                model.train_on_batch(x, y)
            files = save(folder, key, model, optimizer, kinds)
            losses = [float(model.train_on_batch(x, y)) for x, y in data[STEPS:]]
            wrapped = {"inside": inside, "kept": kept(model, optimizer, cls)} if inside else {}
            trainings[key] = {
                **wrapped,
                "class": cls,
                "arguments": arguments,
                "versions": {name: importlib.metadata.version(name) for name in versions},
                "files": files,
                "losses": losses,
            }
            print(key, files, losses[0], losses[-1])
    told.write_text(json.dumps(trainings, indent=1, sort_keys=True) + "\n")


def made(keras, classes, cls, arguments, *inside):
    """An optimizer, or a wrapper around one of TensorFlow Addons or a legacy one of Keras."""
    if not inside:
        return getattr(classes, cls)(**arguments)
    inner = getattr(classes, inside[0], None) or getattr(keras.optimizers.legacy, inside[0])
    return getattr(classes, cls)(inner(**inside[1]), **arguments)


def kept(model, optimizer, cls):
    """What a wrapper keeps of the first variable at the end."""
    slot = "slow" if cls == "Lookahead" else "average"
    return optimizer.get_slot(model.trainable_variables[0], slot).numpy().tolist()


def save(folder, key, model, optimizer, kinds):
    files = []
    if "h5" in kinds:
        model.save(folder / f"{key}.h5", save_format="h5")
        files.append(f"{key}.h5")
    if "checkpoint" in kinds:
        path = folder / f"{key}_checkpoint" / "ckpt"
        tf.train.Checkpoint(model=model, optimizer=optimizer).write(path)
        files.append(f"{key}_checkpoint/ckpt.index")
    if "saved_model" in kinds:
        path = folder / f"{key}_saved_model"
        model.save(path, save_format="tf")
        # The graph is not read, and is the largest part by far.
        for other in ("saved_model.pb", "fingerprint.pb"):
            (path / other).unlink()
        shutil.rmtree(path / "assets")
        files.append(f"{key}_saved_model")
    return files


if __name__ == "__main__":
    where, which = Path(sys.argv[1]), sys.argv[2]
    if which == "addons":
        import tensorflow_addons as tfa

        families = {"addons": (tfa.optimizers, {**ADDONS, **WRAPPERS})}
        main(where, tf.keras, families, ("tensorflow-addons", "tensorflow", "keras"))
    else:
        import tf_keras

        newer, older = tf_keras.optimizers, tf_keras.optimizers.legacy
        families = {"new": (newer, NEW), "legacy": (older, LEGACY)}
        main(where, tf_keras, families, ("tf_keras", "tensorflow"))
