"""im2col and col2im in native code.

Columns are (N, C·kernel, windows), or (C·kernel, N·windows) with `channels_first`. im2col reads the image row
by row and applies padding, stride and dilation on the way. col2im works plane by plane and adds in the order of the
kernel's elements, so results do not depend on the number of threads. Both return None where NumPy should do the work:
other dtypes or ranks, small inputs, no native code.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wayfare.codegen.llvm.machine import Machine
from wayfare.codegen.routines.windows import Nest, Row, Sizes, Slide, Steps, check_fits, find, routines, run
from wayfare.core import buffer_pool

Array = np.ndarray[Any, np.dtype[Any]]

# Below this many elements of columns, NumPy is as fast.
COLUMNS_FROM = 2048


def _write_columns(dtype: str, side_by_side: bool, host: Machine) -> str:
    nest = Nest(host, dtype, side_by_side)

    def visit(row: Row) -> None:
        # A masked load gives the zeros of the padding at no extra cost.
        with nest.writer.loop("0", row.count, nest.lanes) as k:
            inside = nest.lanes_between(k, row.begin, row.end)
            value = nest.load(nest.image_at(row, k), nest.step_of(row), inside)
            nest.store(value, nest.matrix_at(row, k), None, nest.lanes_between(k, "0", row.count))

    return nest.write(visit)


def _write_add(dtype: str, side_by_side: bool, host: Machine) -> str:
    nest = Nest(host, dtype, side_by_side)

    def visit(row: Row) -> None:
        nest.accumulate(row, "image", lambda more, old: nest.writer.float_add(nest.vector, old, more))

    return nest.write(visit, clear="image")


_COLUMNS = routines("columns", _write_columns)
_ADD = routines("add_columns", _write_add)


def columns(x: Array, slide: Slide, channels_first: bool = False) -> Array | None:
    """im2col; None where NumPy should do it."""
    routine = find(_COLUMNS, x.dtype, x.shape[:2], slide, COLUMNS_FROM)
    if routine is None:
        return None
    batch, channels = x.shape[:2]
    rows, windows = channels * math.prod(slide.kernel), math.prod(slide.counts)
    made = buffer_pool.empty((rows, batch * windows) if channels_first else (batch, rows, windows), x.dtype)
    run(routine, np.ascontiguousarray(x), made, _steps(x.shape, x.itemsize, slide, channels_first), slide)
    return made


def add_columns(given: Array, shape: Sizes, slide: Slide, channels_first: bool = False) -> Array | None:
    """col2im into a new image of this shape; None where NumPy should do it."""
    routine = find(_ADD, given.dtype, shape, slide, COLUMNS_FROM)
    if routine is None:
        return None
    elements = math.prod(shape[:2]) * math.prod(slide.kernel) * math.prod(slide.counts)
    check_fits(given.size == elements, "columns and windows")
    out = buffer_pool.empty(shape, given.dtype)
    run(routine, out, np.ascontiguousarray(given), _steps(shape, given.itemsize, slide, channels_first), slide)
    return out


def _steps(shape: Sizes, size: int, slide: Slide, channels_first: bool) -> Steps:
    """The byte strides of columns."""
    kernel, row = math.prod(slide.kernel), math.prod(slide.counts) * size
    if channels_first:
        return Steps(row, kernel * shape[0] * row, shape[0] * row)
    return Steps(shape[1] * kernel * row, kernel * row, row)
