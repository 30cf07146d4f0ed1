"""The compiled paths: that they are taken, and that they compute what the plain path computes."""

import gc
import subprocess
import sys
import textwrap
import weakref

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import engine
from tests.cells import exhaustive
from tests.stepping import to_numpy, version_of

BACKEND = keras.backend.backend()
SHAPES = [(7, 5), (5,), (), (400, 400), (3, 2, 2), (1,), (0, 4)]  # the fourth is large for torch
OPTIMIZERS = {
    "momentum": lambda: keras_tfopt.Momentum(0.1, nesterov=True),
    "adam_decayed": lambda: keras_tfopt.Adam(0.01, weight_decay=0.1),
    "lars": lambda: keras_tfopt.LARS(1.0, eeta=0.1, skip_list=["v1"]),
}


def variables(dtype="float32"):
    random = np.random.default_rng(0)
    return [
        keras.Variable(random.standard_normal(s), name=f"v{i}", dtype=dtype)
        for i, s in enumerate(SHAPES)
    ]


def train(optimizer, values, steps=3, shapes=SHAPES):
    random = np.random.default_rng(1)
    for _ in range(steps):
        optimizer.apply([random.standard_normal(s).astype("float32") for s in shapes], values)
    state = [v for e in optimizer._state.entries for v in e.slots.values()]
    return [keras.ops.convert_to_numpy(keras.ops.cast(v, "float32")) for v in [*values, *state]]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fast_equals_plain(name, dtype):
    fast = train(OPTIMIZERS[name](), variables(dtype))
    with engine.plain():
        plain = train(OPTIMIZERS[name](), variables(dtype))
    # bfloat16: a difference of a float32 rounding may fall on either side of a bfloat16 rounding.
    tolerance = 2e-6 if dtype == "float32" else 1e-2
    for a, b in zip(fast, plain):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("width", [(1,), (64,), (2, 2)], ids=str)
@pytest.mark.spread
def test_rows_of_a_dense_gradient_are_touched_where_any_number_is_not_zero(dtype, width):
    random = np.random.default_rng(0)
    gradient = np.zeros((40, int(np.prod(width))))
    gradient[:10] = random.standard_normal((10, gradient.shape[1]))
    gradient[10:15] = -np.abs(gradient[:5])  # nothing positive
    gradient[15:20, -1] = [1e-6, -1e-6, np.inf, -np.inf, np.nan]
    gradient[20:22] = -0.0
    gradient[22, 0] = -0.0
    gradient[23, -1] = -np.nan
    gradient[24] = [(-1) ** i for i in range(gradient.shape[1])]  # the sum may be zero
    table = keras.Variable(np.ones((40, *width)), dtype=dtype, name="table")
    optimizer = keras_tfopt.LazyAdam(0.5, row_variables=["table"])
    given = keras.ops.convert_to_tensor(gradient.reshape(table.shape), dtype)
    expected = np.flatnonzero((gradient != 0).any(axis=1))
    optimizer.apply([given], [table])
    after = keras.ops.convert_to_numpy(keras.ops.cast(table, "float64")).reshape(40, -1)
    np.testing.assert_array_equal(np.flatnonzero((after != 1).any(axis=1)), expected)


def launches(optimizer, monkeypatch):
    """Count the calls of compiled code in a step over 24 variables."""
    values = [keras.Variable(np.ones((3, 2)), name=f"v{i}") for i in range(24)]
    train(optimizer, values, shapes=[(3, 2)] * 24)
    if BACKEND == "torch":
        return sum(len(plan) for key, plan in optimizer._fast.items() if key[0] == "plan")
    from keras_tfopt.engine.backends.tensorflow import updates

    calls, run = [], updates.run_in_place
    monkeypatch.setattr(updates, "run_in_place", lambda *args: calls.append(run(*args)))
    train(optimizer, values, steps=1, shapes=[(3, 2)] * 24)
    monkeypatch.undo()
    return len(calls)


@pytest.mark.skipif(BACKEND == "jax", reason="on JAX a step is compiled as a whole")
@pytest.mark.parametrize("make", (keras_tfopt.Adam, exhaustive(keras_tfopt.LARS)))
def test_factors_of_groups_cost_no_launches_and_other_settings_one_each(make, monkeypatch):
    factors = {f"^v({i}|{i + 12})$": {"learning_rate_factor": 0.75**i} for i in range(12)}
    other = {"[37]$": {"beta_2" if make is keras_tfopt.Adam else "momentum": 0.8}}  # 5 variables
    one, several, static = (
        launches(make(0.01, groups=groups), monkeypatch)
        for groups in (None, factors, [factors, other])
    )
    assert 0 < one == several < static == one + 1


