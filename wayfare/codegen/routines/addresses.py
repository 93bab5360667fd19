"""Gather and scatter-add of rows that are given by address, in native code.

    gather(addresses, out)      out[i] = the row at addresses[i]
    add(addresses, values)      the row at addresses[i] += values[i], in order

Addresses are not checked: the caller keeps the memory alive. These calls are many and small, so one ctypes call goes
from Python to native code, which reads the data pointers out of the array objects. Results do not depend on the number
of threads: for `add`, each thread takes some columns of all rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.codegen.llvm.builder import Writer, memory_type, vector
from wayfare.codegen.llvm.machine import Machine
from wayfare.codegen.llvm.module import DATA_OFFSET
from wayfare.codegen.loop.expr import NUMPY
from wayfare.codegen.routines.routine import NAME, Routine, address_of, function, pointer, word
from wayfare.codegen.runtime import thread_pool
from wayfare.core.counters import COUNTERS

Array = np.ndarray[Any, np.dtype[Any]]

# Bytes from which on several threads are used.
_PARALLEL_FROM = 512 * 1024
# The fewest bytes of a row for one thread of `add`.
_COLUMNS = 128
# How many rows ahead memory is prefetched.
_AHEAD = 8


def split_range(size: int, parts: int, grain: int = 1) -> list[tuple[int, int]]:
    """Split 0 … size into about `parts` ranges that begin at multiples of `grain`."""
    size_of_part = max(-(-size // parts), 1)
    size_of_part = -(-size_of_part // grain) * grain
    return [(begin, min(begin + size_of_part, size)) for begin in range(0, max(size, 1), size_of_part)]


# -- calls -------------------------------------------------------------------------------------------------------------


class _Entry:
    """A native function (array object, array object, rows, bytes), with a Python fallback."""

    __slots__ = ("_plain", "_routine", "call", "kernels")

    def __init__(self, name: str, plain: Any, write: Callable[..., str], *given: Any) -> None:
        self._routine = Routine(name, write, *given)
        self._plain = plain
        # How many kernels a call runs: 0 for the fallback.
        self.kernels = 0
        # Replaced by the function itself at the first call, so that later calls test nothing.
        self.call: Any = self._first_call

    def _first_call(self, *given: Any) -> Any:
        if self._routine.ready:
            # Keeps the GIL: releasing it and taking it back would cost more than a small call.
            kinds = (ctypes.py_object, ctypes.py_object, ctypes.c_int64, ctypes.c_int64)
            self.call = ctypes.PYFUNCTYPE(None, *kinds)(self._routine.address)
            self.kernels = 1
        else:
            self.call = self._plain
        return self.call(*given)


def _entry(arrays: str, writer: Writer) -> str:
    """The IR of a function of two array objects, a number of rows and a number of bytes."""
    body = "\n".join(["entry:", *writer.allocas, *writer.lines, "  ret void"])
    declared = "\n".join(sorted(writer.declared.values()))
    return f"define void @{NAME}({arrays}, i64 %count, i64 %bytes) {{\n{body}\n}}\n{declared}\n"


def _data(writer: Writer, array: str) -> str:
    """The data pointer of an array object."""
    return writer.load("ptr", writer.moved(array, DATA_OFFSET))


def _row(writer: Writer, addresses: str, index: str) -> str:
    return writer.load("ptr", writer.at(addresses, (index, 8)))


def _ask_ahead(writer: Writer, addresses: str, index: str, last: str, writing: bool = False) -> None:
    """Prefetch the start of a later row."""
    later = writer.smaller(writer.add(index, _AHEAD), last)
    flags = [("i32", "1" if writing else "0"), ("i32", "3"), ("i32", "1")]
    writer.intrinsic("llvm.prefetch.p0", "void", [("ptr", _row(writer, addresses, later)), *flags])


def _only_if(writer: Writer, test: str, a: str, b: int, count: str) -> str:
    """`count` if the comparison holds, else 0."""
    return writer.select(writer.compare(test, a, b), count, "0")


def _row_bytes(writer: Writer) -> str:
    """Bytes of a row: %bytes / %count."""
    return writer.div("%bytes", writer.select(writer.compare("sgt", "%count", 0), "%count", "1"))


# -- gather ------------------------------------------------------------------------------------------------------------


def _gather_loops(writer: Writer, addresses: str, out: str, width: str, count: str) -> None:
    last = writer.sub(count, 1)
    left = count
    for size in (1, 2, 4, 8):
        kind = f"i{8 * size}"
        these = _only_if(writer, "eq", width, size, count)
        left = _only_if(writer, "ne", width, size, left)
        with writer.loop("0", these, 1) as i:
            value = writer.load(kind, _row(writer, addresses, i), 1)
            writer.store(kind, value, writer.at(out, (i, size)), 1)
    with writer.loop("0", left, 1) as i:
        _ask_ahead(writer, addresses, i, last)
        copied = [("ptr", writer.at(out, (i, width))), ("ptr", _row(writer, addresses, i)), ("i64", width)]
        writer.intrinsic("llvm.memcpy.p0.p0.i64", "void", [*copied, ("i1", "false")])


def _write_gather(_host: Machine) -> str:
    writer = Writer()
    addresses, out = _data(writer, "%addresses"), _data(writer, "%out")
    _gather_loops(writer, addresses, out, _row_bytes(writer), "%count")
    return _entry("ptr %addresses, ptr %out", writer)


def _write_gather_part(_host: Machine) -> str:
    writer = Writer()
    _gather_loops(writer, pointer(writer, 0), pointer(writer, 1), word(writer, 2), word(writer, 3))
    return function(writer)


def _gather_plainly(addresses: Array, out: Array, count: int, size: int) -> None:
    width = size // max(count, 1)
    target = out.ctypes.data
    for address in addresses.tolist():
        ctypes.memmove(target, address, width)
        target += width


_GATHER = _Entry("gather_addresses", _gather_plainly, _write_gather)
_GATHER_PART = Routine("gather_addresses_part", _write_gather_part)


def gather(addresses: Array, out: Array) -> None:
    """Copy the row at each address to the row of `out` with the same number.

    `addresses` is int64[n], `out` has n rows of any dtype. Both are C-contiguous, and no row is inside `out`.
    """
    size = out.nbytes
    if size >= _PARALLEL_FROM and thread_pool.threads() > 1 and _GATHER_PART.ready:
        count = len(addresses)
        width = size // count
        table, made = address_of(addresses), address_of(out)
        words: list[int] = []
        parts = split_range(count, thread_pool.threads())
        for begin, end in parts:
            words += [table + 8 * begin, made + begin * width, width, end - begin]
        _GATHER_PART.run(words, len(parts))
        return
    _GATHER.call(addresses, out, len(addresses), size)
    COUNTERS.kernels_run += _GATHER.kernels


# -- add ---------------------------------------------------------------------------------------------------------------


def _add_loops(
    writer: Writer, host: Machine, dtype: str, addresses: str, offset: str, values: str, stride: str, width: str,
    count: str,
) -> None:  # fmt: skip
    """Add `width` bytes of each row of the values to the row at each address, starting at an offset in the row."""
    kind, size = memory_type(dtype), NUMPY[dtype].itemsize
    lanes = 4 * host.processor.lanes // size
    columns = writer.div(width, size)
    last = writer.sub(count, 1)
    with writer.loop("0", count, 1) as i:
        _ask_ahead(writer, addresses, i, last, writing=True)
        target = writer.at(_row(writer, addresses, i), (offset, 1))
        source = writer.at(values, (i, stride))
        begin = "0"
        for step in (lanes, 1):
            end = writer.multiple(columns, step)
            elements = kind if step == 1 else vector(step, kind)
            with writer.loop(begin, end, step) as j:
                there, here = writer.at(target, (j, size)), writer.at(source, (j, size))
                old, more = writer.load(elements, there, 1), writer.load(elements, here, 1)
                writer.store(elements, writer.float_add(elements, old, more), there, 1)
            begin = end


def _write_add(dtype: str, host: Machine) -> str:
    writer = Writer()
    addresses, values = _data(writer, "%addresses"), _data(writer, "%values")
    width = _row_bytes(writer)
    _add_loops(writer, host, dtype, addresses, "0", values, width, width, "%count")
    return _entry("ptr %addresses, ptr %values", writer)


def _write_add_part(dtype: str, host: Machine) -> str:
    writer = Writer()
    addresses, offset, values = pointer(writer, 0), word(writer, 1), pointer(writer, 2)
    stride, width, count = (word(writer, k) for k in range(3, 6))
    _add_loops(writer, host, dtype, addresses, offset, values, stride, width, count)
    return function(writer)


def _add_plainly(addresses: Array, values: Array, count: int, size: int) -> None:
    width = size // max(count, 1)
    if not width:
        return
    memory: Any = ctypes.c_char * width
    for address, value in zip(addresses.tolist(), values.reshape(count, -1), strict=True):
        row = np.ndarray(value.shape, values.dtype, memory.from_address(address))
        row += value


_ADD = {NUMPY[d]: _Entry(f"add_addresses_{d}", _add_plainly, _write_add, d) for d in ("f32", "f64")}
_ADD_PART = {NUMPY[d]: Routine(f"add_addresses_part_{d}", _write_add_part, d) for d in ("f32", "f64")}


def add(addresses: Array, values: Array) -> None:
    """Add each row of `values` to the row of the same dtype at the address with its number, in order.

    `addresses` is int64[n], `values` has n rows; both are C-contiguous. Addresses may repeat.
    None of the rows is inside `values`.
    """
    size, count = values.nbytes, len(addresses)
    entry = _ADD.get(values.dtype)
    if entry is None:
        # There is no native f16 arithmetic.
        _add_plainly(addresses, values, count, size)
        return
    if size >= _PARALLEL_FROM and thread_pool.threads() > 1 and size // count >= 2 * _COLUMNS:
        routine = _ADD_PART[values.dtype]
        if routine.ready:
            width = size // count
            table, given = address_of(addresses), address_of(values)
            words: list[int] = []
            # Full cache lines, to avoid false sharing.
            parts = split_range(width, min(thread_pool.threads(), width // _COLUMNS), 64)
            for begin, end in parts:
                words += [table, begin, given + begin, width, end - begin, count]
            routine.run(words, len(parts))
            return
    entry.call(addresses, values, count, size)
    COUNTERS.kernels_run += entry.kernels
