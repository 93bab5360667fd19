"""Reductions, scans and sorting on CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.core.op import REGISTRY
from wayfare.core.spec import NARROW_ARRAYS, OF_NUMPY, Spec, widened
from wayfare.ops._define import reduced_shape
from wayfare.ops.cuda.table import on_cuda
from wayfare.ops.reduction.reduce import count_of

Dims = tuple[int, ...]

def _result_dtype(name: str, x: Any) -> np.dtype[Any]:
    made: Spec = REGISTRY[name].infer(Spec((), OF_NUMPY[x.dtype]), dim=(), keepdim=False)
    return made.dtype.numpy


def _reducing(name: str, function: str, *, sums: bool = False) -> None:
    @on_cuda(name, bfloat16=True)
    def forward(b: Any, x: Any, *, dim: Dims, keepdim: bool) -> Any:
        dtype = _result_dtype(name, x)
        if not dim:
            return (x.astype(np.bool_) if name in ("any", "all") else x).astype(dtype)
        found = b.reduced(name, x, dim, keepdim, dtype)
        if found is not None:
            return found
        # Halves are summed in single precision.
        options = {"dtype": np.dtype(np.float32) if dtype in NARROW_ARRAYS else dtype} if sums else {}
        return getattr(b.xp, function)(widened(x), axis=dim, keepdims=keepdim, **options).astype(dtype, copy=False)


for _name, _function in (("amax", "amax"), ("amin", "amin"), ("max_of_all", "amax"), ("min_of_all", "amin"),
                         ("any", "any"), ("all", "all")):  # fmt: skip
    _reducing(_name, _function)
_reducing("sum", "sum", sums=True)
_reducing("prod", "prod", sums=True)


@on_cuda("mean")
def _mean(b: Any, x: Any, *, dim: Dims, keepdim: bool) -> Any:
    return b.ops.div(b.ops.sum(x, dim=dim, keepdim=keepdim), count_of(x.shape, dim))


def _finding(name: str) -> None:
    @on_cuda(name, bfloat16=True)
    def forward(b: Any, x: Any, *, dim: Dims, keepdim: bool) -> Any:
        if not dim:
            return b.xp.zeros(x.shape, np.int64)
        found = b.reduced(name, x, dim[:1], keepdim, np.dtype(np.int64))
        if found is not None:
            return found
        return getattr(b.xp, name)(widened(x), axis=dim[0], keepdims=keepdim).astype(np.int64, copy=False)


_finding("argmax")
_finding("argmin")


def _extreme_at(name: str, find: str) -> None:
    @on_cuda(name)
    def forward(b: Any, x: Any, *, dim: int, keepdim: bool) -> tuple[Any, Any]:
        index = getattr(b.ops, find)(x, dim=(dim,), keepdim=True)
        return _picked(b, x, index, dim, keepdim)


def _picked(b: Any, x: Any, index: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
    """The values at places along a dimension, and the places."""
    values = b.xp.take_along_axis(x, index, dim)
    if keepdim:
        return values, index
    shape = reduced_shape(x.shape, (dim,), False)
    return values.reshape(shape), index.reshape(shape)


_extreme_at("max_at", "argmax")
_extreme_at("min_at", "argmin")


@on_cuda("shifted")
def _shifted(b: Any, x: Any, *, dim: int, by: int, fill: float) -> Any:
    out, size = b.xp.full(x.shape, fill, x.dtype), x.shape[dim]
    kept = size - min(abs(by), size)
    front, back = _along(dim, slice(0, kept)), _along(dim, slice(size - kept, None))
    if kept:
        out[back if by >= 0 else front] = x[front if by >= 0 else back]
    return out


# -- scans: doubling steps, because CuPy has no other running function than sums and products ------------------------


def _along(dim: int, part: slice) -> tuple[slice, ...]:
    return (slice(None),) * dim + (part,)


def _running(x: Any, dim: int, combine: Callable[[Any, Any], Any]) -> Any:
    """y[i] = combine of x[0] … x[i], for an associative function: the number of launches is the logarithm of a row."""
    step, size = 1, x.shape[dim]
    while step < size:
        later, earlier = _along(dim, slice(step, None)), _along(dim, slice(0, size - step))
        out = x.copy()
        out[later] = combine(x[earlier], x[later])
        x, step = out, 2 * step
    return x


def _wide(x: Any) -> Any:
    """The dtype that a scan computes in: errors would add up from element to element."""
    return {"e": np.float32, "f": np.float64, "d": np.float64}.get(x.dtype.char, np.int64)


def _accumulating(name: str) -> None:
    @on_cuda(name)
    def forward(b: Any, x: Any, *, dim: int, reverse: bool) -> Any:
        xp = b.xp
        given = xp.flip(x, dim) if reverse else x
        out = getattr(xp, name)(given, axis=dim, dtype=_wide(x))
        out = xp.flip(out, dim) if reverse else out
        return out.astype(x.dtype) if x.dtype.kind == "f" else out


_accumulating("cumsum")
_accumulating("cumprod")


@on_cuda("logcumsumexp")
def _logcumsumexp(b: Any, x: Any, *, dim: int) -> Any:
    return _running(x.astype(_wide(x)), dim, b.xp.logaddexp).astype(x.dtype, copy=False)


@on_cuda("linear_scan")
def _linear_scan(b: Any, a: Any, x: Any, *, dim: int, reverse: bool) -> Any:
    """y[i] = x[i] + a[i] y[i - 1]: steps compose like affine maps."""
    xp = b.xp
    factor, total = (xp.flip(v, dim) if reverse else v for v in (a.astype(_wide(x)), x.astype(_wide(x))))
    step, size = 1, x.shape[dim]
    while step < size:
        later, earlier = _along(dim, slice(step, None)), _along(dim, slice(0, size - step))
        next_factor, next_total = factor.copy(), total.copy()
        next_total[later] = total[later] + factor[later] * total[earlier]
        next_factor[later] = factor[later] * factor[earlier]
        factor, total, step = next_factor, next_total, 2 * step
    out = xp.flip(total, dim) if reverse else total
    return out.astype(x.dtype)


def _running_extreme(name: str, function: str) -> None:
    @on_cuda(name)
    def forward(b: Any, x: Any, *, dim: int) -> tuple[Any, Any]:
        xp = b.xp
        if x.size == 0:
            return x.copy(), xp.zeros(x.shape, np.int64)
        values = _running(x, dim, getattr(xp, function))
        shape = [1] * x.ndim
        shape[dim] = x.shape[dim]
        found = x == values
        if x.dtype.kind == "f":
            found = found | xp.isnan(x)
        # The last of equals counts, as in PyTorch.
        here = xp.where(found, xp.arange(x.shape[dim]).reshape(shape), xp.zeros((), np.int64))
        return values if values is not x else x.copy(), _running(here, dim, xp.maximum)


_running_extreme("cummax", "maximum")
_running_extreme("cummin", "minimum")


# -- sorting ---------------------------------------------------------------------------------------------------------


def _order(xp: Any, x: Any, dim: int, descending: bool) -> Any:
    """Places in sorted order, equals in their old order; NaN is the largest."""
    if not descending:
        return xp.argsort(x, axis=dim, kind="stable")
    backwards = xp.argsort(xp.flip(x, dim), axis=dim, kind="stable")
    return xp.flip(x.shape[dim] - 1 - backwards, dim)


@on_cuda("sort")
def _sort(b: Any, x: Any, *, dim: int, descending: bool) -> tuple[Any, Any]:
    return _picked(b, x, b.xp.ascontiguousarray(_order(b.xp, x, dim, descending)), dim, True)


@on_cuda("topk")
def _topk(b: Any, x: Any, *, dim: int, k: int, largest: bool) -> tuple[Any, Any]:
    order = _order(b.xp, x, dim, largest)[_along(dim, slice(0, k))]
    return _picked(b, x, b.xp.ascontiguousarray(order), dim, True)


@on_cuda("kthvalue")
def _kthvalue(b: Any, x: Any, *, dim: int, k: int, keepdim: bool) -> tuple[Any, Any]:
    if not 0 < k <= x.shape[dim]:
        raise ValueError(f"there is no element number {k}")
    order = _order(b.xp, x, dim, False)[_along(dim, slice(k - 1, k))]
    return _picked(b, x, b.xp.ascontiguousarray(order), dim, keepdim)


def _middle(b: Any, x: Any, dim: int, ignore_nan: bool) -> Any:
    """The place of the lower of the two middle values along a dimension; of the first NaN if there is one."""
    xp, size = b.xp, x.shape[dim]
    order = _order(xp, x, dim, False)
    if x.dtype.kind != "f":
        return xp.ascontiguousarray(order[_along(dim, slice((size - 1) // 2, (size - 1) // 2 + 1))])
    counts = (~xp.isnan(x)).sum(axis=dim, keepdims=True)
    middle = xp.maximum(counts - 1, 0) // 2
    if not ignore_nan:
        middle = xp.where(counts < size, xp.minimum(counts, size - 1), middle)
    return xp.take_along_axis(order, middle, dim)


@on_cuda("median")
def _median(b: Any, x: Any, *, dim: int, ignore_nan: bool, keepdim: bool) -> tuple[Any, Any]:
    return _picked(b, x, _middle(b, x, dim, ignore_nan), dim, keepdim)


@on_cuda("median_of_all")
def _median_of_all(b: Any, x: Any, *, dim: Dims, keepdim: bool, ignore_nan: bool) -> Any:
    others = tuple(d for d in range(x.ndim) if d not in dim)
    rows = x.transpose(*others, *dim).reshape(*(x.shape[d] for d in others), -1)
    last = rows.ndim - 1
    values = b.xp.take_along_axis(rows, _middle(b, rows, last, ignore_nan), last)
    return values.reshape(reduced_shape(x.shape, dim, keepdim))


@on_cuda("mode")
def _mode(b: Any, x: Any, *, dim: int, keepdim: bool) -> tuple[Any, Any]:
    xp, size = b.xp, x.shape[dim]
    order = xp.argsort(x, axis=dim, kind="stable")
    ordered = xp.take_along_axis(x, order, dim)
    starts = xp.ones(x.shape, bool)
    starts[_along(dim, slice(1, None))] = (
        ordered[_along(dim, slice(1, None))] != ordered[_along(dim, slice(0, size - 1))]
    )
    shape = [1] * x.ndim
    shape[dim] = size
    here = xp.arange(size).reshape(shape)
    # How far into its run of equals each element is: the longest run's last element is the first maximum.
    depth = here - _running(xp.where(starts, here, xp.zeros((), np.int64)), dim, xp.maximum)
    last = xp.argmax(depth, axis=dim, keepdims=True)
    return _picked(b, x, xp.take_along_axis(order, last, dim), dim, keepdim)
