"""Optimizers over workers in graphs with parameter servers, against TensorFlow 1.15.5."""

import json
import socket
import threading
from pathlib import Path

import numpy as np
import pytest

from keras_tfopt import legacy
from tests.cells import EXHAUSTIVE
from tests.helpers.graphs import KINDS, one_kind_of_each, tf, v1
from tests.helpers.paths import GOLDEN, ROOT
from tests.helpers.programs import output_of

pytestmark = pytest.mark.backends("tensorflow", reason="graphs are TensorFlow's")

FOLDER = GOLDEN / "tf1_distributed"
GETTERS = {
    "AGNOptimizer": "custom_getter",
    "ElasticAverageOptimizer": "ea_custom_getter",
    "ModelAverageOptimizer": "ma_custom_getter",
}
CASES = {
    Path(entry["file"]).stem: entry
    for entry in json.loads((FOLDER / "manifest.json").read_text())["cases"]
    if entry["optimizer"] in GETTERS and entry["status"] == "reference"
}


# ---- Processes ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_workers_and_a_parameter_server_train_as_on_tensorflow_1(tmp_path):
    """The recorded program trains by five methods around our optimizers and TensorFlow's."""
    out = tmp_path / "out.npz"
    program = ROOT / "integration" / "tf1" / "servers.py"
    output_of(program, out, "keras_tfopt.legacy", "" if EXHAUSTIVE else "some")
    ours, recorded = np.load(out), np.load(GOLDEN / "tf1_programs" / "servers.npz")
    assert len(recorded) == 78 and len(ours) == (2 * len(recorded) if EXHAUSTIVE else 88)
    assert {name.replace("module", "tensorflow", 1) for name in ours} == set(recorded)
    for name, value in ours.items():
        recorded_name = name.replace("module", "tensorflow", 1)
        if name.endswith("ModelAverage/GradientDescent/1/step"):
            # The other worker also counts, and may be one step ahead, as it was once when recorded.
            alone = recorded[recorded_name.replace("/1/step", "/0/step")]
            assert set(value - alone) <= {0, 1}, f"{name}: {value}"
            continue
        expected = recorded[recorded_name]
        np.testing.assert_allclose(value, expected, 1e-5, 1e-6, err_msg=name)


