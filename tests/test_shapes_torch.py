"""Rules compiled on PyTorch for rows, and for shapes of variables."""

import contextlib

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import engine
from tests.helpers.fast_paths import train

pytestmark = pytest.mark.backends("torch", reason="only PyTorch compiles like this")


@pytest.mark.parametrize("cls", [keras_tfopt.LazyAdam, keras_tfopt.Adagrad, keras_tfopt.Ftrl])
def test_updates_of_rows_are_compiled(cls):
    from keras_tfopt.engine.backends.torch import compile as torch_compile

    tables = []
    for context in (contextlib.nullcontext, engine.plain):
        table = keras.Variable(np.ones((50, 3), "float32"), name="table")
        optimizer, random = cls(0.1234, clipvalue=0.5), np.random.default_rng(0)
        optimizer.build([table])
        before = torch_compile.compilations()
        with context():
            for count in (7, 1, 20):
                ids = random.permutation(50)[:count].astype("int32")
                values = random.standard_normal((count, 3)).astype("float32")
                optimizer.apply([keras_tfopt.RowGradient(values, ids, (50, 3))], [table])
        compiled = torch_compile.compilations() - before
        assert compiled <= 1 if context is contextlib.nullcontext else compiled == 0
        tables.append(keras.ops.convert_to_numpy(table))
        steps = [key for key in optimizer._fast if key[0] == "step"]
        assert bool(steps) == (context is contextlib.nullcontext)
    np.testing.assert_allclose(*tables, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_updates_of_rows_with_slots_of_fewer_bytes_are_compiled(dtype):
    found = []
    for context in (contextlib.nullcontext, engine.plain):
        table = keras.Variable(np.ones((50, 100), "float32"), name="table")
        optimizer = keras_tfopt.LazyAdam(
            0.1234, row_variables="table", groups={"table": {"slot_dtype": dtype}}
        )
        random = np.random.default_rng(0)
        optimizer.build([table])
        with context():
            for count in (7, 1, 20, 50):
                ids = random.permutation(50)[:count].astype("int32")
                values = random.standard_normal((count, 100)).astype("float32")
                optimizer.apply([keras_tfopt.RowGradient(values, ids, (50, 100))], [table])
        steps = [key for key in optimizer._fast if key[0] == "rows"]
        assert bool(steps) == (context is contextlib.nullcontext)
        found.append(keras.ops.convert_to_numpy(table))
    # A product and a sum may be one instruction with int8. It rounds once, so a code may differ.
    limit = 2e-6 if dtype == "bfloat16" else 0.02 * 0.1234
    np.testing.assert_allclose(*found, rtol=0, atol=limit)
    assert np.mean(np.abs(found[0] - found[1]) > 1e-5) < 0.01


OF_ROWS_AND_COLUMNS = [(160, 130), (130, 160), (160, 130), *[(16,)] * 9, (7,)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras_tfopt.Adafactor(0.1),
        lambda: keras_tfopt.CAME(0.1, weight_decay=0.1),
        lambda: keras_tfopt.MovingAverage(keras_tfopt.Adafactor(0.1)),
        lambda: keras_tfopt.Adafactor(0.1, groups={"v0": {"learning_rate_factor": 0.5}}),
    ],
    ids=["Adafactor", "CAME", "wrapped", "groups"],
)
def test_rules_over_rows_and_columns_are_compiled_for_each_shape(make):
    found = []
    for context in (engine.plain, contextlib.nullcontext):
        random = np.random.default_rng(0)
        values = [
            keras.Variable(random.standard_normal(shape), dtype="float32", name=f"v{n}")
            for n, shape in enumerate(OF_ROWS_AND_COLUMNS)
        ]
        optimizer = make()
        with context():
            train(optimizer, values, shapes=OF_ROWS_AND_COLUMNS)
        found.append([keras.ops.convert_to_numpy(v) for v in [*values, *optimizer.variables]])
    fast = getattr(optimizer, "inner_optimizer", optimizer)._fast
    (steps,) = [kept for key, kept in fast.items() if key[0] == "shapes"]
    assert sorted(steps) == list(range(12)) and len({*map(id, steps.values())}) >= 3
    for plain, fast in zip(*found, strict=True):
        np.testing.assert_allclose(fast, plain, rtol=2e-5, atol=2e-6)


def test_a_shape_is_compiled_once_where_it_is_worth_it():
    from keras_tfopt.engine.backends.torch import compile as torch_compile

    counts = []
    for shapes in ([(7, 5)], [(150, 131)], [(150, 131)], [(131, 150)]):
        before = torch_compile.compilations()
        values = [keras.Variable(np.ones(shape, "float32")) for shape in shapes]
        train(keras_tfopt.Adafactor(0.1234), values, shapes=shapes)
        counts.append(torch_compile.compilations() - before)
    assert counts == [0, 1, 0, 1]


def test_a_rule_whose_shapes_depend_on_values_stays_uncompiled():
    class Rising(keras_tfopt.Rule):
        """Moves by the mean of what is above 0."""

        scope = "variable"

        def update(self, g, x, s, t):
            above = g[g > 0]
            return x - t.lr * keras.ops.sum(above) / max(above.shape[0], 1), {}

    value = keras.Variable(np.zeros((150, 131), "float32"))
    g = np.random.default_rng(0).standard_normal(value.shape).astype("float32")
    optimizer = Rising(0.5)
    for _ in range(3):
        optimizer.apply([g], [value])
    expected = np.full(value.shape, -1.5 * g[g > 0].mean())
    np.testing.assert_allclose(keras.ops.convert_to_numpy(value), expected, rtol=1e-5)


def test_variables_in_another_order_of_memory_run_uncompiled():
    import torch

    start = np.random.default_rng(0).standard_normal((150, 131)).astype("float32")
    found = []
    for is_turned in (False, True):
        value = keras.Variable(start)
        if is_turned:
            value.value.data = torch.tensor(start.T.copy()).T
        train(keras_tfopt.Adafactor(0.1234), [value], shapes=[start.shape])
        assert value.value.is_contiguous() != is_turned
        found.append(keras.ops.convert_to_numpy(value))
    np.testing.assert_allclose(*found, rtol=2e-5, atol=2e-6)
