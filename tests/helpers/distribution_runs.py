"""The optimizers, models and data of distribution_worker.py."""

import traceback

import keras
import numpy as np
from keras import ops
from keras import optimizers as stock

import keras_tfopt as opt
from tests.cases import CASES
from tests.cells import EXHAUSTIVE, is_wanted
from tests.helpers.compositions import IN_PROCESSES
from tests.helpers.stepping import BACKEND, to_numpy

DEVICES = 2
VOCABULARY, WIDTH, LENGTH, CLASSES = 12, 4, 6, 2
UNUSED = (7, 11)  # ids that no batch has
MASKED = 0
BATCH, BATCHES, EPOCHS = 8, 4, 2


# ---- Rules and wrappers with features that no public optimizer has -------------------------------


class MoveRows(opt.Rule):
    """Moments decay in all rows, the variable moves in touched rows."""

    sparse = "move_rows"
    learning_rate: float = 0.05
    beta: float = opt.within(0, 1, default=0.8)

    def slots(self, like):
        return {"m": opt.zeros(like)}

    def update(self, g, x, s, t):
        m = self.beta * s.m + (1 - self.beta) * g
        return x - t.lr * m, {"m": m}


class Lopsided(opt.Rule):
    """A rule with slots of other shapes than the variable: a number, and a number for each row."""

    scope = "variable"
    sparse = "move_rows"
    learning_rate: float = 0.5

    def slots(self, like):
        slots = {"size": opt.Slot(())}
        if len(like.shape) == 2:
            slots["sizes"] = opt.Slot(like.shape[:1], 1.0)
        return slots

    def update(self, g, x, s, t):
        size = 0.9 * s.size + ops.sqrt(ops.sum(ops.square(g)))
        new = {"size": size}
        if len(g.shape) == 2:
            new["sizes"] = s.sizes + ops.sum(ops.square(g), axis=1)
            g = g / ops.expand_dims(ops.sqrt(new["sizes"]), 1)
        return x - t.lr * g / (1 + size), new


class Picky(opt.Wrapper):
    """A wrapper with hooks that are not linear, so that parts of a gradient give other steps."""

    def slots(self, like):
        return {"largest": opt.zeros(like)}

    def before(self, g, x, s, t):
        return ops.tanh(2 * g), 0.99 * x

    def accept(self, g, x, t):
        return ops.mean(ops.abs(g)) > 0.1  # half of the steps of the table

    def after(self, g, x, s, t):
        return x, {"largest": ops.maximum(s.largest, ops.abs(g))}


class Normalized(opt.Wrapper):
    """A wrapper like `Picky`, with the hooks that see all variables at once."""

    def before_step(self, grads, variables):
        values = [g.values if isinstance(g, opt.RowGradient) else g for g in grads]
        total = sum(ops.sum(ops.square(v)) for v in values)
        return [g / (1 + ops.sqrt(total)) for g in grads]

    def after_step(self, variables):
        values = [ops.convert_to_tensor(v) for v in variables]
        total = sum(ops.sum(ops.square(x)) for x in values)
        return [x * (1 - 1e-3 * ops.sqrt(total)) for x in values]


# ---- Runs ----------------------------------------------------------------------------------------


def representatives():
    """Return the first public optimizer of each scope and sparse mode."""
    first = {}
    for case in CASES:
        if issubclass(case.cls, opt.Rule):
            first.setdefault((case.cls.scope, case.cls.sparse), case)
    return {case.name: case.make for case in first.values()}


def _ggt(**base):
    return opt.GGT(0.05, window=2, svd_epsilon=0.05, sigma_epsilon=0.5, **base)


def _lazy(**base):
    return opt.LazyAdam(0.05, **base)


