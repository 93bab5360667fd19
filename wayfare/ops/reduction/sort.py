"""Sorting and order statistics along one dimension: values, and where they came from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from wayfare.core.errors import IndexRangeError
from wayfare.core.numpy_math import Array
from wayfare.core.op import Op, Sample
from wayfare.core.signature import COUNT, DIM, FLAG, STEP, Attribute, Signature
from wayfare.core.spec import Spec, int64
from wayfare.ops._define import define, in_front, reduced_shape, reduction
from wayfare.ops.reduction import onnx_rules as rules
from wayfare.ops.reduction.extreme import scatter_back, sharing_vjp, take_along


def argsort_along(x: Array, dim: int, descending: bool) -> Array:
    """Places in sorted order, equals in their old order; NaN is the largest."""
    if not descending:
        return np.argsort(x, axis=dim, kind="stable")
    # Sorting the reversed rows and reversing the result keeps equals in order.
    backwards = np.argsort(np.flip(x, dim), axis=dim, kind="stable")
    return np.flip(x.shape[dim] - 1 - backwards, dim)


def _ordered_places(row: list[Any], descending: bool) -> list[int]:
    """The reference: Python's own sort, which is stable."""

    def key(i: int) -> tuple[bool, Any]:
        return (row[i] != row[i], 0 if row[i] != row[i] else row[i])

    return sorted(range(len(row)), key=key, reverse=False) if not descending else sorted(
        range(len(row)), key=lambda i: (not key(i)[0], -key(i)[1])
    )


def _picking(
    name: str, *, places: Callable[..., Array], one_place: Callable[..., Any], reduces: bool,
    size: Callable[..., int] | None = None, kinds: dict[str, Attribute], attrs: tuple[dict[str, Any], ...],
    grad_name: str = "", workspace: int = 0, onnx: Any = None,
) -> Op:  # fmt: skip
    """An op that picks elements along `dim`: `places(x, dim, **attrs)` are the chosen indices, kept dimension.

    `one_place(row, **attrs)` is the independent reference for one row: an index, or a list of them.
    """

    def out_shape(shape: tuple[int, ...], dim: int, **attrs: Any) -> tuple[int, ...]:
        if reduces:
            return reduced_shape(shape, (dim,), attrs["keepdim"])
        return shape[:dim] + (size(shape[dim], **attrs) if size is not None else shape[dim],) + shape[dim + 1 :]

    def split(attrs: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in attrs.items() if key != "keepdim"} if reduces else attrs

    def forward(x: Array, *, dim: int, **attrs: Any) -> tuple[Array, Array]:
        index = places(x, dim, **split(attrs)).copy(order="C")
        values = take_along(x, index, dim)
        if reduces and not attrs["keepdim"]:
            shape = out_shape(x.shape, dim, **attrs)
            return values.reshape(shape), index.reshape(shape)
        return values, index

    def infer(x: Spec, *, dim: int, **attrs: Any) -> tuple[Spec, Spec]:
        if attrs.get("k", 0) > (x.shape[dim] if x.ndim else 1):
            raise IndexRangeError(f"{name}: k is {attrs['k']}, and there are {x.shape[dim] if x.ndim else 1} elements "
                                  f"along dim {dim} of {x}")  # fmt: skip
        shape = out_shape(x.shape, dim, **attrs)
        return Spec(shape, x.dtype), Spec(shape, int64)

    def vjp(m: Any, g: Any, y: Any, x_spec: Spec, *, dim: int, **attrs: Any) -> Any:
        return scatter_back(m, g[0], y[1], x_spec, dim, not reduces or attrs["keepdim"])

    def reference(x: Array, dim: int, **attrs: Any) -> tuple[Array, Array]:
        rows = np.moveaxis(x, dim, -1).reshape(-1, x.shape[dim])
        index = np.array([one_place(row.tolist(), **split(attrs)) for row in rows])
        shape = reduced_shape(x.shape, (dim,), False)
        full = np.moveaxis(index.reshape(*shape, -1), -1, dim)
        values = np.take_along_axis(x, full, dim)
        wanted = out_shape(x.shape, dim, **attrs)
        return values.reshape(wanted), full.reshape(wanted)

    def samples(rng: Any) -> Iterable[Sample]:
        for extra in attrs:
            yield Sample((rng.normal(size=(3, 5)),), {"dim": 1, **extra})
            yield Sample((rng.normal(size=(5, 2, 2)),), {"dim": 0, **extra})
            yield Sample((rng.normal(size=(4, 6)).T,), {"dim": 1, **extra})
            yield Sample((np.array([2.0, np.nan, -1.0, 5.0, np.inf]),), {"dim": 0, **extra}, smooth=False)

    return define(
        name, signature=Signature(1, 1, {"dim": DIM, **kinds}),
        family="sort", forward=forward, infer=infer, vjp=(vjp,), batch=in_front(name), samples=samples,
        reference=reference, outputs=2, differentiable_outputs=(0,), kept_outputs=(1,), takes_none=True,
        grad_name=grad_name, workspace=workspace, onnx=onnx,
    )  # fmt: skip


