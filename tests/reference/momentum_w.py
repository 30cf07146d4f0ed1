"""SGDW (Loshchilov and Hutter 2019), with the decay not multiplied by the learning rate."""

from tests.reference.decoupled_weight_decay import DecoupledWeightDecay


class MomentumW(DecoupledWeightDecay):
    def __init__(
        self,
        weight_decay,
        learning_rate=0.01,
        momentum=0.9,
        nesterov=False,
        decay_variables=None,
        scale_by_learning_rate=False,
    ):
        super().__init__(
            weight_decay,
            decay_variables,
            scale_by_learning_rate,
            learning_rate=learning_rate,
            momentum=momentum,
            nesterov=nesterov,
        )
