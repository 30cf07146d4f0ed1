"""`keras_tfopt.layers.Embedding` in `fit` equals a dense computation with Keras's own layer.

The expected weights come from `Dense`, an optimizer in embedding_models.py. It trains the same
model with `keras.layers.Embedding`, batch by batch. It updates all rows, and puts back those that
were not in the batch. Clipping, accumulation, averages and schedules are Keras's own there.
"""

import gc
import importlib

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_tfopt
from keras_tfopt.engine import Like, look_up
from keras_tfopt.engine.backends.select import backend
from keras_tfopt.engine.step import moving
from tests.cases import RULES, of_each_kind
from tests.helpers.embedding_jobs import (
    JOBS,
    SEVERAL,
    USUAL,
    WAYS,
    Job,
    compiled,
    every_job,
    make,
    tables_of,
    train,
    train_densely,
)
from tests.helpers.embedding_models import (
    BATCH,
    EPSILON,
    IDS,
    RATE,
    TARGETS,
    VOCABULARY,
    WIDTH,
    _rng,
    is_table,
    three_lookups,
    tokens,
)
from tests.helpers.programs import output_of
from tests.helpers.stepping import BACKEND, make_variable, to_numpy


@pytest.fixture(autouse=True)
def usual_policy():
    before = keras.config.dtype_policy(), keras.config.floatx()
    yield
    keras.config.set_dtype_policy(before[0])
    keras.config.set_floatx(before[1])


@pytest.fixture
def modes(monkeypatch):
    """Return a set to which steps add how they treat tables: (mode, whether rows are named)."""
    seen = set()
    decide = moving.Mover._update

    def spy(self, *args):
        update = decide(self, *args)
        if is_table(update.variable):
            seen.add((update.kind.mode, update.kind.named))
        return update

    monkeypatch.setattr(moving.Mover, "_update", spy)
    return seen


# ---- Steps ---------------------------------------------------------------------------------------


@pytest.mark.everywhere
@pytest.mark.parametrize(("name", "way"), every_job())
def test_equals_the_dense_computation(name, way, modes, tmp_path):
    job = JOBS[name]
    ours = train(job, way, tmp_path)
    dense = train_densely(job, way)
    start = [to_numpy(v) for v in make(job, layers.Embedding).weights]
    assert any(
        np.abs(to_numpy(v) - s).max() > 100 * job.tolerance for v, s in zip(ours.weights, start)
    )
    for a, b in zip(ours.weights, dense.weights, strict=True):
        scale = np.maximum(1, np.abs(to_numpy(b)))
        assert np.max(np.abs(to_numpy(a) - to_numpy(b)) / scale) <= job.tolerance, a.path
    if job.rows:
        # In eager code, TensorFlow adds up the gradients of several lookups.
        summed = BACKEND == "tensorflow" and way == "eagerly" and job.model in SEVERAL
        assert modes <= {("rows", not summed), ("touched", not summed)}
        resting = VOCABULARY - 2  # in no batch
        for variable in tables_of(ours):
            index = [v.path for v in ours.weights].index(variable.path)
            np.testing.assert_array_equal(to_numpy(variable)[resting], start[index][resting])


@pytest.mark.backends("jax", "torch", reason="TensorFlow updates all rows at once")
def test_many_rows_are_updated_in_pieces(monkeypatch, tmp_path):
    """A piece has three rows here. The last one has fewer."""
    constant = {"jax": "NUMBERS", "torch": "PIECE"}[BACKEND]
    updates = importlib.import_module(f"keras_tfopt.engine.backends.{BACKEND}.updates")
    monkeypatch.setattr(updates, constant, 3 * WIDTH)
    job = Job(three_lookups, list(IDS))
    ours, dense = train(job, USUAL, tmp_path), train_densely(job)
    for a, b in zip(ours.weights, dense.weights, strict=True):
        np.testing.assert_allclose(to_numpy(a), to_numpy(b), rtol=0, atol=job.tolerance)