PLAIN = {**representatives(), "LazyAdam": _lazy, "MoveRows": MoveRows, "Lopsided": Lopsided}
EMA = {"use_ema": True, "ema_momentum": 0.7}
OPTIONS = {
    "unclipped": lambda: opt.Momentum(0.5),
    "clipnorm": lambda: opt.Momentum(0.5, clipnorm=0.02),
    "clipvalue": lambda: opt.Momentum(0.5, clipvalue=0.01),
    "global_clipnorm": lambda: opt.Momentum(0.5, global_clipnorm=0.05),
    "weight_decay": lambda: _lazy(weight_decay=0.1),
    "loss_scale_factor": lambda: opt.Momentum(0.1, loss_scale_factor=1024.0),
    "accumulation": lambda: _lazy(gradient_accumulation_steps=2),
    "accumulation_dense": lambda: opt.Adam(
        0.05, gradient_accumulation_steps=3, global_clipnorm=0.05
    ),
    "accumulation_model": lambda: _ggt(gradient_accumulation_steps=2),
    "ema": lambda: _lazy(**EMA),
    "ema_overwrite": lambda: opt.Momentum(0.1, ema_overwrite_frequency=2, **EMA),
    "ema_accumulation": lambda: _lazy(
        ema_overwrite_frequency=2, gradient_accumulation_steps=2, **EMA
    ),
    "constraint": lambda: opt.Momentum(0.5),  # see `make_model`
    "MovingAverage": lambda: opt.MovingAverage(_lazy(), 0.7),
    "MovingAverage_accumulation": lambda: opt.MovingAverage(
        _lazy(gradient_accumulation_steps=2), 0.7, num_updates=True
    ),
    "MovingAverage_model": lambda: opt.MovingAverage(_ggt(), 0.7),
    "MovingAverage_keras": lambda: opt.MovingAverage(stock.SGD(0.1), 0.7),
    "VariableClipping": lambda: opt.VariableClipping(_lazy(), {"table": [1], "kernel": [0]}, 1.0),
    "DecoupledWeightDecay": lambda: opt.DecoupledWeightDecay(_lazy(), 0.02),
    "DecoupledWeightDecay_keras": lambda: opt.DecoupledWeightDecay(
        stock.Adam(0.05), 0.02, opt.no_vectors
    ),
    "Multitask": lambda: opt.Multitask(opt.LARS(0.05)),
    "Lookahead": lambda: opt.Lookahead(_lazy(), 2),
    "Cautious": lambda: opt.Cautious(_lazy()),
    "ScheduleFree": lambda: opt.ScheduleFree(_lazy(), 0.8),
    "StochasticWeightAveraging": lambda: opt.StochasticWeightAveraging(stock.Adam(0.05), 1, 2),
    "SkipNonFinite": lambda: opt.SkipNonFinite(_lazy()),
    "SkipNonFinite_chain": lambda: opt.SkipNonFinite(
        opt.Lookahead(opt.DecoupledWeightDecay(_lazy(gradient_accumulation_steps=2), 0.02), 2)
    ),
    "Picky": lambda: Picky(_lazy()),
    "Picky_keras": lambda: Picky(stock.Adam(0.05)),
    "Normalized": lambda: Normalized(Picky(opt.MovingAverage(opt.Adam(0.05)))),
    "LossScale": lambda: opt.LossScaleOptimizer(_lazy(), initial_scale=1024.0),
    "LossScale_skips": lambda: opt.LossScaleOptimizer(
        stock.SGD(0.1), initial_scale=3e38, dynamic_growth_steps=2
    ),
    "LossScale_keras": lambda: stock.LossScaleOptimizer(_lazy(), initial_scale=1024.0),
}
RUNS = {**PLAIN, **OPTIONS, **IN_PROCESSES}
CONTROL = "LazyAdam"  # is also trained on half of each batch, as one device alone would
SOME = ("global_clipnorm", "accumulation", "accumulation_model", "ema_overwrite", "Picky")
CLIPPED = ("clipnorm", "clipvalue", "global_clipnorm")
EAGER = ("LazyAdam", "MoveRows", "accumulation_model", "ema_overwrite", "Picky")
# Runs with `opt.layers.Embedding`
LOOKUPS = (*PLAIN, "clipvalue", "global_clipnorm", "weight_decay", "accumulation")
LOOKUPS = (*LOOKUPS, "ema_overwrite", "MovingAverage", "LossScale", "LossScale_keras")

