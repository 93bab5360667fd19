"""Max pooling of any kind in native code: values and indices.

A table (elements of a window, windows) lists the flat indices of all windows of one plane, with -1 outside the plane.
Among equal maxima the first is taken, among NaNs the last, as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from wayfare.codegen.llvm.builder import Writer, iota, memory_type, number, splat_constant, vector
from wayfare.codegen.llvm.machine import Machine
from wayfare.codegen.loop.expr import NUMPY, OF_NUMPY
from wayfare.codegen.routines.routine import Routine, address_of, function, pointer, word
from wayfare.codegen.routines.windows import Sizes, Slide
from wayfare.codegen.runtime import thread_pool
from wayfare.codegen.runtime.command import BufferView, Command, Unsuited
from wayfare.core import buffer_pool

Array = np.ndarray[Any, np.dtype[Any]]

# Elements of windows from which on native code is used, and several threads.
MAX_POOL_FROM = 256
_PARALLEL_FROM = 1 << 18
# Nanoseconds for one element of a window.
_COST = 0.3
# The longest table for one plane.
LONGEST_TABLE = 1 << 22


@lru_cache(maxsize=64)
def window_table(sizes: Sizes, slide: Slide) -> Array:
    """The flat indices of the elements of each window, (elements, windows) as int32; -1 outside the plane."""
    rank = len(sizes)
    indices: Any = 0
    inside: Any = True
    for axis, (n, k, s, p, d, o) in enumerate(
        zip(sizes, slide.kernel, slide.stride, slide.padding, slide.dilation, slide.counts, strict=True)
    ):
        at = np.arange(k)[:, None] * d + np.arange(o) * s - p
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = k, o
        at = at.reshape(shape)
        inside = inside & (at >= 0) & (at < n)
        indices = indices * n + at
    table = np.where(inside, indices, -1).astype(np.int32)
    return table.reshape(math.prod(slide.kernel), math.prod(slide.counts))


def _write(dtype: str, host: Machine) -> str:
    writer = Writer()
    let, size, kind = writer.let, NUMPY[dtype].itemsize, memory_type(dtype)
    lanes = 4 * host.processor.lanes // size
    numbers, mask = vector(lanes, kind), vector(lanes, "i1")
    integers, long = vector(lanes, "i32"), vector(lanes, "i64")
    planes, windows, elements, plane_bytes = (word(writer, k) for k in range(4, 8))
    image, values, indices, table = (pointer(writer, k) for k in range(4))
    nowhere, lowest = splat_constant(lanes, "i32", "-1"), splat_constant(lanes, kind, number(-math.inf, dtype))

    with writer.loop("0", planes, 1) as plane:
        own = writer.at(image, (plane, plane_bytes))
        first = writer.mul(plane, windows)
        with writer.loop("0", windows, lanes) as window:
            numbered = let(f"add {long} {writer.splat(lanes, 'i64', window)}, {iota(lanes)}")
            there = writer.compare("slt", numbered, writer.splat(lanes, "i64", windows), long)
            best, best_index = writer.variable(numbers, lowest), writer.variable(integers, nowhere)
            with writer.loop("0", elements, 1) as element:
                entry = writer.add(writer.mul(element, windows), window)
                listed = writer.masked_load(lanes, "i32", writer.at(table, (entry, 4)), there, nowhere)
                inside = writer.compare("sge", listed, "zeroinitializer", integers)
                spots = writer.elements(kind, own, integers, listed)
                x = writer.gather(lanes, kind, spots, inside, lowest)
                larger = let(f"fcmp ogt {numbers} {x}, {best.get()}")
                is_nan = let(f"fcmp uno {numbers} {x}, {x}")
                none_yet = writer.compare("slt", best_index.get(), "zeroinitializer", integers)
                take = let(f"or {mask} {let(f'or {mask} {larger}, {is_nan}')}, {none_yet}")
                take = let(f"and {mask} {take}, {inside}")
                best.set(let(f"select {mask} {take}, {numbers} {x}, {numbers} {best.get()}"))
                best_index.set(let(f"select {mask} {take}, {integers} {listed}, {integers} {best_index.get()}"))
            out = writer.add(first, window)
            writer.masked_store(lanes, kind, best.get(), writer.at(values, (out, size)), there)
            found = let(f"sext {integers} {best_index.get()} to {long}")
            writer.masked_store(lanes, "i64", found, writer.at(indices, (out, 8)), there)
    return function(writer)


_ROUTINES = {
    "f32": Routine("max_pool_f32", _write, "f32"),
    "f64": Routine("max_pool_f64", _write, "f64"),
}


def max_pool_commands(
    x: BufferView, values: BufferView, indices: BufferView, table: Array, threads: int
) -> list[Command]:
    """`max_over_windows` as a command, on C-contiguous views. Raises Unsuited where that returns None."""
    routine = _ROUTINES.get(OF_NUMPY.get(x.dtype, ""))
    planes, (elements, windows) = x.shape[0] * x.shape[1], table.shape
    work = planes * windows * elements
    if routine is None or work < MAX_POOL_FROM or not routine.ready:
        raise Unsuited
    parts = min(threads, planes) if work >= _PARALLEL_FROM else 1
    blocks = _blocks(planes, table, (x.offset, values.offset, indices.offset), math.prod(x.shape[2:]), x.dtype, parts)
    addresses = [(block, at, view.object) for block in range(len(blocks))
                 for at, view in enumerate((x, values, indices))]  # fmt: skip
    title = f"max_pool of {elements} {list(values.shape)}"
    return [Command("kernel", title, routine.address, blocks, addresses, work * _COST, len(blocks) > 1, kept=table)]


def _blocks(
    planes: int, table: Array, addresses: Sequence[int], size: int, dtype: np.dtype[Any], parts: int
) -> list[list[int]]:
    """The argument blocks for planes of `size` elements; `addresses` are those of images, values and indices."""
    image, values, indices = addresses
    elements, windows = table.shape
    each = -(-planes // parts)
    found = []
    for start in range(0, planes, each):
        done, item = start * windows, dtype.itemsize
        found.append([
            image + start * size * item, values + done * item, indices + done * 8, address_of(table),
            min(each, planes - start), windows, elements, size * item,
        ])  # fmt: skip
    return found


def max_over_windows(x: Array, table: Array, counts: tuple[int, ...]) -> tuple[Array, Array] | None:
    """(values, indices), both (N, C, *counts), of planes (N, C, *sizes); None where NumPy should do it.

    The table is a C-contiguous int32 array of flat indices within a plane.
    """
    routine = _ROUTINES.get(OF_NUMPY.get(x.dtype, ""))
    planes, (elements, windows) = x.shape[0] * x.shape[1], table.shape
    work = planes * windows * elements
    if routine is None or work < MAX_POOL_FROM or not routine.ready:
        return None
    x = np.ascontiguousarray(x)
    values = buffer_pool.empty((*x.shape[:2], *counts), x.dtype)
    indices = buffer_pool.empty((*x.shape[:2], *counts), np.dtype(np.int64))
    parts = min(thread_pool.threads(), planes) if work >= _PARALLEL_FROM else 1
    addresses = [address_of(array) for array in (x, values, indices)]
    blocks = _blocks(planes, table, addresses, math.prod(x.shape[2:]), x.dtype, parts)
    routine.run([word for block in blocks for word in block], len(blocks))
    return values, indices
