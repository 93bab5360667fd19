"""Matmul on arrays: BLAS runs on one thread, and the thread pool splits large work.

A large gemm is split into parts of its result, a batch into groups of matrices. BLAS would use threads of its own,
which wait for each other by yielding: next to a busy program that is up to a thousand times slower. Where NumPy's BLAS
is not OpenBLAS, or there is no native code, np.matmul is used.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from wayfare.codegen.routines.routine import address_of
from wayfare.codegen.runtime import thread_pool
from wayfare.codegen.runtime.blas import LETTERS, one_thread, openblas
from wayfare.codegen.runtime.command import BufferView, Command, Unsuited
from wayfare.codegen.runtime.command_gemm import BATCH_FROM, SPLIT_BY_BLAS, batch_command, gemm_routine
from wayfare.codegen.runtime.gemm_split import SMALL, worth_splitting
from wayfare.core import buffer_pool

Array = np.ndarray[Any, np.dtype[Any]]

# Multiplications from which on OpenBLAS uses threads of its own for a gemv.
SPLIT_WITH_VECTOR = 9_000


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
            target = buffer_pool.empty((len(a), columns), a.dtype) if out is None else out
            if _split(a, b, target):
                return target
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
    if _split(a, b, out):
        return out
    if out.size and out.size // math.prod(out.shape[-2:]) * SPLIT_BY_BLAS < a.size * b.shape[-1]:
        # Few and large: one after the other, each split over all threads.
        for index in np.ndindex(out.shape[:-2]):
            matmul(a[index], b[index], out[index])
        return out
    return _by_numpy(a, b, out)


def _split(a: Array, b: Array, out: Array) -> bool:
    """Split a gemm, or a batch of gemms, over the thread pool; False if that is impossible or does not pay."""
    threads, dtype = thread_pool.threads(), out.dtype
    blas = openblas()
    if blas is None or threads < 2 or dtype not in LETTERS or not a.dtype == b.dtype == dtype or 0 in a.shape:
        return False
    routine = gemm_routine(dtype, blas.int_type)
    command = _command(a.shape, a.strides, b.shape, b.strides, out.shape, out.strides, dtype, threads)
    if command is None or not routine.ready:
        return False
    blocks = [block.copy() for block in command.blocks]
    starts = [address_of(x) for x in (a, b, out)]
    for block, at, number in command.addresses:
        blocks[block][at] += starts[number]
    with blas:
        routine.run([word for block in blocks for word in block], len(blocks))
    return True


@lru_cache(maxsize=512)
def _command(
    shape: tuple[int, ...], strides: tuple[int, ...], shape_b: tuple[int, ...], strides_b: tuple[int, ...],
    shape_out: tuple[int, ...], strides_out: tuple[int, ...], dtype: np.dtype[Any], threads: int,
) -> Command | None:  # fmt: skip
    """The matmul as one command for several threads; None if BLAS cannot read the matrices or one thread is enough."""
    blas = openblas()
    layouts = ((shape, strides), (shape_b, strides_b), (shape_out, strides_out))
    a, b, out = (BufferView(number, 0, *layout, dtype) for number, layout in enumerate(layouts))
    if blas is None or shape_out != (*shape[:-1], shape_b[-1]) or shape_b != (*shape[:-2], shape[-1], shape_b[-1]):
        return None
    try:
        made = batch_command(blas, (a, b, out), False, threads)
    except Unsuited:
        return None
    return made if made.shared else None
