"""Attributes of the originals that programs assign, and methods that they override."""

import numpy as np
import pytest

from keras_tfopt import legacy
from tests.helpers.stepping import to_numpy
from tests.helpers.verbs import variable
from tests.test_legacy_numbers import in_graphs, in_session


@pytest.mark.parametrize(
    ("make", "attribute"),
    [
        (lambda: legacy.GradientDescentOptimizer(0.5), "_learning_rate"),
        (lambda: legacy.MomentumOptimizer(0.5, 0.0), "_learning_rate"),
        (lambda: legacy.AdaMaxOptimizer(0.5, beta1=0.0, beta2=0.0), "_lr"),
    ],
)
def test_an_assigned_learning_rate_takes_effect(make, attribute):
    optimizer, x = make(), variable()
    pairs = [(np.ones(2, "f"), x)]
    optimizer.apply_gradients(pairs)
    assert float(getattr(optimizer, attribute)) == 0.5
    setattr(optimizer, attribute, 0.25)
    assert float(getattr(optimizer, attribute)) == 0.25
    optimizer.apply_gradients(pairs)
    with pytest.warns(UserWarning, match="`learning_rate`.*-1"):
        setattr(optimizer, attribute, -1.0)
    optimizer.apply_gradients(pairs)
    np.testing.assert_allclose(to_numpy(x), [1.25, 2.25], rtol=1e-5)
    with pytest.raises(TypeError, match="`learning_rate`"):
        setattr(optimizer, attribute, "fast")


@pytest.mark.parametrize(
    ("make", "attribute"),
    [
        (lambda: legacy.MomentumOptimizer(0.5, 0.9), "_momentum"),
        (lambda: legacy.MomentumOptimizer(0.5, 0.9), "_learning_rate_tensor"),
        (legacy.AdamOptimizer, "_beta1"),
        (legacy.AdamOptimizer, "_epsilon"),
        (legacy.AdamOptimizer, "_lr_t"),
        (lambda: legacy.AdamWOptimizer(0.1), "_beta2"),
        (lambda: legacy.MovingAverageOptimizer(legacy.AdamOptimizer()), "_ema"),
        (lambda: legacy.MovingAverageOptimizer(legacy.AdamOptimizer()), "_lr"),
    ],
)
def test_assignments_without_effect_are_refused(make, attribute):
    with pytest.raises(AttributeError, match=type(make()).__name__):
        setattr(make(), attribute, 0.5)


@pytest.mark.backends("jax", "torch", reason="TensorFlow's own protocol calls them there")
@pytest.mark.parametrize("method", ["_prepare", "_create_slots", "_finish"])
def test_overriding_methods_that_nothing_calls_is_refused(method):
    with pytest.raises(TypeError, match=method):
        type("Mine", (legacy.AdamOptimizer,), {method: lambda self, *args: None})


@in_graphs
def test_an_assigned_learning_rate_acts_on_steps_built_later_in_graphs():
    def build(v1, x):
        optimizer = legacy.GradientDescentOptimizer(0.5)
        first = optimizer.apply_gradients([(v1.ones(2), x)])
        optimizer._learning_rate = v1.constant(0.25)
        with v1.control_dependencies([first]):
            return [optimizer.apply_gradients([(v1.ones(2), x)])]

    ((x,),) = in_session(build, 1)
    np.testing.assert_allclose(x, [0.25, 1.25])


@in_graphs
def test_prepare_and_create_slots_of_a_subclass_are_called():
    class Mine(legacy.MomentumOptimizer):
        def _create_slots(self, var_list):
            super()._create_slots(var_list)
            for v in var_list:
                self._zeros_slot(v, "extra", self._name)

        def _prepare(self):
            self._learning_rate = 0.25
            super()._prepare()

    def build(v1, x):
        optimizer = Mine(0.5, 0.9)
        train = optimizer.apply_gradients([(v1.ones(2), x)])
        assert optimizer.get_slot_names() == ["extra", "momentum"]
        return [train]

    ((x,),) = in_session(build, 1)
    np.testing.assert_allclose(x, [0.75, 1.75])
