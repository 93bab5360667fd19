"""Matrix products as commands: CBLAS on places, stacks shared out among the crew, vectors as thin matrices.

BLAS keeps to the calling thread. A large product is cut into parts, and they go to the crew, as do those of a stack;
one of middling size is done by the calling thread (another would take longer to come than the work does).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import product as iterate
from typing import Any

import numpy as np

from wayfare.codegen.llvm.expr import Writer
from wayfare.codegen.llvm.machine import Machine, machine
from wayfare.codegen.routines.routine import Routine, function, pointer, word
from wayfare.codegen.routines.skinny_gemm import few_rows_commands
from wayfare.codegen.runtime.blas import Blas, openblas
from wayfare.codegen.runtime.command import Command, Place, Scratch, Unsuited
from wayfare.codegen.runtime.command_kernels import copy_commands, stretched
from wayfare.codegen.runtime.gemm import AS_IS, ROWS, SHARES, SPLIT_BY_BLAS, TURNED, WORTH, product_of_block
from wayfare.codegen.runtime.gemm_split import parts_of, worth_cutting

# Multiplications up to which BLAS has code of its own for small products.
_SMALL_CODE = 1_000_000
# Rows up to which, and numbers of the other side from which on, the result is better computed turned.
_FEW_ROWS, _LONG_SIDE = 128, 1 << 15
# Rows up to which they are better multiplied one by one with a large matrix than all together.
_ONE_BY_ONE = 6
# Rows that are few for a matrix read as it lies: so many always, if they are so long; so many with a large one.
_VERY_FEW, _SHORT, _FEW, _LONG = 8, 16, 32, 128
# Numbers beyond which BLAS's sums of them are not exact enough, where it adds row after row of the matrix.
_LONGEST_SUM = 1 << 14
# Nanoseconds of one multiplication in the registers of one processor, where the matrix is read for it, and of one call.
_COST = {np.dtype("float32"): 0.02, np.dtype("float64"): 0.04}
_COST_READ = {np.dtype("float32"): 0.05, np.dtype("float64"): 0.1}
_CALL = 100.0
# The words of a block that are addresses.
_ADDRESSES = (12, 15, 18)
_MOST_BLOCKS = 4096

Matrices = tuple[Place, Place, Place]
# The size of an axis of a stack, and the steps of the three matrices along it.
Axis = tuple[int, tuple[int, ...]]


# -- the routines -------------------------------------------------------------------------------------------------


# Writes the call of one product in a block: (a, b, out, what is there times this number is added).
Call = Callable[[str, str, str, str], None]


def _write(product_of: Callable[[Writer, str, str], Call], dtype: str, whole: str) -> Callable[[Machine], str]:
    """Words: nine of the product's own; 1 to add to what is there; two sizes of the stack; for each matrix its address
    and its steps along the stack."""

    def write(_host: Machine) -> str:
        writer = Writer()
        product = product_of(writer, dtype, whole)
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


def _vector_of_block(writer: Writer, dtype: str, whole: str) -> Call:
    """A row times a matrix. Words: the function; how the matrix lies; the step along the row; 1, columns, inner size;
    the step from row to row of the matrix as it lies; the step along the result."""
    gemv = pointer(writer, 0)
    way, step_a, columns, inner, step_b, step_out = (word(writer, k) for k in (1, 2, 4, 5, 6, 7))
    as_is = writer.let(f"icmp eq i64 {way}, {AS_IS}")
    m = writer.let(f"select i1 {as_is}, i64 {columns}, i64 {inner}")
    n = writer.let(f"select i1 {as_is}, i64 {inner}, i64 {columns}")
    sizes = [m, n, step_b, step_a, step_out]
    if whole == "i32":
        sizes = [writer.let(f"trunc i64 {size} to i32") for size in sizes]
    m, n, step_b, step_a, step_out = sizes
    trans = writer.let(f"trunc i64 {way} to i32")

    def call(a: str, b: str, out: str, beta: str) -> None:
        writer.do(
            f"call void {gemv}(i32 {ROWS}, i32 {trans}, {whole} {m}, {whole} {n}, {dtype} 1.0, ptr {b}, "
            f"{whole} {step_b}, ptr {a}, {whole} {step_a}, {dtype} {beta}, ptr {out}, {whole} {step_out})"
        )

    return call


@cache
def _routine(dtype: np.dtype[Any], whole: str, vectors: bool = False) -> Routine:
    kind = "float" if dtype == np.float32 else "double"
    name, product_of = ("vector", _vector_of_block) if vectors else ("stacked", product_of_block)
    return Routine(f"{name}_products_{kind}_{whole}", _write(product_of, kind, whole))


# -- products -----------------------------------------------------------------------------------------------------


def product_commands(a: Place, b: Place, out: Place, add: bool, threads: int, scratch: Scratch) -> list[Command]:
    """out = a @ b, or out += a @ b; vectors and stacks as in NumPy's matmul."""
    blas = openblas()
    if blas is None or not a.dtype == b.dtype == out.dtype or a.dtype not in _COST or not a.shape or not b.shape:
        raise Unsuited
    routine, by_row = (_routine(out.dtype, blas.whole, vectors) for vectors in (False, True))
    a, b, out = _as_matrices(a, b, out)
    (rows, inner), columns = a.shape[-2:], b.shape[-1]
    fits = b.shape[-2] == inner and out.shape[-2:] == (rows, columns)
    # Nothing to add up is a fill.
    if not fits or not inner or not (routine.ready and by_row.ready):
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
    whole_rows = _in_rows(sides[0], sides[1], target)
    by_rows, how = _worth_one_by_one(*whole_rows), ""
    if _few(*whole_rows):
        with suppress(Unsuited):
            *more, made = few_rows_commands(*whole_rows, add, threads, scratch)
            made.title = _title(out, inner, add, ", few rows")
            return [*before, *more, made, *after]
    if by_rows is not None:
        made, how = _one_by_one(blas, by_rows, add, threads), ", row by row"
        made.function = by_row.address
    else:
        if target is out and not add and _better_written_turned(sides[0], sides[1], out):
            target = scratch.place(out.shape[::-1], out.dtype)
            target = target.seen(out.shape, target.strides[::-1])
            after = copy_commands(target, out, threads)
        a, b, target = _in_rows(sides[0], sides[1], target)
        if _better_turned(a, b):
            b, source = _copied(b, scratch)
            before += copy_commands(source, b, threads)
            b = stretched(b, (*target.shape[:-2], *b.shape[-2:]))
        ways = [lies for place in (a, b, target) if (lies := _lies(place)) is not None]
        words = [blas.addresses[out.dtype], ways[0][0], ways[1][0], *target.shape[-2:], inner,
                 *(step for _, step in ways), int(add)]  # fmt: skip
        made = _stacked(blas, words, (a, b, target), threads)
        made.function = routine.address
    made.title = _title(out, inner, add, how)
    return [*before, made, *after]


