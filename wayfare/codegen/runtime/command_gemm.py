"""Matmuls as commands: CBLAS calls on buffer views.

BLAS runs on one thread. Large gemms, and batches of gemms, are split over the thread pool; medium ones run on the
calling thread, because waking another would take longer than the work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import product as indices
from typing import Any

import numpy as np

from wayfare.codegen.llvm.builder import Writer
from wayfare.codegen.llvm.machine import Machine, machine
from wayfare.codegen.routines.routine import Routine, function, pointer, word
from wayfare.codegen.routines.skinny_gemm import skinny_gemm_commands
from wayfare.codegen.runtime.blas import Blas, openblas
from wayfare.codegen.runtime.command import BufferView, Command, Scratch, Unsuited
from wayfare.codegen.runtime.command_kernels import broadcast, copy_commands
from wayfare.codegen.runtime.gemm_split import parts_of, worth_splitting

# Multiplications from which on a batch is split over threads.
BATCH_FROM = 500_000
# Multiplications from which on OpenBLAS uses threads of its own for a gemm.
SPLIT_BY_BLAS = 1 << 18
# Parts for each thread: a thread that starts late takes fewer.
PARTS_PER_THREAD = 4
# CBLAS's constants.
ROW_MAJOR, NOT_TRANSPOSED, TRANSPOSED = 101, 111, 112
# Up to this many multiplications OpenBLAS uses its code for small matrices.
_SMALL_CODE = 1_000_000
# The result is computed transposed for at most so many rows, and a matrix of at least so many elements.
_TRANSPOSE_ROWS, _LONG_SIDE = 128, 1 << 15
# Up to so many rows, one gemv for each row is faster than a gemm with a large matrix.
_GEMV_ROWS = 6
# Limits of the skinny gemm: rows and inner size in general, and for large matrices.
_SKINNY_ROWS, _SKINNY_INNER, _SKINNY_ROWS_LARGE, _SKINNY_INNER_LARGE = 8, 16, 32, 128
# The longest inner size for a gemv that adds row after row of the matrix: its sums are not precise enough beyond.
_LONGEST_SUM = 1 << 14
# Nanoseconds of one multiplication in a gemm, of one in a gemv (bound by memory), and of one call.
_COST = {np.dtype("float32"): 0.02, np.dtype("float64"): 0.04}
_COST_READ = {np.dtype("float32"): 0.05, np.dtype("float64"): 0.1}
_CALL = 100.0
# The address words of a block.
_ADDRESSES = (12, 15, 18)
_MOST_BLOCKS = 4096

Matrices = tuple[BufferView, BufferView, BufferView]
# The size of a batch axis, and the byte strides of the three matrices along it.
Axis = tuple[int, tuple[int, ...]]


# -- the routines -------------------------------------------------------------------------------------------------


# Emits one BLAS call: (a, b, out, beta).
Call = Callable[[str, str, str, str], None]


def _write(write_call: Callable[[Writer, str, str], Call], dtype: str, int_type: str, _host: Machine) -> str:
    """Words: nine for the BLAS call; 1 to add to `out`; two batch sizes; for each matrix its address and two batch
    strides."""
    writer = Writer()
    call = write_call(writer, dtype, int_type)
    beta = writer.let(f"sitofp i64 {word(writer, 9)} to {dtype}")
    starts = [word(writer, at) for at in _ADDRESSES]
    steps = [(word(writer, at + 1), word(writer, at + 2)) for at in _ADDRESSES]
    with writer.loop("0", word(writer, 10), 1) as i, writer.loop("0", word(writer, 11), 1) as j:
        matrices = []
        for start, (outer, inner) in zip(starts, steps, strict=True):
            row = writer.add(start, writer.mul(i, outer))
            matrices.append(writer.pointer(writer.add(row, writer.mul(j, inner))))
        a, b, out = matrices
        call(a, b, out, beta)
    return function(writer)


def _write_gemm_call(writer: Writer, dtype: str, int_type: str) -> Call:
    """A function that emits one gemm call: `(a, b, out, beta)`, out = a @ b + beta · out.

    The first nine words of the block: the BLAS function; the transpose flags of both sides; rows, columns, inner size;
    the leading dimensions of the three matrices.
    """
    gemm = pointer(writer, 0)
    sizes = [word(writer, k) for k in range(1, 9)]
    layouts = [writer.truncated(size) for size in sizes[:2]]
    if int_type == "i32":
        sizes = [writer.truncated(size) for size in sizes]
    m, n, k, step_a, step_b, step_out = sizes[2:]

    def call(a: str, b: str, out: str, beta: str) -> None:
        writer.do(
            f"call void {gemm}(i32 {ROW_MAJOR}, i32 {layouts[0]}, i32 {layouts[1]}, "
            f"{int_type} {m}, {int_type} {n}, {int_type} {k}, {dtype} 1.0, ptr {a}, {int_type} {step_a}, "
            f"ptr {b}, {int_type} {step_b}, {dtype} {beta}, ptr {out}, "
            f"{int_type} {step_out})"
        )

    return call


def _write_gemv_call(writer: Writer, dtype: str, int_type: str) -> Call:
    """A row times a matrix (gemv). Words: the function; the matrix's layout; the step along the row; 1, columns, inner
    size; the leading dimension of the matrix; the step along the result."""
    gemv = pointer(writer, 0)
    way, step_a, columns, inner, step_b, step_out = (word(writer, k) for k in (1, 2, 4, 5, 6, 7))
    as_is = writer.compare("eq", way, NOT_TRANSPOSED)
    m, n = writer.select(as_is, columns, inner), writer.select(as_is, inner, columns)
    sizes = [m, n, step_b, step_a, step_out]
    if int_type == "i32":
        sizes = [writer.truncated(size) for size in sizes]
    m, n, step_b, step_a, step_out = sizes
    trans = writer.truncated(way)

    def call(a: str, b: str, out: str, beta: str) -> None:
        writer.do(
            f"call void {gemv}(i32 {ROW_MAJOR}, i32 {trans}, {int_type} {m}, {int_type} {n}, {dtype} 1.0, ptr {b}, "
            f"{int_type} {step_b}, ptr {a}, {int_type} {step_a}, {dtype} {beta}, ptr {out}, {int_type} {step_out})"
        )

    return call


@cache
def gemm_routine(dtype: np.dtype[Any], int_type: str, vectors: bool = False) -> Routine:
    """The native function of gemms, or of gemvs."""
    kind = "float" if dtype == np.float32 else "double"
    name, write_call = ("gemv", _write_gemv_call) if vectors else ("batched_gemm", _write_gemm_call)
    return Routine(f"{name}_{kind}_{int_type}", _write, write_call, kind, int_type)


# -- commands -----------------------------------------------------------------------------------------------------


def matmul_commands(
    a: BufferView, b: BufferView, out: BufferView, add: bool, threads: int, scratch: Scratch
) -> list[Command]:
    """out = a @ b, or out += a @ b; vectors and batches as in np.matmul."""
    blas = openblas()
    if blas is None or not a.dtype == b.dtype == out.dtype or a.dtype not in _COST or not a.shape or not b.shape:
        raise Unsuited
    routine, by_row = (gemm_routine(out.dtype, blas.int_type, vectors) for vectors in (False, True))
    a, b, out = _as_matrices(a, b, out)
    (rows, inner), columns = a.shape[-2:], b.shape[-1]
    fits = b.shape[-2] == inner and out.shape[-2:] == (rows, columns)
    if not fits or not inner or not (routine.ready and by_row.ready):
        raise Unsuited
    if 0 in out.shape:
        return []
    before, sides, after = [], [], []
    for side in (a, b):
        if _blas_layout(side) is None:
            side, source = _copied(side, scratch)
            before += copy_commands(source, side, threads)
        sides.append(broadcast(side, (*out.shape[:-2], *side.shape[-2:])))
    target = out
    if _blas_layout(out) is None:
        target = scratch.allocate(out.shape, out.dtype)
        before += copy_commands(out, target, threads) if add else []
        after = copy_commands(target, out, threads)
    in_rows = _in_rows(sides[0], sides[1], target)
    by_rows, how = _as_gemv_rows(*in_rows), ""
    if _is_skinny(*in_rows):
        with suppress(Unsuited):
            *more, made = skinny_gemm_commands(*in_rows, add, threads, scratch)
            made.title = _title(out, inner, add, ", skinny")
            return [*before, *more, made, *after]
    if by_rows is not None:
        made, how = _gemv_rows(blas, by_rows, add, threads), ", row by row"
        made.function = by_row.address
    else:
        if target is out and not add and _transpose_result(sides[0], sides[1], out):
            target = scratch.allocate(out.shape[::-1], out.dtype)
            target = target.view(out.shape, target.strides[::-1])
            after = copy_commands(target, out, threads)
        a, b, target = _in_rows(sides[0], sides[1], target)
        if _transpose_right_first(a, b):
            b, source = _copied(b, scratch)
            before += copy_commands(source, b, threads)
            b = broadcast(b, (*target.shape[:-2], *b.shape[-2:]))
        made = batch_command(blas, (a, b, target), add, threads)
        made.function = routine.address
    made.title = _title(out, inner, add, how)
    return [*before, made, *after]


def _title(out: BufferView, inner: int, add: bool, how: str) -> str:
    *stack, rows, columns = out.shape
    sizes = "×".join(str(n) for n in (*stack, rows, inner, columns))
    return f"{sizes} {'added' if add else 'matmul'} {out.dtype}{how}"


def _is_skinny(a: BufferView, b: BufferView, out: BufferView) -> bool:
    """Are there so few rows that packing the matrix would take BLAS longer than multiplying?"""
    if len(out.shape) > 2:
        return False
    (rows, inner), columns = a.shape, b.shape[1]
    if rows <= _SKINNY_ROWS:
        return inner >= _SKINNY_INNER
    return rows <= _SKINNY_ROWS_LARGE and inner >= _SKINNY_INNER_LARGE and inner * columns >= _LONG_SIDE


def _as_gemv_rows(a: BufferView, b: BufferView, out: BufferView) -> Matrices | None:
    """The matmul as a few rows times a large matrix, where one gemv for each row is faster: a gemm would pack the whole
    matrix. None where a gemm is better."""
    if out.shape[-1] < out.shape[-2]:
        a, b, out = _transposed(b), _transposed(a), _transposed(out)
    rows, inner, columns = *a.shape[-2:], b.shape[-1]
    layout = _blas_layout(b)
    transposed = layout is not None and layout[0] == TRANSPOSED
    if not 0 < rows <= _GEMV_ROWS or (inner > _LONGEST_SUM and not transposed):
        return None
    slow = rows == 1 and not transposed and _slow_rows(a) and inner * columns >= _LONG_SIDE
    return (a, b, out) if slow or rows * inner * columns > _SMALL_CODE else None


def _gemv_rows(blas: Blas, views: Matrices, add: bool, threads: int) -> Command:
    """One gemv for each row of the first matrices."""
    a, b, out = views
    (rows, inner), columns = a.shape[-2:], b.shape[-1]
    layout = _blas_layout(b)
    assert layout is not None, "it was copied if BLAS cannot read it"
    # Threads split the columns.
    parts = next((n for n in (PARTS_PER_THREAD * threads, threads) if columns % n == 0), 1) if threads > 1 else 1
    width = columns // parts
    stacks = [p.strides[:-2] for p in views]
    shape = (*out.shape[:-2], parts, rows)
    a = a.view((*shape, 1, inner), (*stacks[0], 0, a.strides[-2], 0, a.strides[-1]))
    b = b.view((*shape, inner, width), (*stacks[1], width * b.strides[-1], 0, *b.strides[-2:]))
    out = out.view((*shape, 1, width), (*stacks[2], width * out.strides[-1], out.strides[-2], 0, out.strides[-1]))
    way = NOT_TRANSPOSED if layout[0] == TRANSPOSED else TRANSPOSED  # the matrix comes first here
    words = [blas.vector_addresses[out.dtype], way, _along(a), 1, width, inner, layout[1], _along(out), 0, int(add)]
    return _stacked(blas, words, (a, b, out), threads, _COST_READ[out.dtype])


def _along(row: BufferView) -> int:
    """The step between elements of a row."""
    return row.strides[-1] // row.dtype.itemsize if row.shape[-1] > 1 else 1


def _transpose_result(a: BufferView, b: BufferView, out: BufferView) -> bool:
    """Is it faster to compute the transposed result and transpose it? For few rows times a transposed matrix (a linear
    layer), the AVX-512 code of OpenBLAS takes twice the time: it packs a long second side badly."""
    (rows, inner), columns = a.shape[-2:], b.shape[-1]
    transposed = [layout is not None and layout[0] == TRANSPOSED for layout in (_blas_layout(a), _blas_layout(b))]
    fits = len(out.shape) == 2 and transposed == [False, True] and _slow_rows(a)
    return fits and 1 < rows <= _TRANSPOSE_ROWS and 2 * rows <= inner and inner * columns >= _LONG_SIDE


def _transpose_right_first(a: BufferView, b: BufferView) -> bool:
    """Is it faster to transpose the second side first? The AVX-512 code of OpenBLAS for small matrices takes nearly
    twice the time if it is transposed."""
    (rows, inner), columns = a.shape[-2:], b.shape[-1]
    transposed = [layout is not None and layout[0] == TRANSPOSED for layout in (_blas_layout(a), _blas_layout(b))]
    small = rows >= 8 and columns >= 16 and inner >= 8 and rows * inner * columns <= _SMALL_CODE
    return small and transposed == [False, True] and _slow_rows(a)


def _slow_rows(a: BufferView) -> bool:
    """Does OpenBLAS use its AVX-512 code for float32, which is slow for a transposed second side?"""
    return a.dtype == np.float32 and machine().processor.lanes == 16


def _copied(view: BufferView, scratch: Scratch) -> tuple[BufferView, BufferView]:
    """(scratch for a copy of matrices, the same view without broadcast batch axes)."""
    shape = tuple(n if stride else 1 for n, stride in zip(view.shape[:-2], view.strides, strict=False))
    source = view.view((*shape, *view.shape[-2:]), view.strides)
    return scratch.allocate(source.shape, view.dtype), source


def _in_rows(a: BufferView, b: BufferView, out: BufferView) -> Matrices:
    """The matmul with a row-major result, and with batch axes merged into rows where possible."""
    layout = _blas_layout(out)
    if layout is not None and layout[0] == TRANSPOSED:
        # (a @ b)ᵀ = bᵀ @ aᵀ.
        a, b, out = _transposed(b), _transposed(a), _transposed(out)
    while len(out.shape) > 2:
        if out.shape[-3] > 1 and (b.strides[-3] or not _runs_on(a) or not _runs_on(out)):
            break
        # One matrix with all rows, because all have the same second side.
        a, b, out = _longer(a), b.view(b.shape[:-3] + b.shape[-2:], b.strides[:-3] + b.strides[-2:]), _longer(out)
    return a, b, out


def _runs_on(view: BufferView) -> bool:
    """Are the rows of neighbouring matrices contiguous?"""
    rows, stride = view.shape[-2], view.strides[-2]
    return rows == 1 or view.strides[-3] == rows * stride


def _longer(view: BufferView) -> BufferView:
    """Merge the last batch axis into the rows."""
    *stack, count, rows, columns = view.shape
    *steps, outer, down, across = view.strides
    return view.view((*stack, count * rows, columns), (*steps, outer if rows == 1 else down, across))


def batch_command(blas: Blas, views: Matrices, add: bool, threads: int) -> Command:
    """The command of a batch of gemms with row-major results. Unsuited if BLAS cannot read the matrices."""
    a, _, out = views
    layouts = [layout for view in views if (layout := _blas_layout(view)) is not None]
    if len(layouts) < 3 or layouts[2][0] != NOT_TRANSPOSED:
        raise Unsuited
    words = [blas.addresses[out.dtype], layouts[0][0], layouts[1][0], *out.shape[-2:], a.shape[-1],
             *(step for _, step in layouts), int(add)]  # fmt: skip
    return _stacked(blas, words, views, threads)


def _stacked(
    blas: Blas, words: list[int], views: Matrices, threads: int, cost: float | None = None
) -> Command:
    """The command of a batch of matmuls; `cost` is the cost of one multiplication if it is not a gemm."""
    if blas.int_type == "i32" and max(words[3:]) >= 1 << 31:
        raise Unsuited
    one = math.prod(words[3:6])
    work = math.prod(views[2].shape[:-2]) * (one * (cost or _COST[views[2].dtype]) + _CALL)
    axes = _stack_axes(views)
    if any(not steps[2] for _, steps in axes):
        raise Unsuited  # overlapping results
    count = math.prod(size for size, _ in axes)
    parallel = threads > 1 and count >= 2 * threads and one * count >= BATCH_FROM
    if not parallel and cost is None and worth_splitting(words[3], words[5], words[4], threads):
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
    blas_threads = one >= SPLIT_BY_BLAS or cost is not None
    return Command("matmul", "", 0, blocks, _addresses(blocks, views), work, parallel and len(blocks) > 1, blas_threads)


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
    return Command("matmul", "", 0, blocks, _addresses(blocks, views), work, len(blocks) > 1, True)


def _addresses(blocks: list[list[int]], views: Matrices) -> list[tuple[int, int, int]]:
    return [(number, at, view.object) for number in range(len(blocks))
            for at, view in zip(_ADDRESSES, views, strict=True)]  # fmt: skip


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


def _as_matrices(a: BufferView, b: BufferView, out: BufferView) -> Matrices:
    """Treat vectors as matrices of one row or one column."""
    item = out.dtype.itemsize
    if len(b.shape) == 1:
        b = b.view((*b.shape, 1), (*b.strides, item))
        out = out.view((*out.shape, 1), (*out.strides, item))
        if len(a.shape) == 1:
            out = out.view((1, 1), (item, item))
    elif len(a.shape) == 1:
        out = out.view((*out.shape[:-1], 1, out.shape[-1]), (*out.strides[:-1], 0, out.strides[-1]))
    if len(a.shape) == 1:
        a = a.view((1, *a.shape), (0, *a.strides))
    return a, b, out


def _transposed(view: BufferView) -> BufferView:
    shape, strides = view.shape, view.strides
    return view.view((*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2]))


def _blas_layout(view: BufferView) -> tuple[int, int] | None:
    """(CBLAS's transpose flag, leading dimension) of matrices; None where BLAS cannot read them."""
    (rows, columns), (down, across), item = view.shape[-2:], view.strides[-2:], view.dtype.itemsize
    if (across == item or columns == 1) and (rows == 1 or _steps(down, columns, item)):
        return NOT_TRANSPOSED, down // item if rows > 1 else columns
    if (down == item or rows == 1) and (columns == 1 or _steps(across, rows, item)):
        return TRANSPOSED, across // item if columns > 1 else rows
    return None


def _steps(stride: int, length: int, item: int) -> bool:
    """Is a stride valid between runs of `length` elements?"""
    return stride % item == 0 and stride >= item * length
