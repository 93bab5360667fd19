"""Rows: sums of parts of an otherwise zero array."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wayfare.codegen.routines.rows import Part, Rows, add_at


def rows_of(shape, *parts):
    return Rows(shape, np.dtype("float64"), [Part(*part) for part in parts])


def test_basic_and_advanced_parts_add_up():
    rows = rows_of(
        (4, 2),
        ((1, ...), np.array([1.0, 2.0]), True),
        ((slice(0, 2), ...), np.ones((2, 2)), True),
        ((np.array([3, 3, 1]),), np.array([[1.0, 0], [2, 0], [0, 5]]), False),
    )
    np.testing.assert_array_equal(rows.dense(), [[1, 1], [2, 8], [0, 0], [3, 0]])
    assert rows.size_of_parts == 2 + 4 + 6


def test_adding_into_a_dense_array_keeps_what_is_there():
    dense = np.ones((3, 2))
    rows_of((3, 2), ((np.array([0, 0]),), np.ones((2, 2)), False)).add_into(dense)
    np.testing.assert_array_equal(dense, [[3, 3], [1, 1], [1, 1]])


def test_absorbing_keeps_parts_until_the_whole_array_is_cheaper():
    shape = (100, 10)
    total = rows_of(shape, ((0, ...), np.ones(10), True))
    for _ in range(10):
        total = total.absorb(rows_of(shape, ((2, ...), np.ones(10), True)))
        assert isinstance(total, Rows)
    assert len(total.parts) == 11
    whole = total.absorb(rows_of(shape, ((slice(0, 80), ...), np.ones((80, 10)), True)))
    assert isinstance(whole, np.ndarray)
    np.testing.assert_array_equal(whole[:4, 0], [2, 1, 11, 1])


def test_by_row_names_each_row_once():
    rows = rows_of(
        (5, 2),
        ((np.array([[4, 1], [4, -4]]), ...), np.arange(8.0).reshape(2, 2, 2), False),
        ((0, ...), np.array([9.0, 9.0]), True),
    )
    numbers, values = rows.by_row()
    np.testing.assert_array_equal(numbers, [0, 1, 4])
    np.testing.assert_array_equal(values, [[9, 9], [2 + 6, 3 + 7], [0 + 4, 1 + 5]])


@pytest.mark.parametrize(
    "index",
    [(slice(None), 1, ...), (None, 1, ...), (0, slice(0, 2)), (np.array([0, 1]), np.array([0, 1])), (..., 1)],
)
def test_by_row_is_none_when_a_part_names_less_than_rows(index):
    values = np.zeros((4, 3))[index]
    assert rows_of((4, 3), (index, values, True)).by_row() is None


@given(st.data())
def test_add_at_agrees_with_numpys_own(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    dims = sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    count = data.draw(st.integers(0, 5))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    index = [slice(None)] * (dims[-1] + 1)
    for dim in dims:
        index[dim] = rng.integers(-shape[dim], shape[dim], (2, count) if data.draw(st.booleans()) else (count,))
    index = tuple(index)
    dense = rng.normal(size=shape)
    if data.draw(st.booleans()):
        dense = np.asfortranarray(dense)
    want = dense.copy()
    values = rng.normal(size=want[index].shape)
    np.add.at(want, index, values)
    add_at(dense, index, values)
    np.testing.assert_allclose(dense, want, rtol=1e-12, atol=1e-12)


def test_add_at_refuses_what_is_out_of_range():
    with pytest.raises(IndexError):
        add_at(np.zeros((2, 3)), (np.array([2]),), np.ones((1, 3)))
    with pytest.raises(IndexError):
        add_at(np.zeros((2, 3)), (np.array([-3]),), np.ones((1, 3)))


def test_by_row_knows_a_slice_that_takes_all():
    rows = rows_of((4, 3), ((slice(1, 3), slice(0, 3, 1), ...), np.arange(6.0).reshape(2, 3), True))
    numbers, values = rows.by_row()
    np.testing.assert_array_equal(numbers, [1, 2])
    np.testing.assert_array_equal(values, [[0, 1, 2], [3, 4, 5]])
