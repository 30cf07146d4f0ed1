"""The checks that Keras's own tests make of its optimizers, for each of our optimizers.

Keras's tests take numbers from SGD. These tests take them from the reference of each rule, or from
the same optimizer without the option. Other files have the remaining checks: the formulas
(test_contract.py), configurations (test_contract_state.py), pickling (test_copies.py), constraints
(test_in_fit.py), options of the base class (test_base_options.py), accumulation
(test_accumulation.py), loss scales (test_loss_scaling.py), row gradients (test_rows.py), strategies
and devices (test_distribution.py), checkpoints of TensorFlow (test_state.py).
"""

import re

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from tests.cases import every_case, keras_options
from tests.cells import exhaustive
from tests.helpers.compare import assert_close
from tests.helpers.stepping import Runner, innermost, make_variable, several_only, to_numpy

ONES = np.ones((2, 2), "float32")
START = np.array([[1.0, 2.0], [3.0, 4.0]], "float32")


def variable(value=START, path="layer/kernel"):
    return make_variable(path, value)


def stepped(optimizer, *grads, start=START):
    """Return a variable after some steps by `apply_gradients`, as the tests of Keras make them."""
    v = variable(start)
    for g in grads:
        optimizer.apply_gradients([(ops.convert_to_tensor(g), v)])
    return to_numpy(v)


def by_reference(case, *grads, start=START):
    reference = case.make_reference()
    x = {"layer/kernel": start.astype("float64")}
    s = reference.start(x)
    for step, g in enumerate(grads, start=1):
        x, s = reference.advance({"layer/kernel": g}, x, s, step)
    return x["layer/kernel"]


# Steps


@pytest.mark.backends("jax", "torch", reason="Keras has no `stateless_apply` on TensorFlow")
@every_case("case")
@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2, "use_ema": True}])
def test_stateless_apply_returns_what_apply_writes(case, options):
    if case.inner is not None and case.inner.__module__.startswith("keras.src"):
        options = {}
    first, second, v, w = case.make(**options), case.make(**options), variable(), variable()
    grads = [np.array(ONES * scale) for scale in (1.0, -0.5, 2.0, 0.25)]
    second.build([w])
    before = [to_numpy(x).copy() for x in (w, *second.variables)]
    x, state = [ops.copy(w.value)], [ops.copy(s.value) for s in second.variables]
    for g in grads:
        first.apply([ops.convert_to_tensor(g)], [v])
        given = [np.array(to_numpy(one)) for one in (*x, *state)]
        new_x, new_state = second.stateless_apply(state, [ops.convert_to_tensor(g)], x)
        for one, value in zip((*x, *state), given, strict=True):
            np.testing.assert_array_equal(to_numpy(one), value)  # arguments do not change
        x, state = new_x, new_state
    assert np.any(to_numpy(x[0]) != START)
    for one, value in zip((w, *second.variables), before, strict=True):
        np.testing.assert_array_equal(to_numpy(one), value)
    for one, owned in zip((*x, *state), (v, *first.variables), strict=True):
        # Compiled code may add in another order.
        np.testing.assert_allclose(to_numpy(one), to_numpy(owned), rtol=1e-5, atol=1e-6)


@every_case("case")
@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2, "use_ema": True}])
def test_paths_of_the_state_are_distinct(case, options):
    """Keras saves .h5 files by the paths."""
    if case.inner is not None and case.inner.__module__.startswith("keras.src"):
        options = {}
    optimizer = case.make(**options)
    optimizer.build([variable(), variable(path="table/embeddings"), variable(1.0, "scale")])
    paths = [state.path for state in optimizer.variables]
    assert len(set(paths)) == len(paths)


@every_case("case")
def test_paths_of_the_state_are_the_same_if_the_first_step_builds(case):
    """`set_state_tree` of Keras finds state by the paths."""

    def paths(build_first):
        optimizer, v = case.make(), variable()
        if build_first:
            optimizer.build([v])
        optimizer.apply([ops.convert_to_tensor(ONES)], [v])
        # Keras numbers optimizers of the same name.
        return [re.sub(r"_\d+(?=[/_])", "", state.path) for state in optimizer.variables]

    assert paths(False) == paths(True)


@every_case("case")
def test_without_any_gradient(case):
    optimizer, v = case.make(), variable()
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        optimizer.apply_gradients([(None, v)])
    assert np.array_equal(to_numpy(v), START)
    assert int(to_numpy(optimizer.iterations)) == 0


