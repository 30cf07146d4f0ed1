"""The options that Keras gives every optimizer, with our optimizers, dense and row gradients.

What is right comes from a second writing of the options in NumPy (`Expected`), around the
references of the rules; from exact relations (one step on a mean is k micro-steps); or from stock
Keras, on dense variables in float32, where it is right.
"""

import itertools

import keras
import numpy as np
import pytest

import keras_tfopt
from integration.stock_defects import mean_of_outputs
from tests import stepping
from tests.cases import CASES, every_case
from tests.stepping import BACKEND, MODES, Rows, Runner, make_variable, policy, to_numpy
from tests.test_contract import assert_close

CASE = {case.name: case for case in CASES}
# The options are those of a wrapper's inner optimizer.
RULES = [case for case in CASES if case.inner is None]
SCHEDULE = keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 0.5)  # 0.1 / (1 + count / 2)

INITIAL = {
    "layer/kernel": np.random.default_rng(1).normal(size=(4, 3)),
    "layer/bias": np.random.default_rng(2).normal(size=5),
    "table/embeddings": np.random.default_rng(3).normal(size=(7, 3)),
}
RESTING = [5, 6]  # rows that never get a gradient


def initial(dtype="float32"):
    return {path: value.astype(dtype) for path, value in INITIAL.items()}


def gradients(count, dtype="float32", seed=0, scale=1.0):
    """`count` dicts of gradients, the table's with repeated rows."""
    rng = np.random.default_rng(seed)
    plan = []
    for _ in range(count):
        step = {p: rng.normal(size=v.shape).astype(dtype) for p, v in INITIAL.items()}
        indices = rng.permutation(5)[[0, 1, 2, 0]].astype("int32")
        step["table/embeddings"] = Rows(rng.normal(size=(4, 3)).astype(dtype), indices)
        plan.append({path: _times(g, np.dtype(dtype).type(scale)) for path, g in step.items()})
    return plan


def _times(g, factor):
    return Rows(g.values * factor, g.indices) if isinstance(g, Rows) else g * factor


def dense_like(g, x):
    if not isinstance(g, Rows):
        return np.asarray(g, x.dtype)
    total = np.zeros_like(x)
    np.add.at(total, g.indices, np.asarray(g.values, x.dtype))
    return total


class Expected:
    """The options in NumPy, in float64, around the reference of a rule.

    In this order: repeated rows are summed, the loss is scaled back, micro-steps are added up, the
    mean is clipped and, to maximize, negated, weights decay, the rule takes its step, averages
    follow, and replace the variables where they are asked to. Rows stay rows all along.
    """

    def __init__(self, case, start, variant=None, no_decay=(), learning_rate=None, **options):
        self.reference = case.make_reference(variant)
        if learning_rate is not None:
            self.reference.learning_rate = learning_rate
        self.x = {path: np.asarray(value, "float64") for path, value in start.items()}
        self.s = self.reference.start(self.x)
        self.options, self.no_decay = options, no_decay
        self.steps, self.micro_steps = 0, 0
        self.averages = dict(self.x)
        self._start_sums()

    def _start_sums(self):
        self.sums = {path: np.zeros_like(value) for path, value in self.x.items()}
        self.named = {path: set() for path in self.x}

    def step(self, grads):
        o = self.options
        grads = {path: self._summed(path, g) for path, g in grads.items()}
        grads = {p: _times(g, 1 / o.get("loss_scale_factor", 1.0)) for p, g in grads.items()}
        every = o.get("gradient_accumulation_steps", 1)
        if every > 1:
            for path, g in grads.items():
                self.sums[path] = self.sums[path] + dense_like(g, self.x[path])
                self.named[path] |= set(g.indices.tolist()) if isinstance(g, Rows) else set()
            self.micro_steps += 1
            if self.micro_steps % every:
                return
            grads = {path: self._touched(path, g / every) for path, g in self.sums.items()}
            self._start_sums()
        self.steps += 1
        self._move(self._clipped(grads))
        if o.get("use_ema"):
            self._average(o.get("ema_momentum", 0.99), o.get("ema_overwrite_frequency"))

    def _summed(self, path, g):
        if not isinstance(g, Rows):
            return g
        rows = np.unique(g.indices)
        return Rows(dense_like(g, self.x[path])[rows], rows)

    def _touched(self, path, g):
        """In a mean over micro-steps: rows that were named, and all others that are not zero."""
        if not path.endswith("embeddings") and not self.named[path]:
            return g
        others = np.flatnonzero(np.any(g != 0, axis=1)).tolist()
        rows = np.array(sorted(self.named[path].union(others)), "int64")
        return Rows(g[rows], rows)

    def _clipped(self, grads):
        o = self.options
        values = {p: g.values if isinstance(g, Rows) else g for p, g in grads.items()}
        norms = {p: np.sqrt(np.sum(np.square(v, dtype="float64"))) for p, v in values.items()}
        if "clipvalue" in o:
            most = o["clipvalue"]
            values = {p: np.clip(v, -most, most) for p, v in values.items()}
        if "clipnorm" in o:
            values = {p: v * min(1.0, o["clipnorm"] / norms[p]) for p, v in values.items()}
        if "global_clipnorm" in o:
            total = np.sqrt(sum(norm**2 for norm in norms.values()))
            values = {p: v * min(1.0, o["global_clipnorm"] / total) for p, v in values.items()}
        if o.get("maximize"):
            values = {p: -v for p, v in values.items()}
        return {
            p: Rows(values[p], g.indices) if isinstance(g, Rows) else values[p]
            for p, g in grads.items()
        }

    def _move(self, grads):
        rate = self.options.get("weight_decay", 0.0) * self.reference.lr(self.steps)
        x = dict(self.x)
        for path, g in grads.items():
            if path in self.no_decay or not rate:
                continue
            rows = slice(None)
            if isinstance(g, Rows) and self.reference.sparse != "dense":
                rows = g.indices
            x[path] = x[path].copy()
            x[path][rows] -= rate * x[path][rows]
        self.x, self.s = self.reference.advance(grads, x, self.s, self.steps)

    def _average(self, momentum, overwrite_every):
        for path, value in self.x.items():
            old = self.averages[path] if self.steps > 1 else value
            self.averages[path] = momentum * old + (1 - momentum) * value
        if overwrite_every and self.steps % overwrite_every == 0:
            self.x = dict(self.averages)


