"""Rules compiled on PyTorch: when they are compiled, and where variables lie in memory."""

import contextlib
import math
import textwrap

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import engine
from tests.cells import exhaustive
from tests.helpers.fast_paths import OF_ALL_SCOPES, OPTIMIZERS, SHAPES, train, variables
from tests.helpers.programs import output_of

pytestmark = pytest.mark.backends("torch", reason="only PyTorch compiles like this")


def test_a_rule_is_compiled_once_for_all_sizes():
    from keras_tfopt.engine.backends.torch import compile as torch_compile

    train(keras_tfopt.Adam(0.01, beta_1=0.83), variables())
    before = torch_compile.compilations()
    assert before > 0
    for size in (100, 999, 200_000, 300_001):
        values = [keras.Variable(np.ones(size, "float32"))]
        train(keras_tfopt.Adam(0.01, beta_1=0.83), values, shapes=[(size,)])
    assert torch_compile.compilations() == before


def test_other_hyperparameters_are_compiled_apart():
    from keras_tfopt.engine.backends.torch import compile as torch_compile

    for number in range(2):
        before = torch_compile.compilations()
        train(keras_tfopt.Momentum(0.1, momentum=0.5173 + number / 100), variables())
        assert torch_compile.compilations() > before


def test_slots_share_flat_memory():
    optimizer, values = keras_tfopt.Adam(0.01), variables()
    train(optimizer, values)
    pointers = [optimizer.slot(v, "m").value.untyped_storage().data_ptr() for v in values[:3]]
    assert len(set(pointers)) == 1


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_small_variables_are_updated_where_they_are(name):
    """They are moved to flat memory once. Another optimizer does not move them again."""
    values = variables()
    before = [v.value for v in values]
    train(OPTIMIZERS[name](), values)
    first = [v.value.data_ptr() for v in values]
    train(OPTIMIZERS[name](), values)
    assert [v.value.data_ptr() for v in values] == first
    assert all(v.value is old for v, old in zip(values, before))
    # The second variable is left out: LARS skips it, so it is of another kind.
    assert len({values[i].value.untyped_storage().data_ptr() for i in (0, 2, 4)}) == 1


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_arrays_that_share_memory_with_variables_stay_valid(name):
    fast, plain = variables(), variables()
    if fast[0].value.device.type != "cpu":
        pytest.skip("NumPy sees the memory of processors alone")
    aliases = [v.value.detach().numpy() for v in fast]
    train(OPTIMIZERS[name](), fast)
    with engine.plain():
        train(OPTIMIZERS[name](), plain)
    for alias, value in zip(aliases, plain):
        value = keras.ops.convert_to_numpy(value)
        np.testing.assert_allclose(alias, value, rtol=2e-6, atol=2e-6)


def test_variables_that_share_memory_keep_sharing_it():
    values = [keras.Variable(np.ones(6), name=f"v{i}") for i in range(3)]
    values[1].value.data = values[0].value.data
    train(keras_tfopt.Momentum(0.1), values, shapes=[(6,)] * 3)
    assert values[1].value.data_ptr() == values[0].value.data_ptr()


def test_replaced_variables_are_noticed():
    import torch

    optimizer, values = keras_tfopt.GradientDescent(0.1), variables()
    train(optimizer, values)
    values[0].value.data = torch.ones_like(values[0].value.data)
    optimizer.apply([np.ones(s, "float32") for s in SHAPES], values)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(values[0]), 0.9, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_rule_over_all_variables_runs_in_compiled_pieces(monkeypatch, dtype):
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
        return state, torch_compile.compilation(optimizer)

    fast, report = trained()
    assert report.startswith("compiled by PyTorch")
    with engine.plain():
        plain, report = trained()
    assert report.startswith("not compiled")
    for a, b in zip(fast, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5 * np.max(np.abs(b), initial=0))


def test_autograd_notices_that_a_step_has_changed_a_variable():
    import torch

    optimizer, values = keras_tfopt.Momentum(0.1), variables()
    train(optimizer, values)
    x = values[0].value
    loss = torch.sum(x * torch.ones_like(x, requires_grad=True))
    optimizer.apply([np.ones(s, "float32") for s in SHAPES], values)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("how", ["data", "value", "load"])
def test_detached_slots_are_noticed(how):
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


def test_a_subset_of_the_variables_and_back():
    ours, values = keras_tfopt.Adam(0.01), variables()
    ours.build(values)
    ones = [np.ones(s, "float32") for s in SHAPES]
    for subset in (slice(None), slice(0, 2), slice(None)):
        ours.apply(ones[subset], values[subset])
    moments = keras.ops.convert_to_numpy(ours.slot(values[0], "m"))
    np.testing.assert_allclose(moments, 1 - 0.9**3, rtol=1e-5)
    moments = keras.ops.convert_to_numpy(ours.slot(values[4], "m"))
    np.testing.assert_allclose(moments, 1 - 0.9**2, rtol=1e-5)


