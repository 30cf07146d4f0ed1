"""Wrong rules of users: the error says what is wrong, in compiled and in plain steps."""

import re
from contextlib import nullcontext

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from tests.helpers.stepping import BACKEND


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
        (lambda self, g, x, s, t: (x - s.v, {}), AttributeError, r"'v'. Slots there are: \['m'\]"),
        (lambda self, g, x, s, t: (x - s["m"], {}), TypeError, "write `s.m`"),
        (lambda self, g, x, s, t: (x - t["lr"] * g, {}), TypeError, "write `t.lr`"),
        (lambda self, g, x, s, t: (setattr(s, "m", g), {}), TypeError, "slots are not assigned"),
        (lambda self, g, x, s, t: (x, g, {}), TypeError, "Received: tuple of 3: .*, dict"),
        (lambda self, g, x, s: (x, {}), TypeError, r"has to be `def update\(self, g, x, s, t\)`"),
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


# ---- Formulas of entries that look at others


def mixed(name, g, x, s):
    return {
        "largest": lambda: g / ops.max(ops.abs(g)),
        "mean": lambda: g - ops.mean(g, axis=0, keepdims=True),
        "sum": lambda: g * ops.sum(x),
        "order": lambda: ops.flip(g, axis=0),
        "slot": lambda: g / (1 + ops.sum(s.m)),
    }[name]()


@pytest.mark.parametrize("name", ["largest", "mean", "sum", "order", "slot"])
@pytest.mark.parametrize("members", [{}, {"scope": "variable", "flat": True}], ids=["", "flat"])
def test_a_rule_of_entries_that_mixes_them_is_refused(name, members):
    def update(self, g, x, s, t):
        return x - t.lr * mixed(name, g, x, s), {"m": s.m}

    variable = keras.Variable(np.ones((3, 2), "float32"))
    optimizer = rule(update=update, **members)(0.5)
    says = "Own.update must compute each entry of the variable from the same entry.*`(scope|flat) ="
    with pytest.raises(TypeError, match=says):
        optimizer.apply([ops.ones((3, 2))], [variable])
    assert not optimizer.built
    rule(update=update, scope="variable")(0.5).apply([ops.ones((3, 2))], [variable])


@pytest.mark.parametrize("method", ["before", "after"])
def test_hooks_of_entries_that_mix_them_are_refused(method):
    hooks = {
        "before": lambda self, g, x, s, t: (g, x - ops.mean(x)),
        "after": lambda self, g, x, s, t: (x / ops.max(x), {}),
    }
    members = {"scope": "element", method: hooks[method]}
    wrapper = type("Own", (keras_tfopt.Wrapper,), members)("sgd")
    with pytest.raises(TypeError, match=f"Own.{method} must compute each entry of the variable"):
        wrapper.build([keras.Variable(np.ones((3, 2), "float32"))])


def test_flat_rules_may_use_functions_of_the_variable():
    def update(self, g, x, s, t):
        m = ops.where(s.m > 0, 0.5, 1.0) * g / (t.norm(g) + t.mean(ops.abs(x)) + t.sum(x))
        return x - t.lr * m, {"m": m, "n": s.n + 1, "c": 0.5 * s.c + t.norm(m)}

    def slots(self, like):
        whole, number = keras_tfopt.Slot(like.shape, 0, "int32"), keras_tfopt.Slot(())
        return {"m": keras_tfopt.zeros(like), "n": whole, "c": number}

    members = {"scope": "variable", "flat": True, "slots": slots}
    step(rule(update=update, **members))


# ---- Names, scalars and lines


@pytest.mark.parametrize("name", ["iterations", "variables", "groups", "flat", "slots", "apply"])
def test_arguments_that_replace_what_optimizers_have(name):
    with pytest.raises(TypeError, match=f"call its argument '{name}' something else"):
        rule(**{name: keras_tfopt.integer(1, default=2)})


@pytest.mark.parametrize("name", ["master_weight", "m_scales"])
def test_slots_with_names_of_the_engine(name):
    slots = lambda self, like: {name: keras_tfopt.zeros(like)}  # noqa: E731
    with pytest.raises(ValueError, match=f"other names than 'master_weight'.*Received: '{name}'"):
        step(rule(slots=slots))


@pytest.mark.parametrize("value", [None, "large", [1.0, 2.0], np.ones(2)])
def test_scalars_that_are_no_numbers(value):
    scalars = lambda self, lr, step: {"lr": lr, "other": value}  # noqa: E731
    with pytest.raises(TypeError, match="Own.scalars must give single numbers.*other="):
        step(rule(scalars=scalars))


