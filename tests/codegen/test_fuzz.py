"""Random loops on random arrays, compared with the interpreter to the last bit.

Machine code is made for each class of layouts, which is what costs time here; so each loop runs on several layouts, and
a longer run is asked for by WAYFARE_LOOPS (how many loops for each test).
"""

import os

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from tests.codegen.loops import (
    broadcastable,
    laid,
    meaning,
    random_elementwise,
    random_rows,
    random_shape,
    same,
    values,
)
from wayfare.codegen.runtime import kernel as native
from wayfare.codegen.runtime import work_split
from wayfare.core.config import settings
from wayfare.core.counters import counted

LOOPS = int(os.environ.get("WAYFARE_LOOPS", "40"))
RUNS = 8
seeds = strategies.integers(0, 2**32 - 1)


def fuzz(test):
    return hypothesis.settings(max_examples=LOOPS, deadline=None)(hypothesis.given(seeds)(test))


@pytest.fixture(autouse=True, scope="module")
def every_loop_is_split():
    """However short a loop is, threads share it; and nothing but the native code may answer."""
    before = work_split._SPLIT, settings.num_threads, settings.cache_folder
    work_split._SPLIT, settings.cache_folder = -1, None
    yield
    work_split._SPLIT, settings.num_threads, settings.cache_folder = before


pytestmark = pytest.mark.filterwarnings("error")


def given_output(rng, arrays, want):
    """An array to write to: fresh, strided, an input, or part of an input's memory."""
    kind = rng.integers(5)
    candidates = [a for a in arrays if a.shape == want.shape and a.dtype == want.dtype and a.flags.writeable]
    if kind == 0 and candidates:
        return candidates[int(rng.integers(len(candidates)))]
    if kind == 1 and want.size > 1:
        # Memory that an input shares, some elements further on.
        flat = np.zeros(want.size + 8, want.dtype)
        for k, a in enumerate(arrays):
            if a.shape == want.shape and a.dtype == want.dtype:
                shift = int(rng.integers(0, 8))
                moved = flat[shift : shift + want.size].reshape(want.shape)
                moved[...] = a
                arrays[k] = moved
                return flat[4 : 4 + want.size].reshape(want.shape)
    if kind == 2:
        return np.zeros(want.shape, want.dtype)
    return laid(rng, np.zeros(want.shape, want.dtype))


@fuzz
def test_loops_of_single_elements(seed):
    rng = np.random.default_rng(seed)
    loop = random_elementwise(rng)
    kernel = native.Kernel(loop)
    for _ in range(RUNS):
        shape = random_shape(rng)
        inputs = [broadcastable(rng, shape, o.dtype) for o in loop.inputs]
        settings.num_threads = int(rng.integers(1, 5))
        want = meaning(loop, inputs)
        for _ in range(2):  # the second time by the plan of the first
            for got, expected in zip(kernel(inputs), want, strict=True):
                same(got, expected, loop)


@fuzz
def test_loops_of_single_elements_that_write_to_given_arrays(seed):
    rng = np.random.default_rng(seed)
    loop = random_elementwise(rng)
    kernel = native.Kernel(loop)
    for _ in range(RUNS):
        shape = random_shape(rng)
        inputs = [laid(rng, values(rng, shape, o.dtype)) for o in loop.inputs]
        settings.num_threads = int(rng.integers(1, 5))
        want = meaning(loop, inputs)
        outputs = [given_output(rng, inputs, array) for array in want]
        made = kernel(inputs, outputs)
        last = {id(o): w for o, w in zip(outputs, want, strict=True)}  # given twice: the last one stands
        shared = any(np.shares_memory(a, b) for i, a in enumerate(outputs) for b in outputs[:i] if a is not b)
        for got, given in zip(made, outputs, strict=True):
            assert got is given
            if not shared:
                same(got, last[id(got)], loop)


def row_shapes(rng, loop):
    """Arrays for a loop over rows, the axes of the row (negative), and the same arrays with the row at the end."""
    shape = random_shape(rng) or (3,)
    first = int(rng.integers(len(shape)))
    axes = tuple(range(first, min(len(shape), first + int(rng.choice([1, 1, 2, 3])))))
    inputs = []
    for operand in loop.inputs:
        own = tuple(1 if a in axes else n for a, n in enumerate(shape)) if operand.per_row else shape
        inputs.append(broadcastable(rng, own, operand.dtype))
    if not any(a.shape == shape for a in inputs):
        inputs[0] = laid(rng, values(rng, shape, loop.inputs[0].dtype))
    count, back = len(axes), [a - len(shape) for a in axes]
    ends = list(range(-count, 0))
    moved = []
    for array, operand in zip(inputs, loop.inputs, strict=True):
        full = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
        wide = tuple(1 if operand.per_row and a in axes else n for a, n in enumerate(shape))
        flat = np.ascontiguousarray(np.moveaxis(np.broadcast_to(full, wide), back, ends))
        moved.append(flat.reshape(*flat.shape[: len(shape) - count], -1))
    outer = [n for a, n in enumerate(shape) if a not in axes]
    row = [shape[a] for a in axes]

    def restored(array, per_row):
        return np.moveaxis(array.reshape(*outer, *([1] * count if per_row else row)), ends, back)

    want = [restored(array, o.per_row) for array, o in zip(meaning(loop, moved), loop.outputs, strict=True)]
    return inputs, (back[0] if count == 1 else tuple(back)), want


@fuzz
def test_loops_over_rows(seed):
    rng = np.random.default_rng(seed)
    loop = random_rows(rng)
    kernel = native.Kernel(loop)
    for _ in range(RUNS):
        inputs, axis, want = row_shapes(rng, loop)
        settings.num_threads = int(rng.integers(1, 5))
        for _ in range(2):
            for got, expected in zip(kernel.rows(inputs, axis), want, strict=True):
                same(got, expected, loop)


@fuzz
def test_loops_over_rows_that_write_to_given_arrays(seed):
    rng = np.random.default_rng(seed)
    loop = random_rows(rng)
    kernel = native.Kernel(loop)
    for _ in range(RUNS):
        inputs, axis, want = row_shapes(rng, loop)
        settings.num_threads = int(rng.integers(1, 5))
        outputs = []
        for expected in want:
            free = [a for a in inputs if a.shape == expected.shape and a.dtype == expected.dtype and a.flags.writeable]
            free = [a for a in free if not any(a is o for o in outputs)]
            in_place = free and rng.random() < 0.5
            outputs.append(free[0] if in_place else laid(rng, np.zeros(expected.shape, expected.dtype)))
        for got, given, expected in zip(kernel.rows(inputs, axis, outputs), outputs, want, strict=True):
            assert got is given
            same(got, expected, loop)


def test_the_random_loops_run_as_machine_code():
    """What the tests above compare with the interpreter is not the interpreter."""
    with counted() as counts:
        for seed in range(4):
            rng = np.random.default_rng(seed)
            loop = random_elementwise(rng)
            native.Kernel(loop)([values(rng, (40, 30), o.dtype) for o in loop.inputs])
            loop = random_rows(rng)
            inputs, axis, _ = row_shapes(rng, loop)
            native.Kernel(loop).rows(inputs, axis)
    assert counts.kernels_run == 8 and counts.kernels_failed == 0
