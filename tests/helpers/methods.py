"""The optimizers over workers, with the arguments of the reference in averaging.py."""

import keras_tfopt
from tests.helpers.averaging import MOMENTUM, PERIOD, RATE

METHODS = {
    "ModelAverage": lambda inner, **how: keras_tfopt.ModelAverage(inner, PERIOD, **how),
    "ElasticAverage": lambda inner, **how: keras_tfopt.ElasticAverage(inner, PERIOD, **how),
    "AGN": lambda inner, **how: keras_tfopt.AGN(inner, PERIOD, **how),
    "SyncReplicas": lambda inner, **how: keras_tfopt.SyncReplicas(inner, 1, **how),
    "DropStale": lambda inner, **how: keras_tfopt.DropStale(inner, 1, **how),
    "DiLoCo": lambda inner, **how: keras_tfopt.DiLoCo(inner, 0.7, 0.8, PERIOD, **how),
}
AFTER = ("ModelAverage", "ElasticAverage", "AGN", "DiLoCo")  # exchange after updates


def momentum(**options):
    return keras_tfopt.Momentum(RATE, MOMENTUM, **options)