# {spread: {steps: runs}} of each backend
ALL = {
    "tensorflow": {
        "mirrored": {
            "fit": RUNS,
            "lookups": LOOKUPS,
            "loop": PLAIN,
            "rows": PLAIN,
            "eager": EAGER,
            "direct": EAGER,
        },
        # In loops and conditions of a graph, collectives of CPUs fail, also with Keras alone.
        # This strategy copies instead.
        "copying": {"several": EAGER, "resumed": EAGER},
    },
    "jax": {
        "data_parallel": {"fit": RUNS, "lookups": LOOKUPS, "rows": PLAIN},
        "table_rows": {
            "fit": (*PLAIN, *SOME, "MovingAverage"),
            "lookups": LOOKUPS,
            "rows": PLAIN,
            "eager": EAGER[:2],
        },
        "table_columns": {"fit": PLAIN, "lookups": LOOKUPS},
        "wide_patterns": {"fit": PLAIN},
    },
    "torch": {
        "processes": {
            "loop": RUNS,
            # DistributedDataParallel exchanges dense gradients, which do not tell that a masked row
            # was looked up, and has to decay.
            "lookups": [run for run in LOOKUPS if run != "weight_decay"],
            "sparse": PLAIN,
            "rows": PLAIN,
        }
    },
}
# The same for the usual suite. CONTROL takes place with almost all ways to spread work and to
# make steps. TensorFlow alone has replicas, which run the code of a step at the same time and sum
# gradients. So most options and wrappers are there, and all of CLIPPED. JAX computes with arrays of
# all devices: layouts of slots, pieces of rows, models as a whole, conditions and hooks matter.
# On PyTorch, a process that exchanges gradients has dense means, and the optimizer knows nothing.
USUAL = {
    "tensorflow": {
        "mirrored": {
            "fit": (
                *(CONTROL, "GGT", "unclipped", *CLIPPED, "weight_decay", "constraint"),
                *("accumulation_dense", "ema_overwrite", "ema_accumulation"),
                *("MovingAverage_model", "MovingAverage_keras", "VariableClipping"),
                *("StochasticWeightAveraging", "SkipNonFinite_chain", "Picky_keras", "Normalized"),
                *("LossScale", "LossScale_skips"),
            ),
            "lookups": (CONTROL, "GGT", "global_clipnorm", "MovingAverage", "LossScale_keras"),
            "loop": (CONTROL, "Lopsided"),
            "rows": (CONTROL, "LARS", "GGT"),
            "eager": (CONTROL,),
            "direct": (CONTROL, "Picky"),
        },
        "copying": {
            "several": (CONTROL, "accumulation_model"),
            "resumed": (CONTROL, "accumulation_model"),
        },
    },
    "jax": {
        "data_parallel": {
            "fit": (
                *(CONTROL, "Lopsided", "accumulation_model", "SkipNonFinite", "Normalized"),
                *("accumulation", "ema", "Cautious", "ScheduleFree", "Multitask"),
                "LossScale_keras",
            ),
            "rows": (CONTROL,),
        },
        "table_rows": {
            "fit": (CONTROL, "ema_overwrite", "MovingAverage"),
            "lookups": (CONTROL, "LossScale", "RectifiedAdam"),
            "rows": (CONTROL, "Lopsided"),
            "eager": (CONTROL,),
        },
        "table_columns": {"fit": (CONTROL,), "lookups": (CONTROL,)},
        "wide_patterns": {"fit": ("Lopsided",)},  # LazyAdam has no slots of other shapes
    },
    "torch": {
        "processes": {
            "loop": (CONTROL, "LossScale", "global_clipnorm"),
            "lookups": (CONTROL, "Lopsided"),
            "sparse": (CONTROL, "GGT"),
            "rows": (CONTROL,),
        }
    },
}
SPREADS = (ALL if EXHAUSTIVE else USUAL)[BACKEND]


def optimizer_of(run):
    """Return the name of the outermost optimizer of a run, if that is what the run is called."""
    return run.split(" ")[0].split("_")[0]


def is_compiled(run):
    """Return whether PyTorch compiles the steps of a run."""
    return EXHAUSTIVE or run in (CONTROL, *SOME)


