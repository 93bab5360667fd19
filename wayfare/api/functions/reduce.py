"""Reductions: sums, means, products, spreads and truths over some or all dimensions."""

from __future__ import annotations

from typing import Any

from wayfare.api.functions._along import UNSET, Unset, cast_first, cast_last, check_floating, check_tensor, dims_of
from wayfare.api.functions._new import flat_ints
from wayfare.api.functions._public import as_dtype_of, method, promoted
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentTypeError, OperationError
from wayfare.core.op import REGISTRY
from wayfare.core.spec import NARROW, broadcast, default_dtype, float32, int64, normal_dim, normal_dims
from wayfare.core.tensor import Tensor

__all__ = [
    "sum", "mean", "prod", "nansum", "nanmean", "count_nonzero", "sum_to_size",
    "var", "std", "var_mean", "std_mean", "any", "all", "logsumexp",
]  # fmt: skip

_SUM = REGISTRY["sum"]
_MEAN = REGISTRY["mean"]
Dims = int | tuple[int, ...] | list[int] | None


@method
def sum(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum over `dim` (all dimensions by default); bools and integers are summed in int64."""
    if dtype is not None:
        return cast_last(sum(cast_first("sum", input, dtype), dim, keepdim), dtype)
    if input.__class__ is not Tensor:
        check_tensor("sum", input)
    dims = tuple(range(input.ndim)) if dim is None else dims_of("sum", dim, input.ndim)
    return apply(_SUM, (input,), {"dim": dims, "keepdim": keepdim})  # type: ignore[no-any-return]


@method
def mean(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean over `dim` (all dimensions by default)."""
    if dtype is not None or input.__class__ is not Tensor:
        input = cast_first("mean", input, dtype)
    check_floating("mean", input)
    dims = tuple(range(input.ndim)) if dim is None else dims_of("mean", dim, input.ndim)
    return apply(_MEAN, (input,), {"dim": dims, "keepdim": keepdim})  # type: ignore[no-any-return]


@method
def prod(input: Tensor, dim: int | Unset = UNSET, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The product of all elements, or along one dimension; bools and integers are multiplied in int64."""
    input = cast_first("prod", input, dtype)
    if isinstance(dim, Unset):
        dims = tuple(range(input.ndim))
    else:
        d = normal_dim("prod", dim, input.ndim)
        dims = (d,) if input.ndim else ()
    return cast_last(apply(REGISTRY["prod"], (input,), {"dim": dims, "keepdim": keepdim}), dtype)


def _without_nan(input: Tensor) -> Tensor:
    missing = promoted(REGISTRY["ne"], (input, input))
    return apply(REGISTRY["where"], (missing, as_dtype_of(0, input.dtype), input))  # type: ignore[no-any-return]


@method
def nansum(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum over `dim` with NaN counted as zero."""
    input = cast_first("nansum", input, dtype)
    return cast_last(sum(_without_nan(input) if input.dtype.is_floating_point else input, dim, keepdim), dtype)


@method
def nanmean(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean over `dim` of what is not NaN."""
    input = cast_first("nanmean", input, dtype)
    check_floating("nanmean", input)
    if input.dtype in NARROW:  # which cannot hold a large count
        return as_dtype_of(nanmean(as_dtype_of(input, float32), dim, keepdim), input.dtype)
    count = sum(promoted(REGISTRY["eq"], (input, input)), dim, keepdim)
    return promoted(REGISTRY["div"], (sum(_without_nan(input), dim, keepdim), count))


@method
def count_nonzero(input: Tensor, dim: Dims = None) -> Tensor:
    """How many elements are not zero, over `dim`."""
    check_tensor("count_nonzero", input)
    return sum(promoted(REGISTRY["ne"], (input, 0)), dim)


@method
def sum_to_size(input: Tensor, *size: Any) -> Tensor:
    """The sum over the dimensions along which `size` would be broadcast to this tensor's shape."""
    wanted = flat_ints("sum_to_size", "a size", size)
    shape = tuple(input.shape)
    if len(wanted) > len(shape) or broadcast("sum_to_size", wanted, shape) != shape:
        raise OperationError(f"sum_to_size: {list(wanted)} cannot be broadcast to the shape of {input.spec}")
    if wanted == shape:
        return input
    if not input.dtype.is_floating_point:  # as in all sums
        input = as_dtype_of(input, int64)
    return apply(REGISTRY["sum_to"], (input,), {"shape": wanted})  # type: ignore[no-any-return]


# -- spread -------------------------------------------------------------------------------------------------------


def _spread(op: str, input: Tensor, dim: Any, unbiased: bool | None, keepdim: bool, correction: float | None) -> Tensor:
    check_tensor(op, input)
    check_floating(op, input)
    if isinstance(dim, bool):  # var(input, unbiased)
        dim, unbiased = None, dim
    if unbiased is not None and correction is not None:
        raise ArgumentTypeError(f"{op}: unbiased and correction mean the same: give only one of them")
    if correction is None:
        correction = 1 if unbiased is None or unbiased else 0
    attrs = {"dim": normal_dims(op, dim, input.ndim), "keepdim": keepdim, "correction": correction}
    return apply(REGISTRY[op], (input,), attrs)  # type: ignore[no-any-return]


@method
def var(
    input: Tensor, dim: Dims | bool = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: float | None = None,
) -> Tensor:  # fmt: skip
    """The variance over `dim`; the sum of squares is divided by the count less `correction` (1 by default)."""
    return _spread("var", input, dim, unbiased, keepdim, correction)


@method
def std(
    input: Tensor, dim: Dims | bool = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: float | None = None,
) -> Tensor:  # fmt: skip
    """The standard deviation over `dim`: the square root of `var`."""
    return _spread("std", input, dim, unbiased, keepdim, correction)


def var_mean(
    input: Tensor, dim: Dims | bool = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Variance and mean over `dim`."""
    spread = _spread("var", input, dim, unbiased, keepdim, correction)
    return spread, mean(input, None if isinstance(dim, bool) else dim, keepdim)


def std_mean(
    input: Tensor, dim: Dims | bool = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Standard deviation and mean over `dim`."""
    spread = _spread("std", input, dim, unbiased, keepdim, correction)
    return spread, mean(input, None if isinstance(dim, bool) else dim, keepdim)


# -- truth --------------------------------------------------------------------------------------------------------


def _truth(op: str, input: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    check_tensor(op, input)
    # Unlike for sums, an empty tuple of dims reduces nothing here.
    dims = () if isinstance(dim, (tuple, list)) and not dim else normal_dims(op, dim, input.ndim)
    return apply(REGISTRY[op], (input,), {"dim": dims, "keepdim": keepdim})  # type: ignore[no-any-return]


@method
def any(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Is any element non-zero, over `dim`?"""
    return _truth("any", input, dim, keepdim)


@method
def all(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Are all elements non-zero, over `dim`?"""
    return _truth("all", input, dim, keepdim)


@method
def logsumexp(input: Tensor, dim: int | tuple[int, ...] | list[int], keepdim: bool = False) -> Tensor:
    """`log(sum(exp(input)))` over `dim`, without overflow."""
    check_tensor("logsumexp", input)
    if dim is None:
        raise ArgumentTypeError("logsumexp: dim must be an int or a tuple of ints, not None",
                                fix="An empty tuple stands for all dimensions.")  # fmt: skip
    if not input.dtype.is_floating_point:
        input = as_dtype_of(input, default_dtype())
    attrs = {"dim": normal_dims("logsumexp", dim, input.ndim), "keepdim": keepdim}
    return apply(REGISTRY["logsumexp"], (input,), attrs)  # type: ignore[no-any-return]