def follow(runner, expected, plan, tolerance, left_out=()):
    """Step both and compare after every step; then compare what `use_ema` leaves at the end.

    Slots that are `left_out` do not know of options.
    """
    for count, grads in enumerate(plan, start=1):
        runner.step(grads)
        expected.step(grads)
        for path, value in runner.values.items():
            assert_close(value, expected.x[path], tolerance, f"{path} after step {count}")
        for path in expected.s:
            for name, want in expected.s[path].items():
                if name in left_out:
                    continue
                largest = np.max(np.abs(want), initial=0.0)
                got = runner.slots[path][name]
                what = f"slot {name} of {path} after step {count}"
                assert_close(got, want, 20 * tolerance, what, max(largest, 1e-3))
    if "use_ema" in expected.options:
        runner.optimizer.finalize_variable_values(runner.variables)
        for path, value in runner.values.items():
            assert_close(value, expected.averages[path], tolerance, f"average of {path}")


def by_row_mode():
    """A case for each of the ways of rules with rows."""
    names = {"dense": "Adam", "rows": "LazyAdam", "move_rows": "Nadam"}
    assert all(CASE[name].cls.sparse == mode for mode, name in names.items())
    return [CASE[name] for name in names.values()]


EMA = {"use_ema": True, "ema_momentum": 0.7}
OPTIONS = {
    "weight_decay": {"weight_decay": 0.3},
    "clipnorm": {"clipnorm": 1.5},
    "clipvalue": {"clipvalue": 0.4},
    "global_clipnorm": {"global_clipnorm": 2.0},
    "use_ema": EMA,
    "ema_overwrite_frequency": {**EMA, "ema_overwrite_frequency": 2},
    "loss_scale_factor": {"loss_scale_factor": 6.0},
    "accumulation": {"gradient_accumulation_steps": 2},
    # A few of the many combinations; the last has everything.
    "accumulation+global_clipnorm+weight_decay": {
        "gradient_accumulation_steps": 3,
        "global_clipnorm": 1.0,
        "weight_decay": 0.2,
    },
    "use_ema+accumulation": {**EMA, "gradient_accumulation_steps": 2},
    "loss_scale_factor+clipvalue+weight_decay": {
        "loss_scale_factor": 0.25,
        "clipvalue": 1.0,
        "weight_decay": 0.1,
    },
    "maximize+accumulation+clipnorm+weight_decay": {
        "maximize": True,
        "gradient_accumulation_steps": 2,
        "clipnorm": 1.0,
        "weight_decay": 0.2,
    },
    "everything": {
        **EMA,
        "ema_overwrite_frequency": 2,
        "gradient_accumulation_steps": 2,
        "global_clipnorm": 1.0,
        "weight_decay": 0.2,
        "loss_scale_factor": 6.0,
    },
}


def allowed(case, options):
    """LARS has a weight decay of its own, which the reference knows."""
    own = "weight_decay" in case.variants[case.main]
    return {k: v for k, v in options.items() if not (own and k == "weight_decay")}


def run_against_numpy(case, options, mode, dtype="float32", count=6):
    options = allowed(case, options)
    runner = Runner(case.make(**options), initial(dtype), mode, dtype)
    expected = Expected(case, initial(dtype), **options)
    plan = gradients(count, dtype, scale=options.get("loss_scale_factor", 1.0))
    tolerance = 4 * case.tolerance(dtype)  # several roundings more than a rule
    follow(runner, expected, plan, tolerance, case.before_options)
    return runner


# Every option, against NumPy


def pairs(cases, names=OPTIONS):
    """Cases with options that the expectation is defined for."""
    return pytest.mark.parametrize(
        ("case", "name"),
        [
            pytest.param(
                case, name, id=f"{case.name}-{name}", marks=pytest.mark.cell(invariant=name)
            )
            for case in cases
            for name in names
            # Does a wrapper see the variable before or after it is overwritten? Nobody says. And
            # averages of the optimizer inside do not see what a wrapper does after the step.
            if case.inner is None
            or "ema_overwrite_frequency" not in OPTIONS[name]
            and not (case.moves_after and "use_ema" in OPTIONS[name])
        ],
    )


@pairs(CASES)
def test_option(case, name):
    runner = run_against_numpy(case, OPTIONS[name], "eager")
    if case.sparse == "rows" and not OPTIONS[name].get("use_ema"):  # averages round
        table = runner.values["table/embeddings"]
        assert np.array_equal(table[RESTING], initial()["table/embeddings"][RESTING])


@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, "compiled") for name in OPTIONS]
    + [("everything", mode) for mode in MODES if mode not in ("eager", "compiled")],
)
@pytest.mark.spread
def test_option_in_compiled_steps(name, mode):
    run_against_numpy(CASE["LazyAdam"], OPTIONS[name], mode)


@pytest.mark.slow
@pairs(CASES, ["everything"])
def test_all_options_together_in_compiled_steps(case, name):
    run_against_numpy(case, OPTIONS[name], "compiled")


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.spread
def test_option_in_float64(name):
    run_against_numpy(CASE["LazyAdam"], OPTIONS[name], "eager", "float64")


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.spread
def test_option_in_fit(name):
    """Through `fit`, with what the backend makes of an embedding's gradient."""
    options = dict(OPTIONS[name])
    model = keras.Sequential(
        [keras.layers.Input((3,), dtype="int32"), keras.layers.Embedding(4, 2)]
    )
    table = np.random.default_rng(0).normal(size=(4, 2)).astype("float32")
    model.set_weights([table])
    case = CASE["LazyAdam"]
    model.compile(case.make(**options), mean_of_outputs)
    ids = np.array([[1, 1, 2], [2, 2, 2], [1, 2, 1], [0, 1, 0]])
    model.fit(ids, np.zeros((4, 3)), batch_size=1, epochs=3, shuffle=False, verbose=0)

    path = "table/embeddings"
    expected = Expected(case, {path: table}, **options)
    scale = options.get("loss_scale_factor", 1.0)
    for row in [*ids] * 3:
        expected.step({path: Rows(np.full((3, 2), scale / 6), row)})
    want = expected.averages[path] if options.get("use_ema") else expected.x[path]
    assert_close(model.get_weights()[0], want, 4e-6, "table")
    if not options.get("use_ema"):
        assert np.array_equal(model.get_weights()[0][3], table[3])


