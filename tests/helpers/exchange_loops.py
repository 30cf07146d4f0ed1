"""Steps of training loops without `fit`, on each backend, for workers and replicas."""

import numpy as np

import keras_tfopt.distributed as distributed


def tensorflow_step(run, model):
    import tensorflow as tf

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2) / len(run.ranks)  # as under any strategy
        variables = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, variables), variables)

    return on_replicas(run.strategy, step) if run.strategy else tf.function(step)


def on_replicas(strategy, step, compiled=True):
    """Return a function that gives each replica its part of some arrays."""
    import tensorflow as tf

    def everywhere(*parts):
        strategy.run(step, args=parts)

    def split(array):
        parts = np.split(array, strategy.num_replicas_in_sync)
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(parts[context.replica_id_in_sync_group])
        )

    call = tf.function(everywhere) if compiled else everywhere
    return lambda *arrays: call(*map(split, arrays))


def two_tensorflow_devices():
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, logical)
    return ["CPU:0", "CPU:1"]


def jax_step(run, model):
    import jax

    def step(state, data):
        weights, slots = state

        def mean_squares(weights):
            y, _ = model.stateless_call(weights, [], data[0])
            return ((y - data[1]) ** 2).mean()

        value, grads = jax.value_and_grad(mean_squares)(weights)
        weights, slots = model.optimizer.stateless_apply(slots, grads, weights)
        return value, (weights, slots)

    if run.on_mesh:
        step = distributed.current().apart(step)
    compiled = jax.jit(step)

    def one(x, y):
        variables = model.trainable_variables, model.optimizer.variables
        _, new = compiled([[v.value for v in some] for some in variables], (x, y))
        for some, values in zip(variables, new):
            for variable, value in zip(some, values):
                variable.assign(value)

    return one


def torch_step(run, model):
    import torch

    def step(x, y):
        loss = torch.mean((model(torch.tensor(x)) - torch.tensor(y)) ** 2)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            variables = model.trainable_variables
            model.optimizer.apply([v.value.grad for v in variables], variables)

    return step


LOOPS = {"tensorflow": tensorflow_step, "jax": jax_step, "torch": torch_step}
