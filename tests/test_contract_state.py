"""Promises of every optimizer about state, configurations and slots."""

import inspect
import json

import keras
import numpy as np
import pytest

from tests.cases import CASES, every_case, keras_options, main_variant_in_all_modes
from tests.helpers.compare import assert_same, same
from tests.helpers.small_model import FEW, gradients, initial
from tests.helpers.stepping import Runner, innermost, make_variable, to_numpy


def innermost_config(serialized):
    return serialized["config"].get("inner_optimizer", serialized)["config"]


@pytest.mark.spread
@every_case("case", "variant")
def test_config_round_trip(case, variant):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    base = {
        "name": "mine",
        "clipnorm": 2.0,
        "use_ema": True,
        "ema_momentum": 0.9,
        "loss_scale_factor": 8.0,
        "gradient_accumulation_steps": 2,
        "row_variables": [r"table$", r"lookup$"],
        "master_weights": True,
        "maximize": True,
    }
    for changes in ({}, {"learning_rate": 1}, {"learning_rate": schedule}, base):
        optimizer = case.make(variant, **changes)
        config = json.loads(json.dumps(keras.saving.serialize_keras_object(optimizer)))
        assert config["registered_name"] == f"keras_tfopt>{case.name}"
        again = keras.saving.deserialize_keras_object(config)
        assert type(again) is case.cls
        assert type(innermost(again)) is (case.inner or case.cls)
        assert again.get_config() == optimizer.get_config()
        assert set(dir(again)) == set(dir(optimizer))
        assert case.cls.from_config(optimizer.get_config()).get_config() == optimizer.get_config()

        given = {**case.variants[variant], **changes}
        for name, value in given.items():
            if name == "learning_rate":
                continue
            holder, holder_config = again, config["config"]
            if name not in holder_config or name in base and name != "name":
                holder, holder_config = innermost(again), innermost_config(config)
            if callable(value):
                assert holder_config[name] == keras.saving.serialize_keras_object(value), name
            else:
                assert holder_config[name] == value, name
            holder = holder if hasattr(holder, name) else innermost(holder)
            assert getattr(holder, name) == value, name
        rate = innermost(again)._learning_rate
        if changes.get("learning_rate") is schedule:
            assert rate.get_config() == schedule.get_config()
        elif "learning_rate" in given:
            assert to_numpy(rate) == np.float32(given["learning_rate"])


@pytest.mark.spread
@every_case("case")
def test_config_holds_every_argument_of_the_constructor(case):
    parameters = inspect.signature(case.cls.__init__).parameters.values()
    arguments = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD} - {"self"}
    saved_where_set = {"maximize", "groups", "clip_unitwise", "shard_state", "slot_dtype"}
    arguments -= saved_where_set
    arguments -= set(getattr(case.cls, "unsaved", ()))
    config = case.make().get_config()
    assert arguments <= set(config)
    if case.inner is None:  # in a wrapper, the optimizer inside has the options
        assert keras_options() | {"row_variables", "master_weights"} <= set(config)


def is_required(parameter):
    return parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD


@pytest.mark.spread
@every_case("case")
def test_defaults_are_those_of_the_reference(case):
    """The reference takes its defaults from the paper and from TensorFlow 1."""
    config = case.build().get_config()
    parameters = inspect.signature(case.reference.__init__).parameters
    assert set(case.required) == {n for n, p in parameters.items() if is_required(p)} - {"self"}
    for name, parameter in parameters.items():
        if name not in ("self", "inner", "arguments", *case.required):
            default = parameter.default
            if name == "learning_rate":
                default = float(np.float32(default))  # Keras holds it in float32
            assert config[name] == default and type(config[name]) is type(default), name


