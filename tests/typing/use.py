"""A file as users write it, for mypy, which reads it with the package in the lint lane.

`assert_type` says what a call is known to give; an ignored error that is none fails as well
(`warn_unused_ignores`), so each `type: ignore` below is a wrong call that has to be found. It is
read, not run.
"""

from collections.abc import Mapping
from typing import Any

from typing_extensions import assert_type

import keras_tfopt
import keras_tfopt.legacy as opt
from keras_tfopt import callbacks, layers, schedules

# ---- Optimizers and what is around them

lars = keras_tfopt.LARS(0.1, momentum=0.9, skip_list=["bias"], clipnorm=1.0, name="mine")
assert_type(lars, keras_tfopt.LARS)
assert_type(lars.momentum, float)
averaging = keras_tfopt.MovingAverage(lars, average_decay=0.99)
assert_type(averaging, keras_tfopt.MovingAverage)
assert_type(averaging.get_config(), dict[str, Any])
keras_tfopt.LazyAdam(schedules.LinearSignDecay(100), master_weights=True, row_variables=None)
keras_tfopt.AdamW(1e-3, weight_decay=1e-4, decay_variables=keras_tfopt.no_vectors)

keras_tfopt.AdamW()  # type: ignore[call-arg]
keras_tfopt.SkipNonFinite(lars, max_consecutive="three")  # type: ignore[arg-type]
keras_tfopt.Lars(0.1)  # type: ignore[attr-defined]

# ---- The registry

assert_type(keras_tfopt.list_optimizers("ada*"), list[str])
assert_type(keras_tfopt.list_optimizers("ada*", with_description=True), list[tuple[str, str]])
info = keras_tfopt.info("lars")
assert_type(info, keras_tfopt.Info)
assert_type(info.bytes_per_parameter, float)
assert_type(info.defaults, Mapping[str, Any])
assert_type(info.originals, tuple[str, ...])
assert_type(str(info), str)
keras_tfopt.get("moving_average(lars)", learning_rate=0.5)

keras_tfopt.list_optimizers(row_gradients="yes")  # type: ignore[call-overload]
keras_tfopt.info(3)  # type: ignore[arg-type]
info.name = "other"  # type: ignore[misc]

# ---- What else there is


def train(model: Any, x: Any, y: Any) -> None:
    found = keras_tfopt.diagnose(model, batch=(x, y))
    assert_type(found, keras_tfopt.Diagnosis)
    assert_type(found.warnings, list[str])
    with keras_tfopt.averaged(model):
        model.evaluate(x, y)
    model.fit(x, y, callbacks=[callbacks.EvaluateWithAverages()])
    layers.swap_embeddings(model)
    keras_tfopt.RowGradient(x, y, (4, 2))


assert_type(keras_tfopt.check_number("beta", 0.5, 0, 1), float)
assert_type(keras_tfopt.check_bool("nesterov", True), bool)
assert_type(opt.names(), dict[str, opt.Counterpart])
opt.LARSOptimizer(0.1)
keras_tfopt.check_number(0.5, 0, 1)  # type: ignore[arg-type]

# ---- A rule of one's own


@keras_tfopt.register
class SignDescent(keras_tfopt.Rule):
    def __init__(self, learning_rate: Any = 0.001, beta: float = 0.9, **base: Any):
        super().__init__(learning_rate, **base)
        self.beta = keras_tfopt.check_number("beta", beta, 0, 1, right_open=True)

    def slots(self, like: Any) -> dict[str, keras_tfopt.Slot]:
        return {"m": keras_tfopt.zeros(like)}

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        m = self.beta * s.m + (1 - self.beta) * g
        return x - t.lr * m, {"m": m}


@keras_tfopt.register
class Declared(keras_tfopt.Rule):
    learning_rate: Any = 0.001
    beta: float = keras_tfopt.within(0, 1, default=0.9)

    def update(self, g: Any, x: Any, s: Any, t: Any) -> tuple[Any, dict[str, Any]]:
        return x - t.lr * self.beta * g, {}


Declared(0.1, beta=0.5, clipnorm=1.0)
Declared(0.1, 0.5, name="mine")
Declared(0.1, beta="much")  # type: ignore[arg-type]


class Wrong(keras_tfopt.Rule):
    def update(self, g: Any, x: Any, s: Any, t: Any) -> int:  # type: ignore[override]
        return 1
