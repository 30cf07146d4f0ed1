"""The benchmarks run, and both sides of a ratio do the same work."""

import keras
import numpy as np
import pytest

from integration.benchmarks import (
    contenders,
    costs,
    dense,
    embedding,
    exchange,
    groups,
    solvers,
    verbs,
)
from integration.benchmarks.shapes import WORK

SMALL = [(8, 8), (8,)]


@pytest.mark.spread
@pytest.mark.parametrize("rule", contenders.RULES)
def test_a_row_of_the_table(rule):
    result = dense.measure(rule, "small", SMALL, budget=0.1, bandwidth=1e10)
    assert result["parameters"] == 72 and result["rounds"] >= 9
    assert result["milliseconds"]["ours"] > 0
    spread = result["ratio_to_peer"]
    assert spread["min"] <= spread["median"] <= spread["max"]
    assert f"| {rule} | small |" in dense.table([result])


@pytest.mark.spread
def test_costs_that_medians_hide():
    assert 0.1 < costs.growth(steps=40, part=20) < 10
    assert costs.first_step("Adam") > 0


def test_our_step_and_the_peers_move_variables_alike():
    """Otherwise the ratio of their times would say nothing."""
    ours, _, stock = contenders.RULES["Adam"]
    trained = []
    for make in (ours, stock):
        variables = [keras.Variable(x) for x in contenders.start(SMALL)]  # torch keeps the arrays
        optimizer = make()
        for _ in range(3):
            given = [keras.ops.convert_to_tensor(g) for g in contenders.gradients(SMALL)]
            optimizer.apply(given, variables)
        trained.append([keras.ops.convert_to_numpy(v) for v in variables])
    for a, b, start in zip(*trained, contenders.start(SMALL)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        assert np.abs(a - start).max() > 1e-3


@pytest.mark.spread
def test_shapes_are_those_of_the_models_they_are_named_after():
    count = {name: sum(int(np.prod(s)) for s in make()) for name, make in WORK.items()}
    resnet = keras.applications.ResNet50(weights=None)
    assert count["convolutional net"] == sum(
        int(np.prod(v.shape)) for v in resnet.trainable_variables
    )
    assert count["one of 20M"] == 20_000_000
    assert count["200 of 64x64"] == 200 * 64 * 64


@pytest.mark.spread
def test_groups_benchmark():
    """Each variable has one of twelve learning rates."""
    shapes = [(4, 4)] * 24
    factors = [s["learning_rate_factor"] for s in groups.layers(len(shapes)).values()]
    assert len(set(factors)) == 12 and max(factors) == 1.0
    result = groups.measure("Adam", shapes, budget=0.1)
    assert result["rounds"] >= 9 and "| Adam |" in groups.table([result])


def test_solvers_benchmark():
    """Both sides make as many evaluations, so they do the same work."""
    ours, alone = solvers.Ours(5, 20), solvers.Alone(5, 20)
    assert abs(ours.run(4) - alone.run(4)) <= 1
    result = solvers.measure({"ours": solvers.Ours, "scipy": solvers.Alone}, 1, 5, 20, 3)
    assert result["ratio"]["median"] > 0 and "| scipy |" in solvers.table([result])


@pytest.mark.spread
def test_exchange_benchmark(capsys):
    """On one worker, which has nobody to exchange with."""
    found = exchange.measure(3, (2000,))
    exchange.report("alone", [{**found[0], "numbers": 10**6}])
    assert found[0]["never"] > 0 and found[0]["always"] > 0
    assert "alone: 1M numbers: step" in capsys.readouterr().out


@pytest.mark.spread
def test_verbs_benchmark():
    """Both sides of it train alike, and its table says how long each took."""
    trained = []
    for make in (verbs.verbs, verbs.by_hand):
        training = verbs.Training(3)
        start = training.model.get_weights()
        step = make(training)
        for _ in range(5):
            step()
        trained.append(training.weights())
    for ours, hand, before in zip(*trained, start, strict=True):
        np.testing.assert_allclose(ours, hand, rtol=1e-5, atol=1e-7)
        assert np.abs(ours - before).max() > 1e-4
    result = verbs.measure(2, budget=0.01)
    spread = result["ratio"]
    assert spread["min"] <= spread["median"] <= spread["max"]
    assert "| 2 dense layers of 64 |" in verbs.table([result])


@pytest.mark.spread
def test_embedding_benchmark(monkeypatch, tmp_path):
    monkeypatch.setattr(embedding, "TABLES", [(50, 4), (100, 4)])
    monkeypatch.setattr(embedding, "IDS", [16, 32])
    monkeypatch.setattr(embedding, "USUAL", (50, 4))
    monkeypatch.setattr(embedding, "FEW", 16)
    found = {
        "tables": embedding.growth_over_tables("auto", 1),
        "ids": embedding.growth_over_ids("auto", 1),
        "stock layer": embedding.stock_layer("auto", 1),
    }
    assert [row["table"] for row in found["tables"]] == [(50, 4), (100, 4)]
    assert all(row["ours"]["median"] > 0 and row["stock"]["median"] > 0 for row in found["tables"])
    assert found["tables"][0]["growth"] == 1
    text = embedding.text({"here": found})
    assert "| 100 x 4 | 16 zipf |" in text and "| 50 x 4 | 32 uniform |" in text
    pytest.importorskip("matplotlib")  # which comes with what the guides need
    embedding.plot({"here": found}, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 10_000


def test_sides_of_the_embedding_benchmark_learn_the_same():
    """Steps of two sides would not be comparable if one of them did less."""
    for side in embedding.SIDES:
        keras.utils.set_random_seed(0)
        training = embedding.Training(side, (200, 4), 64, "zipf")
        training.turn()
        table = keras.ops.convert_to_numpy(training.model.weights[0])
        ids = np.unique(training.x[: training.steps * training.batch])
        assert np.all(np.any(table[ids] != 0, axis=1))
        assert not np.any(np.delete(table, ids, axis=0))
