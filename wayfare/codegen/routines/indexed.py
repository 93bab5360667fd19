"""Gather and scatter-add by index, as loops.

    gather_rows(x, index)               out[i] = x[index[i]]
    add_rows(out, index, values)        out[index[i]] += values[i], in order
    gather_along(x, index, axis)        np.take_along_axis
    add_along(out, index, values, axis) its adjoint

All return None or False where NumPy is as fast, where arrays are not C-contiguous, and where an index is negative or
out of range; then the caller uses NumPy, which wraps or raises. Results are bitwise those of NumPy's loop over the
indices, with any number of threads.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from wayfare.codegen.loop.expr import NARROW, NUMPY, OF_NUMPY, load
from wayfare.codegen.loop.language import Loop, Operand, Stage, StoreAt
from wayfare.codegen.loop.window import load_at
from wayfare.codegen.runtime import kernel as native
from wayfare.codegen.runtime.kernel import Kernel
from wayfare.core import buffer_pool

Array = np.ndarray[Any, np.dtype[Any]]

# Bytes from which on native code gathers faster than NumPy (only through threads and pooled memory), and elements from
# which on it adds faster.
GATHER_FROM = 4 * 1024 * 1024
ADD_FROM = 2048
# With fewer rows than this, callers use NumPy without asking.
ROWS_FROM = 64
_INDEX = np.dtype(np.int64)
# What is only moved is moved as an integer of the same width.
_BITS = {NUMPY[d].itemsize: NUMPY[d] for d in ("i8", "i16", "i32", "i64")}
# Narrow floats are left to NumPy: there is no native arithmetic in them.
_ADDED = frozenset(NUMPY[d] for d in NUMPY if d not in ("bool", *NARROW))


# -- the loops ---------------------------------------------------------------------------------------------------------


@cache
def _gathering(dtype: str, for_rows: bool, flat: bool) -> Kernel:
    """Elements of a table. `for_rows`: is there one index for each row of the loop, not one for each element? `flat`:
    is the table one column, along which the row of the loop runs?"""
    inputs = (Operand(dtype, flat, 1), Operand("i64", for_rows))
    return native.build(Loop("gather", inputs, (Operand(dtype),), (Stage(((0, load_at(0, dtype, load(1, "i64"))),)),)))


@cache
def _adding(dtype: str, for_rows: bool, flat: bool) -> Kernel:
    """The adjoint: values that are added to elements of a table."""
    store = StoreAt(0, (load(1, "i64"),), load(0, dtype), "add")
    inputs = (Operand(dtype), Operand("i64", for_rows))
    return native.build(Loop("scatter_add", inputs, (Operand(dtype, flat, 1),), (Stage(stores_at=(store,)),)))


def _run(table: Array, index: Array, values: Array, axis: int, adding: bool) -> None:
    """`table` along `axis` at `index`, which is 1-D or has the shape of `values`: read into `values`, or added to."""
    if values.size == 0:
        return
    outer, rows, width = math.prod(table.shape[:axis]), table.shape[axis], math.prod(table.shape[axis + 1 :])
    count, single = values.size // (outer * width), index.ndim == 1 and values.ndim > 1
    at = np.ascontiguousarray(index).reshape((1, count, 1) if single else (outer, count, width))
    given = values.reshape(outer, count, width)
    spots = table.reshape(outer, rows, width).transpose(0, 2, 1)[:, None]
    flat = width == 1
    if flat:
        # Along the column, or vectors would hold one element each.
        at, given, spots = at[..., 0], given[..., 0], spots[:, 0]
    kernel = (_adding if adding else _gathering)(OF_NUMPY[table.dtype], single and not flat, flat)
    nest, axes = given.shape, (given.ndim - 1,)
    if adding:
        kernel.into([given, at], [spots], nest, axes)
    else:
        kernel.into([spots, at], [given], nest, axes)


def _within(index: Array, size: int) -> bool:
    """Is every index an int64 from 0 to size - 1? Read as unsigned, negative numbers are huge: one comparison."""
    return index.dtype == _INDEX and bool(np.maximum.reduce(index.view(np.uint64), axis=None, initial=0) < size)


# -- rows --------------------------------------------------------------------------------------------------------------


def gather_rows(x: Array, index: Array) -> Array | None:
    """x[index] along dimension 0; None where NumPy should do it."""
    tail = x.shape[1:]
    width = math.prod(tail) * x.itemsize
    # NumPy copies narrow rows just as fast.
    if width * index.size < GATHER_FROM or width < 32 or not x.flags.c_contiguous:
        return None
    if not _within(index, x.shape[0]) or not native.available():
        return None
    out = buffer_pool.empty(index.shape + tail, x.dtype)
    bits = _BITS[math.gcd(width, 4)]
    rows = out.reshape(index.size, width // x.itemsize)
    _run(x.reshape(len(x), -1).view(bits), index.reshape(-1), rows.view(bits), 0, False)
    return out


def add_rows(out: Array, index: Array, values: Array, axis: int = 0) -> bool:
    """Add `values` to `out`, in place, at the indices `index` (1-D) along `axis`.

    `values` has the shape of `out` but for `axis`, where it has the index's size. False where NumPy should do it.
    """
    if out.dtype not in _ADDED or values.size < ADD_FROM or values.dtype != out.dtype:
        return False
    if np.may_share_memory(values, out) or not (out.flags.c_contiguous and out.flags.writeable):
        return False
    if not _within(index, out.shape[axis]) or not native.available():
        return False
    _run(out, index, np.ascontiguousarray(values), axis, True)
    return True


# -- an index for every element ----------------------------------------------------------------------------------------


def _fits(table: Array, index: Array, axis: int) -> bool:
    """Is this large enough and C-contiguous, with shapes that differ along the axis only and indices in range?"""
    return (
        index.size >= ADD_FROM
        and table.flags.c_contiguous
        and index.shape[:axis] == table.shape[:axis]
        and index.shape[axis + 1 :] == table.shape[axis + 1 :]
        and _within(index, table.shape[axis])
        and native.available()
    )


def gather_along(x: Array, index: Array, axis: int) -> Array | None:
    """np.take_along_axis; None where NumPy should do it."""
    bits = _BITS.get(x.itemsize)
    if bits is None or not _fits(x, index, axis):
        return None
    out = buffer_pool.empty(index.shape, x.dtype)
    _run(x.view(bits), index, out.view(bits), axis, False)
    return out


def add_along(out: Array, index: Array, values: Array, axis: int) -> bool:
    """Add `values` (of the index's shape) to the elements that `gather_along` reads, in place. False: use NumPy."""
    if out.dtype not in _ADDED or not _fits(out, index, axis) or not out.flags.writeable:
        return False
    if values.dtype != out.dtype or values.shape != index.shape or np.may_share_memory(values, out):
        return False
    _run(out, index, np.ascontiguousarray(values), axis, True)
    return True
