"""Reductions over segments of rows, and their broadcasts, in native code.

    reduce(x, offsets, "add")           out[s] = x[offsets[s]:offsets[s + 1]].sum(0); also "maximum", "minimum"
    spread(table, offsets)              out[i] = table[s] for every row i of segment s
    combine(x, table, offsets, "sub")   out[i] = x[i] - table[s]; also "div"

The caller has checked the offsets. An empty segment gives 0, or the dtype's lowest or highest number. Float32 sums of
short blocks are added in float64, so that the error does not grow with the length of a segment. Without native code
NumPy does the work, and adds in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from wayfare.codegen.llvm.builder import Writer, memory_type, vector
from wayfare.codegen.llvm.expr import Body
from wayfare.codegen.llvm.machine import Machine
from wayfare.codegen.llvm.reduction import neutral
from wayfare.codegen.loop.expr import FLOATS, NUMPY, OF_NUMPY
from wayfare.codegen.loop.instruction import INSTRUCTIONS
from wayfare.codegen.routines.routine import Routine, address_of, function, pointer, word
from wayfare.codegen.runtime import thread_pool
from wayfare.core import buffer_pool

Array = np.ndarray[Any, np.dtype[Any]]

# Elements from which on native code is faster than NumPy.
NATIVE_FROM = 512
# Bytes from which on several threads are used.
_PARALLEL_FROM = 512 * 1024
# What the loop language calls these reductions.
_KINDS = {"add": "sum", "maximum": "max", "minimum": "min"}
# Rows of a block: their sum is added to the float64 total.
_BLOCK = 64


def _ufunc(how: str) -> Any:
    return INSTRUCTIONS[how].numpy


# -- the routines ------------------------------------------------------------------------------------------------------


class _Segments:
    """The loop over segments and columns that all routines share.

    The words of a block: addresses of x, offsets, table, out; bytes of a row; columns; first and end segment.
    """

    def __init__(self, host: Machine, dtype: str) -> None:
        self.writer = Writer()
        self.dtype, self.kind, self.size = dtype, memory_type(dtype), NUMPY[dtype].itemsize
        self.x, self.offsets, self.table, self.out = (pointer(self.writer, k) for k in range(4))
        self.stride, self.columns, self.first, self.last = (word(self.writer, k) for k in range(4, 8))
        lanes = max(4 * host.processor.lanes // self.size, 4)
        # Several vectors at once hide the latency of the addition.
        self.steps = sorted({4 * lanes, lanes, 4, 1}, reverse=True)

    def at(self, base: str, row: str, column: str) -> str:
        """The address of an element."""
        writer = self.writer
        return writer.moved(base, writer.add(writer.mul(row, self.stride), writer.mul(column, self.size)))

    def load(self, kind: str, base: str, row: str, column: str) -> str:
        """Load contiguous elements."""
        return self.writer.load(kind, self.at(base, row, column), 1)

    def store(self, kind: str, value: str, base: str, row: str, column: str) -> None:
        """Store contiguous elements."""
        self.writer.store(kind, value, self.at(base, row, column), 1)

    def visit(self, body: Callable[[str, int, str, str, str], None]) -> str:
        """`body(segment, lanes, column, first row, end row)` for all columns of all segments."""
        writer = self.writer
        with writer.loop(self.first, self.last, 1) as segment:
            entry = writer.element("i64", self.offsets, segment)
            begin, end = writer.load("i64", entry), writer.load("i64", writer.element("i64", entry, 1))
            done = "0"
            for step in self.steps:
                stop = writer.multiple(self.columns, step)
                with writer.loop(done, stop, step) as column:
                    body(segment, step, column, begin, end)
                done = stop
        return function(writer)


def _write_reduce(dtype: str, how: str, host: Machine) -> str:
    loops = _Segments(host, dtype)
    writer = loops.writer

    def body(segment: str, lanes: int, column: str, begin: str, end: str) -> None:
        kind = vector(lanes, loops.kind)
        words = Body(writer, lanes)
        start = words.constant(neutral(_KINDS[how], dtype), dtype)
        wide = "f64" if how == "add" and dtype == "f32" else dtype
        total = writer.variable(words.type(wide), words.constant(neutral(_KINDS[how], dtype), wide))
        with writer.loop(begin, end, _BLOCK) as block:
            stop = writer.smaller(writer.add(block, _BLOCK), end)
            part = writer.variable(kind, start)
            with writer.loop(block, stop, 1) as row:
                part.set(_two(words, how, dtype, part.get(), loops.load(kind, loops.x, row, column)))
            done = part.get() if wide == dtype else words.cast(part.get(), dtype, wide)
            total.set(_two(words, how, wide, total.get(), done))
        result = total.get() if wide == dtype else words.cast(total.get(), wide, dtype)
        loops.store(kind, result, loops.out, segment, column)

    return loops.visit(body)


def _write_spread(dtype: str, how: str, host: Machine) -> str:
    loops = _Segments(host, dtype)

    def body(segment: str, lanes: int, column: str, begin: str, end: str) -> None:
        kind = vector(lanes, loops.kind)
        words = Body(loops.writer, lanes)
        value = loops.load(kind, loops.table, segment, column)
        with loops.writer.loop(begin, end, 1) as row:
            result = value
            if how != "copy":
                result = words.arithmetic(how, dtype, loops.load(kind, loops.x, row, column), value)
            loops.store(kind, result, loops.out, row, column)

    return loops.visit(body)


def _two(words: Body, how: str, dtype: str, a: str, b: str) -> str:
    return words.arithmetic(how, dtype, a, b) if how == "add" else words.extreme(how, dtype, a, b)


# bool and f16 are left to NumPy and to the caller.
_DTYPES = tuple(d for d in NUMPY if d not in ("bool", "f16"))
_ROUTINES = {
    (how, NUMPY[d]): Routine(f"segment_{how}_{d}", write, d, how)
    for write, ways in ((_write_reduce, ("add", "maximum", "minimum")), (_write_spread, ("copy", "sub", "div")))
    for how in ways
    for d in _DTYPES
    if how != "div" or d in FLOATS
}


# -- the functions -----------------------------------------------------------------------------------------------------


def reduce(x: Array, offsets: Array, how: str) -> Array:
    """Reduce each segment to one row: `x` [total, …] → [segments, …]."""
    shape = (offsets.size - 1, *x.shape[1:])
    routine = _routine(how, x)
    if routine is not None:
        x = np.ascontiguousarray(x)
        out = buffer_pool.empty(shape, x.dtype)
        _run(routine, x, offsets, x, out, math.prod(x.shape[1:]))
        return out
    out = np.full(shape, neutral(_KINDS[how], OF_NUMPY[x.dtype]), x.dtype)
    # Without the empty segments, each segment ends where the next one begins, as reduceat needs it.
    full = np.flatnonzero(offsets[1:] > offsets[:-1])
    if full.size:
        out[full] = _ufunc(how).reduceat(x, offsets[full], axis=0, dtype=x.dtype)
    return out


def spread(table: Array, offsets: Array) -> Array:
    """Repeat the row of each segment for all its rows: `table` [segments, …] → [total, …]."""
    total = int(offsets[-1])
    shape = (total, *table.shape[1:])
    width = math.prod(table.shape[1:])
    routine = _routine("copy", table, total * width)
    if routine is None:
        return np.repeat(table, offsets[1:] - offsets[:-1], axis=0)
    table = np.ascontiguousarray(table)
    out = buffer_pool.empty(shape, table.dtype)
    _run(routine, out, offsets, table, out, width)
    return out


def combine(x: Array, table: Array, offsets: Array, how: str) -> Array:
    """Combine every row with the row of its segment: `x` [total, …], `table` [segments, …] → [total, …]."""
    routine = _routine(how, x)
    if routine is None or table.dtype != x.dtype:
        return _ufunc(how)(x, np.repeat(table, offsets[1:] - offsets[:-1], axis=0))  # type: ignore[no-any-return]
    x, table = np.ascontiguousarray(x), np.ascontiguousarray(table)
    out = buffer_pool.empty(x.shape, x.dtype)
    _run(routine, x, offsets, table, out, math.prod(x.shape[1:]))
    return out


def _routine(how: str, x: Array, size: int | None = None) -> Routine | None:
    """The native routine, if there is one and the array is large enough."""
    found = _ROUTINES.get((how, x.dtype))
    if found is None or (x.size if size is None else size) < NATIVE_FROM or not found.ready:
        return None
    return found


def _run(routine: Routine, x: Array, offsets: Array, table: Array, out: Array, width: int) -> None:
    """Run with one argument block for each thread, with about equal numbers of rows."""
    offsets = np.ascontiguousarray(offsets)
    segments, total = offsets.size - 1, int(offsets[-1])
    row = width * x.itemsize
    parts = thread_pool.threads() if total * row >= _PARALLEL_FROM else 1
    marks = [total * k // parts for k in range(1, parts)]
    bounds = [0, *np.searchsorted(offsets[:-1], marks).tolist(), segments]
    given = [address_of(x), address_of(offsets), address_of(table), address_of(out), row, width]
    words: list[int] = []
    for begin, end in pairwise(bounds):
        words += [*given, begin, end]
    routine.run(words, parts)