# ---- Recorded schedules --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster():
    """Start a parameter server and three workers in this process."""
    sockets = [socket.socket() for _ in range(4)]
    for one in sockets:
        one.bind(("localhost", 0))
    addresses = [f"localhost:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    spec = tf.train.ClusterSpec({"ps": addresses[:1], "worker": addresses[1:]})
    servers = [v1.train.Server(spec, "ps", 0)]
    servers += [v1.train.Server(spec, "worker", number) for number in range(3)]
    return spec, servers


class Worker:
    """A worker of a recorded case: its graph and its session."""

    def __init__(self, cluster, case, number, use_resource):
        spec, servers = cluster
        self.entry, self.number = CASES[case], number
        self.recorded = np.load(FOLDER / self.entry["file"])
        self.here, self.kind = f"worker/{number}", self.entry["optimizer"]
        device = f"/job:worker/task:{number}"
        self.getter = getattr(legacy, self.kind.replace("Optimizer", "CustomGetter"))(device)
        setter = v1.train.replica_device_setter(
            cluster=spec, worker_device=device, ps_device="/job:ps/task:0"
        )
        self.graph = tf.Graph()
        with (
            self.graph.as_default(),
            self.graph.container(f"{case}{use_resource}".replace("_", "-")),
        ):
            with v1.device(setter):
                self.step = v1.train.get_or_create_global_step()
                scope = v1.variable_scope("", custom_getter=self.getter, use_resource=use_resource)
                with scope:
                    self.variables = {
                        v["name"]: v1.get_variable(
                            v["name"], initializer=self.recorded[f"init/{v['name']}"]
                        )
                        for v in self.entry["variables"]
                    }
                    loss = self.loss()
                with v1.device(device):
                    self.optimizer = self.make()
                    self.pairs = self.optimizer.compute_gradients(loss)
                    self.train = self.optimizer.apply_gradients(self.pairs, global_step=self.step)
            self.session = v1.Session(servers[1 + number].target)
            initial = [v1.local_variables_initializer()]
            if number == 0:
                initial.append(v1.global_variables_initializer())
            tasks = (number,) if self.kind != "ModelAverageOptimizer" else ()
            self.begin = self.optimizer.get_init_op(*tasks)
            self.session.run(initial)

    def make(self):
        inner = self.entry["inner_optimizer"]
        opt = getattr(legacy, f"{inner['class_name']}Optimizer")(**inner["config"])
        arguments = {**self.entry["kwargs"], GETTERS[self.kind]: self.getter}
        arguments["num_worker"] = self.entry["num_workers"]
        arguments.pop("synchronous", None)
        if self.kind == "ModelAverageOptimizer":
            arguments["is_chief"] = self.number == 0
        return getattr(legacy, self.kind)(opt, **arguments)

    def loss(self):
        """Return a loss that has the recorded gradients."""
        self.fed = {}
        if self.entry["loss"] == "regression":
            x, y = (v1.placeholder("float32", self.array(n)[0].shape) for n in ("x", "y"))
            self.fed = {x: lambda event: self.array("x")[event], y: lambda e: self.array("y")[e]}
            error = x @ self.variables["kernel"] + self.variables["bias"] - y
            return 0.5 * tf.reduce_mean(tf.reduce_sum(error**2, 1))
        terms = []
        for name, variable in self.variables.items():
            key = f"{self.here}/grad/{name}"
            if key in self.recorded:
                g = v1.placeholder("float32", variable.shape)
                self.fed[g] = lambda event, key=key: self.recorded[key][event]
                terms.append(tf.reduce_sum(g * variable))
            else:
                values, indices = v1.placeholder("float32"), v1.placeholder("int64", [None])
                self.fed[values] = lambda e, key=key: self.recorded[f"{key}/{e}/values"]
                self.fed[indices] = lambda e, key=key: self.recorded[f"{key}/{e}/indices"]
                terms.append(tf.reduce_sum(values * tf.gather(variable, indices)))
        return tf.add_n(terms)

    def array(self, name):
        return self.recorded[f"{self.here}/data/{name}"]

    def act(self, event):
        feed = {placeholder: value(event) for placeholder, value in self.fed.items()}
        self.session.run(self.train, feed)

    def state(self):
        """Return the state as {name in the recording: array}."""
        with self.graph.as_default():
            found = {f"{self.here}/extra/local_step": self.optimizer._local_step}
            found["center/extra/global_step"] = self.step
            maps = {
                "_grad_map": f"{self.here}/grad_sum",
                "_local_map": f"{self.here}/local_center",
                "_global_map": "center/var",
                "_local_2_global": "center/var",
            }
            for name, variable in self.variables.items():
                found[f"{self.here}/var/{name}"] = variable
                for attribute, place in maps.items():
                    if hasattr(self.getter, attribute):
                        found[f"{place}/{name}"] = getattr(self.getter, attribute)[variable]
                center = found[f"center/var/{name}"]
                for place, owner in ((self.here, variable), ("center", center)):
                    for slot in self.optimizer.get_slot_names():
                        state = self.optimizer.get_slot(owner, slot)
                        if state is not None:
                            found[f"{place}/slot/{name}/{slot}"] = state
        return self.session.run(found)


# Exhaustive runs take all cases.
USUAL = """
AGNOptimizer__Adam_w2_p3 AGNOptimizer__Momentum_w2_p2 AGNOptimizer__Momentum_w2_p2_zero_grad
ElasticAverageOptimizer__Adam_w2_p3_rho ElasticAverageOptimizer__Momentum_w2_p2_zero_grad
ElasticAverageOptimizer__GradientDescent_w2_p2_regression
ModelAverageOptimizer__Adam_w2_i3 ModelAverageOptimizer__Momentum_w2_i1
ModelAverageOptimizer__Momentum_w2_i2
""".split()


@one_kind_of_each(dict.fromkeys(CASES, KINDS), rare=CASES.keys() - USUAL)
def test_recorded_schedules(cluster, name, kind):
    """Workers step in the recorded order. All state equals the recording after every event."""
    entry, use_resource = CASES[name], kind == "resource"
    workers = [Worker(cluster, name, n, use_resource) for n in range(entry["num_workers"])]
    for worker in workers:
        worker.session.run(worker.begin)
    recorded, compared = workers[0].recorded, set()
    for event, (number, _) in enumerate(recorded["schedule"]):
        if number >= 0:
            workers[number].act(event)
        else:
            threads = [threading.Thread(target=w.act, args=(event,)) for w in workers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
        for worker in workers:
            for key, value in worker.state().items():
                if key not in recorded:
                    continue
                compared.add(key)
                tolerance = entry["tolerances"]["slot" if "slot" in key else "var"]
                np.testing.assert_allclose(
                    value, recorded[key][event], err_msg=f"{key} {event}", **tolerance
                )
    given = ("/grad/", "/data/", "total_grad/", "_power", "/loss", "schedule", "init/")
    wanted = {name for name in recorded if not any(part in name for part in given)}
    assert wanted <= compared
    for worker in workers:
        worker.session.close()


# ---- Around the schedules ------------------------------------------------------------------------


def elastic(getter, cls=None, opt=None, workers=1, **more):
    opt = legacy.GradientDescentOptimizer(0.5) if opt is None else opt
    cls = legacy.ElasticAverageOptimizer if cls is None else cls
    return cls(opt, workers, getter, communication_period=1, moving_rate=0.25, rho=0.0, **more)


def variable_of(getter, name="x", value=(1.0, 2.0), **more):
    with v1.variable_scope("", custom_getter=getter):
        return v1.get_variable(name, initializer=np.asarray(value, "f"), **more)


def initialize(session):
    session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])


