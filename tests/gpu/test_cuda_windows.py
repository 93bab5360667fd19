"""Convolution and pooling kernels in emulation against loops in NumPy; and compiled for a GPU."""

import itertools
import math

import numpy as np
import pytest

from tests.gpu.cases import needs_compiler, needs_nvrtc
from tests.gpu.emulation.host import HostLauncher
from wayfare.codegen.cuda import nvrtc
from wayfare.codegen.cuda.kernels import conv, pooling
from wayfare.codegen.routines.windows import Slide

CLOSE = {np.float16: (3e-3, 3e-3), np.float32: (1e-5, 1e-5), np.float64: (1e-12, 1e-12)}


def slide(image, size, stride, padding, dilation):
    """All the windows that fit into an image."""
    counts = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in
                   zip(image, size, stride, padding, dilation, strict=True))  # fmt: skip
    return Slide(size, stride, padding, dilation, counts)


def windows_of(x, windows, fill):
    """Each window of an image: an array [batch, channels, kernel elements, outputs…], and the index of each element."""
    wide = [(0, 0), (0, 0), *((p, p) for p in windows.padding)]
    padded = np.pad(x, wide, constant_values=fill)
    index = np.pad(np.arange(math.prod(x.shape[2:])).reshape(x.shape[2:]), wide[2:], constant_values=-1)
    parts, places = [], []
    for at in itertools.product(*map(range, windows.kernel)):
        key = tuple(slice(k * d, k * d + s * (n - 1) + 1, s) for k, d, s, n in
                    zip(at, windows.dilation, windows.stride, windows.counts, strict=True))  # fmt: skip
        parts.append(padded[(slice(None), slice(None), *key)])
        places.append(index[key])
    return np.stack(parts, 2), np.stack(places)


