"""Cases of optimizers over workers, with a single worker."""

import keras_tfopt
from tests.cases.case import Case
from tests.cases.rules import ADAM_ARGUMENTS, COUNT, UP_TO_ONE
from tests.cases.wrappers import AVERAGES_FROM_ZERO, COUNT_FROM_ZERO

EXCHANGE = {"exchange": ("torch", 2)}  # `exchange` refuses these values

CASES = (
    Case(
        keras_tfopt.ModelAverage,
        inner=keras_tfopt.Momentum,
        variants={"often": dict(interval_steps=2, learning_rate=0.05), "defaults": {}},
        refused={"interval_steps": COUNT, **EXCHANGE},
    ),
    Case(
        keras_tfopt.ElasticAverage,
        inner=keras_tfopt.Momentum,
        variants={
            "often": dict(communication_period=2, moving_rate=0.3, learning_rate=0.05),
            "tied": dict(communication_period=3, rho=0.5, learning_rate=0.05),
            "defaults": {},
        },
        refused={
            "communication_period": COUNT,
            "moving_rate": (1.5, -0.1, "3"),
            "rho": (-0.1, "3"),
            **EXCHANGE,
        },
        slots_that_change_in_all_rows=("center", "local_center"),
    ),
    Case(
        keras_tfopt.AGN,
        inner=keras_tfopt.Adam,
        variants={"often": {"communication_period": 2, **ADAM_ARGUMENTS}, "defaults": {}},
        refused={"communication_period": COUNT, **EXCHANGE},
        wider_tolerance=AVERAGES_FROM_ZERO,
        slots_that_change_in_all_rows=("center", "gradient_sum"),
        slots_of_raw_gradients=("gradient_sum",),
    ),
    Case(
        keras_tfopt.DiLoCo,
        inner=keras_tfopt.Adam,
        variants={
            "often": {"period": 2, "outer_learning_rate": 0.5, **ADAM_ARGUMENTS},
            "defaults": {},
        },
        refused={"outer_momentum": (1.0, 1.5), "period": COUNT, **EXCHANGE},
        wider_tolerance=AVERAGES_FROM_ZERO,
        slots_that_change_in_all_rows=("center",),
    ),
    Case(
        keras_tfopt.DropStale,
        inner=keras_tfopt.Momentum,
        required={"staleness": 1},
        variants={"some": dict(staleness=2, learning_rate=0.05)},
        refused={"staleness": COUNT_FROM_ZERO, **EXCHANGE},
    ),
    Case(
        keras_tfopt.SyncReplicas,
        inner=keras_tfopt.Momentum,
        required={"replicas_to_aggregate": 1},
        variants={
            "averages": dict(
                replicas_to_aggregate=1,
                variable_averages=0.8,
                variables_to_average=".",
                learning_rate=0.05,
            ),
            "plain": dict(replicas_to_aggregate=None, learning_rate=0.05),
        },
        refused={
            "replicas_to_aggregate": COUNT[:-1],  # None is allowed
            "total_num_replicas": COUNT[:-1],
            "variable_averages": UP_TO_ONE,
            "variables_to_average": (3, "("),
            **EXCHANGE,
        },
        slots_that_change_in_all_rows=("average",),
    ),
)
