"""LazyAdam with the powers of its decays taken from a global step, as in AdamGS."""

from tests.reference.adam_gs import AdamGS


class LazyAdamGS(AdamGS):
    sparse = "rows"
