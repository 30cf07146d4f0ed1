"""
Title: Second order: Shampoo and GGT against Adam and Momentum
Author: keras_tfopt contributors
Date created: 2026/11/20
Last modified: 2026/11/20
Description: Steps and seconds that an autoencoder of digits needs with each.
Accelerator: None
"""

"""
## More work a step

**Shampoo** keeps a matrix for each dimension of a weight and multiplies the gradient by its inverse
root, so that it sees how the entries of a row or a column move together; Adam sees each entry by
itself. **GGT** looks at all weights as one vector, and at the last ten gradients as directions in
which it is steep. A step of either takes more computation. Do they need fewer steps?

All four train the same autoencoder on scanned digits: the same initial weights, batches and
learning rates. The guide prints the steps and the seconds that each needed, with the best of its
rates, to reach the validation loss that all of them reach.
"""

import math
import os

# Threads of torch that spin while they wait take a busy machine's time from those they wait for.
# Read once, when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import keras
import numpy as np
from data import digits
from keras import layers
from matplotlib.figure import Figure
from report import STYLES, StepTimer, backend_name, logarithmic, options, save

import keras_tfopt

args = options(__file__, fast="one rate, two epochs")

"""
## The contenders

Shampoo takes roots of its matrices in each of the first twenty steps, while the sums of gradients
still change much, and in every tenth step from then on. In between, a step is a few products of
matrices. Any interval, decay or weight of Shampoo may be such a function of the step's number.
Its epsilon has to be below the squares of the gradients, or it is gradient descent; here the loss
is a mean over 784 pixels, and they are small.
"""


@keras.saving.register_keras_serializable(package="second_order")
def at_first_always_then_every_tenth(step):
    return keras.ops.where(step <= 20, 1.0, 10.0)


def shampoo(rate):
    return keras_tfopt.Shampoo(
        rate,
        max_matrix_size=800,
        gbar_decay=0.9,
        gbar_weight=0.1,
        svd_interval=at_first_always_then_every_tenth,
        epsilon=1e-8,
    )


sides = {
    "Momentum": lambda rate: keras_tfopt.Momentum(rate, momentum=0.9),
    "Adam": lambda rate: keras_tfopt.Adam(rate),
    "GGT": lambda rate: keras_tfopt.GGT(rate, window=10),
    "Shampoo": shampoo,
}
rates = (0.001, 0.01, 0.1, 1.0, 10.0) if not args.fast else (0.01,)
epochs = 15 if not args.fast else 2

"""
## The task

There are 4,000 scans to train on and 1,000 to choose by. An autoencoder turns 784 pixels into 32
numbers, and these into the pixels again.
"""

images, _ = digits()
pixels = images.reshape(len(images), -1)[np.random.default_rng(args.seed).permutation(len(images))]
train, validation = pixels[:4000], pixels[4000:]
batch_size = 500
steps_per_epoch = len(train) // batch_size


def autoencoder():
    keras.utils.set_random_seed(args.seed)
    model = keras.Sequential([keras.Input(train.shape[1:])])
    for width in (256, 32, 256):
        model.add(layers.Dense(width, activation="tanh"))
    model.add(layers.Dense(train.shape[1]))
    return model


"""
## Training

The time of a step is that of the step alone, without validation. The first steps compile. Their
time is replaced by the median of the others.
"""


class Training:
    """One side with one rate: the validation loss after each epoch, and the time of a step."""

    def __init__(self, side, rate):
        self.side, self.rate = side, rate
        model, timer = autoencoder(), StepTimer()
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile(optimizer=sides[side](rate), loss=loss)
        history = model.fit(
            train,
            train,
            batch_size=batch_size,
            epochs=epochs,
            validation_data=(validation, validation),
            callbacks=[timer],
            verbose=0,
        )
        self.losses = [v if math.isfinite(v) else math.inf for v in history.history["val_loss"]]
        usual = float(np.median(timer.seconds[2:]))
        each = [usual if n < 2 else s for n, s in enumerate(timer.seconds)]
        self.seconds = np.cumsum(each)[steps_per_epoch - 1 :: steps_per_epoch]
        self.milliseconds = 1000 * usual
        print(f"{side:9} rate {rate:<6g} validation loss {self.losses[-1]:.4f}", flush=True)

    def reaches(self, loss):
        """Epochs until the validation loss was as low as this."""
        return next(n for n, value in enumerate(self.losses, start=1) if value <= loss)


print(f"keras_tfopt {keras_tfopt.__version__}, {backend_name()}, {os.cpu_count()} CPU cores")
print(f"Learning rates, the same for all: {rates}")
trainings = {side: [Training(side, rate) for rate in rates] for side in sides}
best = {side: min(runs, key=lambda run: run.losses[-1]) for side, runs in trainings.items()}
goal = max(min(run.losses) for run in best.values())

"""
## Results
"""

print(
    f"\nTo a validation loss of {goal:.4f}, which all of them reached, with the best rate of each:"
)
print(f"{'':9} {'rate':>6} {'steps':>6} {'seconds':>8} {'ms/step':>8} {'loss at the end':>16}")
for side, run in best.items():
    epoch = run.reaches(goal)
    print(
        f"{side:9} {run.rate:>6g} {epoch * steps_per_epoch:>6} {run.seconds[epoch - 1]:>8.2f} "
        f"{run.milliseconds:>8.1f} {run.losses[-1]:>16.4f}"
    )

figure = Figure(figsize=(12, 5), layout="constrained")
figure.suptitle(f"Autoencoder of digits, best learning rate of each. {backend_name()}")
by_steps, by_time = figure.subplots(1, 2, sharey=True)
for (side, run), look in zip(best.items(), STYLES):
    steps = steps_per_epoch * np.arange(1, epochs + 1)
    by_steps.plot(steps, run.losses, **look, label=f"{side}, rate {run.rate:g}")
    by_time.plot(run.seconds, run.losses, **look)
logarithmic(by_time.xaxis)
for panel, label in (
    (by_steps, "steps"),
    (by_time, "seconds of training, without compilation (logarithmic)"),
):
    panel.axhline(goal, color="black", linewidth=0.8, linestyle=":")
    panel.set_xlabel(label)
    panel.grid(alpha=0.3)
by_steps.set_ylabel("validation cross-entropy (nats per pixel)")
figure.legend(loc="outside lower center", ncols=len(best))
save(figure, args.out)
