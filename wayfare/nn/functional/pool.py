"""Pooling: the average, the largest, the norm of each window; max_unpool puts the largest back in place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.api.autocast import follows_autocast
from wayfare.api.functions._along import check_floating
from wayfare.api.functions._public import as_dtype_of, named
from wayfare.api.functions.elementwise import where
from wayfare.core.autocast import FLOAT32_ON_CPU
from wayfare.core.dispatch import apply, tensor_ops
from wayfare.core.errors import ArgumentError, DTypeError, OperationError, ShapeError
from wayfare.core.mode import executor
from wayfare.core.op import REGISTRY
from wayfare.core.spec import NARROW, bool_, float32
from wayfare.core.tensor import Tensor, on_device_of, wrap
from wayfare.nn.functional.conv import IntOrInts, of_rank, per_dim, with_batch, without_batch
from wayfare.ops.window.pool import adaptive_bounds

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool1d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool2d_with_indices",
    "adaptive_max_pool3d", "adaptive_max_pool3d_with_indices", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "lp_pool1d", "lp_pool2d", "lp_pool3d", "max_pool1d", "max_pool1d_with_indices", "max_pool2d",
    "max_pool2d_with_indices", "max_pool3d", "max_pool3d_with_indices", "max_unpool1d", "max_unpool2d",
    "max_unpool3d",
]  # fmt: skip

_OPS = REGISTRY
Sizes = tuple[int, ...]


def _window_args(op: str, rank: int, kernel_size: IntOrInts, stride: Any, padding: IntOrInts) -> tuple[Sizes, ...]:
    kernel = per_dim(op, "kernel_size", kernel_size, rank, 1)
    none = stride is None or (isinstance(stride, (tuple, list)) and not stride)
    steps = kernel if none else per_dim(op, "stride", stride, rank, 1)
    around = per_dim(op, "padding", padding, rank)
    if any(2 * p > k for p, k in zip(around, kernel, strict=True)):
        raise OperationError(f"{op}: padding {around} must be at most half of kernel_size {kernel}")
    return kernel, steps, around


def _counts(op: str, input: Tensor, kernel: Sizes, steps: Sizes, around: Sizes, gaps: Sizes, ceil: bool) -> Sizes:
    """How many windows there are; with `ceil` one may reach over the edge, if it begins inside."""
    if 0 in input.shape[1:]:
        raise OperationError(f"{op}: only the batch of an input may be empty, this is {input.spec}")
    counts = []
    for n, k, s, p, d in zip(input.shape[2:], kernel, steps, around, gaps, strict=True):
        count = (n + 2 * p - d * (k - 1) - 1 + (s - 1 if ceil else 0)) // s + 1
        counts.append(count - 1 if ceil and (count - 1) * s >= n + p else count)
    if min(counts) < 1:
        raise OperationError(f"{op}: no window of {list(kernel)} (padding {list(around)}) fits into {input.spec}")
    return tuple(counts)


# -- averages --------------------------------------------------------------------------------------------------


def avg_pool(
    op: str, rank: int, /, input: Tensor, kernel_size: IntOrInts, stride: IntOrInts | None = None,
    padding: IntOrInts = 0, ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """The average of each window in `rank` dimensions; `op` is what errors name."""
    kernel, steps, around = _window_args(op, rank, kernel_size, stride, padding)
    if divisor_override == 0:
        raise OperationError(f"{op}: divisor_override must not be zero")
    x, added = with_batch(op, input, rank)
    if x.dtype is bool_:
        raise DTypeError(f"{op}: bools have no average, this is {input.spec}", fix="Convert it with .float() first.")
    counts = _counts(op, x, kernel, steps, around, (1,) * rank, ceil_mode)
    attrs = {"kernel": kernel, "stride": steps, "padding": around, "counts": counts}
    if x.dtype in NARROW:  # the sum of a window may not fit, though the mean does
        x = as_dtype_of(x, float32)
    total = apply(_OPS["pool_sum"], (x,), attrs)
    divisor: Any = divisor_override
    if divisor is None:
        divisor = _divisors(x, kernel, steps, around, counts, count_include_pad)
    if x.dtype.is_floating_point:
        return without_batch(as_dtype_of(total / divisor, input.dtype), added)
    return without_batch(tensor_ops.floor_divide(total, divisor), added)


def _divisors(x: Tensor, kernel: Sizes, steps: Sizes, around: Sizes, counts: Sizes, include_pad: bool) -> Any:
    """How many elements each window has: one number if all are equal."""
    if executor().sizes_may_differ:
        return _divisors_of_any_size(x, kernel, steps, around, counts, include_pad)
    out: Any = np.ones((), np.int64)
    for axis, (n, k, s, p, o) in enumerate(zip(x.shape[2:], kernel, steps, around, counts, strict=True)):
        first = np.arange(o) * s - p
        last = np.minimum(first + k, n + p)
        if not include_pad:
            first, last = np.maximum(first, 0), np.minimum(last, n)
        out = out * (last - first).reshape((-1,) + (1,) * (len(kernel) - axis - 1))
    if (out == out.flat[0]).all():
        return int(out.flat[0])
    return on_device_of(x, out.astype(x.dtype.numpy))


def _divisors_of_any_size(
    x: Tensor, kernel: Sizes, steps: Sizes, around: Sizes, counts: Sizes, include_pad: bool
) -> Any:
    """The same as ops, for an exported model that computes it from its own sizes."""
    out: Any = 1
    for axis, (n, k, s, p, o) in enumerate(zip(x.shape[2:], kernel, steps, around, counts, strict=True)):
        first = wrap(np.arange(o)) * s - p
        last = (first + k).clamp(max=n + p)
        if not include_pad:
            first, last = first.clamp(min=0), last.clamp(max=n)
        out = out * (last - first).reshape((-1,) + (1,) * (len(kernel) - axis - 1))
    return as_dtype_of(out, x.dtype)


def avg_pool1d(
    input: Tensor, kernel_size: IntOrInts, stride: IntOrInts | None = None, padding: IntOrInts = 0,
    ceil_mode: bool = False, count_include_pad: bool = True,
) -> Tensor:  # fmt: skip
    """The average of each window of (N, C, L)."""
    return avg_pool("avg_pool1d", 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad)


avg_pool2d = of_rank(avg_pool, "avg_pool2d", 2, "The average of each window of (N, C, H, W).")
avg_pool3d = follows_autocast(FLOAT32_ON_CPU)(
    of_rank(avg_pool, "avg_pool3d", 3, "The average of each window of (N, C, D, H, W).")
)


def lp_pool(
    op: str, rank: int, /, input: Tensor, norm_type: float, kernel_size: IntOrInts, stride: IntOrInts | None = None,
    ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    """The norm of each window in `rank` dimensions."""
    kernel = per_dim(op, "kernel_size", kernel_size, rank, 1)
    mean = avg_pool(op, rank, input**norm_type, kernel, stride, 0, ceil_mode, True)
    # At a sum of 0 the gradient is 0, although that of the root is infinite.
    sums = tensor_ops.where(mean != 0, mean, tensor_ops.zeros_like(mean)) * math.prod(kernel)
    return sums ** (1.0 / norm_type)  # type: ignore[no-any-return]


lp_pool1d = of_rank(lp_pool, "lp_pool1d", 1, "The `norm_type`-norm of each window of (N, C, L).")
lp_pool2d = of_rank(lp_pool, "lp_pool2d", 2, "The `norm_type`-norm of each window of (N, C, H, W).")
lp_pool3d = of_rank(lp_pool, "lp_pool3d", 3, "The `norm_type`-norm of each window of (N, C, D, H, W).")


# -- the largest -----------------------------------------------------------------------------------------------


def _max_pool(
    op: str, rank: int, input: Tensor, kernel_size: IntOrInts, stride: Any, padding: IntOrInts, dilation: IntOrInts,
    ceil_mode: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    kernel, steps, around = _window_args(op, rank, kernel_size, stride, padding)
    gaps = per_dim(op, "dilation", dilation, rank, 1)
    x, added = with_batch(op, input, rank)
    counts = _counts(op, x, kernel, steps, around, gaps, ceil_mode)
    attrs = {"kernel": kernel, "stride": steps, "padding": around, "dilation": gaps, "counts": counts}
    values, places = apply(_OPS["max_pool"], (x,), attrs)
    return without_batch(values, added), without_batch(places, added)


def _max_pool_functions(rank: int, letters: str) -> tuple[Any, Any]:
    name = f"max_pool{rank}d"

    def with_indices(
        input: Tensor, kernel_size: IntOrInts, stride: IntOrInts | None = None, padding: IntOrInts = 0,
        dilation: IntOrInts = 1, ceil_mode: bool = False, return_indices: bool = False,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        return _max_pool(name, rank, input, kernel_size, stride, padding, dilation, ceil_mode)

    def pool(
        input: Tensor, kernel_size: IntOrInts, stride: IntOrInts | None = None, padding: IntOrInts = 0,
        dilation: IntOrInts = 1, ceil_mode: bool = False, return_indices: bool = False,
    ) -> Any:  # fmt: skip
        found = _max_pool(name, rank, input, kernel_size, stride, padding, dilation, ceil_mode)
        return found if return_indices else found[0]

    doc = f"The largest element of each window of {letters}"
    return named(pool, name, doc + "; with `return_indices` also its place."), named(
        with_indices, name + "_with_indices", doc + ", and its place."
    )


max_pool1d, max_pool1d_with_indices = _max_pool_functions(1, "(N, C, L)")
max_pool2d, max_pool2d_with_indices = _max_pool_functions(2, "(N, C, H, W)")
max_pool3d, max_pool3d_with_indices = map(follows_autocast(FLOAT32_ON_CPU), _max_pool_functions(3, "(N, C, D, H, W)"))


# -- adaptive: a fixed number of cells for any size -------------------------------------------------------------------


def _cells(op: str, rank: int, input: Tensor, output_size: Any) -> tuple[Tensor, bool, Sizes]:
    x, added = with_batch(op, input, rank)
    wanted = (output_size,) * rank if output_size is None or isinstance(output_size, int) else tuple(output_size)
    if len(wanted) == 1:
        wanted *= rank
    if len(wanted) != rank:
        raise ArgumentError(f"{op}: output_size must be one number or {rank}, not {output_size!r}")
    counts = tuple(n if want is None else int(want) for n, want in zip(x.shape[2:], wanted, strict=True))
    if min(counts) < 0:
        raise OperationError(f"{op}: output_size must not be negative, it is {output_size!r}")
    if 0 in x.shape[1:]:
        raise OperationError(f"{op}: only the batch of an input may be empty, this is {input.spec}")
    return x, added, counts


def mean_of_cells(x: Tensor, dim: int, count: int) -> Tensor:
    """The mean of each of `count` cells of nearly equal size along one dimension."""
    size = x.shape[dim]
    if count and executor().sizes_may_differ:
        return _mean_of_cells_of_any_size(x, dim, count)
    if count and size % count == 0:
        split = tensor_ops.reshape(x, shape=(*x.shape[:dim], count, size // count, *x.shape[dim + 1 :]))
        return tensor_ops.mean(split, dim=(dim + 1,), keepdim=False)  # type: ignore[no-any-return]
    bounds = adaptive_bounds(size, count)
    longest = max((last - first for first, last in bounds), default=0)
    places = np.zeros((max(longest, 1), count), np.int64)
    weights = np.zeros(places.shape, x.dtype.numpy)
    for cell, (first, last) in enumerate(bounds):
        places[:, cell] = first
        places[: last - first, cell] = np.arange(first, last)
        weights[: last - first, cell] = 1 / (last - first)
    return apply(_OPS["resample"], (x, on_device_of(x, places), on_device_of(x, weights)), {"dim": dim})  # type: ignore[no-any-return]


def _mean_of_cells_of_any_size(x: Tensor, dim: int, count: int) -> Tensor:
    """The same as ops, for an exported model: the elements of each cell are computed from the size."""
    size = x.shape[dim]
    cells = wrap(np.arange(count))
    first = cells * size // count
    last = ((cells + 1) * size + (count - 1)) // count
    places = first + wrap(np.arange(-(-size // count) + 1).reshape(-1, 1))
    behind = (1,) * (x.ndim - dim - 1)
    found = apply(_OPS["index"], (x, places.clamp(max=size - 1)), {"dims": (dim,)})
    summed = where((places < last).reshape(*places.shape, *behind), found, 0.0).sum(dim)
    return summed / as_dtype_of((last - first).reshape(-1, *behind), x.dtype)  # type: ignore[no-any-return]


def _adaptive_avg(op: str, rank: int, input: Tensor, output_size: Any) -> Tensor:
    x, added, counts = _cells(op, rank, input, output_size)
    check_floating(op, input)
    if set(counts) == {1}:
        return without_batch(tensor_ops.mean(x, dim=tuple(range(2, 2 + rank)), keepdim=True), added)
    wanted = output_size if isinstance(output_size, (tuple, list)) else (output_size,)
    for axis, count in enumerate(counts):
        if wanted[axis % len(wanted)] is not None:
            x = mean_of_cells(x, 2 + axis, count)
    return without_batch(x, added)


def adaptive_avg_pool1d(input: Tensor, output_size: IntOrInts) -> Tensor:
    """(N, C, L) averaged over `output_size` cells of nearly equal size."""
    return _adaptive_avg("adaptive_avg_pool1d", 1, input, output_size)


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """(N, C, H, W) averaged over cells of nearly equal size; None keeps a size."""
    return _adaptive_avg("adaptive_avg_pool2d", 2, input, output_size)


@follows_autocast(FLOAT32_ON_CPU)
def adaptive_avg_pool3d(input: Tensor, output_size: Any) -> Tensor:
    """(N, C, D, H, W) averaged over cells of nearly equal size; None keeps a size."""
    return _adaptive_avg("adaptive_avg_pool3d", 3, input, output_size)


def _adaptive_max(op: str, rank: int, input: Tensor, output_size: Any) -> tuple[Tensor, Tensor]:
    x, added, counts = _cells(op, rank, input, output_size)
    values, places = apply(_OPS["adaptive_max_pool"], (x,), {"counts": counts})
    return without_batch(values, added), without_batch(places, added)


def _adaptive_max_functions(rank: int, letters: str) -> tuple[Any, Any]:
    name = f"adaptive_max_pool{rank}d"

    def with_indices(input: Tensor, output_size: Any, return_indices: bool = False) -> tuple[Tensor, Tensor]:
        return _adaptive_max(name, rank, input, output_size)

    def pool(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        found = _adaptive_max(name, rank, input, output_size)
        return found if return_indices else found[0]

    doc = f"The largest element of each of `output_size` cells of {letters}"
    return named(pool, name, doc + "; with `return_indices` also its place."), named(
        with_indices, name + "_with_indices", doc + ", and its place."
    )


adaptive_max_pool1d, adaptive_max_pool1d_with_indices = _adaptive_max_functions(1, "(N, C, L)")
adaptive_max_pool2d, adaptive_max_pool2d_with_indices = _adaptive_max_functions(2, "(N, C, H, W)")
adaptive_max_pool3d, adaptive_max_pool3d_with_indices = _adaptive_max_functions(3, "(N, C, D, H, W)")


# -- back in place -------------------------------------------------------------------------------------------------


def max_unpool(
    op: str, rank: int, /, input: Tensor, indices: Tensor, kernel_size: IntOrInts, stride: IntOrInts | None = None,
    padding: IntOrInts = 0, output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """The inverse of max pooling in `rank` dimensions."""
    kernel = per_dim(op, "kernel_size", kernel_size, rank, 1)
    steps = kernel if stride is None or stride == [] else per_dim(op, "stride", stride, rank, 1)
    around = per_dim(op, "padding", padding, rank)
    if input.shape != indices.shape:
        raise ShapeError(f"{op}: input {input.spec} and indices {indices.spec} differ in shape")
    x, added = with_batch(op, input, rank)
    spans = zip(x.shape[2:], kernel, steps, around, strict=True)
    sizes = tuple((n - 1) * s - 2 * p + k for n, k, s, p in spans)
    if output_size is not None:
        wanted = tuple(output_size)[-rank:]
        if any(abs(w - n) >= s for w, n, s in zip(wanted, sizes, steps, strict=True)):
            raise ArgumentError(f"{op}: output_size {list(output_size)} is too far from the default {list(sizes)}")
        sizes = wanted
    flat = (x.shape[0], x.shape[1], math.prod(x.shape[2:]))
    places = tensor_ops.reshape(indices, shape=flat)
    nothing = np.zeros((*flat[:2], math.prod(sizes)), x.dtype.numpy)
    out = tensor_ops.scatter(nothing, places, tensor_ops.reshape(x, shape=flat), dim=2)
    return without_batch(tensor_ops.reshape(out, shape=(*flat[:2], *sizes)), added)


_UNPOOLED = "The inverse of `max_pool{}d` where that is possible: elements at their places, zeros elsewhere."
max_unpool1d = of_rank(max_unpool, "max_unpool1d", 1, _UNPOOLED.format(1))
max_unpool2d = of_rank(max_unpool, "max_unpool2d", 2, _UNPOOLED.format(2))
max_unpool3d = of_rank(max_unpool, "max_unpool3d", 3, _UNPOOLED.format(3))