@pytest.mark.skipif(BACKEND != "torch", reason="torch.compile is the fast path of torch only")
class TestTorch:
    def test_a_rule_is_compiled_once_for_all_sizes(self):
        from keras_tfopt.engine.backends.torch import compile as torch_compile

        train(keras_tfopt.Adam(0.01, beta_1=0.83), variables())
        before = torch_compile.compilations()
        assert before > 0
        for size in (100, 999, 200_000, 300_001):
            values = [keras.Variable(np.ones(size, "float32"))]
            train(keras_tfopt.Adam(0.01, beta_1=0.83), values, shapes=[(size,)])
        assert torch_compile.compilations() == before

    def test_other_hyperparameters_never_exhaust_the_recompilation_limit(self):
        from keras_tfopt.engine.backends.torch import compile as torch_compile

        for number in range(10):  # the limit is eight per code object
            before = torch_compile.compilations()
            train(keras_tfopt.Momentum(0.1, momentum=0.5173 + number / 100), variables())
            assert torch_compile.compilations() > before

    def test_slots_share_flat_memory(self):
        optimizer, values = keras_tfopt.Adam(0.01), variables()
        train(optimizer, values)
        pointers = [optimizer.slot(v, "m").value.untyped_storage().data_ptr() for v in values[:3]]
        assert len(set(pointers)) == 1

    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_small_variables_are_updated_where_they_are(self, name):
        """They are moved once, and by an optimizer that comes later not again."""
        values = variables()
        before = [v.value for v in values]
        train(OPTIMIZERS[name](), values)
        first = [v.value.data_ptr() for v in values]
        train(OPTIMIZERS[name](), values)
        assert [v.value.data_ptr() for v in values] == first
        assert all(v.value is old for v, old in zip(values, before))
        # The second is of another kind for LARS, which skips it.
        assert len({values[i].value.untyped_storage().data_ptr() for i in (0, 2, 4)}) == 1

    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_memory_that_others_use_is_not_moved(self, name):
        fast, plain = variables(), variables()
        aliases = [v.value.detach().numpy() for v in fast]
        train(OPTIMIZERS[name](), fast)
        with engine.plain():
            train(OPTIMIZERS[name](), plain)
        for alias, value in zip(aliases, plain):
            value = keras.ops.convert_to_numpy(value)
            np.testing.assert_allclose(alias, value, rtol=2e-6, atol=2e-6)

    def test_variables_that_share_memory_go_on_sharing_it(self):
        values = [keras.Variable(np.ones(6), name=f"v{i}") for i in range(3)]
        values[1].value.data = values[0].value.data
        train(keras_tfopt.Momentum(0.1), values, shapes=[(6,)] * 3)
        assert values[1].value.data_ptr() == values[0].value.data_ptr()

    def test_replaced_variables_are_noticed(self):
        import torch

        optimizer, values = keras_tfopt.GradientDescent(0.1), variables()
        train(optimizer, values)
        values[0].value.data = torch.ones(SHAPES[0])
        optimizer.apply([np.ones(s, "float32") for s in SHAPES], values)
        np.testing.assert_allclose(keras.ops.convert_to_numpy(values[0]), 0.9, rtol=1e-6)

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_a_rule_over_all_variables_runs_in_compiled_pieces(self, monkeypatch, dtype):
        from keras_tfopt.engine.backends.torch import compile as torch_compile
        from keras_tfopt.engine.backends.torch import pieces as torch_pieces

        monkeypatch.setattr(torch_pieces, "PIECE", 50_000)

        def trained():
            values = variables(dtype)
            optimizer = keras_tfopt.GGT(0.1, window=3, weight_decay=0.1, master_weights=True)
            optimizer.build(values)
            random = np.random.default_rng(1)
            for step in range(5):
                grads = [random.standard_normal(s).astype("float32") for s in SHAPES]
                optimizer.apply(grads if step < 3 else [None, *grads[1:]], values)
            state = [keras.ops.convert_to_numpy(v) for v in optimizer.variables[2:]]
            return state, torch_compile.report(optimizer)

        fast, report = trained()
        assert report.startswith("compiled by torch.compile")
        with engine.plain():
            plain, report = trained()
        assert report.startswith("not compiled")
        for a, b in zip(fast, plain, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5 * np.max(np.abs(b), initial=0))

    def test_no_gradient_is_computed_through_variables_that_a_step_has_changed(self):
        import torch

        optimizer, values = keras_tfopt.Momentum(0.1), variables()
        train(optimizer, values)
        x = values[0].value
        loss = torch.sum(x * torch.ones_like(x, requires_grad=True))
        optimizer.apply([np.ones(s, "float32") for s in SHAPES], values)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    @pytest.mark.parametrize("how", ["data", "value", "load"])
    def test_detached_slots_are_noticed(self, how):
        import torch

        optimizer, values = keras_tfopt.Momentum(0.1), variables()
        train(optimizer, values)
        slot = optimizer.slot(values[0], "momentum")
        if how == "data":
            slot.value.data = torch.zeros_like(slot.value.data)
        elif how == "value":
            slot._value = torch.nn.Parameter(torch.zeros_like(slot.value), requires_grad=False)
        else:
            slot.assign(np.zeros(slot.shape))
        start = keras.ops.convert_to_numpy(values[0]).copy()
        grads = [np.ones(s, "float32") for s in SHAPES]
        optimizer.apply(grads, values)
        np.testing.assert_allclose(keras.ops.convert_to_numpy(slot), 1.0)
        np.testing.assert_allclose(keras.ops.convert_to_numpy(values[0]), start - 0.1, rtol=1e-6)

    def test_a_subset_of_the_variables_and_back(self):
        ours, values = keras_tfopt.Adam(0.01), variables()
        ours.build(values)
        ones = [np.ones(s, "float32") for s in SHAPES]
        for subset in (slice(None), slice(0, 2), slice(None)):
            ours.apply(ones[subset], values[subset])
        moments = keras.ops.convert_to_numpy(ours.slot(values[0], "m"))
        np.testing.assert_allclose(moments, 1 - 0.9**3, rtol=1e-5)
        moments = keras.ops.convert_to_numpy(ours.slot(values[4], "m"))
        np.testing.assert_allclose(moments, 1 - 0.9**2, rtol=1e-5)

    def test_training_goes_on_while_a_rule_is_compiled(self):
        """In a process of its own: here, other rules may wait to be compiled."""
        code = """
            import numpy, torch
            import keras_tfopt
            from keras_tfopt import engine
            from keras_tfopt.engine.backends.torch import compile as torch_compile
            from tests.test_fast_paths import train, variables

            engine.compile_in_background(True)
            values, optimizer = variables(), keras_tfopt.LARS(0.1, eeta=0.1)
            train(optimizer, values, steps=2)
            assert "in the background" in torch_compile.report(optimizer)
            torch_compile._worker().submit(print).result()  # what came before it is compiled
            train(optimizer, values, steps=2)
            assert torch_compile.report(optimizer).startswith("compiled"), "it has not switched"
            with engine.plain():
                others, plain = variables(), keras_tfopt.LARS(0.1, eeta=0.1)
                train(plain, others, steps=2)
                expected = train(plain, others, steps=2)
            found = train(optimizer, values, steps=0)
            for a, b in zip(found, expected):
                numpy.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)

            torch.use_deterministic_algorithms(True)
            optimizer = keras_tfopt.Momentum(0.1)
            train(optimizer, variables(), steps=1)
            assert torch_compile.report(optimizer).startswith("compiled"), "it is repeatable"
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)

    def test_a_session_cleared_while_a_rule_is_compiled_stops_nothing(self):
        code = """
            import keras
            from keras_tfopt import LARS, engine
            from keras_tfopt.engine.backends.torch import compile as torch_compile
            from tests.test_fast_paths import train, variables

            engine.compile_in_background(True)
            values, optimizer = variables(), LARS(0.1, eeta=0.1)
            train(optimizer, values, steps=1)
            compiling = torch_compile._worker().submit(print)  # done after the rule
            while not compiling.done():
                keras.utils.clear_session(free_memory=False)
            train(optimizer, values, steps=2)
            assert torch_compile.report(optimizer).startswith("compiled")
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)

    def test_without_a_compiler_the_numbers_are_the_same_and_one_message_says_so(self):
        code = """
            import os, warnings
            os.environ["CXX"] = "/nowhere/c++"
            os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
            import keras_tfopt
            from tests.test_fast_paths import train, variables
            keras_tfopt.engine.compile_in_background(False)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                fast = train(keras_tfopt.Adam(0.01), variables())
                train(keras_tfopt.Momentum(0.01), variables())
            said = [w for w in caught if "torch.compile does not work here" in str(w.message)]
            assert len(said) == 1, [str(w.message) for w in caught]
            with keras_tfopt.engine.plain():
                plain = train(keras_tfopt.Adam(0.01), variables())
            import numpy
            for a, b in zip(fast, plain):
                numpy.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def compiled_functions(optimizer):
    return [f for key, f in optimizer._fast.items() if key[0] == "whole"]


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the inner XLA function is TensorFlow's")
class TestTensorFlow:
    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_the_rule_runs_in_an_xla_compiled_function(self, name):
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
        # Outside of these, nothing is computed with whole variables.
        outside = {
            op.type for op in graph.get_operations() for t in op.outputs if t.shape == SHAPES[3]
        }
        arithmetic = {"AddV2", "Sub", "Mul", "RealDiv", "Sqrt", "Square"}
        assert outside and not outside & arithmetic

    def test_two_steps_one_trace(self):
        # Of hyperparameters that no other test has: optimizers share what is compiled.
        optimizer, values = keras_tfopt.Adam(0.01, beta_1=0.8125), variables()
        train(optimizer, values, steps=4)
        functions = compiled_functions(optimizer)
        assert len(functions) == len(SHAPES)
        assert all(f.experimental_get_tracing_count() == 1 for f in functions)

    def test_equal_optimizers_share_compiled_code(self):
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

    def test_shared_code_outlives_the_variables_it_was_made_for(self):
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

    def test_shared_code_keeps_no_optimizer_alive(self, monkeypatch):
        from keras_tfopt.engine.backends.tensorflow import updates as engine

        monkeypatch.setattr(engine, "_shared", {})
        monkeypatch.setattr(engine, "SHARED", 3)
        optimizer = keras_tfopt.Adam(0.01)
        train(optimizer, variables(), steps=1)
        assert len(engine._shared) == 3 < len(compiled_functions(optimizer))
        gone = weakref.ref(optimizer)
        del optimizer
        gc.collect()
        assert gone() is None

    def test_variables_of_one_shape_share_compiled_code(self):
        from keras_tfopt.engine.backends.tensorflow.updates import GROUP

        shapes = [(3, 2)] * (2 * GROUP + 1)
        optimizer = keras_tfopt.Adam(0.01, beta_1=0.5625)
        values = [keras.Variable(np.ones(s), name=f"v{i}") for i, s in enumerate(shapes)]
        train(optimizer, values, shapes=shapes)
        functions = compiled_functions(optimizer)
        assert len(functions) == 2  # of whole groups, and of the rest
        assert all(f.experimental_get_tracing_count() == 1 for f in functions)


@pytest.mark.skipif(BACKEND != "jax", reason="only JAX tells the memory of a step")
class TestJax:
    rows, width = 20_000, 32

    def temporary_bytes(self, optimizer, gradient):
        import jax

        table = keras.Variable(np.ones((self.rows, self.width), "float32"), name="embeddings")
        optimizer.build([table])
        step = jax.jit(
            lambda x, state, g: optimizer.stateless_apply(state, [g], [x]), donate_argnums=(0, 1)
        )
        state = [v.value for v in optimizer.variables]
        analysis = step.lower(table.value, state, gradient).compile().memory_analysis()
        return analysis.temp_size_in_bytes

    def test_row_updates_are_in_place(self):
        gradient = keras_tfopt.RowGradient(
            np.ones((8, self.width), "float32"), np.arange(8), (self.rows, self.width)
        )
        used = self.temporary_bytes(keras_tfopt.LazyAdam(0.01), gradient)
        assert used < self.rows * self.width * 4 / 10

    def test_touched_rows_of_a_dense_gradient_are_updated_in_place(self):
        gradient = np.zeros((self.rows, self.width), "float32")
        used = self.temporary_bytes(keras_tfopt.LazyAdam(0.01), gradient)
        # Of the order of a mark for each row and a piece of 1,024 rows, not of a table.
        assert used < self.rows * self.width * 4 * 0.6

    def test_accumulation_does_not_copy_the_state(self):
        gradient = np.zeros((self.rows, self.width), "float32")
        ours = self.temporary_bytes(
            keras_tfopt.LazyAdam(0.01, gradient_accumulation_steps=2), gradient
        )
        # The sum of the gradients and their mean; table and moments are updated where they are. XLA
        # of JAX 0.6 keeps the gradient apart.
        arrays = 2.5 if version_of("jax") >= (0, 7) else 3.5
        assert ours < arrays * self.rows * self.width * 4
