"""Rows by index in native code against NumPy's own indexing, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wayfare as wf
from wayfare.codegen.routines import indexed
from wayfare.codegen.routines.rows import Part, Rows, add_at
from wayfare.codegen.runtime import kernel, work_split
from wayfare.core.config import settings as wayfare_settings
from wayfare.core.counters import counted

needs_native = pytest.mark.skipif(not kernel.available(), reason="no llvmlite here")
DTYPES = ["float32", "float64", "int64", "int32", "int16", "int8", "uint8"]


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch):
    """Native code and two threads whatever the size."""
    for name in ("GATHER_FROM", "ADD_FROM", "ROWS_FROM"):
        monkeypatch.setattr(indexed, name, 0)
    monkeypatch.setattr(work_split, "_SPLIT", -1)
    monkeypatch.setattr(wayfare_settings, "num_threads", 2)


def numbers(rng, shape, dtype):
    return (rng.normal(size=shape) * 10).astype(dtype)


@needs_native
@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([*DTYPES, "bool", "float16", "complex128"]))
def test_gather_rows(data, dtype):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    rows, tail = data.draw(st.integers(1, 9)), data.draw(st.lists(st.integers(4, 12), min_size=1, max_size=2))
    x = numbers(rng, (rows, *tail), dtype)
    x.flags.writeable = False
    index = rng.integers(0, rows, data.draw(st.lists(st.integers(0, 6), max_size=3)))
    index = np.asarray(index, np.int64)
    out = indexed.gather_rows(x, index)
    if x.itemsize * np.prod(tail) >= 32:
        assert out is not None and out.dtype == x.dtype
        np.testing.assert_array_equal(out, x[index])
    else:
        assert out is None


@needs_native
@settings(max_examples=80, deadline=None)
@given(st.data(), st.sampled_from(DTYPES))
def test_add_rows_with_repeated_indices(data, dtype):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    shape = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3).filter(lambda s: np.prod(s) < 4000))
    axis = data.draw(st.integers(0, len(shape) - 1))
    count = data.draw(st.integers(0, 20))
    index = rng.integers(0, shape[axis], count)
    out = numbers(rng, shape, dtype)
    values = numbers(rng, (*shape[:axis], count, *shape[axis + 1 :]), dtype)
    wanted = out.copy()
    np.add.at(wanted, (*[slice(None)] * axis, index), values)
    assert indexed.add_rows(out, index, values, axis)
    np.testing.assert_array_equal(out, wanted)


@needs_native
@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(DTYPES))
def test_along(data, dtype):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    shape = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=3).filter(lambda s: np.prod(s) < 4000))
    axis = data.draw(st.integers(0, len(shape) - 1))
    picked = (*shape[:axis], data.draw(st.integers(0, 9)), *shape[axis + 1 :])
    index = rng.integers(0, shape[axis], picked)
    x, values = numbers(rng, shape, dtype), numbers(rng, picked, dtype)
    out = indexed.gather_along(x, index, axis)
    np.testing.assert_array_equal(out, np.take_along_axis(x, index, axis))
    wanted = x.copy()
    mesh = list(np.ix_(*(np.arange(n) for n in picked)))
    mesh[axis] = index
    np.add.at(wanted, tuple(mesh), values)
    assert indexed.add_along(x, index, values, axis)
    np.testing.assert_array_equal(x, wanted)


def outside():
    return [np.array([0, 3]), np.array([-1, 0]), np.array([0, 2**62]), np.array([-(2**63), 1])]


@pytest.mark.parametrize("index", outside())
def test_an_index_out_of_range_never_reaches_memory(index):
    x = np.zeros((3, 16))
    assert indexed.gather_rows(x, index) is None
    assert not indexed.add_rows(x, index, np.ones((2, 16)))
    along = np.repeat(index[:, None], 16, 1)
    assert indexed.gather_along(x, along, 0) is None
    assert not indexed.add_along(x, along, np.ones((2, 16)), 0)
    assert not x.any()


def test_other_layouts_and_dtypes_are_left_to_numpy():
    x, index = np.zeros((16, 3)), np.array([0, 1])
    assert indexed.gather_rows(x.T, index) is None
    assert indexed.gather_rows(x, index.astype(np.int32)) is None
    assert not indexed.add_rows(x.T, index, np.ones((2, 16)))
    assert not indexed.add_rows(x, index, np.ones((2, 3), np.float32))
    assert not indexed.add_rows(x, index, x[:2])
    x.flags.writeable = False
    assert not indexed.add_rows(x, index, np.ones((2, 3)))
    half = np.zeros((4, 3), np.float16)
    assert not indexed.add_rows(half, index, np.ones((2, 3), np.float16))


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(["float32", "float64", "int64", "float16"]))
def test_add_at_is_numpys(data, dtype):
    """All forms of index that gradients have: any dimension, several arrays, negative indices, reversed sources."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    dims = sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    picked = data.draw(st.lists(st.integers(0, 5), max_size=2))
    index = [slice(None)] * (dims[-1] + 1)
    kind = data.draw(st.sampled_from([np.int64, np.int32]))
    for dim in dims:
        index[dim] = np.asarray(rng.integers(-shape[dim], shape[dim], picked), kind)
    dense = numbers(rng, shape, dtype)
    values = numbers(rng, dense[tuple(index)].shape, dtype)
    if values.ndim:
        values = values[::-1]
    # Halves are added up in single precision.
    wanted = dense.astype(np.float32) if dtype == "float16" else dense.copy()
    np.add.at(wanted, tuple(index), values)
    wanted = wanted.astype(dtype)
    add_at(dense, tuple(index), values)
    np.testing.assert_array_equal(dense, wanted)
    with pytest.raises(IndexError):
        add_at(dense, (np.array([shape[0]]),), np.zeros((1, *shape[1:]), dtype))


@needs_native
def test_sparse_gradients_become_dense_natively():
    rng = np.random.default_rng(0)
    index, values = rng.integers(0, 7, 50), rng.normal(size=(50, 20))
    with counted() as counts:
        dense = Rows((7, 20), values.dtype, [Part((index,), values, False)]).dense()
    assert counts.kernels_run == 1
    wanted = np.zeros((7, 20))
    np.add.at(wanted, index, values)
    np.testing.assert_array_equal(dense, wanted)


@needs_native
def test_look_ups_run_natively_and_say_what_is_out_of_range():
    rng = np.random.default_rng(1)
    table = wf.tensor(rng.normal(size=(9, 8)), requires_grad=True)
    index = wf.tensor(rng.integers(0, 9, (70, 2)))
    with counted() as counts:
        out = wf.nn.functional.embedding(index, table)
    assert counts.kernels_run >= 1
    np.testing.assert_array_equal(out.detach().numpy(), table.detach().numpy()[index.numpy()])
    out.sum().backward()
    times = np.bincount(index.numpy().ravel(), minlength=9)[:, None]
    np.testing.assert_allclose(table.grad.numpy(), np.broadcast_to(times, (9, 8)))
    negative = wf.tensor(-rng.integers(1, 10, 80))
    np.testing.assert_array_equal(table.detach()[negative].numpy(), table.detach().numpy()[negative.numpy()])
    with pytest.raises(IndexError, match="out of range"):
        table[wf.full((80,), 9)]
    with pytest.raises(IndexError, match="out of range"):
        wf.index_select(table, 0, wf.full((80,), -1))
