"""The largest number among listed places of each plane, and where it was: every kind of max pooling, natively.

The places of all windows of one plane are listed once, in a table (elements of a window, windows), with -1 where a
window reaches over the edge. The first of several largest is taken, and of NaNs the last, as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from wayfare.codegen.llvm.expr import Writer, memory_type, number, splat_constant, vector
from wayfare.codegen.llvm.machine import Machine
from wayfare.codegen.loop.expr import NUMPY, OF_NUMPY
from wayfare.codegen.routines.routine import Routine, function, pointer, word
from wayfare.codegen.routines.windows import Sizes, Slide, address
from wayfare.codegen.runtime import thread_pool
from wayfare.codegen.runtime.command import Command, Place, Unsuited
from wayfare.core import buffer_pool

Array = np.ndarray[Any, np.dtype[Any]]

# Numbers looked at below which NumPy is as fast, and from which on another thread is worth while.
LARGEST_FROM = 256
_SHARE = 1 << 18
# Nanoseconds of looking at one number.
_COST = 0.3
# Places that are listed for the windows of one plane at most.
LONGEST_TABLE = 1 << 22


@lru_cache(maxsize=64)
def window_table(sizes: Sizes, slide: Slide) -> Array:
    """The flat places of the elements of each window, (elements, windows) as int32; -1 outside the plane."""
    rank = len(sizes)
    places: Any = 0
    inside: Any = True
    for axis, (n, k, s, p, d, o) in enumerate(
        zip(sizes, slide.kernel, slide.stride, slide.padding, slide.dilation, slide.counts, strict=True)
    ):
        at = np.arange(k)[:, None] * d + np.arange(o) * s - p
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = k, o
        at = at.reshape(shape)
        inside = inside & (at >= 0) & (at < n)
        places = places * n + at
    table = np.where(inside, places, -1).astype(np.int32)
    return table.reshape(math.prod(slide.kernel), math.prod(slide.counts))


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


def largest_commands(
    x: Place, values: Place, places: Place, table: Array, threads: int
) -> list[Command]:
    """`largest` for a command list; all lie row after row. Raises Unsuited where it says None."""
    routine = _ROUTINES.get(OF_NUMPY.get(x.dtype, ""))
    planes, (elements, windows) = x.shape[0] * x.shape[1], table.shape
    work = planes * windows * elements
    if routine is None or work < LARGEST_FROM or not routine.ready:
        raise Unsuited
    shares = min(threads, planes) if work >= _SHARE else 1
    blocks = _blocks(planes, table, (x.offset, values.offset, places.offset), math.prod(x.shape[2:]), x.dtype, shares)
    addresses = [(block, at, place.object) for block in range(len(blocks))
                 for at, place in enumerate((x, values, places))]  # fmt: skip
    title = f"largest of {elements} {list(values.shape)}"
    return [Command("kernel", title, routine.address, blocks, addresses, work * _COST, len(blocks) > 1, kept=table)]


def _blocks(
    planes: int, table: Array, addresses: Sequence[int], size: int, dtype: np.dtype[Any], shares: int
) -> list[list[int]]:
    """The argument blocks for planes of so many numbers; addresses are those of images, values and places."""
    image, values, places = addresses
    elements, windows = table.shape
    each = -(-planes // shares)
    found = []
    for start in range(0, planes, each):
        done, item = start * windows, dtype.itemsize
        found.append([
            image + start * size * item, values + done * item, places + done * 8, address(table),
            min(each, planes - start), windows, elements, size * item,
        ])  # fmt: skip
    return found


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
    values = buffer_pool.empty((*x.shape[:2], *counts), x.dtype)
    places = buffer_pool.empty((*x.shape[:2], *counts), np.dtype(np.int64))
    shares = min(thread_pool.threads(), planes) if work >= _SHARE else 1
    addresses = [address(array) for array in (x, values, places)]
    blocks = _blocks(planes, table, addresses, math.prod(x.shape[2:]), x.dtype, shares)
    routine.run([word for block in blocks for word in block], len(blocks))
    return values, places
