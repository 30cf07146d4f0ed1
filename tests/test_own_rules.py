"""Rules that users write: they may use properties, `super()`, inheritance and constructors."""

import collections
import contextlib
import functools
import inspect
import logging
import operator

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
from tests.helpers.changing_arguments import BETA, CHANGING, SCHEDULE
from tests.helpers.stepping import to_numpy

LR, STEPS = 0.5, 4


def register(cls):
    return keras.saving.register_keras_serializable("own_rules")(cls)


class Plain(keras_tfopt.Rule):
    def update(self, g, x, s, t):
        return x - t.lr * g, {}


@register
class Super(Plain):
    def __init__(self, learning_rate=LR, beta=BETA, **base):
        super().__init__(learning_rate, **base)
        self.beta = beta

    def update(self, g, x, s, t):
        return super().update((1 - self.beta) * g, x, s, t)


@register
class SuperScalars(Plain):
    def __init__(self, learning_rate=LR, beta=BETA, **base):
        super().__init__(learning_rate, **base)
        self.beta = beta

    def scalars(self, lr, step):
        found = super().scalars(lr, step)
        return {**found, "lr": found["lr"] * (1 - self.beta)}


@register
class Property(keras_tfopt.Rule):
    learning_rate: float = LR
    beta: float = keras_tfopt.within(0, 1, default=BETA)

    @property
    def gamma(self):
        return 1 - self.beta

    def update(self, g, x, s, t):
        return x - t.lr * self.gamma * g, {}


@register
class Derived(Plain):
    def __init__(self, learning_rate=LR, beta=BETA, **base):
        super().__init__(learning_rate, **base)
        self.beta = keras_tfopt.check_hyperparameter("beta", beta, 0, 1)
        self.gamma = 1 - self.beta

    def update(self, g, x, s, t):
        return super().update(self.gamma * g, x, s, t)


@register
class PostInit(keras_tfopt.Rule):
    learning_rate: float = LR
    beta: float = keras_tfopt.within(0, 1, default=BETA)

    def __post_init__(self):
        self.gamma = 1 - self.beta

    def update(self, g, x, s, t):
        return x - t.lr * self.gamma * g, {}


@register
class Inherited(Property):
    beta = 0.75  # overrides the default
    scale: float = keras_tfopt.within(default=1.0)

    def update(self, g, x, s, t):
        x, new = super().update(self.scale * g, x, s, t)
        return self._same(x), new

    @staticmethod
    def _same(x):
        return x


@register
class OrdinaryPython(Property):
    """A formula with code that a compiler could not follow by reading it."""

    def update(self, g, x, s, t):
        log = logging.getLogger("own_rules")
        log.debug(
            "update of shape %s, %d arguments", g.shape, len(inspect.signature(Plain).parameters)
        )
        try:
            factor = vars(t)[f"{type(self).__name__.lower()}_factor"]
        except KeyError:
            factor = functools.reduce(operator.mul, (1.0, self.gamma))
        steps = collections.deque(maxlen=1)
        steps.extend(self.each_step(t.lr, factor))
        return x - steps.pop() * g, s._asdict()

    def each_step(self, lr, factor):
        with contextlib.ExitStack() as stack:
            stack.callback(list)
            yield from (lr * one for one in (0.0, factor))


RULES = (Super, SuperScalars, Property, Derived, PostInit, Inherited, OrdinaryPython)


def run(optimizer, plain=False):
    """A kernel and a bias after some steps with a gradient of ones."""
    variables = [keras.Variable(np.ones(shape, "float32")) for shape in ((3, 2), (2,))]
    optimizer.build(variables)
    for _ in range(STEPS):
        grads = [ops.ones(v.shape) for v in variables]
        if plain:
            with keras_tfopt.engine.plain():
                optimizer.apply(grads, variables)
        else:
            optimizer.apply(grads, variables)
    return [ops.convert_to_numpy(v) for v in variables]


