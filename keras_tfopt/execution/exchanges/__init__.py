"""What carries tensors between workers; one file for each engine."""

from keras_tfopt.execution.exchanges.connecting import make
from keras_tfopt.execution.exchanges.exchange import Alone, Exchange, current, set_current

__all__ = ["Alone", "Exchange", "current", "make", "set_current"]
