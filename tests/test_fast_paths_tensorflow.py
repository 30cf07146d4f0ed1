"""Rules that XLA compiles inside a step of TensorFlow: when, and which optimizers share code."""

import gc
import weakref

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt.engine.step import shared_code
from tests.helpers.fast_paths import OPTIMIZERS, SHAPES, train, variables
from tests.helpers.programs import run
from tests.helpers.stepping import to_numpy

pytestmark = pytest.mark.backends("tensorflow", reason="the inner XLA function is TensorFlow's")


def compiled_functions(optimizer):
    return [f for key, f in optimizer._fast.items() if key[0] == "whole"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_rule_runs_in_an_xla_compiled_function(name):
    import tensorflow as tf

    optimizer, values = OPTIMIZERS[name](), variables()
    optimizer.build(values)
    grads = [tf.ones(s) for s in SHAPES]

    @tf.function
    def step():
        optimizer.apply(grads, values)

    graph = step.get_concrete_function().graph
    calls = [op for op in graph.get_operations() if "PartitionedCall" in op.type]
    inner = [graph._get_function(op.get_attr("f").name) for op in calls]
    compiled = [f for f in inner if f.cached_definition.attr["_XlaMustCompile"].b]
    assert len(compiled) == len(set(SHAPES))
    # Outside of these functions, nothing is computed with whole variables.
    outside = {op.type for op in graph.get_operations() for t in op.outputs if t.shape == SHAPES[3]}
    arithmetic = {"AddV2", "Sub", "Mul", "RealDiv", "Sqrt", "Square"}
    assert outside and not outside & arithmetic


def test_two_steps_one_trace():
    # No other test has these hyperparameters. With equal ones, optimizers share compiled code.
    optimizer, values = keras_tfopt.Adam(0.01, beta_1=0.8125), variables()
    train(optimizer, values, steps=4)
    functions = compiled_functions(optimizer)
    assert len(functions) == len(SHAPES)
    assert all(f.experimental_get_tracing_count() == 1 for f in functions)


def test_equal_optimizers_share_compiled_code():
    optimizers = [keras_tfopt.Adam(rate, beta_1=0.625) for rate in (0.01, 0.02)]
    optimizers.append(keras_tfopt.Adam(0.01, beta_1=0.6875))
    optimizers.append(keras_tfopt.AdaMax(0.01, beta_1=0.625))
    ends = []
    for optimizer in optimizers:
        values = variables()
        train(optimizer, values, steps=2)
        ends.append([to_numpy(v) for v in values])
    one, other, *others = map(compiled_functions, optimizers)
    assert all(a is b for a, b in zip(one, other, strict=True))
    assert not any(f in one for found in others for f in found)
    assert all(f.experimental_get_tracing_count() == 1 for f in one)
    moved = [a - to_numpy(v) for a, v in zip(ends[0], variables(), strict=True)]
    twice = [b - to_numpy(v) for b, v in zip(ends[1], variables(), strict=True)]
    for a, b in zip(moved, twice, strict=True):  # the learning rate is not compiled in
        np.testing.assert_allclose(2 * a, b, rtol=1e-4, atol=1e-6)


def test_shared_code_outlives_the_variables_it_was_made_for():
    """`fit` creates state while it traces the step."""

    def trained():
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
        model.set_weights([np.ones(w.shape) for w in model.get_weights()])
        model.compile(keras_tfopt.Momentum(0.01, 0.8125), "mse", jit_compile=False)
        model.fit(np.ones((4, 3)), np.zeros((4, 2)), epochs=3, verbose=0)
        return [to_numpy(v) for v in (*model.weights, *model.optimizer.variables)]

    first = trained()
    keras.utils.clear_session()
    gc.collect()
    for a, b in zip(first, trained(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_shared_code_keeps_no_optimizer_alive(monkeypatch):
    from keras_tfopt.engine.backends.tensorflow import updates as engine

    monkeypatch.setattr(engine, "_shared", shared_code.Shared())
    monkeypatch.setattr(shared_code.Shared, "LIMIT", 3)
    optimizer = keras_tfopt.Adam(0.01)
    train(optimizer, variables(), steps=1)
    assert len(engine._shared) == 3 < len(compiled_functions(optimizer))
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None


def test_variables_of_one_shape_share_compiled_code():
    from keras_tfopt.engine.backends.tensorflow.updates import GROUP

    shapes = [(3, 2)] * (2 * GROUP + 1)
    optimizer = keras_tfopt.Adam(0.01, beta_1=0.5625)
    values = [keras.Variable(np.ones(s), name=f"v{i}") for i, s in enumerate(shapes)]
    train(optimizer, values, shapes=shapes)
    functions = compiled_functions(optimizer)
    assert len(functions) == 2  # of whole groups, and of the rest
    assert all(f.experimental_get_tracing_count() == 1 for f in functions)


MANY_SHAPES = """
import keras, keras_tfopt, numpy as np
variables = [keras.Variable(np.ones((rows, 2), "float32")) for rows in range(2, 14)]
optimizer = keras_tfopt.LARS(0.1)
optimizer.build(variables)
for _ in range(2):
    optimizer.apply([keras.ops.ones(v.shape) for v in variables], variables)
"""


def test_first_steps_of_many_shapes_bring_no_warning():
    """TensorFlow warns of functions that are traced often, once or twice in a process."""
    done = run("-c", MANY_SHAPES)
    assert done.returncode == 0, done.stderr
    assert "retracing" not in done.stderr


class Doubled(keras_tfopt.Wrapper):
    """Changes gradients, so that what moves rows has dense ones."""

    def before(self, g, x, s, t):
        return 2 * g, x


@pytest.mark.parametrize("rule", ["LazyAdam", "LARS", "NovoGrad"])
def test_touched_rows_in_a_condition_within_xla(rule):
    """XLA once ended the process: it has no tensors of unknown size in conditions."""
    weights = []
    for jit_compile in (False, True):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.layers.Embedding(30, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
        )
        inner = Doubled(getattr(keras_tfopt, rule)(0.05))
        model.compile(keras_tfopt.SkipNonFinite(inner), "mse", jit_compile=jit_compile)
        ids = np.random.default_rng(0).integers(0, 20, (12, 3))
        model.fit(ids, np.ones((12, 1)), batch_size=4, epochs=2, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    table = weights[0][0]
    keras.utils.set_random_seed(0)
    start = keras.Sequential([keras.layers.Embedding(30, 4)])
    start.build((None, 3))
    moved = np.any(table != start.get_weights()[0], axis=1)
    assert moved[:20].any() and not moved[20:].any()
    for plain, compiled in zip(*weights, strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-4, atol=1e-5)
