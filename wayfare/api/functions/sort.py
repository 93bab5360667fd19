"""Sorting, order statistics, and the distinct values of a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.api.functions._along import UNSET, Unset, ValuesAndIndices, along, check_not_empty, check_tensor
from wayfare.api.functions._public import as_dtype_of, method
from wayfare.core.dispatch import apply
from wayfare.core.errors import IndexRangeError, OperationError
from wayfare.core.op import REGISTRY
from wayfare.core.spec import normal_dim, widened
from wayfare.core.tensor import Tensor, on_device_of

__all__ = [
    "sort", "argsort", "msort", "topk", "kthvalue", "median", "nanmedian", "mode",
    "unique", "unique_consecutive",
]  # fmt: skip


@method
def sort(
    input: Tensor, dim: int = -1, descending: bool = False, stable: bool | None = False
) -> ValuesAndIndices:
    """The elements in order along `dim`, and where they were. Equals keep their order; NaN is the largest."""
    return ValuesAndIndices(*along(REGISTRY["sort"], input, dim, "sort", descending=bool(descending)))


@method
def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The indices that put the elements in order along `dim`."""
    return sort(input, dim, descending).indices


@method
def msort(input: Tensor) -> Tensor:
    """The elements in order along the first dimension."""
    return sort(input, 0).values


@method
def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> ValuesAndIndices:
    """The `k` largest (or smallest) elements along `dim` in order, and where they were."""
    check_tensor("topk", input)
    d = normal_dim("topk", dim, input.ndim)
    size = input.shape[d] if input.ndim else 1
    if not 0 <= k <= size:
        raise OperationError(f"topk: k={k} is out of range, dimension {d} of {input.spec} has {size} elements")
    return ValuesAndIndices(*along(REGISTRY["topk"], input, d, "topk", k=int(k), largest=bool(largest)))


@method
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> ValuesAndIndices:
    """The `k`-th smallest element along `dim` (from 1), and where it was."""
    check_tensor("kthvalue", input)
    d = normal_dim("kthvalue", dim, input.ndim)
    check_not_empty("kthvalue", input, (d,) if input.ndim else ())
    size = input.shape[d] if input.ndim else 1
    if not 1 <= k <= size:
        raise OperationError(f"kthvalue: k={k} is out of range, dimension {d} of {input.spec} has {size} elements")
    return ValuesAndIndices(*along(REGISTRY["kthvalue"], input, d, "kthvalue", k=int(k), keepdim=keepdim))


def _median(name: str, input: Tensor, dim: Any, keepdim: bool, ignore_nan: bool) -> Any:
    check_tensor(name, input)
    if isinstance(dim, Unset):
        if 0 in input.shape:
            missing: Any = float("nan") if input.dtype.is_floating_point else np.iinfo(input.dtype.numpy).min
            return as_dtype_of(missing, input.dtype)
        attrs = {"dim": tuple(range(input.ndim)), "keepdim": False, "ignore_nan": ignore_nan}
        return apply(REGISTRY["median_of_all"], (input,), attrs)
    d = normal_dim(name, dim, input.ndim)
    check_not_empty(name, input, (d,) if input.ndim else ())
    return ValuesAndIndices(*along(REGISTRY["median"], input, d, name, ignore_nan=ignore_nan, keepdim=keepdim))


@method
def median(input: Tensor, dim: int | Unset = UNSET, keepdim: bool = False) -> Any:
    """The median of all elements, or with a dim values and indices along it: the lower of two middle ones.
    NaN if there is one. Without a dim, all elements equal to it share the gradient evenly; along a dim the one at the
    index has it."""
    return _median("median", input, dim, keepdim, False)


@method
def nanmedian(input: Tensor, dim: int | Unset = UNSET, keepdim: bool = False) -> Any:
    """`median` of what is not NaN."""
    return _median("nanmedian", input, dim, keepdim, True)


@method
def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> ValuesAndIndices:
    """The commonest value along `dim` (the smallest of several), and an index where it is."""
    check_tensor("mode", input)
    d = normal_dim("mode", dim, input.ndim)
    check_not_empty("mode", input, (d,) if input.ndim else ())
    return ValuesAndIndices(*along(REGISTRY["mode"], input, d, "mode", keepdim=keepdim))


# -- distinct values ----------------------------------------------------------------------------------------------


def _answers(input: Tensor, values: Any, inverse: Any, counts: Any, return_inverse: bool, return_counts: bool) -> Any:
    out = [on_device_of(input, np.asarray(values, dtype=input.dtype.numpy, order="C"))]
    if return_inverse:
        out.append(on_device_of(input, np.asarray(inverse, dtype=np.int64, order="C")))
    if return_counts:
        out.append(on_device_of(input, np.asarray(counts, dtype=np.int64, order="C")))
    return out[0] if len(out) == 1 else tuple(out)


@method
def unique(
    input: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
    dim: int | None = None,
) -> Any:  # fmt: skip
    """The distinct elements in order (or the distinct slices along `dim`); on request where each element went
    and how often each occurs."""
    check_tensor("unique", input)
    array = widened(input._read("unique()"))  # NumPy cannot sort bfloat16 with a NaN in it
    if dim is not None:
        d = _slice_dim("unique", input, dim)
        values, inverse, counts = np.unique(array, axis=d, return_inverse=True, return_counts=True)
        return _answers(input, values, inverse.reshape(-1), counts, return_inverse, return_counts)
    if not return_inverse and not return_counts:
        return _answers(input, np.unique(array, equal_nan=False), None, None, False, False)
    values, inverse, counts = np.unique(array, return_inverse=True, return_counts=True, equal_nan=False)
    return _answers(input, values, inverse.reshape(array.shape), counts, return_inverse, return_counts)


def _slice_dim(name: str, input: Tensor, dim: int) -> int:
    """The dimension along which slices are compared: there must be one, and they must have elements."""
    d = normal_dim(name, dim, input.ndim)
    if input.ndim == 0:
        raise IndexRangeError(f"{name}: a 0-dim tensor has no dimension {dim}", fix="Leave dim out.")
    if 0 in input.shape and input.shape[d] != 0:
        raise OperationError(f"{name}: the slices along dimension {d} of {input.spec} are empty",
                             fix="Give a tensor that has elements.")  # fmt: skip
    return d


@method
def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The elements (or slices along `dim`) without those equal to the one before."""
    check_tensor("unique_consecutive", input)
    array = input._read("unique_consecutive()")
    if dim is None or array.ndim == 0:
        rows, d = array.reshape(-1, 1), None
    else:
        d = _slice_dim("unique_consecutive", input, dim)
        moved = np.moveaxis(array, d, 0)
        rows = moved.reshape(len(moved), -1 if array.size else 1)
    new = np.ones(len(rows), bool)
    new[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    starts = np.flatnonzero(new)
    counts = np.diff(starts, append=len(rows))
    inverse = np.cumsum(new) - 1
    if d is None:
        values, inverse = array.reshape(-1)[starts], inverse.reshape(array.shape)
        return _answers(input, values, inverse, counts, return_inverse, return_counts)
    return _answers(input, np.take(array, starts, axis=d), inverse, counts, return_inverse, return_counts)
