"""ONNX rules of indexing by arrays, segments and searching."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.core.spec import int64

Dims = tuple[int, ...]


def target_of(dims: Dims) -> int:
    """The dimension of the result at which the indexed part begins."""
    return dims[0] if dims[-1] - dims[0] + 1 == len(dims) else 0


def _together(b: Any, indices: Any) -> Any:
    """Several index arrays as one, stacked along a last dimension."""
    shape = b.broadcast(*indices)
    columns = []
    for index in indices:
        spread = b.ops.expand(b.cast(index, int64), shape=shape)
        columns.append(b.node("Unsqueeze", spread, [len(shape)]))
    return columns[0] if len(columns) == 1 else b.node("Concat", *columns, axis=len(shape)), len(shape)


def index(b: Any, x: Any, *indices: Any, dims: Dims) -> Any:
    """Gather along one dimension; GatherND for several, which must stand in front."""
    if len(dims) == 1:
        return b.node("Gather", x, b.cast(indices[0], int64), axis=dims[0])
    rest = tuple(d for d in range(x.ndim) if d not in dims)
    places, rank = _together(b, indices)
    found = b.node("GatherND", b.ops.permute(x, dims=(*dims, *rest)), places)
    at = target_of(dims)
    if at == 0:
        return found
    return b.node("Transpose", found, perm=[*range(rank, rank + at), *range(rank), *range(rank + at, rank + len(rest))])


def index_put(b: Any, x: Any, value: Any, *indices: Any, dims: Dims, accumulate: bool) -> Any:
    """ScatterND, with the indexed dimensions in front on both sides."""
    rest = tuple(d for d in range(x.ndim) if d not in dims)
    order = (*dims, *rest)
    places, rank = _together(b, indices)
    at = target_of(dims)
    front = (*range(at, at + rank), *range(at), *range(at + rank, value.ndim))
    made = b.node(
        "ScatterND", b.ops.permute(x, dims=order), places, b.ops.permute(value, dims=front),
        reduction="add" if accumulate else "none", shape=tuple(x.shape[d] for d in order),
    )  # fmt: skip
    return b.ops.permute(made, dims=tuple(int(i) for i in np.argsort(order)))


def index_place(b: Any, x: Any, *indices: Any, shape: Any, dims: Dims) -> Any:
    """Zeros with values added at an index."""
    return index_put(b, b.full(shape, 0, x.dtype), x, *indices, dims=dims, accumulate=True)


def embedding(b: Any, weight: Any, index: Any, *, padding_idx: int | None, by_frequency: bool) -> Any:
    """Rows of a table; the two attributes only concern gradients."""
    return b.node("Gather", weight, b.cast(index, int64), axis=0)


def gather(b: Any, x: Any, index: Any, *, dim: int) -> Any:
    """Element by element along a dimension."""
    if x.ndim == 0:
        return b.node("Reshape", x, b.sizes(index.shape))
    return b.node("GatherElements", x, b.cast(index, int64), axis=dim)


def _scattered(b: Any, x: Any, index: Any, src: Any, dim: int, reduction: str) -> Any:
    if x.ndim == 0:
        kinds = {"none": None, "add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}
        kind = kinds[reduction]
        return b.node(kind, x, src) if kind else b.node("Identity", src)
    if not b.same_sizes(index.shape, src.shape):
        src = b.ops.basic_index(src, index=tuple((0, n, 1) for n in index.shape))
    return b.node("ScatterElements", x, b.cast(index, int64), src, axis=dim, reduction=reduction, shape=x.shape)


def scatter(reduction: str) -> Callable[..., Any]:
    """ScatterElements with a reduction, or none."""
    return lambda b, x, index, src, *, dim: _scattered(b, x, index, src, dim, reduction)


def scatter_place(b: Any, x: Any, index: Any, *, shape: Any, dim: int) -> Any:
    """Zeros with values added along a dimension."""
    return _scattered(b, b.full(shape, 0, x.dtype), index, x, dim, "add")


def at_index(b: Any, x: Any, index: Any, *, dim: int) -> Any:
    """x where the index along a dimension equals `index`, 0 elsewhere."""
    size = x.shape[dim]
    here = b.ops.reshape(b.counting(size), shape=(size, *(1,) * (x.ndim - 1 - dim)))
    return b.ops.where(b.node("Equal", here, b.cast(index, int64)), x, 0)


# -- searching --------------------------------------------------------------------------------------------------------


def searchsorted(b: Any, row: Any, values: Any, *, right: bool, dtype: Any) -> Any:
    """The number of sorted values that are less (or not greater)."""
    row = b.node("Unsqueeze", row, [row.ndim - 1]) if row.ndim > 1 else row
    before = b.node("LessOrEqual" if right else "Less", row, b.node("Unsqueeze", values, [values.ndim]))
    return b.cast(b.node("ReduceSum", b.cast(before, int64), [values.ndim], keepdims=0), dtype)


def isin(b: Any, elements: Any, tests: Any, *, invert: bool) -> Any:
    """Is an element equal to any of the tests?"""
    flat = b.ops.reshape(tests, shape=(math.prod(tests.shape),))
    equal = b.node("Equal", b.node("Unsqueeze", elements, [elements.ndim]), flat, shape=(*elements.shape, *flat.shape))
    found = b.ops.any(equal, dim=(elements.ndim,), keepdim=False)
    return b.node("Not", found) if invert else found


def one_hot(b: Any, x: Any, *, classes: int) -> Any:
    """1 at the index of the class."""
    equal = b.node("Equal", b.node("Unsqueeze", b.cast(x, int64), [x.ndim]), b.counting(classes))
    return b.cast(equal, int64)


# -- segments ---------------------------------------------------------------------------------------------------------


def _segment_of(b: Any, offsets: Any, total: int) -> Any:
    """The segment of each row: the number of segments that have begun, minus one (empty ones begin with the next)."""
    starts = b.node("Slice", offsets, [0], [-1], [0])
    count = offsets.shape[0] - 1
    none = b.full((total + 1,), 0, int64)
    begun = b.node("ScatterElements", none, starts, b.full((count,), 1, int64), axis=0, reduction="add")
    so_far = b.node("CumSum", b.node("Slice", begun, [0], [total], [0]), b.number(0, int64))
    return b.node("Sub", so_far, b.number(1, int64), shape=(total,))


def segment_repeat(b: Any, x: Any, offsets: Any, *, size: int) -> Any:
    """The value of each segment, repeated for all of its rows."""
    return b.node("Gather", x, _segment_of(b, offsets, size), axis=0)


def segment_fold(reduction: str, start: float) -> Callable[..., Any]:
    """A reduction of the rows of each segment."""

    def rule(b: Any, x: Any, offsets: Any) -> Any:
        first = start
        if math.isinf(start) and not x.dtype.is_floating_point:
            limits = np.iinfo(x.dtype.numpy)
            first = limits.min if start < 0 else limits.max
        places = b.node("Unsqueeze", _segment_of(b, offsets, x.shape[0]), [1])
        base = b.full((offsets.shape[0] - 1, *x.shape[1:]), first, x.dtype)
        return b.node("ScatterND", base, places, x, reduction=reduction)

    return rule


def segment_logsumexp(b: Any, x: Any, offsets: Any) -> Any:
    """With the maximum of each segment subtracted, so that nothing overflows."""
    top = b.apply_rule(segment_fold("max", -math.inf), x, offsets, like="segment_sum")
    # An infinite maximum (that of an empty segment too) cannot be subtracted.
    top = b.ops.where(abs(top) == math.inf, 0, top)
    raised = b.ops.exp(x - b.ops.segment_repeat(top, offsets, size=x.shape[0]))
    return b.node("Log", b.ops.segment_sum(raised, offsets)) + top


def segment_softmax(b: Any, x: Any, offsets: Any) -> Any:
    """A softmax over the rows of each segment."""
    size = x.shape[0]
    top = b.apply_rule(segment_fold("max", -math.inf), x, offsets, like="segment_sum")
    raised = b.ops.exp(x - b.ops.segment_repeat(top, offsets, size=size))
    return raised / b.ops.segment_repeat(b.ops.segment_sum(raised, offsets), offsets, size=size)