def why(model, x, y):
    """Return what `diagnose` says of the table: gradient, reason, warnings, touched rows."""
    report = keras_tfopt.diagnose(model, batch=(x, y))
    (row,) = [row for row in report.rows if row["shape"] == (VOCABULARY, WIDTH)]
    return row["gradient"], row["why_dense"], "\n".join(report.warnings), row["touched"]


REASONS = {
    "regularizer": "regularizer",
    "tied": "more than lookups",
    "in_a_loop": "inside of a loop",
    "rematerialized_model": "rematerialized",
}


@pytest.mark.parametrize("name", ["sequential", "rematerialized_layer", *REASONS])
def test_diagnosis(name):
    job = JOBS[name]
    model = make(job, keras_tfopt.layers.Embedding)
    model.compile(keras_tfopt.LazyAdam(RATE), job.loss)
    gradient, reason, warnings, touched = why(model, job.x[:BATCH], job.y[:BATCH])
    if job.rows:
        assert (gradient, reason) == ("rows", None)
        assert touched == np.unique(job.x[:BATCH]).size
    else:
        assert gradient == "dense" and REASONS[name] in reason and reason in warnings


@pytest.mark.parametrize("scaling", [keras.optimizers, keras_tfopt])
def test_diagnosis_of_loss_scaling(scaling):
    model = compiled(LAYER, scaling.LossScaleOptimizer(keras_tfopt.LazyAdam(RATE)))
    gradient, reason, _, touched = why(model, IDS[0][:BATCH], TARGETS[:BATCH])
    assert touched == np.unique(IDS[0][:BATCH]).size
    if scaling is keras.optimizers and BACKEND != "torch":
        assert gradient == "dense" and "keras_tfopt.LossScaleOptimizer keeps rows" in reason
    else:
        assert (gradient, reason) == ("rows", None)


def test_diagnosis_of_keras_layer():
    model = make(Job(), layers.Embedding)
    model.compile(keras_tfopt.LazyAdam(RATE), "mse")
    gradient, reason, _, _ = why(model, IDS[0][:BATCH], TARGETS[:BATCH])
    if BACKEND == "tensorflow":  # Keras's layer has row gradients there
        assert (gradient, reason) == ("rows", None)
    else:
        assert gradient == "dense" and "swap_embeddings" in reason


# ---- Instead of Keras's layer ---------------------------------------------------------------


LAYER = keras_tfopt.layers.Embedding


OPTIMIZERS = {
    "keras SGD": lambda: keras.optimizers.SGD(0.1, momentum=0.5),
    "keras Adam": lambda: keras.optimizers.Adam(RATE),
    "Adam": lambda: keras_tfopt.Adam(RATE),
    "AddSign": lambda: keras_tfopt.AddSign(RATE),
    "GGT": lambda: keras_tfopt.GGT(RATE),
    "around Keras's": lambda: keras_tfopt.MovingAverage(keras.optimizers.Adam(RATE)),
}


class Product(keras.layers.Embedding):
    """A layer that looks up by a matrix product, so that its gradient is dense."""

    def call(self, ids):
        return ops.matmul(ops.one_hot(ids, self.input_dim), ops.convert_to_tensor(self.embeddings))


def assert_same_weights(models):
    for a, b in zip(*(model.weights for model in models), strict=True):
        np.testing.assert_allclose(to_numpy(a), to_numpy(b), rtol=0, atol=2e-6)


@pytest.mark.spread
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_other_optimizers_get_dense_gradients(name):
    models = [compiled(table, OPTIMIZERS[name]()) for table in (LAYER, Product)]
    for model in models:
        model.fit(IDS[0], TARGETS, BATCH, epochs=1, shuffle=False, verbose=0)
    assert_same_weights(models)


def test_an_optimizer_of_keras_after_ours_gets_dense_gradients():
    models = [compiled(table) for table in (LAYER, Product)]
    earlier = []
    for model in models:
        model.fit(IDS[0], TARGETS, BATCH, epochs=1, shuffle=False, verbose=0)
        earlier.append(model.optimizer)
        model.compile(keras.optimizers.Adam(RATE), "mse", **WAYS[USUAL])
        model.fit(IDS[0], TARGETS, BATCH, epochs=1, shuffle=False, verbose=0)
    assert_same_weights(models)
    if BACKEND == "jax":
        from keras_tfopt.engine.backends.jax import lookup

        del model, models, earlier
        gc.collect()
        assert not lookup.NOTES  # on gradients of either optimizer


