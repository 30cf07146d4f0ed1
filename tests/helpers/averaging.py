"""Optimizers over workers in NumPy, from their papers, with all workers in one loop.

A worker has a linear model with squared error and plain momentum, or a table whose rows it looks up
and averages, without momentum. Workers exchange no values. If a method sends something, this code
reads it from the other worker.
"""

import numpy as np

RATE, MOMENTUM = 0.05, 0.9
WORKERS, STEPS, BATCH, INPUTS = 2, 8, 16, 3
PERIOD = 3  # not a divisor of the number of steps
START = 0.1
ROWS = 50  # of which a batch has some


def batches(rank):
    """Return the inputs and targets of each step of worker `rank`."""
    rng = np.random.default_rng(100 + rank)
    x = rng.normal(size=(STEPS, BATCH, INPUTS)).astype("float32")
    noise = rng.normal(size=(STEPS, BATCH, 1)).astype("float32")
    return x, x.sum(-1, keepdims=True) + (rank + 1) * noise


def rows_of(x):
    """Return the rows that inputs stand for."""
    return np.floor(np.abs(1000 * x)).astype("int32") % ROWS


class Worker:
    momentum = MOMENTUM

    def __init__(self, rank):
        self.data = batches(rank)
        self.x = np.append(np.full(INPUTS, START), 0.0)  # kernel, bias
        self.m = np.zeros(INPUTS + 1)

    def gradient(self, step):
        inputs, targets = (part[step % STEPS].astype(float) for part in self.data)
        inputs = np.append(inputs, np.ones((BATCH, 1)), axis=1)
        return 2 * inputs.T @ (inputs @ self.x - targets[:, 0]) / BATCH

    def move(self, g):
        self.m = self.momentum * self.m + g
        self.x = self.x - RATE * self.m


class WorkerWithTable(Worker):
    momentum = 0.0

    def __init__(self, rank):
        super().__init__(rank)
        self.x, self.m = np.full(ROWS, START), np.zeros(ROWS)

    def gradient(self, step):
        inputs, targets = (part[step % STEPS] for part in self.data)
        chosen = np.eye(ROWS)[rows_of(inputs)].mean(1)
        return 2 * chosen.T @ (chosen @ self.x - targets[:, 0]) / BATCH


def train(method, stale=(), steps=STEPS, micro_steps=1, alone=0, make=Worker, left_out=()):
    """Return the weights of each worker after some steps, and the center if the method has one.

    Args:
        method: Name of the class.
        stale: Pairs of step and worker. The gradient of that worker is too old in that step.
        steps: Number of gradients of each worker.
        micro_steps: Number of gradients whose mean makes an update.
        alone: Steps that worker 0 makes before the others join. They start from its weights.
        make: The class of a worker.
        left_out: Pairs of step and worker. That worker does not move in that step.
    """
    workers = [make(rank) for rank in range(WORKERS)]
    center, pulled_to = workers[0].x, [worker.x for worker in workers]
    momentum, sums, velocity = 0.0, [0.0] * WORKERS, 0.0
    parts = [[] for _ in workers]
    for step in range(steps):
        grads = [worker.gradient(step) for worker in workers]
        if step < alone:
            grads = [grads[0]] * WORKERS
        number = step + 1
        if method == "AGN":
            sums = [total + g for total, g in zip(sums, grads)]
        if method == "SyncReplicas":
            grads = [grads[(step // micro_steps) % WORKERS]] * WORKERS
        if method == "DropStale":
            fresh = [g for rank, g in enumerate(grads) if (step, rank) not in stale]
            if not fresh:
                continue
            grads = [np.mean(fresh, axis=0)] * WORKERS
        if micro_steps > 1:
            parts = [[*part, g] for part, g in zip(parts, grads)]
            if number % micro_steps:
                continue
            grads, number = [np.mean(part, axis=0) for part in parts], number // micro_steps
            parts = [[] for _ in workers]
        for rank, (worker, g) in enumerate(zip(workers, grads)):
            if (step, rank) in left_out:
                continue
            if method == "ElasticAverage":
                g = g + 0.9 / PERIOD / WORKERS / RATE * (worker.x - pulled_to[rank])
            worker.move(g)
        if number % PERIOD:
            continue
        mean = np.mean([worker.x for worker in workers], axis=0)
        if method == "ModelAverage":
            for worker in workers:
                worker.x = mean
        if method == "DiLoCo":
            momentum = 0.8 * momentum + (center - mean)
            center = center - 0.7 * (center - mean + 0.8 * momentum)
            for worker in workers:
                worker.x = center
        if method == "ElasticAverage":
            pulled_to = [center] * WORKERS
            apart = [0.9 / PERIOD / WORKERS * (worker.x - center) for worker in workers]
            for worker, d in zip(workers, apart):
                worker.x = worker.x - d
            center = center + sum(apart)
        if method == "AGN":
            velocity = make.momentum * velocity + np.mean(sums, axis=0) / PERIOD / micro_steps
            center = center - RATE * velocity
            sums = [0.0] * WORKERS
            for worker in workers:
                worker.x = center
    keeps_center = method in ("AGN", "DiLoCo", "ElasticAverage")
    return [worker.x for worker in workers], center if keeps_center else None


def averages_of_two_steps(method, first):
    """Return averages of the weights of each worker, with a decay of 0.5.

    They begin with the weights after `first` steps.
    """
    found, *others = [train(method, steps=steps)[0] for steps in range(3)][first:]
    for weights in others:
        found = [(a + b) / 2 for a, b in zip(found, weights)]
    return found


def train_in_two_layers():
    """Return the weights of `y = (x w + b) v + c` after steps that average the gradients.

    All weights start at 1, and b and c at 0. Such workers step as one worker does with the mean of
    their gradients.
    """
    data = [batches(rank) for rank in range(WORKERS)]
    x, y = (np.concatenate(parts, axis=1).astype(float) for parts in zip(*data))
    w, b, v, c = np.ones((INPUTS, 1)), np.zeros(1), np.ones((1, 1)), np.zeros(1)
    momenta = [0.0] * 4
    for inputs, targets in zip(x, y):
        hidden = inputs @ w + b
        e = 2 * (hidden @ v + c - targets) / len(targets)
        grads = inputs.T @ (e @ v.T), (e @ v.T).sum(0), hidden.T @ e, e.sum(0)
        momenta = [MOMENTUM * m + g for m, g in zip(momenta, grads)]
        w, b, v, c = (p - RATE * m for p, m in zip((w, b, v, c), momenta))
    return np.concatenate([w.ravel(), b, v.ravel(), c])
