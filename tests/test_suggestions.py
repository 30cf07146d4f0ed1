"""Common mistakes: the call works if it can, or the error says what to write instead."""

import inspect

import keras
import numpy as np
import pytest
from keras import ops

import keras_tfopt
import keras_tfopt.legacy as legacy
from tests.cases import CASES, every_case
from tests.helpers.stepping import BACKEND

SGDW = keras_tfopt.extend_with_decoupled_weight_decay(keras.optimizers.SGD)


def model():
    found = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    found.set_weights([np.ones((2, 1))])
    return found


def variable():
    return keras.Variable(np.ones((2, 3), "float32"), name="kernel")


# ---- Arguments that a constructor does not have


@pytest.mark.spread
@pytest.mark.parametrize(
    ("make", "meant"),
    [
        (lambda: keras_tfopt.LARS(lr=0.1), "learning_rate"),
        (lambda: keras_tfopt.LARS(0.1, eta=0.1), "eeta"),
        (lambda: keras_tfopt.LARS(0.1, wd=0.1), "weight_decay"),
        (lambda: keras_tfopt.LARS(0.1, clip_norm=0.1), "clipnorm"),
        (lambda: keras_tfopt.LARS(0.1, master_weight=True), "master_weights"),
        (lambda: keras_tfopt.Adam(beta1=0.1), "beta_1"),
        (lambda: keras_tfopt.Adam(eps=0.1), "epsilon"),
        (lambda: keras_tfopt.Shampoo(precond_interval=3), "precond_update_interval"),
        (lambda: keras_tfopt.AdamW(weight_decay=1e-4, beta2=0.9), "beta_2"),
        (lambda: keras_tfopt.AdamW(weight_decay=1e-4, variables=["kernel"]), "decay_variables"),
        (
            lambda: keras_tfopt.extend_with_weight_decay(keras.optimizers.SGD)(
                weight_decay=1, lr=1
            ),
            "learning_rate",
        ),
        (lambda: keras_tfopt.MovingAverage("lars", decay=0.99), "average_decay"),
        (lambda: keras_tfopt.Lookahead("lars", period=5), "sync_period"),
        (lambda: keras_tfopt.LossScaleOptimizer("lars", scale=5), "initial_scale"),
        (lambda: keras_tfopt.DiLoCo("lars", outer_lr=5), "outer_learning_rate"),
        (lambda: keras_tfopt.schedules.LinearSignDecay(steps=5), "decay_steps"),
        (lambda: keras_tfopt.schedules.CosineSignDecay(5, periods=1), "num_periods"),
        (lambda: keras_tfopt.schedules.WarmUpPolynomialDecay(1.0, warmup=3), "warmup_steps"),
        (lambda: keras_tfopt.get("lars", lr=5), "learning_rate"),
        (lambda: keras_tfopt.get("moving_average(lars)", decay=5), "average_decay"),
        (lambda: legacy.LARSOptimizer(0.1, eta=0.1), "eeta"),
        (lambda: legacy.AdamOptimizer(lr=0.1), "learning_rate"),
    ],
)
def test_an_unknown_argument(make, meant):
    with pytest.raises(TypeError, match=rf"Did you mean '{meant}'( or '\w+')*\?"):
        make()


@every_case("case")
def test_every_argument_is_suggested_for_its_misspelling(case):
    parameters = inspect.signature(case.cls).parameters
    inner = ("lars",) if "inner_optimizer" in parameters else ()
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD or name in ("name", "inner_optimizer"):
            continue
        if name not in case.required:  # Python itself says that those are missing
            wrong = name.replace("_", "") if "_" in name else name + name[-1]
            with pytest.raises(TypeError, match=rf"{wrong}.*Did you mean .*'{name}'"):
                case.cls(*inner, **case.required, **{wrong: 0.5})


@pytest.mark.spread
def test_an_argument_that_belongs_to_the_optimizer_inside():
    for make in (keras_tfopt.MovingAverage, keras_tfopt.LossScaleOptimizer, keras_tfopt.AGN):
        for name in ("clipnorm", "eeta", "learning_rate"):
            with pytest.raises(TypeError, match=rf"write {make.__name__}\(LARS\({name}=...\)\)"):
                make(keras_tfopt.LARS(), **{name: 0.5})


@pytest.mark.spread
def test_an_argument_like_no_other_is_answered_with_all_arguments():
    with pytest.raises(TypeError, match="'zzz'. There are: learning_rate, momentum, .*clipnorm"):
        keras_tfopt.LARS(zzz=1)


# ---- Optimizers by name


