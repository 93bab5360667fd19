"""Max pooling of any kind as a loop: values and indices.

A table (elements of a window, windows) lists the flat indices of all windows of one plane, with -1 outside the plane.
Among equal maxima the first is taken, among NaNs the last, as in PyTorch.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any

import numpy as np

from wayfare.codegen.loop.expr import OF_NUMPY, Expr, apply, cast, const
from wayfare.codegen.loop.language import Loop, Operand, Stage
from wayfare.codegen.loop.window import fold, load_at, size
from wayfare.codegen.routines.windows import Sizes, Slide
from wayfare.codegen.runtime import kernel as native
from wayfare.codegen.runtime.command import BufferView, Command, Unsuited
from wayfare.codegen.runtime.command_kernels import indexed_command
from wayfare.codegen.runtime.kernel import Kernel
from wayfare.core import buffer_pool

Array = np.ndarray[Any, np.dtype[Any]]

# Elements of windows from which on native code is used.
MAX_POOL_FROM = 256
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


@cache
def _kernel(dtype: str) -> Kernel:
    """Rows are planes, elements are windows: input 0 is the plane, input 1 the column of the table."""

    def element(k: Expr, best: Expr, best_index: Expr) -> tuple[Expr, Expr]:
        listed = load_at(1, "i32", k)
        inside = apply("ge", listed, 0)
        x = load_at(0, dtype, cast(listed, "i64"), mask=inside)
        better = apply("logical_or", apply("gt", x, best), apply("isnan", x))
        take = apply("logical_and", apply("logical_or", better, apply("lt", best_index, 0)), inside)
        return apply("where", take, x, best), apply("where", take, listed, best_index)

    found = fold(size(1, 0), (const(-math.inf, dtype), const(-1, "i32")), element)
    inputs = (Operand(dtype, True, 1), Operand("i32", axes=1))
    outputs = (Operand(dtype), Operand("i64"))
    return native.build(Loop("max_pool", inputs, outputs, (Stage(((0, found[0]), (1, cast(found[1], "i64")))),)))


def _suited(x: Array | BufferView, table: Array) -> Kernel | None:
    dtype = OF_NUMPY.get(x.dtype)
    work = x.shape[0] * x.shape[1] * table.size
    suited = dtype in ("f32", "f64") and work >= max(MAX_POOL_FROM, 1) and native.available()
    return _kernel(dtype) if suited and dtype is not None else None


def max_pool_commands(
    x: BufferView, values: BufferView, indices: BufferView, table: Array, threads: int
) -> list[Command]:
    """`max_over_windows` as a command, on C-contiguous views. Raises Unsuited where that returns None."""
    kernel = _suited(x, table)
    if kernel is None:
        raise Unsuited
    planes, (elements, windows) = x.shape[0] * x.shape[1], table.shape
    size, item = math.prod(x.shape[2:]), x.dtype.itemsize
    image = x.view((planes, 1, size), (size * item, 0, item))
    made = [v.view((planes, windows), (windows * v.dtype.itemsize, v.dtype.itemsize)) for v in (values, indices)]
    title = f"max_pool of {elements} {list(values.shape)}"
    return [indexed_command(kernel, title, (planes, windows), (1,), [image, table.T[None], *made], threads, elements)]


def max_over_windows(x: Array, table: Array, counts: tuple[int, ...]) -> tuple[Array, Array] | None:
    """(values, indices), both (N, C, *counts), of planes (N, C, *sizes); None where NumPy should do it.

    The table is a C-contiguous int32 array of flat indices within a plane.
    """
    kernel = _suited(x, table)
    if kernel is None:
        return None
    planes, (elements, windows) = x.shape[0] * x.shape[1], table.shape
    image = np.ascontiguousarray(x).reshape(planes, 1, -1)
    made = [buffer_pool.empty((planes, windows), np.dtype(d)) for d in (x.dtype, np.int64)]
    kernel.into([image, table.T[None]], made, (planes, windows), (1,), elements)
    values, indices = (array.reshape(*x.shape[:2], *counts) for array in made)
    return values, indices