def _title(out: Place, inner: int, add: bool, how: str) -> str:
    *stack, rows, columns = out.shape
    sizes = "×".join(str(n) for n in (*stack, rows, inner, columns))
    return f"{sizes} {'added' if add else 'product'} {out.dtype}{how}"


def _few(a: Place, b: Place, out: Place) -> bool:
    """Are there so few rows that BLAS would take longer to lay out the matrix than to multiply?"""
    if len(out.shape) > 2:
        return False
    (rows, inner), columns = a.shape, b.shape[1]
    if rows <= _VERY_FEW:
        return inner >= _SHORT
    return rows <= _FEW and inner >= _LONG and inner * columns >= _LONG_SIDE


def _worth_one_by_one(a: Place, b: Place, out: Place) -> Matrices | None:
    """The product as one of so few rows with so large a matrix that BLAS had better do them one by one: for a product
    of matrices it would lay out all of the large one anew. None where that does not pay."""
    if out.shape[-1] < out.shape[-2]:
        a, b, out = _turn(b), _turn(a), _turn(out)
    rows, inner, columns = *a.shape[-2:], b.shape[-1]
    lies = _lies(b)
    turned = lies is not None and lies[0] == TURNED
    if not 0 < rows <= _ONE_BY_ONE or (inner > _LONGEST_SUM and not turned):
        return None
    slow = rows == 1 and not turned and _slow_rows(a) and inner * columns >= _LONG_SIDE
    return (a, b, out) if slow or rows * inner * columns > _SMALL_CODE else None


def _one_by_one(blas: Blas, places: Matrices, add: bool, threads: int) -> Command:
    """Every row of the first matrices with the whole of the second."""
    a, b, out = places
    (rows, inner), columns = a.shape[-2:], b.shape[-1]
    whole = _lies(b)
    assert whole is not None, "it was copied if it could not be read"
    # Threads share the columns.
    parts = next((n for n in (SHARES * threads, threads) if columns % n == 0), 1) if threads > 1 else 1
    width = columns // parts
    stacks = [p.strides[:-2] for p in places]
    shape = (*out.shape[:-2], parts, rows)
    a = a.seen((*shape, 1, inner), (*stacks[0], 0, a.strides[-2], 0, a.strides[-1]))
    b = b.seen((*shape, inner, width), (*stacks[1], width * b.strides[-1], 0, *b.strides[-2:]))
    out = out.seen((*shape, 1, width), (*stacks[2], width * out.strides[-1], out.strides[-2], 0, out.strides[-1]))
    way = AS_IS if whole[0] == TURNED else TURNED  # the matrix comes first here
    words = [blas.vector_addresses[out.dtype], way, _along(a), 1, width, inner, whole[1], _along(out), 0, int(add)]
    return _stacked(blas, words, (a, b, out), threads, _COST_READ[out.dtype])


def _along(row: Place) -> int:
    """The step from one number of a row to the next."""
    return row.strides[-1] // row.dtype.itemsize if row.shape[-1] > 1 else 1


