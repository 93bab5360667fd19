"""Windows that slide over images, as loops: what im2col, col2im and depthwise convolution share.

An image is (N, C, H, W) or (N, C, W). The other side is called the "matrix": columns of windows, or the output of a
depthwise convolution. Padding, stride and dilation are in tables of positions, so there is one loop for all of them;
only the usual strides along a row, 1 and 2, have a loop of their own: with a stride of 1 it has no gathers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from wayfare.codegen.loop.expr import OF_NUMPY, Expr, apply, const, index
from wayfare.codegen.loop.language import Loop, Operand, Stage, StoreAt
from wayfare.codegen.loop.window import fold, load_at, size, within
from wayfare.codegen.runtime import kernel as native
from wayfare.codegen.runtime.kernel import Kernel
from wayfare.core import buffer_pool

Array = np.ndarray[Any, np.dtype[Any]]
Sizes = tuple[int, ...]

# The largest size or stride: products of two of them, and sums of those, must fit into 64 bits.
_FARTHEST = 1 << 30
_NAMES = ("kernel", "stride", "padding", "dilation", "counts")
# An input with some numbers for each row.
ROW_NUMBERS = Operand("i64", per_row=True, axes=1)


@dataclass(frozen=True, slots=True)
class Slide:
    """How a kernel slides over an image: one number for each dimension. `counts` are the numbers of windows."""

    kernel: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    counts: Sizes

    def __post_init__(self) -> None:
        # Positions are computed from these numbers without checks.
        parts = (self.kernel, self.stride, self.padding, self.dilation, self.counts)
        every = [n for part in parts for n in part]
        if (
            len(set(map(len, parts))) != 1 or min((*self.kernel, *self.stride, *self.dilation), default=1) < 1
            or min(every, default=0) < 0 or max(every, default=0) > _FARTHEST
        ):  # fmt: skip
            shown = ", ".join(f"{name} {list(part)}" for name, part in zip(_NAMES, parts, strict=True))
            raise ValueError(f"there are no such windows: {shown}")

    def planar(self) -> Slide:
        """The same over two dimensions."""
        parts = (self.kernel, self.stride, self.padding, self.dilation, self.counts)
        return Slide(*(in_2d(part, filler) for part, filler in zip(parts, (1, 1, 0, 1, 1), strict=True)))


def check_fits(fits: bool, what: str) -> None:
    """Raise ValueError for arrays that native code would access out of bounds."""
    if not fits:
        raise ValueError(f"{what} of these shapes do not fit")


def suits(dtype: Any, shape: Sizes, slide: Slide, smallest: int) -> bool:
    """Is there a loop for images of this shape: up to two dimensions, and enough elements of columns?"""
    work = shape[0] * shape[1] * math.prod(slide.kernel) * math.prod(slide.counts)
    known = OF_NUMPY.get(dtype) in ("f32", "f64") and len(slide.kernel) <= 2
    return known and 0 not in shape and work >= max(smallest, 1) and native.available()


def planes(x: Array) -> Array:
    """The image as (N, C, H, W), C-contiguous."""
    return np.ascontiguousarray(x).reshape(*x.shape[:2], *((1,) if x.ndim == 3 else ()), *x.shape[2:])


def row_numbers(given: int, count: int) -> tuple[Expr, ...]:
    """The numbers of the row, which are input `given`."""
    return tuple(load_at(given, "i64", const(k, "i64")) for k in range(count))


def row_table(*parts: Any) -> Array:
    """The array for `row_numbers`, from one array (rows) or one number for each of them."""
    return np.stack(np.broadcast_arrays(*parts), axis=-1).astype(np.int64).reshape(-1, 1, len(parts))


def in_plane(line: Expr, column: Expr) -> Expr:
    """A mask: is this position inside the planes of input 0, whose own axes are (number, line, column)?"""
    return apply("logical_and", within(line, size(0, 1)), within(column, size(0, 2)))


def fixed_stride(slide: Slide) -> int:
    """The stride along a row if it is a usual one, for which there is a loop of its own; else 0."""
    return slide.stride[-1] if slide.stride[-1] <= 2 else 0


def column_of(first: Expr, step: Expr, stride: int) -> Expr:
    """The column of the element's window: `first` for window 0, `step` more for each next one. `stride` is the step
    if it is fixed, else 0."""
    return first + index() if stride == 1 else first + index() * (stride or step)


# -- from the image's side: the windows that cover an element ----------------------------------------------------------


@lru_cache(maxsize=64)
def _covering_windows(high: int, count: int, kernel: int, stride: int, padding: int, dilation: int) -> Array:
    """By position in the image: (element of the kernel, window) of all windows that cover it, and at the end how many
    they are. With a negative `count` a window need not exist."""
    distance = np.arange(high)[:, None] + padding - np.arange(kernel) * dilation
    window = distance // stride
    covers = (distance % stride == 0) & ((count < 0) | ((window >= 0) & (window < count)))
    # Those that do come first, in order.
    order = np.argsort(~covers, axis=1, kind="stable")
    table = np.zeros((high, kernel + 1, 2), np.int64)
    table[:, :kernel, 0], table[:, :kernel, 1] = order, np.take_along_axis(window, order, 1)
    table[:, kernel, 0] = covers.sum(1)
    return table


@lru_cache(maxsize=16)
def _places(channels: int, high: int, wide: int, phases: int, taps: int) -> Array:
    """For each row (channel, line, phase) its three numbers, the number of the kernel's elements, and the width."""
    return row_table(*np.indices((channels, high, phases)).reshape(3, -1), taps, wide)


