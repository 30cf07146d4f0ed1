"""Wrong rules of users: the error says what is wrong, in compiled and in plain steps."""

import re

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt


def rule(**members):
    """Return a class of optimizers. Given methods replace the right ones."""
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


def test_a_right_rule():
    assert step(rule()).tolist() == [[0.5, 0.5]] * 3


@pytest.mark.parametrize(
    ("update", "error", "says"),
    [
        (lambda self, g, x, s, t: x - t.lr * g, TypeError, "new variable and a dictionary"),
        (lambda self, g, x, s, t: (x, {"v": g}), KeyError, "'v'.*Described: .*'m'"),
        (lambda self, g, x, s, t: (x, {"m": ops.sum(g)}), ValueError, "return m with . dimensions"),
        (lambda self, g, x, s, t: (x, {"m": g[:1]}), ValueError, r"return m in its shape \(3, 2\)"),
        (lambda self, g, x, s, t: (ops.cast(x, "int32"), {}), TypeError, r"cast\(value, .float32"),
        (lambda self, g, x, s, t: (x - self.rate * g, {}), AttributeError, "no attribute 'rate'"),
        (lambda self, g, x, s, t: (x - self.learning_rate * g, {}), AttributeError, "is `t.lr`"),
        (lambda self, g, x, s, t: (ops.sum(x), {}), ValueError, "return the variable with"),
        (lambda self, g, x, s, t: (x - t.rate * g, {}), AttributeError, "no 'rate': `scalars`"),
        (lambda self, g, x, s, t: (x / t.norm(g), {}), TypeError, '`scope = "variable"`'),
    ],
)
@pytest.mark.parametrize("plain", [False, True])
def test_wrong_results_and_attributes_in_update(update, error, says, plain):
    with pytest.raises(error, match=says):
        if plain:
            with keras_tfopt.engine.plain():
                step(rule(update=update))
        else:
            step(rule(update=update))


@pytest.mark.backends("torch", reason="elsewhere tensors cannot be written to")
@pytest.mark.parametrize("name", ["g", "x", "m"])
def test_a_formula_that_writes_to_what_it_is_given_is_refused(name):
    def update(self, g, x, s, t):
        given = {"g": g, "x": x, "m": s.m}[name]
        given += 1
        return x - t.lr * g, {"m": s.m}

    gradient = ops.ones((3, 2))
    variable = keras.Variable(np.ones((3, 2), "float32"))
    with pytest.raises(TypeError, match=r"Own.update must not change.*write `g = g \+ x`"):
        rule(update=update)(0.5).apply([gradient], [variable])
    assert ops.convert_to_numpy(gradient).tolist() == [[1.0, 1.0]] * 3


def decide(self, g, x, s, t):
    if ops.sum(g) > 0:
        g = -g
    return x - t.lr * g, {}


def convert(self, g, x, s, t):
    return x - float(ops.sum(g)) * g, {}


def count(self, g, x, s, t):
    self.seen = 1
    return x - t.lr * g, {}


@pytest.mark.parametrize(
    ("update", "says", "line"),
    [
        (decide, "asks for the value of a tensor.*ops.where", "if ops.sum"),
        (convert, "asks for the value of a tensor.*ops.where", "return x - float"),
        (count, "must not assign attributes.*`slots`.*self.seen", "self.seen = 1"),
    ],
)
def test_an_impossible_formula_is_refused_with_its_line(update, says, line):
    variable = keras.Variable(np.ones((3, 2), "float32"), name="kernel")
    optimizer = rule(update=update)(0.5)
    with pytest.raises(TypeError, match=says) as error:
        optimizer.build([variable])
    assert "Own.update" in str(error.value)
    assert f"{__file__}:" in str(error.value) and line in str(error.value)
    assert not optimizer.built and len(optimizer.variables) == len(rule()(0.5).variables)
    assert (ops.convert_to_numpy(variable) == 1).all()


def assign(self, g, x, s, t):
    self.count.assign(self.count + 1)
    return x - t.lr * g, {}