def reference(x, w, windows, groups):
    columns, _ = windows_of(x, windows, 0)
    columns = columns.reshape(x.shape[0], groups, -1, *columns.shape[3:])
    matrix = w.reshape(groups, w.shape[0] // groups, -1)
    out = np.einsum("bgk...,gfk->bgf...", columns, matrix)
    return out.reshape(x.shape[0], w.shape[0], *out.shape[3:])


CASES = [
    ((2, 3, 9, 8), (5, 3, 3, 3), slide((9, 8), (3, 3), (1, 1), (1, 1), (1, 1)), 1),
    ((2, 4, 11, 7), (6, 2, 3, 2), slide((11, 7), (3, 2), (2, 3), (0, 1), (2, 1)), 2),
    ((3, 70, 5, 5), (70, 1, 3, 3), slide((5, 5), (3, 3), (1, 1), (1, 1), (1, 1)), 70),
    ((1, 66, 4, 4), (65, 66, 1, 1), slide((4, 4), (1, 1), (1, 1), (0, 0), (1, 1)), 1),
    ((2, 3, 20), (4, 3, 5), slide((20,), (5,), (2,), (3,), (2,)), 1),
    ((2, 2, 5, 6, 4), (3, 2, 2, 3, 2), slide((5, 6, 4), (2, 3, 2), (1, 2, 1), (1, 0, 1), (1, 1, 2)), 1),
    ((20, 2, 14, 14), (3, 2, 3, 3), slide((14, 14), (3, 3), (1, 1), (1, 1), (1, 1)), 1),
]


@needs_compiler
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("shape, weight, windows, groups", CASES)
def test_convolution(dtype, shape, weight, windows, groups):
    rng = np.random.default_rng(0)
    launcher = HostLauncher()
    x = (rng.standard_normal(shape) / 4).astype(dtype)
    w = (rng.standard_normal(weight) / 4).astype(dtype)
    bias = rng.standard_normal(weight[0]).astype(dtype)
    exact = [a.astype(np.float64) for a in (x, w, bias)]
    want = reference(*exact[:2], windows, groups)
    out = np.zeros(want.shape, dtype)
    conv.forward(launcher, x, w, bias, out, windows, groups)
    lined_up = exact[2].reshape(-1, *[1] * (x.ndim - 2))
    np.testing.assert_allclose(out, want + lined_up, *CLOSE[dtype])
    conv.forward(launcher, x, w, None, out, windows, groups)
    np.testing.assert_allclose(out, want, *CLOSE[dtype])

    # A convolution is linear in both: its gradients are its transposes.
    g = (rng.standard_normal(want.shape) / 4).astype(dtype)
    dx, dw = np.zeros_like(x), np.zeros_like(w)
    conv.input_gradient(launcher, g, w, dx, windows, groups)
    conv.weight_gradient(launcher, x, g, dw, windows, groups)
    wanted_dx, wanted_dw = gradients(exact[0], exact[1], g.astype(np.float64), windows, groups)
    scale = max(1, np.abs(wanted_dw).max())
    np.testing.assert_allclose(dx, wanted_dx, *CLOSE[dtype])
    np.testing.assert_allclose(dw / scale, wanted_dw / scale, *CLOSE[dtype])


def gradients(x, w, g, windows, groups):
    columns, places = windows_of(x, windows, 0)
    batch, places_out = x.shape[0], math.prod(g.shape[2:])
    kernel, filters = math.prod(w.shape[2:]), w.shape[0] // groups
    columns = columns.reshape(batch, groups, -1, places_out)
    by_group = g.reshape(batch, groups, filters, places_out)
    dw = np.einsum("bgkp,bgfp->gfk", columns, by_group).reshape(w.shape)
    back = np.einsum("bgfp,gfk->bgkp", by_group, w.reshape(groups, filters, -1))
    back = back.reshape(batch, x.shape[1], kernel, -1)
    dx = np.zeros((batch, x.shape[1], math.prod(x.shape[2:]) + 1))
    np.add.at(dx, (slice(None), slice(None), places.reshape(kernel, -1)), back)
    return dx[..., :-1].reshape(x.shape), dw


POOLS = [
    ((2, 3, 9, 8), slide((9, 8), (3, 2), (2, 2), (1, 1), (1, 1))),
    ((1, 2, 12), slide((12,), (4,), (3,), (2,), (1,))),
    ((1, 2, 7, 6, 5), slide((7, 6, 5), (2, 3, 2), (1, 2, 2), (0, 1, 1), (2, 1, 1))),
]


@needs_compiler
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("shape, windows", POOLS)
def test_pooling(dtype, shape, windows):
    rng = np.random.default_rng(0)
    launcher = HostLauncher()
    x = rng.integers(-4, 4, shape).astype(dtype)
    x.reshape(-1)[5::17] = np.nan
    x.reshape(-1)[40:] = -np.inf
    seen, places = windows_of(x, windows, -np.inf)
    inside = np.broadcast_to((places >= 0)[None, None], seen.shape)
    # The last NaN, or the first of the largest, among the elements that lie in the image.
    nan = np.isnan(seen)
    ranked = np.where(inside, np.maximum(np.where(nan, 0, seen), -1e4), -2e4).astype(np.float64)
    best = np.where(nan.any(2), nan.shape[2] - 1 - nan[:, :, ::-1].argmax(2), ranked.argmax(2))
    want = np.take_along_axis(seen, best[:, :, None], 2)[:, :, 0]
    wanted = np.take_along_axis(np.broadcast_to(places, seen.shape), best[:, :, None], 2)[:, :, 0]
    out, at = np.zeros(want.shape, dtype), np.zeros(want.shape, np.int64)
    pooling.max_forward(launcher, x, out, at, windows)
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(at, wanted)

    g = rng.integers(-4, 4, want.shape).astype(dtype)
    dx, flat = np.zeros_like(x), np.zeros((*shape[:2], math.prod(shape[2:])))
    pooling.max_backward(launcher, g, at, dx, windows)
    outer = np.ix_(range(shape[0]), range(shape[1]), [0])[:2]
    np.add.at(flat, (*outer, at.reshape(*shape[:2], -1)), g.reshape(*shape[:2], -1))
    np.testing.assert_array_equal(dx, flat.reshape(shape).astype(dtype))

    x = rng.integers(-4, 4, shape).astype(dtype)
    seen, places = windows_of(x, windows, 0)
    pooling.sum_forward(launcher, x, out, windows)
    np.testing.assert_array_equal(out, seen.sum(2).astype(dtype))
    pooling.sum_backward(launcher, g, dx, windows)
    flat = np.zeros((*shape[:2], math.prod(shape[2:]) + 1))
    spread = np.broadcast_to(g[:, :, None], seen.shape).reshape(*shape[:2], -1)
    np.add.at(flat, (*outer, np.broadcast_to(places.reshape(-1), spread.shape)), spread)
    np.testing.assert_array_equal(dx, flat[..., :-1].reshape(shape).astype(dtype))


@needs_compiler
@pytest.mark.parametrize("sizes, counts", [((5,), (3,)), ((4, 7), (6, 2)), ((3, 2, 5), (1, 2, 4))])
def test_pooling_over_cells(sizes, counts):
    rng = np.random.default_rng(0)
    launcher = HostLauncher()
    x = rng.integers(-4, 4, (2, 3, *sizes)).astype(np.float32)
    out, at = np.zeros((2, 3, *counts), np.float32), np.zeros((2, 3, *counts), np.int64)
    pooling.max_forward(launcher, x, out, at, None)
    for cell in itertools.product(*map(range, counts)):
        box = [slice(i * n // c, -(-(i + 1) * n // c)) for i, n, c in zip(cell, sizes, counts, strict=True)]
        where = np.arange(math.prod(sizes)).reshape(sizes)[tuple(box)].ravel()
        seen = x.reshape(2, 3, -1)[..., where]
        np.testing.assert_array_equal(out[(..., *cell)], seen.max(-1))
        np.testing.assert_array_equal(at[(..., *cell)], where[seen.argmax(-1)])
    g, dx = rng.integers(-4, 4, out.shape).astype(np.float32), np.zeros_like(x)
    pooling.max_backward(launcher, g, at, dx, None)
    want = np.zeros((2, 3, math.prod(sizes)), np.float32)
    for plane in np.ndindex(2, 3):
        np.add.at(want[plane], at[plane].ravel(), g[plane].ravel())
    np.testing.assert_array_equal(dx, want.reshape(x.shape))


@needs_compiler
def test_a_convolution_of_integers_wraps():
    rng = np.random.default_rng(0)
    windows = slide((6,), (3,), (1,), (1,), (1,))
    x, w = rng.integers(-128, 128, (2, 3, 6)).astype(np.int8), rng.integers(-128, 128, (4, 3, 3)).astype(np.int8)
    out, dw = np.zeros((2, 4, 6), np.int8), np.zeros_like(w)
    conv.forward(HostLauncher(), x, w, None, out, windows)
    np.testing.assert_array_equal(out, reference(x.astype(np.int64), w.astype(np.int64), windows, 1).astype(np.int8))
    conv.weight_gradient(HostLauncher(), x, out, dw, windows)
    exact = gradients(x.astype(np.float64), w.astype(np.float64), out.astype(np.float64), windows, 1)[1]
    np.testing.assert_array_equal(dw, exact.astype(np.int64).astype(np.int8))


@needs_nvrtc
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_windows_compile(dims):
    makers = (conv.forward_text, conv.weight_text, pooling.sum_text, pooling.sum_gradient_text)
    dtypes = ("f32", "f64", "f16", "bf16", "i32")
    texts = [make(dtype, dims)[1] for make in makers for dtype in dtypes]
    texts += [make(dtype, dims, way)[1] for make in (pooling.max_text, pooling.max_gradient_text, conv.input_text)
              for dtype in dtypes for way in (False, True)]  # fmt: skip
    assert b".entry" in nvrtc.nvrtc().compile("\n".join([*texts, conv.parts_text("f32")]), "compute_90")
