"""Defects with gradients of rows: repeated ids, clipping, accumulation."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from integration.stock_defects.findings import Outcome, attempt, probe
from integration.stock_defects.scenarios import adam_in_numpy, ours, row_1, stock, variable


@probe(
    "1a",
    "Repeated ids in a batch count as several gradients of their row",
    "row 1 after 3 steps of Adam(0.05) on ids [1, 1, 2]",
    seen_on=("tensorflow",),
)
def repeated_ids() -> tuple:
    return (
        adam_in_numpy(2 / 3, 3, 0.05),
        1e-4,
        attempt(row_1, lambda: stock.Adam(0.05, epsilon=1e-8)),
        attempt(row_1, lambda: ours.Adam(0.05)),
    )


@probe(
    "1b",
    "clipvalue clips the parts of a repeated row, not their sum",
    "row 1 after 1 step of SGD(1, clipvalue=0.4) on ids [1, 1, 2]",
    seen_on=("tensorflow",),
)
def clipped_parts() -> tuple:
    return (
        1 - min(2 / 3, 0.4),
        1e-5,
        attempt(lambda o: row_1(o, 1), lambda: stock.SGD(1.0, clipvalue=0.4)),
        attempt(lambda o: row_1(o, 1), lambda: ours.Momentum(1.0, clipvalue=0.4)),
    )


@probe(
    "2a",
    "Row gradients fail with loss_scale_factor",
    "row 1 after 3 steps of SGD(0.1, loss_scale_factor=8)",
    seen_on=("tensorflow",),
)
def scaled_rows() -> tuple:
    return (
        1 - 3 * 0.1 * 2 / 3,
        1e-5,
        attempt(row_1, lambda: stock.SGD(0.1, loss_scale_factor=8.0)),
        attempt(row_1, lambda: ours.Momentum(0.1, momentum=0.0, loss_scale_factor=8.0)),
    )


def _times_slower_on_a_large_table(make: Callable[[], Any]) -> Outcome:
    """How much longer a step on 4 rows takes with 2**20 rows in the table than with 2**10."""
    import tensorflow as tf

    def best_time(rows: int) -> float:
        optimizer = make()
        table = variable(np.ones((rows, 16)), "table/embeddings")
        indices, values = tf.constant([1, 2, 3, 1]), tf.ones((4, 16))
        seconds = []
        for count in range(12):  # no micro-step of these moves the variables
            gradient = tf.IndexedSlices(values, indices, tf.constant([rows, 16]))
            start = time.perf_counter()
            optimizer.apply([gradient], [table])
            if count > 1:
                seconds.append(time.perf_counter() - start)
        return min(seconds)

    return attempt(lambda o: best_time(2**20) / best_time(2**10), make)


# A step in rows takes as long on any table, a dense one 20 to 50 times longer; clocks are noisy.
_LIMIT = (1.0, 6.0)


@probe(
    "2b",
    "global_clipnorm makes row gradients dense",
    "time of a step on a table 1024 times as large",
    seen_on=("tensorflow",),
    backends=("tensorflow",),
)
def dense_by_clipping() -> tuple:
    return (
        *_LIMIT,
        _times_slower_on_a_large_table(lambda: stock.SGD(0.1, global_clipnorm=1.0)),
        _times_slower_on_a_large_table(lambda: ours.Momentum(0.1, global_clipnorm=1.0)),
    )


@probe(
    "2c",
    "gradient_accumulation_steps makes row gradients dense",
    "time of a micro-step on a table 1024 times as large",
    seen_on=("tensorflow",),
    backends=("tensorflow",),
)
def dense_by_accumulation() -> tuple:
    count = {"gradient_accumulation_steps": 100}
    return (
        *_LIMIT,
        _times_slower_on_a_large_table(lambda: stock.SGD(0.1, **count)),
        _times_slower_on_a_large_table(lambda: ours.Momentum(0.1, **count)),
    )
