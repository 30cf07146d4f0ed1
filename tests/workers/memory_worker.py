"""The program of test_memory.py, in a process of its own: it measures the memory of steps.

    KERAS_BACKEND=torch python -m tests.workers.memory_worker \\
        '{"cls": "GGT", "shapes": [[1000, 1000]]}'

It prints numbers of bytes as JSON: "state" is the optimizer's state. "kept" is how much the
process has grown after two steps, beyond weights, gradients and state. "passing" is how much it
grows during more steps. With `{"layer": ..., "table": [rows, width]}`, the steps are of a model
with a table. That of the layer "divided" is divided over all devices of JAX, or, on PyTorch, over
the workers of which this process is one; numbers are then of this process.
"""

import functools
import gc
import json
import math
import pathlib
import sys

import keras
import numpy as np

import keras_tfopt
from tests.helpers.stepping import BACKEND

LAYERS = {
    "ours": keras_tfopt.layers.Embedding,
    "divided": functools.partial(keras_tfopt.layers.Embedding, shard="rows"),
    "stock": keras.layers.Embedding,
}

SMALL = (640, 640)  # large enough for slots of any dtype, and for the order of large arrays


def status(name):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return 1024 * int(line.split()[1])
    raise KeyError(name)


def main(cls, shapes=None, layer=None, dtype="float32", **arguments):
    keras_tfopt.engine.compile_in_background(False)  # or the compiler's memory would count
    if layer is not None:
        if layer == "divided" and BACKEND == "jax":
            keras.distribution.set_distribution(keras.distribution.DataParallel())
        elif layer == "divided":
            keras_tfopt.distributed.connect()
        look_up(cls, layer, [8, 2], arguments["policy"])
        print(json.dumps(look_up(cls, layer, **arguments)))
        return
    # Compilers keep memory of their own: compile a step over slots of the same kind first.
    train(cls, [SMALL] * min(2, len(shapes)), dtype, arguments)
    print(json.dumps(train(cls, shapes, dtype, arguments)))


def look_up(cls, layer, table, policy):
    before = status("VmRSS")
    keras.config.set_dtype_policy(policy)
    ids = np.random.default_rng(0).integers(0, table[0], (128, 8))
    model = keras.Sequential(
        [
            keras.Input((8,), dtype="int32"),
            LAYERS[layer](*table),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )
    optimizer = getattr(keras_tfopt, cls)()
    if layer == "divided" and BACKEND == "torch":
        optimizer = keras_tfopt.distributed.ShardedState(optimizer)
    model.compile(optimizer, "mse")

    def step():
        model.train_on_batch(ids, np.ones((128, 1)))

    for _ in range(3):
        step()
    values = [v.value for v in [*model.optimizer.variables, model.layers[0].embeddings]]
    *state, weights = [4 * math.prod(v.shape) for v in values if str(v.device) != "meta"]
    gc.collect()
    kept = status("VmRSS") - before - sum(state) - weights
    return {"state": sum(state), "kept": kept, "passing": growth_of(step)}


def growth_of(step):
    """Return by how many bytes the process grows during some steps."""
    gc.collect()
    after = status("VmRSS")
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    for _ in range(4):
        step()
    return status("VmHWM") - after


def bytes_of(variables):
    return sum(np.dtype(v.dtype).itemsize * math.prod(v.shape) for v in variables)


def train(cls, shapes, dtype, arguments):
    before = status("VmRSS")
    variables = [
        keras.Variable(keras.ops.ones(shape, dtype), name=f"v{i}", dtype=dtype)
        for i, shape in enumerate(shapes)
    ]
    optimizer = getattr(keras_tfopt, cls)(**arguments)
    optimizer.build(variables)
    weights, state = bytes_of(variables), bytes_of(optimizer.variables)
    step = stepper(optimizer, variables, [keras.ops.full(s, 0.01, dtype) for s in shapes])
    step()
    step()
    gc.collect()
    after = status("VmRSS")
    return {
        "state": state,
        "kept": after - before - state - 2 * weights,
        "passing": growth_of(step),
    }


def stepper(optimizer, variables, grads):
    """Return a function that makes a step as `fit` does."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(lambda: optimizer.apply(grads, variables), autograph=False)
    if BACKEND == "torch":
        import torch

        def step():
            with torch.no_grad():
                optimizer.apply(grads, variables)

        return step
    import jax

    state = [[v.value for v in variables], [v.value for v in optimizer.variables]]
    for variable in [*variables, *optimizer.variables]:
        variable._value = None  # the step owns what it donates
    apply = jax.jit(lambda x, s, g: optimizer.stateless_apply(s, g, x), donate_argnums=(0, 1))

    def step_jax():
        state[:] = apply(*state, grads)
        jax.block_until_ready(state)

    return step_jax


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
