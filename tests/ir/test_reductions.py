"""Reductions of large arrays as native loops: values, dtypes, layouts, accuracy, and how often they run natively."""

import itertools
import math

import numpy as np
import pytest

import wayfare as wf
from wayfare.codegen.routines.reductions import reduce_axes, runs, sum_to
from wayfare.codegen.runtime import kernel
from wayfare.core.counters import COUNTERS
from wayfare.core.op import REGISTRY
from wayfare.core.spec import spec_of
from wayfare.ir.fuse.reductions import LargeReduction

pytestmark = pytest.mark.skipif(not kernel.available(), reason="llvmlite is not there")

REDUCTIONS = sorted(name for name, op in REGISTRY.items() if isinstance(op.large, LargeReduction))
DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]


def numbers(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 3, shape).astype(dtype)
    return rng.uniform(0.9, 1.1, shape).astype(dtype) * rng.choice([-1, 1], shape).astype(dtype)


def layouts(x):
    yield x
    yield np.asfortranarray(x)
    yield np.repeat(x, 2, axis=-1)[..., ::2]
    yield x[::-1, ..., ::-1]
    yield np.broadcast_to(x[:1], x.shape)


def test_every_reduction_has_a_native_form():
    extremes = {"amax", "amin", "max_of_all", "min_of_all", "argmax", "argmin"}
    assert set(REDUCTIONS) == {"sum", "prod", "any", "all"} | extremes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_native_agrees_with_the_forward(name, dtype):
    op = REGISTRY[name]
    x = numbers((6, 5, 70), dtype)
    dims = [(0,), (2,)] if name.startswith("arg") else [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)]
    for layout, dim, keepdim in itertools.product(layouts(x), dims, (False, True)):
        with np.errstate(all="ignore"):
            want = np.asarray(op.forward(layout, dim=dim, keepdim=keepdim))
        before = COUNTERS.kernels_run
        got = op.large(layout, dim=dim, keepdim=keepdim)
        if not name.startswith("arg") or 2 not in dim:
            assert COUNTERS.kernels_run > before
        assert spec_of(np.asarray(got)) == spec_of(want) == op.infer(spec_of(layout), dim=dim, keepdim=keepdim)
        tolerance = {"float16": 1e-2, "float32": 1e-5}.get(dtype, 1e-12)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * 30)


@pytest.mark.parametrize("name", ["amax", "amin", "argmax", "argmin"])
def test_nan_wins(name):
    op = REGISTRY[name]
    x = numbers((40, 100), "float32")
    x[3, 71] = x[5, 2] = x[5, 80] = np.nan
    for dim in ((0,), (1,)):
        np.testing.assert_array_equal(op.large(x, dim=dim, keepdim=False), op.forward(x, dim=dim, keepdim=False))


@pytest.mark.parametrize("shape", [(0, 300), (300, 0), (0,)])
def test_nothing_to_reduce(shape):
    x = np.zeros(shape, np.float32)
    for dim in ((0,), (len(shape) - 1,), tuple(range(len(shape)))):
        got = REGISTRY["sum"].large(x, dim=dim, keepdim=False)
        np.testing.assert_array_equal(got, x.sum(axis=dim))


def test_a_reduction_of_no_dimensions_is_left_to_numpy():
    x = numbers((3, 4), "float32")
    np.testing.assert_array_equal(REGISTRY["sum"].large(x, dim=(), keepdim=False), x)


def test_axes_in_runs():
    assert runs((0, 1, 3), (2, 3, 4, 5)) == [(0, 1), (3,)]
    assert runs((0, 2), (2, 1, 3)) == [(0, 1, 2)]


# -- accuracy -----------------------------------------------------------------------------------------------------


def series(kind, count, dtype):
    rng = np.random.default_rng(1)
    if kind == "random":
        x = rng.normal(size=count)
    elif kind == "positive":
        x = rng.uniform(size=count)
    elif kind == "sorted":
        x = np.sort(rng.lognormal(sigma=3, size=count))
    else:
        x = np.where(np.arange(count) % 2, -1.0, 1.0) * (1e4 + rng.uniform(size=count))
    return x.astype(dtype)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["random", "positive", "sorted", "alternating"])
def test_sums_are_at_least_as_exact_as_numpy(kind, dtype, threads):
    old = wf.get_num_threads()
    wf.set_num_threads(threads)
    try:
        count, columns = 60_000, 3
        row = series(kind, count, dtype)
        exact = math.fsum(row.tolist())
        # The result's own rounding, and the luck of the order: a random walk of the roundings within blocks.
        walk = 8 * math.sqrt(count) * float(np.abs(row).astype(float).mean())
        roundings = np.finfo(dtype).eps * (2 * abs(exact) + walk)
        for x, axis in (
            (row, (0,)),
            (row.reshape(200, 300), (0, 1)),
            (np.stack([row] * columns), (1,)),
            (np.stack([row] * columns, axis=1), (0,)),
        ):
            ours = np.abs(np.asarray(reduce_axes("sum", x, axis, False, x.dtype), np.float64) - exact).max()
            theirs = np.abs(np.asarray(np.sum(x, axis=axis), np.float64) - exact).max()
            assert ours <= theirs + roundings
    finally:
        wf.set_num_threads(old)


# -- undoing broadcasting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape, small", [
    ((300, 400), (400,)), ((300, 400), (300, 1)), ((300, 400), ()), ((40, 50, 60), (50, 1)),
    ((40, 50, 60), (40, 1, 60)), ((64, 1000), (1, 1)),
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64"])
def test_sum_to_of_large_arrays(shape, small, dtype):
    x = numbers(shape, dtype)
    extra = len(shape) - len(small)
    axes = tuple(range(extra)) + tuple(d + extra for d, n in enumerate(small) if n == 1)
    want = np.sum(x, axis=axes, keepdims=True, dtype=np.float64).reshape(small)
    got = sum_to(x, small)
    assert got.dtype == x.dtype and got.shape == small
    np.testing.assert_allclose(got, want, rtol=2e-3 if dtype == "float16" else 1e-5, atol=1e-3)


def test_the_gradient_of_a_bias_is_one_native_sum():
    x, bias = wf.ones(512, 256), wf.ones(256, requires_grad=True)
    y = (x + bias).sum()
    y.backward()
    before = COUNTERS.kernels_run
    sum_to(np.ones((512, 256), np.float32), (256,))
    assert COUNTERS.kernels_run == before + 1
    np.testing.assert_array_equal(bias.grad.numpy(), 512)