@pairs(
    [case for case in RULES if case.sparse == "rows"],
    [name for name in OPTIONS if "gradient_accumulation_steps" not in OPTIONS[name]],
)
def test_rows_stay_rows(case, name, monkeypatch):
    def refuse(rows):
        raise AssertionError("a row gradient was made dense")

    backend = keras_tfopt.execution.select.backend
    optimizer = case.make(**allowed(case, OPTIONS[name]))
    runner = Runner(optimizer, initial(), "eager")
    monkeypatch.setattr(backend, "to_dense", refuse)
    for grads in gradients(2):
        runner.step(grads)


# Where stock Keras is right, as it is


@pytest.mark.parametrize(
    "name",
    # Together, stock averages after every micro-step, in which nothing has moved; and stock has
    # no `maximize`.
    [
        name
        for name, options in OPTIONS.items()
        if not {"use_ema", "gradient_accumulation_steps"} <= set(options)
        and "maximize" not in options
    ],
)
def test_dense_steps_are_those_of_stock_keras(name):
    """Stock momentum keeps the rate inside of its slot: at a constant rate it is the same."""
    options = OPTIONS[name]
    mine = keras_tfopt.Momentum(0.05, momentum=0.8, **options)
    stock = keras.optimizers.SGD(0.05, momentum=0.8, **options)
    start = {path: INITIAL[path].astype("float32") for path in ("layer/kernel", "layer/bias")}
    plan = [{p: g[p] for p in start} for g in gradients(6)]
    ends = []
    for optimizer in (mine, stock):
        variables = [make_variable(path, value) for path, value in start.items()]
        for grads in plan:
            tensors = [keras.ops.convert_to_tensor(g) for g in grads.values()]
            optimizer.apply(tensors, variables)
        if options.get("use_ema"):
            optimizer.finalize_variable_values(variables)
        ends.append([to_numpy(v) for v in variables])
    for a, b in zip(*ends):
        assert_close(a, b, 1e-6, name)


# Accumulation


def in_modes(eager):
    """Every case in eager mode, if there is one; compiled, one for rows and one for all at once."""
    compiled = [CASE["LazyAdam"], CASE["GGT"]]
    return pytest.mark.parametrize(
        ("case", "mode"),
        [pytest.param(c, "eager", id=f"{c.name}-eager") for c in (CASES if eager else ())]
        + [pytest.param(c, "compiled", id=f"{c.name}-compiled") for c in compiled],
    )


@in_modes(eager=True)
def test_one_step_on_the_mean_is_k_micro_steps(case, mode):
    k = 3
    plan = gradients(2 * k)
    parts = Runner(case.make(gradient_accumulation_steps=k), initial(), mode)
    whole = Runner(case.make(), initial(), mode)
    for start in (0, k):
        micro = plan[start : start + k]
        for grads in micro[:-1]:
            before, slots = parts.values, parts.slots
            parts.step(grads)
            assert_nothing_moved(parts, before, slots, case.before_options)
        parts.step(micro[-1])
        x = initial()
        means = {p: sum(dense_like(g[p], x[p]) for g in micro) / k for p in x}
        whole.step(means)
    for path, value in whole.values.items():
        assert_close(parts.values[path], value, case.tolerance("float32"), path)
        assert not np.array_equal(value, initial()[path])
    assert int(to_numpy(parts.optimizer.iterations)) == 2


@pytest.mark.parametrize("mode", MODES)
def test_maximize_is_that_of_torch(mode):
    torch = pytest.importorskip("torch")
    options = {"lr": 0.05, "betas": (0.8, 0.9), "eps": 1e-9, "weight_decay": 0.3}
    x = torch.nn.Parameter(torch.tensor(INITIAL["layer/kernel"], dtype=torch.float32))
    theirs = torch.optim.AdamW([x], maximize=True, **options)
    ours = keras_tfopt.Adam(
        0.05, beta_1=0.8, beta_2=0.9, epsilon=1e-9, weight_decay=0.3, maximize=True
    )
    runner = Runner(ours, {"kernel": INITIAL["layer/kernel"].astype("float32")}, mode)
    for grads in gradients(5):
        runner.step({"kernel": grads["layer/kernel"]})
        x.grad = torch.tensor(grads["layer/kernel"])
        theirs.step()
    assert_close(runner.values["kernel"], x.detach().numpy(), 2e-6, "kernel")


