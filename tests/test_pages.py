"""Code on pages of the documentation runs: each page from its first block to its last."""

import re

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.programs import ROOT, run

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
JAX = pytest.mark.skipif(keras.backend.backend() != "jax", reason="one backend is enough")
CALL = re.compile(r"`(keras_tfopt\.\w+\([^`]*\))`")


@JAX
@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    ["README.md", "docs/getting_started.md", "docs/faq.md", "docs/user_guide/schedules.md"],
)
def test_code_of_a_page(page, tmp_path):
    blocks = BLOCK.findall((ROOT / page).read_text("utf-8"))
    done = run("-c", "\n".join(blocks), cwd=tmp_path, JAX_ENABLE_X64="0")
    assert blocks and done.returncode == 0, done.stderr[-3000:]


def small_model():
    """A model with layers named as on the pages, and data for it."""
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
    """Mark what needs this backend."""

    def make():
        return small_model()

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


# What blocks take as given: {page: (a function that makes it for a block, ...)}
GIVEN = {
    "user_guide/embeddings.md": (dict,),
    "user_guide/groups.md": (for_groups, for_groups, small_model),
    "user_guide/own_loops.md": (
        small_model_on("jax"),
        with_averages,
        small_model_on("tensorflow"),
        small_model_on("torch"),
        small_model_on("torch"),
        small_model,
    ),
    "user_guide/solvers.md": (small_model, small_model, small_model),
    "user_guide/workers.md": (small_model,),
    "migration/tensorflow1.md": (for_verbs, in_a_graph),
    "migration/tensorflow_addons.md": (small_model,),
}
in_a_graph.backend = "tensorflow"


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
    blocks = BLOCK.findall((ROOT / "docs" / page).read_text("utf-8"))
    assert len(blocks) == len(GIVEN[page])
    monkeypatch.chdir(tmp_path)
    make = GIVEN[page][number]
    if make is not in_a_graph:
        exec(blocks[number], {"keras": keras, "keras_tfopt": keras_tfopt, **make()})
        return
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default():
        exec(blocks[number], make())


def test_every_block_is_run():
    """Of the user guide and the migration pages."""
    pages = {
        str(path.relative_to(ROOT / "docs"))
        for folder in ("user_guide", "migration")
        for path in (ROOT / "docs" / folder).glob("*.md")
        if BLOCK.search(path.read_text("utf-8"))
    }
    assert pages == {*GIVEN, "user_guide/schedules.md"}


@JAX
def test_recipes_make_optimizers():
    rows = re.findall(r"^\| (`keras_tfopt.*)", (ROOT / "docs/recipes.md").read_text("utf-8"), re.M)
    for row in rows:
        made = eval(CALL.match(row)[1], {"keras_tfopt": keras_tfopt})
        assert isinstance(made, keras.optimizers.Optimizer)
        assert re.search(r"\]\(https://", row), "a source"
    assert len(rows) > 20


def test_every_schedule_has_a_picture():
    """The build draws what a block shows, and fails where a picture is missing."""
    text = (ROOT / "docs/user_guide/schedules.md").read_text("utf-8")
    pictures = re.findall(r"^```python\n((?:.+\n|\n)*?)```\n\n!\[", text, re.M)
    drawn = " ".join(pictures)
    assert "schedules.plot(" in drawn and len(pictures) == text.count("![")
    abstract = {"plot", "CyclicalLearningRate"}  # of the latter, three kinds are drawn
    assert {name for name in keras_tfopt.schedules.__all__ if f"{name}(" not in drawn} <= abstract
