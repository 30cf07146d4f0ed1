"""Optimizers over workers, with a single worker. The module tests/helpers/averaging.py has several.

The center is the value from which all workers go on. With a single worker, it is the variable.
"""

from tests.reference import dense
from tests.reference.adam import Adam
from tests.reference.around import Around


class Alone(Around):
    """After every `period` steps, shared slots are those of this worker.

    This holds for variables without a gradient in that step, too.
    """

    period = None

    def shared(self, x, s):
        return s

    def step(self, gradient, x, s, step, path=""):
        x, s = super().step(gradient, x, s, step, path)
        if self.period and step % self.period == 0:
            s = {**s, **self.shared(x, {name: s[name] for name in self.own_slots(x)})}
        return x, s


class ModelAverage(Alone):
    def __init__(self, interval_steps=100, **arguments):
        super().__init__(**arguments)


class ElasticAverage(Alone):
    def __init__(self, communication_period=10, moving_rate=None, rho=None, **arguments):
        super().__init__(**arguments)
        self.period = communication_period

    def own_slots(self, x):
        return {"center": x.copy(), "local_center": x.copy()}

    def shared(self, x, s):
        return {"center": x, "local_center": x}


class AGN(Alone):
    def __init__(self, communication_period=10, **arguments):
        super().__init__(inner=Adam, **arguments)
        self.period = communication_period

    def own_slots(self, x):
        return {"center": x.copy(), "gradient_sum": 0 * x}

    def step(self, gradient, x, s, step, path=""):
        if gradient is not None:
            s = {**s, "gradient_sum": s["gradient_sum"] + dense(gradient, x)}
        return super().step(gradient, x, s, step, path)

    def shared(self, x, s):
        return {"center": x, "gradient_sum": 0 * x}


class DiLoCo(Alone):
    def __init__(self, outer_learning_rate=0.7, outer_momentum=0.9, period=500, **arguments):
        super().__init__(inner=Adam, **arguments)
        self.period = period

    def own_slots(self, x):
        return {"center": x.copy(), "outer_momentum": 0 * x}

    def shared(self, x, s):
        return {"center": x, "outer_momentum": s["outer_momentum"]}


class DropStale(Alone):
    def __init__(self, staleness, **arguments):
        super().__init__(**arguments)


class SyncReplicas(Alone):
    def __init__(
        self,
        replicas_to_aggregate,
        total_num_replicas=None,
        variable_averages=None,
        variables_to_average=None,
        **arguments,
    ):
        super().__init__(**arguments)
        self.decay = variable_averages

    def own_slots(self, x):
        return {} if self.decay is None else {"average": x.copy()}

    def after(self, x, s, rows, step, path):
        if self.decay is None:
            return x, s
        return x, {"average": self.decay * s["average"] + (1 - self.decay) * x}
