"""ONNX rules of reductions, scans and order statistics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.core.spec import bool_, int32, int64

Dims = tuple[int, ...]
_END = np.iinfo(np.int64).max


def reduction(kind: str, *, of_integers: Any = None) -> Callable[..., Any]:
    """A Reduce operator; integers in the dtype `of_integers`, if one is given."""

    def rule(b: Any, x: Any, *, dim: Dims, keepdim: bool) -> Any:
        if of_integers is not None and not x.dtype.is_floating_point:
            x = b.cast(x, of_integers)
        if not dim:
            return x
        return b.node(kind, x, list(dim), keepdims=int(keepdim))

    return rule


def truth(every: bool) -> Callable[..., Any]:
    """any and all, by counting, which is also right for an empty tensor."""

    def rule(b: Any, x: Any, *, dim: Dims, keepdim: bool) -> Any:
        held = b.cast(x, bool_)
        counted = b.cast(b.node("Not", held) if every else held, int32)
        if dim:
            counted = b.node("ReduceSum", counted, list(dim), keepdims=int(keepdim))
        found = b.node("Equal" if every else "Greater", counted, b.number(0, int32))
        return b.cast(found, x.dtype) if x.dtype.name == "uint8" else found

    return rule


def log_sum_exp(b: Any, x: Any, *, dim: Dims, keepdim: bool) -> Any:
    """ONNX's ReduceLogSumExp, which is numerically stable."""
    return b.node("ReduceLogSumExp", x, list(dim), keepdims=int(keepdim)) if dim else x


# -- order ------------------------------------------------------------------------------------------------------------


def _ordered(b: Any, x: Any, largest: bool) -> Any:
    """Numbers with NaN replaced by an infinity, so that NaN is extreme; ONNX does not define its order."""
    if not x.dtype.is_floating_point:
        return b.cast(x, int32) if x.dtype.itemsize < 4 else x
    edge = float(np.finfo(x.dtype.numpy).max)
    bounded = b.node("Min", x, b.number(edge, x.dtype)) if largest else b.node("Max", x, b.number(-edge, x.dtype))
    return b.ops.where(b.node("IsNaN", x), math.inf if largest else -math.inf, bounded)


def target_of(largest: bool) -> Callable[..., Any]:
    """argmax and argmin: the first of equal elements; NaN counts as the extreme."""

    def rule(b: Any, x: Any, *, dim: Dims, keepdim: bool) -> Any:
        if not dim:
            return b.full(x.shape, 0, int64)
        kind = "ArgMax" if largest else "ArgMin"
        return b.node(kind, _ordered(b, x, largest), axis=dim[0], keepdims=int(keepdim), select_last_index=0)

    return rule


def extreme_at(largest: bool) -> Callable[..., Any]:
    """The extreme value and its index."""

    def rule(b: Any, x: Any, *, dim: int, keepdim: bool) -> Any:
        place = target_of(largest)(b, x, dim=(dim,), keepdim=True)
        value = b.node("GatherElements", x, place, axis=dim)
        if keepdim:
            return value, place
        return b.node("Squeeze", value, [dim]), b.node("Squeeze", place, [dim])

    return rule


def _top(b: Any, x: Any, dim: int, count: int, largest: bool) -> Any:
    """The indices of the first `count` elements in sorted order; a stable sort."""
    return b.node(
        "TopK", _ordered(b, x, True), b.size(count), outputs=2, dtype=(x.dtype, int64), axis=dim,
        largest=int(largest), sorted=1,
    )[1]  # fmt: skip


def sort(b: Any, x: Any, *, dim: int, descending: bool) -> Any:
    """Sort: all elements in order."""
    places = _top(b, x, dim, x.shape[dim], descending)
    return b.node("GatherElements", x, places, axis=dim), places


def topk(b: Any, x: Any, *, dim: int, k: int, largest: bool) -> Any:
    """The first k."""
    places = _top(b, x, dim, k, largest)
    return b.node("GatherElements", x, places, axis=dim), places


