"""Optimizers over several workers, and the connection of these workers."""

from keras_tfopt.distributed.agn import AGN
from keras_tfopt.distributed.connection import connect, disconnect, train_apart
from keras_tfopt.distributed.diloco import DiLoCo
from keras_tfopt.distributed.drop_stale import DropStale
from keras_tfopt.distributed.elastic_average import ElasticAverage
from keras_tfopt.distributed.exchanges import Alone, Exchange, current
from keras_tfopt.distributed.model_average import ModelAverage
from keras_tfopt.distributed.over_workers import OverWorkers
from keras_tfopt.distributed.sharded_state import ShardedState
from keras_tfopt.distributed.sync_replicas import SyncReplicas

__all__ = [
    "AGN",
    "Alone",
    "DiLoCo",
    "DropStale",
    "ElasticAverage",
    "Exchange",
    "ModelAverage",
    "OverWorkers",
    "ShardedState",
    "SyncReplicas",
    "connect",
    "current",
    "disconnect",
    "train_apart",
]