def _better_written_turned(a: Place, b: Place, out: Place) -> bool:
    """Does it pay to compute the turned result and turn it? Few rows times many rows, which is how a layer meets its
    weight, take BLAS twice the time, where its code is for registers of sixteen numbers: it packs the longer side badly
    when that comes second."""
    (rows, inner), columns = a.shape[-2:], b.shape[-1]
    turned = [lies is not None and lies[0] == TURNED for lies in (_lies(a), _lies(b))]
    fits = len(out.shape) == 2 and turned == [False, True] and _slow_rows(a)
    return fits and 1 < rows <= _FEW_ROWS and 2 * rows <= inner and inner * columns >= _LONG_SIDE


def _better_turned(a: Place, b: Place) -> bool:
    """Does it pay to turn the second side first? BLAS's code for small products takes nearly twice the time for rows
    times rows, where it is the code for registers of sixteen numbers."""
    (rows, inner), columns = a.shape[-2:], b.shape[-1]
    turned = [lies is not None and lies[0] == TURNED for lies in (_lies(a), _lies(b))]
    small = rows >= 8 and columns >= 16 and inner >= 8 and rows * inner * columns <= _SMALL_CODE
    return small and turned == [False, True] and _slow_rows(a)


def _slow_rows(a: Place) -> bool:
    """Is BLAS slow at rows times rows of such numbers? Where its code is for registers of sixteen."""
    return a.dtype == np.float32 and machine().processor.lanes == 16


def _copied(place: Place, scratch: Scratch) -> tuple[Place, Place]:
    """Room for a copy of matrices, and the same place without the repetitions of a stack."""
    shape = tuple(n if stride else 1 for n, stride in zip(place.shape[:-2], place.strides, strict=False))
    source = place.seen((*shape, *place.shape[-2:]), place.strides)
    return scratch.place(source.shape, place.dtype), source


def _in_rows(a: Place, b: Place, out: Place) -> Matrices:
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


def _stacked(
    blas: Blas, words: list[int], places: Matrices, threads: int, cost: float | None = None
) -> Command:
    """The blocks of all products of a stack; `cost` is that of a multiplication where it is another than BLAS's own."""
    if blas.whole == "i32" and max(words[3:]) >= 1 << 31:
        raise Unsuited
    one = math.prod(words[3:6])
    work = math.prod(places[2].shape[:-2]) * (one * (cost or _COST[places[2].dtype]) + _CALL)
    axes = _stack_axes(places)
    if any(not steps[2] for _, steps in axes):
        raise Unsuited  # results that lie on each other
    count = math.prod(size for size, _ in axes)
    shared = threads > 1 and count >= 2 * threads and one * count >= WORTH
    if not shared and cost is None and worth_cutting(words[3], words[5], words[4], threads):
        return _cut_up(words, places, axes, threads, work)
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
    alone = one >= SPLIT_BY_BLAS or cost is not None
    return Command("product", "", 0, blocks, _addresses(blocks, places), work, shared and len(blocks) > 1, alone)


def _cut_up(words: list[int], places: Matrices, axes: list[Axis], threads: int, work: float) -> Command:
    """The blocks of large products, one for each part of each result."""
    a, b, out = places
    blocks = []
    for place in iterate(*(range(size) for size, _ in axes)):
        skips = [sum(i * steps[k] for i, (_, steps) in zip(place, axes, strict=True)) for k in range(3)]
        for down, across in parts_of(words[3], words[5], words[4], threads):
            block = [*words[:3], down.stop - down.start, across.stop - across.start, *words[5:], 1, 1]
            moves = (down.start * a.strides[-2], across.start * b.strides[-1],
                     down.start * out.strides[-2] + across.start * out.strides[-1])  # fmt: skip
            for own, skip, move in zip(places, skips, moves, strict=True):
                block += [own.offset + skip + move, 0, 0]
            blocks.append(block)
    return Command("product", "", 0, blocks, _addresses(blocks, places), work, len(blocks) > 1, True)


def _addresses(blocks: list[list[int]], places: Matrices) -> list[tuple[int, int, int]]:
    return [(number, at, place.object) for number in range(len(blocks))
            for at, place in zip(_ADDRESSES, places, strict=True)]  # fmt: skip


def _shares(outer: int, inner: int, count: int) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Two sizes of a stack cut into about so many parts: sizes and beginnings of each."""
    longer = max(outer, inner)
    share = -(-longer // count)
    for begin in range(0, longer, share):
        size = min(share, longer - begin)
        yield ((size, inner), (begin, 0)) if outer == longer else ((outer, size), (0, begin))


def _stack_axes(places: Matrices) -> list[Axis]:
    """Sizes and steps of the stack: without axes of size 1, and joined where all three run on."""
    axes: list[Axis] = []
    for axis, size in enumerate(places[2].shape[:-2]):
        steps = tuple(p.strides[axis] for p in places)
        if size == 1:
            continue
        if axes and all(before == size * step for before, step in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = (axes[-1][0] * size, steps)
        else:
            axes.append((size, steps))
    return axes


def _as_matrices(a: Place, b: Place, out: Place) -> Matrices:
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
