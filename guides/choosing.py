"""
Title: Choosing an optimizer
Author: keras_tfopt contributors
Date created: 2026/11/20
Last modified: 2026/11/20
Description: Find optimizers by what they do, read what they cost, try a short list on your task.
Accelerator: None
"""

"""
## What there is

`keras_tfopt.list_optimizers` knows the optimizers and wrappers of this package, and those of Keras
as `keras.adam` and so on. It filters by name and by what an optimizer does. From a shell,
`python -m keras_tfopt list` prints the same.
"""

import keras
import numpy as np
from data import digits
from keras import layers
from matplotlib.figure import Figure
from report import StepTimer, accuracy, backend_name, grid, options, save

import keras_tfopt

args = options(__file__, fast="two optimizers, two learning rates, one epoch")
print(f"keras_tfopt {keras_tfopt.__version__}, {backend_name()}")

questions = {
    "everything that is called adam": {"filter": "*adam*"},
    "embedding tables: rows that a batch does not touch stay": {"row_gradients": True},
    "more than a learning rate for each weight": {"second_order": True},
    "what tf.contrib.opt had": {"source": "tf.contrib.opt"},
}
for question, answer in questions.items():
    print(f"\n{question}:\n  " + ", ".join(keras_tfopt.list_optimizers(**answer)))

"""
## What each costs and assumes

These questions decide most cases before anything is trained.

- **Is most of the model an embedding table?** Take an optimizer that leaves other rows alone
  (`lazy` below) and `keras_tfopt.layers.Embedding`. The guide embeddings.py shows both.
- **Is memory short?** For each weight of 4 bytes, Adam keeps 8 bytes of state, and momentum 4.
- **Must weights be exactly zero?** Only Ftrl, AdagradDA and the proximal methods do that: see
  sparse.py.
- **Are batches very large?** See large_batch.py.

Otherwise try some optimizers. `keras_tfopt.info` has the formula, the defaults, the paper and the
differences from TensorFlow 1 and from Keras. The table takes four facts from it.
"""

names = ("momentum", "adagrad", "rmsprop", "adam", "lars", "power_sign", "ggt", "keras.adam")
names = names if not args.fast else names[-2:]
infos = {name: keras_tfopt.info(name) for name in names}
print(f"\n{'':12} {'state, bytes a weight':>22} {'sees':>10} {'lazy':>6}  description")
for name, info in infos.items():
    state = info.bytes_per_parameter
    print(f"{name:12} {state:>22.3g} {info.scope or '':>10} {info.lazy!s:>6}  {info.description}")
print(f"\nThe whole of it for one of them:\n\n{keras_tfopt.info('lars')}\n")

"""
## Try a short list

All optimizers get the same task, initial weights, batches and learning rates. The grid of learning
rates has to be wide, because a learning rate means something else to each optimizer.

`keras_tfopt.get` makes an optimizer from its name and arguments. A wrapper has a name as well:
`"moving_average(lars)"`. LARS multiplies the learning rate by its argument `eeta`, which is 0.001
by default; with 0.1, the same grid fits.

The data are 5,000 scans of digits: 3,000 to train on, 1,000 to choose by, 1,000 to test.
"""

images, labels = digits()
order = np.random.default_rng(args.seed).permutation(len(images))
train, validation, test = ((images[part], labels[part]) for part in np.split(order, [3000, 4000]))
rates = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0) if not args.fast else (0.01, 0.1)
epochs = 5 if not args.fast else 1
arguments = {"lars": {"eeta": 0.1}}
timers, models = {}, {}


def tried(name, rate):
    """Validation accuracy of one optimizer with one learning rate."""
    keras.utils.set_random_seed(args.seed)
    model = keras.Sequential(
        [
            keras.Input(images.shape[1:]),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras_tfopt.get(name, learning_rate=rate, **arguments.get(name, {})),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    timer = timers.setdefault(name, StepTimer())
    model.fit(*train, batch_size=100, epochs=epochs, callbacks=[timer], verbose=0)
    models[name, rate] = model
    return accuracy(model, validation)


scores = np.array([[tried(name, rate) for rate in rates] for name in names])

"""
## Results

The learning rate is chosen by the validation images. The test images are used once. Rates near the
best are those with an accuracy at most 0.03 below the highest in the table. An optimizer with many
of them is easy to tune. The time is the median of a whole training step.
"""

head = f"{'':12} {'best rate':>9} {'validation':>11} {'test':>6}"
print(f"{head} {'rates near the best':>20} {'ms/step':>8}")
for name, row in zip(names, scores):
    rate = rates[row.argmax()]
    near = np.sum(row >= scores.max() - 0.03)
    milliseconds = 1000 * np.median(timers[name].seconds)
    test_accuracy = accuracy(models[name, rate], test)
    print(
        f"{name:12} {rate:>9g} {row.max():>11.3f} {test_accuracy:>6.3f} {near:>20} "
        f"{milliseconds:>8.2f}"
    )
error = np.sqrt(scores.max() * (1 - scores.max()) / len(validation[0]))
print(f"Each accuracy has a standard error of at least {error:.3f}: mind no smaller differences.")

figure = Figure(figsize=(8, 6), layout="constrained")
panel = figure.subplots()
grid(panel, scores, names, rates, low=0.7, high=0.95)
panel.set(
    title=f"Validation accuracy (fraction right) after {epochs} epochs\n{backend_name()}",
    xlabel="learning rate",
    ylabel="name for keras_tfopt.get",
)
save(figure, args.out)
