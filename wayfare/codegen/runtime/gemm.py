"""Matmul on arrays: direct gemms where the processor has registers for them, else BLAS; the thread pool splits large
work.

A large gemm is split into parts of its result, a batch into groups of matrices. BLAS runs on one thread: threads of its
own would wait for each other by yielding, which next to a busy program is up to a thousand times slower. Where NumPy's
BLAS is not OpenBLAS, or there is no native code, np.matmul is used.
"""

from __future__ import annotations

import math
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np

from wayfare.codegen.routines.direct_gemm import direct_gemm_command, direct_gemm_routine
from wayfare.codegen.routines.routine import Routine, address_of
from wayfare.codegen.runtime import thread_pool
from wayfare.codegen.runtime.blas import LETTERS, Blas, one_thread, openblas
from wayfare.codegen.runtime.command import BufferView, Command, Unsuited, contiguous
from wayfare.codegen.runtime.command_gemm import SPLIT_BY_BLAS, batch_command, gemm_routine, in_rows
from wayfare.codegen.runtime.gemm_blocks import BATCH_FROM
from wayfare.codegen.runtime.kernel import available
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
        found = _native(a, b, out, (len(a), columns))
        if found is not None:
            return found
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
    if _native(a, b, out, out.shape) is not None:
        return out
    if out.size and out.size // math.prod(out.shape[-2:]) * SPLIT_BY_BLAS < a.size * b.shape[-1]:
        # Few and large: one after the other, each split over all threads.
        for index in np.ndindex(out.shape[:-2]):
            matmul(a[index], b[index], out[index])
        return out
    return _by_numpy(a, b, out)


def _native(a: Array, b: Array, out: Array | None, shape: tuple[int, ...]) -> Array | None:
    """A gemm, or a batch of gemms, by native code and the thread pool; None if that is impossible or does not pay."""
    dtype = a.dtype
    if dtype not in LETTERS or b.dtype != dtype or 0 in a.shape or not available():
        return None
    strides = None if out is None else out.strides
    found = _command(a.shape, a.strides, b.shape, b.strides, shape, strides, dtype, thread_pool.threads())
    if found is None or (out is not None and out.dtype != dtype):
        return None
    routine, command, blas = found
    made = buffer_pool.empty(shape, dtype) if out is None else out
    blocks = [block.copy() for block in command.blocks]
    starts = [address_of(x) for x in (a, b, made)]
    for block, at, number in command.addresses:
        blocks[block][at] += starts[number]
    words = [word for block in blocks for word in block]
    if blas is None:
        routine.run(words, len(blocks))
    else:
        with blas:
            routine.run(words, len(blocks))
    return made


@lru_cache(maxsize=512)
def _command(
    shape: tuple[int, ...], strides: tuple[int, ...], shape_b: tuple[int, ...], strides_b: tuple[int, ...],
    shape_out: tuple[int, ...], strides_out: tuple[int, ...] | None, dtype: np.dtype[Any], threads: int,
) -> tuple[Routine, Command, Blas | None] | None:  # fmt: skip
    """The matmul as one command, with its routine, and with BLAS if that is called; None if np.matmul is better."""
    blas = openblas()
    layouts = ((shape, strides), (shape_b, strides_b))
    a, b = (BufferView(number, 0, *layout, dtype) for number, layout in enumerate(layouts))
    out = contiguous(2, 0, shape_out, dtype)
    if strides_out is not None:
        out = out.view(shape_out, strides_out)
    if blas is None or shape_out != (*shape[:-1], shape_b[-1]) or shape_b != (*shape[:-2], shape[-1], shape_b[-1]):
        return None
    if a.elements * shape_b[-1] < SPLIT_BY_BLAS:
        return None
    with suppress(Unsuited):
        return direct_gemm_routine(dtype), direct_gemm_command(in_rows(a, b, out), False, threads), None
    routine = gemm_routine(dtype, blas.int_type)
    with suppress(Unsuited):
        made = batch_command(blas, (a, b, out), False, threads)
        return (routine, made, blas) if made.shared and routine.ready else None
    return None
