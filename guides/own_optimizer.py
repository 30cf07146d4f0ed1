"""
Title: Your own optimizer in one file
Author: keras_tfopt contributors
Date created: 2026/11/20
Last modified: 2026/11/29
Description: Write AdaBelief, check it against NumPy, and use it like any other optimizer.
Accelerator: None
"""

"""
## One formula

An optimizer is a class with one pure function. It is given a gradient, a variable, the state and
the scalars of the step, and returns the new variable and the new state. Everything else comes with
the base class, on TensorFlow, JAX and PyTorch: compilation, row gradients, clipping, weight decay,
accumulation, half precision, saving.

The example is AdaBelief (Zhuang et al., 2020). This package has it. Here it is written once more.
Adam divides by the size of the gradient. AdaBelief divides by the distance between the gradient
and its average:

$$
\\begin{aligned}
m &\\leftarrow \\beta_1 m + (1 - \\beta_1) g \\\\
s &\\leftarrow \\beta_2 s + (1 - \\beta_2) (g - m)^2 + \\epsilon \\\\
x &\\leftarrow x - \\eta \\frac{m / (1 - \\beta_1^t)}{\\sqrt{s / (1 - \\beta_2^t)} + \\epsilon}
\\end{aligned}
$$
"""

import tempfile
from pathlib import Path

import keras
import numpy as np
from data import digits
from keras import layers, ops
from matplotlib.figure import Figure
from report import STYLES, backend_name, options, save

import keras_tfopt

args = options(__file__, fast="one learning rate, one epoch")
print(f"keras_tfopt {keras_tfopt.__version__}, {backend_name()}")

"""
## The optimizer

`register` lets `keras.models.load_model` find the class by its name, which no other class may have.
`scope = "element"` says that the rule looks at each weight alone, so the engine may lay variables
end to end. `sparse = "rows"` says that rows of an embedding table that a batch did not look up stay
as they are, moments included. Annotated attributes are the arguments of the constructor: `within`
says which numbers they may be. `scalars` is computed once per step; the rule finds the results in
`t`.
"""


@keras_tfopt.register
class MyAdaBelief(keras_tfopt.Rule):
    """Steps that are small where gradients surprise."""

    scope = "element"
    sparse = "rows"

    learning_rate: float = 0.001
    beta_1: float = keras_tfopt.within(0, 1, default=0.9, right_open=True)
    beta_2: float = keras_tfopt.within(0, 1, default=0.999, right_open=True)
    epsilon: float = keras_tfopt.within(0, default=1e-14)

    def slots(self, like):
        return {"m": keras_tfopt.zeros(like), "s": keras_tfopt.zeros(like)}

    def scalars(self, lr, step):
        return {"rate": lr / (1 - self.beta_1**step), "correction": 1 - self.beta_2**step}

    def update(self, g, x, s, t):
        m = self.beta_1 * s.m + (1 - self.beta_1) * g
        v = self.beta_2 * s.s + (1 - self.beta_2) * ops.square(g - m) + self.epsilon
        return x - t.rate * m / (ops.sqrt(v / t.correction) + self.epsilon), {"m": m, "s": v}


"""
## Is it right?

This compares it with the same formula in NumPy, in float64, on the same gradients. The optimizer
computes in float32, and rounding adds up: after 100 steps, weights of size 1 may differ by some
1e-6. A difference above 1e-5 is an error here.
"""


def belief_in_numpy(x, gradients, rate, beta_1=0.9, beta_2=0.999, epsilon=1e-14):
    x, m, s = x.astype("float64"), 0.0, 0.0
    for t, g in enumerate(gradients.astype("float64"), start=1):
        m = beta_1 * m + (1 - beta_1) * g
        s = beta_2 * s + (1 - beta_2) * (g - m) ** 2 + epsilon
        m_hat, s_hat = m / (1 - beta_1**t), s / (1 - beta_2**t)
        x = x - rate * m_hat / (np.sqrt(s_hat) + epsilon)
        yield x


