"""im2col and col2im as loops.

Columns are (N, C·kernel, windows), or (C·kernel, N·windows) with `channels_first`. im2col reads the image row
by row and applies padding, stride and dilation on the way. col2im adds in the order of the kernel's elements, so
results do not depend on the number of threads. Both return None where NumPy should do the work: other dtypes or ranks,
small inputs, no native code.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any

import numpy as np

from wayfare.codegen.loop.expr import OF_NUMPY, apply, index
from wayfare.codegen.loop.language import Loop, Operand, Stage
from wayfare.codegen.loop.window import load_at
from wayfare.codegen.routines.windows import (
    ROW_NUMBERS,
    Sizes,
    Slide,
    adjoint_loop,
    check_fits,
    column_of,
    fixed_stride,
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

# Below this many elements of columns, NumPy is as fast.
COLUMNS_FROM = 2048


@cache
def _columns(dtype: str, stride: int) -> Kernel:
    """Rows are those of windows, for one element of the kernel: the example, the line and the first column of each,
    and which of its windows are inside the image."""
    example, line, first, begin, end, step = row_numbers(1, 6)
    mask = apply("logical_and", apply("ge", index(), begin), apply("lt", index(), end))
    value = load_at(0, dtype, example, line, column_of(first, step, stride), mask=mask)
    inputs = (Operand(dtype, True, 3), ROW_NUMBERS)
    return native.build(Loop("columns", inputs, (Operand(dtype),), (Stage(((0, value),)),)))


@lru_cache(maxsize=16)
def _rows(slide: Slide, sizes: Sizes, batch: int) -> Array:
    """The numbers of each row of windows, by element of the kernel, example and row."""
    i, j, n, r = np.indices((*slide.kernel, batch, slide.counts[0])).reshape(4, -1)
    line = i * slide.dilation[0] - slide.padding[0] + r * slide.stride[0]
    first, step = j * slide.dilation[1] - slide.padding[1], slide.stride[1]
    begin, end = np.maximum(-(first // step), 0), -((first - sizes[1]) // step)
    return row_table(n, line, first, begin, np.where((line >= 0) & (line < sizes[0]), end, 0), step)


@cache
def _image(dtype: str, unit_stride: bool) -> Kernel:
    return native.build(adjoint_loop("add_columns", dtype, False, unit_stride))


def columns(x: Array, slide: Slide, channels_first: bool = False) -> Array | None:
    """im2col; None where NumPy should do it."""
    if not suits(x.dtype, x.shape[:2], slide, COLUMNS_FROM):
        return None
    batch, channels = x.shape[:2]
    check_fits(x.ndim == 2 + len(slide.kernel), "images and windows")
    slide, images = slide.planar(), planes(x)
    rows, windows = channels * math.prod(slide.kernel), math.prod(slide.counts)
    made = buffer_pool.empty((rows, batch * windows) if channels_first else (batch, rows, windows), x.dtype)
    # Rows that follow each other in memory: those of a channel, or those of a channel of one example.
    together = batch if channels_first else 1
    places = _rows(slide, images.shape[2:], together)
    own = images.transpose(1, 0, 2, 3) if channels_first else images.reshape(-1, 1, *images.shape[2:])
    out = made.reshape(len(own), -1, slide.counts[1])
    _columns(OF_NUMPY[x.dtype], fixed_stride(slide)).into([own[:, None, None], places], [out], out.shape, (2,))
    return made


def add_columns(given: Array, shape: Sizes, slide: Slide, channels_first: bool = False) -> Array | None:
    """col2im into a new image of this shape; None where NumPy should do it."""
    if not suits(given.dtype, shape, slide, COLUMNS_FROM):
        return None
    rows = shape[1] * math.prod(slide.kernel)
    check_fits(given.size == shape[0] * rows * math.prod(slide.counts), "columns and windows")
    check_fits(len(shape) == 2 + len(slide.kernel), "images and windows")
    counts = slide.planar().counts
    given = np.ascontiguousarray(given)
    matrix = (given.reshape(rows, shape[0], *counts).swapaxes(0, 1) if channels_first
              else given.reshape(shape[0], rows, *counts))  # fmt: skip
    return run_adjoint(_image(OF_NUMPY[given.dtype], slide.stride[-1] == 1), matrix, shape, slide)
