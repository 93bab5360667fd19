"""Rows by their addresses against NumPy's indexing, bit for bit, natively and without native code."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wayfare as wf
from wayfare.codegen.routines import addresses
from wayfare.codegen.runtime import kernel
from wayfare.core.config import settings as wayfare_settings
from wayfare.core.counters import counted

needs_native = pytest.mark.skipif(not kernel.available(), reason="no llvmlite here")
ROOT = Path(wf.__file__).parents[1]
ENTRIES = [addresses._GATHER, *addresses._ADD.values()]


@pytest.fixture(params=["native", "plain"])
def way(request, monkeypatch):
    """With native code where there is any, and without."""
    if request.param == "native" and not kernel.available():
        pytest.skip("no llvmlite here")
    if request.param == "plain":
        for entry in ENTRIES:
            monkeypatch.setattr(entry, "call", entry._plain)


both_ways = pytest.mark.usefixtures("way")


def start(array):
    return array.__array_interface__["data"][0]


def numbers(rng, shape, dtype):
    return (rng.normal(size=shape) * 10).astype(dtype)


def addresses_of(x, index):
    """The addresses of rows of a table."""
    return start(x) + np.asarray(index, np.int64) * x.strides[0]


WIDE = st.lists(st.integers(1, 40), max_size=2)


@both_ways
@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(["float32", "float64", "float16", "int64", "int8", "bool", "complex128", "int32"]))
def test_gather(data, dtype):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    x = numbers(rng, (data.draw(st.integers(1, 9)), *data.draw(WIDE)), dtype)
    index = rng.integers(0, len(x), data.draw(st.integers(0, 30)))
    out = np.empty((len(index) + 1, *x.shape[1:]), dtype)
    guard = out[-1:].tobytes()
    addresses.gather(addresses_of(x, index), out[:-1])
    np.testing.assert_array_equal(out[:-1], x[index])
    assert out[-1:].tobytes() == guard


@both_ways
@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(["float32", "float64", "float16"]))
def test_add_in_order_with_repeated_addresses(data, dtype):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    x = numbers(rng, (data.draw(st.integers(1, 6)), *data.draw(WIDE)), dtype)
    index = rng.integers(0, len(x), data.draw(st.integers(0, 30)))
    values = numbers(rng, (len(index), *x.shape[1:]), dtype)
    wanted = x.copy()
    np.add.at(wanted, index, values)
    addresses.add(addresses_of(x, index), values)
    np.testing.assert_array_equal(x, wanted)


@both_ways
def test_rows_of_many_tables_at_odd_addresses():
    memory = [np.frombuffer(bytearray(1000), np.uint8)[k : k + 96] for k in (1, 3, 8)]
    rng = np.random.default_rng(0)
    for part in memory:
        part[:] = rng.normal(size=12).view(np.uint8)
    before = [part.tobytes() for part in memory]
    where = np.array([start(memory[k]) for k in (2, 0, 1, 0)])
    out = np.empty((4, 3, 4))
    addresses.gather(where, out)
    assert [row.tobytes() for row in out] == [before[k] for k in (2, 0, 1, 0)]
    addresses.add(where, out)
    for part, old, times in zip(memory, before, (3, 2, 2), strict=True):
        np.testing.assert_array_equal(np.frombuffer(part.tobytes()), times * np.frombuffer(old))


@both_ways
def test_rows_without_elements_and_no_rows():
    where = addresses_of(np.zeros((3, 4)), [0, 1, 2])
    addresses.gather(where, np.empty((3, 0)))
    addresses.add(where, np.empty((3, 0)))
    addresses.gather(where[:0], np.empty((0, 5)))
    addresses.add(where[:0], np.empty((0, 5)))


@needs_native
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [1, 67, 333])
def test_bits_do_not_depend_on_the_number_of_threads(monkeypatch, dtype, width):
    rng = np.random.default_rng(0)
    x = numbers(rng, (50, width), dtype)
    index = rng.integers(0, 50, 700)
    values = numbers(rng, (700, width), dtype)
    gathered, added = set(), set()
    for threads in (1, 2, 3, 5):
        monkeypatch.setattr(wayfare_settings, "num_threads", threads)
        monkeypatch.setattr(addresses, "_PARALLEL_FROM", 0)
        out, sums = np.empty_like(values), x.copy()
        with counted() as counts:
            addresses.gather(addresses_of(x, index), out)
        assert counts.kernels_split == (threads > 1)
        with counted() as counts:
            addresses.add(addresses_of(sums, index), values)
        assert counts.kernels_split == (threads > 1 and width * x.itemsize >= 256)
        gathered.add(out.tobytes())
        added.add(sums.tobytes())
    wanted = x.copy()
    np.add.at(wanted, index, values)
    assert gathered == {x[index].tobytes()}
    assert added == {wanted.tobytes()}


@needs_native
def test_a_call_is_one_kernel():
    x = np.zeros((3, 4))
    with counted() as counts:
        addresses.gather(addresses_of(x, [0, 2]), np.empty((2, 4)))
        addresses.add(addresses_of(x, [0, 2]), np.ones((2, 4)))
    assert counts.kernels_run == 2 and counts.kernels_split == 0
    np.testing.assert_array_equal(x[:, 0], [1, 0, 1])


def test_without_native_code():
    """Where llvmlite cannot be imported, the same calls find their other way by themselves."""
    code = """
import sys
sys.modules["llvmlite"] = None
import numpy as np
from wayfare.codegen.routines import addresses
from wayfare.codegen.runtime import kernel as native
from wayfare.core.counters import COUNTERS
assert not native.available()
x = np.arange(12.0).reshape(3, 4)
where = x.__array_interface__["data"][0] + np.array([2, 0, 2]) * 32
out = np.empty((3, 4))
addresses.gather(where, out)
assert (out == x[[2, 0, 2]]).all()
addresses.add(where, out)
assert (x[0] == 2 * np.arange(4)).all() and (x[2] == 3 * np.arange(8, 12)).all()
big = np.random.randn(300, 1000)
made = np.empty((300, 1000))
addresses.gather(big.__array_interface__["data"][0] + np.arange(300)[::-1] * 8000, made)
assert (made == big[::-1]).all()
addresses.add(big.__array_interface__["data"][0] + np.arange(300)[::-1] * 8000, made)
assert (big == 2 * made[::-1]).all()
assert COUNTERS.kernels_run == 0
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.strip() == "done", done.stderr