@main_variant_in_all_modes(others=("eager",))
def test_weights_round_trip_in_mid_training(case, variant, mode):
    plan = gradients(steps=("normal",) * 5, paths=FEW)
    trained = Runner(case.make(variant), initial(paths=FEW), mode)
    for grads in plan[:3]:
        trained.step(grads)
    store = {}
    trained.optimizer.save_own_variables(store)
    store_inner = {}
    innermost(trained.optimizer).save_own_variables(store_inner)

    restored = Runner(case.make(variant), trained.values, mode)
    restored.optimizer.load_own_variables({key: np.array(store[key]) for key in store})
    innermost(restored.optimizer).load_own_variables(store_inner)
    assert_same(trained.snapshot(), restored.snapshot())
    for grads in plan[3:]:
        start = trained.snapshot()
        trained.step(grads)
        restored.step(grads)
        assert_same(trained.snapshot(), restored.snapshot())
        assert any(not np.array_equal(a, b) for a, b in zip(start, trained.snapshot()))


@pytest.mark.spread
@pytest.mark.parametrize("built", [False, True])
@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES if c.inner])
def test_state_that_the_optimizer_inside_refuses_is_an_error(case, built, monkeypatch, tmp_path):
    """Keras must not look for it a second time, under another name, and find nothing there."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(case.make(), "mse")
    model.optimizer.build(model.trainable_variables)
    model.save_weights(tmp_path / "state.weights.h5")
    model.compile(case.make(), "mse")
    if built:
        model.optimizer.build(model.trainable_variables)

    def refuse(self, store):
        if set(store.keys()):
            raise ValueError("refused")

    monkeypatch.setattr(case.inner, "load_own_variables", refuse)
    with pytest.raises(ValueError, match="refused"):
        model.load_weights(tmp_path / "state.weights.h5")


@pytest.mark.slow
@every_case("case")
def test_a_saved_model_continues_to_the_bit(case, tmp_path):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.layers.Embedding(6, 3), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    model.compile(optimizer=case.make(), loss="mse")
    rng = np.random.default_rng(0)
    batches = [
        (rng.integers(0, 6, size=(4, 5)), rng.normal(size=(4, 2)).astype("float32"))
        for _ in range(4)
    ]
    for x, y in batches[:2]:
        model.train_on_batch(x, y)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert type(again.optimizer) is case.cls
    for x, y in batches[2:]:
        before = model.get_weights()
        model.train_on_batch(x, y)
        again.train_on_batch(x, y)
        assert same(model.get_weights(), again.get_weights())
        assert not same(model.get_weights(), before)


@pytest.mark.spread
@every_case("case")
def test_slots_are_found_by_name(case):
    optimizer = case.make()
    variable, other = make_variable("a/kernel", np.ones((2, 3))), make_variable("b", np.ones(2))
    optimizer.build([variable, other])
    owners = {"a/kernel": variable, "b": other, None: None}
    slots = case.make_reference().start({"a/kernel": np.ones((2, 3)), "b": np.ones(2)})
    found = []
    assert set(optimizer.slot_names) == {name for owned in slots.values() for name in owned}
    for path in slots:
        for name, expected in slots[path].items():
            slot = optimizer.slot(owners[path], name)
            assert isinstance(slot, keras.Variable) and tuple(slot.shape) == expected.shape
            found.append(slot)
    assert len({id(slot) for slot in found}) == len(found)
    assert {id(slot) for slot in found} <= {id(v) for v in optimizer.variables}
    with pytest.raises(KeyError) as error:
        optimizer.slot(owners[path], "nonsense")
    assert all(name in str(error.value) for name in ("nonsense", *slots[path]))


@pytest.mark.spread("torch")  # the quickest in a few eager steps
@every_case("case", "variant")
def test_slots_that_are_said_to_have_no_sign_are_never_negative(case, variant):
    """With slot_dtype="int8", negative numbers in them would become 0."""
    runner = Runner(case.make(variant), initial())
    rng = np.random.default_rng(5)
    for _ in range(4):
        runner.step({path: rng.normal(size=x.shape) for path, x in runner.values.items()})
    parts = [runner.optimizer, innermost(runner.optimizer)]
    for part in (part for part in parts if getattr(part, "scope", "model") != "model"):
        for variable in runner.variables:
            for name, slot in part.slots(part.entry_of(variable).like).items():
                if not slot.signed:
                    assert to_numpy(part.slot(variable, name)).min() >= 0, name