def test_wrappers_pass_maximize_on_and_keep_it(tmp_path):
    start = {"kernel": np.array([1.0, -2.0], "float32")}
    loss_grows = []
    for wrap in (
        lambda **k: keras_tfopt.MovingAverage(keras_tfopt.Momentum(0.1, **k)),
        lambda **k: keras_tfopt.MomentumW(0.1, weight_decay=0.0, **k),
    ):
        optimizer = wrap(maximize=True)
        again = keras.saving.deserialize_keras_object(
            keras.saving.serialize_keras_object(optimizer)
        )
        assert again.maximize and not wrap().maximize
        for one in (optimizer, again):
            runner = Runner(one, start, "eager")
            runner.step({"kernel": np.array([1.0, 0.5], "float32")})
            loss_grows.append(runner.values["kernel"])
    assert all(np.allclose(x, [1.1, -1.95], rtol=1e-6) for x in loss_grows)
    with pytest.raises(TypeError, match="`?maximize.* belongs to the optimizer inside"):
        keras_tfopt.MovingAverage(keras_tfopt.Momentum(0.1), maximize=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", by_row_mode(), ids=lambda case: case.name)
def test_rows_that_are_named_with_a_gradient_of_zero_are_touched_by_an_accumulated_step(case, mode):
    """In a table and in a variable that is not one, after a step that gave all of them state."""
    rng = np.random.default_rng(5)
    options = {"gradient_accumulation_steps": 2}
    shapes = {path: INITIAL[path].shape for path in ("layer/kernel", "table/embeddings")}
    start = {path: INITIAL[path].astype("float32") for path in shapes}

    def rows(indices, scale):
        return {
            p: Rows(scale * rng.normal(size=(len(indices), *s[1:])), np.array(indices, "int32"))
            for p, s in shapes.items()
        }

    everywhere = [{p: rng.normal(size=s) for p, s in shapes.items()} for _ in range(2)]
    plan = [*everywhere, rows([1, 0, 1], 0.0), rows([2, 0], 1.0), rows([3], 0.0), rows([3], 0.0)]
    follow(
        Runner(case.make(**options), start, mode),
        Expected(case, start, **options),
        plan,
        case.tolerance("float32"),
    )


def assert_nothing_moved(runner, values, slots, left_out=()):
    for path, value in runner.values.items():
        assert np.array_equal(value, values[path]), path
    for path, owned in runner.slots.items():
        for name, slot in owned.items():
            assert name in left_out or np.array_equal(slot, slots[path][name]), (path, name)


def test_accumulation_in_fit_is_training_on_larger_batches():
    x = np.random.default_rng(0).integers(0, 6, size=(24, 4))
    y = np.random.default_rng(1).normal(size=(24, 2)).astype("float32")
    weights = None
    ends = []
    for options, batch_size in (({"gradient_accumulation_steps": 3}, 4), ({}, 12)):
        model = small_model(weights)
        weights = model.get_weights()
        model.compile(keras_tfopt.LazyAdam(0.05, **options), "mse")
        model.fit(x, y, batch_size=batch_size, epochs=2, shuffle=False, verbose=0)
        ends.append(model.get_weights())
    for a, b in zip(*ends):
        assert_close(a, b, 2e-6, "weights")


def test_accumulation_reads_schedules_at_the_number_of_micro_steps():
    """As stock Keras documents it: a schedule counts calls of `apply`."""
    k, case = 2, CASE["Momentum"]
    runner = Runner(
        keras_tfopt.Momentum(SCHEDULE, gradient_accumulation_steps=k), initial(), "compiled"
    )
    expected = Expected(
        case,
        initial(),
        learning_rate=lambda count: 0.1 / (1 + (k * (count + 1) - 1) / 2),
        gradient_accumulation_steps=k,
    )
    follow(runner, expected, gradients(6), 4e-6)


# Averages


def small_model(weights=None):
    """A table, repeated ids, a dense layer."""
    model = keras.Sequential(
        [
            keras.layers.Input((4,), dtype="int32"),
            keras.layers.Embedding(6, 3),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    if weights is None:
        # The same in every run. A bias that starts at zero would have no size for LARS to go by.
        random = np.random.default_rng(2)
        weights = [0.3 * random.normal(size=w.shape) for w in model.get_weights()]
    model.set_weights(weights)
    return model


def small_data():
    ids = np.random.default_rng(0).integers(0, 6, size=(24, 4))
    return ids, np.random.default_rng(1).normal(size=(24, 2)).astype("float32")


@pytest.mark.parametrize("frequency", (None, 4))
def test_averages_through_two_fits(frequency):
    """Training goes on from the averages that the first fit left in the model."""
    options = {**EMA, "ema_overwrite_frequency": frequency}
    x, y = np.ones((3, 1)), np.zeros((3, 1))
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.ones((1, 1))])
    model.compile(keras_tfopt.Momentum(0.1, momentum=0.5, **options), mean_of_outputs)
    expected = Expected(CASE["Momentum"], {"k": np.ones((1, 1))}, learning_rate=0.1, **options)
    expected.reference.momentum = 0.5
    for _ in range(2):
        model.fit(x, y, batch_size=1, epochs=2, verbose=0)
        for _ in range(6):
            expected.step({"k": np.ones((1, 1))})
        assert_close(model.get_weights()[0], expected.averages["k"], 1e-6, "weight")
        expected.x = dict(expected.averages)


@pytest.mark.parametrize("options", ({}, {"gradient_accumulation_steps": 2}))
@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_constraints_hold_after_every_step(options, dtype):
    optimizer = keras_tfopt.Momentum(0.5, master_weights=True, **options)
    kernel = keras.Variable(np.array([1.0, -1.0, 0.25]), dtype=dtype, name="kernel")
    kernel.constraint = keras.constraints.NonNeg()
    for _ in range(4):
        optimizer.apply([keras.ops.ones(3, dtype)], [kernel])
    assert np.array_equal(to_numpy(kernel), np.zeros(3))
    for _ in range(4):  # what was cut off is gone: the way back starts at zero
        optimizer.slot(kernel, "momentum").assign(np.zeros(3))
        optimizer.apply([-keras.ops.ones(3, dtype)], [kernel])
    steps = 4 // options.get("gradient_accumulation_steps", 1)
    assert np.array_equal(to_numpy(kernel), np.full(3, 0.5 * steps))


def test_averages_of_a_training_that_ends_before_its_first_step():
    model = small_model()
    weights = model.get_weights()
    model.compile(keras_tfopt.LazyAdam(0.1, gradient_accumulation_steps=9, **EMA), "mse")
    model.fit(*small_data(), batch_size=8, verbose=0)
    for a, b in zip(model.get_weights(), weights):
        assert np.array_equal(a, b)


# Loss scaling


def dense_gradients(count, seed=0):
    """Dense, zero in the resting rows of the table: what a training loop hands over."""
    x = initial()
    return [{p: dense_like(g[p], x[p]) for p in x} for g in gradients(count, seed=seed)]


def scaled_by(grads, scale):
    return {path: g * np.float32(scale) for path, g in grads.items()}


def scale_of(optimizer):
    return float(to_numpy(optimizer.dynamic_scale))


LOSS_SCALES = {"ours": keras_tfopt.LossScaleOptimizer, "stock": keras.optimizers.LossScaleOptimizer}
every_loss_scale = pytest.mark.parametrize("scale_with", LOSS_SCALES.values(), ids=LOSS_SCALES)


@every_loss_scale
@in_modes(eager=True)
def test_loss_scale_optimizer(case, mode, scale_with):
    """Finite steps are those without it; the step that overflows touches nothing."""
    if BACKEND == "jax" and mode == "eager" and scale_with is LOSS_SCALES["stock"]:
        pytest.skip("Keras's own `apply` leaks tracers on JAX; it is for `stateless_apply`")
    scaled = scale_with(case.make(), initial_scale=1024.0, dynamic_growth_steps=3)
    runner, plain = Runner(scaled, initial(), mode), Runner(case.make(), initial(), mode)
    plan = dense_gradients(6)

    for grads in plan[:2]:
        runner.step(scaled_by(grads, 1024))
        plain.step(grads)
    assert scale_of(scaled) == 1024

    for bad in (np.inf, np.nan):
        broken = scaled_by(plan[2], 1024)
        broken["layer/kernel"][1, 1] = bad
        before, scale = runner.snapshot(), scale_of(scaled)
        runner.step(broken)
        after = runner.snapshot()
        own = len(runner.variables) + len(scaled._variables)  # its counter and its scale change
        for a, b in zip(before[: len(runner.variables)], after[: len(runner.variables)]):
            assert np.array_equal(a, b)
        for a, b in zip(before[own:], after[own:], strict=True):
            assert np.array_equal(a, b)
        assert scale_of(scaled) == scale / 2
    assert int(to_numpy(scaled.iterations)) == 2

    for grads in plan[3:6]:
        assert scale_of(scaled) == 256
        runner.step(scaled_by(grads, 256))
        plain.step(grads)
    assert scale_of(scaled) == 512  # three finite steps in a row
    for path, value in plain.values.items():
        assert_close(runner.values[path], value, 1e-7, path)
    if case.sparse == "rows":
        table = runner.values["table/embeddings"]
        assert np.array_equal(table[RESTING], initial()["table/embeddings"][RESTING])


@every_loss_scale
@pytest.mark.parametrize("options", ({"gradient_accumulation_steps": 2}, {"global_clipnorm": 1.0}))
def test_loss_scale_optimizer_around_other_options(options, scale_with):
    case = CASE["LazyAdam"]
    scaled = scale_with(case.make(**options), initial_scale=64.0)
    runner = Runner(scaled, initial(), "compiled")
    expected = Expected(case, initial(), **options)
    plan = dense_gradients(4)
    broken = {**plan[0], "layer/bias": np.full(5, np.inf, "float32")}
    for grads in plan:
        runner.step(scaled_by(grads, scale_of(scaled)))
        # in the middle of an accumulation, too
        runner.step(broken)
        rows = {p: expected._touched(p, g) for p, g in grads.items()}
        expected.step(rows)
    for path, value in runner.values.items():
        assert_close(value, expected.x[path], 4e-6, path)


@pytest.mark.parametrize("mode", ("eager", "compiled"))
def test_loss_scale_optimizer_with_row_gradients(mode):
    """Rows that users name; in one of them a value that is not finite."""
    case = CASE["LazyAdam"]
    scaled = keras_tfopt.LossScaleOptimizer(case.make(), initial_scale=16.0)
    runner = Runner(scaled, {"embeddings": initial()["table/embeddings"]}, mode)
    expected = Expected(case, {"embeddings": initial()["table/embeddings"]})
    width = runner.values["embeddings"].shape[1]
    for number, row in enumerate(([1, 3, 1], [2, 3, 3], [1, 1, 1])):
        values = np.random.default_rng(number).normal(size=(3, width)).astype("float32")
        runner.step({"embeddings": Rows(scale_of(scaled) * values, row)})
        expected.step({"embeddings": Rows(values, row)})
        values[1, 0] = np.inf
        before = runner.values["embeddings"].copy()
        runner.step({"embeddings": Rows(values, row)})
        assert np.array_equal(runner.values["embeddings"], before)
    assert scale_of(scaled) == 2.0
    assert_close(runner.values["embeddings"], expected.x["embeddings"], 4e-6, "embeddings")


def test_state_of_a_loss_scale_optimizer_may_be_loaded_before_it_is_built():
    def make():
        inner = keras_tfopt.MovingAverage(CASE["LazyAdam"].make())
        return keras_tfopt.LossScaleOptimizer(inner, initial_scale=64.0, dynamic_growth_steps=3)

    def stores(optimizer):
        chain = [optimizer, optimizer.inner_optimizer, optimizer.inner_optimizer.inner_optimizer]
        return [(one, {}) for one in chain]

    plan = dense_gradients(5)
    runner = Runner(make(), initial(), "eager")
    for grads in plan[:4]:
        runner.step(scaled_by(grads, scale_of(runner.optimizer)))
    assert scale_of(runner.optimizer) == 128
    saved = stores(runner.optimizer)
    for one, store in saved:
        one.save_own_variables(store)
    other = make()
    for (one, _), (_, store) in zip(stores(other), saved, strict=True):
        one.load_own_variables(store)
    again = Runner(other, runner.values, "eager")
    for one in (runner, again):
        one.step(scaled_by(plan[4], 128))
    for a, b in zip(runner.snapshot(), again.snapshot(), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    (
        ("initial_scale", 0, r"\(0, inf\)"),
        ("initial_scale", "1", r"\(0, inf\)"),
        ("dynamic_growth_steps", 0, ">= 1"),
        ("inner_optimizer", keras_tfopt.LossScaleOptimizer("sgd"), "outermost"),
        ("inner_optimizer", 3, "keras.optimizers.Optimizer"),
    ),
)
def test_loss_scale_optimizer_refuses(name, value, allowed):
    with pytest.raises((TypeError, ValueError), match=allowed) as caught:
        keras_tfopt.LossScaleOptimizer(**{"inner_optimizer": "sgd", name: value})
    assert name in str(caught.value) or "LossScaleOptimizer" in str(caught.value)


def test_a_loss_scale_factor_is_applied_to_the_loss():
    optimizer = keras_tfopt.Momentum(loss_scale_factor=8.0)
    assert float(to_numpy(optimizer.scale_loss(keras.ops.convert_to_tensor(3.0)))) == 24.0
    wrapped = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=4.0)
    assert optimizer.loss_scale_factor is None  # or it would be scaled twice
    assert float(to_numpy(wrapped.scale_loss(keras.ops.convert_to_tensor(3.0)))) == 12.0


