"""gather, scatter and their reductions; searching in sorted numbers; membership."""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.api.functions._new import fitting
from wayfare.api.functions._public import as_dtype_of, common_dtype, method, operand
from wayfare.api.functions.index import as_index, reshaped, same_dtype
from wayfare.core.constant import constant
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentError, ArgumentTypeError, OperationError, ShapeError
from wayfare.core.op import REGISTRY
from wayfare.core.spec import int32, int64, normal_dim
from wayfare.core.tensor import Tensor, on_device_of, to_tensor

__all__ = [
    "bucketize", "gather", "index_reduce", "isin", "scatter", "scatter_add", "scatter_reduce", "searchsorted",
]  # fmt: skip

_OPS = REGISTRY


def _rows(t: Tensor) -> Tensor:
    """A 0-dim tensor counts as one of length 1."""
    return reshaped(t, (1,)) if t.ndim == 0 else t


@method
def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """For each element of `index`, the element of `input` at that place of dimension `dim`.

    The gradient is sparse on its own where that pays; `sparse_grad` is accepted for PyTorch's sake.
    """
    dim = normal_dim("gather", dim, input.ndim)
    index = as_index("gather", index)
    if input.ndim != 0 and index.ndim == input.ndim:
        return apply(_OPS["gather"], (input, index), {"dim": dim})  # type: ignore[no-any-return]
    if index.shape.numel() == 0:
        return apply(_OPS["index"], (reshaped(input, (-1,)), index), {"dims": (0,)})  # type: ignore[no-any-return]
    picked = apply(_OPS["gather"], (_rows(input), _rows(index)), {"dim": dim})
    return reshaped(picked, index.shape)


def _sources(op: str, input: Tensor, dim: int, index: Tensor, src: Any) -> tuple[Tensor, Tensor, Tensor, int]:
    """Input, index and source with at least one dimension; the source cut to the size of the index."""
    dim = normal_dim(op, dim, input.ndim)
    index = _rows(as_index(op, index))
    # A copy, because the in-place form will write over what the record keeps.
    x = input if input.ndim else _rows(apply(_OPS["clone"], (input,)))
    if not isinstance(src, Tensor):
        number = constant(fitting(op, operand(src, op), input.dtype), input.dtype.numpy)
        return x, index, apply(_OPS["expand"], (number.to(x.device),), {"shape": tuple(index.shape)}), dim
    same_dtype(op, input, src)
    src = _rows(src)
    if src.ndim != index.ndim or any(n < i for n, i in zip(src.shape, index.shape, strict=False)):
        if index.shape.numel() == 0:
            return x, index, on_device_of(x, np.zeros(tuple(index.shape), input.dtype.numpy)), dim
        raise ShapeError(f"{op}: the source {src.spec} must have the dimensions of the index {index.spec} and be "
                         "no smaller")  # fmt: skip
    if src.shape != index.shape:
        src = apply(_OPS["basic_index"], (src,), {"index": tuple((0, n, 1) for n in index.shape)})
    return x, index, src, dim


def _is_nothing(x: Tensor, index: Tensor, src: Tensor, dim: int) -> bool:
    """Is nothing written, so that the op need not run? It runs for a source that wants its gradient of zeros, if the
    sizes are those of any other call: an index of no elements may have others."""
    if index.shape.numel():
        return False
    pairs = list(zip(index.shape, x.shape, strict=False))
    fits = x.ndim == index.ndim and all(i <= n for i, n in pairs[:dim] + pairs[dim + 1:])
    return not (src.requires_grad and fits)


def _scattered(record: str, op: str, input: Tensor, dim: int, index: Tensor, src: Any) -> Tensor:
    x, index, src, dim = _sources(op, input, dim, index, src)
    if _is_nothing(x, index, src, dim):
        return apply(_OPS["clone"], (input,))  # type: ignore[no-any-return]
    out = apply(_OPS[record], (x, index, src), {"dim": dim})
    return out if input.ndim else reshaped(out, ())


@method(inplace=True)
def scatter(
    input: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str | None = None
) -> Tensor:
    """`input` with `src` (a tensor, or one number) written at the places `index` of dimension `dim`.

    With `reduce` "add" or "multiply" it is added to or multiplied with what is there.
    """
    source = value if src is None else src
    if source is None:
        raise ArgumentTypeError("scatter: needs src or value")
    if reduce is None:
        return _scattered("scatter", "scatter", input, dim, index, source)
    records = {"add": "scatter_add", "multiply": "scatter_prod"}
    if reduce not in records:
        raise OperationError(f"scatter: reduce must be 'add' or 'multiply', not {reduce!r}")
    return _scattered(records[reduce], "scatter", input, dim, index, source)


@method(inplace=True)
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """`input` with `src` added at the places `index` of dimension `dim`; repeated places add up."""
    return _scattered("scatter_add", "scatter_add", input, dim, index, src)


_FOLDS = {"sum": "scatter_add", "mean": "scatter_add", "prod": "scatter_prod",
          "amax": "scatter_amax", "amin": "scatter_amin"}  # fmt: skip


@method(inplace=True)
def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """`input` with `src` reduced into the places `index` of dimension `dim`, by "sum", "prod", "mean", "amax" or
    "amin"; without `include_self` what was there before does not count."""
    if reduce not in _FOLDS:
        raise OperationError(f"scatter_reduce: reduce must be one of {', '.join(_FOLDS)}, not {reduce!r}")
    return _reduced("scatter_reduce", input, dim, index, src, reduce, include_self)


