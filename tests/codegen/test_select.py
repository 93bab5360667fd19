"""Selection by bits: the same as np.where to the last bit, on both sides of the size where the way changes."""

import numpy as np
import pytest

from wayfare.core.select import gate, select

SIZES = [0, 1, 7, 2047, 2048, 5000]
ODD = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -3.5]


def odd_numbers(rng, size, dtype):
    """Every kind of float in no order."""
    return rng.choice(np.array(ODD), size).astype(dtype)


def assert_same_bits(got, want):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("size", SIZES)
def test_select_is_where(size, dtype):
    rng = np.random.default_rng(size)
    mask = rng.random(size) < 0.5
    a, b = odd_numbers(rng, size, dtype), odd_numbers(rng, size, dtype)
    assert_same_bits(select(mask, a, b), np.where(mask, a, b))


@pytest.mark.parametrize("number", [0, 0.0, -0.0, 2.5, np.inf, np.nan])
@pytest.mark.parametrize("size", [5, 4000])
def test_select_of_an_array_and_a_number_keeps_the_dtype_of_the_array(size, number):
    rng = np.random.default_rng(0)
    mask, a = rng.random(size) < 0.5, odd_numbers(rng, size, "float32")
    assert_same_bits(select(mask, a, number), np.where(mask, a, np.float32(number)))
    assert_same_bits(select(mask, number, a), np.where(mask, np.float32(number), a))


def test_select_broadcasts_and_takes_views():
    rng = np.random.default_rng(0)
    mask, a, b = rng.random((60, 1)) < 0.5, rng.normal(size=(50, 60)).T[:, ::-1], rng.normal(size=(1, 50))
    wide = np.broadcast_to(mask, (60, 50))
    for condition in (mask, wide, np.ascontiguousarray(wide)):
        assert_same_bits(select(condition, a, b), np.where(condition, a, b))


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_select_of_what_is_no_float(dtype):
    rng = np.random.default_rng(0)
    mask, a, b = rng.random(4000) < 0.5, rng.integers(0, 2, 4000).astype(dtype), rng.integers(0, 2, 4000).astype(dtype)
    assert_same_bits(select(mask, a, b), np.where(mask, a, b))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
@pytest.mark.parametrize("size", SIZES)
def test_gate_lets_nothing_through_where_it_is_shut(size, dtype):
    rng = np.random.default_rng(size)
    g = odd_numbers(rng, size, dtype) if dtype != "int32" else rng.integers(-9, 9, size).astype(dtype)
    mask = rng.random(size) < 0.5
    want = np.where(mask, g, np.zeros((), dtype))
    assert_same_bits(gate(g, mask), want)
    assert_same_bits(gate(g, mask.astype(dtype)), want)


@pytest.mark.parametrize("size", [3, 4000])
def test_gate_is_open_at_nan(size):
    g, y = np.ones(size, "float32"), np.full(size, np.nan, "float32")
    assert gate(g, y).all()
