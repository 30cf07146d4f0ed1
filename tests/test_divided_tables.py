"""A table that devices or workers share trains as the whole table on one device does.

workers/mesh_table_worker.py trains on JAX, workers/worker_table_worker.py on PyTorch, in processes
of their own. The tests here check their results.
"""

import keras
import numpy as np
import pytest

from keras_tfopt.distributed import Exchange
from keras_tfopt.layers import Embedding, swap_embeddings
from tests.cells import exhaustive
from tests.helpers import worker_processes
from tests.helpers.paths import ROOT
from tests.helpers.stepping import needs_new_xla
from tests.helpers.worker_processes import arrays_of, difference, found

on_jax = [
    pytest.mark.backends("jax", reason="tables are divided over a mesh of JAX"),
    pytest.mark.slow,
    pytest.mark.xdist_group("mesh_tables"),
]
on_torch = [
    pytest.mark.backends("torch", reason="tables are divided over workers on PyTorch"),
    pytest.mark.slow,
    pytest.mark.xdist_group("worker_tables"),
]
TOLERANCE = 2e-6
ROUNDED = 4e-3  # bfloat16 has 8 bits, and devices add products in another order
FOUR = ["LazyAdam", "catch_up", "Adagrad", "Ftrl", "clipped", "accumulation", "ema"]
FOUR += ["shard_state", "clipping", "NormalizedSGD"]
SLOTS = {"Adagrad": 1, "catch_up": 3, "accumulation": 4, "ema": 3, "NormalizedSGD": 0}
ELSEWHERE = {"one": 1.0, "two": 0.5, "mesh": 0.5, "bfloat16": 0.25, "twice": 0.25}
ELSEWHERE |= {"eager": 0.25}
MESH_RUNS = {f"four/{run}": 0.25 for run in FOUR}
MESH_RUNS |= {f"{place}/LazyAdam": part for place, part in ELSEWHERE.items()}
RARE = ("four/Adagrad", "four/Ftrl", "two/LazyAdam")  # as in tests/workers/mesh_table_worker.py
every_mesh_run = pytest.mark.parametrize(
    "run", [exhaustive(run) if run in RARE else run for run in MESH_RUNS]
)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    return worker_processes.results_of(
        "tests.workers.mesh_table_worker", tmp_path_factory.mktemp("mesh_tables")
    )


