"""Keras's options of every optimizer, on our optimizers, with dense and with row gradients.

Expected numbers come from `Expected`, which computes the options in NumPy. For dense float32
variables, they also come from Keras's own optimizers, except for options that have a defect there.
"""

import keras
import numpy as np
import pytest

import keras_tfopt
from integration.stock_defects.scenarios import mean_of_outputs
from tests.cases import CASES, REPRESENTATIVES, RULES
from tests.cells import exhaustive
from tests.helpers.compare import assert_close, assert_same
from tests.helpers.options import (
    CASE,
    EMA,
    INITIAL,
    OPTIONS,
    RESTING,
    Expected,
    allowed,
    gradients,
    initial,
    run_against_numpy,
    small_data,
    small_model,
)
from tests.helpers.stepping import (
    MODES,
    Rows,
    Runner,
    every_mode,
    make_variable,
    through_json,
    to_numpy,
)

# Every option, against NumPy

OTHERS = {case.name for case in CASES} - REPRESENTATIVES
# Together they have every option. Elsewhere than in eager steps, only exhaustive runs take others.
USUAL = (
    "use_ema",
    "loss_scale_factor+clipvalue+weight_decay",
    "maximize+accumulation+clipnorm+weight_decay",
    "everything",
)
every_option = pytest.mark.parametrize(
    "name", [name if name in USUAL else exhaustive(name) for name in OPTIONS]
)


def pairs(cases, names=OPTIONS, rare=()):
    """Parametrize over Cases and the options for which `Expected` is defined.

    Only exhaustive runs take Cases whose names are in `rare`.
    """
    return pytest.mark.parametrize(
        ("case", "name"),
        [
            pytest.param(
                case,
                name,
                id=f"{case.name}-{name}",
                marks=[pytest.mark.cell(invariant=name)]
                + [pytest.mark.exhaustive] * (case.name in rare),
            )
            for case in cases
            for name in names
            # Two pairs are left out. It is not defined whether a wrapper sees a variable before or
            # after averages overwrite it. And averages of the optimizer inside do not include
            # changes that a wrapper makes after the step.
            if case.inner is None
            or "ema_overwrite_frequency" not in OPTIONS[name]
            and not (case.changes_variables_after_the_step and "use_ema" in OPTIONS[name])
        ],
    )


@pairs(CASES)
@pytest.mark.parametrize("mode", ["eager"])  # tests/cells.py keeps these away from JAX
def test_option(case, name, mode):
    """Steps equal those in NumPy, and rows without a gradient do not change."""
    runner = run_against_numpy(case, OPTIONS[name], mode)
    if case.sparse == "rows" and not OPTIONS[name].get("use_ema"):  # averages round
        table = runner.values["table/embeddings"]
        assert np.array_equal(table[RESTING], initial(table.dtype)["table/embeddings"][RESTING])


@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, "compiled") if name in USUAL else exhaustive(name, "compiled") for name in OPTIONS]
    + [("everything", mode) for mode in MODES if mode not in ("eager", "compiled")],
)
@pytest.mark.spread
def test_option_in_compiled_steps(name, mode):
    run_against_numpy(CASE["LazyAdam"], OPTIONS[name], mode)


@pytest.mark.slow
@pairs(CASES, ["everything"], rare=OTHERS)
def test_all_options_together_in_compiled_steps(case, name):
    run_against_numpy(case, OPTIONS[name], "compiled")


@every_option
@pytest.mark.spread
def test_option_in_float64(name):
    run_against_numpy(CASE["LazyAdam"], OPTIONS[name], "eager", "float64")


@every_option
@pytest.mark.spread
def test_option_in_fit(name):
    """In `fit`, the backend computes the gradient of an embedding."""
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
    """No option makes a row gradient dense."""

    def refuse(rows):
        raise AssertionError("a row gradient was made dense")

    backend = keras_tfopt.engine.backends.select.backend
    optimizer = case.make(**allowed(case, OPTIONS[name]))
    runner = Runner(optimizer, initial(), "eager")
    monkeypatch.setattr(backend, "to_dense", refuse)
    for grads in gradients(2):
        runner.step(grads)


# Against optimizers of Keras and PyTorch


@pytest.mark.parametrize(
    "name",
    # Keras differs with both of these options: it also averages after micro-steps, in which nothing
    # has moved. And it has no `maximize`.
    [
        name
        for name, options in OPTIONS.items()
        if not {"use_ema", "gradient_accumulation_steps"} <= set(options)
        and "maximize" not in options
    ],
)
def test_dense_steps_are_those_of_stock_keras(name):
    """The learning rate is constant, because Keras's momentum includes it."""
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


@pytest.mark.spread("torch")
@every_mode
def test_maximize_equals_that_of_torch(mode):
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
        again = through_json(optimizer)
        assert again.maximize and not wrap().maximize
        for one in (optimizer, again):
            runner = Runner(one, start, "eager")
            runner.step({"kernel": np.array([1.0, 0.5], "float32")})
            loss_grows.append(runner.values["kernel"])
    assert all(np.allclose(x, [1.1, -1.95], rtol=1e-6) for x in loss_grows)
    with pytest.raises(TypeError, match="`?maximize.* belongs to the optimizer inside"):
        keras_tfopt.MovingAverage(keras_tfopt.Momentum(0.1), maximize=True)


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
    for _ in range(4):  # the way back starts at zero
        optimizer.slot(kernel, "momentum").assign(np.zeros(3))
        optimizer.apply([-keras.ops.ones(3, dtype)], [kernel])
    steps = 4 // options.get("gradient_accumulation_steps", 1)
    assert np.array_equal(to_numpy(kernel), np.full(3, 0.5 * steps))


def test_averages_of_a_training_that_ends_before_its_first_step():
    model = small_model()
    weights = model.get_weights()
    model.compile(keras_tfopt.LazyAdam(0.1, gradient_accumulation_steps=9, **EMA), "mse")
    model.fit(*small_data(), batch_size=8, verbose=0)
    assert_same(model.get_weights(), weights)


# Names


def test_names():
    """A name may be given. It is the first part of the paths of state."""
    assert keras_tfopt.LazyAdam(name="mine").name == "mine"
    optimizer = keras_tfopt.LazyAdam()
    assert optimizer.name.startswith("lazy_adam")
    optimizer = keras_tfopt.LazyAdam(name="mine")
    optimizer.build([make_variable("a/kernel", np.ones(2))])
    assert all(v.path.startswith("mine/") for v in optimizer.variables)
