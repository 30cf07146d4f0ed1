"""Every wrapper around every kind of optimizer, in everything that Keras does with optimizers.

A cell of the matrix is a wrapper, what is inside of it, and a check. Without `--exhaustive` a
selection runs, in which each check meets each kind of optimizer or several wrappers, and each
wrapper several checks; `test_the_size_of_the_matrix` prints both numbers. Two checks need processes
of their own: several devices in test_distribution.py, a change of the backend in test_state.py.
"""

import functools
import importlib.util
import itertools

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.compositions import COMPOSITIONS, INNERS, WRAPPERS
from tests.stepping import BACKEND, Rows, Runner, policy, to_numpy

IDS = np.random.default_rng(0).integers(0, 6, size=(12, 2))
TARGETS = np.random.default_rng(1).normal(size=(12, 2)).astype("float32")
START = [np.random.default_rng(2).normal(size=s).astype("float32") for s in [(8, 3), (6, 2), (2,)]]
FIT = {"batch_size": 4, "shuffle": False, "verbose": 0}


def make_model(optimizer, **options):
    layers = [
        keras.layers.Embedding(8, 3, name="table"),
        keras.layers.Flatten(),
        keras.layers.Dense(2, name="dense"),
    ]
    model = keras.Sequential(layers)
    model.build((None, 2))
    model.set_weights(START)
    model.compile(optimizer, "mse", **options)
    return model


def fitted(optimizer, epochs=2, callbacks=(), options=None, **fit):
    model = make_model(optimizer, **(options or {}))
    arguments = {**FIT, "epochs": epochs, "callbacks": list(callbacks), **fit}
    model.fit(IDS, TARGETS, **arguments)
    return model


def state(model):
    return [to_numpy(v) for v in (*model.trainable_variables, *model.optimizer.variables)]


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def close(a, b, rtol=2e-5, atol=2e-6):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)


@functools.cache
def baseline(wrapper, inner):
    """Weights after two epochs, step by step and without anything compiled."""
    model = make_model(WRAPPERS[wrapper](INNERS[inner]()), run_eagerly=True)
    with keras_tfopt.execution.plain():
        for _ in range(2):
            for start in range(0, 12, 4):
                model.train_on_batch(IDS[start : start + 4], TARGETS[start : start + 4])
    assert not same(model.get_weights(), START)
    return model.get_weights()


class Cell:
    """A wrapper around an optimizer."""

    def __init__(self, wrapper, inner, folder):
        self.wrapper, self.inner, self.folder = wrapper, inner, folder

    def make(self, *rate, **base):
        return WRAPPERS[self.wrapper](INNERS[self.inner](*rate, **base))

    def equals_baseline(self, model, **tolerance):
        close(model.get_weights(), baseline(self.wrapper, self.inner), **tolerance)


# The checks


def fit(cell):
    cell.equals_baseline(fitted(cell.make()))


def jit(cell):
    cell.equals_baseline(fitted(cell.make(), options={"jit_compile": True}))


def run_eagerly(cell):
    cell.equals_baseline(fitted(cell.make(), options={"run_eagerly": True}))


def steps_per_execution(cell):
    cell.equals_baseline(fitted(cell.make(), options={"steps_per_execution": 3}))


def save_and_load(cell):
    model = fitted(cell.make(), 1)
    model.save(cell.folder / "model.keras")
    again = keras.saving.load_model(cell.folder / "model.keras")
    assert type(again.optimizer) is type(model.optimizer)
    for one in (model, again):
        one.fit(IDS, TARGETS, epochs=1, **FIT)
    assert same(state(model), state(again))
    cell.equals_baseline(again)


def clone_from_config(cell):
    optimizer = cell.make()
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert again is not optimizer and again.get_config() == optimizer.get_config()
    cell.equals_baseline(fitted(again))


def innermost(optimizer):
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer


def rate_of(optimizer):
    return float(to_numpy(innermost(optimizer).learning_rate))


def learning_rate_scheduler(cell):
    set_rate = keras.callbacks.LearningRateScheduler(lambda epoch: (0.05, 0.0)[epoch])
    model = fitted(cell.make(), callbacks=[set_rate])
    assert rate_of(model.optimizer) == 0.0
    assert float(to_numpy(model.optimizer.learning_rate)) == 0.0
    constant = fitted(cell.make(), 1).get_weights()
    if cell.wrapper == "DecoupledWeightDecay" or cell.inner == "wrapper":
        return  # decay and averages go on without a learning rate
    if cell.wrapper in ("Lookahead",) or cell.inner == "LARS":
        return  # and so do steps back and momentum that has the old rate inside
    close(model.get_weights(), constant)


def reduce_on_plateau(cell):
    reduce = keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=1, min_delta=1e9)
    model = fitted(cell.make(0.5), 3, callbacks=[reduce])
    assert rate_of(model.optimizer) < 0.5
    assert float(to_numpy(model.optimizer.learning_rate)) == rate_of(model.optimizer)