def adjoint_loop(name: str, dtype: str, weighted: bool, unit_stride: bool) -> Loop:
    """Each element of an image is the sum of the elements of the matrix whose windows cover it, in the order of the
    kernel's elements. With a stride of s along a row, every s-th element of it is a row of the loop: a phase."""
    channel, line, phase, taps, wide = row_numbers(1, 5)
    matrix, rows, columns, weights = 0, 2, 3, 4

    def tap(a: Expr, b: Expr, so_far: Expr) -> Expr:
        i, q = (load_at(rows, "i64", line, a, const(k, "i64")) for k in (0, 1))
        j, shift = (load_at(columns, "i64", phase, b, const(k, "i64")) for k in (0, 1))
        number, at = i * (size(columns, 1) - 1) + j, index() + shift
        mask = within(at, size(matrix, 2))
        if not weighted:
            return so_far + load_at(matrix, dtype, channel * taps + number, q, at, mask=mask)
        value = load_at(matrix, dtype, channel, q, at, mask=mask)
        return apply("fma", value, load_at(weights, dtype, channel, number), so_far)

    down, across = size(rows, 1) - 1, size(columns, 1) - 1
    counts = [load_at(t, "i64", at, n, const(0, "i64")) for t, at, n in ((rows, line, down), (columns, phase, across))]
    (value,) = fold(counts[0], (const(0, dtype),),
                    lambda a, so_far: fold(counts[1], (so_far,), lambda b, inner: (tap(a, b, inner),)))  # fmt: skip
    table = Operand("i64", True, 3)
    inputs = (Operand(dtype, True, 3), ROW_NUMBERS, table, table, *([Operand(dtype, True, 2)] if weighted else []))
    if unit_stride:
        return Loop(name, inputs, (Operand(dtype),), (Stage(((0, value),)),))
    at = index() * size(columns, 0) + phase
    store = StoreAt(0, (channel * size(rows, 0) + line, at), value, "set", within(at, wide))
    return Loop(name, inputs, (Operand(dtype, True, 2),), (Stage(stores_at=(store,)),))


def run_adjoint(kernel: Kernel, matrix: Array, shape: Sizes, slide: Slide, weights: Array | None = None) -> Array:
    """Run a `adjoint_loop`: an image of this shape from the matrix, which is (N, channels · taps, *counts) without
    weights, and (N, channels, *counts) with them."""
    slide = slide.planar()
    batch, channels, *sizes = shape
    high, wide = (1, *sizes)[-2:]
    taps, stride = math.prod(slide.kernel), slide.stride[1]
    # A phase beyond the width has no elements.
    phases = min(stride, wide)
    down, across = zip(slide.kernel, slide.stride, slide.padding, slide.dilation, strict=True)
    tables = [_covering_windows(high, slide.counts[0], *down), _covering_windows(phases, -1, *across)]
    places = _places(channels, high, wide, phases, taps)
    given = [matrix[:, None, None], places, *tables, *([] if weights is None else [weights])]
    out = buffer_pool.empty((batch, channels * high, wide), matrix.dtype)
    nest = (batch, channels * high * phases, -(-wide // stride))
    kernel.into(given, [out if stride == 1 else out[:, None, None]], nest, (2,), taps)
    return out.reshape(shape)


def in_2d(sizes: Sizes, filler: int) -> tuple[int, int]:
    """Sizes of one or two dimensions as those of two."""
    return (sizes[0], sizes[1]) if len(sizes) == 2 else (filler, sizes[0])
