"""`shard_state` on four devices of a JAX mesh gives the same training as whole state.

tests/workers/sharding_worker.py trains in a process of its own. The tests here check its results.
"""

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.helpers import worker_processes
from tests.helpers.stepping import BACKEND, needs_new_xla, several_only
from tests.helpers.worker_processes import found

on_jax = [
    pytest.mark.backends("jax", reason="shards are laid out over a mesh of JAX"),
    pytest.mark.slow,
    pytest.mark.xdist_group("sharding"),
]
RUNS = {
    "fit": ["accumulation", "model", "several"],
    "loop": ["MovingAverage"],
    "mesh": ["options", "stacked"],
}
TOLERANCE = 2e-6


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return worker_processes.results_of(
        "tests.workers.sharding_worker", tmp_path_factory.mktemp("sharding")
    )


@pytest.mark.parametrize(
    ("way", "run"),
    [
        pytest.param(way, run, marks=several_only if run == "several" else ())
        for way in RUNS
        for run in RUNS[way]
    ],
)
class TestTrained:
    pytestmark = on_jax

    def test_same_as_whole_state(self, way, run, results):
        one = found(results, f"{way}/{run}")
        assert one["moved"] > 1e-3
        assert one["difference"] <= TOLERANCE

    def test_memory_of_a_device(self, way, run, results):
        one = found(results, f"{way}/{run}")
        assert one["part"] <= 0.3
        assert one["weights_in_layout"]


class TestOnAMesh:
    pytestmark = on_jax

    @needs_new_xla
    def test_weights_are_gathered_and_no_state(self, results):
        """The devices gather each weight once. For a table with row gradients, they gather rows."""
        weights = [[16, 8], [16, 16], [64, 16], [16], [16]]
        dense = sorted([*weights, [40, 8]])
        assert sorted(s for n, s in found(results, "exchanged/Adam") if n == "all-gather") == dense
        rows = sorted([*weights, [128, 8]])
        gathered = [s for n, s in found(results, "exchanged/LazyAdam") if n == "all-gather"]
        assert sorted(gathered) == rows

    @pytest.mark.parametrize(("devices", "part"), [("none", 1.0), ("four", 0.3)])
    def test_saved_state_goes_on_elsewhere(self, devices, part, results):
        difference, here, warned = found(results, "saved")[devices]
        assert difference <= TOLERANCE
        assert part - 0.1 < here <= part
        assert bool(warned) == (devices == "none")

    def test_small_state_stays_whole(self, results):
        assert found(results, "table") == [
            ["momentum", "axis 0", 16384, 4096],
            ["momentum", "whole", 256, 256],
        ]

    @pytest.mark.parametrize(
        ("what", "error"),
        [
            ("no distribution", "ValueError: Adam has `shard_state=True`, but there is no keras.d"),
            ("no axis", "the mesh has no axis 'data' for data, only ['batch', 'model']"),
            ("workers", "ValueError: Workers on the devices of a mesh each keep state of their"),
        ],
    )
    def test_refused(self, what, error, results):
        assert error in found(results, "refused")[what]
        assert not found(results, "refused")["built"]


@pytest.mark.backends("torch", "tensorflow", reason="JAX has meshes")
def test_other_backends_refuse():
    optimizer = keras_tfopt.Adam(shard_state=True)
    with pytest.raises(ValueError, match=f"{BACKEND} has no mesh .*ShardedState; on TensorFlow"):
        optimizer.build([keras.Variable(np.zeros(3, "float32"))])
    assert not optimizer.built


@pytest.mark.backends("torch", "tensorflow", reason="JAX has meshes")
def test_other_backends_load_what_jax_has_saved():
    again = keras_tfopt.Adam.from_config(keras_tfopt.Adam(shard_state=True).get_config())
    variable = keras.Variable(np.ones(3, "float32"))
    warned = pytest.warns(UserWarning, match="It was loaded so, and keeps its state whole")
    with warned, keras_tfopt.engine.plain():
        again.apply([keras.ops.ones(3)], [variable])
    assert again.shard_state and variable.numpy()[0] < 1


@pytest.mark.spread
def test_not_a_bool():
    with pytest.raises(TypeError, match="`shard_state` must be a bool. Received: 4"):
        keras_tfopt.Adam(shard_state=4)


@pytest.mark.spread
@pytest.mark.parametrize("between", [lambda inner: inner, keras_tfopt.Lookahead])
def test_optimizers_of_keras_have_none(between):
    """Options of ours are asked for where they belong, also through wrappers."""
    for inner in (keras.optimizers.Adam, keras_tfopt.Adam):
        with pytest.raises(TypeError, match=r"write MovingAverage\(.*Adam\(shard_state=\.\.\.\)\)"):
            keras_tfopt.MovingAverage(between(inner()), shard_state=True)
    with pytest.raises(TypeError, match="Received: shard_state=True, around Adam of keras"):
        keras_tfopt.MovingAverage(between(keras.optimizers.Adam()), shard_state=True)


@pytest.mark.backends("jax", reason="meshes are JAX's")
def test_meshes_of_several_processes_are_refused(monkeypatch):
    import jax

    with keras.distribution.DataParallel(devices=keras.distribution.list_devices()[:1]).scope():
        variable = keras.Variable(np.zeros(3, "float32"))
        monkeypatch.setattr(jax, "process_count", lambda: 2)
        with pytest.raises(ValueError, match="devices of 2 processes, which could not save"):
            keras_tfopt.Adam(shard_state=True).build([variable])


def test_describe_state(capsys):
    """On one device all state is whole. State of wrappers comes first."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense")])
    optimizer = keras_tfopt.MovingAverage(keras_tfopt.Momentum(0.1, master_weights=True))
    table = keras_tfopt.describe_state(optimizer, model)
    rows = [r for r in table.rows if r["variable"] == model.trainable_variables[0].path]
    assert [(r["state"], r["shape"], r["split"], r["bytes"]) for r in rows] == [
        ("average", (3, 2), "whole", 24),
        ("momentum", (3, 2), "whole", 24),
    ]
    assert table.here == table.total == sum(r["bytes"] for r in table.rows)
    assert str(table) in capsys.readouterr().out
    with pytest.raises(TypeError, match="`optimizer` must be an optimizer of keras_tfopt"):
        keras_tfopt.describe_state(keras.optimizers.Adam(), model)
