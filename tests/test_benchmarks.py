"""The benchmarks run, and both sides of a ratio do the same work."""

import contextlib
import pathlib

import keras
import numpy as np
import pytest

import keras_tfopt
from integration.benchmarks import (
    compare,
    contenders,
    costs,
    dense,
    embedding,
    exchange,
    modern,
    options,
    results,
    solvers,
    state,
    tables,
    training,
    verbs,
)
from integration.benchmarks.shapes import WORK
from tests.helpers.stepping import BACKEND, to_numpy, version_of

SMALL = [(8, 8), (8,)]
needs_new_torch = pytest.mark.skipif(
    BACKEND == "torch" and version_of("torch") < (2, 13),
    reason="the peer needs functions that older versions of PyTorch lack",
)
# Of one rule on each backend, since peers differ.
ROWS = [
    rule if rule == "Momentum" else pytest.param(rule, marks=pytest.mark.spread("torch"))
    for rule in contenders.RULES
]


@pytest.fixture(autouse=True)
def plainly():
    """Compile no rules on PyTorch, which takes longer than the steps. Times mean nothing here."""
    with keras_tfopt.engine.plain():
        yield


@pytest.mark.parametrize("rule", ROWS)
def test_a_row_of_the_table(rule):
    """A measurement has all numbers of its row in the table."""
    result = dense.measure(rule, "small", SMALL, budget=0.1, bandwidth=1e10)
    assert result["parameters"] == 72 and result["rounds"] >= 9
    assert all(time > 0 for time in result["milliseconds"].values())
    others = ["peer", "stock"] if contenders.RULES[rule][2] else ["peer"]
    for spread in [result[f"ratio_to_{other}"] for other in others]:
        assert spread["min"] <= spread["median"] <= spread["max"]
    row = dense.table([result]).splitlines()[-1]
    assert row.startswith(f"| {rule} | small |") and row.count("|  |") == 2 - len(others)


@pytest.mark.spread("torch")
def test_costs_that_medians_hide():
    """First steps, growth over time and many variables are measured and shown."""
    assert 0.1 < costs.growth(steps=40, part=20) < 10
    assert costs.first_step("Adam") > 0
    found = costs.many_variables(5, steps=2)
    assert [row["variables"] for row in found] == [5, 5] and found[0]["milliseconds"] > 0
    assert "| 5 | keras_tfopt.Adam |" in costs.table(found)


