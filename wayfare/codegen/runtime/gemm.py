"""Matmul on arrays: BLAS runs on one thread, and the thread pool splits large work.

A large gemm is split into parts of its result, a batch into groups of matrices. BLAS would use threads of its own,
which wait for each other by yielding: next to a busy program that is up to a thousand times slower. Where NumPy's BLAS
is not OpenBLAS, or there is no native code, np.matmul is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np

from wayfare.codegen.llvm.builder import Writer
from wayfare.codegen.llvm.machine import Machine
from wayfare.codegen.routines.routine import Routine, function, pointer, word
from wayfare.codegen.runtime import thread_pool
from wayfare.codegen.runtime.blas import LETTERS, one_thread, openblas
from wayfare.codegen.runtime.gemm_split import SMALL, parts_of, worth_splitting
from wayfare.core import buffer_pool

Array = np.ndarray[Any, np.dtype[Any]]

# Multiplications from which on a batch is split over threads.
BATCH_FROM = 500_000
# Multiplications from which on OpenBLAS uses threads of its own: for gemm, and for gemv.
SPLIT_BY_BLAS, SPLIT_WITH_VECTOR = 1 << 18, 9_000
# Parts for each thread: a thread that starts late takes fewer.
PARTS_PER_THREAD = 4
# CBLAS's constants.
ROW_MAJOR, NOT_TRANSPOSED, TRANSPOSED = 101, 111, 112


# -- the routine --------------------------------------------------------------------------------------------------


def write_gemm_call(writer: Writer, dtype: str, int_type: str) -> Callable[[str, str, str, str], None]:
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


def _write(dtype: str, int_type: str) -> Callable[[Machine], str]:
    """Words: those of `write_gemm_call`; tables of the matrices' addresses; the first matrix and the end."""

    def write(_host: Machine) -> str:
        writer = Writer()
        matmul = write_gemm_call(writer, dtype, int_type)
        tables = [pointer(writer, number) for number in (9, 10, 11)]
        with writer.loop(word(writer, 12), word(writer, 13), 1) as i:
            a, b, out = (writer.load("ptr", entry) for entry in [writer.element("ptr", t, i) for t in tables])
            matmul(a, b, out, "0.0")
        return function(writer)

    return write


def _write_part(dtype: str, int_type: str) -> Callable[[Machine], str]:
    """Words: those of `write_gemm_call`; the addresses of the three matrices."""

    def write(_host: Machine) -> str:
        writer = Writer()
        a, b, out = (pointer(writer, number) for number in (9, 10, 11))
        write_gemm_call(writer, dtype, int_type)(a, b, out, "0.0")
        return function(writer)

    return write


@cache
def _routine(dtype: np.dtype[Any], int_type: str, part: bool = False) -> Routine:
    kind = "float" if dtype == np.float32 else "double"
    if part:
        return Routine(f"matmul_part_{kind}_{int_type}", _write_part(kind, int_type))
    return Routine(f"batched_matmul_{kind}_{int_type}", _write(kind, int_type))


# -- matmul -------------------------------------------------------------------------------------------------------