# Learning rates


@every_case("case")
def test_schedule(case):
    runner = Runner(case.make(learning_rate=SCHEDULE), initial(), "eager")
    expected = Expected(case, initial(), learning_rate=lambda count: 0.1 / (1 + count / 2))
    follow(runner, expected, gradients(3), 4 * case.tolerance("float32"), case.before_options)


def test_a_callable_is_read_at_every_eager_step():
    rates = itertools.chain([0.5, 0.25, 0.125], itertools.repeat(99.0))
    case = CASE["Momentum"]
    runner = Runner(case.make(learning_rate=lambda: next(rates)), initial(), "eager")
    seen = [0.5, 0.25, 0.125]
    expected = Expected(case, initial(), learning_rate=lambda count: seen[count])
    follow(runner, expected, gradients(3), 4e-6)


@pytest.mark.skipif(BACKEND == "torch", reason="no step is compiled around the engine")
def test_a_callable_is_read_once_in_compiled_steps():
    rates = itertools.chain([0.5], itertools.repeat(99.0))
    case = CASE["Momentum"]
    runner = Runner(case.make(learning_rate=lambda: next(rates)), initial(), "compiled")
    follow(runner, Expected(case, initial(), learning_rate=0.5), gradients(3), 4e-6)


def dense_fit(optimizer, callbacks, epochs=6):
    """`fit` of one weight with a loss that does not improve; the weight and the final rate."""
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.ones((1, 1))])
    model.compile(optimizer, lambda _, outputs: -keras.ops.mean(outputs))
    ones = np.ones((2, 1))
    history = model.fit(
        ones, ones, batch_size=1, epochs=epochs, verbose=0, callbacks=callbacks
    ).history
    return model.get_weights()[0].item(), float(to_numpy(model.optimizer.learning_rate)), history


