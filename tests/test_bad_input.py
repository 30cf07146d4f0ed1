"""Wrong input raises ValueError or TypeError, and changes nothing.

The message names the argument, says what is allowed, and shows the wrong value.
"""

import contextlib
import math

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.cases import every_case
from tests.helpers.compare import assert_same
from tests.helpers.stepping import IMMEDIATE, MODES, Rows, Runner, through_json

Refused = (ValueError, TypeError)
every_compiled = pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in IMMEDIATE])
not_torch = pytest.mark.backends(
    "tensorflow", "jax", reason="on PyTorch `apply` is called with values, compiled or not"
)
NEGATIVE = (-0.1, -1)
NUMBERS = (math.nan, math.inf, 1e40, "0.5", None, [0.5], 1j)


def message(error, *parts):
    """Return the message, after a check that it names argument, range and value."""
    text = str(error.value)
    for part in parts:
        assert part in text, f"{part!r} is not in: {text}"
    assert len(text) > sum(map(len, parts)) + 10, f"says too little: {text}"
    return text


# Hyperparameters


def wrong_values(case, name, default):
    """Return values that an argument of this optimizer must refuse."""
    more = case.refused.get(name, ())
    if isinstance(default, bool):
        return more or ("yes", 2, None)
    if isinstance(default, float):
        return (*more, *NUMBERS, *(() if name in case.may_be_negative else NEGATIVE))
    if name == "inner_optimizer":
        return 3, None, [case.inner]
    assert more, f"`refused` of the Case must say which values `{name}` refuses"
    return more


@pytest.mark.spread
@every_case("case")
def test_wrong_hyperparameters(case):
    assert set(case.refused) <= set(case.own_arguments)
    for name, default in case.own_arguments.items():
        is_number = isinstance(default, float)
        for value in wrong_values(case, name, default):
            with pytest.raises(Refused) as error:
                if name == "inner_optimizer":
                    case.cls(value, **case.required)
                else:
                    case.make(**{name: value})
            # for a list, the message may show only the wrong item
            text = message(error, name, repr(value).strip("[]"))
            if is_number:
                assert any(sign in text for sign in "0[(<>"), f"no range: {text}"


@pytest.mark.spread
@pytest.mark.parametrize(
    ("value", "rounded"), [({"beta_2": 1 - 1e-9}, "1"), ({"epsilon": 1e39}, "inf")]
)
def test_hyperparameters_are_in_their_range_in_float32(value, rounded):
    ((name, number),) = value.items()
    with pytest.raises(ValueError) as error:
        keras_tfopt.Adam(0.1, **value)
    message(
        error, f"`{name}` must be a number in [0, ", f"in float32 it is {rounded}. ", repr(number)
    )


@pytest.mark.spread
def test_options_are_in_their_range_in_float32():
    with pytest.raises(ValueError, match="`clipvalue` must be .* number > 0; in float32 it is 0"):
        keras_tfopt.Adam(0.1, clipvalue=1e-60)


@pytest.mark.spread
@every_case("case")
def test_right_hyperparameters_of_other_types(case):
    """Numbers of NumPy and integers are allowed, and the configuration stays plain JSON."""
    for name, default in case.own_arguments.items():
        if isinstance(default, float):
            for value in (0, np.float32(0.5), np.float64(0.25), np.int64(0)):
                if value in case.refused.get(name, ()):
                    continue
                optimizer = case.make(**{name: value})
                assert float(getattr(optimizer, name)) == float(value)
                assert through_json(optimizer).get_config()[name] == value


@pytest.mark.spread
@every_case("case")
def test_a_hyperparameter_is_no_variable_of_several_numbers(case):
    several = keras.Variable([0.25, 0.5])
    for name, default in case.own_arguments.items():
        if isinstance(default, float) and not isinstance(default, bool):
            with pytest.raises(Refused, match=f"`{name}` must be a "):
                case.make(**{name: several})


@every_case("case")
def test_wrong_learning_rates(case):
    wrong = (-0.1, -1, math.nan, math.inf, 1e40, "fast", "0.1", None, [0.1], {"a": 1}, 1j, object())
    for value in wrong:
        with pytest.raises(Refused) as error:
            case.make(learning_rate=value)
        message(error, "learning_rate", repr(value))


@every_case("case")
def test_right_learning_rates(case):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.25, 10, 0.9)
    for value in (1, 0, 0.25, np.float32(0.25), np.float64(0.25), np.int64(1), schedule):
        optimizer = case.make(learning_rate=value)
        optimizer.build([keras.Variable(np.ones(2))])
        expected = 0.25 if value is schedule else float(value)
        assert float(keras.ops.convert_to_numpy(optimizer.learning_rate)) == expected

    def rate():
        return 0.25

    runner = Runner(case.make(learning_rate=rate), {"kernel": np.ones(3)})
    same = Runner(case.make(learning_rate=0.25), {"kernel": np.ones(3)})
    for each in (runner, same):
        each.step({"kernel": np.full(3, 0.5)})
    assert np.array_equal(runner.values["kernel"], same.values["kernel"])
    with pytest.raises(TypeError, match="a function.*Received: learning_rate=0.5"):
        runner.optimizer.learning_rate = 0.5


