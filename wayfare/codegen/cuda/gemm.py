"""Matrix products on a GPU: views of buffers as calls of cuBLAS.

cuBLAS has matrices in column order. A matrix whose rows are contiguous is its own transpose there, so `out = a @ b` is
asked for as `out.T = b.T @ a.T`, and nothing is copied. A batch is one call if its matrices are a constant step apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from wayfare.codegen.loop.expr import NARROW, OF_NUMPY
from wayfare.codegen.runtime.command import BufferView, Shape, Unsuited

# The dtypes that cuBLAS multiplies. Of the narrow ones the result may be f32.
FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
# The most calls for one batch whose matrices are not a constant step apart.
_MOST_CALLS = 64


@dataclass(frozen=True, slots=True)
class Gemm:
    """One call: `batch` products of a (rows × inner) and a (inner × columns) matrix.

    `transposed_a`: are the columns of the first matrix contiguous, not its rows? The leading dimension is the step
    between its rows (or columns). The rows of the result are contiguous. All steps count elements. `out` is the dtype
    of the result.
    """

    dtype: str
    out: str
    rows: int
    columns: int
    inner: int
    transposed_a: bool
    transposed_b: bool
    leading: tuple[int, int, int]
    batch: int
    steps: tuple[int, int, int]
    add: bool


# Where a matrix lies: the number of a buffer, and an offset in bytes.
Location = tuple[int, int]


def gemm_calls(
    a: BufferView, b: BufferView, out: BufferView, add: bool, most: int = _MOST_CALLS
) -> list[tuple[Gemm, Location, Location, Location]]:
    """The calls for `out = a @ b` (`out += a @ b`) of matrices and batches of them, each with where its two matrices
    and its result lie. Raises Unsuited where cuBLAS cannot read or write them as they lie."""
    dtype, of_out = OF_NUMPY.get(a.dtype, ""), OF_NUMPY.get(out.dtype, "")
    if dtype not in FLOATS or b.dtype != a.dtype or (of_out != dtype and not (of_out == "f32" and dtype in NARROW)):
        raise Unsuited
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] == 0 or 0 in out.shape:
        raise Unsuited
    if _leading(out)[0]:  # the columns of the result are contiguous: multiply the transposed matrices
        a, b, out = _transposed(b), _transposed(a), _transposed(out)
    transposed_a, leading_a = _leading(a)
    transposed_b, leading_b = _leading(b)
    batch = out.shape[:-2]
    views = (a, b, out)
    steps = [_batch_steps(view, batch) for view in views]
    size, (step_a, step_b, step_out), outer = _one_step(batch, steps, most)
    call = Gemm(
        dtype, of_out, out.shape[-2], out.shape[-1], a.shape[-1], transposed_a, transposed_b,
        (leading_a, leading_b, _leading(out)[1]), size, (step_a, step_b, step_out), add,
    )  # fmt: skip
    found = []
    for at in product(*(range(batch[axis]) for axis in outer)):
        skips = [sum(i * own[axis] for i, axis in zip(at, outer, strict=True)) for own in steps]
        first, second, target = (
            (v.object, v.offset + skip * v.dtype.itemsize) for v, skip in zip(views, skips, strict=True)
        )
        found.append((call, first, second, target))
    return found


def _transposed(view: BufferView) -> BufferView:
    shape, strides = view.shape, view.strides
    return view.view((*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2]))


def _leading(view: BufferView) -> tuple[bool, int]:
    """Are the columns of a matrix contiguous (and not its rows)? And the step between rows (columns), in elements."""
    rows, columns = view.shape[-2:]
    item = view.dtype.itemsize
    down, across = view.strides[-2:]
    if (across == item or columns == 1) and (rows == 1 or (down >= columns * item and down % item == 0)):
        return False, max(columns, down // item if rows > 1 else columns)
    if (down == item or rows == 1) and (columns == 1 or (across >= rows * item and across % item == 0)):
        return True, max(rows, across // item if columns > 1 else rows)
    raise Unsuited


def _batch_steps(view: BufferView, batch: Shape) -> list[int]:
    """The step along each axis of the batch, in elements; 0 where the operand is broadcast."""
    item = view.dtype.itemsize
    own, strides = view.shape[:-2], view.strides[:-2]
    missing = len(batch) - len(own)
    steps = [0] * missing + [0 if n == 1 else s // item for n, s in zip(own, strides, strict=True)]
    if missing < 0 or any(n not in (1, m) for n, m in zip(own, batch[missing:], strict=True)):
        raise Unsuited
    if any(s % item for n, s in zip(own, strides, strict=True) if n > 1):
        raise Unsuited
    return steps


def _one_step(batch: Shape, steps: list[list[int]], most: int) -> tuple[int, list[int], list[int]]:
    """(how many matrices one call multiplies, its steps, the axes that are left for a loop over calls)."""
    size, step = 1, [0, 0, 0]
    outer: list[int] = []
    for axis in reversed(range(len(batch))):
        n = batch[axis]
        if n == 1:
            continue
        here = [own[axis] for own in steps]
        if not outer and size == 1:
            size, step = n, here
        elif not outer and here == [s * size for s in step]:
            size *= n
        else:
            outer.insert(0, axis)
    if int(np.prod([batch[axis] for axis in outer], dtype=np.int64)) > most:
        raise Unsuited
    return size, step, outer


def matmul(launcher: Any, a: Any, b: Any) -> Any:
    """The product of matrices, or of batches of them that broadcast, on device arrays of one dtype of FLOATS."""
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    out = launcher.empty(shape, a.dtype)
    if 0 in shape or a.shape[-1] == 0:
        out[...] = 0
        return out
    try:
        calls = gemm_calls(_view(0, a), _view(1, b), _view(2, out), False)
    except Unsuited:  # as contiguous copies, which may take one call for each matrix of the batch
        a, b = a.copy("C"), b.copy("C")
        calls = gemm_calls(_view(0, a), _view(1, b), _view(2, out), False, math.prod(shape[:-2]))
    starts = [launcher.pointer(x) for x in (a, b, out)]
    for call, *locations in calls:
        x, y, z = [starts[number] + offset for number, offset in locations]
        launcher.gemm(call, x, y, z)
    return out


def _view(number: int, array: Any) -> BufferView:
    return BufferView(number, 0, array.shape, array.strides, array.dtype)