@pytest.mark.parametrize("make", (keras_tfopt.Momentum, keras_tfopt.LazyAdam, keras_tfopt.GGT))
def test_learning_rate_scheduler(make):
    if make is not keras_tfopt.Momentum:
        _, rate, _ = dense_fit(make(0.5), [keras.callbacks.LearningRateScheduler(halved)])
        assert rate == 0.5 / 2**6
        return
    callbacks = [keras.callbacks.LearningRateScheduler(halved)]
    weight, rate, history = dense_fit(make(0.5, momentum=0.0), callbacks)
    rates = [0.5 / 2 ** (epoch + 1) for epoch in range(6)]
    assert rate == rates[-1]
    assert np.allclose(history["learning_rate"], rates)
    assert abs(weight - (1 + 2 * sum(rates))) < 1e-6  # two steps an epoch, gradient -1


def halved(epoch, rate):
    return rate / 2


def test_reduce_lr_on_plateau():
    def callbacks():
        # no improvement counts as one
        return [keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=2, min_delta=1e9)]

    mine = dense_fit(keras_tfopt.Momentum(0.25, momentum=0.0), callbacks())
    stock = dense_fit(keras.optimizers.SGD(0.25), callbacks())
    assert mine[1] == stock[1] < 0.25
    assert abs(mine[0] - stock[0]) < 1e-6


def test_a_rate_assigned_under_float64_variables():
    optimizer = keras_tfopt.Momentum(0.1)
    runner = Runner(optimizer, {"kernel": np.ones(2)}, "compiled", "float64")
    optimizer.learning_rate = 0.3
    runner.step({"kernel": np.ones(2)})
    assert np.max(np.abs(runner.values["kernel"] - 0.7)) < 1e-15


# Names


def test_names():
    assert keras_tfopt.LazyAdam(name="mine").name == "mine"
    optimizer = keras_tfopt.LazyAdam()
    assert optimizer.name.startswith("lazy_adam")
    optimizer = keras_tfopt.LazyAdam(name="mine")
    optimizer.build([make_variable("a/kernel", np.ones(2))])
    assert all(v.path.startswith("mine/") for v in optimizer.variables)


# Exclusion from weight decay


def decayed(optimizer, paths=("a/kernel", "a/bias", "b/kernel", "b/kernel_scale")):
    """Which variables of ones decay in a step with zero gradients."""
    runner = Runner(optimizer, {path: np.ones(2) for path in paths})
    runner.step({path: np.zeros(2) for path in paths})
    for path, value in runner.values.items():
        assert np.all(value == 1) or np.max(np.abs(value - 0.95)) < 1e-6, path
    return {path for path, value in runner.values.items() if np.all(value < 1)}


def decaying(cls=keras_tfopt.Adam):
    return cls(0.1, weight_decay=0.5)


def test_exclusion_matches_paths():
    every = {"a/kernel", "a/bias", "b/kernel", "b/kernel_scale"}
    assert decayed(decaying()) == every
    for names, left in (
        (["bias"], every - {"a/bias"}),
        ("bias", every - {"a/bias"}),
        (["a/"], {"b/kernel", "b/kernel_scale"}),
        ([r"^b/.*l$", "bias"], {"a/kernel", "b/kernel_scale"}),
        ([r"nel$"], {"a/bias", "b/kernel_scale"}),
        ([""], set()),
        ([], every),
    ):
        optimizer = decaying()
        optimizer.exclude_from_weight_decay(var_names=names)
        assert decayed(optimizer) == left, names


def test_exclusion_of_variables():
    kernel, scale = make_variable("b/kernel", [1.0]), make_variable("b/kernel_scale", [1.0])
    optimizer = decaying()
    optimizer.exclude_from_weight_decay(var_list=[kernel])
    optimizer.apply([keras.ops.zeros(1)] * 2, [kernel, scale])
    assert to_numpy(kernel) == 1 and to_numpy(scale) < 1


