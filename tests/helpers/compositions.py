"""Wrappers, optimizers to put inside them, and all pairs of both."""

import keras

import keras_tfopt
from tests.cases.wrappers import first_dimension
from tests.cells import EXHAUSTIVE

WRAPPERS = {
    "MovingAverage": lambda inner: keras_tfopt.MovingAverage(inner, 0.7, num_updates=True),
    "VariableClipping": lambda inner: keras_tfopt.VariableClipping(inner, first_dimension, 1.5),
    "DecoupledWeightDecay": lambda inner: keras_tfopt.DecoupledWeightDecay(inner, 0.02),
    "Multitask": keras_tfopt.Multitask,
    "Lookahead": lambda inner: keras_tfopt.Lookahead(inner, 2, 0.6),
    "Cautious": lambda inner: keras_tfopt.Cautious(inner, 0.6),
    "ScheduleFree": lambda inner: keras_tfopt.ScheduleFree(inner, 0.6),
    "StochasticWeightAveraging": lambda inner: keras_tfopt.StochasticWeightAveraging(inner, 1, 2),
    "SkipNonFinite": lambda inner: keras_tfopt.SkipNonFinite(inner, max_consecutive=2),
    "ModelAverage": lambda inner: keras_tfopt.ModelAverage(inner, 2),
    "ElasticAverage": lambda inner: keras_tfopt.ElasticAverage(inner, 2, rho=0.1),
    "AGN": lambda inner: keras_tfopt.AGN(inner, 2),
    "DiLoCo": lambda inner: keras_tfopt.DiLoCo(inner, period=2),
    "DropStale": lambda inner: keras_tfopt.DropStale(inner, 1),
    "SyncReplicas": lambda inner: keras_tfopt.SyncReplicas(inner, None),
}
INNERS = {
    "stock Adam": lambda rate=0.05, **base: keras.optimizers.Adam(rate, epsilon=1e-3, **base),
    "LazyAdam": lambda rate=0.05, **base: keras_tfopt.LazyAdam(rate, epsilon=1e-3, **base),
    "LARS": lambda rate=0.05, **base: keras_tfopt.LARS(rate, eeta=0.5, **base),
    "wrapper": lambda rate=0.05, **base: keras_tfopt.DecoupledWeightDecay(
        keras_tfopt.MovingAverage(keras_tfopt.LazyAdam(rate, epsilon=1e-3, **base), 0.5), 0.01
    ),
}
COMPOSITIONS = {
    f"{wrapper} of {inner}": (lambda outer=outer, make=make: outer(make()))
    for wrapper, outer in WRAPPERS.items()
    for inner, make in INNERS.items()
}
# Compositions that tests train in another process, which takes long.
IN_PROCESSES = COMPOSITIONS if EXHAUSTIVE else {}
