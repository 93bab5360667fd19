"""Cumulative sums and products, and linear recurrences, along one axis in native code.

    running("add", x, dim, reverse)     out[i] = out[i - 1] + x[i]; also "mul"
    linear(a, b, dim, reverse)          out[i] = b[i] + a[i] * out[i - 1]

The carry is a float64 for every dtype, so rounding errors of a long float32 scan do not accumulate: each element is
rounded once, when it is stored. The functions return None where NumPy should do it: small arrays, no native code.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wayfare.codegen.llvm.builder import Writer
from wayfare.codegen.llvm.expr import Body
from wayfare.codegen.llvm.machine import Machine
from wayfare.codegen.loop.expr import NUMPY
from wayfare.codegen.routines.routine import Routine, address_of, function, pointer, word
from wayfare.codegen.runtime import thread_pool
from wayfare.core import buffer_pool

Array = np.ndarray[Any, np.dtype[Any]]

# Elements from which on native code is faster than NumPy.
NATIVE_FROM = 2048
# Elements from which on several threads are used.
_PARALLEL_FROM = 1 << 15
# Neighbouring columns that are scanned together, as the lanes of a vector.
_STEPS = (16, 4, 1)


def _write(dtype: str, how: str, _host: Machine) -> str:
    """The words of a block: the addresses of a, b, out (only linear scans use b); the byte strides along a scan and
    from group to group of columns; the numbers of elements, groups and columns."""
    writer = Writer()
    item = NUMPY[dtype].itemsize
    a, b, out = (pointer(writer, k) for k in range(3))
    along, apart, size, groups, columns = (word(writer, k) for k in range(3, 8))
    with writer.loop("0", groups, 1) as group:
        start = writer.mul(group, apart)
        done = "0"
        for lanes in _STEPS:
            stop = writer.multiple(columns, lanes)
            with writer.loop(done, stop, lanes) as column:
                first = writer.add(start, writer.mul(column, item))
                _write_scan(Body(writer, lanes), dtype, how, (a, b, out), first, along, size)
            done = stop
    return function(writer)


def _write_scan(
    body: Body, dtype: str, how: str, arrays: tuple[str, str, str], first: str, along: str, size: str
) -> None:
    """Scan as many columns as the body has lanes."""
    writer, (a, b, out), kind = body.writer, arrays, body.type(dtype)

    def load(base: str, offset: str) -> str:
        return body.cast(writer.load(kind, writer.moved(base, offset), 1), dtype, "f64")

    def store(value: str, offset: str) -> None:
        address = writer.moved(out, offset)
        writer.store(kind, body.cast(value, "f64", dtype), address, 1)

    # The first element is copied. In a linear scan the first factor a[0] is not used.
    carried = writer.variable(body.type("f64"), load(b if how == "linear" else a, first))
    store(carried.get(), first)
    with writer.loop("1", size, 1) as step:
        offset = writer.add(first, writer.mul(step, along))
        x = load(a, offset)
        if how == "linear":
            value = body.arithmetic("add", "f64", load(b, offset), body.arithmetic("mul", "f64", x, carried.get()))
        else:
            value = body.arithmetic(how, "f64", carried.get(), x)
        carried.set(value)
        store(value, offset)


_ROUTINES = {
    (how, NUMPY[d]): Routine(f"scan_{how}_{d}", _write, d, how)
    for how in ("add", "mul", "linear")
    for d in ("f32", "f64")
}


def running(how: str, x: Array, dim: int, reverse: bool) -> Array | None:
    """The cumulative sum ("add") or product ("mul") along `dim`, from the end if `reverse`."""
    routine = _routine(how, x)
    if routine is None:
        return None
    x = np.ascontiguousarray(x)
    return _run(routine, x, x, dim, reverse)


def linear(a: Array, b: Array, dim: int, reverse: bool) -> Array | None:
    """b[i] + a[i] out[i - 1] along `dim`, or with `reverse` b[i] + a[i] out[i + 1]."""
    routine = _routine("linear", b)
    if routine is None or a.dtype != b.dtype or a.shape != b.shape:
        return None
    return _run(routine, np.ascontiguousarray(a), np.ascontiguousarray(b), dim, reverse)


def _routine(how: str, x: Array) -> Routine | None:
    found = _ROUTINES.get((how, x.dtype))
    return found if found is not None and x.size >= max(NATIVE_FROM, 1) and found.ready else None


def _run(routine: Routine, a: Array, b: Array, dim: int, reverse: bool) -> Array:
    out = buffer_pool.empty(b.shape, b.dtype)
    size, columns = b.shape[dim], math.prod(b.shape[dim + 1 :])
    groups, item = b.size // (size * columns), b.itemsize
    along = columns * item
    apart = size * along
    last = (size - 1) * along if reverse else 0
    addresses = [address_of(array) + last for array in (a, b, out)]
    parts = thread_pool.threads() if b.size >= _PARALLEL_FROM else 1
    words: list[int] = []
    count = 0
    # Threads split the groups or, if there are too few, the columns.
    by_group = groups >= parts
    total, unit = (groups, 1) if by_group else (columns, _STEPS[0])
    each = -(-total // (parts * unit)) * unit
    for begin in range(0, total, each):
        part = min(each, total - begin)
        offset = begin * (apart if by_group else item)
        given = (part, columns) if by_group else (groups, part)
        words += [*(address + offset for address in addresses), -along if reverse else along, apart, size, *given]
        count += 1
    routine.run(words, count)
    return out
