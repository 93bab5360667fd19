"""Matrix products as commands: CBLAS on places, stacks shared out among the crew, vectors as thin matrices.

BLAS splits a product over its own threads when it finds it large. In a list, products of middling size are kept to the
calling thread (the other would take longer to come than the work does), and those of a stack go to the crew.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product as iterate
from typing import Any

import numpy as np

from wayfare.backend import products
from wayfare.backend.command import Command, Place, Scratch, Unsuited
from wayfare.backend.command_kernels import copy_commands, stretched
from wayfare.backend.llvm_expr import Writer
from wayfare.backend.machine import Machine, machine
from wayfare.backend.products import AS_IS, LARGE, SHARES, SMALL, TURNED, WORTH, product_of_block
from wayfare.backend.routine import Routine, function, pointer, word

# Multiplications below which BLAS keeps to the calling thread by itself.
_SPLIT_BY_BLAS = 1 << 18
# Multiplications up to which BLAS has code of its own for small products.
_SMALL_CODE = 1_000_000
# Rows up to which, and numbers of the other side from which on, the result is better computed turned.
_FEW_ROWS, _LONG_SIDE = 128, 1 << 15
# Nanoseconds of one multiplication in the registers of one processor, and of one call.
_COST = {np.dtype("float32"): 0.02, np.dtype("float64"): 0.04}
_CALL = 100.0
# The words of a block that are addresses.
_ADDRESSES = (12, 15, 18)
_MOST_BLOCKS = 4096


# -- the routines -------------------------------------------------------------------------------------------------


def _write(dtype: str, whole: str) -> Callable[[Machine], str]:
    """Words: those of `product_of_block`; 1 to add to what is there; two sizes of the stack; for each matrix its
    address and its steps along the stack."""

    def write(_host: Machine) -> str:
        writer = Writer()
        product = product_of_block(writer, dtype, whole)
        beta = writer.let(f"sitofp i64 {word(writer, 9)} to {dtype}")
        starts = [word(writer, at) for at in _ADDRESSES]
        steps = [(word(writer, at + 1), word(writer, at + 2)) for at in _ADDRESSES]
        with writer.loop("0", word(writer, 10), 1) as i, writer.loop("0", word(writer, 11), 1) as j:
            matrices = []
            for start, (outer, inner) in zip(starts, steps, strict=True):
                row = writer.let(f"add i64 {start}, {writer.let(f'mul i64 {i}, {outer}')}")
                place = writer.let(f"add i64 {row}, {writer.let(f'mul i64 {j}, {inner}')}")
                matrices.append(writer.let(f"inttoptr i64 {place} to ptr"))
            a, b, out = matrices
            product(a, b, out, beta)
        return function(writer)

    return write


@cache
def _routine(dtype: np.dtype[Any], whole: str) -> Routine:
    kind = "float" if dtype == np.float32 else "double"
    return Routine(f"stacked_products_{kind}_{whole}", _write(kind, whole))


def _write_threads(_host: Machine) -> str:
    """Words: BLAS's function for the number of its threads, and where that number is."""
    writer = Writer()
    number = writer.let(f"load i64, ptr {pointer(writer, 1)}")
    writer.do(f"call void {pointer(writer, 0)}(i32 {writer.let(f'trunc i64 {number} to i32')})")
    return function(writer)


_THREADS = Routine("blas_threads", _write_threads)
_ONE = ctypes.c_int64(1)


def spread(commands: list[Command]) -> list[Command]:
    """The commands of a list during which BLAS keeps to one thread, but for its large products."""
    blas = products.openblas()
    if blas is None or not any(c.alone for c in commands) or not any(c.spread for c in commands):
        return commands
    own, one = (
        Command("", "", _THREADS.address, [[blas.set_address, ctypes.addressof(number)]], [], 0.0)
        for number in (blas.before, _ONE)
    )
    made = []
    for command in commands:
        made += [own, command, one] if command.spread else [command]
    return made


# -- products -----------------------------------------------------------------------------------------------------


