"""Hooks that users write, and what they and rules may keep in slots."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from keras_tfopt.engine.step import hooks
from tests.helpers.changing_arguments import BETA, CHANGING
from tests.helpers.stepping import IMMEDIATE, Rows, Runner, every_mode, to_numpy

LR, STEPS = 0.5, 4


def keeps(cls):
    """Return a subclass whose slots hold the last two values of each variable."""

    class Keeping(cls):
        def slots(self, like):
            return {"last": keras_tfopt.zeros(like), "last_but_one": keras_tfopt.zeros(like)}

    Keeping.__name__ = f"{cls.__name__}Keeping"
    return Keeping


class Descends(keras_tfopt.Rule):
    def update(self, g, x, s, t):
        return x - t.lr * g, {"last": x, "last_but_one": s.last}


class Halves(keras_tfopt.Wrapper):
    def after(self, g, x, s, t):
        return 0.5 * x, {"last": x, "last_but_one": s.last}


@every_mode
@pytest.mark.parametrize("around", (False, True))
def test_slots_may_take_old_values_of_variables_and_of_other_slots(around, mode):
    if around:
        optimizer = keeps(Halves)(keras_tfopt.GradientDescent(0.5))
    else:
        optimizer = keeps(Descends)(0.5)
    runner = Runner(optimizer, {path: np.full((3, 2), 4.0) for path in ("a", "b")}, mode)
    for _ in range(3):
        runner.step({path: np.ones((3, 2)) for path in ("a", "b")})
    # 4, 3.5, 3, 2.5; or 4, 3.5 and half of that, and so on.
    expected = (0.0625, 0.125, 1.25) if around else (2.5, 3.0, 3.5)
    for path in ("a", "b"):
        slots = runner.slots[path]
        found = runner.values[path], slots["last"], slots["last_but_one"]
        for value, number in zip(found, expected, strict=True):
            np.testing.assert_array_equal(value, np.full((3, 2), number))


class Keeping(keras_tfopt.Rule):
    """Keeps the old variable, and moves one slot into another: by themselves, or by views."""

    learning_rate: float = LR

    def slots(self, like):
        return {"last": keras_tfopt.zeros(like), "older": keras_tfopt.zeros(like)}

    def update(self, g, x, s, t):
        older = ops.reshape(s.last, ops.shape(s.last))
        return x - t.lr * (g + BETA * (s.last + s.older)), {"last": x, "older": older}


class KeepsLast(keras_tfopt.Wrapper):
    """Does so in a hook."""

    flat = True

    def slots(self, like):
        return {"last": keras_tfopt.zeros(like), "older": keras_tfopt.zeros(like)}

    def before(self, g, x, s, t):
        new = {"last": ops.reshape(x, ops.shape(x)), "older": s.last}
        return g, x - LR * BETA * (s.last + s.older), new


@pytest.mark.parametrize("shape", [(3, 2), (80, 1000)], ids=["small", "large"])
@pytest.mark.parametrize("kind", ["element", "flat", "variable", "hook"])
def test_what_is_given_may_be_kept(kind, shape):
    """PyTorch writes in place: nothing may be written before it is read."""
    if kind == "hook":
        optimizer = KeepsLast(keras_tfopt.GradientDescent(LR))
    else:
        scope = "element" if kind == "element" else "variable"
        cls = type("Own", (Keeping,), {"scope": scope, "flat": kind == "flat"})
        optimizer = cls()
    random = np.random.default_rng(0)
    x, last, older = random.standard_normal(shape), np.zeros(shape), np.zeros(shape)
    variable = keras.Variable(x, dtype="float32", name="kernel")
    for _ in range(STEPS):
        g = random.standard_normal(shape)
        optimizer.apply([ops.convert_to_tensor(g, "float32")], [variable])
        x, last, older = x - LR * (g + BETA * (last + older)), x, last
    np.testing.assert_allclose(to_numpy(variable), x, rtol=1e-4, atol=1e-5)


# ---- Arguments of hooks that change with the steps


class Before(keras_tfopt.Wrapper):
    beta: float = keras_tfopt.within(default=BETA)

    def before(self, g, x, s, t):
        return self.beta * g, x


class After(keras_tfopt.Wrapper):
    scope = "element"  # compiled together with the rule
    beta: float = keras_tfopt.within(default=BETA)

    def after(self, g, x, s, t):
        return self.beta * x, {}


class Accept(keras_tfopt.Wrapper):
    beta: float = keras_tfopt.within(default=BETA)

    def accept(self, g, x, t):
        return ops.convert_to_tensor(self.beta) > 0.1


class WithScalars(keras_tfopt.Wrapper):
    beta: float = keras_tfopt.within(default=BETA)

    def scalars(self, lr, step):
        return {"lr": lr, "factor": self.now(self.beta)}

    def before(self, g, x, s, t):
        return t.factor * g, x


HOOKS = {
    Before: lambda x, beta: x - LR * beta,
    After: lambda x, beta: beta * (x - LR),
    Accept: lambda x, beta: x - LR * (beta > 0.1),
    WithScalars: lambda x, beta: x - LR * beta,
}


@every_mode
@pytest.mark.parametrize("kind", CHANGING)
@pytest.mark.parametrize("cls", HOOKS)
def test_arguments_of_hooks_may_change_with_the_steps(cls, kind, mode):
    make, beta = CHANGING[kind]
    wrapped = cls(keras_tfopt.GradientDescent(LR), make())
    runner, expected = Runner(wrapped, {"kernel": np.ones((3, 2))}, mode), 1.0
    for step in range(STEPS):
        runner.step({"kernel": np.ones((3, 2))})
        expected = HOOKS[cls](expected, beta(step))
    np.testing.assert_allclose(runner.values["kernel"], expected, rtol=2e-6)


# ---- Slots that `before` changes


class Amplified(keras_tfopt.Wrapper):
    """Adds an average of the gradients to the gradient, as Grokfast does."""

    sparse = "rows"

    def slots(self, like):
        return {"slow": keras_tfopt.zeros(like)}

    def before(self, g, x, s, t):
        slow = 0.5 * s.slow + 0.5 * g
        return g + 2 * slow, x, {"slow": slow}


class Remembering(keras_tfopt.Wrapper):
    scope = "element"  # compiled together with the rule

    def slots(self, like):
        return {"start": keras_tfopt.zeros(like), "moved": keras_tfopt.zeros(like)}

    def before(self, g, x, s, t):
        return g, x, {"start": x}

    def after(self, g, x, s, t):
        return x, {"moved": x - s.start}


@every_mode
@pytest.mark.parametrize("rows", [False, True])
def test_before_may_change_slots_and_so_the_gradient(mode, rows):
    path, start, touched = "table/embeddings", np.ones((4, 2), "float32"), np.array([1, 3])
    runner = Runner(Amplified(keras_tfopt.LazyAdam(0.1)), {path: start}, mode)
    same = Runner(keras_tfopt.LazyAdam(0.1), {path: start}, mode)
    slow = 0.0
    for number in (1.0, 2.0, 3.0):
        slow = 0.5 * slow + 0.5 * number
        for one, value in ((runner, number), (same, number + 2 * slow)):
            values = np.full((2, 2), value, "float32")
            dense = np.zeros((4, 2), "float32")
            dense[touched] = values
            one.step({path: Rows(values, touched) if rows else dense})
    np.testing.assert_allclose(runner.slots[path]["slow"][touched], slow, rtol=1e-6)
    np.testing.assert_allclose(runner.values[path], same.values[path], rtol=1e-6)
    assert np.array_equal(runner.values[path][[0, 2]], start[[0, 2]])


@every_mode
@pytest.mark.parametrize("options", [{}, {"use_ema": True}], ids=["joined", "apart"])
def test_after_finds_what_before_has_put_into_slots(options, mode):
    paths = ("a", "b")
    inner = keras_tfopt.GradientDescent(0.5, **options)
    runner = Runner(Remembering(inner), {path: np.full((3, 2), 4.0) for path in paths}, mode)
    for _ in range(3):
        runner.step({path: np.ones((3, 2)) for path in paths})
    for path in paths:
        slots = runner.slots[path]
        for found, number in ((slots["start"], 3.0), (slots["moved"], -0.5)):
            np.testing.assert_array_equal(found, np.full((3, 2), number))


class HalfGradients(keras_tfopt.MovingAverage):
    """`MovingAverage` itself needs no gradients."""

    scope = "variable"

    def before(self, g, x, s, t):
        return 0.5 * g, x


@every_mode
def test_hooks_of_a_subclass_see_gradients(mode):
    inner = keras_tfopt.GradientDescent(0.5)
    runner = Runner(HalfGradients(inner, average_decay=0.5), {"a": np.full((3,), 4.0)}, mode)
    runner.step({"a": np.ones((3,))})
    np.testing.assert_array_equal(runner.values["a"], np.full((3,), 3.75))
    np.testing.assert_array_equal(runner.slots["a"]["average"], np.full((3,), 3.875))


class RowScaled(keras_tfopt.Wrapper):
    """Scales the gradients of each row by their norms so far, and counts its calls."""

    sparse = "rows"

    def slots(self, like):
        of_row = keras_tfopt.Slot(like.shape[:1])
        return {"size": of_row, "count": keras_tfopt.Slot(()), "last": keras_tfopt.Slot((2,))}

    def before(self, g, x, s, t):
        size = s.size + ops.sqrt(ops.sum(ops.square(g), axis=1))
        scale = ops.where(size > 0, 1 / ops.where(size > 0, size, 1.0), 0.0)
        last = ops.stack([s.last[1], ops.sum(g)])
        return g * scale[:, None], x, {"size": size, "count": s.count + 1, "last": last}


@every_mode
@pytest.mark.parametrize("rows", [False, True])
def test_slots_that_are_not_of_the_shape_of_the_variable(mode, rows):
    path, touched = "table/embeddings", np.array([1, 3])
    inner = keras_tfopt.LazyAdam(0.1)
    runner = Runner(RowScaled(inner), {path: np.ones((4, 2), "float32")}, mode)
    same = Runner(keras_tfopt.LazyAdam(0.1), {path: np.ones((4, 2), "float32")}, mode)
    size = 0.0
    for number in (3.0, 1.0):
        size += number * np.sqrt(2)
        for one, value in ((runner, number), (same, number / size)):
            values = np.full((2, 2), value, "float32")
            dense = np.zeros((4, 2), "float32")
            dense[touched] = values
            one.step({path: Rows(values, touched) if rows else dense})
    slots = runner.slots[path]
    np.testing.assert_allclose(slots["size"], [0, size, 0, size], rtol=1e-6)
    assert slots["count"] == 2
    np.testing.assert_allclose(slots["last"], [12.0, 4.0])
    np.testing.assert_allclose(runner.values[path], same.values[path], rtol=1e-5)


@keras_tfopt.register
class Noisy(keras_tfopt.Wrapper):
    seed: int = keras_tfopt.integer(0, default=1)

    def __post_init__(self):
        self.generator = keras.random.SeedGenerator(self.seed)

    def noise(self, x):
        return keras.random.normal(x.shape, dtype=x.dtype, seed=self.generator)


@keras_tfopt.register
class NoisyBefore(Noisy):
    def before(self, g, x, s, t):
        return g + self.noise(g), x


@keras_tfopt.register
class NoisyAfter(Noisy):
    scope = "element"

    def after(self, g, x, s, t):
        return x + self.noise(x), {}


@keras_tfopt.register
class NoisyBeforeStep(Noisy):
    def before_step(self, grads, variables):
        return [g + self.noise(g) for g in grads]


@pytest.mark.parametrize("under_condition", [False, True])
@pytest.mark.parametrize("cls", [NoisyBefore, NoisyAfter, NoisyBeforeStep])
def test_noise_of_a_generator(cls, under_condition, tmp_path):
    """Each step of `fit` draws other numbers for each variable; a loaded model goes on alike."""
    optimizer = cls(keras_tfopt.GradientDescent(1.0))
    if under_condition:
        optimizer = keras_tfopt.SkipNonFinite(optimizer)
    denses = [keras.layers.Dense(1, use_bias=False) for _ in range(2)]
    model = keras.Sequential([keras.Input((1,)), *denses])
    model.compile(optimizer, "mse")

    def moves(model):
        before = np.ravel(model.get_weights())
        model.fit(np.zeros((1, 1)), np.zeros((1, 1)), verbose=0)
        return (np.ravel(model.get_weights()) - before).tolist()

    drawn = [*moves(model), *moves(model), *moves(model)]
    assert len(set(drawn)) == 6 and 0 not in drawn
    model.save(tmp_path / "noisy.keras")
    again = keras.models.load_model(tmp_path / "noisy.keras")
    assert moves(again) == moves(model)


@pytest.mark.parametrize("mode", IMMEDIATE)
def test_a_step_keeps_old_values_of_variables_that_are_refused_only(mode, monkeypatch):
    kept = []

    def put_back(wrapper, values):
        kept.append(len(values))
        return restore(wrapper, values)

    restore = hooks.put_back
    monkeypatch.setattr(hooks, "put_back", put_back)
    values = {"a": np.ones(3), "b": np.ones((2, 2))}
    runner = Runner(keras_tfopt.Multitask(keras_tfopt.Adam(LR)), values, mode)
    for a, b in ((1, 1), (1, 0), (0, 0), (0, 1)):
        before = {path: np.copy(value) for path, value in runner.values.items()}
        runner.step({"a": np.full(3, a), "b": np.full((2, 2), b)})
        for path, moves in (("a", a), ("b", b)):
            assert np.any(runner.values[path] != before[path]) == bool(moves), (path, a, b)
    assert kept == [3, 6, 3]  # a variable and two moments each; none in the first step
