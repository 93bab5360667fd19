"""Convolutions, pooling and resampling on CUDA: the first two by kernels of their own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wayfare.codegen.cuda.kernels import conv, pooling
from wayfare.codegen.routines.windows import Sizes, Slide
from wayfare.ops.cuda.rows import add_at
from wayfare.ops.cuda.table import on_cuda
from wayfare.ops.window._windows import Windows

_ALL = slice(None)


def _padded(b: Any, x: Any, windows: Windows, counts: Sizes) -> Any:
    sizes = x.shape[2:]
    full = windows.padded(sizes, counts)
    if full == sizes:
        return x
    out = b.xp.zeros((*x.shape[:2], *full), x.dtype)
    out[(_ALL, _ALL, *windows.inside(sizes))] = x
    return out


def _columns(b: Any, x: Any, windows: Windows, counts: Sizes) -> Any:
    """The windows of (N, C, *sizes) as columns (N, C·kernel, windows)."""
    x = _padded(b, x, windows, counts)
    batch, channels, *steps = x.strides
    strides = (
        batch, channels,
        *(step * d for step, d in zip(steps, windows.dilation, strict=True)),
        *(step * s for step, s in zip(steps, windows.stride, strict=True)),
    )  # fmt: skip
    view = b.as_strided(x, (*x.shape[:2], *windows.kernel, *counts), strides)
    return view.reshape(x.shape[0], x.shape[1] * math.prod(windows.kernel), math.prod(counts))


def _image(b: Any, columns: Any, shape: Any, windows: Windows, counts: Sizes) -> Any:
    """The adjoint: columns added where their windows lie in an image of a shape."""
    out = b.xp.zeros((*shape[:2], *windows.padded(shape[2:], counts)), columns.dtype)
    split = columns.reshape(*shape[:2], *windows.kernel, *counts)
    for offset in np.ndindex(*windows.kernel):
        out[(_ALL, _ALL, *windows.places(offset, counts))] += split[(_ALL, _ALL, *offset)]
    return b.xp.ascontiguousarray(out[(_ALL, _ALL, *windows.inside(shape[2:]))])


@on_cuda("im2col")
def _im2col(b: Any, x: Any, **how: Sizes) -> Any:
    windows = Windows(**how)
    counts = windows.counts(x.shape[2:])
    if min(counts) < 1:
        raise ValueError("the kernel is too large")
    made = _columns(b, x, windows, counts)
    return made.copy() if b.xp.may_share_memory(made, x) else made


@on_cuda("col2im")
def _col2im(b: Any, columns: Any, *, sizes: Sizes, **how: Sizes) -> Any:
    windows = Windows(**how)
    counts, each = windows.counts(sizes), math.prod(windows.kernel)
    if columns.ndim != 3 or columns.shape[1] % each or min(counts) < 1 or columns.shape[2] != math.prod(counts):
        raise ValueError("the columns do not fit the windows")
    return _image(b, columns, (columns.shape[0], columns.shape[1] // each, *sizes), windows, counts)


# -- convolution ------------------------------------------------------------------------------------------------------


@on_cuda("conv", bfloat16=True)
def _conv(b: Any, x: Any, weight: Any, bias: Any = None, *, groups: int, **how: Sizes) -> Any:
    windows = Windows(weight.shape[2:], **how)
    counts = windows.counts(x.shape[2:])
    if x.shape[1] != weight.shape[1] * groups or min(counts) < 1 or x.dtype != weight.dtype:
        raise ValueError("shapes or dtypes do not fit")
    out = b.empty((x.shape[0], weight.shape[0], *counts), x.dtype)
    bias = None if bias is None else b.in_c_order(bias)
    conv.forward(b.launcher, b.in_c_order(x), b.in_c_order(weight), bias, out, windows.slide(counts), groups)
    return out


@on_cuda("conv_bias", bfloat16=True)
def _conv_bias(b: Any, x: Any, weight: Any, bias: Any, **how: Any) -> Any:
    if bias.shape != weight.shape[:1] or bias.dtype != x.dtype:
        raise ValueError("the bias does not fit")
    return _conv(b, x, weight, bias, **how)


@on_cuda("conv_input", bfloat16=True)
def _conv_input(b: Any, g: Any, weight: Any, *, sizes: Sizes, groups: int, **how: Sizes) -> Any:
    if g.shape[1] != weight.shape[0] or g.dtype != weight.dtype:
        raise ValueError("shapes or dtypes do not fit")
    out = b.empty((g.shape[0], weight.shape[1] * groups, *sizes), g.dtype)
    slide = Windows(weight.shape[2:], **how).slide(g.shape[2:])
    conv.input_gradient(b.launcher, b.in_c_order(g), b.in_c_order(weight), out, slide, groups)
    return out


@on_cuda("conv_weight", bfloat16=True)
def _conv_weight(b: Any, x: Any, g: Any, *, kernel: Sizes, groups: int, **how: Sizes) -> Any:
    out = b.empty((g.shape[1], x.shape[1] // groups, *kernel), x.dtype)
    slide = Windows(kernel, **how).slide(g.shape[2:])
    conv.weight_gradient(b.launcher, b.in_c_order(x), b.in_c_order(g), out, slide, groups)
    return out


# -- pooling ----------------------------------------------------------------------------------------------------------


def _largest(b: Any, x: Any, counts: Sizes, slide: Slide | None) -> tuple[Any, Any]:
    shape = (*x.shape[:2], *counts)
    values, places = b.empty(shape, x.dtype), b.empty(shape, np.dtype(np.int64))
    pooling.max_forward(b.launcher, b.in_c_order(x), values, places, slide)
    return values, places


@on_cuda("max_pool", bfloat16=True)
def _max_pool(b: Any, x: Any, *, kernel: Sizes, counts: Sizes, **how: Sizes) -> tuple[Any, Any]:
    return _largest(b, x, counts, Windows(kernel, **how).slide(counts))


@on_cuda("adaptive_max_pool", bfloat16=True)
def _adaptive_max_pool(b: Any, x: Any, *, counts: Sizes) -> tuple[Any, Any]:
    return _largest(b, x, counts, None)


@on_cuda("max_pool_spread", bfloat16=True)
def _max_pool_spread(b: Any, g: Any, places: Any, *, sizes: Sizes, **how: Sizes) -> Any:
    if g.shape != places.shape:
        raise ValueError("they do not fit")
    out = b.empty((*g.shape[:2], *sizes), g.dtype)
    slide = Windows(**how).slide(g.shape[2:]) if how["kernel"] else None
    pooling.max_backward(b.launcher, b.in_c_order(g), b.in_c_order(places), out, slide)
    return out


@on_cuda("pool_sum", bfloat16=True)
def _pool_sum(b: Any, x: Any, *, counts: Sizes, **how: Sizes) -> Any:
    out = b.empty((*x.shape[:2], *counts), x.dtype)
    pooling.sum_forward(b.launcher, b.in_c_order(x), out, _undilated(counts, **how))
    return out


@on_cuda("pool_spread")
def _pool_spread(b: Any, g: Any, *, sizes: Sizes, **how: Sizes) -> Any:
    out = b.empty((*g.shape[:2], *sizes), g.dtype)
    pooling.sum_backward(b.launcher, b.in_c_order(g), out, _undilated(g.shape[2:], **how))
    return out


def _undilated(counts: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes) -> Slide:
    return Slide(kernel, stride, padding, (1,) * len(kernel), counts)


@on_cuda("fractional_places")
def _fractional_places(b: Any, samples: Any, *, sizes: Sizes, counts: Sizes, kernel: Sizes) -> Any:
    xp, rank = b.xp, len(sizes)
    out: Any = 0
    for axis, (size, count, width) in enumerate(zip(sizes, counts, kernel, strict=True)):
        # PyTorch's order: with two samples the first is for the width, with three for the depth.
        shift = samples[..., 1 - axis if rank == 2 else axis][..., None].astype(np.float64)
        if count == 1:
            begin = xp.full(shift.shape, size - width, np.int64)
        else:
            step = (size - width) / (count - 1)
            begin = ((xp.arange(count) + shift) * step).astype(np.int64) - (shift * step).astype(np.int64)
            begin[..., -1] = size - width
        shape, offset = [1] * (2 * rank), [1] * (2 * rank)
        shape[axis], offset[rank + axis] = count, width
        out = out * size + begin.reshape(*begin.shape[:2], *shape) + xp.arange(width).reshape(offset)
    return out.reshape(*samples.shape[:2], math.prod(counts), math.prod(kernel))


# -- resampling --------------------------------------------------------------------------------------------------------


@on_cuda("resample")
def _resample(b: Any, x: Any, places: Any, weights: Any, *, dim: int) -> Any:
    column = (-1,) + (1,) * (x.ndim - dim - 1)
    total: Any = None
    for t in range(places.shape[0]):
        part = b.xp.take(x, places[t], axis=dim) * weights[t].reshape(column).astype(x.dtype)
        total = part if total is None else total + part
    return total


@on_cuda("resample_back")
def _resample_back(b: Any, g: Any, places: Any, weights: Any, *, dim: int, size: int) -> Any:
    """The adjoint, as a product of matrices."""
    wide = g.astype(np.float32) if g.dtype == np.float16 else g
    matrix = b.xp.zeros((places.shape[1], size), wide.dtype)
    here = b.xp.arange(places.shape[1])
    for t in range(places.shape[0]):
        add_at(b, matrix, (here, places[t]), weights[t].astype(wide.dtype))
    moved = b.xp.moveaxis(wide, dim, -1)
    return b.xp.ascontiguousarray(b.xp.moveaxis(b.matmul(moved, matrix), -1, dim)).astype(g.dtype, copy=False)
