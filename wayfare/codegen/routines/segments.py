"""Reductions over segments of rows, and their broadcasts.

    reduce(x, offsets, "add")           out[s] = x[offsets[s]:offsets[s + 1]].sum(0); also "maximum", "minimum"
    spread(table, offsets)              out[i] = table[s] for every row i of segment s
    combine(x, table, offsets, "sub")   out[i] = x[i] - table[s]; also "div"

The caller has checked the offsets. An empty segment gives 0, or the dtype's lowest or highest number. Float32 sums of
short blocks are added in float64, so that the error does not grow with the length of a segment. Without native code
NumPy does the work, and adds in another order.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from wayfare.codegen.llvm.builder import Writer, memory_type, vector
from wayfare.codegen.llvm.expr import Body
from wayfare.codegen.llvm.machine import Machine
from wayfare.codegen.loop.expr import FLOATS, NARROW, NUMPY, OF_NUMPY, Expr, load, neutral
from wayfare.codegen.loop.instruction import INSTRUCTIONS
from wayfare.codegen.loop.language import Loop, Operand, Stage
from wayfare.codegen.loop.window import largest, load_at, long_total
from wayfare.codegen.routines.routine import Routine, address_of, function, pointer, word
from wayfare.codegen.runtime import kernel as native
from wayfare.codegen.runtime import thread_pool
from wayfare.codegen.runtime.kernel import Kernel
from wayfare.core import buffer_pool

Array = np.ndarray[Any, np.dtype[Any]]

# Elements from which on native code is faster than NumPy.
NATIVE_FROM = 512
# Bytes from which on several threads are used.
_PARALLEL_FROM = 512 * 1024
# What the loop language calls these reductions.
_KINDS = {"add": "sum", "maximum": "max", "minimum": "min"}
# bool and narrow floats are left to NumPy and to the caller.
_DTYPES = frozenset(NUMPY[d] for d in NUMPY if d not in ("bool", *NARROW))


def _ufunc(how: str) -> Any:
    return INSTRUCTIONS[how].numpy


# -- the loop ----------------------------------------------------------------------------------------------------------


@cache
def _reducing(dtype: str, how: str) -> Kernel:
    """Rows are segments: x[begin …, column] of the elements of a segment."""
    begin, end = load(1, "i64"), load(2, "i64")
    number = Operand("i64", per_row=True)

    def element(k: Expr) -> Expr:
        return load_at(0, dtype, begin + k)

    value = long_total(end - begin, element) if how == "add" else largest(end - begin, element, how)
    return native.build(Loop(f"segment_{how}", (Operand(dtype, axes=1), number, number), (Operand(dtype),),
                             (Stage(((0, value),)),)))  # fmt: skip


# -- the routine -------------------------------------------------------------------------------------------------------


def _write_spread(dtype: str, how: str, host: Machine) -> str:
    """Segment by segment. As a loop over rows with the number of each row's segment, this took up to twice as long for
    narrow rows: the numbers must be made first, and every row looks up its own.

    The words of a block: addresses of x, offsets, table, out; bytes of a row; columns; first and end segment.
    """
    writer = Writer()
    x, offsets, table, out = (pointer(writer, k) for k in range(4))
    stride, columns, first, last = (word(writer, k) for k in range(4, 8))
    size = NUMPY[dtype].itemsize
    lanes = max(4 * host.processor.lanes // size, 4)
    with writer.loop(first, last, 1) as segment:
        entry = writer.element("i64", offsets, segment)
        begin, end = writer.load("i64", entry), writer.load("i64", writer.element("i64", entry, 1))
        done = "0"
        # Several vectors at once share the work of a row.
        for step in sorted({4 * lanes, lanes, 4, 1}, reverse=True):
            stop, kind = writer.multiple(columns, step), vector(step, memory_type(dtype))
            with writer.loop(done, stop, step) as column:
                value = writer.load(kind, writer.at(table, (segment, stride), (column, size)), 1)
                with writer.loop(begin, end, 1) as row:
                    result = value
                    if how != "copy":
                        own = writer.load(kind, writer.at(x, (row, stride), (column, size)), 1)
                        result = Body(writer, step).arithmetic(how, dtype, own, value)
                    writer.store(kind, result, writer.at(out, (row, stride), (column, size)), 1)
            done = stop
    return function(writer)


_SPREAD = {
    (how, NUMPY[d]): Routine(f"segment_{how}_{d}", _write_spread, d, how)
    for how in ("copy", "sub", "div")
    for d in NUMPY
    if NUMPY[d] in _DTYPES and (how != "div" or d in FLOATS)
}


# -- the functions -----------------------------------------------------------------------------------------------------


def reduce(x: Array, offsets: Array, how: str) -> Array:
    """Reduce each segment to one row: `x` [total, …] → [segments, …]."""
    segments = offsets.size - 1
    shape = (segments, *x.shape[1:])
    if _native(x, x.size) and segments:
        width = math.prod(x.shape[1:])
        table = np.ascontiguousarray(x).reshape(-1, width)
        out = buffer_pool.empty((segments, width), x.dtype)
        given = [table.T[None], offsets[:-1, None], offsets[1:, None]]
        _reducing(OF_NUMPY[x.dtype], how).into(given, [out], out.shape, (1,), len(table) / segments)
        return out.reshape(shape)
    out = np.full(shape, neutral(_KINDS[how], OF_NUMPY[x.dtype]), x.dtype)
    # Without the empty segments, each segment ends where the next one begins, as reduceat needs it.
    full = np.flatnonzero(offsets[1:] > offsets[:-1])
    if full.size:
        out[full] = _ufunc(how).reduceat(x, offsets[full], axis=0, dtype=x.dtype)
    return out


def spread(table: Array, offsets: Array) -> Array:
    """Repeat the row of each segment for all its rows: `table` [segments, …] → [total, …]."""
    shape = (int(offsets[-1]), *table.shape[1:])
    routine = _SPREAD.get(("copy", table.dtype))
    if routine is None or not _native(table, math.prod(shape)) or not routine.ready:
        return np.repeat(table, offsets[1:] - offsets[:-1], axis=0)
    out = buffer_pool.empty(shape, table.dtype)
    return _spread(routine, out, table, offsets, out)


def combine(x: Array, table: Array, offsets: Array, how: str) -> Array:
    """Combine every row with the row of its segment: `x` [total, …], `table` [segments, …] → [total, …]."""
    routine = _SPREAD.get((how, x.dtype))
    if routine is None or not _native(x, x.size) or table.dtype != x.dtype or not routine.ready:
        return _ufunc(how)(x, np.repeat(table, offsets[1:] - offsets[:-1], axis=0))  # type: ignore[no-any-return]
    return _spread(routine, np.ascontiguousarray(x), table, offsets, buffer_pool.empty(x.shape, x.dtype))


def _spread(routine: Routine, x: Array, table: Array, offsets: Array, out: Array) -> Array:
    """Run with one argument block for each thread, with about equal numbers of rows."""
    offsets, table = np.ascontiguousarray(offsets), np.ascontiguousarray(table)
    segments, total, width = offsets.size - 1, int(offsets[-1]), math.prod(x.shape[1:])
    row = width * x.itemsize
    parts = thread_pool.threads() if total * row >= _PARALLEL_FROM else 1
    marks = [total * k // parts for k in range(1, parts)]
    bounds = [0, *np.searchsorted(offsets[:-1], marks).tolist(), segments]
    given = [address_of(x), address_of(offsets), address_of(table), address_of(out), row, width]
    words: list[int] = []
    for begin, end in pairwise(bounds):
        words += [*given, begin, end]
    routine.run(words, parts)
    return out


def _native(x: Array, size: int) -> bool:
    """Is there a loop for this dtype, and is the array large enough?"""
    return x.dtype in _DTYPES and size >= NATIVE_FROM and native.available()