def test_scalars_come_as_tensors_of_the_step():
    """An integer of Python is a tensor in `t`, as the trial says before the step does."""
    scalars = lambda self, lr, step: {"lr": lr, "n": 3}  # noqa: E731
    update = lambda self, g, x, s, t: (x - sum(t.lr * g for _ in range(t.n)), {})  # noqa: E731
    variable = keras.Variable(np.ones((3, 2), "float32"))
    optimizer = rule(scalars=scalars, update=update)(0.5)
    with pytest.raises(TypeError):
        optimizer.build([variable])
    assert not optimizer.built


def test_a_rule_without_a_formula():
    own = type("Own", (keras_tfopt.Rule,), {})
    optimizer = own(0.1)
    with pytest.raises(TypeError, match=r"Own must define `update\(self, g, x, s, t\)`"):
        optimizer.build([keras.Variable(np.ones((3, 2), "float32"))])
    assert not optimizer.built


def test_random_numbers_of_a_generator_elsewhere():
    seeds = keras.random.SeedGenerator(1)

    def update(self, g, x, s, t):
        return x - t.lr * keras.random.normal(g.shape, dtype=g.dtype, seed=seeds), {}

    with pytest.raises(TypeError, match="must not assign variables, nor draw numbers"):
        step(rule(update=update))


def test_wrong_results_name_the_line_of_the_method():
    def update(self, g, x, s, t):
        return (x - t.lr * g)[:1], {}

    line = update.__code__.co_firstlineno
    with pytest.raises(ValueError, match=rf"Own.update is defined in .*test_wrong_rules.py:{line}"):
        step(rule(update=update, scope="variable"))


def test_an_index_out_of_range_names_its_line():
    def update(self, g, x, s, t):
        return x - t.lr * (g, x)[2], {}

    with pytest.raises(IndexError, match=r"Own.update: .*test_wrong_rules.py:\d+: return x - t.lr"):
        step(rule(update=update))


@pytest.mark.parametrize("error", [NotImplementedError, AssertionError])
def test_errors_that_a_rule_raises_come_before_anything_changes(error):
    def update(self, g, x, s, t):
        if len(g.shape) != 2:
            raise error("only matrices")
        return x - t.lr * g, {}

    variables = [keras.Variable(np.ones(shape, "float32")) for shape in [(3, 2), (2,)]]
    optimizer = rule(update=update, scope="variable")(0.5)
    with pytest.raises(error, match=r"Own.update: only matrices .*test_wrong_rules.py:\d+: raise"):
        optimizer.apply([ops.ones(v.shape) for v in variables], variables)
    assert not optimizer.built
    assert all((ops.convert_to_numpy(variable) == 1).all() for variable in variables)


def test_an_assignment_to_items():
    def update(self, g, x, s, t):
        g[0] = 0.0
        return x - t.lr * g, {}

    with pytest.raises(TypeError, match="Own.update must not change"):
        step(rule(update=update))


def test_an_argument_without_a_default_after_one_with_a_default():
    with pytest.raises(TypeError, match="Own must give its argument 'beta' a default.*'learning_"):
        type("Own", (rule(learning_rate=0.1),), {"beta": keras_tfopt.within(0, 1)})


def test_shapes_that_do_not_fit_name_their_line():
    def update(self, g, x, s, t):
        return x - t.lr * ops.sum(g, axis=1), {}

    says = r"Own.update: .*test_wrong_rules.py:\d+: return x - t.lr"
    with pytest.raises(Exception, match=says) as error:
        step(rule(update=update, scope="variable"))
    assert error.type in (ValueError, TypeError, RuntimeError)


@pytest.mark.parametrize("jit_compile", [True, False])
def test_entries_are_tried_while_a_step_is_being_compiled(jit_compile):
    """`fit` builds optimizers within the function that it compiles."""

    def mixes(self, g, x, s, t):
        return x - t.lr * g / ops.max(ops.abs(g)), {}

    x, y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")
    for update, refused in ((None, False), (mixes, True)):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        own = rule() if update is None else rule(update=update)
        model.compile(own(0.5), "mse", jit_compile=jit_compile and BACKEND != "torch")
        with pytest.raises(TypeError, match="each entry") if refused else nullcontext():
            model.fit(x, y, verbose=0)


def test_flat_rules_that_know_the_shapes_of_their_variables_only():
    """A rule may fail for the shape with which it is tried."""

    def facts_of(self, like):
        rows, columns = like.shape
        assert columns > 1, "only for kernels"
        return {"size": rows * columns}

    update = lambda self, g, x, s, t: (x - t.lr * g / t.size, {})  # noqa: E731
    members = {"scope": "variable", "flat": True, "facts_of": facts_of, "update": update}
    np.testing.assert_allclose(step(rule(**members)), 1 - 0.5 / 6, rtol=1e-6)
