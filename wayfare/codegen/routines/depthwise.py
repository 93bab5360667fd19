"""Depthwise convolution and its two gradients as loops, without im2col.

The weight is (C, 1, *kernel). With im2col, these would be matmuls with one row, for which BLAS is slow. All three
functions return None where the general way must be used: other dtypes or ranks, small inputs, no native code.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any

import numpy as np

from wayfare.codegen.loop.expr import OF_NUMPY, Expr, apply, const, index, reduction
from wayfare.codegen.loop.language import Loop, Operand, Reduction, Stage
from wayfare.codegen.loop.window import fold, load_at, size
from wayfare.codegen.routines.windows import (
    ROW_NUMBERS,
    Sizes,
    Slide,
    adjoint_loop,
    check_fits,
    column_of,
    fixed_stride,
    in_plane,
    planes,
    row_numbers,
    row_table,
    run_adjoint,
    suits,
)
from wayfare.codegen.runtime import kernel as native
from wayfare.codegen.runtime.kernel import Kernel
from wayfare.core import buffer_pool

Array = np.ndarray[Any, np.dtype[Any]]

# Below this many multiplications the general way is as fast.
DEPTHWISE_FROM = 2048


@cache
def _forward(dtype: str, stride: int) -> Kernel:
    """Rows are those of windows: the channel and the first line of each, then numbers of the slide."""
    channel, top, left, step, down, across = row_numbers(2, 6)

    def tap(i: Expr, j: Expr, so_far: Expr) -> Expr:
        line, at = top + i * down, column_of(left + j * across, step, stride)
        x = load_at(0, dtype, channel, line, at, mask=in_plane(line, at))
        return apply("fma", x, load_at(1, dtype, channel, i, j), so_far)

    (value,) = fold(size(1, 1), (const(0, dtype),),
                    lambda i, so_far: fold(size(1, 2), (so_far,), lambda j, inner: (tap(i, j, inner),)))  # fmt: skip
    inputs = (Operand(dtype, True, 3), Operand(dtype, True, 3), ROW_NUMBERS)
    return native.build(Loop("depthwise", inputs, (Operand(dtype),), (Stage(((0, value),)),)))


@cache
def _input(dtype: str, unit_stride: bool) -> Kernel:
    return native.build(adjoint_loop("depthwise_input", dtype, True, unit_stride))


@cache
def _weight(dtype: str, stride: int) -> Kernel:
    """Rows are the elements of all kernels: a sum over the columns of windows of sums over the rows of windows."""
    channel, top, left, step, down = row_numbers(2, 5)

    def window(r: Expr, so_far: Expr) -> tuple[Expr]:
        line, at = top + r * down, column_of(left, step, stride)
        x = load_at(0, dtype, channel, line, at, mask=in_plane(line, at))
        return (apply("fma", x, load_at(1, dtype, channel, r, index()), so_far),)

    (value,) = fold(size(1, 1), (const(0, dtype),), window)
    inputs = (Operand(dtype, True, 3), Operand(dtype, True, 3), ROW_NUMBERS)
    return native.build(Loop("depthwise_weight", inputs, (Operand(dtype, per_row=True),),
                             (Stage(reductions=(Reduction("sum", value),)),), ((0, reduction(0, dtype)),)))  # fmt: skip


@lru_cache(maxsize=16)
def _window_rows(slide: Slide, channels: int) -> Array:
    """The numbers of each row of windows."""
    c, r = np.indices((channels, slide.counts[0])).reshape(2, -1)
    top = r * slide.stride[0] - slide.padding[0]
    return row_table(c, top, -slide.padding[1], slide.stride[1], *slide.dilation)


@lru_cache(maxsize=16)
def _kernel_elements(slide: Slide, channels: int) -> Array:
    """The numbers of each element of all kernels: its channel, line and column for the first window, the strides."""
    c, i, j = np.indices((channels, *slide.kernel)).reshape(3, -1)
    line, column = (n * d - p for n, d, p in zip((i, j), slide.dilation, slide.padding, strict=True))
    return row_table(c, line, column, slide.stride[1], slide.stride[0])


def forward(x: Array, weight: Array, slide: Slide) -> Array | None:
    """The convolution of (N, C, *sizes): (N, C, *counts)."""
    if not suits(x.dtype, x.shape, slide, DEPTHWISE_FROM):
        return None
    batch, channels = x.shape[:2]
    check_fits(weight.size == channels * math.prod(slide.kernel) and weight.dtype == x.dtype, "images and weights")
    out = buffer_pool.empty((*x.shape[:2], *slide.counts), x.dtype)
    slide = slide.planar()
    images, weights = planes(x)[:, None, None], np.ascontiguousarray(weight).reshape(channels, *slide.kernel)
    rows = out.reshape(batch, -1, slide.counts[1])
    _forward(OF_NUMPY[x.dtype], fixed_stride(slide)).into(
        [images, weights, _window_rows(slide, channels)], [rows], rows.shape, (2,), math.prod(slide.kernel)
    )
    return out


def by_input(g: Array, weight: Array, shape: Sizes, slide: Slide) -> Array | None:
    """The gradient of the input (of this shape) from that of the output."""
    if not suits(g.dtype, shape, slide, DEPTHWISE_FROM):
        return None
    check_fits(g.shape == (*shape[:2], *slide.counts) and weight.dtype == g.dtype
               and weight.size == shape[1] * math.prod(slide.kernel), "gradients and weights")  # fmt: skip
    weights = np.ascontiguousarray(weight).reshape(shape[1], -1)
    return run_adjoint(_input(OF_NUMPY[g.dtype], slide.stride[-1] == 1), planes(g), shape, slide, weights)


def by_weight(x: Array, g: Array, slide: Slide) -> Array | None:
    """The gradient of the weight, (C, 1, *kernel)."""
    if not suits(x.dtype, x.shape, slide, DEPTHWISE_FROM):
        return None
    (batch, channels), kernel = x.shape[:2], math.prod(slide.kernel)
    check_fits(g.shape == (*x.shape[:2], *slide.counts) and g.dtype == x.dtype, "images and gradients")
    flat = slide.planar()
    # One sum for each example, so that threads do not write to the same memory.
    sums = np.empty((batch, channels * kernel, 1), x.dtype)
    given = [planes(x)[:, None, None], planes(g)[:, None, None], _kernel_elements(flat, channels)]
    nest = (batch, channels * kernel, flat.counts[1])
    _weight(OF_NUMPY[x.dtype], fixed_stride(slide)).into(given, [sums], nest, (2,), flat.counts[0])
    return np.asarray(sums.sum(axis=0).reshape(channels, 1, *slide.kernel))
