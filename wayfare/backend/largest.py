"""The largest number among listed places of each plane, and where it was: every kind of max pooling, natively.

The places of all windows of one plane are listed once, in a table (elements of a window, windows), with -1 where a
window reaches over the edge. The first of several largest is taken, and of NaNs the last, as in PyTorch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wayfare.backend import crew, pool
from wayfare.backend.expr import NUMPY, OF_NUMPY
from wayfare.backend.llvm_expr import Writer, memory_type, number, splat_constant, vector
from wayfare.backend.machine import Machine
from wayfare.backend.routine import Routine, function, pointer, word
from wayfare.backend.sliding import address

Array = np.ndarray[Any, np.dtype[Any]]

# Numbers looked at below which NumPy is as fast, and from which on another thread is worth while.
LARGEST_FROM = 256
_SHARE = 1 << 18


def _write(dtype: str, host: Machine) -> str:
    writer = Writer()
    let, size, kind = writer.let, NUMPY[dtype].itemsize, memory_type(dtype)
    lanes = 4 * host.processor.lanes // size
    numbers, short, mask = vector(lanes, kind), f"v{lanes}{dtype}", vector(lanes, "i1")
    whole, long = vector(lanes, "i32"), vector(lanes, "i64")
    planes, windows, elements, plane_bytes = (word(writer, k) for k in range(4, 8))
    image, values, places, table = (pointer(writer, k) for k in range(4))
    nowhere, lowest = splat_constant(lanes, "i32", "-1"), splat_constant(lanes, kind, number(-math.inf, dtype))
    iota = "<" + ", ".join(f"i64 {lane}" for lane in range(lanes)) + ">"

    def at(base: str, index: str, step: str | int) -> str:
        return let(f"getelementptr i8, ptr {base}, i64 {let(f'mul i64 {index}, {step}')}")

    with writer.loop("0", planes, 1) as plane:
        own = at(image, plane, plane_bytes)
        first = let(f"mul i64 {plane}, {windows}")
        with writer.loop("0", windows, lanes) as window:
            numbered = let(f"add {long} {writer.splat(lanes, 'i64', window)}, {iota}")
            there = let(f"icmp slt {long} {numbered}, {writer.splat(lanes, 'i64', windows)}")
            best, place = writer.variable(numbers, lowest), writer.variable(whole, nowhere)
            with writer.loop("0", elements, 1) as element:
                entry = let(f"add i64 {let(f'mul i64 {element}, {windows}')}, {window}")
                listed = writer.intrinsic(
                    f"llvm.masked.load.v{lanes}i32.p0", whole,
                    [("ptr", at(table, entry, 4)), ("i32", "1"), (mask, there), (whole, nowhere)],
                )  # fmt: skip
                inside = let(f"icmp sge {whole} {listed}, zeroinitializer")
                spots = let(f"getelementptr {kind}, ptr {own}, {whole} {listed}")
                x = writer.intrinsic(
                    f"llvm.masked.gather.{short}.v{lanes}p0", numbers,
                    [(vector(lanes, "ptr"), spots), ("i32", "1"), (mask, inside), (numbers, lowest)],
                )  # fmt: skip
                larger = let(f"fcmp ogt {numbers} {x}, {best.get()}")
                is_nan = let(f"fcmp uno {numbers} {x}, {x}")
                none_yet = let(f"icmp slt {whole} {place.get()}, zeroinitializer")
                take = let(f"or {mask} {let(f'or {mask} {larger}, {is_nan}')}, {none_yet}")
                take = let(f"and {mask} {take}, {inside}")
                best.set(let(f"select {mask} {take}, {numbers} {x}, {numbers} {best.get()}"))
                place.set(let(f"select {mask} {take}, {whole} {listed}, {whole} {place.get()}"))
            out = let(f"add i64 {first}, {window}")
            for array, step, name, of, value in (
                (values, size, short, numbers, best.get()),
                (places, 8, f"v{lanes}i64", long, let(f"sext {whole} {place.get()} to {long}")),
            ):
                given = [(of, value), ("ptr", at(array, out, step)), ("i32", "1"), (mask, there)]
                writer.intrinsic(f"llvm.masked.store.{name}.p0", "void", given)
    return function(writer)


_ROUTINES = {
    "f32": Routine("largest_f32", lambda host: _write("f32", host)),
    "f64": Routine("largest_f64", lambda host: _write("f64", host)),
}


def largest(x: Array, table: Array, counts: tuple[int, ...]) -> tuple[Array, Array] | None:
    """(values, places), both (N, C, *counts), of planes (N, C, *sizes); None where NumPy should do it.

    The table is int32, C-contiguous, and lists flat places within a plane.
    """
    routine = _ROUTINES.get(OF_NUMPY.get(x.dtype, ""))
    planes, (elements, windows) = x.shape[0] * x.shape[1], table.shape
    work = planes * windows * elements
    if routine is None or work < LARGEST_FROM or not routine.ready:
        return None
    x = np.ascontiguousarray(x)
    values = pool.empty((*x.shape[:2], *counts), x.dtype)
    places = pool.empty((*x.shape[:2], *counts), np.dtype(np.int64))
    size = math.prod(x.shape[2:]) * x.itemsize
    shares = min(crew.threads(), planes) if work >= _SHARE else 1
    each = -(-planes // shares)
    words: list[int] = []
    starts = range(0, planes, each)
    for start in starts:
        done = start * windows
        words += [
            address(x) + start * size, address(values) + done * x.itemsize, address(places) + done * 8, address(table),
            min(each, planes - start), windows, elements, size,
        ]  # fmt: skip
    routine.run(words, len(starts))
    return values, places