def test_variables_that_a_getter_creates():
    """A getter adds copies of trainable variables, and leaves other variables alone."""
    with tf.Graph().as_default():
        getter = legacy.AGNCustomGetter("/job:worker/task:1")
        x = variable_of(getter)
        frozen = variable_of(getter, "frozen", trainable=False)
        with v1.variable_scope("", reuse=True):
            assert variable_of(getter) is x
        assert [v.op.name for v in v1.global_variables()] == ["global_center_variable/x", "frozen"]
        assert [v.op.name for v in v1.local_variables()] == ["x", "grad_variable/x"]
        assert v1.trainable_variables() == [x] and x.device == "/job:worker/task:1"
        assert getter._global_map[x].device == frozen.device == ""
        assert getter._grad_map[x].device == "/job:worker/task:1"


def test_parts_of_a_variable_have_centers_of_their_own():
    with tf.Graph().as_default(), v1.Session() as session:
        getter = legacy.ElasticAverageCustomGetter("/cpu:0")
        with v1.variable_scope("", partitioner=v1.fixed_size_partitioner(2)):
            with v1.variable_scope("", custom_getter=getter):
                x = v1.get_variable("x", [4], initializer=v1.ones_initializer())
        train = elastic(getter).minimize(tf.reduce_sum(tf.convert_to_tensor(x)))
        initialize(session)
        session.run(train)
        parts = list(x)
        np.testing.assert_allclose(session.run(parts), 0.5 + 0.125 * np.ones((2, 2)))
        centers = [getter._global_map[part] for part in parts]
        np.testing.assert_allclose(session.run(centers), 1 - 0.125 * np.ones((2, 2)))


def test_methods_of_a_subclass_are_called():
    class Doubled(legacy.ElasticAverageOptimizer):
        def compute_gradients(self, *args, **kwargs):
            return [(2 * g, v) for g, v in super().compute_gradients(*args, **kwargs)]

    with tf.Graph().as_default(), v1.Session() as session:
        getter = legacy.ElasticAverageCustomGetter("/cpu:0")
        x = variable_of(getter)
        optimizer = elastic(getter, Doubled)
        assert isinstance(optimizer, Doubled) and isinstance(optimizer, v1.train.Optimizer)
        train = optimizer.minimize(tf.reduce_sum(x))
        initialize(session)
        session.run(train)
        np.testing.assert_allclose(session.run(x), [0.25, 1.25])
        with pytest.raises(RuntimeError, match="eager"):
            _ = optimizer.keras


def test_slots_may_be_created_in_the_scope_of_the_getter():
    """The original raises an error here."""
    with tf.Graph().as_default(), v1.Session() as session:
        getter = legacy.ElasticAverageCustomGetter("/cpu:0")
        with v1.variable_scope("", custom_getter=getter):
            x = v1.get_variable("x", initializer=np.float32([1.0]))
            opt = v1.train.MomentumOptimizer(0.5, 0.9)
            train = elastic(getter, opt=opt).minimize(tf.reduce_sum(x))
        assert opt.get_slot(x, "momentum") in v1.local_variables()
        initialize(session)
        session.run(train)
        assert session.run(opt.get_slot(x, "momentum")) == 1