def _picked(b: Any, x: Any, places: Any, dim: int, keepdim: bool) -> Any:
    value = b.node("GatherElements", x, places, axis=dim)
    if keepdim:
        return value, places
    return b.node("Squeeze", value, [dim]), b.node("Squeeze", places, [dim])


def kthvalue(b: Any, x: Any, *, dim: int, k: int, keepdim: bool) -> Any:
    """The largest of the k smallest elements."""
    places = b.node("Slice", _top(b, x, dim, k, False), [k - 1], [k], [dim])
    return _picked(b, x, places, dim, keepdim)


def median(b: Any, x: Any, *, dim: int, ignore_nan: bool, keepdim: bool) -> Any:
    """The lower median: of the elements that are not NaN if `ignore_nan`, else the first NaN if there is one."""
    size = x.shape[dim]
    order = _top(b, x, dim, size, False)
    if not x.dtype.is_floating_point:
        middle = (size - 1) // 2
        return _picked(b, x, b.node("Slice", order, [middle], [middle + 1], [dim]), dim, keepdim)
    there = b.cast(b.node("Not", b.node("IsNaN", x)), int64)
    count = b.node("ReduceSum", there, [dim], keepdims=1)
    zero, one, two = (b.number(n, int64) for n in (0, 1, 2))
    middle = b.node("Div", b.node("Max", b.node("Sub", count, one), zero), two)
    if not ignore_nan:
        whole = b.number(size, int64)
        first = b.node("Min", count, b.node("Sub", whole, one))
        middle = b.node("Where", b.node("Less", count, whole), first, middle)
    return _picked(b, x, b.node("GatherElements", order, middle, axis=dim), dim, keepdim)


def median_of_all(b: Any, x: Any, *, dim: tuple[int, ...], keepdim: bool, ignore_nan: bool) -> Any:
    """The median over several dimensions, flattened into one."""
    others = tuple(d for d in range(x.ndim) if d not in dim)
    rows = b.ops.permute(x, dims=(*others, *dim)) if x.ndim > 1 else x
    rows = b.ops.reshape(rows, shape=(*(x.shape[d] for d in others), math.prod(x.shape[d] for d in dim)))
    value = median(b, rows, dim=len(others), ignore_nan=ignore_nan, keepdim=False)[0]
    return b.node("Unsqueeze", value, dim) if keepdim and dim else value


def mode(b: Any, x: Any, *, dim: int, keepdim: bool) -> Any:
    """Counts equal elements by comparing all pairs; the smallest of the most frequent, at its last index."""
    equal = b.node("Equal", b.node("Unsqueeze", x, [dim]), b.node("Unsqueeze", x, [dim + 1]))
    count = b.node("ReduceSum", b.cast(equal, int32), [dim], keepdims=0)
    # NaN is not equal to itself, so it is counted separately.
    count = b.node("Max", count, b.number(1, int32))
    most = b.node("Equal", count, b.node("ReduceMax", count, [dim], keepdims=1))
    key = _ordered(b, x, True)
    whole = not key.dtype.is_floating_point
    beyond = b.number(np.iinfo(key.dtype.numpy).max if whole else math.inf, key.dtype)
    least = b.node("ReduceMin", b.node("Where", most, key, beyond), [dim], keepdims=1)
    found = b.cast(b.node("And", b.node("Equal", key, least), most), int32)
    place = b.node("ArgMax", found, axis=dim, keepdims=1, select_last_index=1)
    if not whole:
        # If all elements are NaN, the index of the first.
        first = b.node("ArgMax", found, axis=dim, keepdims=1, select_last_index=0)
        place = b.node("Where", b.node("Equal", least, beyond), first, place)
    return _picked(b, x, place, dim, keepdim)


# -- scans ------------------------------------------------------------------------------------------------------------


def cumsum(b: Any, x: Any, *, dim: int, reverse: bool) -> Any:
    """Its own operator."""
    x = x if x.dtype.is_floating_point else b.cast(x, int64)
    return b.node("CumSum", x, b.number(dim, int64), reverse=int(reverse))