def schedule(cell):
    falling = keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.05, 0.01])
    scheduled, assigned = fitted(cell.make(falling)), make_model(cell.make())
    for step, start in enumerate([0, 4, 8] * 2):
        assigned.optimizer.learning_rate = 0.05 if step <= 2 else 0.01
        assigned.train_on_batch(IDS[start : start + 4], TARGETS[start : start + 4])
    close(scheduled.get_weights(), assigned.get_weights())


def accumulation(cell):
    """Three micro-steps are one step on the batch of all of them."""
    parts = fitted(cell.make(gradient_accumulation_steps=3))
    whole = fitted(cell.make(), batch_size=12)
    close(parts.get_weights(), whole.get_weights(), 1e-4, 1e-5)
    assert not same(parts.get_weights(), START)


def loss_scale(cell):
    for outer in (keras.optimizers.LossScaleOptimizer, keras_tfopt.LossScaleOptimizer):
        model = fitted(outer(cell.make(), initial_scale=8.0))
        cell.equals_baseline(model, rtol=1e-4, atol=1e-5)


def mixed_precision(cell):
    with policy("mixed_float16"):
        compiled = make_model(cell.make()).optimizer
        assert isinstance(compiled, keras.optimizers.LossScaleOptimizer)
        scaled = keras.optimizers.LossScaleOptimizer(cell.make(), initial_scale=8.0)
        models = [fitted(scaled)]  # the usual scale is too large for the first steps
    with policy("mixed_bfloat16"):
        models.append(fitted(cell.make()))
        assert type(models[-1].optimizer) is type(cell.make())
    for model in models:
        pairs = zip(model.get_weights(), baseline(cell.wrapper, cell.inner), strict=True)
        # Rounding turns the sign of a gradient here and there, and Adam's first steps are signs.
        assert all(np.mean(np.abs(a - b)) < 0.05 for a, b in pairs)
        assert not same(model.get_weights(), START)


def multi_optimizer(cell):
    """One wrapper around several optimizers is several wrappers, around one each."""
    several = keras.optimizers.MultiOptimizer, keras.optimizers.OptimizerMap

    def make(around_each, around_all):
        each = [around_each(INNERS[cell.inner](rate)) for rate in (0.05, 0.02)]
        return around_all(several[0](several[1](each[0], {".*dense.*": each[1]})))

    plain = lambda optimizer: optimizer  # noqa: E731
    if cell.wrapper == "AGN":  # which steps with another optimizer of the same arguments
        with pytest.raises(ValueError, match="AGN needs one optimizer for all .* MultiOptimizer"):
            make(plain, WRAPPERS["AGN"])
        assert not same(fitted(make(WRAPPERS["AGN"], plain)).get_weights(), START)
        return
    inside = fitted(make(plain, WRAPPERS[cell.wrapper]))
    outside = fitted(make(WRAPPERS[cell.wrapper], plain))
    close(inside.get_weights(), outside.get_weights())
    assert not same(inside.get_weights(), START)


def tensorboard(cell):
    """The curves hold the learning rate inside, and training is not disturbed."""
    board = keras.callbacks.TensorBoard(cell.folder, histogram_freq=1)
    falls = keras.callbacks.LearningRateScheduler(lambda epoch: 0.05)
    cell.equals_baseline(fitted(cell.make(), callbacks=[falls, board]))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(str(cell.folder / "train")).Reload()
    rates = [make_ndarray(point.tensor_proto) for point in events.Tensors("epoch_learning_rate")]
    np.testing.assert_allclose(rates, [0.05, 0.05], rtol=1e-6)


def model_checkpoint(cell):
    path = cell.folder / "{epoch}.keras"
    model = fitted(cell.make(), callbacks=[keras.callbacks.ModelCheckpoint(path)])
    again = keras.saving.load_model(cell.folder / "1.keras")
    again.fit(IDS, TARGETS, epochs=1, **FIT)
    assert same(state(model), state(again))


