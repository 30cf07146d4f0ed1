"""Rules of users over all variables at once: numbers, and errors when they are built."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from keras_tfopt import Rows, Slot
from tests.helpers.stepping import BACKEND, to_numpy

SHAPES = [(3, 4), (4,), ()]


class Queue(keras_tfopt.Rule):
    """Keeps what it is given, or views of that."""

    scope = "model"
    learning_rate: float = 0.1

    def slots(self, likes):
        history = {"history": Slot((2, None)), "count": Slot((), 0, "int32")}
        return {**{name: Slot((None,)) for name in ("last", "older", "gradient")}, **history}

    def solve(self, s, t):
        return {"free": s.count % 2}, {"count": s.count + 1}

    def update(self, g, x, s, t):
        step = g + 0.5 * s.last + 0.25 * s.older + 0.1 * s.gradient + 0.2 * s.history[0]
        new = {"last": x[:], "older": ops.reshape(s.last, (-1,)), "gradient": g}
        return x - t.lr * step, {**new, "history": Rows(t.free, x)}


def queued(x, gradients):
    last = older = gradient = np.zeros_like(x)
    history = [last, last]
    for count, g in enumerate(gradients):
        step = g + 0.5 * last + 0.25 * older + 0.1 * gradient + 0.2 * history[0]
        last, older, gradient, history[count % 2] = x, last, g, x
        x = x - 0.1 * step
    return x


@pytest.mark.parametrize("piece", [None, 5])
def test_a_rule_may_keep_what_it_is_given(piece, monkeypatch):
    if piece is not None:
        if BACKEND != "torch":
            pytest.skip("only PyTorch makes pieces")
        monkeypatch.setattr("keras_tfopt.engine.backends.torch.pieces.PIECE", piece)
    random = np.random.default_rng(0)
    start = [random.standard_normal(shape) for shape in SHAPES]
    gradients = [[random.standard_normal(shape) for shape in SHAPES] for _ in range(4)]
    variables = [keras.Variable(x, dtype="float32") for x in start]
    optimizer = Queue()
    for g in gradients:
        optimizer.apply([ops.convert_to_tensor(one, "float32") for one in g], variables)
    expected = queued(_flat(start), map(_flat, gradients))
    np.testing.assert_allclose(_flat(map(to_numpy, variables)), expected, rtol=1e-5, atol=1e-6)


def _flat(values):
    return np.concatenate([np.ravel(value) for value in values])


@pytest.mark.parametrize("name", ["DAdaptAdam", "GGT", "LBFGS", "Prodigy"])
def test_classes_derived_from_ours_are_tried_and_step(name):
    base = getattr(keras_tfopt, name)

    def update(self, g, x, s, t):
        return base.update(self, g, x, s, t)

    results = []
    for cls in (base, type("Derived", (base,), {"update": update})):
        variables = [keras.Variable(np.ones(shape), dtype="float32") for shape in SHAPES]
        optimizer = cls()
        for _ in range(2):
            optimizer.apply([ops.full(shape, 0.5) for shape in SHAPES], variables)
        results.append([to_numpy(v) for v in variables])
    for ours, derived in zip(*results, strict=True):
        np.testing.assert_allclose(derived, ours, rtol=1e-6)
        assert not np.array_equal(derived, np.ones(derived.shape))


SLOTS = {
    "m": Slot((None,)),
    "h": Slot((2, None)),
    "n": Slot(()),
    "k": Slot((), 0, "int32"),
}


def updating(result):
    return {"update": lambda self, g, x, s, t: result(g, x, s, t)}


def solving(result):
    return {"solve": lambda self, s, t: result(s)}


def summing(result):
    return {"sums": lambda self, g, x, s, t: result(g, t)}


@pytest.mark.parametrize(
    ("members", "error", "says"),
    [
        (updating(lambda g, x, s, t: x), TypeError, "Own.update must return the new variable and"),
        (updating(lambda g, x, s, t: (ops.sum(x), {})), ValueError, "variable with 1 dimensions"),
        (updating(lambda g, x, s, t: (x[1:], {})), ValueError, r"in its shape \(17,\)"),
        (updating(lambda g, x, s, t: (x, {"m": g[1:]})), ValueError, r"m in its shape \(17,\)"),
        (updating(lambda g, x, s, t: (x, {"h": Rows(0, g[1:])})), ValueError, "the row of h"),
        (updating(lambda g, x, s, t: (x, {"v": g})), KeyError, "'v'.*Described: .*'m'"),
        (updating(lambda g, x, s, t: (x, {"n": s.n})), KeyError, "'n', whose new value `solve`"),
        (updating(lambda g, x, s, t: (ops.cast(x, "int32"), {})), TypeError, "in its data type"),
        (
            updating(lambda g, x, s, t: (x / t.norm(g), {})),
            TypeError,
            "`t.norm`.* from `sums`",
        ),
        (updating(lambda g, x, s, t: (x if x[0] else g, {})), TypeError, "asks for the value"),
        (updating(lambda g, x, s, t: (x - ops.mean(g), {})), TypeError, "each entry of the varia"),
        (solving(lambda s: {}), TypeError, "Own.solve must return two dictionaries"),
        (solving(lambda s: ({}, {"m": s.n})), KeyError, "'m', whose new value `update`"),
        (solving(lambda s: ({}, {"n": 3.0})), TypeError, "n as a tensor. Received: 3.0"),
        (solving(lambda s: ({}, {"n": ops.ones(2)})), ValueError, r"n in its shape \(\)"),
        (solving(lambda s: ({}, {"k": s.n})), TypeError, "k in its data type, int32"),
        (solving(lambda s: ({"step": s.n}, {})), ValueError, "other names than.*'step'"),
        (summing(lambda g, t: None), TypeError, "Own.sums must return a dictionary"),
        (summing(lambda g, t: {"lr": ops.sum(g)}), ValueError, "other names than.*'lr'"),
        (summing(lambda g, t: {"a": ops.max(g)}), TypeError, "must return sums over entries.* a "),
        ({"slots": lambda self, likes: {"m": Slot((None,), "identity")}}, ValueError, "start at"),
        ({"slots": lambda self, likes: {"m": Slot((), "variable")}}, ValueError, "start at"),
    ],
)
def test_wrong_methods_are_refused_when_the_optimizer_is_built(members, error, says):
    right = {
        "scope": "model",
        "slots": lambda self, likes: SLOTS,
        "update": lambda self, g, x, s, t: (x - t.lr * g, {"m": g, "n": None}),
    }
    optimizer = type("Own", (keras_tfopt.Rule,), {**right, **members})(0.1)
    with pytest.raises(error, match=says):
        optimizer.build([keras.Variable(np.ones(shape)) for shape in SHAPES])
    assert not optimizer.built
