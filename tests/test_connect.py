"""`connect` reads the environment of a process. The launcher sets it."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys

import keras
import pytest

import keras_tfopt.distributed as distributed
from keras_tfopt.distributed import environment, launch
from tests.helpers import worker_processes
from tests.helpers.stepping import BACKEND

OTHER = "torch" if BACKEND != "torch" else "jax"
TWO = ["127.0.0.1:1", "127.0.0.1:2"]
RANK_0 = environment.of_worker("torch", 0, 2, [1])


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in (*environment.TORCH, *environment.JAX, "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    yield
    distributed.disconnect()


def test_alone_without_a_launcher():
    with distributed.connect() as workers:
        assert (workers.rank, workers.size) == (0, 1)
        assert workers is distributed.current()
    assert isinstance(distributed.current(), distributed.Alone)
    assert distributed.current() is not workers


def test_alone_in_a_cluster_of_one(monkeypatch):
    for name, value in environment.of_worker(BACKEND, 0, 1, [1]).items():
        monkeypatch.setenv(name, value)
    assert isinstance(distributed.connect(), distributed.Alone)


@pytest.mark.spread
def test_the_launcher_sets_what_connect_reads():
    ports = [11, 22, 33]
    of = [environment.of_worker("torch", rank, 3, ports) for rank in range(3)]
    assert [environment.torch_size(one) for one in of] == [3, 3, 3]
    of = [environment.jax_cluster(environment.of_worker("jax", r, 3, ports)) for r in range(3)]
    assert [(one["process_id"], one["num_processes"]) for one in of] == [(0, 3), (1, 3), (2, 3)]
    assert {one["coordinator_address"] for one in of} == {"127.0.0.1:11"}
    names = [f"/job:worker/replica:0/task:{rank}" for rank in range(3)]
    of = [environment.of_worker("tensorflow", rank, 3, ports) for rank in range(3)]
    assert [environment.tensorflow_cluster(one) for one in of] == [(names, r) for r in range(3)]


@pytest.mark.spread
def test_the_chief_is_the_first_worker():
    config = {"cluster": {"worker": TWO, "chief": TWO[:1]}, "task": {"type": "worker", "index": 0}}
    names, rank = environment.tensorflow_cluster({"TF_CONFIG": json.dumps(config)})
    assert rank == 1
    assert [name.split("/")[1] for name in names] == ["job:chief", "job:worker", "job:worker"]


def tf_config(**parts):
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": TWO, "ps": TWO[:1]}, **parts})}


@pytest.mark.spread
@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "Missing: MASTER_ADDR, MASTER_PORT. Received"),
        ({"JAX_PROCESS_ID": "1"}, "Missing: JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES. Received"),
        (tf_config(), "KeyError: 'task'"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG must be JSON"),
        ({**RANK_0, "RANK": "2"}, "RANK must be an integer from 0 and below 2. Received: '2'"),
        ({**RANK_0, "RANK": "x"}, "RANK must be an integer from 0 and below 2. Received: 'x'"),
        ({**RANK_0, "WORLD_SIZE": "0"}, "WORLD_SIZE must be an integer from 1. Received: '0'"),
        *(
            (tf_config(task={"type": kind, "index": index}), "must be one of the workers")
            for kind, index in (("worker", 2), ("evaluator", 0), ("ps", 0))
        ),
    ],
)
def test_environments_that_are_refused(variables, message):
    with pytest.raises(ValueError, match=message):
        environment.torch_size(variables)
        environment.jax_cluster(variables)
        environment.tensorflow_cluster(variables)


def test_environment_of_another_backend(monkeypatch):
    for name, value in environment.of_worker(OTHER, 0, 2, [1, 2]).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match=f"but the backend of Keras is {BACKEND}"):
        distributed.connect()


def test_engine_of_another_backend():
    with pytest.raises(ValueError, match=f"is one of the backend {OTHER}, but the backend of"):
        distributed.connect(engine=OTHER)


def test_engine_without_a_cluster():
    with pytest.raises(RuntimeError, match=f"There is no cluster for engine '{BACKEND}'"):
        distributed.connect(engine=BACKEND)


@pytest.mark.spread
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"engine": "mpi"}, ValueError, "Argument `engine` must be None.*Received: engine='mpi'"),
        ({"timeout": 0}, ValueError, "Argument `timeout` must be a number of seconds.*Received: 0"),
        ({"timeout": "1"}, ValueError, "Argument `timeout` must be a number of seconds"),
        ({"timeout": True}, ValueError, "Argument `timeout` must be a number of seconds"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        distributed.connect(**arguments)


@pytest.mark.backends("tensorflow", reason="replicas of a strategy are TensorFlow's")
def test_mirrored_outside_of_a_strategy():
    with pytest.raises(RuntimeError, match="call connect inside of `with strategy.scope"):
        distributed.connect(engine="mirrored")


@pytest.mark.backends("tensorflow", "jax", reason="PyTorch starts a process group at any time")
def test_a_backend_that_runs_already(monkeypatch):
    keras.ops.convert_to_tensor([1.0]) + 1
    for name, value in environment.of_worker(BACKEND, 0, 2, [1, 2]).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match="right after the imports"):
        distributed.connect(timeout=5)


def test_connected_twice():
    class Two(distributed.Exchange):
        rank, size = 1, 2

    distributed.connect(engine=Two())
    with pytest.raises(RuntimeError, match="connected already, as worker 1 of 2"):
        distributed.connect()
    distributed.disconnect()
    distributed.connect()


AGAIN = """
import os, sys, time, torch
from keras_tfopt import distributed

