"""Code on pages of the documentation runs: as one program, or block by block."""

import re
import shutil

import keras
import numpy as np
import pytest

import keras_tfopt
from keras_tfopt.distributed.launch import free_ports
from tests.cells import spread
from tests.helpers.paths import ROOT
from tests.helpers.stepping import policy

# Pages whose blocks together are a program.
PROGRAMS = ("README.md", "docs/getting_started.md", "docs/faq.md", "docs/user_guide/schedules.md")
# Pages whose blocks together are a program, if a small model and its data are given.
IN_ORDER = (
    "docs/index.md",
    "docs/user_guide/averages.md",
    "docs/user_guide/mixed_precision.md",
    "docs/user_guide/own_optimizers.md",
    "docs/user_guide/state.md",
)
# Pages that other tests run.
ELSEWHERE = {
    "CONTRIBUTING.md": "test_contributing.py",
    "guides/errors.md": "test_error_page.py",
    "docs/migration/errors.md": "test_error_page.py",
}
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
JAX = pytest.mark.backends("jax", reason="one backend is enough")
CALL = re.compile(r"`(keras_tfopt\.\w+\([^`]*\))`")


def small_model():
    """Return a model with layers named as on the pages, and data for it."""
    layers = keras.layers
    backbone = keras.Sequential([keras.Input((3,)), layers.Dense(4)], name="backbone")
    model = keras.Sequential([backbone, layers.Dense(1, name="head")], name="model")
    model.compile("sgd", "mse")
    return {"model": model, "x": np.ones((4, 3), "f"), "y": np.ones((4, 1), "f")}


def for_groups():
    return {**small_model(), "schedule": 1e-3}


def for_verbs():
    given = small_model()
    step = keras.Variable(0, dtype="int64", trainable=False)
    variable = given["model"].trainable_variables[0]
    return {**given, "loss": keras.losses.MeanSquaredError(), "step": step, "variable": variable}


def small_model_on(backend):
    """Return `small_model` for a block that needs this backend."""

    def make():
        return small_model()

    make.backend = backend
    return make


def ids_on(backend):
    """Return a function that makes ids and targets, for a block that needs this backend."""

    def make():
        rng = np.random.default_rng(0)
        ids = rng.integers(0, 1000, (64, 8)).astype("int32")
        return {"ids": ids, "targets": rng.normal(size=(64, 1)).astype("float32")}

    make.backend = backend
    return make


def with_averages():
    given = small_model()
    optimizer = keras_tfopt.MovingAverage(keras_tfopt.Adam(0.01))
    given["model"].compile(optimizer, "mse")
    given["model"].train_on_batch(given["x"], given["y"])
    return {**given, "optimizer": optimizer}


def in_a_graph():
    import tensorflow.compat.v1 as tf

    variable = tf.get_variable("kernel", [3], initializer=tf.ones_initializer())
    return {"loss": tf.reduce_sum(variable**2), "rate": 0.1}


def with_servers():
    """Start a parameter server in this process; return a cluster and a network."""
    import tensorflow.compat.v1 as tf

    ports = free_ports(2)
    cluster = {job: [f"localhost:{port}"] for job, port in zip(("ps", "worker"), ports)}
    tf.train.Server(cluster, job_name="ps", task_index=0)

    def network():
        kernel = tf.get_variable("kernel", [3], initializer=tf.ones_initializer())
        return tf.reduce_sum(kernel**2)

    return {"cluster": cluster, "index": 0, "network": network}


def with_a_table():
    table = keras.layers.Embedding(100, 16)
    layers = [keras.Input((8,), dtype="int32"), table, keras.layers.GlobalAveragePooling1D()]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(optimizer=keras_tfopt.LazyAdam(1e-3), loss="mse")
    return {"model": model}


def of_keras2():
    shutil.copy(ROOT / "tests/golden/keras2/legacy_Adam.h5", "old.h5")
    layers = [keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)]
    return {"model": keras.Sequential(layers)}


def with_optax():
    import jax
    import optax

    return {"jax": jax, "np": np, "state": optax.adam(0.1).init({"kernel": np.ones(3)})}


with_optax.backend = "jax"


def with_keras_rs():
    pytest.importorskip("keras_rs", reason="keras-rs needs Python 3.11")
    return {}


def with_keras_hub():
    pytest.importorskip("keras_hub", reason="KerasHub needs much else, and is no part of the tools")
    return {"np": np}