@pytest.mark.backends("tensorflow", reason="about the tape of TensorFlow")
@pytest.mark.parametrize("name", ["keras Adam", "LazyAdam"])
@pytest.mark.parametrize("compiles", [False, True])
def test_a_training_loop_of_a_user(name, compiles):
    import tensorflow as tf

    def train_in_a_loop(model):
        optimizer = {"LazyAdam": lambda: keras_tfopt.LazyAdam(RATE), **OPTIMIZERS}[name]()
        kinds = []

        def step():
            with tf.GradientTape() as tape:
                loss = ops.mean((model(IDS[0]) - TARGETS) ** 2)
            gradients = tape.gradient(loss, model.trainable_weights)
            assert isinstance(gradients[0], tf.Tensor)
            kinds.append(backend.from_native(gradients[0], (VOCABULARY, WIDTH)))
            optimizer.apply(gradients, model.trainable_weights)

        run = tf.function(step) if compiles else step
        for _ in range(3):
            run()
        return kinds[0]

    models = [make(Job(), table) for table in (LAYER, Product)]
    looked_up, multiplied = [train_in_a_loop(model) for model in models]
    assert looked_up.indices.shape == IDS[0].size and multiplied is None
    assert_same_weights(models)


@pytest.mark.backends("tensorflow", reason="about conditions of TensorFlow's graphs")
@pytest.mark.parametrize("compiles", [False, True])
def test_a_lookup_in_a_condition(compiles):
    import tensorflow as tf

    table = make_variable("table/embeddings", np.ones((VOCABULARY, WIDTH)))
    ids = tf.constant([3, 1, 3])

    def gradient(number):
        with tf.GradientTape() as tape:
            squares = lambda: ops.sum(look_up(table, ids) ** 2)  # noqa: E731
            loss = tf.cond(number > 0, squares, lambda: 0.0)
        return tape.gradient(loss, table.value)

    run = tf.function(gradient, jit_compile=compiles)
    expected = np.zeros((VOCABULARY, WIDTH))
    expected[[3, 1]] = [[4], [2]]
    np.testing.assert_array_equal(run(tf.constant(1.0)), expected)
    np.testing.assert_array_equal(run(tf.constant(-1.0)), 0 * expected)


# Rules of scope "model" get dense gradients: see OPTIMIZERS.
@of_each_kind([case for case in RULES if case.scope != "model"])
def test_rules_get_rows(case, modes):
    optimizer = case.make()
    compiled(keras_tfopt.layers.Embedding, optimizer).train_on_batch(
        IDS[0][:BATCH], TARGETS[:BATCH]
    )
    by_rows = optimizer.takes_rows(Like((VOCABULARY, WIDTH), "float32", "embeddings"))
    sparse = optimizer.sparse if by_rows else "dense"
    assert modes == {(sparse, sparse == "rows")}


def test_weights_of_either_layer_load_into_the_other(tmp_path):
    ours, keras_own = compiled(keras_tfopt.layers.Embedding), compiled(layers.Embedding)
    for source, target in ((ours, keras_own), (keras_own, ours)):
        for v in source.weights:
            v.assign(ops.convert_to_tensor(_rng.normal(size=v.shape), v.dtype))
        source.save_weights(tmp_path / "model.weights.h5")
        target.load_weights(tmp_path / "model.weights.h5")
        for a, b in zip(source.weights, target.weights, strict=True):
            np.testing.assert_array_equal(to_numpy(a), to_numpy(b))


@pytest.mark.slow
@pytest.mark.spread("jax")
def test_a_saved_model_loads_without_this_package(tmp_path):
    model = compiled(keras_tfopt.layers.Embedding, "sgd")
    model.save(tmp_path / "model.keras")
    program = f"""
import keras, numpy
given = {{"keras_tfopt>Embedding": keras.layers.Embedding}}
model = keras.saving.load_model({str(tmp_path / "model.keras")!r}, custom_objects=given)
assert type(model.layers[0]) is keras.layers.Embedding
numpy.save({str(tmp_path / "table.npy")!r}, model.get_weights()[0])
"""
    output_of("-c", program, cwd=tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "table.npy"), model.get_weights()[0])


