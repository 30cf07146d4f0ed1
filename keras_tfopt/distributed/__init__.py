"""Optimizers over several workers, and the connection of these workers."""

from typing import TYPE_CHECKING

from keras_tfopt.distributed.agn import AGN as AGN
from keras_tfopt.distributed.connection import connect as connect
from keras_tfopt.distributed.connection import disconnect as disconnect
from keras_tfopt.distributed.connection import start_alike as start_alike
from keras_tfopt.distributed.connection import train_apart as train_apart
from keras_tfopt.distributed.diloco import DiLoCo as DiLoCo
from keras_tfopt.distributed.drop_stale import DropStale as DropStale
from keras_tfopt.distributed.elastic_average import ElasticAverage as ElasticAverage
from keras_tfopt.distributed.exchanges import Alone as Alone
from keras_tfopt.distributed.exchanges import Exchange as Exchange
from keras_tfopt.distributed.exchanges import current as current
from keras_tfopt.distributed.model_average import ModelAverage as ModelAverage
from keras_tfopt.distributed.over_workers import OverWorkers as OverWorkers
from keras_tfopt.distributed.sharded_state import ShardedState as ShardedState
from keras_tfopt.distributed.sync_replicas import SyncReplicas as SyncReplicas

if not TYPE_CHECKING:
    __all__ = [name for name, item in dict(vars()).items() if callable(item)]
