"""Defects of state that is loaded or copied."""

import tempfile
from typing import Any

import keras
import numpy as np
from keras import ops

from integration.stock_defects.findings import attempt, probe
from integration.stock_defects.scenarios import (
    dense_model,
    mean_of_outputs,
    ours,
    steps,
    stock,
    variable,
)


@probe(
    "9a",
    "State of another optimizer is skipped with a warning",
    "errors raised on loading Adam's state into one with fewer slots",
)
def foreign_state() -> tuple:
    def scenario(pair: tuple) -> float:
        from_, to = pair
        for optimizer in pair:
            optimizer.build([variable(np.ones(3))])
        store: dict[str, Any] = {}
        from_.save_own_variables(store)
        try:
            to.load_own_variables(store)
        except ValueError:
            return 1.0
        return 0.0

    return (
        1.0,
        0.0,
        attempt(scenario, lambda: (stock.Adam(), stock.SGD(momentum=0.9))),
        attempt(scenario, lambda: (ours.Adam(), ours.Momentum())),
    )


@probe(
    "11",
    "`LossScaleOptimizer` leaves out a part of Nadam's state",
    "largest difference of a step after copying the state from that of the original",
)
def state_in_attributes() -> tuple:
    def scenario(cls: Any) -> float:
        weights = [variable([1.0, 2.0]) for _ in range(2)]
        both = [cls(stock.Nadam(0.1), initial_scale=1.0) for _ in weights]
        for optimizer, weight in zip(both, weights, strict=True):
            optimizer.build([weight])
        steps(both[0], weights[0], 1.0, 3)
        for old, new in zip(*[optimizer.variables for optimizer in both], strict=True):
            new.assign(old)
        weights[1].assign(weights[0])
        ends = [steps(o, w, 1.0, 1) for o, w in zip(both, weights, strict=True)]
        return float(np.max(np.abs(np.subtract(*[ops.convert_to_numpy(w) for w in ends]))))

    return (
        0.0,
        1e-6,
        attempt(scenario, lambda: stock.LossScaleOptimizer),
        attempt(scenario, lambda: ours.LossScaleOptimizer),
    )


@probe("12", "A model that was loaded from an .h5 file does not train", "its weight after a step")
def training_from_h5() -> tuple:
    def scenario(optimizer: Any) -> float:
        with tempfile.TemporaryDirectory() as folder:
            dense_model(optimizer).save(f"{folder}/model.h5")
            custom = {"mean_of_outputs": mean_of_outputs}
            model = keras.models.load_model(f"{folder}/model.h5", custom_objects=custom)
        model.fit(np.ones((1, 1)), np.ones((1, 1)), verbose=0)
        return float(model.get_weights()[0][0, 0])

    return (
        0.5,
        1e-6,
        attempt(scenario, lambda: stock.SGD(0.5)),
        attempt(scenario, lambda: ours.GradientDescent(0.5)),
    )