@every_case("case")
def test_missing_gradients_warn(case):
    optimizer = case.make()
    without, with_one = variable(path="a/kernel"), variable(path="b/kernel")
    for _ in range(2):  # ADOPT moves nothing in its first step
        with pytest.warns(UserWarning, match="a/kernel"):
            optimizer.apply_gradients([(None, without), (ops.convert_to_tensor(ONES), with_one)])
    assert np.array_equal(to_numpy(without), START)
    assert not np.array_equal(to_numpy(with_one), START)


@every_case("case")
def test_a_schedule_replaces_the_variable_of_the_learning_rate(case):
    optimizer = case.make(learning_rate=0.125)
    before = len(optimizer.variables)
    optimizer.learning_rate = keras.optimizers.schedules.PolynomialDecay(optimizer.learning_rate, 4)
    assert len(optimizer.variables) == before - 1
    with pytest.raises(TypeError):
        optimizer.learning_rate = 0.5


# Clipping


@every_case("case")
def test_only_one_way_to_clip(case):
    for name in ("clipnorm", "clipvalue", "global_clipnorm"):
        assert getattr(innermost(case.make(**{name: 0.1})), name) == 0.1
    for other in ("clipvalue", "global_clipnorm"):
        with pytest.raises(ValueError, match="Only one of `clipnorm`, `clipvalue` and"):
            case.make(clipnorm=0.1, **{other: 0.1})


# Variables that are overwritten


@every_case("case")
@pytest.mark.parametrize("every", (None, 2))
def test_variables_that_are_overwritten_with_their_gradients(case, every):
    """Keras keeps scales of float8 like this. Accumulation takes the largest gradient."""
    options = {"gradient_accumulation_steps": every} if every else {}
    optimizer, plain = case.make(**options), case.make()
    scale, kernel, alone = variable(path="scale"), variable(), variable()
    scale.overwrite_with_gradient = True
    twos = 2 * ONES
    optimizer.apply([ops.convert_to_tensor(ONES)] * 2, [scale, kernel])
    if every:
        assert np.array_equal(to_numpy(scale), START) and np.array_equal(to_numpy(kernel), START)
        optimizer.apply([ops.convert_to_tensor(twos)] * 2, [scale, kernel])
        assert np.array_equal(to_numpy(scale), twos)
        plain.apply([ops.convert_to_tensor(1.5 * ONES)], [alone])
    else:
        assert np.array_equal(to_numpy(scale), ONES)
        plain.apply([ops.convert_to_tensor(ONES)], [alone])
    if case.scope != "model":
        assert_close(to_numpy(kernel), to_numpy(alone), 1e-6, "the other variable")
    for value in (0.0, 3.0, 3.0):
        grads = [ops.convert_to_tensor(value * ONES), ops.convert_to_tensor(ONES)]
        for _ in range(every or 1):
            optimizer.apply(grads, [scale, kernel])
        assert np.array_equal(to_numpy(scale), value * ONES)
    assert not np.array_equal(to_numpy(kernel), START)  # some do not move in the first step
    if case.changes_variables_after_the_step or case.slots_that_change_in_all_rows:
        assert all(v is not scale for v, _ in optimizer.averages_now(lambda v: v.value))