def test_wrappers_take_names_and_configurations_of_ours():
    plain = {"class_name": "LARS", "config": {"learning_rate": 0.5}}
    for make in (keras_tfopt.MovingAverage, keras_tfopt.LossScaleOptimizer):
        for name in ("lars", "LARS", "keras_tfopt>LARS", {"class_name": "lars"}, plain):
            assert type(make(name).inner_optimizer) is keras_tfopt.LARS
        assert type(make("lazy_adam").inner_optimizer) is keras_tfopt.LazyAdam
        assert isinstance(make("adam").inner_optimizer, keras.optimizers.Adam)  # Keras comes first
        assert float(make(plain).learning_rate) == 0.5
        with pytest.raises(ValueError, match="no optimizer 'larz'. Did you mean 'LARS'"):
            make("larz")
        with pytest.raises(TypeError, match=rf"a class: write {make.__name__}\(LARS\(\.\.\.\)\)"):
            make(keras_tfopt.LARS)


@pytest.mark.spread
def test_wrappers_know_the_names_that_the_registry_knows():
    of_keras = {name.lower() for name in dir(keras.optimizers)}
    for name in keras_tfopt.list_optimizers(exclude="keras.*"):
        info = keras_tfopt.info(name)
        if inspect.Parameter.empty not in info.defaults.values() and name not in of_keras:
            inner = keras_tfopt.MovingAverage(name).inner_optimizer
            assert type(inner) is info.optimizer_class


def test_get():
    for identifier in (keras_tfopt.LARS, {"class_name": "LARS"}, {"class_name": "lars"}):
        assert type(keras_tfopt.get(identifier)) is keras_tfopt.LARS
    config = {"class_name": "LARS", "config": {"learning_rate": 0.5, "eeta": 0.25}}
    assert float(keras_tfopt.get(config).learning_rate) == 0.5
    assert keras_tfopt.get(config).eeta == 0.25
    assert config == {"class_name": "LARS", "config": {"learning_rate": 0.5, "eeta": 0.25}}
    assert keras_tfopt.get(keras_tfopt.LARS, eeta=0.25).eeta == 0.25
    # A class name without a module is Keras's, as in `keras.optimizers.get`.
    assert isinstance(keras_tfopt.get({"class_name": "Adam"}), keras.optimizers.Adam)
    with pytest.raises(ValueError, match="Did you mean 'LARS'"):
        keras_tfopt.get({"class_name": "Larz", "config": {}})


@pytest.mark.spread
def test_info_of_a_class_and_of_an_optimizer():
    for what in (keras_tfopt.LARS, keras_tfopt.LARS(0.5), legacy.LARSOptimizer, "LARSOptimizer"):
        assert keras_tfopt.info(what).name == "lars"
    assert keras_tfopt.info(keras.optimizers.Adam()).name == "keras.adam"
    assert keras_tfopt.info(keras_tfopt.Adam).name == "adam"
    for what in (3, keras.Model):
        with pytest.raises(TypeError, match="`name` must be a name of an optimizer, or a class"):
            keras_tfopt.info(what)


@pytest.mark.spread
def test_info_finds_the_nearest():
    found = {
        "swa": "stochastic_weight_averaging",
        "ema": "moving_average",
        "lamb": "lamb",
        "sgd": "keras.sgd",
        "lion": "lion",
        "adam": "adam",
    }
    for name, full in found.items():
        assert keras_tfopt.info(name).name == full
    for wrong, near in {"larz": "lars", "lookahaed": "lookahead", "lazyadm": "lazy_adam"}.items():
        with pytest.raises(ValueError, match=rf"Similar names: \['{near}'"):
            keras_tfopt.info(wrong)


@pytest.mark.spread
def test_a_filter_without_wildcards_is_a_name():
    names = keras_tfopt.list_optimizers
    assert names("LARS") == names("LARSOptimizer") == names("lars") == ["lars"]
    assert names("adam") == ["adam", "keras.adam"]
    assert names("*larz*") == []
    for wrong in ({"filter": "larz"}, {"filter": ["adam", "larz"]}, {"exclude": "larz"}):
        with pytest.raises(ValueError, match=r"Similar names: \['lars'"):
            names(**wrong)


# ---- Printed texts


@pytest.mark.spread
def test_info_is_readable_in_a_terminal():
    assert "r = eta_LARS ||x|| / (||g|| + lambda ||x|| + epsilon)" in str(keras_tfopt.info("lars"))
    adam = "x <- x - eta * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(v) + epsilon)"
    assert f"\n    {adam}\n" in str(keras_tfopt.info("adam"))
    assert "x <- x - eta g * {1, if sign m = sign g; delta, otherwise}" in str(
        keras_tfopt.info("neural_optimizer1")
    )
    for case in CASES:
        text = str(keras_tfopt.info(case.cls))
        title, call, page = text.split("\n\n", 2)
        assert text.isascii() and not set(title + page) & set("\\$&\0\1\2\3"), case.name
        assert call.startswith(f"{case.cls.__module__.split('.')[0]}.") and call.endswith(")")
        without_ranges = text.replace("[0, 1)", "").replace("(0, 1]", "")
        for opening, closing in ("()", "{}"):
            assert without_ranges.count(opening) == without_ranges.count(closing), case.name
        assert "$$" in keras_tfopt.info(case.cls).formula  # the attribute is still LaTeX