sort = _picking(
    "sort",
    workspace=2,
    onnx=rules.sort,
    places=lambda x, dim, descending: argsort_along(x, dim, descending),
    one_place=lambda row, descending: _ordered_places(row, descending),
    reduces=False,
    kinds={"descending": FLAG},
    attrs=({"descending": False}, {"descending": True}),
)


def _top_places(x: Array, dim: int, k: int, largest: bool) -> Array:
    size = x.shape[dim]
    rows = np.moveaxis(x, dim, -1)
    if k == 0 or size <= 128 or 4 * k > size:
        places = argsort_along(rows, rows.ndim - 1, largest)[..., :k]
    else:
        # Few of many: find them first, then sort only those.
        part = np.argpartition(rows, size - k if largest else k - 1, axis=-1)
        few = np.sort(part[..., size - k :] if largest else part[..., :k], axis=-1)
        order = argsort_along(np.take_along_axis(rows, few, -1), rows.ndim - 1, largest)
        places = np.take_along_axis(few, order, -1)
    return np.moveaxis(places, -1, dim)


topk = _picking(
    "topk",
    workspace=3,
    onnx=rules.topk,
    places=_top_places,
    one_place=lambda row, k, largest: _ordered_places(row, largest)[:k],
    reduces=False,
    size=lambda size, k, **_: k,
    kinds={"k": COUNT, "largest": FLAG},
    attrs=({"k": 2, "largest": True}, {"k": 3, "largest": False}),
)


def _place_of_rank(x: Array, dim: int, k: int) -> Array:
    """The index of the element that is number k (from 0) in order, equals in their old order; NaN is the largest."""
    value = np.take(np.partition(x, k, axis=dim), [k], axis=dim)
    same = x == value
    place: Array = same.argmax(dim, keepdims=True)
    if np.count_nonzero(same) > place.size:
        # Several equal ones: after the smaller elements, count k - smaller of them.
        smaller = np.count_nonzero(x < value, axis=dim, keepdims=True)
        place = (np.cumsum(same, axis=dim) > k - smaller).argmax(dim, keepdims=True)
    if x.dtype.kind == "f" and np.isnan(value).any():
        place = np.take(argsort_along(x, dim, False), [k], axis=dim)
    return place


kthvalue = _picking(
    "kthvalue",
    workspace=5,
    onnx=rules.kthvalue,
    places=lambda x, dim, k: _place_of_rank(x, dim, k - 1),
    one_place=lambda row, k: _ordered_places(row, False)[k - 1],
    reduces=True,
    kinds={"k": STEP, "keepdim": FLAG},
    attrs=({"k": 2, "keepdim": False}, {"k": 1, "keepdim": True}),
)


