"""Gather and scatter-add by index, in native code.

    gather_rows(x, index)               out[i] = x[index[i]]
    add_rows(out, index, values)        out[index[i]] += values[i], in order
    gather_along(x, index, axis)        np.take_along_axis
    add_along(out, index, values, axis) its adjoint

All return None or False where NumPy is as fast, where arrays are not C-contiguous, and where an index is negative or
out of range; then the caller uses NumPy, which wraps or raises. Results are bitwise those of NumPy's loop over the
indices, with any number of threads: for the adds, threads split columns or rows of `out`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.codegen.llvm.builder import Writer, memory_type, vector
from wayfare.codegen.llvm.machine import Machine
from wayfare.codegen.loop.expr import NUMPY
from wayfare.codegen.routines.routine import Routine, address_of, function, pointer, word
from wayfare.codegen.runtime import thread_pool
from wayfare.core import buffer_pool

Array = np.ndarray[Any, np.dtype[Any]]

# Bytes from which on native code gathers faster than NumPy (only through threads and pooled memory), and elements from
# which on it adds faster.
GATHER_FROM = 4 * 1024 * 1024
ADD_FROM = 2048
# With fewer rows than this, callers use NumPy without asking.
ROWS_FROM = 64
# Bytes from which on several threads are used.
_PARALLEL_FROM = 512 * 1024
# How many rows ahead memory is prefetched.
_AHEAD = 8
_INDEX = np.dtype(np.int64)


# -- rows --------------------------------------------------------------------------------------------------------------


def _write_gather(_host: Machine) -> str:
    writer = Writer()
    x, index, out = (pointer(writer, k) for k in range(3))
    stride, width, count = (word(writer, k) for k in range(3, 6))
    last = writer.sub(count, 1)
    with writer.loop("0", count, 1) as i:
        later = writer.smaller(writer.add(i, _AHEAD), last)
        next_row = writer.load("i64", writer.at(index, (later, 8)))
        flags = [("i32", "0"), ("i32", "3"), ("i32", "1")]
        writer.intrinsic("llvm.prefetch.p0", "void", [("ptr", writer.at(x, (next_row, stride))), *flags])
        row = writer.load("i64", writer.at(index, (i, 8)))
        target, source = writer.at(out, (i, width)), writer.at(x, (row, stride))
        copied = [("ptr", target), ("ptr", source), ("i64", width), ("i1", "false")]
        writer.intrinsic("llvm.memcpy.p0.p0.i64", "void", copied)
    return function(writer)


_GATHER = Routine("gather_rows", _write_gather)


def gather_rows(x: Array, index: Array) -> Array | None:
    """x[index] along dimension 0; None where NumPy should do it."""
    tail = x.shape[1:]
    width = math.prod(tail) * x.itemsize
    moved = width * index.size
    # NumPy copies narrow rows just as fast.
    if moved < GATHER_FROM or width < 32 or not x.flags.c_contiguous:
        return None
    if not _within(index, x.shape[0]) or not _GATHER.ready:
        return None
    index_array = np.ascontiguousarray(index)
    out = buffer_pool.empty(index.shape + tail, x.dtype)
    words: list[int] = []
    parts = split_range(index.size, _threads(moved))
    table, chosen, made = address_of(x), address_of(index_array), address_of(out)
    for begin, end in parts:
        words += [table, chosen + 8 * begin, made + begin * width, width, width, end - begin]
    _GATHER.run(words, len(parts))
    return out


def _write_add(dtype: str, host: Machine) -> str:
    kind, size = memory_type(dtype), NUMPY[dtype].itemsize
    writer = Writer()
    out, index, values = (pointer(writer, k) for k in range(3))
    outer_stride, stride, outer_values, value_stride = (word(writer, k) for k in range(3, 7))
    outer, count, width, low, length = (word(writer, k) for k in range(7, 12))
    lanes = 4 * host.processor.lanes // size
    with writer.loop("0", outer, 1) as o, writer.loop("0", count, 1) as i:
        row = writer.load("i64", writer.at(index, (i, 8)))
        # Rows of other threads are skipped: the loop over their columns is empty.
        mine = writer.compare("ult", writer.sub(row, low), length)
        columns = writer.select(mine, width, "0")
        target = writer.at(out, (o, outer_stride), (row, stride))
        source = writer.at(values, (o, outer_values), (i, value_stride))
        begin = "0"
        for step in (lanes, 4, 1):
            end = writer.multiple(columns, step)
            with writer.loop(begin, end, step) as j:
                there, here = (writer.at(p, (j, size)) for p in (target, source))
                _add_to(writer, kind if step == 1 else vector(step, kind), there, here)
            begin = end
    return function(writer)


def _add_to(writer: Writer, kind: str, target: str, source: str) -> None:
    old, more = writer.load(kind, target, 1), writer.load(kind, source, 1)
    how = "fadd" if "float" in kind or "double" in kind else "add"
    writer.store(kind, writer.let(f"{how} {kind} {old}, {more}"), target, 1)


# f16 is left to NumPy: there is no native f16 arithmetic.
_ADDED = tuple(d for d in NUMPY if d not in ("bool", "f16"))
_ADD = {NUMPY[d]: Routine(f"add_rows_{d}", _write_add, d) for d in _ADDED}


def add_rows(out: Array, index: Array, values: Array, axis: int = 0) -> bool:
    """Add `values` to `out`, in place, at the indices `index` (1-D) along `axis`.

    `values` has the shape of `out` but for `axis`, where it has the index's size. False where NumPy should do it.
    """
    routine = _ADD.get(out.dtype)
    if routine is None or values.size < ADD_FROM or values.dtype != out.dtype or np.may_share_memory(values, out):
        return False
    if not (out.flags.c_contiguous and out.flags.writeable and _within(index, out.shape[axis]) and routine.ready):
        return False
    values, index = np.ascontiguousarray(values), np.ascontiguousarray(index)
    size = out.itemsize
    outer, rows, count = math.prod(out.shape[:axis]), out.shape[axis], index.size
    width = math.prod(out.shape[axis + 1 :])
    threads = _threads(values.nbytes)
    steps = [rows * width * size, width * size, count * width * size, width * size]
    words: list[int] = []
    if outer >= threads:
        parts = split_range(outer, threads)
        for a, b in parts:
            given = [address_of(out) + a * steps[0], address_of(index), address_of(values) + a * steps[2]]
            words += [*given, *steps, b - a, count, width, 0, rows]
    elif width * size >= 128 * threads:
        # Full cache lines, to avoid false sharing.
        parts = split_range(width, threads, 64 // size)
        for a, b in parts:
            given = [address_of(out) + a * size, address_of(index), address_of(values) + a * size]
            words += [*given, *steps, outer, count, b - a, 0, rows]
    else:
        # Every thread reads the whole index: for narrow rows that is as much as the work itself.
        parts = split_range(rows, threads if width > 4 else 1)
        for a, b in parts:
            given = [address_of(out), address_of(index), address_of(values)]
            words += [*given, *steps, outer, count, width, a, b - a]
    routine.run(words, len(parts))
    return True


# -- an index for every element ----------------------------------------------------------------------------------------


def _along(writer: Writer, size: int, visit: Callable[[str, str], None]) -> str:
    """`visit(address in the table, address in the values)` for every index."""
    table, index, values = (pointer(writer, k) for k in range(3))
    outer_table, row_table, outer_index, row_index, outer_values, row_values = (word(writer, k) for k in range(3, 9))
    outer, count, width = (word(writer, k) for k in range(9, 12))
    with writer.loop("0", outer, 1) as o, writer.loop("0", count, 1) as i:
        table_row = writer.at(table, (o, outer_table))
        index_row = writer.at(index, (o, outer_index), (i, row_index))
        values_row = writer.at(values, (o, outer_values), (i, row_values))
        with writer.loop("0", width, 1) as j:
            row = writer.load("i64", writer.at(index_row, (j, 8)))
            visit(writer.at(table_row, (row, row_table), (j, size)), writer.at(values_row, (j, size)))
    return function(writer)


def _write_gather_along(size: int, _host: Machine) -> str:
    writer, kind = Writer(), f"i{8 * size}"

    def visit(element: str, target: str) -> None:
        writer.store(kind, writer.load(kind, element, 1), target, 1)

    return _along(writer, size, visit)


def _write_add_along(dtype: str, _host: Machine) -> str:
    writer = Writer()
    return _along(writer, NUMPY[dtype].itemsize, lambda to, value: _add_to(writer, memory_type(dtype), to, value))


_GATHER_ALONG = {size: Routine(f"gather_along_{8 * size}", _write_gather_along, size) for size in (1, 2, 4, 8)}
_ADD_ALONG = {NUMPY[d]: Routine(f"add_along_{d}", _write_add_along, d) for d in _ADDED}


def _fits(table: Array, index: Array, axis: int) -> bool:
    """Is this large enough and C-contiguous, with shapes that differ along the axis only and indices in range?"""
    return (
        index.size >= ADD_FROM
        and table.flags.c_contiguous
        and index.shape[:axis] == table.shape[:axis]
        and index.shape[axis + 1 :] == table.shape[axis + 1 :]
        and _within(index, table.shape[axis])
    )


def gather_along(x: Array, index: Array, axis: int) -> Array | None:
    """np.take_along_axis; None where NumPy should do it."""
    routine = _GATHER_ALONG.get(x.itemsize)
    if routine is None or not _fits(x, index, axis) or not routine.ready:
        return None
    out = buffer_pool.empty(index.shape, x.dtype)
    _run_along(routine, x, index, out, axis, True)
    return out


def add_along(out: Array, index: Array, values: Array, axis: int) -> bool:
    """Add `values` (of the index's shape) to the elements that `gather_along` reads, in place. False: use NumPy."""
    routine = _ADD_ALONG.get(out.dtype)
    if routine is None or not _fits(out, index, axis) or not out.flags.writeable:
        return False
    if values.dtype != out.dtype or values.shape != index.shape or np.may_share_memory(values, out):
        return False
    if not routine.ready:
        return False
    _run_along(routine, out, index, np.ascontiguousarray(values), axis, False)
    return True


def _run_along(routine: Routine, table: Array, index: Array, values: Array, axis: int, reading: bool) -> None:
    index = np.ascontiguousarray(index)
    size = table.itemsize
    outer, rows, count = math.prod(table.shape[:axis]), table.shape[axis], index.shape[axis]
    width = math.prod(table.shape[axis + 1 :])
    steps = [rows * width * size, width * size, count * width * 8, width * 8, count * width * size, width * size]
    threads = _threads(values.nbytes + index.nbytes)
    words: list[int] = []
    if outer >= threads:
        parts = split_range(outer, threads)
        for a, b in parts:
            given = [address_of(x) + a * step for x, step in ((table, steps[0]), (index, steps[2]), (values, steps[4]))]
            words += [*given, *steps, b - a, count, width]
    elif reading:
        parts = split_range(count, threads)
        for a, b in parts:
            given = [address_of(table), address_of(index) + a * steps[3], address_of(values) + a * steps[5]]
            words += [*given, *steps, outer, b - a, width]
    else:
        parts = split_range(width, threads, 64 // size)
        for a, b in parts:
            given = [address_of(table) + a * size, address_of(index) + a * 8, address_of(values) + a * size]
            words += [*given, *steps, outer, count, b - a]
    routine.run(words, len(parts))


# -- splitting ---------------------------------------------------------------------------------------------------------


def _within(index: Array, size: int) -> bool:
    """Is every index an int64 from 0 to size - 1? Read as unsigned, negative numbers are huge: one comparison."""
    return index.dtype == _INDEX and bool(np.maximum.reduce(index.view(np.uint64), axis=None, initial=0) < size)


def _threads(moved: int) -> int:
    """How many threads to use for so many bytes."""
    return thread_pool.threads() if moved >= _PARALLEL_FROM else 1


def split_range(size: int, parts: int, grain: int = 1) -> list[tuple[int, int]]:
    """Split 0 … size into about `parts` ranges that begin at multiples of `grain`."""
    size_of_part = max(-(-size // parts), 1)
    size_of_part = -(-size_of_part // grain) * grain
    return [(begin, min(begin + size_of_part, size)) for begin in range(0, max(size, 1), size_of_part)]