class TestOnAMesh:
    pytestmark = on_jax

    @every_mesh_run
    def test_same_as_a_whole_table(self, run, mesh):
        """Weights, slots, losses and predictions are the same. Rows in no batch do not change."""
        one = found(mesh, run)
        tolerance = ROUNDED if run.startswith("bfloat16") else TOLERANCE
        assert one["moved"] > 0.01
        assert one["difference"] <= tolerance and one["predicted"] <= tolerance
        # The average of two equal numbers is rounded.
        assert one["unseen_moved"] <= (TOLERANCE if run.endswith("/ema") else 0)
        assert one["in_layout"]

    @every_mesh_run
    def test_memory_of_a_device(self, run, mesh):
        one = found(mesh, run)
        assert one["part"] == MESH_RUNS[run]
        assert one["slots"] == SLOTS.get(run.split("/")[1], 2)

    @needs_new_xla
    def test_devices_exchange_ids_and_rows_and_no_table(self, mesh):
        """The batch has 16 samples of 4 ids. A row has 8 numbers.

        Ring algorithms send 3/4 of the gathered arrays, and of four times the rows of a device.
        """
        one = found(mesh, "exchanged")
        of_rows = [row for row in one["exchanged"] if row[0] != "all-reduce"]
        assert of_rows == [
            ["all-gather", "f32", [16, 32]],  # gradients
            ["all-gather", "s32", [16, 4]],  # ids
            ["reduce-scatter", "f32", [16, 8]],  # the rows of one device
        ]
        whole = [shape for shape in one["shapes"] if shape[0] == 40]
        assert not whole and [10, 8] in one["shapes"]

    def test_a_saved_model_continues_on_other_devices(self, mesh):
        places = found(mesh, "saved")
        assert places["weights"] == 0  # difference after loading a file with a whole table
        for name, part in (("none", 1.0), ("four", 0.25)):
            difference, here, warned = places[name]
            assert difference <= TOLERANCE and here == part
            assert bool(warned) == (name == "none")

    def test_a_large_table_starts_as_a_whole_one(self, mesh):
        assert found(mesh, "large") == [0, [2**17, 32]]

    def test_ids_out_of_range_are_nan_in_compiled_code(self, mesh):
        whole, divided = found(mesh, "outside")
        assert whole == divided and [n for n, nan in enumerate(divided) if nan] == [0, 5]

    @pytest.mark.parametrize(
        ("what", "error"),
        [
            ("no distribution", "has shard='rows', but there is no keras.distribution"),
            ("no axis", "the mesh has no axis 'data' for data, only ['batch', 'model']"),
            ("rows", "cannot have equal parts of 41 rows: make it 44 rows"),
            ("many", "a table has 2000000000 rows at most: make it two tables"),
            ("dense", "and Adam needs its dense gradient: use a rule whose row gradients"),
            ("model", "and GGT needs its dense gradient"),
            ("inside", "and Adam needs its dense gradient: use an optimizer of keras_tfopt"),
            ("ids", "the table 'table/embeddings' has 40 rows. Received: id 40"),
            ("apart", "there are 4 workers that train apart"),
        ],
    )
    def test_refused(self, what, error, mesh):
        texts = found(mesh, "refused")
        assert error in texts[what]
        assert not texts["changed"] and not texts["built"]


WORKER_RUNS = ["LazyAdam", "catch_up", "Adagrad", "Ftrl", "clipped", "accumulation", "ema"]
WORKER_RUNS += ["MovingAverage", "Lookahead", "twice", "scaled"]
# Of tests/workers/worker_table_worker.py.
ROWS, WIDTH, DISTINCT = 42, 8, 32


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """Return {(size, rank): {run: arrays}}. The run "facts" has numbers and texts."""
    folder = tmp_path_factory.mktemp("worker_tables")
    return worker_processes.arrays_of_workers(
        "tests.workers.worker_table_worker", folder, fewer=["Adagrad"]
    )


