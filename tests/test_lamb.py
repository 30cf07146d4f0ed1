"""LAMB: excluded variables, norms over chosen axes, and the difference from Keras's Lamb."""

import inspect

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.helpers.small_model import gradients, initial
from tests.helpers.stepping import Runner

# test_contract.py checks the formula on every backend, also in compiled code.
pytestmark = pytest.mark.spread("torch")

PATHS = ("layer/kernel", "layer/bias")
PLAN = gradients(steps=("normal",) * 3, paths=PATHS)


def moved(optimizer):
    """Return the variables after three steps."""
    runner = Runner(optimizer, initial(paths=PATHS), "eager")
    for grads in PLAN:
        runner.step(grads)
    return runner.values


def lamb(**arguments):
    return keras_tfopt.LAMB(0.05, **{"weight_decay": 0.1, **arguments})


def excluding(optimizer, *patterns):
    optimizer.exclude_from_weight_decay(var_names=list(patterns))
    return optimizer


def assert_alike(found, expected, paths=PATHS):
    for path in paths:
        np.testing.assert_allclose(found[path], expected[path], rtol=1e-6, err_msg=path)


def test_variables_without_decay_have_no_ratio_by_default():
    plain = lamb(weight_decay=0.0, exclude_from_layer_adaptation=".")
    for optimizer, same in [
        (excluding(lamb(), "bias"), plain),
        (excluding(lamb(exclude_from_layer_adaptation=[]), "bias"), lamb(weight_decay=0.0)),
        (lamb(exclude_from_layer_adaptation="bias"), lamb(exclude_from_layer_adaptation=".")),
    ]:
        found = moved(optimizer)
        assert_alike(found, moved(same), ["layer/bias"])
        assert_alike(found, moved(lamb()), ["layer/kernel"])


def is_bias(variable):
    return variable.path.endswith("bias")


def test_variables_are_chosen_in_every_way():
    expected = moved(lamb(exclude_from_layer_adaptation="bias"))
    bias = keras.Variable(np.zeros(5), name="bias")
    for choice in ("bi.s$", is_bias, ["nothing|bias"], [f"{bias.path}$"]):
        assert_alike(moved(lamb(exclude_from_layer_adaptation=choice)), expected)


def all_but_last(variable):
    return range(len(variable.shape) - 1) if len(variable.shape) > 1 else None


def test_each_column_may_have_a_ratio_of_its_own():
    """With norms over axis 0, each column of a matrix moves as a separate variable."""
    start = initial(paths=PATHS)["layer/kernel"]
    columns = [f"column{i}" for i in range(start.shape[1])]
    apart = Runner(lamb(), dict(zip(columns, start.T, strict=True)))
    for grads in PLAN:
        apart.step(dict(zip(columns, grads["layer/kernel"].T, strict=True)))
    expected = np.stack([apart.values[name] for name in columns], axis=1)
    whole = moved(lamb())["layer/bias"]
    for axis in (0, [0], -2, all_but_last):
        found = moved(lamb(axis=axis))
        np.testing.assert_allclose(found["layer/kernel"], expected, rtol=1e-5)
        np.testing.assert_allclose(found["layer/bias"], whole, rtol=1e-6)


def test_the_result_of_an_axis_function_is_checked():
    with pytest.raises(TypeError, match="Argument `axis` must be .* Received: 'rows'"):
        moved(lamb(axis=lambda variable: "rows"))


def by_formula(x, grads, decay, inside, lr=0.05, beta_1=0.9, beta_2=0.999):
    """Return a variable after some steps of LAMB, with the decay inside or outside of the ratio."""
    m, v = np.zeros_like(x), np.zeros_like(x)
    for t, g in enumerate(grads, start=1):
        if not inside:
            x = x - lr * decay * x
        m, v = beta_1 * m + (1 - beta_1) * g, beta_2 * v + (1 - beta_2) * g**2
        u = m / (1 - beta_1**t) / (np.sqrt(v / (1 - beta_2**t)) + 1e-6)
        if inside:
            u = u + decay * x
        x = x - lr * np.linalg.norm(x) / np.linalg.norm(u) * u
    return x


@pytest.mark.parametrize("decay", [0.0, 0.1, 1.0])
def test_keras_decays_outside_of_the_ratio(decay):
    """The formulas of LAMB here and in Keras are equal only without decay."""
    stock = keras.optimizers.Lamb(0.05, epsilon=1e-6, weight_decay=decay or None)
    for optimizer, inside in ((lamb(weight_decay=decay), True), (stock, False)):
        found, start = moved(optimizer), initial(paths=PATHS)
        for path in PATHS:
            grads = [np.asarray(g[path], "float64") for g in PLAN]
            x = np.asarray(start[path], "float64")
            expected = by_formula(x, grads, decay, inside)
            other = by_formula(x, grads, decay, not inside)
            np.testing.assert_allclose(found[path], expected, rtol=1e-5)
            assert np.allclose(expected, other, rtol=1e-4) == (decay == 0)


def test_the_step_in_the_docstring():
    text = keras_tfopt.LAMB.__doc__
    start, grads = {"kernel": np.array([3.0, 4.0])}, {"kernel": np.ones(2)}
    stock = keras.optimizers.Lamb(0.1, epsilon=1e-6, weight_decay=0.1)
    for optimizer, where in ((keras_tfopt.LAMB(0.1, weight_decay=0.1), "here"), (stock, "there")):
        runner = Runner(optimizer, start)
        runner.step(grads)
        x, y = runner.values["kernel"]
        assert f"$({x:.2f}, {y:.2f})$ {where}" in text


def test_the_recipe_in_the_docstring():
    recipe = inspect.getdoc(keras_tfopt.LAMB).split("```python\n")[1].split("```")[0]
    made = {"keras_tfopt": keras_tfopt}
    exec(recipe, made)
    optimizer = made["optimizer"]
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(2), keras.layers.LayerNormalization()]
    )
    optimizer.build(model.trainable_variables)
    facts = [optimizer.facts_of(variable) for variable in model.trainable_variables]
    assert [fact["is_excluded"] for fact in facts] == [False, True, True, True]
    assert [fact["has_ratio"] for fact in facts] == [True, False, False, False]


def test_choices_are_saved():
    optimizer = excluding(lamb(exclude_from_layer_adaptation=["kernel"], axis=[0]), "bias")
    again = keras_tfopt.LAMB.from_config(optimizer.get_config())
    assert_alike(moved(again), moved(optimizer))
    assert again.get_config() == optimizer.get_config()