@pytest.mark.parametrize("cls", (keras_tfopt.Momentum, keras_tfopt.LazyAdam, keras_tfopt.GGT))
def test_exclusion_holds_for_every_kind_of_rule(cls):
    optimizer = decaying(cls)
    optimizer.exclude_from_weight_decay(var_names=["bias", "b/kernel$"])
    assert decayed(optimizer) == {"a/kernel", "b/kernel_scale"}


def test_exclusion_survives_the_config():
    optimizer = decaying()
    kernel = make_variable("a/kernel", np.ones(2))
    optimizer.exclude_from_weight_decay(var_list=[kernel], var_names=["bias"])
    config = keras.saving.serialize_keras_object(optimizer)
    again = keras.saving.deserialize_keras_object(config)
    assert again.get_config() == optimizer.get_config()
    assert decayed(again) == {"b/kernel", "b/kernel_scale"}


def test_exclusion_survives_a_saved_model(tmp_path):
    model = small_model()
    optimizer = decaying(keras_tfopt.Momentum)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    model.set_weights([np.ones(w.shape) for w in model.get_weights()])
    model.compile(optimizer, "mse")
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for each in (model, again):
        each.train_on_batch(*small_data(), sample_weight=np.zeros(24))  # the gradient is zero
        table, kernel, bias = each.get_weights()
        assert np.all(table == 1)  # no row is touched
        assert np.all(kernel < 1) and np.all(bias == 1)


def test_exclusion_is_refused_once_built():
    optimizer = decaying()
    optimizer.build([make_variable("a/kernel", np.ones(2))])
    with pytest.raises(ValueError, match="before the optimizer is built"):
        optimizer.exclude_from_weight_decay(var_names=["bias"])
    with pytest.raises(ValueError, match="var_names"):
        decaying().exclude_from_weight_decay(var_names=["("])


# Precision


@pytest.mark.parametrize("case", [CASE["LazyAdam"], CASE["LARS"]], ids=lambda c: c.name)
@pytest.mark.parametrize("name", ("mixed_bfloat16", "mixed_float16"))
def test_mixed_precision_in_fit(case, name):
    """Float32 variables and slots, and nearly the weights of float32."""
    x, y = small_data()
    reference = small_model()
    weights = reference.get_weights()
    reference.compile(case.make(), "mse")
    with policy(name):
        model = small_model(weights)
        model.compile(case.make(), "mse")
    scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scaled == (name == "mixed_float16")
    for each in (reference, model):
        each.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    inner = model.optimizer.inner_optimizer if scaled else model.optimizer
    kinds = {v.dtype for v in (*model.trainable_variables, *inner.variables)}
    assert kinds <= {"float32", "int32", "int64"}
    # What the forward pass rounds goes with the activations, not with how far one weight moves.
    trained = reference.get_weights()
    moved = max(np.max(np.abs(b - start)) for b, start in zip(trained, weights))
    for a, b, start in zip(model.get_weights(), trained, weights):
        assert np.max(np.abs(a - b)) < 0.1 * moved
        assert not np.array_equal(a, start)


@pytest.mark.parametrize("master_weights", (False, True))
@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
@pytest.mark.parametrize("mode", ("eager", "compiled"))
@pytest.mark.spread
def test_small_updates_of_half_precision_variables(dtype, master_weights, mode):
    """Below half a unit in the last place they are lost, unless there is a copy in float32."""
    rate = {"bfloat16": 2**-11, "float16": 2**-14}[dtype]
    runner = Runner(
        keras_tfopt.Momentum(rate, momentum=0.0, master_weights=master_weights),
        {"kernel": np.ones(3), "embeddings": np.ones((4, 2))},
        mode,
        dtype,
    )
    ones = {"kernel": np.ones(3), "embeddings": Rows(np.ones((2, 2)), np.array([0, 2], "int32"))}
    for _ in range(64):
        runner.step(ones)
    after = 1 - 64 * rate if master_weights else 1.0  # which both types can hold
    assert np.all(runner.values["kernel"] == after)
    assert np.all(runner.values["embeddings"][[0, 2]] == after)
    assert np.all(runner.values["embeddings"][[1, 3]] == 1)
    assert all(slot.dtype == "float32" for s in runner.slots.values() for slot in s.values())


@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
def test_assigned_half_precision_variables_count_more_than_their_copies(dtype):
    optimizer = keras_tfopt.Momentum(2**-14, momentum=0.0, master_weights=True)
    runner = Runner(optimizer, {"kernel": np.ones(3)}, "compiled", dtype)
    for _ in range(3):
        runner.step({"kernel": np.ones(3)})
    runner.variables[0].assign(np.array([1.0, 0.5, -2.0]))
    runner.step({"kernel": np.ones(3)})
    # The first is what it was before, to the precision of the variable, so its copy still counts.
    copy = to_numpy(optimizer.slot(runner.variables[0], "master_weight"))
    step = 2**-14
    assert np.array_equal(copy, np.array([1 - 4 * step, 0.5 - step, -2.0 - step], "float32"))


@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
@pytest.mark.parametrize(
    ("name", "mode"),
    [("use_ema", "eager"), ("accumulation", "eager"), ("everything", "compiled")],
)
@pytest.mark.spread
def test_options_on_half_precision_variables(dtype, name, mode):
    """State is float32; the variables follow float64 to within their own roundings."""
    options, case = OPTIONS[name], CASE["LazyAdam"]
    start = {p: stepping.to_numpy(make_variable(p, v, dtype)) for p, v in INITIAL.items()}
    runner = Runner(case.make(master_weights=True, **options), start, mode, dtype)
    expected = Expected(case, start, **options)
    unit = {"bfloat16": 2**-8, "float16": 2**-11}[dtype]
    for grads in gradients(6, scale=options.get("loss_scale_factor", 1.0)):
        rounded = {}
        for path, g in grads.items():
            array = keras.ops.convert_to_tensor(g.values if isinstance(g, Rows) else g, dtype=dtype)
            array = to_numpy(array)
            rounded[path] = Rows(array, g.indices) if isinstance(g, Rows) else array
        runner.step(rounded)
        expected.step(rounded)
    for path, value in runner.values.items():
        assert_close(value, expected.x[path], 2 * unit, path)
    kept = [v.dtype for v in runner.optimizer.variables]
    assert set(kept) <= {"float32", "int32", "int64", "bool"}


