"""The argument blocks of a batch of matmuls, split over threads.

A block is the words of one call, whether it multiplies one pair of matrices, some of a batch, or a part of a large
matmul: ten words of the routine; two batch sizes; for each of the three matrices its address and two batch strides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product as indices

from wayfare.codegen.runtime.command import BufferView, Command, Unsuited
from wayfare.codegen.runtime.gemm_split import SMALL, parts_of, worth_splitting

# Multiplications from which on a batch is split over threads.
BATCH_FROM = 500_000
# Parts for each thread: a thread that starts late takes fewer.
PARTS_PER_THREAD = 4
# The address words of a block.
ADDRESSES = (12, 15, 18)
# Nanoseconds of one call.
_CALL = 100.0
_MOST_BLOCKS = 4096

Matrices = tuple[BufferView, BufferView, BufferView]
# The size of a batch axis, and the byte strides of the three matrices along it.
Axis = tuple[int, tuple[int, ...]]


def stacked(words: list[int], views: Matrices, threads: int, cost: float, *, least: float = SMALL) -> Command:
    """The command of a batch of matmuls whose blocks begin with these ten words: three of the routine's own; rows,
    columns, inner size; four of its own. `cost` is the cost of one multiplication; a matmul of
    at least `least` multiplications is split into parts of its result."""
    one = math.prod(words[3:6])
    work = math.prod(views[2].shape[:-2]) * (one * cost + _CALL)
    axes = _stack_axes(views)
    if any(not steps[2] for _, steps in axes):
        raise Unsuited  # overlapping results
    count = math.prod(size for size, _ in axes)
    parallel = threads > 1 and count >= 2 * threads and one * count >= BATCH_FROM
    if not parallel and one >= least and worth_splitting(words[3], words[5], words[4], threads):
        return _split_each(words, views, axes, threads, work)
    while len(axes) < 2:
        axes.insert(0, (1, (0, 0, 0)))
    *slices, outer, inner = axes
    parts = -(-min(PARTS_PER_THREAD * threads, count) // math.prod(size for size, _ in slices)) if parallel else 1
    blocks = []
    for index in indices(*(range(size) for size, _ in slices)):
        skips = [sum(i * steps[k] for i, (_, steps) in zip(index, slices, strict=True)) for k in range(3)]
        for sizes, start in _split_stack(outer[0], inner[0], parts):
            block = [*words, *sizes]
            for k, own in enumerate(views):
                first = own.offset + skips[k] + start[0] * outer[1][k] + start[1] * inner[1][k]
                block += [first, outer[1][k], inner[1][k]]
            blocks.append(block)
    if len(blocks) > _MOST_BLOCKS:
        raise Unsuited
    return Command("matmul", "", 0, blocks, _addresses(blocks, views), work, parallel and len(blocks) > 1)


def _split_each(words: list[int], views: Matrices, axes: list[Axis], threads: int, work: float) -> Command:
    """The command of large gemms, with one block for each part of each result."""
    a, b, out = views
    blocks = []
    for index in indices(*(range(size) for size, _ in axes)):
        skips = [sum(i * steps[k] for i, (_, steps) in zip(index, axes, strict=True)) for k in range(3)]
        for down, across in parts_of(words[3], words[5], words[4], threads):
            block = [*words[:3], down.stop - down.start, across.stop - across.start, *words[5:], 1, 1]
            moves = (down.start * a.strides[-2], across.start * b.strides[-1],
                     down.start * out.strides[-2] + across.start * out.strides[-1])  # fmt: skip
            for own, skip, move in zip(views, skips, moves, strict=True):
                block += [own.offset + skip + move, 0, 0]
            blocks.append(block)
    return Command("matmul", "", 0, blocks, _addresses(blocks, views), work, len(blocks) > 1)


def _addresses(blocks: list[list[int]], views: Matrices) -> list[tuple[int, int, int]]:
    return [(number, at, view.object) for number in range(len(blocks))
            for at, view in zip(ADDRESSES, views, strict=True)]  # fmt: skip


def _split_stack(outer: int, inner: int, count: int) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Split two batch sizes into about `count` parts: (sizes, starts) of each."""
    longer = max(outer, inner)
    part = -(-longer // count)
    for begin in range(0, longer, part):
        size = min(part, longer - begin)
        yield ((size, inner), (begin, 0)) if outer == longer else ((outer, size), (0, begin))


def _stack_axes(views: Matrices) -> list[Axis]:
    """The batch axes: without axes of size 1, and merged where all three matrices are contiguous."""
    axes: list[Axis] = []
    for axis, size in enumerate(views[2].shape[:-2]):
        steps = tuple(p.strides[axis] for p in views)
        if size == 1:
            continue
        if axes and all(before == size * step for before, step in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = (axes[-1][0] * size, steps)
        else:
            axes.append((size, steps))
    return axes
