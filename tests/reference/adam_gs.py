"""Adam with the powers of its decays taken from a global step.

`global_step` is its value before the step. If it is None, the optimizer counts its own steps.
"""

from tests.reference.adam import Adam


class AdamGS(Adam):
    def __init__(
        self, learning_rate=0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-8, global_step=None
    ):
        super().__init__(learning_rate, beta_1, beta_2, epsilon)
        self.global_step = global_step
