"""The largest of listed places in native code: against plain NumPy, with ties, NaN, infinities and empty windows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wayfare.codegen.routines import max_pooling as module
from wayfare.codegen.routines.max_pooling import max_over_windows
from wayfare.codegen.runtime import kernel, work_split
from wayfare.core.config import settings as wayfare_settings

needs_native = pytest.mark.skipif(not kernel.available(), reason="no llvmlite here")


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch):
    """Native code and two threads whatever the size."""
    monkeypatch.setattr(module, "MAX_POOL_FROM", 0)
    monkeypatch.setattr(work_split, "_SPLIT", -1)
    monkeypatch.setattr(wayfare_settings, "num_threads", 2)


def plain(x, table):
    """One window after the other: the first of the largest, of NaNs the last, nothing listed gives -inf at -1."""
    planes = x.reshape(-1, x[0, 0].size)
    shape = (len(planes), table.shape[1])
    values, places = np.full(shape, -np.inf, x.dtype), np.full(shape, -1)
    for row, plane in enumerate(planes):
        for window, listed in enumerate(table.T):
            for place in listed[listed >= 0]:
                best, taken = values[row, window], places[row, window]
                if taken < 0 or plane[place] > best or np.isnan(plane[place]):
                    values[row, window], places[row, window] = plane[place], place
    return values, places


@needs_native
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 3), st.integers(1, 30), st.integers(1, 40),
    st.integers(1, 5), st.sampled_from([np.float32, np.float64]),
)  # fmt: skip
def test_against_a_loop(seed, batch, channels, size, windows, elements, dtype):
    rng = np.random.default_rng(seed)
    x = rng.choice([-np.inf, -1.0, 0.0, 2.5, np.nan, np.inf, 7.0], (batch, channels, size)).astype(dtype)
    table = rng.integers(-1, size, (elements, windows)).astype(np.int32)
    values, places = max_over_windows(x, table, (windows,))
    wanted_values, wanted_places = plain(x, table)
    np.testing.assert_array_equal(values.reshape(wanted_values.shape), wanted_values)
    np.testing.assert_array_equal(places.reshape(wanted_places.shape), wanted_places)
    assert values.dtype == dtype and places.dtype == np.int64


@needs_native
def test_an_input_that_is_not_contiguous():
    x = np.arange(24.0).reshape(2, 3, 4).transpose(2, 1, 0)[:, :, ::-1]
    table = np.array([[0, 1], [1, 0]], np.int32)
    values, places = max_over_windows(x, table, (2,))
    np.testing.assert_array_equal(values, np.repeat(x.max(-1, keepdims=True), 2, -1))
    assert places.tolist() == np.zeros((4, 3, 2)).tolist()


def test_other_dtypes_are_left_to_numpy():
    table = np.zeros((1, 1), np.int32)
    assert max_over_windows(np.zeros((1, 1, 3), np.int64), table, (1,)) is None
    assert max_over_windows(np.zeros((1, 1, 3), np.float16), table, (1,)) is None