# {page: (a function for each block, that makes the variables that the block takes as given)}
GIVEN = {
    "docs/user_guide/embeddings.md": (dict, with_a_table, ids_on("jax"), ids_on("torch")),
    "docs/user_guide/groups.md": (for_groups, for_groups, small_model),
    "docs/user_guide/own_loops.md": (
        small_model_on("jax"),
        with_averages,
        small_model_on("tensorflow"),
        small_model_on("torch"),
        small_model_on("torch"),
        small_model,
    ),
    "docs/user_guide/other_packages.md": (
        dict,
        small_model_on("torch"),
        with_keras_rs,
        with_keras_hub,
    ),
    "docs/user_guide/solvers.md": (small_model, small_model, small_model),
    "docs/user_guide/workers.md": (small_model,),
    "docs/user_guide/sharding.md": (small_model_on("jax"), small_model_on("torch")),
    "docs/migration/tensorflow1.md": (for_verbs, in_a_graph),
    "docs/migration/tensorflow_addons.md": (small_model,),
    "docs/migration/keras2.md": (small_model, of_keras2, with_optax),
    "guides/tf1_workers.md": (with_servers, for_verbs),
}
in_a_graph.backend = with_servers.backend = "tensorflow"


def marks_of(make):
    backend = getattr(make, "backend", None)
    return [pytest.mark.backends(backend, reason=f"a block for {backend}")] if backend else []


BLOCKS = [
    pytest.param(page, number, marks=marks_of(make))
    for page, makers in GIVEN.items()
    for number, make in enumerate(makers)
]


@pytest.mark.spread
@pytest.mark.parametrize(("page", "number"), BLOCKS)
def test_block_of_a_page(page, number, tmp_path, monkeypatch):
    blocks = BLOCK.findall((ROOT / page).read_text("utf-8"))
    assert len(blocks) == len(GIVEN[page])
    monkeypatch.chdir(tmp_path)
    make = GIVEN[page][number]
    if make not in (in_a_graph, with_servers):
        exec(blocks[number], {"keras": keras, "keras_tfopt": keras_tfopt, **make()})
        return
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default():
        exec(blocks[number], make())


PAGES = [pytest.param(page, marks=JAX) for page in PROGRAMS] + [spread(page) for page in IN_ORDER]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_program(page, tmp_path, monkeypatch):
    blocks = BLOCK.findall((ROOT / page).read_text("utf-8"))
    assert blocks
    given = {"__name__": "__main__"}
    if page in IN_ORDER:
        given |= {"keras": keras, "keras_tfopt": keras_tfopt, **small_model()}
    monkeypatch.chdir(tmp_path)
    draws = any(".plot(" in block for block in blocks)
    plt = pytest.importorskip("matplotlib.pyplot") if draws else None
    with policy(keras.config.dtype_policy()):  # which pages may change
        exec("\n".join(blocks), given)
    if draws:
        plt.close("all")


@pytest.mark.spread
def test_every_block_is_run():
    """Tests run every block of Python in the documents for users."""
    pages = {
        path.relative_to(ROOT).as_posix()
        for path in [*ROOT.glob("*.md"), *ROOT.glob("guides/*.md"), *ROOT.glob("docs/**/*.md")]
        if "```python\n" in path.read_text("utf-8")
    }
    # Pages that are made of docstrings and guides: see `test_examples.py` and `test_guides.py`.
    made = {p for p in pages if re.match(r"docs/(api|gallery|guides)/|guides/optimizers.md", p)}
    assert pages - made == {*PROGRAMS, *IN_ORDER, *ELSEWHERE, *GIVEN}


@JAX
def test_recipes_make_optimizers():
    rows = re.findall(r"^\| (`keras_tfopt.*)", (ROOT / "docs/recipes.md").read_text("utf-8"), re.M)
    for row in rows:
        made = eval(CALL.match(row)[1], {"keras_tfopt": keras_tfopt})
        assert isinstance(made, keras.optimizers.Optimizer)
        assert re.search(r"\]\(https://", row), "a source"
    assert len(rows) > 20


@pytest.mark.spread
def test_every_schedule_has_a_picture():
    """The build of the documentation draws them."""
    text = (ROOT / "docs/user_guide/schedules.md").read_text("utf-8")
    pictures = re.findall(r"^```python\n((?:.+\n|\n)*?)```\n\n!\[", text, re.M)
    drawn = " ".join(pictures)
    assert "schedules.plot(" in drawn and len(pictures) == text.count("![")
    abstract = {"plot", "CyclicalLearningRate"}  # of the latter, three kinds are drawn
    assert {name for name in keras_tfopt.schedules.__all__ if f"{name}(" not in drawn} <= abstract
