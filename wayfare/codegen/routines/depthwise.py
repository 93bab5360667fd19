"""Depthwise convolution and its two gradients, in native code, without im2col.

The weight is (C, 1, *kernel). With im2col, these would be matmuls with one row, for which BLAS is slow. All three
functions return None where the general way must be used: other dtypes or ranks, small inputs, no native code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from wayfare.codegen.llvm.builder import Variable
from wayfare.codegen.llvm.machine import Machine
from wayfare.codegen.loop.expr import OF_NUMPY
from wayfare.codegen.routines.routine import Routine
from wayfare.codegen.routines.windows import Nest, Row, Sizes, Slide, Steps, check_fits, run, usable
from wayfare.core import buffer_pool

Array = np.ndarray[Any, np.dtype[Any]]

# Below this many multiplications the general way is as fast.
DEPTHWISE_FROM = 2048


class _Weight:
    """The weight of the current element of the kernel, splatted."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.value = ""

    @contextmanager
    def __call__(self, address: str) -> Iterator[None]:
        writer = self.nest.writer
        one = writer.load(self.nest.kind, address, 1)
        self.value = writer.splat(self.nest.lanes, self.nest.kind, one)
        yield


def _fma(nest: Nest, a: str, b: str, c: str) -> str:
    kind = nest.vector
    return nest.writer.intrinsic(f"llvm.fma.{nest.short}", kind, [(kind, a), (kind, b), (kind, c)])


def _write_forward(dtype: str, side_by_side: bool) -> Callable[[Machine], str]:
    def write(host: Machine) -> str:
        nest = Nest(host, dtype, side_by_side)
        weight = _Weight(nest)

        def visit(row: Row) -> None:
            with nest.writer.loop(row.begin, row.end, nest.lanes) as k:
                inside = nest.lanes_between(k, row.begin, row.end)
                target = nest.matrix_at(row, k)
                x = nest.load(nest.image_at(row, k), nest.step_of(row), inside)
                nest.store(_fma(nest, x, weight.value, nest.load(target, None, inside)), target, None, inside)

        return nest.write(visit, "matrix", weight)

    return write


def _write_input(dtype: str, side_by_side: bool) -> Callable[[Machine], str]:
    def write(host: Machine) -> str:
        nest = Nest(host, dtype, side_by_side)
        weight = _Weight(nest)

        def visit(row: Row) -> None:
            with nest.writer.loop(row.begin, row.end, nest.lanes) as k:
                inside = nest.lanes_between(k, row.begin, row.end)
                target, step = nest.image_at(row, k), nest.step_of(row)
                g = nest.load(nest.matrix_at(row, k), None, inside)
                nest.store(_fma(nest, g, weight.value, nest.load(target, step, inside)), target, step, inside)

        return nest.write(visit, "image", weight)

    return write


def _write_weight(dtype: str, side_by_side: bool) -> Callable[[Machine], str]:
    def write(host: Machine) -> str:
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

    return write


_Write = Callable[[str, bool], Callable[[Machine], str]]


def _routines(name: str, write: _Write) -> dict[tuple[str, bool], Routine]:
    return {(d, s): Routine(f"{name}_{d}", write(d, s)) for d in ("f32", "f64") for s in (False, True)}


_FORWARD = _routines("depthwise", _write_forward)
_INPUT = _routines("depthwise_input", _write_input)
_WEIGHT = _routines("depthwise_weight", _write_weight)


def _find(kinds: dict[tuple[str, bool], Routine], dtype: Any, shape: Sizes, slide: Slide) -> Routine | None:
    found = kinds.get((OF_NUMPY.get(dtype, ""), slide.stride[-1] == 1))
    fits = found is not None and 0 not in shape and usable(found, slide, shape[0] * shape[1], DEPTHWISE_FROM)
    return found if fits else None


def _planes(channels: int, slide: Slide, size: int) -> Steps:
    plane = math.prod(slide.counts) * size
    return Steps(channels * plane, plane)


def forward(x: Array, weight: Array, slide: Slide) -> Array | None:
    """The convolution of (N, C, *sizes): (N, C, *counts)."""
    routine = _find(_FORWARD, x.dtype, x.shape, slide)
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
    routine = _find(_INPUT, g.dtype, shape, slide)
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
    routine = _find(_WEIGHT, x.dtype, x.shape, slide)
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
