"""The order of arguments today, and configurations of 0.1.0.dev0 with another order."""

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.helpers.stepping import to_numpy
from tests.test_selection import DECAYING, SHAPES, LazyAdamW, StockW, decayed, every_decay

# Order of arguments


@every_decay
def test_the_learning_rate_comes_first(name):
    optimizer = DECAYING[name]()
    np.testing.assert_allclose(float(to_numpy(optimizer.learning_rate)), 0.1, rtol=1e-6)
    assert optimizer.weight_decay == 0.5


@pytest.mark.parametrize("cls", (keras_tfopt.AdamW, keras_tfopt.MomentumW, LazyAdamW, StockW))
def test_a_weight_decay_in_the_old_place_is_refused(cls):
    """It used to be the first argument. An old call must raise an error, not swap two numbers."""
    for arguments in ((1e-3,), (1e-4, 1e-3)):
        with pytest.raises(TypeError, match="weight_decay|positional"):
            cls(*arguments)


# {registered name: (configuration of 0.1.0.dev0, variables that decay)}
OLD = {
    "keras_tfopt>AdamW": (
        {
            "name": "a",
            "learning_rate": 0.0625,
            "weight_decay": 0.5,
            "row_variables": "(^|/)embeddings$",
            "no_weight_decay": ["bias"],
            "beta_1": 0.5,
            "beta_2": 0.999,
            "epsilon": 1e-08,
            "decay_variables": {
                "module": "builtins",
                "class_name": "function",
                "config": "keras_tfopt>no_vectors",
                "registered_name": "function",
            },
            "scale_by_learning_rate": False,
        },
        {"conv1_bn/kernel", "dense/kernel"},
    ),
    "keras_tfopt>MomentumW": (
        {
            "name": "momentum_w",
            "learning_rate": 0.0625,
            "weight_decay": 0.5,
            "momentum": 0.5,
            "nesterov": True,
            "decay_variables": "kernel",
            "scale_by_learning_rate": False,
        },
        {"conv1_bn/kernel", "dense/kernel"},
    ),
    "keras_tfopt>decoupled_weight_decay(keras_tfopt>LazyAdam)": (
        {
            "name": "lazy_adam_w",
            "learning_rate": 0.0625,
            "weight_decay": 0.5,
            "beta_1": 0.9,
            "beta_2": 0.999,
            "epsilon": 1e-08,
            "catch_up": False,
            "decay_variables": None,
            "scale_by_learning_rate": False,
        },
        set(SHAPES),
    ),
    "keras_tfopt>VariableClipping": (
        {
            "name": "clipping",
            "inner_optimizer": {
                "class_name": "LARS",
                "registered_name": "keras_tfopt>LARS",
                "config": {"learning_rate": 0.0625, "weight_decay": 0.0, "skip_list": ["bias"]},
            },
            "vars_to_clip_dims": {"kernel$": [0]},
            "max_norm": 0.5,
        },
        {"conv1_bn/kernel", "dense/kernel"},
    ),
}


@pytest.mark.parametrize("registered", OLD)
def test_old_configurations_are_loaded(registered):
    config, expected = OLD[registered]
    name = registered.rpartition(">")[2].rstrip(")")
    optimizer = keras.saving.deserialize_keras_object(
        {"module": None, "class_name": name, "registered_name": registered, "config": config}
    )
    assert float(to_numpy(optimizer.learning_rate)) == 0.0625
    assert optimizer.name == config["name"]
    if "inner_optimizer" in config:
        assert optimizer.inner_optimizer.skip_list == ["bias"]
    else:
        assert optimizer.weight_decay == 0.5
    assert decayed(optimizer) == expected