def backup_and_restore(cell):
    class Stops(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                raise RuntimeError("stopped")

    backup = cell.folder / "backup"
    with pytest.raises(RuntimeError, match="stopped"):
        fitted(cell.make(), callbacks=[keras.callbacks.BackupAndRestore(backup), Stops()])
    model = fitted(cell.make(), callbacks=[keras.callbacks.BackupAndRestore(backup)])
    cell.equals_baseline(model)


def row_gradients(cell):
    """Rows are summed, the ones that are not named stay, and compiled steps do the same."""
    rng = np.random.default_rng(3)
    values = rng.normal(size=(4, 3)).astype("float32")
    twice = Rows(np.concatenate([values, values]) / 2, np.array([1, 2, 4, 5] * 2, "int32"))
    once = Rows(values, np.array([1, 2, 4, 5], "int32"))
    one, two = (
        Runner(cell.make(), {"table/embeddings": START[0]}, mode) for mode in ("eager", "compiled")
    )
    for _ in range(3):
        one.step({"table/embeddings": once})
        two.step({"table/embeddings": twice})
    close([one.values["table/embeddings"]], [two.values["table/embeddings"]])
    after, resting = one.values["table/embeddings"], [0, 3, 6, 7]
    # The whole table steps back, or to where it was; and clipping by columns is of all rows.
    if cell.wrapper not in ("Lookahead", "VariableClipping"):
        assert np.array_equal(after[resting], START[0][resting])
    assert np.all(after[[1, 2, 4, 5]] != START[0][[1, 2, 4, 5]])


def attributes(cell):
    optimizer = cell.make()
    model = fitted(optimizer, 1)
    core = innermost(optimizer)
    assert int(to_numpy(optimizer.iterations)) == int(to_numpy(core.iterations)) == 3
    optimizer.learning_rate = 0.125
    assert float(to_numpy(core.learning_rate)) == 0.125
    known = {id(v) for v in optimizer.variables}
    assert len(known) == len(optimizer.variables)
    assert {id(v) for v in core.variables} <= known
    for name in optimizer.slot_names:
        for variable in model.trainable_variables:
            assert id(optimizer.slot(variable, name)) in known
    assert set(getattr(core, "slot_names", ())) <= set(optimizer.slot_names)


CHECKS = (
    fit,
    jit,
    run_eagerly,
    steps_per_execution,
    save_and_load,
    clone_from_config,
    learning_rate_scheduler,
    reduce_on_plateau,
    schedule,
    accumulation,
    loss_scale,
    mixed_precision,
    multi_optimizer,
    tensorboard,
    model_checkpoint,
    backup_and_restore,
    row_gradients,
    attributes,
)
MATRIX = list(itertools.product(WRAPPERS, INNERS, CHECKS))


def is_selected(wrapper, inner, check):
    """Two wrappers for each check, of which the first comes with the first kind and so on."""
    w, i, c = list(WRAPPERS).index(wrapper), list(INNERS).index(inner), CHECKS.index(check)
    return (w - 2 * c) % len(WRAPPERS) in (0, 1) and i == (w + c) % len(INNERS)


def pytest_generate_tests(metafunc):
    if "check" not in metafunc.fixturenames:
        return
    everything = metafunc.config.getoption("exhaustive")
    cells = [
        pytest.param(
            wrapper,
            inner,
            check,
            id=f"{check.__name__}-{wrapper}-{inner}",
            marks=list(marks_of(wrapper, check)),
        )
        for wrapper, inner, check in MATRIX
        if everything or is_selected(wrapper, inner, check)
    ]
    metafunc.parametrize(("wrapper", "inner", "check"), cells)


NO_STEPS = "Keras has no steps_per_execution on PyTorch"


def marks_of(wrapper, check):
    yield pytest.mark.cell(optimizer=wrapper, invariant=check.__name__)
    yield pytest.mark.spread
    if check is steps_per_execution:
        yield pytest.mark.backends("tensorflow", "jax", reason=NO_STEPS)


# What Keras does not have, on a backend or with an optimizer.
def missing(inner, check):
    if check is steps_per_execution and BACKEND == "torch":
        return NO_STEPS
    if check is row_gradients and inner == "stock Adam":
        return "optimizers of Keras move all rows"
    if check is tensorboard and not importlib.util.find_spec("tensorflow"):
        return "Keras writes for TensorBoard by TensorFlow"
    if check is multi_optimizer and not hasattr(keras.optimizers, "MultiOptimizer"):
        return "this version of Keras has no MultiOptimizer"
    return None


def test_composition(wrapper, inner, check, tmp_path):
    if reason := missing(inner, check):
        pytest.skip(reason)
    check(Cell(wrapper, inner, tmp_path))


def test_the_size_of_the_matrix(capsys):
    selected = [cell for cell in MATRIX if is_selected(*cell)]
    left_out = [missing(inner, check) for _, inner, check in MATRIX if missing(inner, check)]
    with capsys.disabled():
        print(
            f"\n{len(WRAPPERS)} wrappers x {len(INNERS)} optimizers x {len(CHECKS)} checks = "
            f"{len(MATRIX)} cells on {BACKEND}; selected: {len(selected)}; "
            f"left out: {len(left_out)} {sorted(set(left_out))}. In processes of their own, with "
            f"--exhaustive: {len(COMPOSITIONS)} on two devices, and {len(COMPOSITIONS)} from each "
            "backend to each other one"
        )
    assert {wrapper for wrapper, _, _ in selected} == set(WRAPPERS)
    assert {inner for _, inner, _ in selected} == set(INNERS)
    assert {check for _, _, check in selected} == set(CHECKS)
    classes = {type(make(INNERS["LazyAdam"]())) for make in WRAPPERS.values()}
    public = {getattr(keras_tfopt, name) for name in keras_tfopt.__all__}
    wrappers = {c for c in public if isinstance(c, type) and issubclass(c, keras_tfopt.Wrapper)}
    extended = {keras_tfopt.AdamW, keras_tfopt.MomentumW}  # DecoupledWeightDecay by another name
    assert classes == wrappers - extended - {keras_tfopt.Wrapper}
