"""Reading images at arbitrary places: grid_sample, and affine_grid that makes the places."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.api.autocast import follows_autocast
from wayfare.core.dispatch import tensor_ops as m
from wayfare.core.errors import ArgumentError, DTypeError, OperationError, ShapeError
from wayfare.core.spec import int64
from wayfare.core.tensor import Tensor, on_device_of

__all__ = ["affine_grid", "grid_sample"]

_MODES = ("bilinear", "nearest", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")


@follows_autocast(("float32", "widest"))
def grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Tensor:
    """`input` (N, C, *sizes) read at the places `grid` (N, *counts, dimensions), which run from -1 to 1, x first."""
    _check(input, grid, mode, padding_mode)
    sizes = tuple(input.shape[2:])
    aligned = bool(align_corners)
    counts = tuple(grid.shape[1:-1])
    points = m.reshape(grid, shape=(grid.shape[0], math.prod(counts), len(sizes)))
    # The last coordinate of the grid belongs to the first of the sizes.
    columns = [m.select(points, dim=2, index=len(sizes) - 1 - axis) for axis in range(len(sizes))]
    at = [_pixels(c, size, aligned) for c, size in zip(columns, sizes, strict=True)]
    flat = m.reshape(input, shape=(*input.shape[:2], math.prod(sizes)))
    if mode == "bicubic":
        out = _by_cubics(flat, at, sizes, padding_mode, aligned)
    else:
        inside = [_into(a, size, padding_mode, aligned) for a, size in zip(at, sizes, strict=True)]
        rounded = [m.round(a, decimals=0) for a in inside] if mode == "nearest" else []
        out = _read(flat, rounded, sizes) if rounded else _linearly(flat, inside, sizes)
    return m.reshape(out, shape=(*input.shape[:2], *counts))  # type: ignore[no-any-return]


def _check(input: Tensor, grid: Tensor, mode: str, padding_mode: str) -> None:
    rank = input.ndim - 2
    if mode not in _MODES:
        raise ArgumentError(f"grid_sample: mode must be one of {', '.join(_MODES)}, not {mode!r}")
    if padding_mode not in _PADDINGS:
        raise ArgumentError(f"grid_sample: padding_mode must be one of {', '.join(_PADDINGS)}, not {padding_mode!r}")
    if rank not in (2, 3) or grid.ndim != input.ndim or grid.shape[-1] != rank or grid.shape[0] != input.shape[0]:
        raise ShapeError(f"grid_sample: an input {input.spec} and a grid {grid.spec} do not fit",
                         fix="They must be (N, C, *sizes) and (N, *counts, number of sizes).")  # fmt: skip
    if input.dtype is not grid.dtype:
        raise DTypeError(f"grid_sample: input and grid must have one dtype, not {input.dtype} and {grid.dtype}",
                         fix=f"Convert the grid with .to(wf.{input.dtype.name}).")  # fmt: skip
    if mode == "bicubic" and rank != 2:
        raise OperationError("grid_sample: 'bicubic' is for images of two dimensions")
    if 0 in input.shape[2:]:
        raise OperationError(f"grid_sample: the sizes of the input must not be zero, this is {input.spec}")


# -- places -----------------------------------------------------------------------------------------------------


def _pixels(place: Tensor, size: int, aligned: bool) -> Tensor:
    """From -1 … 1 to numbers of pixels; -1 is the first pixel's centre if aligned, else its edge."""
    return (place + 1) / 2 * (size - 1) if aligned else ((place + 1) * size - 1) / 2


def _into(at: Tensor, size: int, padding_mode: str, aligned: bool) -> Tensor:
    """Places outside brought in, by the edge or by reflection."""
    if padding_mode == "zeros":
        return at
    if padding_mode == "reflection":
        low, high = (0.0, size - 1.0) if aligned else (-0.5, size - 0.5)
        at = _reflected(at, low, high - low)
    limit = m.zeros_like(at) + (size - 1)
    at = m.where(at <= 0, m.zeros_like(at), at)
    return m.where(at >= limit, limit, at)  # type: ignore[no-any-return]


def _reflected(at: Tensor, low: float, span: float) -> Tensor:
    if span == 0:
        return m.zeros_like(at)  # type: ignore[no-any-return]
    distance = at - low
    distance = m.where(distance < 0, -distance, distance)
    flips = m.floor(distance / span)
    rest = distance - flips * span
    back = m.floor(flips / 2) * 2 != flips
    return m.where(back, span - rest, rest) + low  # type: ignore[no-any-return]