@every_case("case")
def test_repr_shows_the_arguments(case):
    optimizer = case.make()
    text = repr(optimizer)
    assert text.startswith(f"{case.name}(") and text.endswith(")") and " object at " not in text
    hidden = {"name", "inner_optimizer", "exchange"}
    if case.inner is None:  # options appear only if they are set
        hidden |= set(keras_tfopt.rule.OPTIONS) - set(case.cls._fields)
    for name, value in inspect.signature(case.cls).parameters.items():
        if value.kind is not value.VAR_KEYWORD and name not in hidden:
            assert f"{name}=" in text
    if case.inner is None:
        assert "clipnorm" not in text
        assert "clipnorm=0.5" in repr(case.make(clipnorm=0.5))


@pytest.mark.spread
def test_repr():
    assert repr(keras_tfopt.Momentum(0.1)) == (
        "Momentum(learning_rate=0.1, momentum=0.9, nesterov=False)"
    )
    inner = keras_tfopt.GradientDescent(
        keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5), row_variables=None
    )
    assert repr(keras_tfopt.Lookahead(inner)) == (
        "Lookahead(GradientDescent(learning_rate=ExponentialDecay(initial_learning_rate=0.1, "
        "decay_steps=10, decay_rate=0.5, staircase=False), row_variables=None), sync_period=6, "
        "slow_step_size=0.5)"
    )
    rate = keras_tfopt.GradientDescent(0.1)
    rate.learning_rate = 0.3
    assert repr(rate) == "GradientDescent(learning_rate=0.3)"
    extended = keras_tfopt.extend_with_decoupled_weight_decay(keras_tfopt.Momentum)(
        0.3, weight_decay=0.1
    )
    for part in ("MomentumW(weight_decay=0.1", "learning_rate=0.3", "nesterov=False"):
        assert part in repr(extended)


@pytest.mark.backends("tensorflow", "jax", reason="PyTorch runs `apply` itself in Python")
def test_repr_in_a_compiled_step():
    seen = []

    class Seen(keras_tfopt.Momentum):
        def apply(self, grads, trainable_variables=None):
            seen.append(repr(self))
            super().apply(grads, trainable_variables)

    trained = model()
    trained.compile(Seen(0.1), "mse")
    trained.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)
    assert seen and "momentum=0.9" in seen[0]


def test_wrappers_have_the_attributes_of_the_optimizer_inside():
    inner = keras_tfopt.LARS(0.5, eeta=0.25, clipnorm=2.0, use_ema=True)
    around = keras_tfopt.MovingAverage(keras_tfopt.Lookahead(inner, sync_period=7))
    for outer in (around, keras_tfopt.LossScaleOptimizer(around)):
        assert (outer.eeta, outer.clipnorm, outer.weight_decay) == (0.25, 2.0, 1e-4)
        assert (outer.sync_period, outer.average_decay, outer.master_weights) == (7, 0.9999, False)
        with pytest.raises(AttributeError, match="has no attribute 'eta', nor has .* inside"):
            _ = outer.eta
        assert not hasattr(outer, "_no_decay_patterns")
    assert around.use_ema is True
    stock = keras_tfopt.DecoupledWeightDecay(keras.optimizers.SGD(momentum=0.5), 0.1)
    assert (stock.momentum, stock.weight_decay, stock.nesterov) == (0.5, 0.1, False)


# ---- Steps


def test_swapped_pairs_are_refused_and_nothing_changes():
    makes = (
        keras_tfopt.LARS,
        lambda: keras_tfopt.MovingAverage("lars"),
        lambda: keras_tfopt.LossScaleOptimizer("lars"),
    )
    for make in makes:
        optimizer, x = make(), variable()
        for _ in range(2):  # before it is built, and after
            with pytest.raises(TypeError, match=r"gradients come first: .*\[\(g, v\)\]"):
                optimizer.apply_gradients([(x, ops.ones((2, 3)))])
            with pytest.raises(TypeError, match="gradients come first"):
                optimizer.apply([x], [ops.ones((2, 3))])
            assert np.array_equal(ops.convert_to_numpy(x), np.ones((2, 3)))
            optimizer.build([x])


