"""Parts of a tensor as views (select, narrow), and copies with such a part replaced (the *_scatter family)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.api.functions._public import as_dtype_of, method
from wayfare.api.functions.getitem import bounds_of, number_in_range
from wayfare.api.functions.index import flattened, put_at, reshaped
from wayfare.core.dispatch import apply
from wayfare.core.errors import IndexRangeError, OperationError, ShapeError
from wayfare.core.native import as_view
from wayfare.core.op import REGISTRY
from wayfare.core.spec import Shape, normal_dim
from wayfare.core.tensor import Tensor, on_device_of

__all__ = [
    "as_strided_scatter", "diagonal_scatter", "narrow", "narrow_copy", "select", "select_scatter",
    "slice_scatter",
]  # fmt: skip

_OPS = REGISTRY


@method
@as_view
def select(input: Tensor, dim: int, index: int) -> Tensor:
    """The part of `input` at place `index` of dimension `dim`, as a view without that dimension."""
    dim, at = _select_place("select", input, dim, index)
    return apply(_OPS["select"], (input,), {"dim": dim, "index": at})  # type: ignore[no-any-return]


def _select_place(op: str, input: Tensor, dim: int, index: Any) -> tuple[int, int]:
    if input.ndim == 0:
        raise IndexRangeError(f"{op}: a 0-dim tensor has no dimension to select from")
    dim = normal_dim(op, dim, input.ndim)
    return dim, number_in_range(int(index), input.shape[dim], dim, op)


@method
@as_view
def narrow(input: Tensor, dim: int, start: int | Tensor, length: int) -> Tensor:
    """`length` places of dimension `dim` from `start` on, as a view."""
    if input.ndim == 0:
        raise OperationError("narrow: a 0-dim tensor cannot be narrowed")
    if isinstance(start, Tensor) and (start.ndim or start.dtype.rank != 1):
        raise OperationError(f"narrow: start must be a 0-dim tensor of integers, not {start.spec}")
    dim, first = normal_dim("narrow", dim, input.ndim), int(start)
    size = input.shape[dim]
    if not -size <= first <= size:
        raise IndexRangeError(f"narrow: start {first} is out of range for dimension {dim} of size {size}")
    first += size if first < 0 else 0
    if length < 0 or first + length > size:
        raise OperationError(f"narrow: start {first} plus length {length} does not fit dimension {dim} of size {size}")
    attrs = {"dim": dim, "start": first, "stop": first + length, "step": 1}
    return apply(_OPS["slice"], (input,), attrs)  # type: ignore[no-any-return]


@method
def narrow_copy(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Like `narrow`, but a copy."""
    part = narrow(input, dim, start, length)
    return apply(_OPS["clone"], (part,))  # type: ignore[no-any-return]


def _write(op: str, input: Tensor, src: Tensor, view: str, attrs: dict[str, Any]) -> Tensor:
    """`input` with what a view of it shows replaced."""
    wanted = _OPS[view].infer(input.spec, **attrs).shape
    if src.shape != wanted:
        raise ShapeError(f"{op}: the part has the shape {list(wanted)}, a source of {src.spec} does not fit it")
    path = ((view, tuple(attrs.items())),)
    return apply(_OPS["write_through"], (input, as_dtype_of(src, input.dtype)), {"path": path})  # type: ignore[no-any-return]


@method
def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy of `input` with the part at `index` of dimension `dim` replaced by `src`."""
    dim, at = _select_place("select_scatter", input, dim, index)
    return _write("select_scatter", input, src, "select", {"dim": dim, "index": at})


@method
def slice_scatter(
    input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """A copy of `input` with the slice `start:end:step` of dimension `dim` replaced by `src`."""
    dim = normal_dim("slice_scatter", dim, input.ndim)
    first, stop, step = bounds_of(slice(start, end, step), input.shape[dim])
    attrs = {"dim": dim, "start": first, "stop": stop, "step": step}
    return _write("slice_scatter", input, src, "slice", attrs)


@method
def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A copy of `input` with a diagonal replaced by `src`."""
    dim1, dim2 = (normal_dim("diagonal_scatter", d, input.ndim) for d in (dim1, dim2))
    if dim1 == dim2:
        raise OperationError(f"diagonal_scatter: the two dimensions must differ, both are {dim1}")
    return _write("diagonal_scatter", input, src, "diagonal", {"offset": offset, "dim1": dim1, "dim2": dim2})


@method
def as_strided_scatter(
    input: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """A copy of `input` with what `as_strided` would show of it replaced by `src`."""
    flat = _strided_places(input.shape.numel(), tuple(size), tuple(stride), storage_offset or 0)
    values = reshaped(as_dtype_of(src, input.dtype), (flat.size,))
    out = put_at(flattened(input), (on_device_of(input, flat),), (0,), values)
    return reshaped(out, input.shape)


def _strided_places(numel: int, size: Shape, stride: Shape, offset: int) -> Any:
    places = np.full(size, offset, np.int64)
    for dim, (n, step) in enumerate(zip(size, stride, strict=True)):
        places += (np.arange(n) * step).reshape((n,) + (1,) * (len(size) - dim - 1))
    if places.size and not 0 <= places.min() <= places.max() < numel:
        raise OperationError(f"as_strided_scatter: size {list(size)} and stride {list(stride)} from {offset} on "
                             f"reach outside the {numel} elements")  # fmt: skip
    return places.reshape(-1)