def _read(flat: Tensor, places: Sequence[Tensor], sizes: tuple[int, ...]) -> Tensor:
    """The pixels at whole places (floats); zeros outside."""
    number: Any = 0
    inside: Any = None
    for place, size in zip(places, sizes, strict=True):
        within = m.logical_and(place >= 0, place <= size - 1)
        inside = within if inside is None else m.logical_and(inside, within)
        safe = m.where(within, place, m.zeros_like(place))
        number = number * size + m.cast(safe, dtype=int64)
    shape = (*flat.shape[:2], number.shape[1])
    index = m.expand(m.reshape(number, shape=(shape[0], 1, shape[2])), shape=shape)
    values = m.gather(flat, index, dim=2)
    return m.where(m.reshape(inside, shape=(shape[0], 1, shape[2])), values, m.zeros_like(values))  # type: ignore[no-any-return]


def _row(weight: Tensor) -> Tensor:
    """A weight per place, the same for all channels."""
    return m.reshape(weight, shape=(weight.shape[0], 1, weight.shape[1]))  # type: ignore[no-any-return]


# -- modes ------------------------------------------------------------------------------------------------------


def _linearly(flat: Tensor, at: Sequence[Tensor], sizes: tuple[int, ...]) -> Tensor:
    first = [m.floor(a) for a in at]
    share = [a - f for a, f in zip(at, first, strict=True)]
    total: Any = None
    for corner in itertools.product((0, 1), repeat=len(sizes)):
        places = [f + c for f, c in zip(first, corner, strict=True)]
        weight: Any = None
        for s, c in zip(share, corner, strict=True):
            part = s if c else 1 - s
            weight = part if weight is None else weight * part
        term = _read(flat, places, sizes) * _row(weight)
        total = term if total is None else total + term
    return total  # type: ignore[no-any-return]


def _cubic_weights(share: Tensor, a: float = -0.75) -> list[Tensor]:
    """Keys' cubic convolution kernel at the four neighbours."""

    def near(d: Tensor) -> Tensor:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Tensor) -> Tensor:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(share + 1), near(share), near(1 - share), far(2 - share)]


def _by_cubics(flat: Tensor, at: Sequence[Tensor], sizes: tuple[int, ...], padding_mode: str, aligned: bool) -> Tensor:
    first = [m.floor(a) for a in at]
    weights = [_cubic_weights(a - f) for a, f in zip(at, first, strict=True)]
    total: Any = None
    for row, column in itertools.product(range(4), repeat=2):
        places = [
            _into(f + (tap - 1), size, padding_mode, aligned)
            for f, tap, size in zip(first, (row, column), sizes, strict=True)
        ]
        term = _read(flat, places, sizes) * _row(weights[0][row] * weights[1][column])
        total = term if total is None else total + term
    return total  # type: ignore[no-any-return]


def _positions(count: int, align_corners: bool, kind: Any) -> Any:
    """Where the pixels of a side lie, from -1 to 1, to the last bit as in PyTorch.

    A map that leaves the image as it is puts every point right on a pixel, and there the gradient of `grid_sample` is
    that of the one side or the other: rounding decides. So the steps are rounded once, from both ends.
    """
    if count == 1:
        return np.zeros(1, kind)
    step = kind(2) / kind(count - 1)
    wide = np.longdouble if kind is np.float64 else np.float64
    at = np.arange(count)
    from_left, from_right = -1 + wide(step) * at, 1 - wide(step) * (count - 1 - at)
    steps = np.where(at < count // 2, from_left, from_right).astype(kind)
    return steps if align_corners else steps * kind(count - 1) / kind(count)


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """The grid that `grid_sample` needs to map an image of `size` (N, C, *sizes) by the matrices `theta`
    (N, dimensions, dimensions + 1)."""
    sizes = tuple(size)[2:]
    if len(sizes) not in (2, 3) or tuple(theta.shape) != (size[0], len(sizes), len(sizes) + 1):
        raise ShapeError(f"affine_grid: matrices {theta.spec} do not fit a size of {list(size)}")
    if min(size) < 1:
        raise OperationError(f"affine_grid: sizes must be positive, they are {list(size)}")
    axes = [_positions(count, bool(align_corners), theta.dtype.numpy.type) for count in sizes]
    mesh = np.meshgrid(*axes, indexing="ij")[::-1]
    base = np.stack([*mesh, np.ones(sizes)], -1).reshape(1, -1, len(sizes) + 1)
    transposed = m.permute(theta, dims=(0, 2, 1))
    out = m.matmul(on_device_of(theta, base.astype(theta.dtype.numpy)), transposed)
    return m.reshape(out, shape=(size[0], *sizes, len(sizes)))  # type: ignore[no-any-return]


def grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """`grid_sample` with its modes as numbers, in the order in which its message lists them."""
    if interpolation_mode not in range(3) or padding_mode not in range(3):
        raise ArgumentError(f"grid_sampler: the modes must be 0, 1 or 2, not {interpolation_mode} and {padding_mode}")
    return grid_sample(input, grid, _MODES[interpolation_mode], _PADDINGS[padding_mode], align_corners)