@pytest.mark.parametrize("plain", [False, True], ids=["compiled", "plain"])
@pytest.mark.parametrize("kind", CHANGING)
@pytest.mark.parametrize("cls", RULES)
def test_rules_may_use_all_that_python_classes_have(cls, kind, plain):
    make, beta = CHANGING[kind]
    expected = 1 - sum(LR * (1 - beta(step)) for step in range(STEPS))
    for value in run(cls(LR, beta=make()), plain):
        np.testing.assert_allclose(value, expected, rtol=2e-6)


@pytest.mark.spread("jax")
def test_models_with_such_rules_are_saved_and_loaded(tmp_path):
    x, y = np.ones((8, 3), "float32"), np.zeros((8, 1), "float32")
    for cls in RULES:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(cls(0.01, beta=SCHEDULE), "mse")
        model.fit(x, y, epochs=2, batch_size=4, verbose=0)
        model.save(tmp_path / "model.keras")
        again = keras.models.load_model(tmp_path / "model.keras")
        assert again.optimizer.get_config() == model.optimizer.get_config()
        for one in (model, again):
            one.fit(x, y, batch_size=4, shuffle=False, verbose=0)
        for a, b in zip(model.get_weights(), again.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.spread
def test_the_signature_says_what_the_class_declares():
    parameters = inspect.signature(Inherited).parameters
    assert list(parameters)[:3] == ["learning_rate", "beta", "scale"]
    assert [p.default for p in parameters.values()][:3] == [LR, 0.75, 1.0]
    assert parameters["clipnorm"].kind is inspect.Parameter.KEYWORD_ONLY
    assert Inherited(0.1, 0.5, 2.0, clipnorm=1.0).get_config()["scale"] == 2.0
    assert Inherited.beta == 0.75 and Inherited().beta == 0.75
    for wrong in ({"beta": 1.5}, {"beta": "much"}):
        with pytest.raises((ValueError, TypeError), match=r"`beta` must be a number in \[0, 1\]"):
            Inherited(**wrong)
    with pytest.raises(TypeError, match="at most 3 positional.*Received: 4"):
        Inherited(1, 1, 1, 1)
    with pytest.raises(TypeError, match="multiple values for argument 'beta'"):
        Inherited(0.1, 0.5, beta=0.5)


@pytest.mark.spread
def test_an_attribute_is_no_argument():
    class Attribute(Plain):
        beta: float = BETA

    with pytest.raises(TypeError, match=r"'beta', only an .*`beta: float = .*within.*beta=0.5"):
        Attribute(0.1, beta=0.5)


@pytest.mark.spread
def test_declared_arguments_and_a_constructor_do_not_mix():
    with pytest.raises(TypeError, match="`__post_init__"):

        class Both(keras_tfopt.Rule):
            beta: float = keras_tfopt.within(default=0.5)

            def __init__(self, learning_rate=0.1, **base):
                super().__init__(learning_rate, **base)


class Checking(Plain):
    def __init__(self, learning_rate=LR, beta=BETA, **base):
        super().__init__(learning_rate, **base)
        if not 0 <= beta <= 1:
            raise ValueError(f"beta must be in [0, 1], received {beta}")
        self.beta, self.gamma, self.twice = beta, 1 - beta, 2 * beta

    def update(self, g, x, s, t):
        return super().update(self.gamma * g, x, s, t)


class Listing(Checking):
    def __init__(self, learning_rate=LR, beta=BETA, **base):
        super().__init__(learning_rate, beta, **base)
        self.betas = [beta, 1 - beta]


def test_a_constructor_that_computes_with_a_schedule_is_refused():
    np.testing.assert_allclose(run(Checking(LR))[0], 1 - STEPS * LR * (1 - BETA), rtol=2e-6)
    optimizer = Checking(LR, SCHEDULE)
    with pytest.raises(TypeError, match="computes .'gamma', 'twice'.*'beta'.*a property"):
        optimizer.build([keras.Variable(np.ones(3, "float32"))])
    assert not optimizer.built
    with pytest.raises(TypeError, match="into a .*[lL]ist.*a property.*self.betas"):
        Listing(LR, SCHEDULE)


# ---- Subclasses that pass arguments on


@register
class MyAdam(keras_tfopt.Adam):
    def __init__(self, learning_rate=0.001, extra=1.0, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.extra = extra


@register
class FixedAdam(keras_tfopt.Adam):
    def __init__(self, learning_rate=0.001, **kwargs):
        super().__init__(learning_rate, beta_1=0.5, **kwargs)


@register
class MyLARS(keras_tfopt.LARS):
    def __init__(self, learning_rate=0.1, extra=1.0, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.extra = extra


@register
class MyAverage(keras_tfopt.MovingAverage):
    def __init__(self, inner_optimizer, extra=1.0, **kwargs):
        super().__init__(inner_optimizer, **kwargs)
        self.extra = extra


@pytest.mark.spread("jax")
@pytest.mark.parametrize(
    ("make", "same", "expected"),
    [
        (lambda: MyAdam(0.01, beta_1=0.5, extra=3), lambda: keras_tfopt.Adam(0.01, 0.5), "beta_1"),
        (lambda: FixedAdam(0.01, beta_2=0.9), lambda: keras_tfopt.Adam(0.01, 0.5, 0.9), "beta_1"),
        (lambda: MyLARS(eeta=0.1), lambda: keras_tfopt.LARS(0.1, eeta=0.1), "eeta"),
        (
            lambda: MyAverage(keras_tfopt.Adam(0.01, 0.5), average_decay=0.75),
            lambda: keras_tfopt.MovingAverage(keras_tfopt.Adam(0.01, 0.5), average_decay=0.75),
            "average_decay",
        ),
    ],
    ids=["MyAdam", "FixedAdam", "MyLARS", "MyAverage"],
)
def test_arguments_that_a_subclass_passes_on_act_and_are_saved(make, same, expected, tmp_path):
    x = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
    y = x @ np.ones((3, 1), "float32")

    def trained(optimizer):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
        model.fit(x, y, epochs=2, batch_size=8, shuffle=False, verbose=0)
        return model

    model, reference = trained(make()), trained(same())
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again.optimizer) is type(model.optimizer)
    assert getattr(again.optimizer, expected) == getattr(reference.optimizer, expected)
    for one in (model, again, reference):
        one.fit(x, y, epochs=2, batch_size=8, shuffle=False, verbose=0)
    for a, b, c in zip(*(one.get_weights() for one in (model, again, reference)), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


def test_a_class_derived_from_a_rule_with_conditions():
    class Derived(keras_tfopt.SOAP):
        def update(self, g, x, s, t):
            return super().update(g, x, s, t)

    ends = []
    for cls in (Derived, keras_tfopt.SOAP):
        variable = keras.Variable(np.ones((6, 5)), dtype="float32", name="kernel")
        optimizer, random = cls(0.1), np.random.default_rng(0)
        for _ in range(2):
            g = random.standard_normal((6, 5))
            optimizer.apply([ops.convert_to_tensor(g, "float32")], [variable])
        ends.append(to_numpy(variable))
    np.testing.assert_allclose(*ends, rtol=1e-5)


class Scales(keras_tfopt.Rule):
    def update(self, g, x, s, t):
        return x - t.lr * FACTOR[0] * g, {}


class ScalesAfterwards(keras_tfopt.Wrapper):
    flat = True

    def after(self, g, x, s, t):
        return FACTOR[0] * x, {}


FACTOR = [1.0]  # what classes of users read, for instance from another cell of a notebook


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Scales(LR), lambda factor: 1 - LR * factor),
        (lambda: ScalesAfterwards(keras_tfopt.GradientDescent(LR)), lambda factor: LR * factor),
    ],
    ids=("rule", "wrapper"),
)
def test_a_new_optimizer_follows_changes_of_the_code(make, expected, monkeypatch):
    for factor in (1.0, 3.0):
        monkeypatch.setitem(globals(), "FACTOR", [factor])
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, use_bias=False)])
        model.set_weights([np.ones((4, 3))])
        optimizer = make()
        optimizer.build(model.trainable_variables)
        optimizer.apply([ops.ones((4, 3))])
        np.testing.assert_allclose(to_numpy(model.weights[0]), np.full((4, 3), expected(factor)))