def _blas_layout(shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> tuple[int, int] | None:
    """(CBLAS's transpose flag, leading dimension) of matrices; None where BLAS cannot read them."""
    down, across = strides[-2:]
    rows, columns = shape[-2:]
    if across == item and down % item == 0 and down >= item * columns:
        return NOT_TRANSPOSED, down // item
    if down == item and across % item == 0 and across >= item * rows:
        return TRANSPOSED, across // item
    return None


def _addresses(x: Array) -> Array:
    """The addresses of the matrices of a batch, in order."""
    address = np.array(x.__array_interface__["data"][0], np.int64)
    for axis, (size, stride) in enumerate(zip(x.shape[:-2], x.strides, strict=False)):
        address = address + (np.arange(size) * stride).reshape((-1,) + (1,) * (x.ndim - 3 - axis))
    return np.ascontiguousarray(np.broadcast_to(address, x.shape[:-2])).reshape(-1)


def matmul(a: Array, b: Array, out: Array | None = None) -> Array:
    """np.matmul(a, b), into `out` if given, which overlaps neither."""
    columns = b.shape[-1] if b.ndim > 1 else 1
    work = a.size * columns
    if work < SPLIT_WITH_VECTOR:
        return np.matmul(a, b, out=out)
    if a.ndim == 2 and b.ndim == 2:
        if work < SPLIT_BY_BLAS and columns > 1 and len(a) > 1:
            return np.matmul(a, b, out=out)
        if work >= SMALL and worth_splitting(len(a), len(b), columns, thread_pool.threads()):
            made = _split_matmul(a, b, out)
            if made is not None:
                return made
    elif a.ndim > 1 and b.ndim > 1 and work >= BATCH_FROM and a.dtype in LETTERS and a.dtype == b.dtype:
        stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        if out is None:
            out = buffer_pool.empty((*stack, a.shape[-2], columns), a.dtype)
        sides = [np.broadcast_to(x, (*stack, *x.shape[-2:])) for x in (a, b)]
        return batched_matmul(sides[0], sides[1], out)
    return _by_numpy(a, b, out)


def _by_numpy(a: Array, b: Array, out: Array | None) -> Array:
    with one_thread():
        return np.matmul(a, b, out=out)


def batched_matmul(a: Array, b: Array, out: Array) -> Array:
    """`a @ b` of batches […, m, k] and […, k, n] with equal batch sizes and dtype, into `out`, which is row-major and
    overlaps neither."""
    if _split_batch(a, b, out):
        return out
    if out.size and out.size // math.prod(out.shape[-2:]) * SPLIT_BY_BLAS < a.size * b.shape[-1]:
        # Few and large: one after the other, each split over all threads.
        for index in np.ndindex(out.shape[:-2]):
            matmul(a[index], b[index], out[index])
        return out
    return _by_numpy(a, b, out)


def _split_matmul(a: Array, b: Array, out: Array | None) -> Array | None:
    """Split a large gemm over the thread pool; None where BLAS cannot read the matrices, or without native code."""
    blas = openblas()
    if blas is None or a.dtype not in LETTERS or a.dtype != b.dtype or a.shape[1] != len(b):
        return None
    rows, inner = a.shape
    columns = b.shape[1]
    if out is None:
        out = buffer_pool.empty((rows, columns), a.dtype)
    elif out.dtype != a.dtype or out.shape != (rows, columns):
        return None
    routine = _routine(out.dtype, blas.int_type, part=True)
    words = _words_of_parts(rows, inner, columns, thread_pool.threads(), a.dtype, a.strides, b.strides, out.strides)
    if words is None or not routine.ready:
        return None
    words = words.copy()
    starts = [x.__array_interface__["data"][0] for x in (a, b, out)]
    for begin in range(0, len(words), _PART):
        words[begin] = blas.addresses[out.dtype]
        for number, start in enumerate(starts, begin + 9):
            words[number] += start
    with blas:
        routine.run(words, len(words) // _PART)
    return out


# Words of the argument block of a part.
_PART = 12


@lru_cache(maxsize=512)
def _words_of_parts(
    rows: int, inner: int, columns: int, threads: int, dtype: np.dtype[Any], *strides: tuple[int, int]
) -> list[int] | None:
    """The argument blocks of the parts of a gemm, with offsets for addresses; None if BLAS cannot read the matrices."""
    shapes = ((rows, inner), (inner, columns), (rows, columns))
    layouts = [_blas_layout(shape, own, dtype.itemsize) for shape, own in zip(shapes, strides, strict=True)]
    left, right, target = layouts
    if left is None or right is None or target is None or target[0] != NOT_TRANSPOSED:
        return None
    by_row, by_column, of_out = strides
    words: list[int] = []
    for down, across in parts_of(rows, inner, columns, threads):
        words += [0, left[0], right[0], down.stop - down.start, across.stop - across.start, inner]
        words += [left[1], right[1], target[1], down.start * by_row[0], across.start * by_column[1]]
        words.append(down.start * of_out[0] + across.start * of_out[1])
    return words


def _split_batch(a: Array, b: Array, out: Array) -> bool:
    """Split a batch over the thread pool; False if that is impossible or does not pay."""
    rows, inner = a.shape[-2:]
    columns = b.shape[-1]
    each = rows * inner * columns
    count = out.size // (rows * columns) if rows * columns else 0
    threads = thread_pool.threads()
    if threads < 2 or count < 2 * threads or each * count < BATCH_FROM or out.dtype not in LETTERS:
        return False
    left, right, target = (_blas_layout(x.shape, x.strides, x.itemsize) for x in (a, b, out))
    blas = openblas()
    if blas is None or left is None or right is None or target is None or target[0] != NOT_TRANSPOSED:
        return False
    routine = _routine(out.dtype, blas.int_type)
    if not routine.ready:
        return False
    tables = [_addresses(x) for x in (a, b, out)]
    given = [blas.addresses[out.dtype], left[0], right[0], rows, columns, inner, left[1], right[1], target[1],
             *(table.__array_interface__["data"][0] for table in tables)]  # fmt: skip
    parts = min(PARTS_PER_THREAD * threads, count)
    bounds = [count * part // parts for part in range(parts + 1)]
    words: list[int] = []
    for part in range(parts):
        words += [*given, bounds[part], bounds[part + 1]]
    with blas:
        routine.run(words, parts)
    return True
