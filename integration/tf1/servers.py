"""Two workers and a parameter server, processes of their own, train by the methods of contrib.

    python integration/tf1/servers.py OUT [MODULE [SOME]]

It runs on TensorFlow 1.15.5 with `tf.contrib.opt`, and on that of today with the optimizers from
MODULE, `keras_tfopt.legacy`, around those of MODULE and around those of `tf.compat.v1.train`. OUT
gets an archive with what each worker sees after each of its turns, which is the first dimension:
`<inner from>/<method>/<inner>/<worker>/<what>`. With SOME, any word, each case but the last has its
optimizer from one of the two only.

Workers with a turn each wait for each other by files. Those of methods that wait by themselves
run freely.
"""

import importlib
import os
import socket
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np

if sys.argv[1:2] == ["--"]:  # the process that starts the others needs no TensorFlow
    import tensorflow

    tf = tensorflow.compat.v1
    tf.logging.set_verbosity(tf.logging.ERROR)
WORKERS, TURNS, WAIT = 2, 8, 180  # seconds, for busy machines
OPEN = []  # the chief of synchronous replicas would wait for two minutes to close its session

# By method: the optimizer inside, whether variables are resources. On reference variables AGN of
# TensorFlow 1.15 has a race, and on resource variables its model averages are refused.
CASES = [
    ("AGN", "Momentum", True),
    ("AGN", "Adam", True),
    ("ElasticAverage", "Momentum", False),
    ("ElasticAverage", "Adam", True),
    ("ModelAverage", "GradientDescent", False),
    ("DropStale", "Momentum", False),
    ("SyncReplicas", "Momentum", True),
]
# Those that SOME leaves out, by where the optimizer inside is from.
LEFT_OUT = {
    "module": [CASES[0], CASES[3], CASES[4], CASES[5]],
    "tensorflow": [CASES[1], CASES[2]],
}
IN_TURNS = ("AGN", "ElasticAverage", "DropStale")


def inside(train, name):
    if name == "GradientDescent":
        return train.GradientDescentOptimizer(0.1)
    if name == "Momentum":
        return train.MomentumOptimizer(0.05, 0.9)
    return train.AdamOptimizer(0.02)


def wait_for(path):
    end = time.time() + WAIT
    while not os.path.exists(path):
        if time.time() > end:
            raise RuntimeError("waited too long for " + path)
        time.sleep(0.01)


def batch(worker, turn):
    random = np.random.RandomState(10 * turn + worker)
    x = random.randn(6, 3)
    return x, x.dot([[1.0], [-2.0], [0.5]]) + 0.3 * worker


def train_one(case, contrib, train, cluster, target, worker, folder):
    """Trains by one method, in a graph of this worker, and gives what it saw."""
    method, inner, resources = case
    device, chief = f"/job:worker/task:{worker}", worker == 0
    getter = None
    if method in ("AGN", "ElasticAverage", "ModelAverage"):
        getter = getattr(contrib, method + "CustomGetter")(device)
    setter = tf.train.replica_device_setter(
        cluster=cluster, worker_device=device, ps_device="/job:ps/task:0"
    )
    # Variables, queues and accumulators of a case are apart from those of others.
    with tf.Graph().as_default() as graph, graph.container(os.path.basename(folder)):
        with tf.device(setter):
            step = tf.train.get_or_create_global_step()
        with tf.device(setter), tf.variable_scope("", custom_getter=getter, use_resource=resources):
            x, y = tf.placeholder(tf.float32, [6, 3]), tf.placeholder(tf.float32, [6, 1])
            kernel = tf.get_variable("kernel", initializer=np.float32([[0.5], [0.1], [-0.3]]))
            bias = tf.get_variable("bias", initializer=np.float32([0.2]))
            loss = 0.5 * tf.reduce_mean(tf.square(tf.matmul(x, kernel) + bias - y))
        with tf.device(setter), tf.device(device):
            opt = inside(train, inner)
            optimizer, hook = made(method, opt, contrib, getter, chief, worker)
            pairs = optimizer.compute_gradients(loss, [kernel, bias])
            train_op = optimizer.apply_gradients(pairs, global_step=step)
        fetched = {"kernel": kernel, "bias": bias, "step": step}
        if getter is not None:
            centers = getattr(getter, "_global_map", None) or getter._local_2_global
            fetched["center"] = centers[kernel]
        slot = {"Momentum": "momentum", "Adam": "v"}.get(inner)
        if slot is not None:
            fetched["slot"] = opt.get_slot(kernel, slot)
        if not chief:
            wait_for(os.path.join(folder, "ready"))
        hooks = [hook()] if hook else []
        seen, held = {}, None
        session = tf.train.MonitoredTrainingSession(
            target, is_chief=chief, hooks=hooks, log_step_count_steps=None
        )
        OPEN.append(session)
        if chief:
            open(os.path.join(folder, "ready"), "w").close()
        for turn in range(TURNS):
            if method in IN_TURNS and turn + worker > 0:
                wait_for(os.path.join(folder, str(turn * WORKERS + worker - 1)))
            feed = dict(zip((x, y), batch(worker, turn)))
            value = session.run(loss, feed)
            late = turn % 3 if method == "DropStale" and worker == 1 else None
            if late == 0:  # gradients of this turn are applied in the next, when they are old
                tensors = [optimizer._local_step, *(g for g, _ in pairs)]
                held = session.run(tensors, feed)
            else:
                if late == 1:
                    feed.update(zip(tensors, held))
                session.run(train_op, feed)
            for name, result in session.run(fetched).items():
                seen.setdefault(f"{worker}/{name}", []).append(result)
            seen.setdefault(f"{worker}/loss", []).append(value)
            open(os.path.join(folder, str(turn * WORKERS + worker)), "w").close()
    return seen