@every_case("case")
def test_wrong_base_options(case):
    wrong = {
        "row_variables": (3, "(", [3]),
        "master_weights": ("yes", 2),
        "maximize": ("yes", 1),
        "use_ema": ("False", None),
        "ema_momentum": (None, 2.0, np.nan),
        "ema_overwrite_frequency": (0, True, 1.5),
        "gradient_accumulation_steps": (0, 1, True),
    }
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(Refused) as error:
                case.make(**{name: value})
            message(error, name, repr(value))


@pytest.mark.parametrize("name", ["weight_decay", "clip_unitwise", "loss_scale_factor"])
def test_options_may_be_integers_beyond_32_bits(name):
    steps = [
        Runner(keras_tfopt.Momentum(2.0**-50, **{name: value}), {"kernel": np.ones(3)})
        for value in (2**40, 2.0**40)
    ]
    for runner in steps:
        runner.step({"kernel": np.full(3, 0.5)})
    first, second = (runner.values["kernel"] for runner in steps)
    assert np.array_equal(first, second)


# Gradients


VALUES = {
    "first/kernel": np.ones((4, 3)),
    "second/kernel": np.full((4, 3), 2.0),
    "table/embeddings": np.full((5, 2), 3.0),
}


def sound():
    """Return gradients that are accepted."""
    return {
        "first/kernel": np.full((4, 3), 0.5),
        "second/kernel": np.full((4, 3), 0.5),
        "table/embeddings": Rows(np.full((2, 2), 0.5), np.array([1, 4], "int32")),
    }


@contextlib.contextmanager
def refused(runner, errors=Refused):
    """A context in which a step is refused, and in which nothing changes."""
    before = runner.snapshot()
    with pytest.raises(errors) as error:
        yield error
    assert_same(runner.snapshot(), before)


def refuse(runner, path, gradient, *parts):
    """Check that a step with this gradient is refused, and that nothing changes."""
    with refused(runner) as error:
        runner.step({**sound(), path: gradient})
    message(error, path, *parts)


@pytest.fixture(params=IMMEDIATE)
def runner_of(request):
    """Return a function that makes a runner after one step, so that no slot is empty."""

    def make(case):
        runner = Runner(case.make(), VALUES, request.param)
        runner.step(sound())
        return runner

    return make


@every_case("case")
def test_wrong_gradients(case, runner_of):
    runner = runner_of(case)
    refuse_dense_gradients(runner)
    refuse_row_gradients(runner)
    refuse_lists(runner)
    with pytest.raises(TypeError) as error:
        case.make().build(runner.variables[0])
    message(error, "`variables`")
    runner.step(sound())  # works as before


def refuse_dense_gradients(runner):
    # also shapes that would broadcast
    for shape in ((), (1,), (3,), (1, 3), (4, 1), (3, 4), (4, 3, 1), (1, 4, 3), (12,), (0, 3)):
        refuse(runner, "second/kernel", np.ones(shape), str((4, 3)), str(shape))
    refuse(runner, "table/embeddings", np.ones((5, 1)), str((5, 2)), str((5, 1)))
    for wrong in ("a gradient", object(), {"values": 1}):
        refuse(runner, "second/kernel", wrong)
    imaginary = keras.ops.convert_to_tensor(np.full((4, 3), 1j, "complex64"))
    refuse(runner, "second/kernel", imaginary, "real numbers", "complex64")


def refuse_row_gradients(runner):
    index = np.array([1, 4], "int32")
    for values, indices in (
        (np.ones((2, 3)), index),
        (np.ones((2, 1)), index),
        (np.ones(2), index),
        (np.ones((2, 2, 1)), index),
        (np.ones((3, 2)), index),
        (np.ones((1, 2)), index),
        (np.ones((2, 2)), index[:, None]),
    ):
        with refused(runner) as error:
            runner.step({**sound(), "table/embeddings": Rows(values, indices)})
        message(error, str(values.shape if indices.ndim == 1 else indices.shape))
    for wrong in (5, -1, 1000, -6, 2**31 - 1):
        rows = Rows(np.ones((2, 2)), np.array([1, wrong], "int32"))
        refuse(runner, "table/embeddings", rows, str(wrong), "0 and 4")
    values = keras.ops.ones((2, 2), dtype="float32")
    other = keras_tfopt.RowGradient(values, keras.ops.convert_to_tensor([0, 6]), (7, 2))
    refuse(runner, "table/embeddings", other, str((5, 2)), str((7, 2)))


