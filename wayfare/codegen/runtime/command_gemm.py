"""Matmuls as commands on buffer views: direct gemms where the processor has registers for them, else CBLAS calls.

BLAS runs on one thread. Large gemms, and batches of gemms, are split over the thread pool; medium ones run on the
calling thread, because waking another would take longer than the work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from wayfare.codegen.llvm.builder import Writer
from wayfare.codegen.llvm.machine import Machine, machine
from wayfare.codegen.routines.direct_gemm import direct_gemm_command
from wayfare.codegen.routines.routine import Routine, function, pointer, word
from wayfare.codegen.routines.skinny_gemm import skinny_gemm_commands
from wayfare.codegen.runtime.blas import Blas, openblas
from wayfare.codegen.runtime.command import BufferView, Command, Scratch, Unsuited
from wayfare.codegen.runtime.command_kernels import broadcast, copy_commands
from wayfare.codegen.runtime.gemm_blocks import ADDRESSES, PARTS_PER_THREAD, Matrices, stacked

# Multiplications from which on OpenBLAS uses threads of its own for a gemm.
SPLIT_BY_BLAS = 1 << 18
# CBLAS's constants.
ROW_MAJOR, NOT_TRANSPOSED, TRANSPOSED = 101, 111, 112
# Up to this many multiplications OpenBLAS uses its code for small matrices.
_SMALL_CODE = 1_000_000
# A matrix of so many elements is large.
_LONG_SIDE = 1 << 15
# Up to so many rows, one gemv for each row is faster than a gemm with a large matrix.
_GEMV_ROWS = 6
# Limits of the skinny gemm: rows and inner size in general, and for large matrices.
_SKINNY_ROWS, _SKINNY_INNER, _SKINNY_ROWS_LARGE, _SKINNY_INNER_LARGE = 8, 8, 32, 128
# The longest inner size for a gemv that adds row after row of the matrix: its sums are not precise enough beyond.
_LONGEST_SUM = 1 << 14
# Nanoseconds of one multiplication in a gemm, and of one in a gemv (bound by memory).
_COST = {np.dtype("float32"): 0.02, np.dtype("float64"): 0.04}
_COST_READ = {np.dtype("float32"): 0.05, np.dtype("float64"): 0.1}

# -- the routines -------------------------------------------------------------------------------------------------


# Emits one BLAS call: (a, b, out, beta).
Call = Callable[[str, str, str, str], None]


def _write(write_call: Callable[[Writer, str, str], Call], dtype: str, int_type: str, _host: Machine) -> str:
    """Words: nine for the BLAS call; 1 to add to `out`; two batch sizes; for each matrix its address and two batch
    strides."""
    writer = Writer()
    call = write_call(writer, dtype, int_type)
    beta = writer.let(f"sitofp i64 {word(writer, 9)} to {dtype}")
    starts = [word(writer, at) for at in ADDRESSES]
    steps = [(word(writer, at + 1), word(writer, at + 2)) for at in ADDRESSES]
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
    with suppress(Unsuited):
        return _direct(a, b, out, add, threads, scratch)
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
    matrices = in_rows(sides[0], sides[1], target)
    by_rows, how = _as_gemv_rows(*matrices), ""
    # One column is one row of the transposed result.
    skinny = matrices if columns > 1 else (_transposed(matrices[1]), _transposed(matrices[0]), _transposed(matrices[2]))
    if _is_skinny(*skinny):
        with suppress(Unsuited):
            *more, made = skinny_gemm_commands(*skinny, add, threads, scratch)
            made.title = _title(out, inner, add, ", skinny")
            return [*before, *more, made, *after]
    if by_rows is not None:
        made, how = _gemv_rows(blas, by_rows, add, threads), ", row by row"
        made.function = by_row.address
    else:
        made = batch_command(blas, matrices, add, threads)
        made.function = routine.address
    made.title = _title(out, inner, add, how)
    return [*before, made, *after]


def _direct(
    a: BufferView, b: BufferView, out: BufferView, add: bool, threads: int, scratch: Scratch
) -> list[Command]:
    """The matmul as a direct gemm. Raises Unsuited where another way is faster."""
    sides = [broadcast(side, (*out.shape[:-2], *side.shape[-2:])) for side in (a, b)]
    left, right, target = in_rows(sides[0], sides[1], out)
    (rows, inner), columns, item = left.shape[-2:], right.shape[-1], out.dtype.itemsize
    before: list[Command] = []
    after: list[Command] = []
    if right.strides[-1] != item and not add and _transpose_result(left, right, target):
        # outᵀ = bᵀ @ aᵀ: what is transposed are the few rows, not the large matrix.
        source, left, right = _transposed(left), _transposed(right), scratch.allocate((inner, rows), out.dtype)
        made = scratch.allocate((columns, rows), out.dtype)
        before, after = copy_commands(source, right, threads), copy_commands(_transposed(made), target, threads)
        target = made
    elif right.strides[-1] != item and _is_skinny(left, right, target):
        raise Unsuited
    elif item not in right.strides[-2:]:
        right, source = _copied(right, scratch)
        before = copy_commands(source, right, threads)
        right = broadcast(right, (*target.shape[:-2], inner, columns))
    gemm = direct_gemm_command((left, right, target), add, threads)
    gemm.title = _title(out, inner, add, ", direct")
    return [*before, gemm, *after]


def _transpose_result(a: BufferView, b: BufferView, out: BufferView) -> bool:
    """Is it cheaper to compute the transposed result of few rows, and transpose it, than to transpose `b`?"""
    rows, inner, columns = *a.shape[-2:], b.shape[-1]
    lanes = 64 // out.dtype.itemsize
    full = rows >= lanes and 4 * (-rows % lanes) <= rows  # few empty lanes
    return len(out.shape) == 2 and full and rows * (inner + columns) < inner * columns


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
    return _by_blas(blas, words, (a, b, out), threads, _COST_READ[out.dtype], split=False)


def _along(row: BufferView) -> int:
    """The step between elements of a row."""
    return row.strides[-1] // row.dtype.itemsize if row.shape[-1] > 1 else 1


def _slow_rows(a: BufferView) -> bool:
    """Does OpenBLAS use its AVX-512 code for float32, which is slow for a transposed second side?"""
    return a.dtype == np.float32 and machine().processor.lanes == 16


def _copied(view: BufferView, scratch: Scratch) -> tuple[BufferView, BufferView]:
    """(scratch for a copy of matrices, the same view without broadcast batch axes)."""
    shape = tuple(n if stride else 1 for n, stride in zip(view.shape[:-2], view.strides, strict=False))
    source = view.view((*shape, *view.shape[-2:]), view.strides)
    return scratch.allocate(source.shape, view.dtype), source


def in_rows(a: BufferView, b: BufferView, out: BufferView) -> Matrices:
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
    return _by_blas(blas, words, views, threads, _COST[out.dtype])


def _by_blas(
    blas: Blas, words: list[int], views: Matrices, threads: int, cost: float, *, split: bool = True
) -> Command:
    if blas.int_type == "i32" and max(words[3:]) >= 1 << 31:
        raise Unsuited
    made = stacked(words, views, threads, cost) if split else stacked(words, views, threads, cost, least=math.inf)
    made.blas_threads = math.prod(words[3:6]) >= SPLIT_BY_BLAS or not split
    return made


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
