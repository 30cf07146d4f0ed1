"""Defects of averages, of weight decay, of learning rates and of half precision."""

from typing import Any

import keras
import numpy as np
from keras import ops

from integration.stock_defects.findings import attempt, probe
from integration.stock_defects.scenarios import (
    adam_in_numpy,
    dense_model,
    number,
    ours,
    steps,
    stock,
    variable,
)


@probe(
    "3",
    "use_ema: the second fit crashes",
    "weight after two fits of 3 steps, SGD(0.1, use_ema)",
    seen_on=("jax",),
)
def second_fit() -> tuple:
    def scenario(optimizer: Any) -> float:
        model = dense_model(optimizer)
        for _ in range(2):
            model.fit(np.ones((3, 1)), np.zeros((3, 1)), batch_size=1, verbose=0)
        return number(model.trainable_variables[0])

    x = 1.0
    average = None
    for _ in range(2):
        for _ in range(3):
            x -= 0.1
            average = x if average is None else 0.5 * average + 0.5 * x
        x = average  # what training ends with
    ema = {"use_ema": True, "ema_momentum": 0.5}
    return (
        x,
        1e-5,
        attempt(scenario, lambda: stock.SGD(0.1, **ema)),
        attempt(scenario, lambda: ours.Momentum(0.1, momentum=0.0, **ema)),
    )


@probe(
    "4",
    "SwapEMAWeights leaves the averages in the model after predict",
    "change of the weight by predict(callbacks=[SwapEMAWeights()])",
)
def swapped_weights() -> tuple:
    def scenario(optimizer: Any) -> float:
        model = dense_model(optimizer)
        x, y = np.ones((1, 1)), np.zeros((1, 1))
        for _ in range(3):
            model.train_on_batch(x, y)
        is_ours = isinstance(optimizer, ours.Algorithm)
        before = number(model.trainable_variables[0])
        callback = (ours if is_ours else keras).callbacks.SwapEMAWeights()
        outputs = model.predict(x, callbacks=[callback], verbose=0)
        assert abs(float(outputs[0, 0]) - before) > 0.01, "the averages were not used"
        return number(model.trainable_variables[0]) - before

    ema = {"use_ema": True, "ema_momentum": 0.5}
    return (
        0.0,
        1e-6,
        attempt(scenario, lambda: stock.SGD(0.1, **ema)),
        attempt(scenario, lambda: ours.Momentum(0.1, momentum=0.0, **ema)),
    )


@probe(
    "5a",
    "exclude_from_weight_decay is forgotten when saved",
    "excluded bias after from_config(get_config()) and one step of zero gradient",
)
def exclusion_in_config() -> tuple:
    def scenario(optimizer: Any) -> float:
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        again = type(optimizer).from_config(optimizer.get_config())
        bias, kernel = variable(1.0, "dense/bias"), variable(1.0, "dense/kernel")
        again.apply([ops.zeros(()), ops.zeros(())], [bias, kernel])
        assert number(kernel) < 0.96
        return number(bias)

    return (
        1.0,
        1e-6,
        attempt(scenario, lambda: stock.Adam(0.1, weight_decay=0.5)),
        attempt(scenario, lambda: ours.Adam(0.1, weight_decay=0.5)),
    )


@probe(
    "5b",
    "exclude_from_weight_decay does not match paths",
    '"decoder/kernel" after one step of zero gradient, excluded by "decoder"',
    seen_on=("jax", "torch"),
)
def exclusion_by_path() -> tuple:
    def scenario(optimizer: Any) -> float:
        optimizer.exclude_from_weight_decay(var_names=["decoder"])
        inside, outside = variable(1.0, "decoder/kernel"), variable(1.0, "encoder/kernel")
        optimizer.apply([ops.zeros(()), ops.zeros(())], [inside, outside])
        assert number(outside) < 0.96
        return number(inside)

    return (
        1.0,
        1e-6,
        attempt(scenario, lambda: stock.Adam(0.1, weight_decay=0.5)),
        attempt(scenario, lambda: ours.Adam(0.1, weight_decay=0.5)),
    )


@probe(
    "5c",
    "exclude_from_weight_decay after build is taken silently",
    "errors raised by such a call",
)
def exclusion_after_build() -> tuple:
    def scenario(optimizer: Any) -> float:
        optimizer.build([variable(1.0)])
        try:
            optimizer.exclude_from_weight_decay(var_names=["kernel"])
        except ValueError:
            return 1.0
        return 0.0

    return (
        1.0,
        0.0,
        attempt(scenario, lambda: stock.Adam(0.1, weight_decay=0.5)),
        attempt(scenario, lambda: ours.Adam(0.1, weight_decay=0.5)),
    )


@probe(
    "10",
    "Excluding all variables from weight decay fails",
    "weight after a step of SGD(0.1), gradient 1",
    seen_on=("torch",),
)
def nothing_decays() -> tuple:
    def scenario(optimizer: Any) -> float:
        optimizer.exclude_from_weight_decay(var_names=["kernel"])
        return number(steps(optimizer, variable([1.0]), 1.0, 1))

    return (
        0.9,
        1e-6,
        attempt(scenario, lambda: stock.SGD(0.1, weight_decay=0.5)),
        attempt(scenario, lambda: ours.Momentum(0.1, momentum=0.0, weight_decay=0.5)),
    )


@probe(
    "9b", "An integer as learning rate is refused", "weight after a step of SGD(1), gradient 0.5"
)
def integer_rate() -> tuple:
    def scenario(optimizer: Any) -> float:
        return number(steps(optimizer, variable([1.0]), 0.5, 1))

    return (
        0.5,
        1e-6,
        attempt(lambda rate: scenario(stock.SGD(rate)), lambda: 1),
        attempt(lambda rate: scenario(ours.Momentum(rate)), lambda: 1),
    )


@probe(
    "6a",
    "bfloat16 variables do not learn",
    "weight after 10 steps of Adam(0.05), gradient 1",
)
def bfloat16() -> tuple:
    def scenario(optimizer: Any) -> float:
        return number(steps(optimizer, variable([1.0], dtype="bfloat16"), 1.0, 10))

    return (
        adam_in_numpy(1.0, 10, 0.05),
        10 * 2**-9,  # each step rounds the weight to 8 bits
        attempt(scenario, lambda: stock.Adam(0.05)),
        attempt(scenario, lambda: ours.Adam(0.05)),
    )


@probe(
    "6b",
    "float16 variables explode",
    "weight after 10 steps of Adam(0.05), gradient 1e-4",
)
def float16() -> tuple:
    def scenario(optimizer: Any) -> float:
        return number(steps(optimizer, variable([1.0], dtype="float16"), 1e-4, 10))

    return (
        adam_in_numpy(1e-4, 10, 0.05),
        10 * 2**-12,
        attempt(scenario, lambda: stock.Adam(0.05)),
        attempt(scenario, lambda: ours.Adam(0.05)),
    )
