"""Exchanges, which carry tensors between workers: one class for each engine."""

from keras_tfopt.distributed.exchanges.connecting import make
from keras_tfopt.distributed.exchanges.exchange import Alone, Exchange, current, set_current

__all__ = ["Alone", "Exchange", "current", "make", "set_current"]
