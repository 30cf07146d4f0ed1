from __future__ import annotations

from keras_tfopt.distributed.exchanges.sharing import SharingEngine
from keras_tfopt.distributed.over_workers import OverWorkers
from keras_tfopt.rule import register


@register
class ShardedState(SharingEngine, OverWorkers):
    r"""Steps with the mean gradient of all workers; each keeps a part of the state (ZeRO-1).

    Each variable has an owner among the $K$ workers, which alone keeps its slots, averages,
    accumulator and master weight, and updates it:

    $$
    x \leftarrow \text{inner step}\left(x, \frac{1}{K} \sum_k g_k\right)
    \text{ on the owner of } x, \text{ which then sends } x \text{ to all}
    $$

    The numbers are those of one worker with the mean gradient. Whole variables are shared out, the
    largest first, each to the worker that has least so far. So a worker keeps $1/K$ of the state if
    no variable is larger than that. In a step a worker sends and receives what an all-reduce of
    the gradients would: gradients are reduced to the owners, weights come from the owners.

    This is for workers on PyTorch, under `keras_tfopt.distributed.launch` or torchrun. On a JAX
    mesh, give the optimizer `shard_state=True` instead.

    Args:
        inner_optimizer: An optimizer of this package, or wrappers around one, or its name or
            configuration. Its rule must see one variable at a time, and so must wrappers: neither
            scope "model" nor hooks `before_step` and `after_step`.
        exchange: A `keras_tfopt.distributed.Exchange`; not saved. Defaults to None: the one that
            is connected.
        name: Name of the optimizer.
        **base: `groups`, which is passed on. Other options belong to `inner_optimizer`.

    Slots: none. On other workers than the owner, `slot` returns variables without memory, on
    PyTorch's device "meta".

    Saving: files have the whole state, as those of one worker. The workers exchange it, so all of
    them must save, each to a file of its own, as in `model.save(f"model_{workers.rank}.keras")`.
    Any of these files can be loaded by any number of workers. `keras_tfopt.averaged` must be
    entered by all workers, too.

    Row gradients: the rows of all workers, those that repeat summed, divided by the number of
    workers. All of the table is sent to the other workers after a step.

    Clipping: of the mean gradients; `global_clipnorm` takes the norm over all workers' variables.

    What reads state on one worker alone does not work: `keras.callbacks.SwapEMAWeights` would put
    numbers without meaning into the model.

    Raises:
        ValueError: when it is built, if there are several workers and they are not on PyTorch, or
            if the optimizer inside cannot be shared out.

    Example:

    >>> keras_tfopt.distributed.connect()
    >>> optimizer = keras_tfopt.distributed.ShardedState(keras_tfopt.Adam(0.001))

    Reference: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
    Models" (2020), stage 1.

    Differences: `torch.distributed.optim.ZeroRedundancyOptimizer` leaves averaging the gradients to
    `DistributedDataParallel`, does not clip by the global norm, and collects its state for saving
    on one worker when `consolidate_state_dict` is called. `keras.optimizers` has no such optimizer.
    """
