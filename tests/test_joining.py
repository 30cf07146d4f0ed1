"""Hooks of wrappers that run in one compiled call with the rule inside.

The steps are the same as with hooks that run separately.
"""

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import engine
from tests.helpers.fast_paths import SHAPES, variables


def adam(**options):
    return keras_tfopt.Adam(0.01, **options)


def decayed(inner):
    return keras_tfopt.DecoupledWeightDecay(inner, 0.1)


JOINED = {
    "moving_average": lambda: keras_tfopt.MovingAverage(adam(), 0.9),
    "of_a_rule_with_norms": lambda: keras_tfopt.MovingAverage(keras_tfopt.LARS(0.1), 0.9),
    "lookahead": lambda: keras_tfopt.Lookahead(adam(), sync_period=2),
    "weight_averaging": lambda: keras_tfopt.StochasticWeightAveraging(adam(), average_period=2),
    "adam_w": lambda: keras_tfopt.AdamW(weight_decay=0.1, learning_rate=0.01),
    "some_decay": lambda: keras_tfopt.DecoupledWeightDecay(adam(), 0.1, ["v1", "v3"]),
    "schedule_free": lambda: keras_tfopt.ScheduleFree(adam(), weight_decay_at_y=0.1, r=1.0),
    "clipped": lambda: keras_tfopt.ScheduleFree(adam(global_clipnorm=1.0)),
    "uphill": lambda: keras_tfopt.MovingAverage(adam(maximize=True), 0.9),
    "cautious": lambda: keras_tfopt.Cautious(adam()),
    "three": lambda: keras_tfopt.MovingAverage(keras_tfopt.Cautious(decayed(adam())), 0.9),
    "skipping": lambda: keras_tfopt.SkipNonFinite(keras_tfopt.MovingAverage(adam(), 0.9)),
    "groups": lambda: keras_tfopt.ScheduleFree(
        adam(groups={"v1": {"learning_rate_factor": 0.5}, "v3": {"weight_decay": 0.1}})
    ),
    "8_bits": lambda: keras_tfopt.ScheduleFree(adam(slot_dtype="int8")),
}
HALF = {
    "adam_w": lambda **o: keras_tfopt.AdamW(0.01, weight_decay=0.1, **o),
    "moving_average": lambda **o: keras_tfopt.MovingAverage(adam(**o), 0.9),
    "cautious": lambda **o: keras_tfopt.Cautious(adam(**o)),
    "schedule_free": lambda **o: keras_tfopt.ScheduleFree(adam(**o), r=1.0),
    "three": lambda **o: keras_tfopt.MovingAverage(
        keras_tfopt.Cautious(decayed(adam(slot_dtype="bfloat16", **o))), 0.9
    ),
}
APART = {
    # The rule gets clipped gradients, and Cautious the original ones.
    "hooks_that_see_gradients": lambda: keras_tfopt.Cautious(adam(clipvalue=0.1)),
    "other_averages": lambda: keras_tfopt.MovingAverage(adam(use_ema=True), 0.9),
    "norms_of_weights": lambda: keras_tfopt.MovingAverage(
        adam(groups={"v3": {"max_norm": 1.0}}), 0.9
    ),
    "a_step_of_workers": lambda: keras_tfopt.MovingAverage(keras_tfopt.Multitask(adam()), 0.9),
    "an_optimizer_of_keras": lambda: keras_tfopt.MovingAverage(keras.optimizers.Adam(0.01), 0.9),
}


def steps(optimizer, values, number=5):
    """Make some steps; return the variables and the state of the optimizer."""
    random = np.random.default_rng(1)
    for _ in range(number):
        grads = [random.standard_normal(shape).astype("float32") for shape in SHAPES]
        optimizer.apply(grads, values)
    return [keras.ops.convert_to_numpy(v) for v in (*values, *optimizer.variables)]


def apart(make):
    with engine.plain():
        return steps(make(), variables())


@pytest.mark.parametrize("name", JOINED)
def test_hooks_in_one_call_equal_separate_hooks(name):
    optimizer = JOINED[name]()
    got = steps(optimizer, variables())
    for one, other in zip(got, apart(JOINED[name]), strict=True):
        far = ~np.isclose(one.astype("float64"), other.astype("float64"), rtol=2e-6, atol=2e-6)
        # A number midway between two codes of 8 bits may get either.
        assert far.sum() <= (1e-4 * far.size if name == "8_bits" else 0)
    assert optimizer._pipeline.joining() is not None
    if keras.backend.backend() != "jax":  # which compiles whole steps
        compiled = [part for key in engine.innermost(optimizer)._fast for part in key]
        assert any(getattr(part, "around", None) for part in compiled)