def test_same_configuration_as_keras_layer():
    arguments = {
        "embeddings_initializer": "ones",
        "embeddings_regularizer": "l2",
        "embeddings_constraint": "max_norm",
        "mask_zero": True,
        "name": "words",
    }
    ours = keras_tfopt.layers.Embedding(5, 3, **arguments)
    assert ours.get_config() == layers.Embedding(5, 3, **arguments).get_config()
    again = keras_tfopt.layers.Embedding.from_config(ours.get_config())
    assert type(again) is keras_tfopt.layers.Embedding and again.mask_zero
    table = np.arange(6.0).reshape(3, 2)
    given = keras_tfopt.layers.Embedding(3, 2, weights=table)
    np.testing.assert_array_equal(to_numpy(given(np.array([2, -3]))), table[[2, 0]])


@pytest.mark.parametrize("of_model", [True, False])
def test_quantizes_as_keras_layer(of_model):
    rng = np.random.default_rng(0)
    table, ids = rng.normal(size=(VOCABULARY, WIDTH)), rng.integers(0, VOCABULARY, (4, 3))

    def quantized(cls):
        model = keras.Sequential([keras.Input((3,), dtype="int32"), cls(VOCABULARY, WIDTH)])
        model.set_weights([table])
        before = to_numpy(model(ids))
        (model if of_model else model.layers[0]).quantize("int8")
        assert [str(v.dtype) for v in model.variables] == ["int8", "float32"]
        assert not model.trainable_variables
        return before, to_numpy(model(ids))

    before, after = quantized(keras_tfopt.layers.Embedding)
    np.testing.assert_array_equal(after, quantized(keras.layers.Embedding)[1])
    assert 0 < np.abs(after - before).max() < np.abs(before).max() / 127


def test_lora_trains_its_factors_only():
    layer = keras_tfopt.layers.Embedding(VOCABULARY, WIDTH, lora_rank=2)
    model = keras.Sequential([tokens(), layer, layers.Flatten(), layers.Dense(1)])
    model.compile(keras_tfopt.LazyAdam(RATE), "mse")
    before = to_numpy(layer._embeddings)
    model.fit(IDS[0], TARGETS, BATCH, verbose=0)
    np.testing.assert_array_equal(before, to_numpy(layer._embeddings))
    assert np.abs(to_numpy(layer.lora_embeddings_b)).max() > 0


@pytest.mark.spread
@pytest.mark.parametrize("model", ["sequential", "nested_and_shared", "add_loss_batchnorm_dropout"])
def test_swapping(model, modes):
    """The training of the model continues with the same weights and state."""
    job = JOBS[model]
    trained = []
    for swap in (False, True):
        found = make(job, layers.Embedding)
        found.compile(keras_tfopt.LazyAdam(RATE, epsilon=EPSILON), "mse")
        found.fit(job.x, job.y, BATCH, shuffle=False, verbose=0)
        before = [to_numpy(v) for v in found.weights]
        if swap:
            modes.clear()
            assert keras_tfopt.layers.swap_embeddings(found) is found
            for old, v in zip(before, found.weights, strict=True):
                np.testing.assert_array_equal(old, to_numpy(v))
        # With Keras's layer, rows whose gradient is not zero are touched: all that are looked up.
        found.fit(job.x, job.y, BATCH, shuffle=False, verbose=0)
        trained.append([to_numpy(v) for v in found.weights])
    assert modes == {("rows", True)}
    for a, b in zip(*trained, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def test_swapping_leaves_subclasses_alone():
    class Own(layers.Embedding):
        pass

    model = keras.Sequential([tokens(), Own(5, 3), layers.Flatten()])
    keras_tfopt.layers.swap_embeddings(model)
    assert type(model.layers[0]) is Own
    with pytest.raises(TypeError, match="`model` must be"):
        keras_tfopt.layers.swap_embeddings([model])
