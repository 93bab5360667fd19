"""Depthwise convolution and its two gradients, in native code, without im2col.

The weight is (C, 1, *kernel). With im2col, these would be matmuls with one row, for which BLAS is slow. All three
functions return None where the general way must be used: other dtypes or ranks, small inputs, no native code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from wayfare.codegen.llvm.builder import Variable
from wayfare.codegen.llvm.machine import Machine
from wayfare.codegen.routines.windows import Nest, Row, Sizes, Slide, Steps, check_fits, find, routines, run
from wayfare.core import buffer_pool

Array = np.ndarray[Any, np.dtype[Any]]

# Below this many multiplications the general way is as fast.
DEPTHWISE_FROM = 2048


def _fma(nest: Nest, a: str, b: str, c: str) -> str:
    kind = nest.vector
    return nest.writer.intrinsic(f"llvm.fma.{nest.short}", kind, [(kind, a), (kind, b), (kind, c)])


def _write_sum(to: str, dtype: str, side_by_side: bool, host: Machine) -> str:
    """The output (the matrix), or the gradient of the input (the image): each element of the kernel adds to it."""
    nest = Nest(host, dtype, side_by_side)
    weight = ""

    @contextmanager
    def weighted(address: str) -> Iterator[None]:
        nonlocal weight
        weight = nest.writer.splat(nest.lanes, nest.kind, nest.writer.load(nest.kind, address, 1))
        yield

    def visit(row: Row) -> None:
        nest.accumulate(row, to, lambda more, old: _fma(nest, more, weight, old))

    return nest.write(visit, to, weighted)


def _write_weight(dtype: str, side_by_side: bool, host: Machine) -> str:
    nest = Nest(host, dtype, side_by_side)
    writer = nest.writer
    totals: list[Variable] = []

    @contextmanager
    def summed(address: str) -> Iterator[None]:
        totals.append(writer.variable(nest.vector, "zeroinitializer"))
        yield
        total = writer.intrinsic(
            f"llvm.vector.reduce.fadd.{nest.short}", nest.kind,
            [(nest.kind, "0.0"), (nest.vector, totals[-1].get())],
        )  # fmt: skip
        writer.store(nest.kind, total, address, 1)

    def visit(row: Row) -> None:
        with writer.loop(row.begin, row.end, nest.lanes) as k:
            inside = nest.lanes_between(k, row.begin, row.end)
            x = nest.load(nest.image_at(row, k), nest.step_of(row), inside)
            totals[-1].set(_fma(nest, x, nest.load(nest.matrix_at(row, k), None, inside), totals[-1].get()))

    return nest.write(visit, "", summed)


_FORWARD = routines("depthwise", _write_sum, "matrix")
_INPUT = routines("depthwise_input", _write_sum, "image")
_WEIGHT = routines("depthwise_weight", _write_weight)


def _planes(channels: int, slide: Slide, size: int) -> Steps:
    plane = math.prod(slide.counts) * size
    return Steps(channels * plane, plane)


def forward(x: Array, weight: Array, slide: Slide) -> Array | None:
    """The convolution of (N, C, *sizes): (N, C, *counts)."""
    routine = find(_FORWARD, x.dtype, x.shape, slide, DEPTHWISE_FROM)
    if routine is None:
        return None
    channels, size = x.shape[1], x.itemsize
    check_fits(weight.size == channels * math.prod(slide.kernel) and weight.dtype == x.dtype, "images and weights")
    out = buffer_pool.empty((*x.shape[:2], *slide.counts), x.dtype)
    by_channel = Steps(0, math.prod(slide.kernel) * size)
    x, weight = np.ascontiguousarray(x), np.ascontiguousarray(weight)
    run(routine, x, out, _planes(channels, slide, size), slide, weight, by_channel)
    return out


def by_input(g: Array, weight: Array, shape: Sizes, slide: Slide) -> Array | None:
    """The gradient of the input (of this shape) from that of the output."""
    routine = find(_INPUT, g.dtype, shape, slide, DEPTHWISE_FROM)
    if routine is None:
        return None
    check_fits(g.shape == (*shape[:2], *slide.counts) and weight.dtype == g.dtype
               and weight.size == shape[1] * math.prod(slide.kernel), "gradients and weights")  # fmt: skip
    out = buffer_pool.empty(shape, g.dtype)
    by_channel = Steps(0, math.prod(slide.kernel) * g.itemsize)
    g, weight = np.ascontiguousarray(g), np.ascontiguousarray(weight)
    run(routine, out, g, _planes(shape[1], slide, g.itemsize), slide, weight, by_channel)
    return out


def by_weight(x: Array, g: Array, slide: Slide) -> Array | None:
    """The gradient of the weight, (C, 1, *kernel)."""
    routine = find(_WEIGHT, x.dtype, x.shape, slide, DEPTHWISE_FROM)
    if routine is None:
        return None
    (batch, channels), size, kernel = x.shape[:2], x.itemsize, math.prod(slide.kernel)
    check_fits(g.shape == (*x.shape[:2], *slide.counts) and g.dtype == x.dtype, "images and gradients")
    # One sum for each example, so that threads do not write to the same memory.
    sums = np.empty((batch, channels, kernel), x.dtype)
    each = Steps(channels * kernel * size, kernel * size)
    x, g = np.ascontiguousarray(x), np.ascontiguousarray(g)
    run(routine, x, g, _planes(channels, slide, size), slide, sums, each)
    return np.asarray(sums.sum(axis=0).reshape(channels, 1, *slide.kernel))
