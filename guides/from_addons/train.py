"""A program of Keras 2 and TensorFlow Addons as it was: digits, LAMB, cyclical rates, averages.

It needs Python 3.9, 3.10 or 3.11, tensorflow==2.15.1, tensorflow-addons==0.23.0 and scikit-learn,
and wrote the files next to it: the weights at the start, and in training.json the configuration of
the optimizer, the losses of all steps and the accuracies at the end.

    python guides/from_addons/train.py
"""

import json
import os

import numpy as np
import tensorflow as tf
import tensorflow_addons as tfa
from sklearn.datasets import load_digits

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS, BATCH = 300, 256

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32")
order = np.random.RandomState(0).permutation(len(images))
training, test = order[:1400], order[1400:]
batches = np.random.RandomState(1).randint(0, len(training), (STEPS, BATCH))

tf.keras.utils.set_random_seed(0)
model = tf.keras.Sequential(
    [
        tf.keras.layers.Dense(32, activation="relu", input_shape=(64,)),
        tf.keras.layers.Dense(10),
    ]
)
np.savez(os.path.join(HERE, "start.npz"), *model.get_weights())

rate = tfa.optimizers.TriangularCyclicalLearningRate(0.001, 0.005, step_size=50)
lamb = tfa.optimizers.LAMB(rate, weight_decay=0.01, exclude_from_weight_decay=["bias"])
optimizer = tfa.optimizers.MovingAverage(lamb, average_decay=0.95)
model.compile(
    optimizer=optimizer,
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)

losses = []
for rows in batches:
    rows = training[rows]
    losses.append(float(model.train_on_batch(images[rows], labels[rows])[0]))
    model.reset_metrics()


def accuracy():
    return float(model.evaluate(images[test], labels[test], verbose=0)[1])


of_weights = accuracy()
optimizer.assign_average_vars(model.trainable_variables)
results = {
    "optimizer": tf.keras.optimizers.serialize(optimizer),
    "loss": [round(loss, 6) for loss in losses],
    "accuracy": of_weights,
    "accuracy_of_averages": accuracy(),
}
with open(os.path.join(HERE, "training.json"), "w") as file:
    json.dump(results, file, default=float)