rng = np.random.default_rng(args.seed)
start = rng.normal(size=(20, 30)).astype("float32")
gradients = rng.normal(size=(100, 20, 30)).astype("float32")
variable, optimizer = keras.Variable(start), MyAdaBelief(0.01)
differences = []
for gradient, expected in zip(gradients, belief_in_numpy(start, gradients, 0.01)):
    optimizer.apply([ops.convert_to_tensor(gradient)], [variable])
    found = ops.convert_to_numpy(variable)
    differences.append(np.abs(found - expected).max())
moved = np.abs(found - start).max()
print(f"Largest difference from NumPy in {len(gradients)} steps: {max(differences):.1e};")
print(f"the weights moved by up to {moved:.2f} in these.")
if max(differences) > 1e-5:
    raise AssertionError("The optimizer is not the formula in NumPy.")

"""
## A rule from a rule

A rule is an ordinary class. It may have properties and methods of its own, and derive from another
rule. Gradient centralization (Yong et al., 2020) subtracts from the gradient of a kernel its mean
over the inputs. Then `super()` does what AdaBelief does. The rule must see the shape of a kernel,
so it says `scope = "variable"`.
"""


@keras_tfopt.register
class CentralizedAdaBelief(MyAdaBelief):
    """AdaBelief on gradients whose mean over the inputs of each unit is zero."""

    scope = "variable"
    share: float = keras_tfopt.within(0, 1, default=1.0)

    @property
    def kept(self):
        return 1 - self.share

    def update(self, g, x, s, t):
        if len(g.shape) > 1:  # a fact about the variable, known before there are numbers
            mean = ops.mean(g, axis=tuple(range(len(g.shape) - 1)), keepdims=True)
            g = g - mean + self.kept * mean
        return super().update(g, x, s, t)


kernel = keras.Variable(start)
CentralizedAdaBelief(0.01).apply([ops.convert_to_tensor(gradients[0])], [kernel])
by_hand = gradients[0] - gradients[0].mean(axis=0, keepdims=True)
expected = next(belief_in_numpy(start, by_hand[None], 0.01))
apart = np.abs(ops.convert_to_numpy(kernel) - expected).max()
print(f"CentralizedAdaBelief, one step: {apart:.1e} from NumPy.")
if apart > 1e-5:
    raise AssertionError("The rule that derives is not the formula in NumPy.")

"""
## A wrapper

A wrapper changes what goes into the step of another optimizer, or what comes out, and works around
any of them. Grokfast (Lee et al., 2024) adds to the gradient what is slow in it, an average:

$$
h \\leftarrow \\alpha h + (1 - \\alpha) g, \\qquad g \\leftarrow g + \\lambda h
$$

`before` returns the gradient and the variable, and new values of slots. The hook `after`, which
runs when the optimizer inside has made its step, returns the variable and slots.
"""


@keras_tfopt.register
class Grokfast(keras_tfopt.Wrapper):
    """Amplifies what is slow in the gradients."""

    alpha: float = keras_tfopt.within(0, 1, default=0.98)
    factor: float = keras_tfopt.within(0, default=2.0)

    def slots(self, like):
        return {"slow": keras_tfopt.zeros(like)}

    def before(self, g, x, s, t):
        slow = self.alpha * s.slow + (1 - self.alpha) * g
        return g + self.factor * slow, x, {"slow": slow}


kernel, around = keras.Variable(start), Grokfast(MyAdaBelief(0.01))
slow, amplified = 0.0, []
for gradient in gradients:
    around.apply([ops.convert_to_tensor(gradient)], [kernel])
    slow = 0.98 * slow + 0.02 * gradient.astype("float64")
    amplified.append(gradient + 2.0 * slow)
*_, expected = belief_in_numpy(start, np.array(amplified), 0.01)
apart = np.abs(ops.convert_to_numpy(kernel) - expected).max()
print(f"Grokfast around AdaBelief, {len(gradients)} steps: {apart:.1e} from NumPy.")
if apart > 1e-5:
    raise AssertionError("The wrapper is not the formula in NumPy.")

"""
## Rows that stay

A `RowGradient` names the rows that it touches, as a lookup in `keras_tfopt.layers.Embedding` does.
The rule has no code for that.
"""

