"""Segments: rows packed one behind the other, where `offsets` [segments + 1] says at which row each segment begins.

`x` is [total, …]; segment s is `x[offsets[s]:offsets[s + 1]]`, and may be empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from wayfare.codegen.routines import segments
from wayfare.core.errors import ArgumentError, DTypeError, OperationError, ShapeError
from wayfare.core.flops import nothing, per_input
from wayfare.core.numpy_math import Array
from wayfare.core.op import BatchRule, Op, Sample, checks_values, raw_ops
from wayfare.core.signature import COUNT, takes
from wayfare.core.spec import Spec, int64, spec_of
from wayfare.ops._define import by_loop, define
from wayfare.ops.indexing import onnx_rules as rules

_HALF = np.dtype("float16")


# -- what all of them share --------------------------------------------------------------------------------------------


def _check_specs(op: str, x: Spec, offsets: Spec) -> None:
    if len(offsets.shape) != 1 or offsets.shape[0] < 1:
        raise ShapeError(f"{op}: offsets must have the shape [segments + 1], they are {offsets}",
                         fix="Offsets begin with 0 and end with the number of packed rows.")  # fmt: skip
    if offsets.dtype is not int64:
        raise DTypeError(f"{op}: offsets must be int64, they are {offsets.dtype}", fix="Convert them with .long().")
    if not x.shape:
        raise ShapeError(f"{op}: the packed rows need at least one dimension, this is {x}")


def _check(op: str, x: Array, offsets: Array, total: int) -> None:
    """Offsets that a native loop may follow: from 0 to `total`, never down."""
    if offsets.dtype != np.int64 or offsets.ndim != 1 or not offsets.size or not x.ndim:
        _check_specs(op, spec_of(x), spec_of(offsets))
    if offsets[0] != 0 or offsets[-1] != total:
        raise ArgumentError(f"{op}: offsets must go from 0 to {total}, the number of packed rows; these go from "
                            f"{int(offsets[0])} to {int(offsets[-1])}")  # fmt: skip
    falling = offsets[1:] < offsets[:-1]
    if falling.any():
        s = int(falling.argmax())
        raise ArgumentError(f"{op}: offsets must not decrease, offsets[{s}] is {int(offsets[s])} and "
                            f"offsets[{s + 1}] is {int(offsets[s + 1])}")  # fmt: skip


def _columns_first(name: str) -> BatchRule:
    """With shared offsets the batch is only more columns; other offsets for each go one by one."""

    def batch(m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]) -> Any:
        x, offsets = inputs
        if batched[1]:
            return by_loop(name)(m, size, inputs, batched, attrs)
        swapped = (1, 0, *range(2, x.ndim))
        y = getattr(m, name)(m.permute(x, dims=swapped), offsets, **attrs)
        return m.permute(y, dims=swapped)

    return batch


def _samples(rng: Any, empty: str = "smooth") -> Iterable[Sample]:
    """Segments of many lengths; empty ones are "smooth", "infinite" (no gradient to check) or "refused"."""
    for lengths, features in (((2, 3, 1), ()), ((1, 4), (2,)), ((3, 0, 2), (2,)), ((0, 0), (3,)), ((), (2,)),
                              ((4, 2), (2, 2)), ((1,), (0,)), ((200, 30), (5,)), ((3, 5), (90,))):  # fmt: skip
        if empty == "refused" and 0 in lengths:
            continue
        smooth = empty != "infinite" or 0 not in lengths
        yield Sample((rng.uniform(-2, 2, (sum(lengths), *features)), np.cumsum([0, *lengths])), smooth=smooth)


def _of_each(fold: Callable[[Array], Any]) -> Callable[..., Array]:
    """A reference: the loop over segments."""

    def reference(x: Array, offsets: Array) -> Array:
        rows = [fold(x[a:b]) for a, b in pairwise(offsets)]
        return np.stack(rows) if rows else np.zeros((0, *x.shape[1:]))

    return reference


def _segment_op(
    name: str, compute: Callable[[Array, Array], Array], vjp: Callable[..., Any], reference: Callable[..., Any], *,
    keeps_rows: bool = False, empty: str = "smooth", kinds: str = "biuf", each: int = 1, onnx: Any = None,
) -> Op:  # fmt: skip
    """A record of `x` and `offsets`: one row for each segment, or (`keeps_rows`) as many rows as before; `each` is how
    many operations a number of x takes."""

    @checks_values
    def forward(x: Array, offsets: Array) -> Array:
        _check(name, x, offsets, x.shape[0] if x.ndim else 0)
        if x.dtype == _HALF:
            return compute(x.astype(np.float32), offsets).astype(_HALF)
        return compute(x, offsets)

    def infer(x: Spec, offsets: Spec) -> Spec:
        _check_specs(name, x, offsets)
        if x.dtype.kind not in kinds:
            raise DTypeError(f"{name}: does not take {x.dtype}", fix="Convert it with .float() first.")
        return x if keeps_rows else Spec((offsets.shape[0] - 1, *x.shape[1:]), x.dtype)

    return define(
        name, signature=takes(2), family="segments", forward=forward, infer=infer, vjp=(vjp, None),
        batch=_columns_first(name), reference=reference, samples=lambda rng: _samples(rng, empty), kinds=kinds,
        work=per_input(each), onnx=onnx,
    )  # fmt: skip


# -- one row for each segment, and back --------------------------------------------------------------------------------


@checks_values
def _spread(x: Array, offsets: Array, *, size: int) -> Array:
    _check("segment_repeat", x, offsets, size)
    if x.shape[0] != offsets.size - 1:
        raise ShapeError(f"segment_repeat: {offsets.size - 1} segments need as many rows, this has {x.shape[0]}")
    return segments.spread(x, offsets)


def _spread_infer(x: Spec, offsets: Spec, *, size: int) -> Spec:
    _check_specs("segment_repeat", x, offsets)
    return Spec((size, *x.shape[1:]), x.dtype)


def _spread_samples(rng: Any) -> Iterable[Sample]:
    for sample in _samples(rng):
        offsets = sample.inputs[1]
        x = rng.uniform(-2, 2, (offsets.size - 1, *sample.inputs[0].shape[1:]))
        yield Sample((x, offsets), {"size": int(offsets[-1])})


define(
    "segment_repeat",
    signature=takes(2, size=COUNT),
    onnx=rules.segment_repeat,
    family="segments",
    work=nothing,
    forward=_spread,
    infer=_spread_infer,
    vjp=(lambda m, g, _y, _x, offsets, *, size: m.segment_sum(g, offsets), None),
    batch=_columns_first("segment_repeat"),
    reference=lambda x, offsets, size: np.repeat(x, np.diff(offsets), axis=0),
    samples=_spread_samples,
)

_segment_op(
    "segment_sum",
    lambda x, offsets: segments.reduce(x, offsets, "add"),
    lambda m, g, _y, x_spec, offsets: m.segment_repeat(g, offsets, size=x_spec.shape[0]),
    _of_each(lambda rows: rows.sum(axis=0)),
    onnx=rules.segment_fold("add", 0),
)


def _share(m: Any, g: Any, y: Any, x: Any, offsets: Any) -> Any:
    """Those that equal the extreme share its gradient; if that is NaN, the NaNs do."""
    size = x.shape[0]
    zeros, extreme = m.zeros_like(x), m.segment_repeat(y, offsets, size=size)
    equal = m.logical_or(x == extreme, m.logical_and(x != x, extreme != extreme))
    is_it = m.gate(zeros + 1, equal)
    return m.gate(m.segment_repeat(g / m.segment_sum(is_it, offsets), offsets, size=size), equal)


def _extreme(name: str, how: str, word: str) -> None:
    def compute(x: Array, offsets: Array) -> Array:
        empty = offsets[1:] == offsets[:-1]
        if empty.any():
            raise OperationError(f"{name}: segment {int(empty.argmax())} is empty, so it has no {word}",
                                 fix="Leave empty segments out.")  # fmt: skip
        return segments.reduce(x, offsets, how)

    reference = _of_each(lambda rows: getattr(rows, word)(axis=0))
    rule = rules.segment_fold(word, -math.inf if word == "max" else math.inf)
    _segment_op(name, compute, _share, reference, empty="refused", onnx=rule)


_extreme("segment_max", "maximum", "max")
_extreme("segment_min", "minimum", "min")


# -- exponentials ------------------------------------------------------------------------------------------------------


def _logsumexp(x: Array, offsets: Array) -> Array:
    top = segments.reduce(x, offsets, "maximum")
    # An infinite maximum (of an empty segment, too) cannot be subtracted.
    top[np.isinf(top)] = 0
    total = segments.reduce(raw_ops.exp(segments.combine(x, top, offsets, "sub")), offsets, "add")
    np.log(total, out=total)
    total += top
    return total


def _logsumexp_reference(rows: Array) -> Array:
    top = rows.max(axis=0, initial=-1e30)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(rows - top).sum(axis=0)) + top  # type: ignore[no-any-return]


def _logsumexp_gradient(m: Any, g: Any, y: Any, x: Any, offsets: Any) -> Any:
    # Where all is -inf the weights are 0, not -inf - -inf.
    finite = m.where(y > -math.inf, y, m.zeros_like(y))
    weights = m.exp(m.sub(x, m.segment_repeat(finite, offsets, size=x.shape[0])))
    return m.mul(weights, m.segment_repeat(g, offsets, size=x.shape[0]))


_segment_op("segment_logsumexp", _logsumexp, _logsumexp_gradient, _of_each(_logsumexp_reference), empty="infinite",
            kinds="f", each=4, onnx=rules.segment_logsumexp)  # fmt: skip


def _softmax(x: Array, offsets: Array) -> Array:
    top = segments.reduce(x, offsets, "maximum")
    raised = raw_ops.exp(segments.combine(x, top, offsets, "sub"))
    return segments.combine(raised, segments.reduce(raised, offsets, "add"), offsets, "div")


def _softmax_reference(x: Array, offsets: Array) -> Array:
    out = np.empty_like(x)
    for a, b in pairwise(offsets):
        raised = np.exp(x[a:b])
        out[a:b] = raised / raised.sum(axis=0)
    return out


def _softmax_gradient(m: Any, g: Any, y: Any, _x: Any, offsets: Any) -> Any:
    # Called as ops, which use native loops and pooled memory for large arrays.
    mean = m.segment_repeat(m.segment_sum(m.mul(g, y), offsets), offsets, size=y.shape[0])
    return m.mul(y, m.sub(g, mean))


_segment_op("segment_softmax", _softmax, _softmax_gradient, _softmax_reference, keeps_rows=True, kinds="f", each=5,
            onnx=rules.segment_softmax)  # fmt: skip
