"""Promises of every optimizer about row gradients."""

import keras
import numpy as np
import pytest

from tests.cases import every_case
from tests.helpers import stepping
from tests.helpers.compare import assert_close, follow
from tests.helpers.stepping import Rows, Runner, eager_and_compiled, every_mode, row_pair


@pytest.mark.spread
@every_case("case")
def test_class_and_reference_agree_on_row_gradients(case):
    assert case.sparse == case.make_reference().sparse
    assert case.cls.sparse in ("dense", "rows", "move_rows")
    assert case.scope in ("element", "variable", "model")


@every_case("case")
@every_mode
def test_row_update_is_the_dense_update_on_touched_rows(case, mode):
    table = np.random.default_rng(3).normal(size=(9, 4)).astype("float32")
    by_rows, dense = row_pair(case, mode, table)
    before, slots_before = by_rows.values["embeddings"], by_rows.slots

    values = np.random.default_rng(4).normal(size=(3, 4)).astype("float32")
    touched = np.array([6, 0, 3], "int32")
    resting = np.setdiff1d(np.arange(9), touched)
    by_rows.step({"embeddings": Rows(values, touched)})
    g = np.zeros_like(table)
    g[touched] = values
    dense.step({"kernel": g})

    after, slots_after = by_rows.values["embeddings"], by_rows.slots
    moves = after[touched] != before[touched]
    assert np.all(moves) or case.masks_elements and np.any(moves)
    in_rows, moves_in_rows = case.sparse == "rows", case.sparse in ("rows", "move_rows")
    # A rule that moves all rows may still leave these alone, if it has no momentum.
    assert np.array_equal(after[resting], before[resting]) or not moves_in_rows
    if in_rows:
        for name, slot in slots_after["embeddings"].items():
            slot_before = slots_before["embeddings"][name]
            if slot.shape[:1] != table.shape[:1]:
                continue  # not a slot of rows
            if name in case.slots_that_workers_share:
                continue
            stays = name not in case.slots_that_change_in_all_rows
            assert np.array_equal(slot[resting], slot_before[resting]) == stays, name
            assert not np.array_equal(slot[touched], slot_before[touched]), name

    if in_rows and case.scope != "element" or case.masks_elements:
        return  # norms over some rows differ from norms over all; the reference tests these
    rows = touched if moves_in_rows or case.acts_in_touched_rows_only else slice(None)
    # The compiler may fuse the arithmetic of other shapes differently, so the last bits may differ.
    assert_close(after[rows], dense.values["kernel"][rows], 2e-7, "embeddings")
    owner, twin = (None, None) if case.scope == "model" else ("embeddings", "kernel")
    for name, slot in dense.slots[twin].items():
        slot_rows = touched if in_rows or name in case.slots_that_skip_absent_rows else slice(None)
        slot_rows = slot_rows if slot.ndim else ()
        largest = np.max(np.abs(slot[slot_rows])) or 1.0
        assert_close(slots_after[owner][name][slot_rows], slot[slot_rows], 2e-7, name, largest)


@every_case("case")
@eager_and_compiled
def test_no_rows_at_all(case, mode):
    """Without rows no row moves. A rule that sees all rows makes a step of zeros."""
    table = np.random.default_rng(7).normal(size=(4, 3)).astype("float32")
    runner = Runner(case.make(), {"embeddings": table, "bias": np.ones(2)}, mode)
    # All gradients differ: for equal or zero eigenvalues, eigenvectors would not be unique.
    first, last = np.random.default_rng(17).normal(size=(2, 4, 3))
    every = np.arange(4, dtype="int32")
    rows = [Rows(first, every), Rows(np.zeros((0, 3)), every[:0]), Rows(last, every)]
    plan = [{"embeddings": g, "bias": np.ones(2)} for g in rows]
    follow(runner, case.make_reference(), plan, case.tolerance())


@every_case("case")
@eager_and_compiled
def test_a_dense_gradient_touches_the_rows_that_are_not_zero(case, mode):
    """On JAX and PyTorch, training gives a dense gradient for a variable of rows."""
    table = np.random.default_rng(8).normal(size=(6, 3)).astype("float32")
    dense = Runner(case.make(), {"table/embeddings": table}, mode)
    by_rows = Runner(case.make(), {"table/embeddings": table}, mode)
    rng = np.random.default_rng(9)
    for rows in ([1, 4], [0, 4], [5]):
        values = rng.normal(size=(len(rows), 3)).astype("float32")
        values[0, 0] = 0.0  # a zero within a row does not make it an untouched one
        g = np.zeros_like(table)
        g[rows] = values
        dense.step({"table/embeddings": g})
        by_rows.step({"table/embeddings": Rows(values, np.array(rows, "int32"))})
    a, b = dense.values["table/embeddings"], by_rows.values["table/embeddings"]
    assert_close(a, b, 2e-7, "table")
    if case.sparse == "rows":
        assert np.array_equal(a[[2, 3]], table[[2, 3]])


def native_rows(rows, shape):
    """Return a row gradient in the form of the backend."""
    values = keras.ops.convert_to_tensor(rows.values, dtype="float32")
    indices = keras.ops.convert_to_tensor(rows.indices)
    if stepping.BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.IndexedSlices(values, indices, tf.constant(shape, indices.dtype))
    import torch

    return torch.sparse_coo_tensor(indices[None], values, shape)


@every_case("case")
@every_mode
@pytest.mark.backends("tensorflow", "torch", reason="JAX has no row gradients of its own")
def test_native_row_gradients(case, mode):
    """Repeated rows are summed. A row is touched where the sum is not zero."""
    table = np.random.default_rng(10).normal(size=(6, 3)).astype("float32")
    native = Runner(case.make(), {"table/embeddings": table}, mode)
    explicit = Runner(case.make(), {"table/embeddings": table}, mode)
    values = np.random.default_rng(11).integers(-8, 8, size=(6, 3)) / 8 + 1 / 16
    values[3] = -values[1]  # row 2 comes twice and cancels, row 5 comes with zeros
    values[4] = 0.0
    indices = np.array([1, 2, 1, 2, 5, 4], "int32")
    sums = Rows(np.stack([values[0] + values[2], values[5]]), np.array([1, 4], "int32"))
    for _ in range(2):
        g = native_rows(Rows(values, indices), table.shape)
        native.step({"table/embeddings": g})
        explicit.step({"table/embeddings": sums})
    for a, b in zip(native.snapshot(), explicit.snapshot(), strict=True):
        assert_close(a, b, 2e-7, "native and explicit")
    after = native.values["table/embeddings"]
    assert np.all(after[[1, 4]] != table[[1, 4]])
    if case.sparse != "dense":
        assert np.array_equal(after[[0, 2, 3, 5]], table[[0, 2, 3, 5]])