def refuse_lists(runner):
    """Check that too many or too few gradients are refused, and variables in the place of lists."""
    one, gradient, optimizer = runner.variables[0], keras.ops.ones((4, 3)), runner.optimizer
    for gradients in ([gradient], [gradient] * 4, []):
        with refused(runner):
            optimizer.apply(gradients, runner.variables)
    for argument, wrong in (
        ("grads_and_vars", lambda: optimizer.apply_gradients(runner.variables)),
        ("grads_and_vars", lambda: optimizer.apply_gradients(one)),
        ("grads_and_vars", lambda: optimizer.apply_gradients([gradient])),
        ("grads", lambda: optimizer.apply(one, [one])),
        ("trainable_variables", lambda: optimizer.apply([gradient], one)),
    ):
        with refused(runner, TypeError) as error:
            wrong()
        message(error, f"`{argument}`")


@every_case("case")
def test_variables_are_distinct(case):
    optimizer, variable = case.make(), keras.Variable(np.ones(3), name="twice")
    with pytest.raises(ValueError, match="each variable once.*twice"):
        optimizer.build([variable, variable])
    assert not optimizer.built


@pytest.mark.parametrize("name", ["values", "indices"])
def test_row_gradients_are_numbers(name):
    arguments = {"values": [[1.0]], "indices": [0], "shape": (2, 1), name: [object()]}
    with pytest.raises(TypeError, match=f"`{name}` must be .*numbers"):
        keras_tfopt.RowGradient(**arguments)


def test_row_indices_are_integers():
    with pytest.raises(Refused) as error:
        keras_tfopt.RowGradient(keras.ops.ones((2, 2)), keras.ops.ones((2,)), (5, 2))
    message(error, "indices", "int", "float32")


@pytest.mark.parametrize("shape", [None, 4, "ab"])
def test_the_shape_of_a_row_gradient_is_a_tuple_of_integers(shape):
    with pytest.raises(Refused) as error:
        keras_tfopt.RowGradient(keras.ops.ones((2, 2)), [0, 1], shape)
    message(error, "shape", "tuple of integers", repr(shape))


@every_case("case")
@pytest.mark.backends("tensorflow", reason="IndexedSlices are TensorFlow's")
def test_indexed_slices_that_do_not_fit(case, runner_of):
    import tensorflow as tf

    runner = runner_of(case)
    for wrong in (5, -1):
        slices = tf.IndexedSlices(tf.ones((2, 2)), tf.constant([1, wrong]), tf.constant([5, 2]))
        refuse(runner, "table/embeddings", slices, str(wrong))


# Compiled steps: shapes are known when the program is built, indices are not.


@every_case("case")
@every_compiled
@not_torch
def test_wrong_shapes_are_refused_when_compiling(case, mode):
    runner = Runner(case.make(), VALUES, mode)
    for path, gradient in {
        "second/kernel": np.ones((1, 3)),
        "table/embeddings": Rows(np.ones((2, 1)), np.array([1, 4], "int32")),
    }.items():
        with refused(runner) as error:
            runner.step({**sound(), path: gradient})
        message(error, str((4, 3)) if path == "second/kernel" else str((2, 1)))


@every_case("case")
@every_compiled
@not_torch
def test_compiled_steps_drop_rows_that_do_not_exist(case, mode):
    """A compiled step cannot raise an error. It does the rest, and no other row changes.

    The next call that can raise an error says how many rows there were, once.
    """
    runner = Runner(case.make(), VALUES, mode)
    start, everything = runner.snapshot(), (*runner.variables, *runner.optimizer.variables)

    def after_a_step(values, indices):
        for variable, value in zip(everything, start, strict=True):
            variable.assign(value)
        runner.step({**sound(), "table/embeddings": Rows(values, np.array(indices, "int32"))})
        slots = {(path, name): s for path, of in runner.slots.items() for name, s in of.items()}
        return runner.values, slots

    values = np.random.default_rng(0).normal(size=(6, 2))
    found, slots = after_a_step(values, [1, 3, 5, 9, -1, -5])
    runner.mode = IMMEDIATE[0]
    with pytest.raises(ValueError) as error:
        runner.step(sound())
    message(error, "ndices", "4")
    assert_same(runner.values, found)
    runner.step(sound())
    assert not np.array_equal(runner.values["first/kernel"], found["first/kernel"])
    runner.mode = mode
    values[2:] = 0.0  # zeros for an existing row change nothing, and need no new program
    expected, expected_slots = after_a_step(values, [1, 3, 1, 1, 1, 1])
    for path in VALUES:
        np.testing.assert_allclose(found[path], expected[path], rtol=1e-6)
    for place, slot in expected_slots.items():
        np.testing.assert_allclose(slots[place], slot, rtol=1e-6, atol=1e-12)