for seconds in map(int, sys.argv[1:]):
    time.sleep(seconds * (os.environ["RANK"] == "0"))
    with distributed.connect(timeout=20) as workers:
        (total,) = workers.all_reduce_sum([torch.ones(())])
        print(f"sum {total:g}", flush=True)
try:
    workers.all_reduce_sum([torch.ones(())])
except RuntimeError as error:
    print(error, flush=True)
"""


@pytest.mark.slow
@pytest.mark.backends("torch", reason="other backends start a cluster once")
def test_connected_again(tmp_path, monkeypatch, capsys):
    path = tmp_path / "again.py"
    path.write_text(AGAIN)
    for name, value in worker_processes.settings().items():
        monkeypatch.setenv(name, value)
    # Worker 1 connects while nobody else is there.
    assert launch.launch(2, [sys.executable, str(path), "0", "3"], 1) == 0
    out = capsys.readouterr().out
    assert [out.count(f"[{rank}] sum 2") for rank in range(2)] == [2, 2]
    assert out.count("These workers are disconnected") == 2


# ---- The launcher --------------------------------------------------------------------------------

# A program without Keras, which takes long to import
SCRIPT = """
import json, os, sys, time
ranks = [os.environ[name] for name in ("RANK", "JAX_PROCESS_ID") if name in os.environ]
(rank,) = ranks or [json.loads(os.environ["TF_CONFIG"])["task"]["index"]]
print("worker", rank, sys.argv[1:], "process", os.getpid(), flush=True)
print("to stderr", file=sys.stderr, flush=True)
if sys.argv[1] == "fails" and str(rank) == "1":
    os._exit(7)
if sys.argv[1] != "ends":
    time.sleep(300)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def assert_ended(out):
    """Assert that both workers, which have printed the ids of their processes, have ended."""
    processes = re.findall(r"process (\d+)", out)
    assert len(processes) == 2
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(int(process), 0)


@pytest.mark.slow
@pytest.mark.spread
@pytest.mark.parametrize(("what", "status"), [("ends", 0), ("fails", 7)])
def test_launcher(what, status, script, capsys):
    assert launch.launch(2, [sys.executable, script, what, "--an-argument"], 1) == status
    out, errors = capsys.readouterr()
    for rank in range(2):
        assert f"[{rank}] worker {rank} ['{what}', '--an-argument']" in out
        assert f"[{rank}] to stderr" in errors
    assert ("Worker 1 of 2 ended with status 7." in errors) == (status == 7)
    assert_ended(out)


@pytest.mark.slow
@pytest.mark.spread
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_launcher(sent, script):
    process = subprocess.Popen(
        [sys.executable, "-m", launch.__name__, "-n", "2", "--grace", "1", script, "waits"],
        env=worker_processes.settings(),
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = sorted(itertools.islice(process.stdout, 2))
    assert [line[:12] for line in lines] == ["[0] worker 0", "[1] worker 1"]
    os.kill(process.pid, sent)
    process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT
    assert_ended("".join(lines))


@pytest.mark.spread
def test_launcher_refuses(capsys):
    for arguments, message in (
        (["-n", "0", __file__], "argument -n must be an integer >= 1. Received: 0"),
        (["no such script.py"], "there is no file no such script.py"),
    ):
        with pytest.raises(SystemExit):
            launch.main(arguments)
        assert message in capsys.readouterr().err