class TestOnWorkers:
    pytestmark = on_torch

    @pytest.mark.parametrize("run", WORKER_RUNS)
    def test_same_as_one_worker(self, run, workers):
        """Both workers have the same weights, state and losses."""
        one = arrays_of(workers, 1, 0, run)
        for rank in range(2):
            assert difference(arrays_of(workers, 2, rank, run), one) <= TOLERANCE

    def test_on_four_workers(self, workers):
        one = arrays_of(workers, 1, 0, "Adagrad")
        for rank in range(4):
            assert difference(arrays_of(workers, 4, rank, "Adagrad"), one) <= TOLERANCE

    @pytest.mark.parametrize(("size", "saved_by"), [(1, 4), (2, 1), (2, 2), (2, 4), (4, 4)])
    def test_a_saved_model_continues_on_other_workers(self, size, saved_by, workers):
        expected = arrays_of(workers, 1, 0, "from_1")
        before = arrays_of(workers, 1, 0, "MovingAverage")
        assert max(np.max(np.abs(before[n] - expected[n])) for n in before) > 0.01
        for rank in range(size):
            assert difference(arrays_of(workers, size, rank, f"from_{saved_by}"), expected) <= (
                TOLERANCE
            )

    def test_memory_of_a_worker(self, workers):
        """Of 42 rows, four workers have 11 at most."""
        whole = workers[1, 0]["facts"]["bytes"]
        for size, most in ((2, 0.5), (4, 11 / 42)):
            parts = [workers[size, rank]["facts"]["bytes"] for rank in range(size)]
            for run in parts[0]:
                name = "MovingAverage" if run.startswith("from") else run
                assert max(part[run] for part in parts) <= most * whole[name] + 1e-9
                assert sum(part[run] for part in parts) == whole[name]

    def test_describe_state_tells_the_whole_table(self, workers):
        """Shape and bytes are of all workers together."""
        (shape, split, size, here), _ = workers[2, 0]["facts"]["described"]
        assert (shape, split, size, here) == ([ROWS, WIDTH], "axis 0", 1344, 672)

    @pytest.mark.parametrize("size", [2, 4])
    def test_bytes_that_are_exchanged(self, size, workers):
        """A worker sends ids once, rows and gradients to others, and each distinct id once."""
        away = DISTINCT * (size - 1) // size
        for rank in range(size):
            assert workers[size, rank]["facts"]["exchanged"] == {
                "counts": 8 * (size - 1),
                "int32": 4 * away,
                "float32": 2 * 4 * WIDTH * away,
            }

    def test_workers_draw_different_rows(self, workers):
        assert workers[2, 0]["facts"]["drawn"] == ROWS

    @pytest.mark.parametrize(
        ("what", "error"),
        [
            ("alone", "write keras_tfopt.distributed.ShardedState(LazyAdam(...))"),
            ("dense", "and Adam needs its dense gradient: use a rule whose row gradients"),
            ("SyncReplicas", "makes variables equal on all workers: use keras_tfopt.distributed"),
            ("rows together", "NormalizedSGD looks at several rows together"),
            ("clipnorm", "has clipnorm=1.0, a norm over rows of other workers, too"),
            ("int8", "LazyAdam has slot_dtype='int8' for it in `groups`: use 'bfloat16' there"),
            ("max_norm", "has max_norm=1.0 for it in `groups`, a norm over rows of other workers"),
            ("wrapper", "VariableClipping is a wrapper that may look at all rows"),
            ("keras", "is one of rows only: use an optimizer of keras_tfopt"),
            ("ids", "the table 'table/embeddings' has 42 rows. Received: id 42"),
            ("few", "2 workers cannot each have a part of 1 rows"),
            ("initializer", "GlorotUniform depends on the size of a table"),
            ("DistributedDataParallel", "use keras_tfopt.distributed.ShardedState instead"),
        ],
    )
    def test_refused(self, what, error, workers):
        text, changed, built = workers[2, 0]["facts"]["refused"][what]
        assert error in text
        assert not changed and not built


@pytest.mark.backends("tensorflow", reason="the others divide tables")
def test_tensorflow_refuses():
    with pytest.raises(ValueError, match="tensorflow divides no tables: set KERAS_BACKEND to jax"):
        Embedding(8, 4, shard="rows").build()


@pytest.mark.backends("tensorflow", "jax", reason="one worker of PyTorch has the whole table")
def test_a_loaded_layer_keeps_its_table_whole():
    config = {**Embedding(8, 4).get_config(), "shard": "rows"}
    layer = Embedding.from_config(config)
    with pytest.warns(UserWarning, match="It was loaded so, and keeps its table whole"):
        layer.build()
    assert layer.embeddings.shape == (8, 4)
    assert layer.get_config()["shard"] == "rows"


@pytest.mark.backends("torch", reason="other backends need several devices")
def test_one_worker_has_the_whole_table():
    layer = Embedding(8, 4, shard="rows")
    layer.build()
    assert layer.embeddings.shape == (8, 4)


@pytest.mark.backends("torch", reason="rows beyond int32 are for workers on PyTorch")
def test_ids_beyond_int32(monkeypatch):
    """Both workers ask for the same ids. The second has the rows from 5 * 10^9 on."""
    import torch

    from keras_tfopt.distributed.exchanges.torch_tables import WorkerRows

    class Second(Exchange):
        rank, size = 1, 2

        def watch(self, exchange):
            exchange()

    def all_to_all(output, values, output_counts=None, counts=None):
        own = values[1:] if counts is None else values[counts[0] :]  # what is for this worker
        output.copy_(torch.cat([own, own]))

    monkeypatch.setattr(torch.distributed, "all_to_all_single", all_to_all)
    shards = WorkerRows(Second(), 10**10)
    places, counts, own = shards.ask(torch.tensor([3, 5 * 10**9, 10**10 - 1]))
    assert shards.here == 5 * 10**9 and counts == [2, 2] and own == [1, 2]
    assert places.tolist() == [0, 5 * 10**9 - 1, 0, 5 * 10**9 - 1]