def draw(self, g, x, s, t):
    return x - t.lr * (g + keras.random.normal(g.shape, seed=self.seeds)), {}


@pytest.mark.parametrize("update", [assign, draw])
def test_a_formula_that_assigns_variables_is_refused(update):
    """Compiled steps would assign them once, or leave a tracer of JAX in them."""

    def keep(self):
        self.count, self.seeds = keras.Variable(2.0), keras.random.SeedGenerator(1)

    members = {"__post_init__": keep, "scope": "variable", "update": update}
    optimizer = rule(**members)(0.5)
    before = [ops.convert_to_numpy(v).tolist() for v in (optimizer.count, optimizer.seeds.state)]
    with pytest.raises(TypeError, match="must not assign variables, nor draw .*Keep .*`slots`"):
        optimizer.build([keras.Variable(np.ones((3, 2), "float32"), name="kernel")])
    after = [ops.convert_to_numpy(v).tolist() for v in (optimizer.count, optimizer.seeds.state)]
    assert after == before and not optimizer.built


@pytest.mark.parametrize(
    ("member", "value", "error", "says"),
    [
        ("slots", lambda self, like: {"m": 0.5}, TypeError, "a keras_tfopt.Slot for 'm'.*0.5"),
        ("slots", lambda self, like: None, TypeError, "a dictionary by name.*None"),
        ("slots", lambda self, like: {"_m": 0}, ValueError, "without an underscore.*'_m'"),
        ("scalars", lambda self, lr, step: lr, TypeError, "a dictionary by name"),
        ("facts", lambda self, path: path, TypeError, "a dictionary by name"),
        ("update", lambda self, g, x, s, t: (x, {"m": "one"}), TypeError, "m as a tensor.*'one'"),
        ("update", lambda self, g, x, s, t: (None, {}), TypeError, "variable as a tensor.*None"),
        ("update", lambda self, g, x, s, t: (x, {"m": 0.0}), TypeError, "m as a tensor.*0.0"),
        ("update", lambda self, g, x, s, t: (0.0, {}), TypeError, "variable as a tensor.*0.0"),
        ("scalars", lambda self, lr, step: {"step": step - 1}, ValueError, "other names.*'step'"),
        ("facts", lambda self, path: {"norm": 2.0}, ValueError, "other names.*'norm'"),
        ("facts", lambda self, path: {"n": [1]}, TypeError, r"can be hashed.*Received: n=\[1\]"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"slot_dtype": "int8"}])
def test_wrong_results_of_methods(member, value, error, says, options):
    variable = keras.Variable(np.ones((80, 60), "float32"), name="kernel")
    optimizer = rule(scope="variable", **{member: value})(0.5, **options)
    with pytest.raises(error, match=f"Own.{member} must .*{says}"):
        optimizer.build([variable])
    assert not optimizer.built and (ops.convert_to_numpy(variable) == 1).all()


@pytest.mark.parametrize(
    ("argument", "value"),
    [("shape", 3), ("shape", (-1,)), ("initial", "ones"), ("dtype", "float9"), ("every", 0)],
)
def test_slots_with_wrong_arguments(argument, value):
    with pytest.raises(
        ValueError, match=f"`{argument}` of Slot must be .*{re.escape(repr(value))}"
    ):
        keras_tfopt.Slot(**{"shape": (3, 2), argument: value})


@pytest.mark.spread
@pytest.mark.parametrize(("name", "value"), [("scope", "layer"), ("sparse", "row")])
def test_class_attributes(name, value):
    with pytest.raises(ValueError, match=f"`{name}` of Own must be one of .*{value!r}"):
        rule(**{name: value})


@pytest.mark.spread
def test_a_constructor_that_does_not_keep_an_argument():
    class Forgetful(keras_tfopt.Rule):
        def __init__(self, learning_rate=0.1, beta=0.9, **base):
            super().__init__(learning_rate, **base)

    with pytest.raises(TypeError, match="`self.beta = beta`"):
        Forgetful().get_config()