def _reduced(op: str, input: Tensor, dim: int, index: Tensor, src: Any, reduce: str, include_self: bool) -> Tensor:
    x, index, src, dim = _sources(op, input, dim, index, src)
    if _is_nothing(x, index, src, dim):
        return apply(_OPS["clone"], (input,))  # type: ignore[no-any-return]
    start = x
    if not include_self:
        number = constant(_neutral(reduce, x), x.dtype.numpy).to(x.device)
        neutral = apply(_OPS["expand"], (number,), {"shape": tuple(index.shape)})
        start = apply(_OPS["scatter"], (x, index, neutral), {"dim": dim})
    out = apply(_OPS[_FOLDS[reduce]], (start, index, src), {"dim": dim})
    if reduce == "mean":
        out = _divided(x, index, src, dim, out, include_self)
    return out if input.ndim else reshaped(out, ())


def _neutral(reduce: str, x: Tensor) -> float:
    """The value that does not change the reduction."""
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if x.dtype.is_floating_point:
        return float("-inf") if reduce == "amax" else float("inf")
    if x.dtype.rank == 0:
        return reduce == "amin"
    limits = np.iinfo(x.dtype.numpy)
    return int(limits.min if reduce == "amax" else limits.max)


def _divided(x: Tensor, index: Tensor, src: Tensor, dim: int, total: Tensor, include_self: bool) -> Tensor:
    one = constant(1, x.dtype.numpy).to(x.device)
    base = apply(_OPS["expand"], (one,), {"shape": tuple(x.shape)})
    ones = apply(_OPS["expand"], (one,), {"shape": tuple(index.shape)})
    if not include_self:
        zeros = apply(_OPS["zeros_like"], (ones,))
        base = apply(_OPS["scatter"], (base, index, zeros), {"dim": dim})
    count = apply(_OPS["scatter_add"], (base, index, ones), {"dim": dim})
    if x.dtype.is_floating_point:
        return apply(_OPS["div"], (total, count))  # type: ignore[no-any-return]
    return apply(_OPS["floor_divide"], (total, count))  # type: ignore[no-any-return]


@method(inplace=True)
def index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """`input` with `source` reduced into the places `index` of dimension `dim`, by "prod", "mean", "amax", "amin"."""
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise OperationError(f"index_reduce: reduce must be one of prod, mean, amax, amin, not {reduce!r}")
    place = normal_dim("index_reduce", dim, input.ndim)
    index = _rows(as_index("index_reduce", index))
    wide = source if source.ndim else _rows(source)
    if index.ndim != 1 or index.shape[0] != wide.shape[place if source.ndim else 0]:
        raise ShapeError(f"index_reduce: the index {index.spec} does not fit dimension {place} of {source.spec}")
    shape = (1,) * place + (index.shape[0],) + (1,) * (wide.ndim - place - 1)
    index = apply(_OPS["expand"], (reshaped(index, shape),), {"shape": tuple(wide.shape)})
    return _reduced("index_reduce", input, place, index, wide, reduce, include_self)


# -- searching -----------------------------------------------------------------------------------------------


def searchsorted(
    sorted_sequence: Tensor, input: Tensor | float, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Where each value of `input` belongs in the sorted last dimension of `sorted_sequence`."""
    if side not in (None, "left", "right") or (side == "left" and right):
        raise OperationError(f"searchsorted: side={side!r} and right={right} do not go together")
    values = input if isinstance(input, Tensor) else to_tensor(input, sorted_sequence.dtype, op="searchsorted")
    if sorter is not None:
        if sorter.shape != sorted_sequence.shape:
            raise ShapeError(f"searchsorted: the sorter {sorter.spec} and the sequence {sorted_sequence.spec} differ "
                             "in shape")  # fmt: skip
        sorted_sequence = gather(sorted_sequence, -1, sorter)
    if sorted_sequence.ndim == 0 or (sorted_sequence.ndim > 1 and sorted_sequence.shape[:-1] != values.shape[:-1]):
        raise ShapeError(f"searchsorted: all dimensions but the last must be equal, these are {sorted_sequence.spec} "
                         f"and {values.spec}")  # fmt: skip
    attrs = {"right": right or side == "right", "dtype": int32 if out_int32 else int64}
    return apply(_OPS["searchsorted"], (sorted_sequence, values), attrs)  # type: ignore[no-any-return]


def bucketize(input: Tensor | float, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The number of the bucket, between sorted `boundaries`, that each value of `input` falls into."""
    if boundaries.ndim != 1:
        raise ShapeError(f"bucketize: the boundaries must have one dimension, these are {boundaries.spec}")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """For each element, is it one of `test_elements`?"""
    elements, tests = operand(elements, "isin"), operand(test_elements, "isin")
    if not isinstance(elements, Tensor) and not isinstance(tests, Tensor):
        raise ArgumentError("isin: one of the two must be a tensor")
    dtype = common_dtype("isin", (elements, tests))
    inputs = (as_dtype_of(elements, dtype), as_dtype_of(tests, dtype))
    return apply(_OPS["isin"], inputs, {"invert": bool(invert)})  # type: ignore[no-any-return]