@pytest.mark.backends("torch", reason="its parameters")
def test_raw_parameters_of_torch():
    import torch

    raw = torch.nn.Parameter(ops.ones((2, 3)))  # on the device of Keras
    for optimizer in (keras_tfopt.Momentum(0.5), keras_tfopt.MovingAverage("lars")):
        with pytest.raises(TypeError, match=r"shares its memory: keras.Variable\(p\)"):
            optimizer.apply([ops.ones((2, 3))], [raw])
    # The advice in the message works.
    shared = keras.Variable(raw)
    keras_tfopt.GradientDescent(0.5).apply([ops.ones((2, 3))], [shared])
    assert np.array_equal(ops.convert_to_numpy(raw), np.full((2, 3), 0.5))


def falling(step):
    return 0.5 / (1 + step)


@pytest.mark.parametrize("way", ["apply", "fit", "run_eagerly"])
def test_a_schedule_may_be_a_function_of_the_step(way):
    def trained(rate):
        optimizer, found = keras_tfopt.Momentum(rate), model()
        if way == "apply":
            for _ in range(4):
                optimizer.apply([ops.ones((2, 1))], found.trainable_variables)
        else:
            found.compile(optimizer, "mse", run_eagerly=way == "run_eagerly")
            found.fit(np.ones((4, 2)), np.zeros((4, 1)), batch_size=1, shuffle=False, verbose=0)
        return found.get_weights()[0]

    schedule = keras.optimizers.schedules.InverseTimeDecay(0.5, 1, 1.0)
    np.testing.assert_allclose(trained(falling), trained(schedule), rtol=1e-6)
    assert not np.allclose(trained(falling), trained(0.5))


def test_hyperparameters_may_be_functions_of_the_step():
    x = [variable() for _ in range(2)]
    schedule = keras.optimizers.schedules.InverseTimeDecay(0.5, 1, 1.0)
    for momentum, one in zip((falling, schedule), x, strict=True):
        optimizer = keras_tfopt.Momentum(0.1, momentum=momentum)
        for _ in range(3):
            optimizer.apply([ops.ones((2, 3))], [one])
    np.testing.assert_allclose(ops.convert_to_numpy(x[0]), ops.convert_to_numpy(x[1]), rtol=1e-6)


def test_functions_of_the_step_are_saved_by_their_names():
    registered = keras.saving.register_keras_serializable("tests")(falling)
    config = keras.optimizers.serialize(keras_tfopt.LARS(registered))
    again = keras_tfopt.get(config)
    again.build([variable()])
    assert float(again.learning_rate) == 0.5
    config["config"]["learning_rate"]["config"]["function"] = "os.system"
    with pytest.raises(ValueError, match="must be registered.*'os.system'"):
        keras_tfopt.get(config)
    with pytest.raises(ValueError, match="register_keras_serializable"):
        keras_tfopt.LARS(lambda step: 0.1 / (1 + step)).get_config()


def test_schedules_of_optax():
    optax = pytest.importorskip("optax")
    rate = optax.linear_schedule(0.5, 0.0, 4)
    optimizer, x = keras_tfopt.DecoupledWeightDecay(keras_tfopt.Momentum(rate), 0.5), variable()
    if BACKEND != "jax":  # optax computes with tensors of JAX
        with pytest.raises(TypeError, match="write it with keras.ops, or use one of keras.opt"):
            optimizer.apply([ops.ones((2, 3))], [x])
        assert np.array_equal(ops.convert_to_numpy(x), np.ones((2, 3)))
        return
    trained = {}
    for schedule in (rate, keras.optimizers.schedules.PolynomialDecay(0.5, 4, 0.0)):
        found = model()
        found.compile(keras_tfopt.Momentum(schedule), "mse")
        found.fit(np.ones((6, 2)), np.zeros((6, 1)), batch_size=1, shuffle=False, verbose=0)
        trained[schedule] = found.get_weights()[0]
    ours, same = trained.values()
    np.testing.assert_allclose(ours, same, rtol=1e-6)


@pytest.mark.spread
def test_functions_of_something_else_are_refused():
    for wrong in (lambda step, loss: 0.1, lambda *, step: 0.1):
        with pytest.raises(TypeError, match="a function of the number of steps or without"):
            keras_tfopt.LARS(wrong)


# ---- Averages


def test_averages_of_a_model_that_is_not_compiled():
    bare = model()
    with pytest.raises(ValueError, match=r"averaged\(model, optimizer\).*model.compile"):
        with keras_tfopt.averaged(bare):
            pass
    optimizer = keras_tfopt.MovingAverage(keras_tfopt.GradientDescent(0.5), 0.5)
    optimizer.apply([ops.ones((2, 1))], bare.trainable_variables)
    with keras_tfopt.averaged(bare, optimizer):  # the advice in the message works
        assert np.array_equal(bare.get_weights()[0], np.full((2, 1), 0.75))
    assert np.array_equal(bare.get_weights()[0], np.full((2, 1), 0.5))
