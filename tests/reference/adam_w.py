"""AdamW (Loshchilov and Hutter 2019), with the decay not multiplied by the learning rate."""

from tests.reference.adam import Adam
from tests.reference.decoupled_weight_decay import DecoupledWeightDecay


class AdamW(DecoupledWeightDecay):
    def __init__(
        self,
        weight_decay,
        learning_rate=0.001,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-8,
        amsgrad=False,
        decay_variables=None,
        scale_by_learning_rate=False,
    ):
        super().__init__(
            weight_decay,
            decay_variables,
            scale_by_learning_rate,
            inner=Adam,
            learning_rate=learning_rate,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            amsgrad=amsgrad,
        )
