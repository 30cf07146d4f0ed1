"""A rule of one's own that is wrong: the error says what is wrong with it, compiled or not."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt


def rule(**members):
    """A class of optimizers with a slot, right but for what is given."""
    right = {
        "slots": lambda self, like: {"m": keras_tfopt.zeros(like)},
        "update": lambda self, g, x, s, t: (x - t.lr * g, {"m": s.m + g}),
    }
    return type("Own", (keras_tfopt.Rule,), {**right, **members})


def step(cls):
    variable = keras.Variable(np.ones((3, 2), "float32"), name="kernel")
    optimizer = cls(0.5)
    optimizer.build([variable])
    optimizer.apply([ops.ones((3, 2))], [variable])
    return ops.convert_to_numpy(variable)


def test_a_right_one():
    assert step(rule()).tolist() == [[0.5, 0.5]] * 3


@pytest.mark.parametrize(
    ("update", "error", "says"),
    [
        (lambda self, g, x, s, t: x - t.lr * g, TypeError, "new variable and a dictionary"),
        (lambda self, g, x, s, t: (x, {"v": g}), KeyError, "'v'.*Described: .*'m'"),
        (lambda self, g, x, s, t: (x, {"m": ops.sum(g)}), ValueError, "return m with . dimensions"),
        (lambda self, g, x, s, t: (ops.sum(x), {}), ValueError, "return the variable with"),
        (lambda self, g, x, s, t: (x - t.rate * g, {}), AttributeError, "no 'rate': `scalars`"),
        (lambda self, g, x, s, t: (x / t.norm(g), {}), TypeError, '`scope = "variable"`'),
    ],
)
@pytest.mark.parametrize("plain", [False, True])
def test_what_update_returns_and_reads(update, error, says, plain):
    with pytest.raises(error, match=says):
        if plain:
            with keras_tfopt.execution.plain():
                step(rule(update=update))
        else:
            step(rule(update=update))


@pytest.mark.parametrize(("name", "value"), [("scope", "layer"), ("sparse", "row")])
def test_class_attributes(name, value):
    with pytest.raises(ValueError, match=f"`{name}` of Own must be one of .*{value!r}"):
        rule(**{name: value})


def test_an_argument_that_is_not_kept():
    class Forgetful(keras_tfopt.Rule):
        def __init__(self, learning_rate=0.1, beta=0.9, **base):
            super().__init__(learning_rate, **base)

    with pytest.raises(TypeError, match="`self.beta = beta`"):
        Forgetful().get_config()
