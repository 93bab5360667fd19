"""Resizing (N, C, *sizes): interpolate and its older names. Every mode works one dimension at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.api.functions._along import check_tensor
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentError, OperationError, ShapeError
from wayfare.core.mode import executor
from wayfare.core.numpy_math import Array
from wayfare.core.op import REGISTRY
from wayfare.core.tensor import Tensor, on_device_of
from wayfare.nn.functional.pool import mean_of_cells
from wayfare.nn.functional.resize_places import cubic, cubic_weight, linear, nearest

__all__ = ["interpolate", "upsample", "upsample_bilinear", "upsample_nearest"]

_OPS = REGISTRY
_RANKS = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}
_COPYING = ("nearest", "nearest-exact", "area")


def interpolate(
    input: Tensor, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest", align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:  # fmt: skip
    """`input` (N, C, *sizes) resized to `size`, or by `scale_factor`, by the nearest element ("nearest",
    "nearest-exact"), linearly ("linear", "bilinear", "trilinear"), by cubics ("bicubic") or by averages ("area")."""
    check_tensor("interpolate", input)
    rank = _check_mode(input, mode, align_corners, antialias)
    sizes, factors = _target(input, rank, size, scale_factor)
    if recompute_scale_factor:
        if size is not None:
            raise ArgumentError("interpolate: recompute_scale_factor goes with scale_factor, not with size")
        factors = (None,) * rank
    if min(sizes, default=1) < 1 or 0 in input.shape[1:]:
        raise OperationError(f"interpolate: sizes must be positive, {input.spec} would become {list(sizes)}")
    out = input
    for axis, (count, factor) in enumerate(zip(sizes, factors, strict=True)):
        out = _resize(out, 2 + axis, count, factor, mode, bool(align_corners), antialias)
    return out


def _check_mode(input: Tensor, mode: str, align_corners: bool | None, antialias: bool) -> int:
    if mode not in _RANKS and mode not in _COPYING:
        raise ArgumentError(f"interpolate: mode must be one of {', '.join((*_COPYING, *_RANKS))}, not {mode!r}")
    rank = input.ndim - 2
    if not 1 <= rank <= 3:
        raise ShapeError(f"interpolate: the input must have 3, 4 or 5 dimensions, this is {input.spec}")
    if mode in _RANKS and rank != _RANKS[mode]:
        raise ShapeError(f"interpolate: mode {mode!r} needs an input of {_RANKS[mode] + 2} dimensions, this is "
                         f"{input.spec}")  # fmt: skip
    if mode in _COPYING and align_corners is not None:
        raise ArgumentError(f"interpolate: align_corners does not go with mode {mode!r}")
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ArgumentError(f"interpolate: antialias goes with 'bilinear' and 'bicubic', not with {mode!r}")
    return rank


def _target(input: Tensor, rank: int, size: Any, scale_factor: Any) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """The new sizes, and the factors if they were given."""
    if (size is None) == (scale_factor is None):
        raise ArgumentError("interpolate: give either size or scale_factor")
    given = size if scale_factor is None else scale_factor
    values = tuple(given) if isinstance(given, (tuple, list)) else (given,) * rank
    if len(values) != rank:
        raise ArgumentError(f"interpolate: {given!r} has not one value for each of {rank} dimensions")
    if scale_factor is None:
        return tuple(int(v) for v in values), (None,) * rank
    factors = tuple(float(v) for v in values)
    return tuple(math.floor(n * f) for n, f in zip(input.shape[2:], factors, strict=True)), factors


def _resize(
    x: Tensor, dim: int, count: int, factor: float | None, mode: str, align_corners: bool, antialias: bool
) -> Tensor:
    size = x.shape[dim]
    if mode == "area":
        return mean_of_cells(x, dim, count)
    real: Any = np.float64 if x.dtype.name == "float64" else np.float32
    if mode in _COPYING:
        at = _as_tensor(x, nearest(size, count, factor, mode == "nearest-exact"))
        return apply(_OPS["index_select"], (x, at), {"dim": dim})  # type: ignore[no-any-return]
    if count == size and factor in (None, 1.0) and not executor().sizes_may_differ:
        return x
    if antialias:
        places, weights = _filtered(size, count, _step(size, count, factor, align_corners, real), mode == "bicubic")
    else:
        kind = cubic if mode == "bicubic" else linear
        places, weights = kind(size, count, factor, align_corners, real)
    inputs = (x, _as_tensor(x, places), _as_tensor(x, weights).to(x.dtype))
    return apply(_OPS["resample"], inputs, {"dim": dim})  # type: ignore[no-any-return]


def _as_tensor(x: Tensor, places: Any) -> Tensor:
    return places if isinstance(places, Tensor) else on_device_of(x, np.asarray(places))


def _step(size: int, count: int, factor: float | None, align_corners: bool, real: Any) -> Any:
    """The distance in the input of two neighbours of the result."""
    if align_corners:
        return real((size - 1) / (count - 1)) if count > 1 else real(0)
    return real(size / count if factor is None else 1 / factor)


def _filtered(size: int, count: int, step: Any, by_cubics: bool) -> tuple[Array, Array]:
    """Weights that widen with the step, so that shrinking an image averages over all of it."""
    widen = max(float(step), 1.0)
    support = (2.0 if by_cubics else 1.0) * widen
    centre = float(step) * (np.arange(count) + 0.5)
    first = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + support + 0.5).astype(np.int64), size)
    places = first + np.arange(int((last - first).max()))[:, None]
    distance = np.abs((places - centre + 0.5) / widen)
    weights = cubic_weight(distance, a=-0.5) if by_cubics else np.maximum(1 - distance, 0)
    weights = np.where(places < last, weights, 0)
    return np.minimum(places, size - 1), weights / weights.sum(0)


def upsample(
    input: Tensor, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest", align_corners: bool | None = None,
) -> Tensor:  # fmt: skip
    """The older name of `interpolate`."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(
    input: Tensor, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None
) -> Tensor:
    """`interpolate` by the nearest element."""
    return interpolate(input, size, scale_factor, "nearest")


def upsample_bilinear(
    input: Tensor, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None
) -> Tensor:
    """`interpolate` bilinearly with aligned corners."""
    return interpolate(input, size, scale_factor, "bilinear", align_corners=True)