@pytest.mark.parametrize("frequency", (None, 2))
def test_variables_that_are_overwritten_are_not_averaged(frequency):
    """Keras keeps no averages of them."""
    options = {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": frequency}
    optimizer = keras_tfopt.Momentum(0.1, 0.9, **options)
    scale, kernel = variable(path="scale"), variable()
    scale.overwrite_with_gradient = True
    for value in (1.0, 5.0, 3.0, 4.0, 2.0):
        optimizer.apply([ops.convert_to_tensor(value * ONES)] * 2, [scale, kernel])
        assert np.array_equal(to_numpy(scale), value * ONES)
    last = to_numpy(kernel)
    optimizer.finalize_variable_values([scale, kernel])
    assert np.array_equal(to_numpy(scale), 2.0 * ONES)
    assert not np.array_equal(to_numpy(kernel), last)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras_tfopt.Prodigy(),
        lambda: keras_tfopt.MovingAverage(
            keras_tfopt.Adam(use_ema=True, gradient_accumulation_steps=2)
        ),
        exhaustive(lambda: keras_tfopt.GGT()),
        exhaustive(lambda: keras_tfopt.LBFGS()),
        exhaustive(lambda: keras_tfopt.ScheduleFree(keras_tfopt.Adam())),
    ],
)
def test_a_saved_model_of_float8_continues(make, tmp_path):
    """Keras lists the variables of the loaded model in another order."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 6)).astype("float32"), rng.normal(size=(8, 4)).astype("float32")
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5), keras.layers.Dense(4)])
    model.quantize("float8")
    model.compile(make(), "mse")
    for _ in range(5):
        model.train_on_batch(x, y)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    orders = [[tuple(v.shape) for v in m.trainable_variables] for m in (model, again)]
    assert orders[0] != orders[1]
    for _ in range(3):
        before = model.predict_on_batch(x)
        assert model.train_on_batch(x, y) == again.train_on_batch(x, y)
        assert np.array_equal(model.predict_on_batch(x), again.predict_on_batch(x))
    assert not np.array_equal(model.predict_on_batch(x), before)


# Weight decay


@every_case("case")
def test_weight_decay_and_exclusions(case):
    """This is the option of the base class. Rules and wrappers may have their own."""
    if "weight_decay" in case.own_arguments:
        pytest.skip("it has a `weight_decay` of its own, which its reference covers")

    def decayed(by=None, weight_decay=0.25):
        optimizer = case.make(weight_decay=weight_decay)
        variables = [variable(path=path) for path in ("free/kernel", "exclude/kernel")]
        if by == "names":
            optimizer.exclude_from_weight_decay(var_names=["exclude"])
        elif by == "list":
            optimizer.exclude_from_weight_decay(var_list=variables[1:])
        optimizer.apply([ops.convert_to_tensor(1e-3 * ONES)] * 2, variables)
        return [to_numpy(v) for v in variables]

    free, other = decayed()
    without = decayed(weight_decay=None)[0]
    counts = [by_reference(case, 1e-3 * ONES, start=scale * START) for scale in (1.0, 0.9)]
    if not np.array_equal(*counts):  # if the step depends on the variable at all
        assert not np.array_equal(free, without)
    if case.scope != "model":
        assert np.array_equal(free, other)
    for by in ("names", "list"):
        decays, rests = decayed(by)
        assert np.array_equal(rests, without) and np.array_equal(decays, free)


# Several optimizers, and optimizers of variables


@several_only
@every_case("case")
def test_in_a_multi_optimizer(case):
    several = keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(case.make(learning_rate=0.011), {"^first/.*": case.make()})
    )
    values = {"first/kernel": START, "second/kernel": START}
    runner = Runner(several, values, "compiled")
    for _ in range(2):
        runner.step(dict.fromkeys(values, ONES))
    assert_close(runner.values["first/kernel"], by_reference(case, ONES, ONES), 4e-6, "first")
    alone = stepped(case.make(learning_rate=0.011), ONES, ONES)
    assert_close(runner.values["second/kernel"], alone, 4e-6, "second")
    assert int(to_numpy(several.iterations)) == 2
    again = keras.optimizers.deserialize(keras.optimizers.serialize(several))
    assert [type(one) for one in again.optimizers] == [case.cls] * 2


@pytest.mark.backends("tensorflow", reason="JAX and PyTorch have no strategies")
@every_case("case")
def test_stateless_apply_is_refused_on_tensorflow(case):
    optimizer = case.make()
    v = variable()
    optimizer.build([v])
    with pytest.raises(ValueError, match="not supported"):
        optimizer.stateless_apply(optimizer.variables, [ONES], [v])


def test_no_option_of_keras_is_forgotten():
    """An option that Keras adds needs a test in this file."""
    assert keras_options() == {
        *("name", "weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "use_ema"),
        *("ema_momentum", "ema_overwrite_frequency", "loss_scale_factor"),
        "gradient_accumulation_steps",
    }
    assert issubclass(keras_tfopt.Rule, keras.optimizers.Optimizer)


class CompilesItself(keras.Model):
    """A model that Keras saves without its optimizer, but with the optimizer's state."""

    def __init__(self, **options):
        super().__init__(**options)
        self.layer = keras.layers.Dense(1)
        self.compile()

    def compile(self, optimizer=None, loss="mse"):
        super().compile(optimizer or keras.optimizers.Adam(), loss)

    def call(self, x):
        return self.layer(x)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras_tfopt.Cautious(keras_tfopt.Adam()),
        lambda: keras_tfopt.DecoupledWeightDecay(keras_tfopt.LazyAdam(), 0.1),
    ],
    ids=["Cautious", "DecoupledWeightDecay"],
)
def test_state_of_another_optimizer_is_skipped(optimizer, tmp_path):
    model = CompilesItself()
    model.compile(optimizer())
    model.fit(ONES, ONES, verbose=0)
    model.save(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match="Skipping variable loading"):
        loaded = keras.saving.load_model(
            tmp_path / "model.keras", {"CompilesItself": CompilesItself}
        )
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])