@pytest.mark.parametrize("master_weights", [True, False])
@pytest.mark.parametrize("name", HALF)
def test_hooks_of_variables_in_half_precision(name, master_weights):
    """Their numbers may be assigned between steps."""

    def run():
        optimizer, values = HALF[name](master_weights=master_weights), variables("bfloat16")
        steps(optimizer, values, 3)
        values[1].assign(keras.ops.ones(SHAPES[1]))
        return optimizer, values, steps(optimizer, values, 3)

    optimizer, values, got = run()
    assert all(optimizer._pipeline.joining()._makers)
    with engine.plain():
        expected = run()[2]
    for value in values if master_weights else ():
        copy = keras.ops.cast(optimizer.slot(value, "master_weight"), "bfloat16")
        assert keras.ops.all(keras.ops.equal(copy, keras.ops.convert_to_tensor(value)))
    # A number midway between two of bfloat16 may get either.
    for number, (one, other) in enumerate(zip(got, expected, strict=True)):
        is_exact = master_weights and number >= len(values) and str(one.dtype) == "float32"
        close = 2e-6 if is_exact else 2**-7
        one, other = one.astype("float32"), other.astype("float32")
        np.testing.assert_allclose(one, other, rtol=close, atol=close)


def test_two_wrappers_around_one_optimizer():
    """Code for the hooks of one is not run for the other, which trains after it, or in turn."""

    def run():
        inner, values = adam(), variables()
        both = keras_tfopt.MovingAverage(inner, 0.9), keras_tfopt.Lookahead(inner, sync_period=2)
        states = [steps(optimizer, values, 2) for optimizer in (*both, *both)]
        return [value for state in states for value in state]

    got = run()
    with engine.plain():
        expected = run()
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", APART)
def test_other_hooks_run_separately(name):
    optimizer = APART[name]()
    got = steps(optimizer, variables())
    for one, other in zip(got, apart(APART[name]), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6)
    assert optimizer._pipeline.joining() is None


def test_hooks_of_row_gradients_run_separately():
    def run():
        table = keras.Variable(np.ones((6, 4), "float32"), name="table")
        weights = keras.Variable(np.ones((4, 3), "float32"), name="weights")
        optimizer = keras_tfopt.MovingAverage(keras_tfopt.LazyAdam(0.1), 0.9)
        optimizer.build([table, weights])
        for number in range(4):
            rows = keras_tfopt.RowGradient(
                np.full((2, 4), 0.5, "float32"), np.array([number, 5]), (6, 4)
            )
            optimizer.apply([rows, np.full((4, 3), 0.1 * number, "float32")], [table, weights])
        return [keras.ops.convert_to_numpy(v) for v in (table, weights, *optimizer.variables)]

    got = run()
    with engine.plain():
        expected = run()
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6)


def test_hyperparameters_of_a_data_type_whose_hooks_all_run_separately():
    half = keras.Variable(np.ones((6, 4)), dtype="float16", name="half")
    whole = keras.Variable(np.ones((4, 3)), dtype="float64", name="whole")
    optimizer = keras_tfopt.MovingAverage(keras_tfopt.GradientDescent(0.5), 0.9)
    optimizer.build([half, whole])
    optimizer.apply([np.ones((6, 4), "float16"), np.ones((4, 3))], [half, whole])
    for variable in (half, whole):
        np.testing.assert_allclose(keras.ops.convert_to_numpy(variable), 0.5)
    for average in (entry.slots["average"] for entry in optimizer._state.entries):
        np.testing.assert_allclose(keras.ops.convert_to_numpy(average), 0.95, rtol=1e-6)


def test_a_number_in_a_wrapper_of_elements_is_refused():
    @keras_tfopt.register
    class Counting(keras_tfopt.Wrapper):
        scope = "element"

        def slots(self, like):
            return {"count": keras_tfopt.Slot(())}

    message = r"Slot 'count' of an elementwise wrapper must have .* shape \(5,\). Received: \(\)"
    with pytest.raises(ValueError, match=message):
        Counting(keras_tfopt.Adam()).build([keras.Variable(np.ones(5, "float32"))])


def test_an_assigned_argument_counts_from_the_next_step():
    optimizer = keras_tfopt.ScheduleFree(keras_tfopt.GradientDescent(0.1), momentum=0.9)
    variable = keras.Variable(np.ones(5, "float32"))
    optimizer.apply([np.ones(5, "float32")], [variable])
    optimizer.momentum = 0.0
    optimizer.apply([np.ones(5, "float32")], [variable])
    # With a momentum of 0, y is z: two steps of 0.1.
    np.testing.assert_allclose(keras.ops.convert_to_numpy(variable), 0.8, rtol=1e-6)


def test_a_changed_gradient_is_refused():
    @keras_tfopt.register
    class Halving(keras_tfopt.Wrapper):
        scope = "element"

        def before(self, g, x, s, t):
            return g / 2, x

    variable = keras.Variable(np.ones(5, "float32"))
    with pytest.raises(TypeError, match="Halving.before must return the gradient as it came"):
        Halving(keras_tfopt.Adam()).apply([np.ones(5, "float32")], [variable])
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), 1.0)


def test_compiled_code_keeps_no_optimizer_alive():
    import gc
    import weakref

    optimizer = keras_tfopt.MovingAverage(adam(), 0.9)
    steps(optimizer, variables())
    known = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert known() is None
