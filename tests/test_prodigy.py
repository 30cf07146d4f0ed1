"""Prodigy with `slice_p`: smaller slots, steps in pieces, and state of another slicing."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from keras_tfopt import engine
from tests.reference.prodigy import Prodigy as Reference

SHAPES = {"a": (7, 5), "b": (), "c": (11,)}
ARGUMENTS = dict(d0=0.1, d_coef=30.0, beta_2=0.9, slice_p=3)


def variables_of(dtype):
    return [
        keras.Variable(np.ones(shape), dtype=dtype, name=name) for name, shape in SHAPES.items()
    ]


def built(dtype="float32", **options):
    variables = variables_of(dtype)
    optimizer = keras_tfopt.Prodigy(**{**ARGUMENTS, **options})
    optimizer.build(variables)
    return optimizer, variables


def assert_steps_match_the_reference(optimizer, variables, values):
    """Make six steps, and compare `values()` with the reference."""
    reference, random = Reference(**ARGUMENTS), np.random.default_rng(0)
    x = {name: np.ones(shape) for name, shape in SHAPES.items()}
    state = reference.start(x)
    for step in range(1, 7):
        # Gradients of eight bits, which bfloat16 holds.
        g = {n: np.round(random.normal(size=s) * 16 + 16) / 16 for n, s in SHAPES.items()}
        optimizer.apply([ops.cast(g[v.name], v.dtype) for v in variables], variables)
        x, state = reference.advance(g, x, state, step)
    for found, expected in zip(values(), x.values(), strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(found), expected, rtol=1e-4)
    assert state[None]["d"] > 0.2  # the estimate has grown


@pytest.mark.parametrize(("slice_p", "entries"), [(1, 47), (3, 12 + 1 + 4), (100, 3)])
def test_slots_have_the_entries_that_the_estimate_sees(slice_p, entries):
    optimizer, _ = built(slice_p=slice_p)
    sizes = {name: optimizer.slot(None, name).shape for name in ("m", "v", "s", "x0")}
    assert sizes == {"m": (47,), "v": (47,), "s": (entries,), "x0": (entries,)}


@pytest.mark.backends("torch", reason="only PyTorch makes steps in pieces")
@pytest.mark.parametrize("piece", [1, 2, 8, 1000])
def test_pieces_may_begin_at_any_entry(monkeypatch, piece):
    from keras_tfopt.engine.backends.torch import pieces

    monkeypatch.setattr(pieces, "PIECE", piece)
    optimizer, variables = built()
    assert_steps_match_the_reference(optimizer, variables, lambda: variables)


def test_master_weights_take_the_steps_of_float32():
    optimizer, variables = built("bfloat16", master_weights=True)
    assert_steps_match_the_reference(
        optimizer, variables, lambda: [optimizer.slot(v, "master_weight") for v in variables]
    )
    assert optimizer.slot(None, "s").shape == (12 + 1 + 4,)


@pytest.mark.parametrize("is_built", [True, False])
def test_state_of_another_slicing_is_refused(is_built):
    trained, variables = built(slice_p=1)
    with engine.plain():
        trained.apply([ops.ones(shape) for shape in SHAPES.values()], variables)
    store = {}
    trained.save_own_variables(store)
    fresh = keras_tfopt.Prodigy(**ARGUMENTS)  # every third entry
    if is_built:
        fresh.build(variables_of("float32"))
        before = [np.array(ops.convert_to_numpy(v)) for v in fresh.variables]
    with pytest.raises(ValueError, match=r"'s'\) has shape \(47,\) there and \(17,\) here"):
        fresh.load_own_variables(store)
        fresh.build(variables_of("float32"))
    if is_built:
        for variable, value in zip(fresh.variables, before, strict=True):
            np.testing.assert_array_equal(ops.convert_to_numpy(variable), value)


def test_all_slots_of_a_rule_need_the_same_slicing():
    class Two(keras_tfopt.Rule):
        scope = "model"
        learning_rate: float = 0.1

        def slots(self, like):
            return {"a": engine.Slot((None,), every=2), "b": engine.Slot((None,), every=3)}

    with pytest.raises(ValueError, match=r"same `every`.*'a': 2, 'b': 3"):
        Two().build([keras.Variable(np.ones(4))])
