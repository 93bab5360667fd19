"""Sums, extremes and softmax of segments: rows of different lengths packed one behind the other, without padding.

`input` is [total, …] and `offsets` (int64, [segments + 1], from 0 to total) says where each segment begins.
"""

from __future__ import annotations

from wayfare.api.functions._along import check_floating, check_tensor
from wayfare.api.functions._public import as_dtype_of
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentTypeError
from wayfare.core.op import REGISTRY
from wayfare.core.spec import int64
from wayfare.core.tensor import Tensor

__all__ = [
    "segment_log_softmax", "segment_logsumexp", "segment_max", "segment_mean", "segment_min", "segment_repeat",
    "segment_softmax", "segment_sum",
]  # fmt: skip

_OPS = REGISTRY


def _checked(op: str, input: Tensor, offsets: Tensor) -> None:
    check_tensor(op, input)
    if not isinstance(offsets, Tensor):
        raise ArgumentTypeError(f"{op}: offsets must be a tensor, not {type(offsets).__name__}",
                                fix="Make a tensor of it with wf.tensor(...).")  # fmt: skip


def _applied(op: str, input: Tensor, offsets: Tensor, *, floats: bool = False) -> Tensor:
    _checked(op, input, offsets)
    if floats:
        check_floating(op, input)
    return apply(_OPS[op], (input, offsets))  # type: ignore[no-any-return]


def segment_sum(input: Tensor, offsets: Tensor) -> Tensor:
    """The sum of each segment: [total, …] → [segments, …]; 0 for an empty one. Integers add up in int64."""
    _checked("segment_sum", input, offsets)
    if not input.dtype.is_floating_point:
        input = as_dtype_of(input, int64)
    return _applied("segment_sum", input, offsets)


def segment_mean(input: Tensor, offsets: Tensor) -> Tensor:
    """The mean of each segment: [total, …] → [segments, …]; NaN for an empty one."""
    total = _applied("segment_sum", input, offsets, floats=True)
    lengths = offsets[1:] - offsets[:-1]
    return total / lengths.to(input.dtype).reshape((-1,) + (1,) * (input.ndim - 1))


def segment_max(input: Tensor, offsets: Tensor) -> Tensor:
    """The largest number of each segment: [total, …] → [segments, …]. No segment may be empty.

    Where several are equal they share the gradient, as with `amax`.
    """
    return _applied("segment_max", input, offsets)


def segment_min(input: Tensor, offsets: Tensor) -> Tensor:
    """The smallest number of each segment: [total, …] → [segments, …]. No segment may be empty.

    Where several are equal they share the gradient, as with `amin`.
    """
    return _applied("segment_min", input, offsets)


def segment_logsumexp(input: Tensor, offsets: Tensor) -> Tensor:
    """`log(sum(exp(input)))` of each segment, without overflow: [total, …] → [segments, …]; -inf for an empty one."""
    return _applied("segment_logsumexp", input, offsets, floats=True)


def segment_softmax(input: Tensor, offsets: Tensor) -> Tensor:
    """Softmax within each segment: [total, …] → [total, …], where each segment sums to one."""
    return _applied("segment_softmax", input, offsets, floats=True)


def segment_log_softmax(input: Tensor, offsets: Tensor) -> Tensor:
    """The logarithm of `segment_softmax`, computed without overflow."""
    return input - segment_repeat(_applied("segment_logsumexp", input, offsets, floats=True), offsets)


def segment_repeat(input: Tensor, offsets: Tensor) -> Tensor:
    """Each row as often as its segment is long: [segments, …] → [total, …]."""
    _checked("segment_repeat", input, offsets)
    size = int(offsets[-1]) if offsets.ndim == 1 and offsets.shape[0] else 0
    return apply(_OPS["segment_repeat"], (input, offsets), {"size": size})  # type: ignore[no-any-return]
