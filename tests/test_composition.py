"""Every wrapper around every kind of optimizer, in what Keras does with optimizers.

A cell is a wrapper, an optimizer inside, and a check. Without `--exhaustive`, each check takes one
wrapper, so that each wrapper meets some check. Two checks need processes of their own:
test_distribution.py tests several devices, test_state_travels.py tests another backend.
"""

import importlib.util
import itertools

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.cells import EXHAUSTIVE
from tests.helpers.compare import same
from tests.helpers.compositions import INNERS, WRAPPERS
from tests.helpers.fitting import (
    FIT,
    IDS,
    START,
    TARGETS,
    baseline,
    close,
    equals_baseline,
    fitted,
    jit_compile,
    make_model,
    run_eagerly,
    state,
    steps_per_execution,
)
from tests.helpers.stepping import Rows, Runner, policy, through_json, to_numpy


class Cell:
    """A wrapper around an optimizer, and a folder for files."""

    def __init__(self, wrapper, inner, folder):
        self.wrapper, self.inner, self.folder = wrapper, inner, folder
        self.name = f"{wrapper} of {inner}"

    def make(self, learning_rate=0.05, **base):
        return WRAPPERS[self.wrapper](INNERS[self.inner](learning_rate, **base))


# The checks


def fit_as_usual(cell):
    equals_baseline(cell, fitted(cell.make()))


def save_and_load(cell):
    model = fitted(cell.make(), epochs=1)
    model.save(cell.folder / "model.keras")
    again = keras.saving.load_model(cell.folder / "model.keras")
    assert type(again.optimizer) is type(model.optimizer)
    for one in (model, again):
        one.fit(IDS, TARGETS, epochs=1, **FIT)
    assert same(state(model), state(again))
    equals_baseline(cell, again)


def clone_from_config(cell):
    optimizer = cell.make()
    again = through_json(optimizer)
    assert again is not optimizer and again.get_config() == optimizer.get_config()
    equals_baseline(cell, fitted(again))


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
    constant = fitted(cell.make(), epochs=1).get_weights()
    if cell.wrapper == "DecoupledWeightDecay" or cell.inner == "wrapper":
        return  # decay and averages move variables at a learning rate of zero, too
    if cell.wrapper in ("Lookahead", "ScheduleFree") or cell.inner == "LARS":
        return  # so do steps back, and averages and momentum that include the old rate
    close(model.get_weights(), constant)


def reduce_on_plateau(cell):
    reduce = keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=1, min_delta=1e9)
    model = fitted(cell.make(learning_rate=0.5), epochs=3, callbacks=[reduce])
    assert rate_of(model.optimizer) < 0.5
    assert float(to_numpy(model.optimizer.learning_rate)) == rate_of(model.optimizer)


def schedule(cell):
    falling = keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.05, 0.01])
    scheduled, assigned = fitted(cell.make(learning_rate=falling)), make_model(cell.make())
    for step, start in enumerate([0, 4, 8] * 2):
        assigned.optimizer.learning_rate = 0.05 if step <= 2 else 0.01
        assigned.train_on_batch(IDS[start : start + 4], TARGETS[start : start + 4])
    close(scheduled.get_weights(), assigned.get_weights())


def accumulation(cell):
    """Three micro-steps are one step on their batches together."""
    parts = fitted(cell.make(gradient_accumulation_steps=3))
    whole = fitted(cell.make(), batch_size=12)
    close(parts.get_weights(), whole.get_weights(), 1e-4, 1e-5)
    assert not same(parts.get_weights(), START)


def loss_scale(cell):
    for outer in (keras.optimizers.LossScaleOptimizer, keras_tfopt.LossScaleOptimizer):
        model = fitted(outer(cell.make(), initial_scale=8.0))
        equals_baseline(cell, model, rtol=1e-4, atol=1e-5)


def mixed_precision(cell):
    with policy("mixed_float16"):
        compiled = make_model(cell.make()).optimizer
        assert isinstance(compiled, keras.optimizers.LossScaleOptimizer)
        scaled = keras.optimizers.LossScaleOptimizer(cell.make(), initial_scale=8.0)
        models = [fitted(scaled)]  # the default scale is too large for the first steps
    with policy("mixed_bfloat16"):
        models.append(fitted(cell.make()))
        assert type(models[-1].optimizer) is type(cell.make())
    for model in models:
        pairs = zip(model.get_weights(), baseline(cell), strict=True)
        # Rounding changes the sign of some gradients, and Adam's first steps are signs.
        assert all(np.mean(np.abs(a - b)) < 0.05 for a, b in pairs)
        assert not same(model.get_weights(), START)