def product_commands(a: Place, b: Place, out: Place, add: bool, threads: int, scratch: Scratch) -> list[Command]:
    """out = a @ b, or out += a @ b; vectors and stacks as in NumPy's matmul."""
    blas = products.openblas()
    if blas is None or not a.dtype == b.dtype == out.dtype or a.dtype not in _COST or not a.shape or not b.shape:
        raise Unsuited
    routine = _routine(out.dtype, blas.whole)
    a, b, out = _as_matrices(a, b, out)
    (rows, inner), columns = a.shape[-2:], b.shape[-1]
    fits = b.shape[-2] == inner and out.shape[-2:] == (rows, columns)
    # Nothing to add up is a fill.
    if not fits or not inner or not routine.ready or not _THREADS.ready:
        raise Unsuited
    if 0 in out.shape:
        return []
    before, sides, after = [], [], []
    for side in (a, b):
        if _lies(side) is None:
            side, source = _copied(side, scratch)
            before += copy_commands(source, side, threads)
        sides.append(stretched(side, (*out.shape[:-2], *side.shape[-2:])))
    target = out
    if _lies(out) is None:
        target = scratch.place(out.shape, out.dtype)
        before += copy_commands(out, target, threads) if add else []
        after = copy_commands(target, out, threads)
    elif not add and _better_written_turned(sides[0], sides[1], out):
        target = scratch.place(out.shape[::-1], out.dtype)
        target = target.seen(out.shape, target.strides[::-1])
        after = copy_commands(target, out, threads)
    a, b, target = _in_rows(sides[0], sides[1], target)
    if _better_turned(a, b):
        b, source = _copied(b, scratch)
        before += copy_commands(source, b, threads)
        b = stretched(b, (*target.shape[:-2], *b.shape[-2:]))
    ways = [lies for place in (a, b, target) if (lies := _lies(place)) is not None]
    words = [blas.addresses[out.dtype], ways[0][0], ways[1][0], *target.shape[-2:], inner, *(step for _, step in ways),
             int(add)]  # fmt: skip
    if blas.whole == "i32" and max(words[3:]) >= 1 << 31:
        raise Unsuited
    made = _stacked(words, (a, b, target), threads)
    made.function = routine.address
    sizes = "×".join(str(n) for n in (*out.shape[:-2], rows, inner, columns))
    made.title = f"{sizes} {'added' if add else 'product'} {out.dtype}"
    return [*before, made, *after]


def _better_written_turned(a: Place, b: Place, out: Place) -> bool:
    """Does it pay to compute the turned result and turn it? Few rows times many rows, which is how a layer meets its
    weight, take BLAS twice the time, where its code is for registers of sixteen numbers: it packs the longer side badly
    when that comes second."""
    (rows, inner), columns = a.shape[-2:], b.shape[-1]
    turned = [lies is not None and lies[0] == TURNED for lies in (_lies(a), _lies(b))]
    fits = len(out.shape) == 2 and turned == [False, True] and a.dtype == np.float32 and machine().processor.lanes == 16
    return fits and 1 < rows <= _FEW_ROWS and 2 * rows <= inner and inner * columns >= _LONG_SIDE


def _better_turned(a: Place, b: Place) -> bool:
    """Does it pay to turn the second side first? BLAS's code for small products takes nearly twice the time for rows
    times rows, where it is the code for registers of sixteen numbers."""
    (rows, inner), columns = a.shape[-2:], b.shape[-1]
    turned = [lies is not None and lies[0] == TURNED for lies in (_lies(a), _lies(b))]
    small = rows >= 8 and columns >= 16 and inner >= 8 and rows * inner * columns <= _SMALL_CODE
    return small and turned == [False, True] and a.dtype == np.float32 and machine().processor.lanes == 16


def _copied(place: Place, scratch: Scratch) -> tuple[Place, Place]:
    """Room for a copy of matrices, and the same place without the repetitions of a stack."""
    shape = tuple(n if stride else 1 for n, stride in zip(place.shape[:-2], place.strides, strict=False))
    source = place.seen((*shape, *place.shape[-2:]), place.strides)
    return scratch.place(source.shape, place.dtype), source


def _in_rows(a: Place, b: Place, out: Place) -> tuple[Place, Place, Place]:
    """The product such that the rows of the result are whole, and of as few matrices as possible."""
    lies = _lies(out)
    if lies is not None and lies[0] == TURNED:
        # The turned product of the turned matrices, in the other order.
        a, b, out = _turn(b), _turn(a), _turn(out)
    while len(out.shape) > 2:
        if out.shape[-3] > 1 and (b.strides[-3] or not _runs_on(a) or not _runs_on(out)):
            break
        # One matrix with all the rows, where all of them meet the same other side.
        a, b, out = _longer(a), b.seen(b.shape[:-3] + b.shape[-2:], b.strides[:-3] + b.strides[-2:]), _longer(out)
    return a, b, out


def _runs_on(place: Place) -> bool:
    """Do the rows of one matrix follow those of the one before?"""
    rows, stride = place.shape[-2], place.strides[-2]
    return rows == 1 or place.strides[-3] == rows * stride