def _median_places(x: Array, dim: int, ignore_nan: bool) -> Array:
    size = x.shape[dim]
    if x.dtype.kind != "f" or not np.isnan(x).any():
        return _place_of_rank(x, dim, (size - 1) // 2)
    order = argsort_along(x, dim, False)
    missing = np.isnan(x)
    counts = np.sum(~missing, axis=dim, keepdims=True)
    middle = np.maximum(counts - 1, 0) // 2
    if not ignore_nan:
        # If there is a NaN it is the answer: the first one stands right behind the numbers.
        middle = np.where(counts < size, np.minimum(counts, size - 1), middle)
    return np.take_along_axis(order, middle, dim)


def _median_place(row: list[float], ignore_nan: bool) -> int:
    numbers = [i for i, v in enumerate(row) if v == v]
    if len(numbers) < len(row) and (not ignore_nan or not numbers):
        return next(i for i, v in enumerate(row) if v != v)
    return sorted(numbers, key=lambda i: row[i])[(len(numbers) - 1) // 2]


# The lower of the two middle values, so that the median is always an element.
median = _picking(
    "median",
    workspace=9,
    onnx=rules.median,
    places=_median_places,
    one_place=_median_place,
    reduces=True,
    kinds={"ignore_nan": FLAG, "keepdim": FLAG},
    attrs=(
        {"ignore_nan": False, "keepdim": False},
        {"ignore_nan": True, "keepdim": True},
    ),
    grad_name="MedianBackward1",
)


def _in_rows(x: Array, dim: tuple[int, ...]) -> Array:
    """The elements that are reduced together, one after the other along a last dimension."""
    others = tuple(d for d in range(x.ndim) if d not in dim)
    size = math.prod(x.shape[d] for d in dim)
    return x.transpose(*others, *dim).reshape(*(x.shape[d] for d in others), size)


def _median_of_all(x: Array, *, dim: tuple[int, ...], keepdim: bool, ignore_nan: bool) -> Array:
    rows = _in_rows(x, dim)
    last = rows.ndim - 1
    values = take_along(rows, _median_places(rows, last, ignore_nan), last)
    return values.reshape(reduced_shape(x.shape, dim, keepdim))  # type: ignore[no-any-return]


def _median_reference(x: Array, dim: tuple[int, ...], keepdim: bool, ignore_nan: bool) -> Array:
    rows = _in_rows(x, dim)
    values = [row[_median_place(row, ignore_nan)] for row in rows.reshape(-1, rows.shape[-1]).tolist()]
    return np.array(values).reshape(reduced_shape(x.shape, dim, keepdim))


# The value alone: all elements equal to it share its gradient.
median_of_all = reduction(
    "median_of_all", workspace=9, attrs={"ignore_nan": FLAG},
    onnx=rules.median_of_all, forward=_median_of_all, vjp=sharing_vjp, empty=False,
    sample_attrs=({"ignore_nan": False}, {"ignore_nan": True}), reference=_median_reference,
    grad_name="MedianBackward0",
)  # fmt: skip


def _mode_places(x: Array, dim: int) -> Array:
    rows = np.moveaxis(x, dim, -1)
    order = np.argsort(rows, axis=-1, kind="stable")
    ordered = np.take_along_axis(rows, order, -1)
    size = ordered.shape[-1]
    here = np.arange(size)
    starts = np.ones(ordered.shape, bool)
    starts[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    # How far into its run of equals each element is: the longest run's last element is the first maximum.
    depth = here - np.maximum.accumulate(np.where(starts, here, 0), axis=-1)
    last = np.argmax(depth, axis=-1, keepdims=True)
    return np.moveaxis(np.take_along_axis(order, last, -1), -1, dim)


def _mode_place(row: list[float]) -> int:
    counts = Counter(row)
    most = max(counts.values())
    value = min(v for v, count in counts.items() if count == most)
    return max(i for i, v in enumerate(row) if v == value)


# The commonest value, the smallest of several; of its places the last.
mode = _picking(
    "mode", workspace=14, places=_mode_places, one_place=_mode_place, reduces=True, kinds={"keepdim": FLAG},
    attrs=({"keepdim": False}, {"keepdim": True}), onnx=rules.mode,
)  # fmt: skip