def _scan(b: Any, dim: int, reverse: bool, start: float, step: Callable[..., Any], *given: Any) -> Any:
    """A scan `state = step(inner builder, state, *parts)` along a dimension; returns all states, stacked."""
    model = given[-1]
    size = model.shape[dim]
    if not b.varies(size) and size == 0:
        return model
    rest = (*model.shape[:dim], *model.shape[dim + 1 :])
    # ONNX Runtime cannot scan an empty dimension, or gets it wrong if it is not the first. So one more row is added at
    # the end, scanned, and cut off again.
    more = b.varies(size)
    ends = [0, 0] if not more else [1, 0] if reverse else [0, 1]
    rows = [_in_front(b, x, dim, ends) for x in given]
    body = b.body("step")
    state = body.input("state", model.dtype, rest)
    parts = [body.input("part", g.dtype, rest) for g in given]
    after = step(body, state, *parts)
    body.output("after", after, rest)
    body.output("seen", after, rest)
    count = len(given)
    made = b.node(
        "Scan", b.full(rest, start, model.dtype), *rows, outputs=2, dtype=(model.dtype, model.dtype), body=body.graph,
        num_scan_inputs=count, scan_input_directions=[int(reverse)] * count, scan_output_directions=[int(reverse)],
    )[1]  # fmt: skip
    if more:
        made = b.node("Slice", made, [ends[0]], [_END if reverse else -1], [0])
    return b.node("Transpose", made, perm=[*range(1, dim + 1), 0, *range(dim + 1, model.ndim)]) if dim else made


def _in_front(b: Any, x: Any, dim: int, ends: list[int]) -> Any:
    """x with the dimension moved to the front, and padded with rows before and after."""
    x = b.ops.permute(x, dims=(dim, *(d for d in range(x.ndim) if d != dim)))
    if not any(ends):
        return x
    none = [0] * (x.ndim - 1)
    return b.node("Pad", x, [ends[0], *none, ends[1], *none], b.number(0, x.dtype))


def cumprod(b: Any, x: Any, *, dim: int, reverse: bool) -> Any:
    """A scan, because ONNX has no cumulative product."""
    x = x if x.dtype.is_floating_point else b.cast(x, int64)
    return _scan(b, dim, reverse, 1, lambda inner, state, part: inner.node("Mul", state, part), x)


def linear_scan(b: Any, x: Any, y: Any, *, dim: int, reverse: bool) -> Any:
    """The linear recurrence state = x · state + y."""
    return _scan(b, dim, reverse, 0, lambda inner, state, a, c: inner.node("Add", c, inner.node("Mul", a, state)), x, y)


def logcumsumexp(b: Any, x: Any, *, dim: int) -> Any:
    """The logarithm of the running sum of exponentials."""
    return _scan(b, dim, False, -math.inf, lambda inner, state, part: inner.ops.logaddexp(state, part), x)


def running_extreme(kind: str) -> Callable[..., Any]:
    """The running maximum or minimum, and its index: the last of equal elements."""

    def rule(b: Any, x: Any, *, dim: int) -> Any:
        whole = not x.dtype.is_floating_point
        worst = (np.iinfo if whole else np.finfo)(x.dtype.numpy)
        start = (worst.min if kind == "Max" else worst.max) if whole else (-math.inf if kind == "Max" else math.inf)
        values = _scan(b, dim, False, start, lambda inner, state, part: inner.node(kind, state, part), x)
        found = b.node("Equal", x, values, shape=x.shape)
        if not whole:
            found = b.node("Or", found, b.node("IsNaN", x))
        shape = tuple(x.shape[dim] if d == dim else 1 for d in range(x.ndim))
        here = b.ops.reshape(b.counting(x.shape[dim]), shape=shape)
        marks = b.node("Where", found, here, b.number(0, int64), shape=x.shape)
        return values, _scan(b, dim, False, 0, lambda inner, state, part: inner.node("Max", state, part), marks)

    return rule