def made(method, opt, contrib, getter, chief, worker):
    """The optimizer over workers, and what makes its hook."""
    if method == "AGN":
        one = contrib.AGNOptimizer(opt, WORKERS, getter, communication_period=3)
        return one, lambda: one.make_session_run_hook(chief, worker)
    if method == "ElasticAverage":
        one = contrib.ElasticAverageOptimizer(
            opt, WORKERS, getter, communication_period=2, moving_rate=0.2, rho=0.3
        )
        return one, lambda: one.make_session_run_hook(chief, worker)
    if method == "ModelAverage":
        one = contrib.ModelAverageOptimizer(opt, WORKERS, chief, getter, interval_steps=2)
        return one, one.make_session_run_hook
    if method == "DropStale":
        return contrib.DropStaleGradientOptimizer(opt, 1), None
    cls = getattr(contrib, "SyncReplicasOptimizer", tf.train.SyncReplicasOptimizer)
    one = cls(opt, replicas_to_aggregate=WORKERS, total_num_replicas=WORKERS)
    return one, lambda: one.make_session_run_hook(chief, num_tokens=0)


def process(role, index, ports, out, module, some):
    """What a process does."""
    addresses = ["localhost:" + port for port in ports.split(",")]
    cluster = tf.train.ClusterSpec({"ps": addresses[:1], "worker": addresses[1:]})
    server = tf.train.Server(cluster, job_name=role, task_index=index)
    if role == "ps":
        server.join()
    if module:
        contrib = importlib.import_module(module)
        sources = {"module": contrib, "tensorflow": tf.train}
    else:
        from tensorflow.contrib import opt as contrib

        sources = {"tensorflow": tf.train}
    done = {}
    for source, train in sources.items():
        for case in CASES:
            if some and case in LEFT_OUT[source]:
                continue
            folder = os.path.join(os.path.dirname(out), "-".join([source, *case[:2]]))
            os.makedirs(folder, exist_ok=True)
            seen = train_one(case, contrib, train, cluster, server.target, index, folder)
            for key, value in seen.items():
                done["/".join([source, *case[:2], key])] = value
    np.savez(out, **done)
    open(out + ".done", "w").close()
    for other in range(WORKERS):
        wait_for(os.path.join(os.path.dirname(out), f"{other}.npz.done"))
    os._exit(0)


def main(out, module="", some=""):
    sockets = [socket.socket() for _ in range(WORKERS + 1)]
    for one in sockets:
        one.bind(("localhost", 0))
    ports = ",".join(str(one.getsockname()[1]) for one in sockets)
    for one in sockets:
        one.close()
    with tempfile.TemporaryDirectory() as folder:
        outs = [os.path.join(folder, f"{worker}.npz") for worker in range(WORKERS)]
        command = [sys.executable, os.path.abspath(__file__), "--"]
        servers = subprocess.Popen(command + ["ps", "0", ports, folder, module, some])
        workers = [
            subprocess.Popen(command + ["worker", str(index), ports, one, module, some])
            for index, one in enumerate(outs)
        ]
        try:
            end = time.time() + 450
            while any(worker.poll() is None for worker in workers):
                time.sleep(0.1)
                if any(worker.poll() for worker in workers) or time.time() > end:
                    raise SystemExit("a worker has failed")
        finally:
            for one in [servers, *workers]:
                one.kill()
                one.wait()
        found = {}
        for one in outs:
            with np.load(one) as arrays:
                found.update(arrays)
    np.savez(out, **found)


if __name__ == "__main__":
    if sys.argv[1] == "--":
        role, index, *others = sys.argv[2:]
        process(role, int(index), *others)
    else:
        main(*sys.argv[1:])
