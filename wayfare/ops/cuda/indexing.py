"""Indexing, scattering and segments on CUDA.

Whether an index is in range is known only when its numbers are: the check runs on the device, and its error comes with
the next value that Python reads (`CudaBackend.require`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from wayfare.codegen.cuda.kernels import segments
from wayfare.codegen.loop.expr import OF_NUMPY, cast, load, reduction
from wayfare.codegen.loop.language import Loop, Operand, Reduction, Stage
from wayfare.core.errors import ArgumentError, IndexRangeError, OperationError
from wayfare.ops.cuda.late_checks import ERRORS
from wayfare.ops.cuda.rows import add_at, extreme_at, put_at, take
from wayfare.ops.cuda.table import on_cuda, on_host
from wayfare.ops.indexing.advanced import full_index, index_dtype_error, indexed_shape, picks_nothing


@lru_cache(16)
def _within_loop(dtype: str) -> Loop:
    """Are all elements in low … end - 1, or equal to one number?"""
    x, low, end, spared = cast(load(0, dtype), "i64"), *(load(k, "i64") for k in (1, 2, 3))
    fine = Reduction("all", (x >= low) & (x < end) | (x == spared))
    numbers = (Operand("i64", per_row=True),) * 3
    return Loop("within", (Operand(dtype), *numbers), (Operand("bool", per_row=True),), (Stage(reductions=(fine,)),),
                ((0, reduction(0, "bool")),))  # fmt: skip


def _within(b: Any, x: Any, low: int, end: int, spared: int | None = None) -> Any:
    """Whether all whole numbers of x are in low … end - 1, or equal to `spared`: one launch."""
    spared = low if spared is None else spared
    kernel = b.kernel(_within_loop(OF_NUMPY[x.dtype])) if x.size else None
    if kernel is None:
        return (x >= low) & (x < end) | (x == spared)
    numbers = (b.constant_array(np.array(n, np.int64)).reshape(1) for n in (low, end, spared))
    return kernel.rows((x.reshape(-1), *numbers), 0)[0]


def _check(
    b: Any, op: str, index: Any, size: int, dim: int, *, wrap: bool = False, error: Any = IndexRangeError
) -> None:
    if index.dtype.kind not in "iu":
        raise index_dtype_error(op, index)
    low = -size if wrap else 0
    if index.size:
        text = f"{op}: an index is out of range for dimension {dim} of size {size}"
        if size == 0:
            raise error(text)
        b.require(_within(b, index, low, size), error(text, fix=f"It can be from {low} to {size - 1}.", deferred=True))


@on_cuda("index", bfloat16=True)
def _index(b: Any, x: Any, *indices: Any, dims: Sequence[int]) -> Any:
    if x.size == 0 and picks_nothing(x.shape, indices, tuple(dims)):
        return b.xp.empty(indexed_shape("index", x.shape, indices, tuple(dims)), x.dtype)
    for dim, index in zip(dims, indices, strict=True):
        _check(b, "index", index, x.shape[dim], dim, wrap=True)
    return take(b, x, indices[0], dims[0]) if len(dims) == 1 else x[full_index(indices, tuple(dims))]


@on_cuda("index_place", bfloat16=True)
def _index_place(b: Any, g: Any, *indices: Any, shape: Any, dims: Any) -> Any:
    out = b.xp.zeros(shape, g.dtype)
    if g.size:
        add_at(b, out, full_index(indices, dims), g)
    return out


@on_cuda("index_put", bfloat16=True)
def _index_put(b: Any, x: Any, value: Any, *indices: Any, dims: Any, accumulate: bool) -> Any:
    if x.size == 0 and picks_nothing(x.shape, indices, dims):
        return x.copy("C")
    for dim, index in zip(dims, indices, strict=True):
        _check(b, "index_put", index, x.shape[dim], dim, wrap=True)
    out, where = x.copy("C"), full_index(indices, dims)
    if accumulate:
        add_at(b, out, where, value)
    else:
        put_at(b, out, where, value)
    return out


@on_cuda("index_select", bfloat16=True)
def _index_select(b: Any, x: Any, index: Any, *, dim: int) -> Any:
    _check(b, "index_select", index, x.shape[dim], dim)
    return take(b, x, index, dim)


@on_cuda("embedding", bfloat16=True)
def _embedding(b: Any, weight: Any, index: Any, *, padding_idx: Any, by_frequency: bool) -> Any:
    _check(b, "embedding", index, weight.shape[0], 0)
    return take(b, weight, index, 0)


@on_cuda("one_hot")
def _one_hot(b: Any, x: Any, *, classes: int) -> Any:
    _check(b, "one_hot", x, classes, -1, error=OperationError)
    return (x[..., None] == b.xp.arange(classes)).astype(np.int64)


@on_cuda("isin")
def _isin(b: Any, elements: Any, tests: Any, *, invert: bool) -> Any:
    return b.xp.isin(elements, tests, invert=invert)


@on_cuda("searchsorted")
def _searchsorted(b: Any, row: Any, values: Any, *, right: bool, dtype: Any) -> Any:
    """By counting: how many numbers of its row are smaller (or as small)."""
    rows = row if row.ndim > 1 else row.reshape((1,) * (values.ndim - 1) + row.shape) if values.ndim else row
    if row.ndim > 1 and row.shape[:-1] != values.shape[:-1]:
        raise ValueError("other rows")
    if row.ndim == 1:
        side = "right" if right else "left"
        return b.xp.searchsorted(row, values.reshape(-1), side=side).reshape(values.shape).astype(dtype.numpy)
    left, given = rows[..., None, :], values[..., None]
    return (left <= given if right else left < given).sum(axis=-1).astype(dtype.numpy)


# -- one index for every element along a dimension -------------------------------------------------------------------


@lru_cache(maxsize=256)
def _ranges(shape: tuple[int, ...], dim: int) -> tuple[tuple[int, ...], ...]:
    return tuple((n,) + (1,) * (len(shape) - d - 1) if d != dim else () for d, n in enumerate(shape))


def _along(b: Any, index: Any, dim: int) -> tuple[Any, ...]:
    """The index of "the element `index` along `dim`, all other coordinates the index's own"."""
    shapes = _ranges(index.shape, dim)
    return tuple(index if d == dim else b.xp.arange(n).reshape(shapes[d]) for d, n in enumerate(index.shape))


def _check_along(b: Any, op: str, x: Any, index: Any, dim: int) -> None:
    if index.ndim != x.ndim:
        raise ValueError("ranks differ")
    _check(b, op, index, x.shape[dim], dim, error=OperationError)


@on_cuda("gather", bfloat16=True)
def _gather(b: Any, x: Any, index: Any, *, dim: int) -> Any:
    _check_along(b, "gather", x, index, dim)
    return x[_along(b, index, dim)]


@on_cuda("scatter_place", bfloat16=True)
def _scatter_place(b: Any, g: Any, index: Any, *, shape: Any, dim: int) -> Any:
    out = b.xp.zeros(shape, g.dtype)
    add_at(b, out, _along(b, index, dim), g)
    return out


@on_cuda("scatter_add", bfloat16=True)
def _scatter_add(b: Any, x: Any, index: Any, src: Any, *, dim: int) -> Any:
    _check_along(b, "scatter_add", x, index, dim)
    out = x.copy("C")
    add_at(b, out, _along(b, index, dim), src)
    return out


@on_cuda("scatter", bfloat16=True)
def _scatter(b: Any, x: Any, index: Any, src: Any, *, dim: int) -> Any:
    _check_along(b, "scatter", x, index, dim)
    out = x.copy("C")
    put_at(b, out, _along(b, index, dim), src)
    return out


def _folding(name: str, how: str) -> None:
    @on_cuda(name, bfloat16=True)
    def forward(b: Any, x: Any, index: Any, src: Any, *, dim: int) -> Any:
        _check_along(b, name, x, index, dim)
        out = x.copy("C")
        extreme_at(b, out, _along(b, index, dim), src, how)
        return out


_folding("scatter_amax", "maximum")
_folding("scatter_amin", "minimum")
on_host("CUDA has no atomic product", "scatter_prod")


# -- checks that give back what they are given ------------------------------------------------------------------------


def _wrong_class(*, op: str, classes: int, error: Any = IndexRangeError, **_attrs: Any) -> Any:
    return error(f"{op}: a class is out of range for {classes} classes",
                 fix=f"Classes are numbered from 0 to {classes - 1}.", deferred=True)  # fmt: skip


ERRORS["checked_classes"] = _wrong_class


@on_cuda("checked_classes")
def _checked_classes(b: Any, target: Any, *, classes: int, ignore_index: int, **attrs: Any) -> Any:
    b.require(_within(b, target, 0, classes, ignore_index), _wrong_class(classes=classes, **attrs))
    return target


@on_cuda("checked_lengths")
def _checked_lengths(b: Any, lengths: Any, *, op: str, what: str, most: int) -> Any:
    fine = (lengths >= 0) & (lengths <= most) if most >= 0 else lengths >= 0
    text = f"{op}: a length of the {what} is negative, or longer than what is given"
    b.require(fine, OperationError(text, deferred=True))
    return lengths


@on_cuda("floored_variance")
def _floored_variance(b: Any, var: Any, *, eps: float) -> Any:
    b.require(~(var < 0), ArgumentError("gaussian_nll_loss: var has a negative entry", deferred=True))
    return b.xp.maximum(var, var.dtype.type(eps))


@on_cuda("at_index")
def _at_index(b: Any, x: Any, index: Any, *, dim: int) -> Any:
    """x where the position along `dim` is the index, zero elsewhere."""
    shape = [1] * x.ndim
    shape[dim] = x.shape[dim]
    return b.xp.where(b.xp.arange(x.shape[dim]).reshape(shape) == index, x, b.xp.zeros((), x.dtype))


# -- segments ---------------------------------------------------------------------------------------------------------


def _check_segments(b: Any, op: str, offsets: Any, total: int) -> None:
    if offsets.dtype != np.int64 or offsets.ndim != 1 or not offsets.size:
        raise ValueError("these are no offsets")
    b.require(offsets[1:] >= offsets[:-1], ArgumentError(f"{op}: offsets must not decrease", deferred=True))
    ends = b.xp.stack([offsets[0], offsets[-1] - total])
    text = f"{op}: offsets must go from 0 to {total}, the number of packed rows"
    b.require(ends == 0, ArgumentError(text, deferred=True))


def _reduced(b: Any, x: Any, offsets: Any, kind: str) -> Any:
    """One row for each segment. The sum of bools is whether one of them holds, as in NumPy."""
    if x.dtype == np.bool_:
        return _reduced(b, x.view(np.uint8), offsets, "max" if kind == "sum" else kind).view(np.bool_)
    out = b.empty((offsets.size - 1, *x.shape[1:]), x.dtype)
    segments.reduce(b.launcher, b.in_c_order(x), b.in_c_order(offsets), out, kind)
    return out


def _spread(b: Any, x: Any, offsets: Any, size: int) -> Any:
    """The row of each segment, for each of its rows."""
    out = b.empty((size, *x.shape[1:]), x.dtype)
    segments.spread(b.launcher, b.in_c_order(x), b.in_c_order(offsets), out)
    return out


@on_cuda("segment_repeat", bfloat16=True)
def _segment_repeat(b: Any, x: Any, offsets: Any, *, size: int) -> Any:
    _check_segments(b, "segment_repeat", offsets, size)
    if x.shape[0] != offsets.size - 1:
        raise ValueError("other segments")
    return _spread(b, x, offsets, size)


@on_cuda("segment_sum", bfloat16=True)
def _segment_sum(b: Any, x: Any, offsets: Any) -> Any:
    _check_segments(b, "segment_sum", offsets, x.shape[0])
    return _reduced(b, x, offsets, "sum")


def _segment_extreme(name: str, kind: str) -> None:
    @on_cuda(name, bfloat16=True)
    def forward(b: Any, x: Any, offsets: Any) -> Any:
        _check_segments(b, name, offsets, x.shape[0])
        text, fix = f"{name}: a segment is empty, so it has no {kind}", "Leave empty segments out."
        b.require(offsets[1:] > offsets[:-1], OperationError(text, fix=fix, deferred=True))
        return _reduced(b, x, offsets, kind)


_segment_extreme("segment_max", "max")
_segment_extreme("segment_min", "min")


def _raised(b: Any, x: Any, top: Any, offsets: Any) -> tuple[Any, Any]:
    """exp(x - top), and its sum over each segment."""
    raised = b.xp.exp(x - _spread(b, top, offsets, x.shape[0]))
    return raised, _reduced(b, raised, offsets, "sum")


def _wide(x: Any) -> Any:
    return x.astype(np.float32) if x.dtype == np.float16 else x


@on_cuda("segment_logsumexp")
def _segment_logsumexp(b: Any, x: Any, offsets: Any) -> Any:
    _check_segments(b, "segment_logsumexp", offsets, x.shape[0])
    wide = _wide(x)
    top = _reduced(b, wide, offsets, "max")
    # An infinite maximum (of an empty segment, too) cannot be subtracted.
    top = b.xp.where(b.xp.isinf(top), b.xp.zeros((), wide.dtype), top)
    _, total = _raised(b, wide, top, offsets)
    return (b.xp.log(total) + top).astype(x.dtype, copy=False)


@on_cuda("segment_softmax")
def _segment_softmax(b: Any, x: Any, offsets: Any) -> Any:
    _check_segments(b, "segment_softmax", offsets, x.shape[0])
    wide = _wide(x)
    raised, total = _raised(b, wide, _reduced(b, wide, offsets, "max"), offsets)
    return (raised / _spread(b, total, offsets, x.shape[0])).astype(x.dtype, copy=False)
