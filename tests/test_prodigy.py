"""Prodigy with `slice_p`: fewer values in slots, and the same steps whatever the pieces."""

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt import engine
from tests.reference.prodigy import Prodigy as Reference

SHAPES = {"a": (7, 5), "b": (), "c": (11,)}
ARGUMENTS = dict(d0=0.1, d_coef=30.0, beta_2=0.9, slice_p=3)


def built(**options):
    variables = [keras.Variable(np.ones(shape), name=name) for name, shape in SHAPES.items()]
    optimizer = keras_tfopt.Prodigy(**{**ARGUMENTS, **options})
    optimizer.build(variables)
    return optimizer, variables


@pytest.mark.parametrize(("slice_p", "entries"), [(1, 47), (3, 12 + 1 + 4), (100, 3)])
def test_slots_have_the_entries_that_the_estimate_sees(slice_p, entries):
    optimizer, _ = built(slice_p=slice_p)
    sizes = {name: optimizer.slot(None, name).shape for name in ("m", "v", "s", "x0")}
    assert sizes == {"m": (47,), "v": (47,), "s": (entries,), "x0": (entries,)}


@pytest.mark.backends("torch", reason="has pieces")
@pytest.mark.parametrize("piece", [1, 2, 8, 1000])
def test_pieces_may_begin_at_any_entry(monkeypatch, piece):
    from keras_tfopt.engine.backends.torch import pieces

    monkeypatch.setattr(pieces, "PIECE", piece)
    optimizer, variables = built()
    reference = Reference(**ARGUMENTS)
    x = {name: np.ones(shape) for name, shape in SHAPES.items()}
    state, random = reference.start(x), np.random.default_rng(0)
    for step in range(1, 7):
        g = {name: random.normal(size=shape) + 1 for name, shape in SHAPES.items()}
        optimizer.apply([value.astype("float32") for value in g.values()], variables)
        x, state = reference.advance(g, x, state, step)
    for variable, value in zip(variables, x.values(), strict=True):
        np.testing.assert_allclose(keras.ops.convert_to_numpy(variable), value, rtol=1e-4)
    assert state[None]["d"] > 0.2  # the estimate has grown


def test_a_model_with_fewer_values_goes_on_where_it_was_saved(tmp_path):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    model.compile(keras_tfopt.Prodigy(**ARGUMENTS, use_ema=True, weight_decay=0.01), "mse")
    x, y = np.random.default_rng(0).normal(size=(8, 5)), np.ones((8, 3))
    model.fit(x, y, epochs=2, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.optimizer.slice_p == 3
    for one in (model, again):
        one.fit(x, y, epochs=2, shuffle=False, verbose=0)
    for a, b in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_one_rule_has_one_slicing():
    class Two(keras_tfopt.Rule):
        scope = "model"
        learning_rate: float = 0.1

        def slots(self, like):
            return {"a": engine.Slot((None,), every=2), "b": engine.Slot((None,), every=3)}

    with pytest.raises(ValueError, match=r"same `every`.*'a': 2, 'b': 3"):
        Two().build([keras.Variable(np.ones(4))])
