"""
Title: Sign-based steps that fade
Author: keras_tfopt contributors
Date created: 2026/11/20
Last modified: 2026/11/20
Description: AddSign and PowerSign with the decays of keras_tfopt.schedules, against plain descent.
Accelerator: None
"""

"""
## Steps by agreement

AddSign and PowerSign were found by a search over formulas of optimizers. Where the gradient has the
sign of its own average, they take a larger step, elsewhere a smaller one. AddSign multiplies the
gradient by `1 + f` or `1 - f`, PowerSign by `e**f` or `e**-f`.

Toward the end of a training, gradients are mostly noise and signs agree by chance, so `f` may fall
with the step: `sign_decay` takes a schedule. With `f = 0`, both are plain gradient descent.
"""

import keras
import numpy as np
from data import digits
from keras import layers
from matplotlib.figure import Figure
from report import STYLES, backend_name, options, save

import keras_tfopt

args = options(__file__, fast="two decays, one learning rate, one seed")
print(f"keras_tfopt {keras_tfopt.__version__}, {backend_name()}")

"""
## The task

A small network learns 4,000 scans of digits. 1,000 more validate it.
"""

images, labels = digits()
order = np.random.default_rng(args.seed).permutation(len(images))
train, validation = ((images[part], labels[part]) for part in np.split(order, [4000]))
epochs, batch = (4, 100) if not args.fast else (1, 100)
steps = len(train[0]) // batch * epochs

"""
## The decays

The decays are a line, half a cosine, and two half cosines one after the other.
"""

decays = {
    "no decay": None,
    "linear": keras_tfopt.schedules.LinearSignDecay(steps),
    "cosine": keras_tfopt.schedules.CosineSignDecay(steps),
    "restarts": keras_tfopt.schedules.RestartSignDecay(steps, num_periods=2, zero_after=2),
}
if args.fast:
    decays = {name: decays[name] for name in ("no decay", "restarts")}
sides = {"GradientDescent": lambda rate: keras_tfopt.GradientDescent(rate)}
for rule in (keras_tfopt.AddSign, keras_tfopt.PowerSign):
    for name, decay in decays.items():
        sides[f"{rule.__name__}, {name}"] = lambda rate, rule=rule, decay=decay: rule(
            rate, sign_decay=decay
        )
rates = (0.2, 0.4, 0.8) if not args.fast else (0.4,)
seeds = range(args.seed, args.seed + (3 if not args.fast else 1))

"""
## Training

All get the same learning rates. The one with the lowest validation loss with the first seed is
trained with two more seeds, to show how much of a difference is chance.
"""


def trained(side, rate, seed):
    """Validation loss after training."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input(images.shape[1:]),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=sides[side](rate), loss=loss)
    model.fit(*train, batch_size=batch, epochs=epochs, verbose=0)
    return model.evaluate(*validation, batch_size=1000, verbose=0)


results, best_rates = {}, {}
for side in sides:
    first = {rate: trained(side, rate, seeds[0]) for rate in rates}
    rate = min(rates, key=lambda rate: (not np.isfinite(first[rate]), first[rate]))
    results[side] = [first[rate], *(trained(side, rate, seed) for seed in seeds[1:])]
    best_rates[side] = rate
    losses = "  ".join(f"{loss:.4f}" for loss in results[side])
    print(f"{side:22} rate {rate:<5g} validation loss by seed: {losses}", flush=True)

"""
## Results
"""

means = {side: np.mean(losses) for side, losses in results.items()}
spread = np.mean([np.ptp(losses) for losses in results.values()])
print(f"\nOf one optimizer, losses of {len(seeds)} seeds lie {spread:.4f} apart on average.")
for rule in ("AddSign", "PowerSign"):
    plain = means[f"{rule}, no decay"]
    for side in [side for side in sides if side.startswith(rule)]:
        print(
            f"{side:22} mean loss {means[side]:.4f}: {means[side] - means['GradientDescent']:+.4f} "
            f"beside plain descent, {means[side] - plain:+.4f} beside no decay"
        )
        if not side.endswith("no decay"):
            pairs = list(zip(results[side], results[f"{rule}, no decay"]))
            lower = sum(decayed < constant for decayed, constant in pairs)
            print(f"{'':22} lower than without decay with {lower} of {len(pairs)} seeds")

figure = Figure(figsize=(12, 5), layout="constrained")
figure.suptitle(f"Digits, {epochs} epochs. {backend_name()}")
curves, ends = figure.subplots(1, 2)
at = np.arange(0, steps + 1, max(1, steps // 80))
for (name, decay), look in zip(decays.items(), STYLES):
    values = [1.0 if decay is None else float(keras.ops.convert_to_numpy(decay(n))) for n in at]
    curves.plot(at, values, **look, markevery=8, label=name)
curves.set(title="Decays", xlabel="steps done", ylabel="factor f of the sign term")
curves.legend()
curves.grid(alpha=0.3)
for line, (side, losses) in enumerate(results.items()):
    ends.plot(losses, [line] * len(losses), "o", color="black", markerfacecolor="none")
    ends.plot(means[side], line, "|", color="black", markersize=18, markeredgewidth=2)
ends.axvline(means["GradientDescent"], color="black", linewidth=0.8, linestyle=":")
ends.set_yticks(range(len(results)), [f"{side} (rate {best_rates[side]:g})" for side in results])
ends.invert_yaxis()
ends.set(title="Circles: seeds; bars: their mean", xlabel="validation cross-entropy (nats)")
ends.grid(alpha=0.3)
save(figure, args.out)