def multi_optimizer(cell):
    """A wrapper around several optimizers equals several wrappers, each around one optimizer."""
    several = keras.optimizers.MultiOptimizer, keras.optimizers.OptimizerMap

    def make(around_each, around_all):
        each = [around_each(INNERS[cell.inner](rate)) for rate in (0.05, 0.02)]
        return around_all(several[0](several[1](each[0], {".*dense.*": each[1]})))

    plain = lambda optimizer: optimizer  # noqa: E731
    # AGN makes a copy of the optimizer inside. ScheduleFree weights by its learning rate.
    if cell.wrapper in ("AGN", "ScheduleFree"):
        wrapper, needs = WRAPPERS[cell.wrapper], f"{cell.wrapper} needs one optimizer for all"
        with pytest.raises(ValueError, match=f"{needs} .* MultiOptimizer"):
            make(plain, wrapper)
        assert not same(fitted(make(wrapper, plain)).get_weights(), START)
        return
    if cell.wrapper == "Cautious" and cell.inner == "wrapper":
        return  # Cautious treats decay by a wrapper differently inside a MultiOptimizer
    inside = fitted(make(plain, WRAPPERS[cell.wrapper]))
    outside = fitted(make(WRAPPERS[cell.wrapper], plain))
    close(inside.get_weights(), outside.get_weights())
    assert not same(inside.get_weights(), START)


def tensorboard(cell):
    """The logs have the learning rate, and training is not disturbed."""
    board = keras.callbacks.TensorBoard(cell.folder, histogram_freq=1)
    falls = keras.callbacks.LearningRateScheduler(lambda epoch: 0.05)
    equals_baseline(cell, fitted(cell.make(), callbacks=[falls, board]))
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
    equals_baseline(cell, model)


def row_gradients(cell):
    """Repeated rows are summed, other rows stay, and compiled steps do the same."""
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
    # Lookahead moves the whole table back. Clipping of columns changes all rows.
    if cell.wrapper not in ("Lookahead", "VariableClipping"):
        assert np.array_equal(after[resting], START[0][resting])
    assert np.all(after[[1, 2, 4, 5]] != START[0][[1, 2, 4, 5]])


def attributes(cell):
    optimizer = cell.make()
    model = fitted(optimizer, epochs=1)
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
    fit_as_usual,
    jit_compile,
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


def cells():
    """Return all cells; or one wrapper for each check, with all kinds of optimizers inside."""
    for (w, wrapper), (i, inner), (c, check) in itertools.product(
        *map(enumerate, (WRAPPERS, INNERS, CHECKS))
    ):
        # With -1, `learning_rate_scheduler` gets an optimizer that rests at a rate of zero.
        chosen = w == 2 * c % len(WRAPPERS) and i == (w + c - 1) % len(INNERS)
        if EXHAUSTIVE or chosen:
            marks = [pytest.mark.cell(optimizer=wrapper, invariant=check.__name__)]
            if check is steps_per_execution:
                reason = "Keras has no steps_per_execution on PyTorch"
                marks.append(pytest.mark.backends("tensorflow", "jax", reason=reason))
            name = f"{check.__name__}-{wrapper}-{inner}"
            yield pytest.param(wrapper, inner, check, id=name, marks=marks)


def missing(inner, check):
    """Return why a check is impossible here, or None."""
    if check is row_gradients and inner == "stock Adam":
        return "optimizers of Keras move all rows"
    if check is tensorboard and not importlib.util.find_spec("tensorflow"):
        return "Keras writes for TensorBoard by TensorFlow"
    if check is multi_optimizer and not hasattr(keras.optimizers, "MultiOptimizer"):
        return "this version of Keras has no MultiOptimizer"
    return None


@pytest.mark.spread
@pytest.mark.parametrize(("wrapper", "inner", "check"), cells())
def test_composition(wrapper, inner, check, tmp_path):
    if reason := missing(inner, check):
        pytest.skip(reason)
    check(Cell(wrapper, inner, tmp_path))


@pytest.mark.spread
def test_each_wrapper_each_optimizer_and_each_check_is_chosen():
    chosen = zip(*(cell.values for cell in cells()))
    assert [set(one) for one in chosen] == [set(WRAPPERS), set(INNERS), set(CHECKS)]
    classes = {type(make(INNERS["LazyAdam"]())) for make in WRAPPERS.values()}
    public = {getattr(keras_tfopt, name) for name in keras_tfopt.__all__}
    wrappers = {c for c in public if isinstance(c, type) and issubclass(c, keras_tfopt.Wrapper)}
    # These are DecoupledWeightDecay by other names.
    extended = {keras_tfopt.AdamW, keras_tfopt.MomentumW, keras_tfopt.SGDW}
    assert classes == wrappers - extended - {keras_tfopt.Wrapper}