def test_a_saver_of_the_center(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        getter = legacy.ElasticAverageCustomGetter("/cpu:0")
        optimizer = elastic(getter)
        with pytest.raises(RuntimeError, match="no center"):
            optimizer.swapping_saver()
        x = variable_of(getter)
        train = optimizer.minimize(tf.reduce_sum(x))
        initialize(session)
        session.run(train)
        center = session.run(getter._global_map[x])
        path = optimizer.swapping_saver().save(session, str(tmp_path / "center"))
        np.testing.assert_array_equal(tf.train.load_variable(path, "x"), center)
        assert (center != session.run(x)).all()


def test_a_saver_of_the_center_of_a_partitioned_variable(tmp_path):
    """The file has one tensor of its name, as that of TensorFlow 1.15, with all of the center."""
    with tf.Graph().as_default(), v1.Session() as session:
        getter = legacy.ElasticAverageCustomGetter("/cpu:0")
        optimizer = elastic(getter)
        partitioner = v1.fixed_size_partitioner(2)
        with v1.variable_scope("", custom_getter=getter, partitioner=partitioner):
            x = v1.get_variable("x", (4, 1), initializer=v1.constant_initializer(0.3))
        train = optimizer.minimize(tf.reduce_sum(tf.convert_to_tensor(x)))
        initialize(session)
        session.run(train)
        center = np.concatenate(session.run([getter._global_map[part] for part in x]))
        assert (center != session.run(tf.convert_to_tensor(x))).all()
        for name, var_list in (("x", None), ("other", {"other": x})):
            path = optimizer.swapping_saver(var_list).save(session, str(tmp_path / name))
            assert [found for found, _ in tf.train.list_variables(path)] == [name]
            np.testing.assert_array_equal(tf.train.load_variable(path, name), center)


def test_workers_that_start_together(cluster):
    """With `synchronous`, the first worker waits until the second has started."""
    spec, servers = cluster
    done, threads = [], []
    for number in range(2):
        with tf.Graph().as_default() as graph, graph.container("together"):
            device = f"/job:worker/task:{number}"
            getter = legacy.ElasticAverageCustomGetter(device)
            with v1.device(v1.train.replica_device_setter(cluster=spec, worker_device=device)):
                variable_of(getter)
                optimizer = elastic(getter, workers=2, synchronous=True)
                initial = v1.global_variables_initializer(), v1.local_variables_initializer()
                begin = optimizer.get_init_op(number)
            session = v1.Session(servers[1 + number].target)
            session.run(initial)

        def wait(session=session, begin=begin, number=number):
            session.run(begin)
            done.append(number)

        threads.append(threading.Thread(target=wait))
    threads[0].start()
    threads[0].join(0.5)
    assert not done
    threads[1].start()
    for thread in threads:
        thread.join(20)
    assert sorted(done) == [0, 1]


def test_what_is_refused():
    with tf.Graph().as_default():
        getter = legacy.ElasticAverageCustomGetter("/cpu:0")
        with pytest.raises(TypeError, match="`ea_custom_getter`.*graphs"):
            elastic(None)
        plain = v1.get_variable("plain", initializer=[1.0])
        with pytest.raises(ValueError, match=r"`get_variable`.*plain"):
            elastic(getter).minimize(tf.reduce_sum(plain))
    with tf.Graph().as_default():
        x, adam = variable_of(getter, "y"), v1.train.AdamOptimizer(0.1)
        with pytest.raises(ValueError, match="`rho`.*AdamOptimizer is not known"):
            legacy.ElasticAverageOptimizer(adam, 1, getter)
    with tf.Graph().as_default():
        getter = legacy.ModelAverageCustomGetter("/cpu:0")
        optimizer = legacy.ModelAverageOptimizer(
            legacy.GradientDescentOptimizer(0.1), 1, True, getter
        )
        with pytest.raises(ValueError, match="no variables"):
            optimizer.get_init_op()
        x = variable_of(getter)
        with pytest.raises(ValueError, match="`global_step` of ModelAverage"):
            optimizer.minimize(tf.reduce_sum(x))
