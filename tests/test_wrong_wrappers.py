"""Wrong wrappers of users: the error says what a hook has to return, and nothing has changed."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt

SHAPES = {"kernel": (3, 2), "bias": (2,)}


def wrapper(**members):
    """Return a class of wrappers. Given members replace the right ones."""
    right = {
        "slots": lambda self, like: {"w": keras_tfopt.zeros(like)},
        "after": lambda self, g, x, s, t: (x, {"w": s.w + x}),
    }
    return type("Own", (keras_tfopt.Wrapper,), {**right, **members})


def made(cls):
    variables = [keras.Variable(np.ones(shape), name=name) for name, shape in SHAPES.items()]
    return cls(keras_tfopt.GradientDescent(0.5)), variables


def step(optimizer, variables):
    optimizer.apply([ops.ones(shape) for shape in SHAPES.values()], variables)
    return [ops.convert_to_numpy(variable).tolist() for variable in variables]


def test_a_right_wrapper():
    optimizer, variables = made(wrapper())
    assert step(optimizer, variables) == [[[0.5, 0.5]] * 3, [0.5, 0.5]]
    assert (ops.convert_to_numpy(optimizer.slot(variables[1], "w")) == 0.5).all()


@pytest.mark.parametrize(
    "inner",
    [
        keras_tfopt.ScheduleFreeAdamW,
        lambda: keras_tfopt.MovingAverage(keras_tfopt.ScheduleFreeSGD()),
        lambda: keras_tfopt.ScheduleFree(keras_tfopt.GradientDescent()),
    ],
)
def test_schedule_free_goes_around_no_other(inner):
    with pytest.raises(ValueError, match="ScheduleFree needs an inner .* Received: .*ScheduleFree"):
        keras_tfopt.ScheduleFree(inner())


def test_a_slot_of_none_stays():
    optimizer, variables = made(wrapper(after=lambda self, g, x, s, t: (x, {"w": None})))
    step(optimizer, variables)
    assert (ops.convert_to_numpy(optimizer.slot(variables[1], "w")) == 0).all()


def zeros(value):
    return lambda self, *like: {"w": value}


@pytest.mark.parametrize(
    ("member", "value", "error", "says"),
    [
        ("before", lambda self, g, x, s, t: g, TypeError, "the gradient and the variable"),
        ("before", lambda self, g, x, s, t: (None, x), TypeError, "the gradient.*None"),
        ("before", lambda self, g, x, s, t: (g[0], x), ValueError, r"gradient in its shape \("),
        ("before", lambda self, g, x, s, t: (g, x, s), TypeError, "dictionary of new slots"),
        ("before", lambda self, g, x, s, t: (g, x, {"v": x}), KeyError, "'v'.*Described: .*'w'"),
        ("before", lambda self, g, x, s, t: (g, x, {"w": x[:1]}), ValueError, "w in its shape"),
        ("after", lambda self, g, x, s, t: x, TypeError, "variable and a dictionary"),
        ("after", lambda self, g, x, s, t: (x, {"v": x}), KeyError, "'v'.*Described: .*'w'"),
        ("after", lambda self, g, x, s, t: (x, {"w": ops.sum(x)}), ValueError, "w with . dim"),
        ("after", lambda self, g, x, s, t: (x[:1], {}), ValueError, r"variable in its shape \("),
        ("after", lambda self, g, x, s, t: (x, {"w": "one"}), TypeError, "w as a tensor.*'one'"),
        ("accept", lambda self, g, x, t: None, TypeError, "one truth value.*NoneType"),
        ("accept", lambda self, g, x, t: x > 0, TypeError, r"one truth value.*shape \("),
        ("after", lambda self, g, x, s, t: (x, s.w, {}), TypeError, "Received: tuple of 3: "),
        ("after", lambda self, g, x, s, t: (x * self.rat, {}), AttributeError, "after:.*'rat'"),
        ("after", lambda self, g, x, s, t: (x - s.v, {}), AttributeError, r"'v'.*are: \['w'\]"),
        ("after", lambda self, g, x, s, t: (x * t.rat, {}), AttributeError, "`t` has no 'rat'"),
        ("after", lambda self, g, x, s, t: (rat, {}), NameError, "after: .*'rat'"),  # noqa: F821
        ("after", lambda self, g, x, s, t: (ops.cast(x, "int32"), {}), TypeError, "type, float64"),
        ("before", lambda self, g, x, s, t: (float(g[0]) * g, x), TypeError, "asks for the value"),
        ("scalars", lambda self, lr, step: [lr], TypeError, "a dictionary by name"),
        ("facts", lambda self, like: like.path, TypeError, "a dictionary by name"),
        ("reach", lambda self, like: "row", ValueError, '"dense", "rows" or None.*\'row\''),
        ("slots", zeros(0.0), TypeError, "a keras_tfopt.Slot for 'w'.*0.0"),
        ("slots", lambda self, like: ["w"], TypeError, "a dictionary by name"),
        ("slots", lambda self, like: {"a b": None}, ValueError, "as attributes.*'a b'"),
        ("slots", lambda self, like: {"w": keras_tfopt.Slot(3)}, ValueError, "`shape` of Slot"),
        ("counters", zeros(0), TypeError, "counters must give a keras_tfopt.Slot for 'w'"),
    ],
)
def test_what_hooks_return(member, value, error, says):
    optimizer, variables = made(wrapper(**{member: value}))
    with pytest.raises(error, match=says) as found:
        optimizer.build(variables)
    assert "Own." in str(found.value) or "Slot" in str(found.value)
    assert not optimizer.built
    assert all((ops.convert_to_numpy(variable) == 1).all() for variable in variables)


@pytest.mark.parametrize(
    ("member", "value", "error", "says"),
    [
        ("before_step", lambda self, grads, v: None, TypeError, "each of the 2 variables.*None"),
        ("before_step", lambda self, grads, v: grads[:1], TypeError, "each of the 2 variables"),
        ("before_step", lambda self, grads, v: [None, grads[1]], TypeError, "each of the 2 var"),
        ("accept_step", lambda self, grads, s: True, TypeError, "truth value and a dictionary"),
        ("accept_step", lambda self, grads, s: (True, {"n": 1}), KeyError, "'n'"),
        ("accept_step", lambda self, grads, s: (None, {}), TypeError, "one truth value.*NoneType"),
        ("accept_step", lambda self, grads, s: (ops.ones(2), {}), TypeError, r"shape \(2,\)"),
    ],
)
def test_what_hooks_of_all_variables_return(member, value, error, says):
    optimizer, variables = made(wrapper(**{member: value}))
    optimizer.build(variables)
    with pytest.raises(error, match=says):
        step(optimizer, variables)
    assert all((ops.convert_to_numpy(variable) == 1).all() for variable in variables)


def test_counters_of_another_shape():
    counters = {"counters": lambda self: {"n": keras_tfopt.Slot(())}}
    cls = wrapper(accept_step=lambda self, grads, s: (True, {"n": ops.ones(3)}), **counters)
    optimizer, variables = made(cls)
    with pytest.raises(ValueError, match=r"must return n in its shape \(\).*\(3,\)"):
        step(optimizer, variables)
    assert all((ops.convert_to_numpy(variable) == 1).all() for variable in variables)


def test_a_step_may_be_accepted_by_a_constant():
    optimizer, variables = made(wrapper(accept_step=lambda self, grads, s: (True, {})))
    step(optimizer, variables)
    assert all((ops.convert_to_numpy(variable) != 1).all() for variable in variables)


def test_hooks_after_the_step_for_all_variables():
    optimizer, variables = made(wrapper(after_step=lambda self, variables: variables[:1]))
    with pytest.raises(TypeError, match="Own.after_step must return .* each of the 2 variables"):
        step(optimizer, variables)


def test_a_hook_that_reads_what_is_not_built_yet():
    """It runs in steps, so it must not fail before."""

    def after(self, g, x, s, t):
        assert self.built
        return x, {}

    optimizer, variables = made(wrapper(after=after))
    assert step(optimizer, variables)[1] == [0.5, 0.5]


def test_a_misnamed_hook():
    class Own(keras_tfopt.Wrapper):
        def beforestep(self, g, x, s, t):
            return g, x

    optimizer, variables = made(Own)
    with pytest.raises(TypeError, match="Own has no hook.*'beforestep'.*mean 'before_step'"):
        optimizer.build(variables)


def test_a_hook_that_draws_random_numbers():
    """Trying it leaves the state of its generator alone."""
    seeds = keras.random.SeedGenerator(1)
    before = ops.convert_to_numpy(seeds.state).tolist()
    optimizer, variables = made(
        wrapper(before=lambda self, g, x, s, t: (g + keras.random.normal(g.shape, seed=seeds), x))
    )
    optimizer.build(variables)
    assert ops.convert_to_numpy(seeds.state).tolist() == before


def test_hooks_of_variables_that_they_do_not_reach():
    members = {"reach": lambda self, like: None, "before": lambda self, g, x, s, t: None}
    optimizer, variables = made(wrapper(**members))
    assert step(optimizer, variables)[1] == [0.5, 0.5]


@pytest.mark.spread
@pytest.mark.parametrize(("name", "value"), [("scope", "model"), ("sparse", "move_rows")])
def test_class_attributes(name, value):
    with pytest.raises(ValueError, match=f"`{name}` of Own must be one of .*{value!r}"):
        wrapper(**{name: value})