@pytest.mark.backends("torch", reason="on a mesh of JAX, tables are drawn as a whole")
def test_initial_rows_of_workers_differ():
    from keras_tfopt.distributed.exchanges.torch_tables import WorkerRows

    class One(Exchange):
        def __init__(self, rank):
            self.rank, self.size = rank, 2

    def drawn(seed):
        """Draw rows as each process does, with a generator of its own."""
        made = [keras.initializers.RandomUniform(seed=seed()) for _ in range(2)]
        parts = [WorkerRows(One(n), 8).initializer(made[n])((4, 3)) for n in range(2)]
        return np.concatenate([keras.ops.convert_to_numpy(part) for part in parts])

    for seed in (lambda: 3, lambda: keras.random.SeedGenerator(3)):
        assert len(np.unique(drawn(seed), axis=0)) == 8
    for initializer in (
        keras.initializers.Orthogonal(),
        keras.initializers.Identity(),
        keras.initializers.GlorotUniform(),
    ):
        with pytest.raises(ValueError, match="use RandomUniform"):
            WorkerRows(One(0), 8).initializer(initializer)


@pytest.mark.spread
@pytest.mark.parametrize("shard", ["columns", True, 4])
def test_other_values_of_shard_are_refused(shard):
    with pytest.raises(ValueError, match=f"`shard` must be None or 'rows'. Received: {shard!r}"):
        Embedding(8, 4, shard=shard)


@pytest.mark.spread
@pytest.mark.parametrize(
    ("argument", "value"),
    [("embeddings_regularizer", "l2"), ("embeddings_constraint", "unit_norm"), ("lora_rank", 2)],
)
def test_arguments_that_need_all_rows(argument, value):
    with pytest.raises(ValueError, match=f"argument `{argument}` cannot be used"):
        Embedding(8, 4, shard="rows", **{argument: value})


@pytest.mark.spread
def test_the_configuration_has_no_shard_unless_it_is_given():
    """Keras's layer has no such argument, and must load the configuration."""
    assert "shard" not in Embedding(8, 4).get_config()
    assert keras.layers.Embedding.from_config(Embedding(8, 4).get_config()).input_dim == 8
    model = keras.Sequential([keras.Input((2,), dtype="int32"), keras.layers.Embedding(8, 4)])
    assert "shard" not in swap_embeddings(model).layers[-1].get_config()


@pytest.mark.spread
def test_arithmetic_of_the_documentation():
    """The page has formulas for the bytes of a step, and what they give for 10^10 rows."""
    columns, ids, parts = 64, 65536, 64
    table = 4 * columns * 10**10
    with_adagrad = 2 * table
    to_all = (parts - 1) / parts * (4 * ids + 2 * 4 * ids * columns)
    page = (ROOT / "docs" / "user_guide" / "embeddings.md").read_text()
    for text in (
        f"take {table / 1e12:.2f} TB, and with Adagrad {with_adagrad / 1e12:.2f} TB",
        f"{with_adagrad / parts / 1e9:.0f} GB on each of {parts} workers",
        f"is {to_all / 1e6:.1f} MB and {to_all / parts / 1e6:.2f} MB; at 100 Gbit/s, ",
        f"{to_all * 8 / 1e8:.1f} ms and {to_all / parts * 8 / 1e8:.2f} ms",
        f"which adds {4 * ids * (parts - 1) / parts**2 / 1e6:.3f} MB",
    ):
        assert text in " ".join(page.split())
