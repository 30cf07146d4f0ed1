"""`diagnose` reports the known facts of a small model, and changes nothing."""

import math

import keras
import numpy as np
import pytest

import keras_tfopt
from tests.helpers.stepping import BACKEND, plain_unless

IDS = np.array([[1, 1, 2, 0], [3, 1, 0, 0]])  # the id 0 is masked
LABELS = np.array([0, 1])


@pytest.fixture(autouse=True)
def is_plain_on_torch(request):
    """There, compiling takes longer than all else. One test is about compiled steps."""
    is_about_it = request.function is test_says_whether_the_step_is_compiled
    with plain_unless(BACKEND != "torch" or is_about_it):
        yield


def build(optimizer, dtype="float32"):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.Input((4,), dtype="int32"),
            keras.layers.Embedding(50, 3, mask_zero=True, name="words"),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(2, dtype=keras.DTypePolicy(dtype), name="out"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss)
    return model


def by_variable(report):
    return {row["variable"].split("/", 1)[1]: row for row in report.rows}


def test_facts_of_a_lazy_update(capsys):
    optimizer = keras_tfopt.LazyAdam(0.01, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    report = keras_tfopt.diagnose(build(optimizer), batch=(IDS, LABELS))
    rows = by_variable(report)
    table, bias = rows["words/embeddings"], rows["out/bias"]
    assert table["update"] == "rows"
    assert table["gradient"] == ("rows" if keras.backend.backend() == "tensorflow" else "dense")
    assert table["touched"] == 3  # ids 1, 2 and 3
    assert table["repeated"] == IDS.size - 4
    assert table["masked"] == 3
    assert table["state_bytes"] == 2 * 4 * 50 * 3
    assert table["decay"] and not bias["decay"]
    assert "bias" in bias["rules"]
    assert "words/embeddings" in capsys.readouterr().out


def test_state_of_all_variables_together(capsys):
    model = build(keras_tfopt.LBFGS(memory=5))
    report = keras_tfopt.diagnose(model, batch=(IDS, LABELS))
    assert report.shared_bytes >= 2 * 5 * 4 * sum(
        math.prod(v.shape) for v in model.trainable_weights
    )
    assert f"{report.shared_bytes:,} bytes of state" in capsys.readouterr().out


def test_nothing_is_changed():
    model = build(keras_tfopt.MovingAverage(keras_tfopt.Momentum(0.1)))
    model.optimizer.build(model.trainable_variables)
    state = [*model.variables, *model.optimizer.variables]
    before = [keras.ops.convert_to_numpy(v).copy() for v in state]
    keras_tfopt.diagnose(model, batch=(IDS, LABELS))
    for old, variable in zip(before, state):
        np.testing.assert_array_equal(old, keras.ops.convert_to_numpy(variable))


def test_updates_too_small_for_bfloat16_are_reported():
    """The warning advises `master_weights`."""
    reports = [
        keras_tfopt.diagnose(build(keras_tfopt.Momentum(rate), "bfloat16"), batch=(IDS, LABELS))
        for rate in (1e-7, 1e5)
    ]
    assert [by_variable(report)["out/kernel"]["lost"] for report in reports] == [1.0, 0.0]
    says = [any("master_weights" in w for w in report.warnings) for report in reports]
    assert says == [True, False]


def test_skip_list_is_shown():
    report = keras_tfopt.diagnose(
        build(keras_tfopt.LARS(0.1, skip_list=["bias"])), batch=(IDS, LABELS)
    )
    rows = by_variable(report)
    assert rows["out/bias"]["rules"] == "skip_list bias, is_skipped"
    assert not rows["out/bias"]["decay"] and rows["out/kernel"]["decay"]


LazyAdamW = keras_tfopt.extend_with_decoupled_weight_decay(keras_tfopt.LazyAdam)
StockW = keras_tfopt.extend_with_decoupled_weight_decay(keras.optimizers.Adam)


def excluding(optimizer):
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


# Functions from the strength of the decay to an optimizer.
DECAYING = {
    "DecoupledWeightDecay": lambda decay: keras_tfopt.DecoupledWeightDecay(
        keras_tfopt.LazyAdam(0.1), decay, decay_variables="out"
    ),
    "AdamW": lambda decay: keras_tfopt.AdamW(0.1, weight_decay=decay),
    "MomentumW": lambda decay: excluding(keras_tfopt.MomentumW(0.1, weight_decay=decay)),
    "extension": lambda decay: LazyAdamW(
        0.1, weight_decay=decay, decay_variables=keras_tfopt.no_vectors
    ),
    "extension of stock Keras": lambda decay: excluding(StockW(0.1, weight_decay=decay)),
    "of none": lambda decay: keras_tfopt.AdamW(weight_decay=decay, decay_variables=[]),
    "inside": lambda decay: keras_tfopt.MovingAverage(
        keras_tfopt.SkipNonFinite(keras_tfopt.AdamW(0.1, weight_decay=decay, decay_variables="k"))
    ),
    "inside of loss scaling": lambda decay: keras_tfopt.LossScaleOptimizer(
        keras_tfopt.MomentumW(0.1, weight_decay=decay, decay_variables="bias"), 8.0
    ),
    "base option": lambda decay: excluding(keras_tfopt.Adam(0.1, weight_decay=decay)),
    "base option, inside": lambda decay: excluding(
        keras_tfopt.Lookahead(keras_tfopt.Momentum(0.1, weight_decay=decay))
    ),
    "of LARS": lambda decay: excluding(keras_tfopt.LARS(1.0, weight_decay=decay)),
    "of stock Keras": lambda decay: excluding(keras.optimizers.AdamW(0.1, weight_decay=decay)),
    "around another": lambda decay: keras_tfopt.DecoupledWeightDecay(
        keras_tfopt.Momentum(0.1, weight_decay=decay), 0.0
    ),
    "resting": lambda decay: keras_tfopt.Multitask(keras_tfopt.AdamW(0.1, weight_decay=decay)),
}


@pytest.mark.spread("torch")
@pytest.mark.parametrize("name", DECAYING)
def test_the_report_says_which_variables_decay(name):
    """Steps with and without decay differ in exactly these variables."""
    batch = IDS, LABELS, np.zeros(2) if name == "resting" else np.ones(2)
    after = []
    for decay in (0.25, 0.0):
        model = build(DECAYING[name](decay))
        shapes = [w.shape for w in model.get_weights()]
        model.set_weights([np.linspace(1, 2, np.prod(s)).reshape(s) for s in shapes])
        report = keras_tfopt.diagnose(model, batch=batch)
        says = {path: row["decay"] for path, row in by_variable(report).items()}
        if decay:
            decays = says
        assert decay or not any(says.values()), "no variable decays by 0"
        model.train_on_batch(*batch)
        after.append(model.get_weights())
    differs = [not np.array_equal(*pair) for pair in zip(*after)]
    assert list(decays.values()) == differs, decays
    assert any(differs) == (name not in ("of none", "resting"))


def test_rules_of_wrappers_are_shown():
    optimizer = keras_tfopt.AdamW(0.1, weight_decay=0.1, decay_variables=keras_tfopt.no_vectors)
    report = keras_tfopt.diagnose(build(keras_tfopt.MovingAverage(optimizer)), batch=(IDS, LABELS))
    rows = by_variable(report)
    assert rows["out/kernel"]["rules"] == "decay_variables no_vectors"
    assert rows["out/bias"]["rules"] is None


class Tags(keras.layers.Embedding):
    """A subclass of Keras's layer, as other libraries have it."""


@pytest.mark.spread("torch")
@pytest.mark.backends(
    "jax", "torch", reason="on TensorFlow, the gradient of Keras's layer has rows"
)
@pytest.mark.parametrize(
    ("cls", "regularizer", "helps"),
    [
        (keras.layers.Embedding, None, True),
        (Tags, None, False),  # only Keras's own class is swapped
        (keras.layers.Embedding, "l2", False),  # the gradient stays dense
    ],
)
def test_swapping_is_advised_where_it_helps(cls, regularizer, helps):
    """After `swap_embeddings` the advice is gone."""
    table = cls(50, 3, embeddings_regularizer=regularizer)
    model = keras.Sequential(
        [keras.Input((4,), dtype="int32"), table, keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    model.compile(keras_tfopt.LazyAdam(0.1), "mse")
    advice = []
    for _ in range(2):
        report = keras_tfopt.diagnose(model, batch=(IDS, LABELS))
        (row,) = [row for row in report.rows if row["variable"].endswith("embeddings")]
        advice.append("swap_embeddings" in " ".join(report.warnings))
        if advice == [True]:
            assert row["gradient"] == "dense" and row["why_dense"]
            keras_tfopt.layers.swap_embeddings(model)
    assert advice == [helps, False]
    assert (row["gradient"] == "rows") == helps


def test_says_whether_the_step_is_compiled():
    report = keras_tfopt.diagnose(build(keras_tfopt.Adam(0.1)), batch=(IDS, LABELS))
    assert report.compiled.startswith(("compiled", "whole variables compiled"))
    with keras_tfopt.engine.plain():
        report = keras_tfopt.diagnose(build(keras_tfopt.Adam(0.1)), batch=(IDS, LABELS))
    if keras.backend.backend() != "jax":  # on JAX the caller compiles the step
        assert not report.compiled.startswith(("compiled", "whole"))


def test_optimizers_of_keras_are_diagnosed():
    report = keras_tfopt.diagnose(build(keras.optimizers.Adam(0.01)), batch=(IDS, LABELS))
    assert by_variable(report)["out/kernel"]["state_bytes"] == 2 * 4 * 6
    complains = any("repeated ids" in warning for warning in report.warnings)
    assert complains == (keras.backend.backend() == "tensorflow")


@pytest.mark.parametrize("batch", [None, IDS, (IDS,)])
def test_bad_batch(batch):
    with pytest.raises(ValueError, match="`batch` must be"):
        keras_tfopt.diagnose(build(keras_tfopt.Adam(0.1)), batch=batch)


def test_model_without_anything_to_train():
    model = build(keras_tfopt.Adam(0.1))
    model.trainable = False
    model.compile(optimizer=keras_tfopt.Adam(0.1), loss=model.loss)
    report = keras_tfopt.diagnose(model, batch=(IDS, LABELS))
    assert report.rows == [] and report.warnings == ["no variable of the model is trained"]


def test_model_that_is_not_compiled():
    with pytest.raises(ValueError, match="must be compiled"):
        keras_tfopt.diagnose(keras.Sequential([keras.layers.Dense(1)]), batch=(IDS, LABELS))
    with pytest.raises(TypeError, match="`model` must be a keras.Model. Received: 3"):
        keras_tfopt.diagnose(3, batch=(IDS, LABELS))