table = keras.Variable(start)
rows = keras_tfopt.RowGradient(ops.ones((2, 30)), ops.convert_to_tensor([3, 7]), table.shape)
MyAdaBelief(0.01).apply([rows], [table])
changed = np.flatnonzero((ops.convert_to_numpy(table) != start).any(axis=1))
print(f"A gradient for rows 3 and 7 changed the rows {changed.tolist()} of {len(start)}.")
if changed.tolist() != [3, 7]:
    raise AssertionError("Rows without gradient changed.")

"""
## In `fit`, compared with Adam

Both get the same learning rates, initial weights and batches: 4,000 scans of digits, and 1,000 to
validate. Options of the base class, such as `global_clipnorm`, work without any code in the rule.
"""

images, labels = digits()
order = rng.permutation(len(images))
train, validation = ((images[part], labels[part]) for part in np.split(order, [4000]))
rates = (0.0003, 0.001, 0.003, 0.01) if not args.fast else (0.001,)
epochs = 8 if not args.fast else 1
sides = {
    "keras_tfopt.Adam": lambda rate: keras_tfopt.Adam(rate, global_clipnorm=5.0),
    "AdaBelief": lambda rate: MyAdaBelief(rate, global_clipnorm=5.0),
}


def trained(optimizer):
    keras.utils.set_random_seed(args.seed)
    model = keras.Sequential(
        [
            keras.Input(images.shape[1:]),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss)
    history = model.fit(
        *train,
        batch_size=100,
        epochs=epochs,
        validation_data=validation,
        validation_batch_size=1000,
        verbose=0,
    )
    return model, history.history["val_loss"]


best = {}
print(f"\nValidation loss after {epochs} epochs, rates " + ", ".join(f"{r:g}" for r in rates))
for side, make in sides.items():
    runs = {rate: trained(make(rate)) for rate in rates}
    print(f"{side:17}" + "".join(f"{losses[-1]:>9.4f}" for _, losses in runs.values()))
    rate = min(rates, key=lambda rate: runs[rate][1][-1])
    best[side] = rate, *runs[rate]
adam, belief = (losses[-1] for _, _, losses in best.values())
print(f"Best of each: AdaBelief {belief:.4f}, Adam {adam:.4f}; {belief - adam:+.4f}.")

"""
## Saved, loaded, wrapped

A file contains the name of the class and its state, so the next step is the same. Wrappers go
around it as around any optimizer.
"""

_, model, _ = best["AdaBelief"]
with tempfile.TemporaryDirectory() as folder:
    model.save(Path(folder) / "model.keras")
    loaded = keras.models.load_model(Path(folder) / "model.keras")
first = model.train_on_batch(train[0][:100], train[1][:100])
again = loaded.train_on_batch(train[0][:100], train[1][:100])
apart = max(np.abs(a - b).max() for a, b in zip(model.get_weights(), loaded.get_weights()))
print(f"Loss of the next step {float(first):.6f}, in the loaded model {float(again):.6f};")
print(f"largest difference of weights after it: {apart:.1e}.")

rate = best["AdaBelief"][0]
averaging = keras_tfopt.MovingAverage(MyAdaBelief(rate), average_decay=0.98, num_updates=True)
model, losses = trained(averaging)
with keras_tfopt.averaged(model):
    averaged = model.evaluate(*validation, batch_size=1000, verbose=0)
print(f"In a MovingAverage: validation loss {losses[-1]:.4f}, with the averages {averaged:.4f}.")

figure = Figure(figsize=(12, 4.5), layout="constrained")
figure.suptitle(backend_name())
training, check = figure.subplots(1, 2)
for (side, (rate, _, losses)), look in zip(best.items(), STYLES):
    training.plot(range(1, epochs + 1), losses, **look, label=f"{side}, rate {rate:g}")
training.set(xlabel="epoch", ylabel="validation cross-entropy (nats)", title="Digits")
training.legend()
check.plot(range(1, len(differences) + 1), differences, color="black")
check.set(
    title="AdaBelief beside NumPy in float64",
    xlabel="step",
    ylabel="largest difference of weights",
    yscale="log",
)
for panel in (training, check):
    panel.grid(alpha=0.3)
save(figure, args.out)
