"""`diagnose` against what is known of a small model, and that it changes nothing."""

import keras
import numpy as np
import pytest

import keras_tfopt

IDS = np.array([[1, 1, 2, 0], [3, 1, 0, 0]])  # six of eight ids occur before; three are masked
LABELS = np.array([0, 1])


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
    assert table["touched"] == 3  # ids 1, 2, 3; the masked 0 has no gradient
    assert table["repeated"] == IDS.size - 4
    assert table["masked"] == 3
    assert table["state_bytes"] == 2 * 4 * 50 * 3
    assert table["decay"] and not bias["decay"]
    assert "bias" in bias["rules"]
    assert "words/embeddings" in capsys.readouterr().out


def test_nothing_is_changed():
    model = build(keras_tfopt.MovingAverage(keras_tfopt.Momentum(0.1)))
    model.optimizer.build(model.trainable_variables)
    state = [*model.variables, *model.optimizer.variables]
    before = [keras.ops.convert_to_numpy(v).copy() for v in state]
    keras_tfopt.diagnose(model, batch=(IDS, LABELS))
    for old, variable in zip(before, state):
        np.testing.assert_array_equal(old, keras.ops.convert_to_numpy(variable))


def test_lost_updates_are_seen():
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
    assert rows["out/bias"]["rules"] == "is_skipped"
    assert not rows["out/bias"]["decay"] and rows["out/kernel"]["decay"]


def test_says_whether_the_step_is_compiled():
    report = keras_tfopt.diagnose(build(keras_tfopt.Adam(0.1)), batch=(IDS, LABELS))
    assert report.compiled.startswith(("compiled", "whole variables compiled"))
    with keras_tfopt.execution.plain():
        report = keras_tfopt.diagnose(build(keras_tfopt.Adam(0.1)), batch=(IDS, LABELS))
    if keras.backend.backend() != "jax":  # there the step is compiled by the caller
        assert not report.compiled.startswith(("compiled", "whole"))


def test_stock_optimizers_can_be_looked_at():
    report = keras_tfopt.diagnose(build(keras.optimizers.Adam(0.01)), batch=(IDS, LABELS))
    assert by_variable(report)["out/kernel"]["state_bytes"] == 2 * 4 * 6
    complains = any("repeated ids" in warning for warning in report.warnings)
    assert complains == (keras.backend.backend() == "tensorflow")


@pytest.mark.parametrize("batch", [None, IDS, (IDS,)])
def test_bad_batch(batch):
    with pytest.raises(ValueError, match="`batch` must be"):
        keras_tfopt.diagnose(build(keras_tfopt.Adam(0.1)), batch=batch)


def test_model_that_is_not_compiled():
    with pytest.raises(ValueError, match="must be compiled"):
        keras_tfopt.diagnose(keras.Sequential([keras.layers.Dense(1)]), batch=(IDS, LABELS))