def test_without_a_compiler_the_numbers_are_the_same_and_one_message_says_so():
    program = """
        import os, warnings
        os.environ["CXX"] = "/nowhere/c++"
        os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
        import keras_tfopt
        from tests.helpers.fast_paths import train, variables
        keras_tfopt.engine.compile_in_background(False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fast = train(keras_tfopt.Adam(0.01), variables())
            train(keras_tfopt.Momentum(0.01), variables())
        said = [w for w in caught if "PyTorch's compiler does not work" in str(w.message)]
        assert len(said) == 1, [str(w.message) for w in caught]
        with keras_tfopt.engine.plain():
            plain = train(keras_tfopt.Adam(0.01), variables())
        import numpy
        for a, b in zip(fast, plain):
            numpy.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    """
    output_of("-c", textwrap.dedent(program))


def test_variables_that_muon_leaves_to_another_rule_share_flat_memory():
    x = variables()
    optimizer = OF_ALL_SCOPES["muon"]()
    train(optimizer, x, steps=1)
    left = [entry for entry in optimizer._state.entries if "v" in entry.slots]
    small = [e for e in left if 0 not in e.variable.shape and math.prod(e.variable.shape) < 100]
    memory = {e.slots["v"].value.untyped_storage().data_ptr() for e in small}
    assert len(left) > len(small) == 3 and len(memory) == 1


@pytest.mark.parametrize("name", ["laprop", "novo_grad", "schedule_free", "schedule_free_sgd"])
def test_rules_that_keep_a_number_of_each_variable_are_compiled(name):
    results = []
    for context in (contextlib.nullcontext, engine.plain):
        optimizer, x = OF_ALL_SCOPES[name](), variables()
        with context():
            train(optimizer, x, steps=1)
            for place, entry in enumerate(optimizer._state.entries):  # what the next step reads
                number = next(v for v in entry.slots.values() if not v.shape)
                number.assign(0.5 + place / 10)
            results.append(train(optimizer, x, steps=1))
        plans = [plan for key, plan in optimizer._fast.items() if key[0] == "plan"]
        compiled = [len(bucket.positions) for plan in plans for bucket in plan]
        assert sum(compiled) == (6 if context is contextlib.nullcontext else 0)  # one is empty
    for fast, plain in zip(*results, strict=True):
        np.testing.assert_allclose(fast, plain, 2e-6, 2e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras_tfopt.Adam(0.1),
        lambda: keras_tfopt.Adam(0.1, slot_dtype="bfloat16", weight_decay=0.1),
        lambda: keras_tfopt.LAMB(0.1, groups={"v0": {"learning_rate_factor": 0.5}}),
        lambda: keras_tfopt.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
    ],
    ids=["plain", "rounded", "groups", "schedule"],
)
def test_scalars_are_compiled_as_for_a_gpu(monkeypatch, make):
    from keras_tfopt.engine.backends.torch import updates

    plain, fast = variables(), variables()
    train(make(), plain)
    monkeypatch.setattr(updates, "COMPILES_SCALARS", True)
    optimizer = make()
    train(optimizer, fast)
    assert any(key[0] == "scalars" for key in optimizer._fast)
    for a, b in zip(fast, plain, strict=True):
        a, b = map(keras.ops.convert_to_numpy, (a, b))
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


class OneOfThree(keras_tfopt.Rule):
    """A rule that changes one of three slots."""

    learning_rate: float = 0.1

    def slots(self, like):
        initial = {"first": 0.1, "second": 0.2, "third": 0.3}
        return {name: keras_tfopt.Slot(like.shape, value) for name, value in initial.items()}

    def update(self, g, x, s, t):
        second = 0.9 * s.second + g
        return x - t.lr * (second + s.first + s.third), {"second": second}


@pytest.mark.parametrize("make", [exhaustive(keras_tfopt.Adam), keras_tfopt.AMSGrad, OneOfThree])
def test_two_bfloat16_slots_share_words(make):
    fast, plain = make(0.1, slot_dtype="bfloat16"), make(0.1, slot_dtype="bfloat16")
    results = [train(fast, variables(), steps=1)]
    entry = fast._state.entries[3]
    memory = [slot.value.untyped_storage().data_ptr() for slot in entry.slots.values()]
    assert memory[0] == memory[1] and len(set(memory)) == len(memory) - 1
    with engine.plain():
        results.append(train(plain, variables(), steps=1))
    for one, other in zip(*results, strict=True):
        # A number that compiled code rounds otherwise in float32 may become the next bfloat16.
        np.testing.assert_allclose(one, other, rtol=2**-7, atol=2e-6)
        assert np.allclose(one, other, atol=2e-6) or np.mean(one == other) > 0.99


@pytest.mark.parametrize("other", ("plain", exhaustive("compiled")))
def test_int8_slots_before_their_code_is_compiled(other, monkeypatch):
    """With vectors of 256 bits, steps get codes together with the same numbers as float32."""
    import torch

    from keras_tfopt.engine.backends.torch import compile as torch_compile

    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    results = []
    for works in (False, True):
        monkeypatch.setattr(torch_compile, "_compiler_works", works)
        optimizer = keras_tfopt.Adam(0.1, beta_1=0.87, slot_dtype="int8")
        with engine.plain() if works and other == "plain" else contextlib.nullcontext():
            results.append(train(optimizer, variables()))
    for uncompiled, expected in zip(*results, strict=True):
        np.testing.assert_allclose(uncompiled, expected, rtol=2e-6, atol=2e-6)