def _longer(place: Place) -> Place:
    """The matrices along the last axis of a stack as one."""
    *stack, count, rows, columns = place.shape
    *steps, outer, down, across = place.strides
    return place.seen((*stack, count * rows, columns), (*steps, outer if rows == 1 else down, across))


def _stacked(words: list[int], places: tuple[Place, ...], threads: int) -> Command:
    """The blocks of all products of a stack."""
    one = math.prod(words[3:6])
    axes = _stack_axes(places)
    if any(not steps[2] for _, steps in axes):
        raise Unsuited  # results that lie on each other
    count = math.prod(size for size, _ in axes)
    shared = threads > 1 and count >= 2 * threads and one * count >= WORTH and one <= LARGE
    while len(axes) < 2:
        axes.insert(0, (1, (0, 0, 0)))
    *slices, outer, inner = axes
    cuts = -(-min(SHARES * threads, count) // math.prod(size for size, _ in slices)) if shared else 1
    blocks = []
    for place in iterate(*(range(size) for size, _ in slices)):
        skips = [sum(i * steps[k] for i, (_, steps) in zip(place, slices, strict=True)) for k in range(3)]
        for sizes, start in _shares(outer[0], inner[0], cuts):
            block = [*words, *sizes]
            for k, own in enumerate(places):
                first = own.offset + skips[k] + start[0] * outer[1][k] + start[1] * inner[1][k]
                block += [first, outer[1][k], inner[1][k]]
            blocks.append(block)
    if len(blocks) > _MOST_BLOCKS:
        raise Unsuited
    addresses = [(number, at, place.object) for number in range(len(blocks))
                 for at, place in zip(_ADDRESSES, places, strict=True)]  # fmt: skip
    work = count * (one * _COST[places[2].dtype] + _CALL)
    spread_out = not shared and one >= SMALL
    alone = one >= _SPLIT_BY_BLAS and not spread_out
    return Command("product", "", 0, blocks, addresses, work, shared and len(blocks) > 1, alone, spread_out)


def _shares(outer: int, inner: int, count: int) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Two sizes of a stack cut into about so many parts: sizes and beginnings of each."""
    longer = max(outer, inner)
    share = -(-longer // count)
    for begin in range(0, longer, share):
        size = min(share, longer - begin)
        yield ((size, inner), (begin, 0)) if outer == longer else ((outer, size), (0, begin))


def _stack_axes(places: tuple[Place, ...]) -> list[tuple[int, tuple[int, ...]]]:
    """Sizes and steps of the stack: without axes of size 1, and joined where all three run on."""
    axes: list[tuple[int, tuple[int, ...]]] = []
    for axis, size in enumerate(places[2].shape[:-2]):
        steps = tuple(p.strides[axis] for p in places)
        if size == 1:
            continue
        if axes and all(before == size * step for before, step in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = (axes[-1][0] * size, steps)
        else:
            axes.append((size, steps))
    return axes


def _as_matrices(a: Place, b: Place, out: Place) -> tuple[Place, Place, Place]:
    """Vectors as matrices of one row or one column."""
    item = out.dtype.itemsize
    if len(b.shape) == 1:
        b = b.seen((*b.shape, 1), (*b.strides, item))
        out = out.seen((*out.shape, 1), (*out.strides, item))
        if len(a.shape) == 1:
            out = out.seen((1, 1), (item, item))
    elif len(a.shape) == 1:
        out = out.seen((*out.shape[:-1], 1, out.shape[-1]), (*out.strides[:-1], 0, out.strides[-1]))
    if len(a.shape) == 1:
        a = a.seen((1, *a.shape), (0, *a.strides))
    return a, b, out


def _turn(place: Place) -> Place:
    shape, strides = place.shape, place.strides
    return place.seen((*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2]))


def _lies(place: Place) -> tuple[int, int] | None:
    """How matrices lie (CBLAS's word for it) and the step from row to row; None where BLAS cannot read them."""
    (rows, columns), (down, across), item = place.shape[-2:], place.strides[-2:], place.dtype.itemsize
    if (across == item or columns == 1) and (rows == 1 or _steps(down, columns, item)):
        return AS_IS, down // item if rows > 1 else columns
    if (down == item or rows == 1) and (columns == 1 or _steps(across, rows, item)):
        return TURNED, across // item if columns > 1 else rows
    return None


def _steps(stride: int, length: int, item: int) -> bool:
    """Can a stride lead from one run of `length` elements to the next?"""
    return stride % item == 0 and stride >= item * length