# Sparse tensors of torch


class SparseEmbedding(keras.layers.Layer):
    """A table whose gradient torch keeps sparse."""

    def build(self, shape):
        # Autocast would make a half-precision copy of the whole table, and of its gradient.
        self.embeddings = self.add_weight(
            shape=(4, 2), initializer="normal", name="embeddings", autocast=False
        )

    def call(self, ids):
        import torch

        rows = torch.nn.functional.embedding(ids.long(), self.embeddings.value, sparse=True)
        return keras.ops.cast(rows, self.compute_dtype)

    def compute_output_shape(self, shape):
        return (*shape, 2)


def sparse_model(optimizer):
    model = keras.Sequential([keras.layers.Input((3,), dtype="int32"), SparseEmbedding()])
    table = np.random.default_rng(0).normal(size=(4, 2)).astype("float32")
    model.set_weights([table])
    model.compile(optimizer, mean_of_outputs)
    return model, table


only_torch = pytest.mark.skipif(BACKEND != "torch", reason="only torch has sparse COO gradients")
SPARSE_IDS = np.array([[1, 1, 2], [2, 2, 2], [1, 2, 1], [0, 1, 0]])


@only_torch
@pytest.mark.parametrize("name", OPTIONS)
def test_sparse_tensors_of_torch(name):
    """Layers of one's own that ask torch for sparse gradients, in `fit`."""
    options, case = OPTIONS[name], CASE["LazyAdam"]
    model, table = sparse_model(case.make(**options))
    model.fit(SPARSE_IDS, np.zeros((4, 3)), batch_size=1, shuffle=False, verbose=0)
    expected = Expected(case, {"embeddings": table}, **options)
    for row in SPARSE_IDS:
        values = np.full((3, 2), options.get("loss_scale_factor", 1.0) / 6)
        expected.step({"embeddings": Rows(values, row)})
    kept = expected.averages if options.get("use_ema") else expected.x
    assert_close(model.get_weights()[0], kept["embeddings"], 4e-6, "table")


@only_torch
@pytest.mark.parametrize(
    "scaling", ["ours", "stock", "by_compile", "around_a_wrapper", "around_a_built_one"]
)
def test_sparse_tensors_of_torch_with_a_dynamic_loss_scale(scaling):
    """Also in Keras's own LossScaleOptimizer, into which `compile` puts any optimizer."""
    case = CASE["LazyAdam"]
    inner = case.make()
    if scaling == "around_a_wrapper":
        inner = keras_tfopt.MovingAverage(inner)
    scale = LOSS_SCALES.get(scaling, keras.optimizers.LossScaleOptimizer)
    with policy("mixed_float16"):
        optimizer = inner if scaling == "by_compile" else scale(inner, initial_scale=1024.0)
        if scaling == "around_a_built_one":
            model, table = sparse_model(inner)
            inner.build(model.trainable_variables)
            model.compile(optimizer, mean_of_outputs)
        else:
            model, table = sparse_model(optimizer)
        model.fit(SPARSE_IDS, np.zeros((4, 3)), batch_size=1, shuffle=False, verbose=0)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert isinstance(model.optimizer, keras_tfopt.LossScaleOptimizer) == (scaling == "ours")
    expected = Expected(case, {"embeddings": table})
    for row in SPARSE_IDS:
        expected.step({"embeddings": Rows(np.full((3, 2), 1 / 6), row)})
    # The gradient of the outputs is a sixth, rounded to float16.
    assert_close(model.get_weights()[0], expected.x["embeddings"], 1e-4, "table")
    assert np.array_equal(model.get_weights()[0][3], table[3])


@only_torch
def test_sparse_tensors_of_torch_that_overflow_change_nothing():
    import torch

    optimizer = keras.optimizers.LossScaleOptimizer(CASE["LazyAdam"].make(), initial_scale=8.0)
    table = keras.Variable(np.ones((4, 2)), name="embeddings")
    optimizer.build([table])
    infinite = torch.sparse_coo_tensor([[1, 2]], [[1.0, np.inf], [1.0, 1.0]], (4, 2))
    optimizer.apply([infinite], [table])
    assert np.array_equal(keras.ops.convert_to_numpy(table), np.ones((4, 2)))
    assert float(optimizer.dynamic_scale.value) == 4.0
    assert int(optimizer.iterations.value) == 0


@only_torch
def test_stock_loss_scaling_of_stock_optimizers_is_left_alone(record_property):
    import torch

    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    table = keras.Variable(np.ones((4, 2)), name="embeddings")
    optimizer.build([table])
    assert not {"apply", "stateless_apply", "check_finite"} & set(vars(optimizer))
    gradient = torch.sparse_coo_tensor([[1]], [[1.0, 1.0]], (4, 2))
    try:
        optimizer.apply([gradient], [table])
        record_property("stock LossScaleOptimizer", "takes sparse gradients")
    except NotImplementedError as error:
        record_property("stock LossScaleOptimizer", str(error).splitlines()[0])


def test_a_loss_scale_that_an_earlier_keras_configured():
    """Options of the base stood in its configuration, with their defaults."""
    config = keras_tfopt.LossScaleOptimizer(keras_tfopt.Momentum(0.5), 4.0).get_config()
    old = {"clipnorm": None, "ema_momentum": 0.99, "use_ema": False, "dynamic": True}
    again = keras_tfopt.LossScaleOptimizer.from_config({**config, **old})
    assert again.get_config() == config and again.initial_scale == 4.0
    with pytest.raises(TypeError, match="clipnorm.* belongs to the optimizer inside"):
        keras_tfopt.LossScaleOptimizer.from_config({**config, "clipnorm": 1.0})
