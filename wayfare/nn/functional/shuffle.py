"""Channels and pixels exchanged: pixel_shuffle, pixel_unshuffle, channel_shuffle."""

from __future__ import annotations

from wayfare.api.functions._along import check_tensor
from wayfare.api.functions.rearrange import clone
from wayfare.api.functions.shape import permuted, reshaped
from wayfare.core.errors import OperationError
from wayfare.core.tensor import Tensor

__all__ = ["channel_shuffle", "pixel_shuffle", "pixel_unshuffle"]


def _check(op: str, input: Tensor, factor: int) -> tuple[tuple[int, ...], int, int, int]:
    check_tensor(op, input)
    if input.ndim < 3:
        raise OperationError(f"{op}: expects (…, C, H, W), at least 3 dimensions, not {input.spec}")
    if factor <= 0:
        raise OperationError(f"{op}: the factor must be positive, but is {factor}")
    *batch, channels, height, width = input.shape
    return tuple(batch), channels, height, width


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """(…, C·r², H, W) to (…, C, H·r, W·r): channels become pixels."""
    r = upscale_factor
    batch, channels, height, width = _check("pixel_shuffle", input, r)
    if channels % (r * r):
        raise OperationError(f"pixel_shuffle: {channels} channels of {input.spec} are not a multiple of {r}² = {r * r}")
    n, c = len(batch), channels // (r * r)
    split = reshaped(input, (*batch, c, r, r, height, width))
    mixed = permuted(split, (*range(n + 1), n + 3, n + 1, n + 4, n + 2))
    return _own(reshaped(mixed, (*batch, c, height * r, width * r)))


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """(…, C, H·r, W·r) to (…, C·r², H, W): pixels become channels."""
    r = downscale_factor
    batch, channels, height, width = _check("pixel_unshuffle", input, r)
    if height % r or width % r:
        raise OperationError(f"pixel_unshuffle: height and width of {input.spec} are not multiples of {r}")
    n = len(batch)
    split = reshaped(input, (*batch, channels, height // r, r, width // r, r))
    mixed = permuted(split, (*range(n + 1), n + 2, n + 4, n + 1, n + 3))
    return _own(reshaped(mixed, (*batch, channels * r * r, height // r, width // r)))


def _own(out: Tensor) -> Tensor:
    """Where nothing moves the result is a view, but it must not share the input's memory."""
    return out.clone() if out._is_view() else out


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """(N, C, …) with the channels of `groups` groups dealt out in turn."""
    check_tensor("channel_shuffle", input)
    if input.ndim < 3:
        raise OperationError(f"channel_shuffle: expects (N, C, …), at least 3 dimensions, not {input.spec}")
    batch, channels, *rest = input.shape
    if groups <= 0 or channels % groups:
        raise OperationError(
            f"channel_shuffle: {channels} channels of {input.spec} cannot be dealt into {groups} groups"
        )
    split = reshaped(input, (batch, groups, channels // groups, *rest))
    mixed = permuted(split, (0, 2, 1, *range(3, 3 + len(rest))))
    return clone(reshaped(mixed, tuple(input.shape)))