@pytest.mark.parametrize("rule", ["Adam", "Momentum"])
def test_our_step_and_the_peers_move_variables_alike(rule):
    """Otherwise the ratio of their times would say nothing."""
    ours, _, stock = contenders.RULES[rule]
    steps = [contenders.of_keras(make, SMALL) for make in (ours, stock)]
    steps.append(contenders.peer(rule, SMALL)[1])
    for _ in range(3):
        ends = [[to_numpy(variable) for variable in step()] for step in steps]
    for a, b, by_peer, start in zip(*ends, contenders.start(SMALL), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        # PyTorch and Optax correct the bias of Adam before they add epsilon.
        np.testing.assert_allclose(a, by_peer, rtol=1e-5, atol=5e-6)
        assert np.abs(a - start).max() > 1e-3


@pytest.mark.spread
def test_shapes_are_those_of_the_models_they_are_named_after():
    count = {name: sum(int(np.prod(s)) for s in make()) for name, make in WORK.items()}
    # The number of trainable parameters of `keras.applications.ResNet50`.
    assert count["convolutional net"] == 25_583_592
    assert count["one of 20M"] == 20_000_000
    assert count["200 of 64x64"] == 200 * 64 * 64


def test_both_loops_of_the_training_benchmark_learn_the_same(monkeypatch):
    """`fit` with our optimizer ends where the loop ends. `NoStep` moves nothing."""
    monkeypatch.setattr(training, "STEPS", 6)
    ends = []
    for side in ("ours", "loop", "none"):
        keras.utils.set_random_seed(0)
        model, (x, y), batch = training.deep(3)
        made = model, (x[: 6 * batch], y[: 6 * batch]), batch
        start = model.get_weights()
        if side == "loop":
            run = training.Loop(made)
        else:
            optimizer = contenders.RULES["Adam"][0]() if side == "ours" else training.NoStep(1e-3)
            run = training.Fit(made, optimizer)
        assert len(run.turn()) > 0
        ends.append(run.weights())
        assert side == "none" or np.abs(ends[-1][0] - start[0]).max() > 1e-3
    for ours, loop, none, before in zip(*ends, start):
        # Gradients of dark pixels are nothing but rounding. Adam makes whole steps of them.
        assert np.mean(np.isclose(ours, loop, rtol=1e-3, atol=2e-4)) > 0.98
        np.testing.assert_array_equal(none, before)


@pytest.mark.spread
def test_comparison_tells_noise_from_change(tmp_path, capsys, monkeypatch):
    """Only a ratio that moves out of the range of its runs counts as a change."""
    given = {
        "a": [{"same": 1.0, "slow": 1.0, "fast": 2.0}, {"same": 1.1, "slow": 1.02, "fast": 2.1}],
        "b": [{"same": 1.05, "slow": 1.2, "fast": 1.0}, {"same": 1.12, "slow": 1.3, "fast": 1.1}],
    }
    for side, runs in given.items():
        for number, measured in enumerate(runs):
            results.write(tmp_path / side / str(number) / "x.json", "", [], measured)
    sides = [str(tmp_path / side) for side in given]
    monkeypatch.setattr("sys.argv", ["compare", *sides])
    assert compare.main() == 1
    rows = {line.split("|")[1].strip().split(": ")[-1]: line for line in lines_of(capsys)}
    assert rows["slow"].endswith("| slower |") and rows["fast"].endswith("| faster |")
    assert rows["same"].endswith("|  |")
    monkeypatch.setattr("sys.argv", ["compare", sides[0], sides[0]])
    assert compare.main() == 0
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr("sys.argv", ["compare", sides[0], str(tmp_path / "empty")])
    with pytest.raises(SystemExit):
        compare.main()
    assert "no numbers in common" in capsys.readouterr().err


def lines_of(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if line.count("|") > 3]


@pytest.mark.spread
def test_the_step_in_cpp_computes_what_ours_does():
    if state.adam_in_cpp() is None:  # which compiles it
        pytest.skip("needs a C++ compiler and AVX2")
    (start,), (g,) = contenders.start([(64, 256)]), contenders.gradients([(64, 256)])
    g[3] = 0
    g[:, ::7] *= 1e-4
    x = start.flatten()
    step, slots = state.in_cpp(x, g.flatten())
    variable, optimizer = keras.Variable(start), state.CONTENDERS["int8"]()
    for _ in range(4):
        step()
        optimizer.apply([keras.ops.convert_to_tensor(g)], [variable])
    m, v = optimizer.slot(variable, "m"), optimizer.slot(variable, "v")
    for theirs, ours in zip(slots, (m.codes, m.scales, v.codes, v.scales), strict=True):
        ours = np.ravel(keras.ops.convert_to_numpy(ours)).astype("float64")
        # A number midway between two codes may get either.
        assert np.mean(np.abs(theirs - ours) > 1e-6 * np.abs(ours)) < 2e-3
    moved = np.ravel(keras.ops.convert_to_numpy(variable))
    assert np.mean(np.abs(x - moved) > 1e-6) < 2e-3 and not np.allclose(x, np.ravel(start))


@pytest.mark.spread
@needs_new_torch
def test_muon_and_its_peer_take_turns():
    from integration.benchmarks.shapes import large_transformer

    parameters = sum(int(np.prod(shape)) for shape in large_transformer())
    assert 29e6 < parameters < 31e6
    ((work, times, ours, peer, name),) = modern.muon([(4, 3), (6, 5), (5, 6), (3,)], budget=0.05)
    assert len(times[ours]) == len(times[peer]) >= 9
    assert "uon" in work and "uon" in name


@pytest.mark.spread
def test_rules_of_elements_read_what_the_benchmark_says():
    for name, slots in modern.SLOTS.items():
        optimizer = getattr(keras_tfopt, name)(1e-3)
        variable = keras.Variable(np.zeros((3, 2), "float32"))
        optimizer.build([variable])
        shapes = [optimizer.slot(variable, slot).shape for slot in optimizer.slot_names]
        assert shapes.count(variable.shape) == slots, name


@pytest.mark.spread
@needs_new_torch
def test_a_wrapper_is_compared_with_the_optimizer_inside_alone(monkeypatch):
    name, pair = next(iter(modern.AROUND.items()))
    monkeypatch.setattr(modern, "AROUND", {name: pair})
    ((work, times, ours, peer, inside, moved),) = modern.around({"small": SMALL}, budget=0.05)
    assert work == f"{name}, small" and inside == "Momentum"
    assert len(times[ours]) == len(times[peer]) == len(times["by hand"]) >= 9
    assert moved == "reads 4, writes 4"


@pytest.mark.spread
def test_options_benchmark():
    """Each variable has one of twelve learning rates, or an option has a peer in Keras."""
    shapes = [(4, 4)] * 24
    factors = [s["learning_rate_factor"] for s in options.layers(len(shapes)).values()]
    assert len(set(factors)) == 12 and max(factors) == 1.0
    for option in (options.LEARNING_RATES, "clipnorm", "in Multitask"):
        result = options.measure("Adam", option, shapes, budget=0.1)
        assert result["rounds"] >= 9 and f"| {option} |" in options.table([result])
        assert ("to keras" in result) == (option == "clipnorm")


def test_solvers_benchmark():
    """Both solvers evaluate the loss equally often, so they do the same work."""
    ours, alone = solvers.Ours(5, 20), solvers.Alone(5, 20)
    assert abs(ours.run(4) - alone.run(4)) <= 1
    result = solvers.measure({"ours": solvers.Ours, "scipy": solvers.Alone}, 1, 5, 20, 3)
    assert result["ratio"]["median"] > 0 and "| scipy |" in solvers.table([result])


@pytest.mark.spread("torch")
def test_state_benchmark():
    """Each contender has a row, and state is as small as the dtype of the slots says."""
    work = "small"
    rows = state.measure(work, [(64, 64), (8,)], budget=0.05)
    found = state.memory("int8", [(64, 64), (8,)])
    assert found["bytes_per_parameter"] == pytest.approx(2 * (1 + 4 / 256), abs=0.05)
    assert [row["slots"] for row in rows] == [*state.CONTENDERS, state.ALONE]
    assert all(row["rounds"] >= 9 and row["ratio_to_float32"]["median"] > 0 for row in rows)
    text = state.table([row | found for row in rows])
    assert text.count("| small |") == len(rows) and "| 2.0" in text


@pytest.mark.spread
def test_exchange_benchmark(capsys):
    """This test has one worker, which exchanges nothing."""
    found = exchange.measure(3, (2000,))
    exchange.report("alone", [{**found[0], "numbers": 10**6}])
    assert found[0]["never"] > 0 and found[0]["always"] > 0
    assert "alone: 1M numbers: step" in capsys.readouterr().out


@pytest.mark.spread
def test_verbs_benchmark():
    """`minimize` and the loop it is compared with train alike. The table has both times."""
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
    pytest.importorskip("matplotlib")  # one of the packages for guides
    embedding.plot({"here": found}, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 10_000


@pytest.mark.spread("torch")
def test_all_contenders_of_the_embedding_benchmark_learn():
    """All move the same rows. One that left out rows would do less work."""
    for contender in embedding.CONTENDERS:
        keras.utils.set_random_seed(0)
        training = embedding.Training(contender, (200, 4), 64, "zipf")
        training.turn()
        table = keras.ops.convert_to_numpy(training.model.weights[0])
        ids = np.unique(training.x[: training.steps * training.batch])
        assert np.all(np.any(table[ids] != 0, axis=1))
        assert not np.any(np.delete(table, ids, axis=0))


@pytest.mark.backends("jax", "torch", reason="tables are divided on these")
@pytest.mark.skipif(
    not pathlib.Path("/proc/self/clear_refs").exists(), reason="reads the peak from /proc"
)
def test_a_table_in_parts():
    """On one device, or on one worker."""
    distribution = contextlib.nullcontext()
    if BACKEND == "jax":
        devices = keras.distribution.list_devices()[:1]
        distribution = keras.distribution.DataParallel(devices=devices).scope()
    with distribution:
        found = list(tables.measure(64, 4, (16,), steps=8, optimizer="lazy_adam"))
    assert [one["ids"] for one in found] == [16]
    assert all(one["milliseconds"] >= one["fastest"] > 0 for one in found)
    assert all(one["whole"] == one["here"] >= 3 * 64 * 4 * 4 / 1e9 for one in found)
    assert "| lazy_adam | 64 | 16 |" in tables.text(found)
