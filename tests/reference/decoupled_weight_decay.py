"""Weight decay apart from the gradient (Loshchilov and Hutter 2019), in both conventions."""

import re

from tests.reference.around import Around


class DecoupledWeightDecay(Around):
    def __init__(
        self, weight_decay, decay_variables=None, scale_by_learning_rate=False, **arguments
    ):
        super().__init__(**arguments)
        self.weight_decay, self.decay_variables = weight_decay, decay_variables
        self.scale_by_learning_rate = scale_by_learning_rate

    def decays(self, x, path):
        chosen = self.decay_variables
        if callable(chosen):
            return chosen(x)
        patterns = [chosen] if isinstance(chosen, str) else chosen
        return patterns is None or any(re.search(pattern, path) for pattern in patterns)

    def before(self, x, rows, step, path):
        if not self.decays(x, path):
            return x
        rate = self.weight_decay * (self.lr(step) if self.scale_by_learning_rate else 1)
        if rows is None:
            return x - rate * x
        x = x.copy()
        x[rows] -= rate * x[rows]
        return x
