"""Workers as threads of one process, for tests of optimizers over workers.

    results = run(3, program)   # runs program(exchange) in three threads, returns their results

The exchange waits for all workers, and adds up in NumPy. So steps cannot be compiled.
"""

import threading

import keras
import numpy as np

import keras_tfopt
from keras_tfopt.distributed import Exchange
from tests.helpers.stepping import Runner

WAIT = 60
VALUES = {"k": np.linspace(-1, 1, 6).reshape(2, 3), "table/embeddings": np.ones((5, 2))}


class Hub:
    """A meeting point of threads. Each brings a value, and gets the list of all values by rank."""

    def __init__(self, size):
        self.size = size
        self.barrier = threading.Barrier(size)
        self.brought = [None] * size

    def meet(self, rank, thing):
        self.brought[rank] = thing
        self.barrier.wait(WAIT)
        everything = list(self.brought)
        self.barrier.wait(WAIT)  # else a fast thread could bring its next value
        return everything


class Thread(Exchange):
    def __init__(self, hub, rank):
        self.hub, self.rank, self.size = hub, rank, hub.size
        self.exchanges = 0  # the number of sums

    def all_reduce_sum(self, tensors):
        self.exchanges += 1
        brought = self.hub.meet(self.rank, [keras.ops.convert_to_numpy(t) for t in tensors])
        shapes = [[a.shape for a in arrays] for arrays in brought]
        assert all(s == shapes[0] for s in shapes), shapes
        sums = [np.sum(arrays, 0, dtype=arrays[0].dtype) for arrays in zip(*brought, strict=True)]
        return [keras.ops.convert_to_tensor(s) for s in sums]

    def broadcast(self, arrays):
        return self.hub.meet(self.rank, arrays)[0]

    def gather(self, text):
        return self.hub.meet(self.rank, text)


def run(size, program):
    """Run `program(exchange)` in several threads; return their results, or raise their error."""
    hub = Hub(size)
    results, errors = [None] * size, []

    def work(rank):
        try:
            results[rank] = program(Thread(hub, rank))
        except BaseException as error:
            errors.append(error)
            hub.barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        broken = threading.BrokenBarrierError  # in threads that waited for one that failed
        raise next((e for e in errors if not isinstance(e, broken)), errors[0])
    return results


def together(size, program):
    """Run `program(exchange)` in several threads, without compiled steps."""

    def plainly(exchange):
        with keras_tfopt.engine.plain():
            return program(exchange)

    return run(size, plainly)


def train(size, make, start, steps, grads, **how):
    """Train workers with `make(exchange)` by `grads(rank, step)`; return a Runner of each."""

    def program(exchange):
        runner = Runner(make(exchange), start, **how)
        for step in range(steps):
            runner.step(grads(exchange.rank, step))
        return runner

    return together(size, program)


def gradient(rank, step, values=VALUES):
    rng = np.random.default_rng(100 * rank + step)
    return {path: rng.normal(size=np.shape(v)).astype("f") for path, v in values.items()}