def baseline(steps, run):
    """Return how steps are made on one device, for runs with these steps to be compared with."""
    # On TensorFlow these train on the same batches, with row gradients of the same rows. But only
    # `opt.layers.Embedding` tells that a masked row was looked up, and has to decay.
    like_fit = BACKEND == "tensorflow" and steps in ("lookups", "loop", "eager", "several")
    return "fit" if like_fit and (steps, run) != ("lookups", "weight_decay") else steps


def every_run():
    """Yield (spread, steps, run): first all runs on one device, then those that are spread."""
    spread_runs = [
        (spread, steps, run)
        for spread, modes in SPREADS.items()
        for steps, runs in modes.items()
        for run in runs
        if is_wanted(optimizer_of(run))
    ]
    yield from dict.fromkeys(("one", baseline(steps, run), run) for _, steps, run in spread_runs)
    yield from spread_runs


# ---- The job -------------------------------------------------------------------------------------


def data(parts=1):
    """Return ids and targets. Some ids repeat in a sample, some are masked, some in one half only.

    With several parts, return only the first part of each batch, as one device would see it.
    """
    rng = np.random.default_rng(0)
    used = np.setdiff1d(np.arange(1, VOCABULARY), UNUSED)
    ids = rng.choice(used, size=(BATCH * BATCHES, LENGTH))
    ids[:, 4:] = np.where(rng.random((len(ids), 2)) < 0.7, MASKED, ids[:, 4:])
    ids[:, 1] = ids[:, 0]
    targets = rng.normal(size=(len(ids), CLASSES)).astype("float32")
    kept = np.arange(len(ids)) % BATCH < BATCH // parts
    return ids[kept].astype("int32"), targets[kept]


def batches():
    ids, targets = (np.split(array, BATCHES) for array in data())
    for _ in range(EPOCHS):
        yield from zip(ids, targets, strict=True)


def named_rows():
    """Yield values and indices of rows: in both halves, in one, repeated, and named with zeros."""
    rng = np.random.default_rng(2)
    for _ in range(5):
        ids = np.array([1, 3, 3, 5, 1, 6, 8, 5], "int32") + rng.integers(0, 3, dtype="int32")
        values = rng.normal(size=(len(ids), WIDTH)).astype("float32")
        values[[3, 7]] = 0.0
        yield values, ids


def start():
    rng = np.random.default_rng(1)
    shapes = (VOCABULARY, WIDTH), (WIDTH, CLASSES), (CLASSES,)
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


def make_model(run, embedding=keras.layers.Embedding):
    constraint = keras.constraints.MaxNorm(1.0) if run == "constraint" else None
    model = keras.Sequential(
        [
            embedding(
                VOCABULARY, WIDTH, mask_zero=True, embeddings_constraint=constraint, name="table"
            ),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(CLASSES, kernel_constraint=constraint, name="dense"),
        ]
    )
    model.build((None, LENGTH))
    model.set_weights(start())
    return model


def fit(run, parts=1, embedding=keras.layers.Embedding, **compile_arguments):
    model, optimizer = make_model(run, embedding), RUNS[run]()
    model.compile(optimizer=optimizer, loss="mse", **compile_arguments)
    ids, targets = data(parts)
    model.fit(ids, targets, batch_size=BATCH // parts, epochs=EPOCHS, shuffle=False, verbose=0)
    return model, optimizer


def difference(a, b):
    """Return the largest difference, relative where numbers are larger than 1."""
    a, b = a.astype(float), b.astype(float)
    return float(np.max(np.abs(a - b) / np.maximum(1, np.abs(a)), initial=0.0))


class Results(dict):
    def record(self, spread, steps, run, train, facts=lambda model, optimizer: {}):
        """Keep the results of `train(run)`, which returns model and optimizer."""
        try:
            model, optimizer = train(run)
            found = dict(zip(("table", "kernel", "bias"), model.get_weights(), strict=True))
            for number, variable in enumerate(optimizer.variables):
                role = variable.name.rsplit("_", 1)[-1]  # before it is a number of the model
                found[f"state/{number} {role}"] = to_numpy(variable)
            for name, fact in facts(model, optimizer).items():
                found[f"fact/{name}"] = np.asarray(fact)
        except Exception:
            found = {"error": np.asarray(traceback.format_exc())}
        self.update({f"{spread}/{steps}/{run}/{name}": value for name, value in found.items()})
