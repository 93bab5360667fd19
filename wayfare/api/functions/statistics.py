"""Quantiles, histograms, counts, and covariance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from wayfare.api.autocast import follows_autocast
from wayfare.api.functions._along import check_floating, check_tensor
from wayfare.api.functions._public import as_dtype_of, method
from wayfare.api.functions.reduce import sum as count
from wayfare.api.functions.sort import sort
from wayfare.core.autocast import FLOAT32_ON_CPU
from wayfare.core.dispatch import apply
from wayfare.core.errors import DTypeError, NotSupportedError, OperationError
from wayfare.core.numpy_math import Array
from wayfare.core.op import REGISTRY
from wayfare.core.spec import int64, normal_dim, widened
from wayfare.core.tensor import Tensor, on_device_of, to_tensor, wrap

__all__ = ["quantile", "nanquantile", "histc", "histogram", "histogramdd", "bincount", "cov", "corrcoef"]

_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


# -- quantiles ----------------------------------------------------------------------------------------------------


def _quantile(
    name: str, input: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str, ignore_nan: bool
) -> Tensor:
    check_tensor(name, input)
    check_floating(name, input)
    if interpolation not in _INTERPOLATIONS:
        raise OperationError(f"{name}: interpolation {interpolation!r} is unknown",
                             fix="Use one of " + ", ".join(_INTERPOLATIONS) + ".")  # fmt: skip
    wanted = _fractions(name, input, q)
    if 0 in input.shape:
        raise OperationError(f"{name}: there is no quantile of {input.spec}, which has no elements")
    shape = tuple(input.shape)
    if dim is None or not shape:
        if dim is not None:
            normal_dim(name, dim, 0)
        rows = input.reshape(-1)
        left: tuple[int, ...] = ()
        kept = (1,) * len(shape)
    else:
        d = normal_dim(name, dim, len(shape))
        rows = input.movedim(d, -1)
        left, kept = shape[:d] + shape[d + 1 :], shape[:d] + (1,) + shape[d + 1 :]
    ordered = sort(rows).values
    points = _positions(rows, wanted.reshape(-1), ignore_nan)
    below, above, weight = _neighbours(points, interpolation)
    out = ordered.gather(-1, below)
    if weight is not None:
        weight = as_dtype_of(weight, out.dtype)
        out = apply(REGISTRY["lerp"], (out, ordered.gather(-1, above), weight))
    return out.movedim(-1, 0).reshape((*wanted.shape, *(kept if keepdim else left)))


def _fractions(name: str, input: Tensor, q: Any) -> Tensor:
    wanted = q if isinstance(q, Tensor) else as_dtype_of(to_tensor(q, op=name), input.dtype).to(input.device)
    if wanted.dtype is not input.dtype:
        raise OperationError(f"{name}: q must have the dtype of the input, {input.dtype}, not {wanted.dtype}")
    if wanted.ndim > 1:
        raise OperationError(f"{name}: q must be a number or a vector, it has {wanted.ndim} dimensions")
    if not isinstance(q, Tensor):
        within = bool(((values := np.asarray(q)) >= 0).all() and (values <= 1).all())
    else:  # one bool, so that an executor need not give all numbers
        within = bool(((q >= 0) & (q <= 1)).all())
    if not within:
        raise OperationError(f"{name}: q must lie between 0 and 1, it is {q.tolist() if isinstance(q, Tensor) else q}")
    return wanted


def _positions(rows: Tensor, q: Tensor, ignore_nan: bool) -> Tensor:
    """Where in the sorted row (NaN last) each quantile falls: a tensor [..., number of quantiles]."""
    size = rows.shape[-1]
    counts = as_dtype_of(count((rows == rows), -1, keepdim=True), rows.dtype)
    if ignore_nan:
        return q * (counts - 1).clamp(min=0)
    # One NaN makes the quantile NaN: point at the end, where NaN stands.
    return apply(REGISTRY["where"], (counts < size, as_dtype_of(size - 1, rows.dtype), q * (size - 1)))  # type: ignore[no-any-return]


def _neighbours(points: Tensor, interpolation: str) -> tuple[Tensor, Tensor, Any]:
    """The indices on either side of each point, and the weight of the upper one (None: the lower is the answer)."""
    floor, ceil = points.detach().floor(), points.detach().ceil()
    below, above = as_dtype_of(floor, int64), as_dtype_of(ceil, int64)
    if interpolation == "lower":
        return below, above, None
    if interpolation == "higher":
        return above, above, None
    if interpolation == "nearest":
        return as_dtype_of(points.detach().round(), int64), above, None
    return below, above, 0.5 if interpolation == "midpoint" else points - floor


@method
@follows_autocast(FLOAT32_ON_CPU)
def quantile(
    input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """The `q`-th quantiles of all elements or along `dim`; a vector of `q` gives them in a new first dimension."""
    return _quantile("quantile", input, q, dim, keepdim, interpolation, False)


@method
@follows_autocast(FLOAT32_ON_CPU)
def nanquantile(
    input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """`quantile` of what is not NaN."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation, True)


# -- histograms ---------------------------------------------------------------------------------------------------


class Histogram(NamedTuple):
    """Counts (or densities), and the edges of the bins."""

    hist: Tensor
    bin_edges: Any


def _range(name: str, array: Array, low: float, high: float) -> tuple[float, float]:
    if low == high and array.size:
        low, high = float(array.min()), float(array.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise OperationError(f"{name}: the range from {low} to {high} is not finite")
    if low > high:
        raise OperationError(f"{name}: the range from {low} to {high} is empty", fix="max must not be below min.")
    return (low - 1, high + 1) if low == high else (low, high)


@method
def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Counts of elements in `bins` equal bins from `min` to `max` (the data's own range if they are equal)."""
    check_tensor("histc", input)
    if bins <= 0:
        raise OperationError(f"histc: bins must be positive, it is {bins}")
    array = input._read("histc()")
    low, high = _range("histc", array, float(min), float(max))
    array, made = widened(array), array.dtype
    counts = _bin_counts(array.reshape(-1), bins, low, high, None)
    return on_device_of(input, counts.astype(made))


def _bin_counts(values: Array, bins: int, low: float, high: float, weight: Array | None) -> Array:
    inside = (values >= low) & (values <= high)
    values = values[inside]
    kind = values.dtype.type if values.dtype.kind == "f" else np.float64
    place = ((values - kind(low)) * bins / kind(high - low)).astype(np.int64)
    place[place == bins] = bins - 1
    return np.bincount(place, None if weight is None else weight[inside], minlength=bins)


@method
def histogram(
    input: Tensor, bins: Any = 100, *, range: Sequence[float] | None = None, weight: Tensor | None = None,
    density: bool = False,
) -> Histogram:  # fmt: skip
    """A histogram in `bins` equal bins over `range`, or between the edges that a tensor `bins` gives."""
    check_tensor("histogram", input)
    check_floating("histogram", input)
    flat = input._read("histogram()").reshape(-1, 1)
    per_dim = None if range is None else [tuple(range)]
    weights = None if weight is None else _weights("histogram", input, weight, input.shape)
    edges = [bins if isinstance(bins, Tensor) else int(bins)]
    counts, made = _histogram("histogram", flat, edges, per_dim, weights, density)
    return Histogram(on_device_of(input, counts), on_device_of(input, made[0]))


def histogramdd(
    input: Tensor, bins: Any, range: Sequence[float] | None = None, weight: Tensor | None = None, density: bool = False
) -> Histogram:
    """A histogram in several dimensions: the last dimension of `input` holds the coordinates."""
    check_tensor("histogramdd", input)
    check_floating("histogramdd", input)
    if input.ndim < 2:
        raise OperationError(f"histogramdd: needs points in a tensor of two dimensions or more, this is {input.spec}")
    width = input.shape[-1]
    points = input._read("histogramdd()").reshape(-1, width)
    edges = [bins] * width if isinstance(bins, int) else list(bins)
    if len(edges) != width:
        raise OperationError(f"histogramdd: {width} coordinates need {width} bins, {len(edges)} were given")
    per_dim = None
    if range is not None:
        flat = list(range)
        per_dim = list(zip(flat[::2], flat[1::2], strict=True))
    weights = None if weight is None else _weights("histogramdd", input, weight, input.shape[:-1])
    counts, made = _histogram("histogramdd", points, edges, per_dim, weights, density)
    return Histogram(on_device_of(input, counts), tuple(on_device_of(input, e) for e in made))


def _weights(name: str, input: Tensor, weight: Tensor, shape: tuple[int, ...]) -> Array:
    if tuple(weight.shape) != tuple(shape):
        raise OperationError(f"{name}: weights of {weight.spec} do not fit an input of {input.spec}")
    if weight.dtype is not input.dtype:
        raise DTypeError(f"{name}: weight must have the dtype of the input, {input.dtype}, not {weight.dtype}")
    return weight._read(name).reshape(-1)


def _histogram(
    name: str, points: Array, bins: list[Any], ranges: Any, weights: Array | None, density: bool
) -> tuple[Array, list[Array]]:
    kind = points.dtype
    edges: list[Array] = []
    for axis, wanted in enumerate(bins):
        if isinstance(wanted, Tensor):
            edges.append(wanted._read(name))
            continue
        if wanted <= 0:
            raise OperationError(f"{name}: bins must be positive, it is {wanted}")
        low, high = ranges[axis] if ranges is not None else (0.0, 0.0)
        if ranges is None:
            column = points[:, axis]
            low, high = (float(column.min()), float(column.max())) if column.size else (0.0, 1.0)
            low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
        edges.append(np.linspace(low, high, wanted + 1, dtype=kind))
    places = []
    inside = np.ones(len(points), bool)
    for axis, edge in enumerate(edges):
        column = points[:, axis]
        place = np.searchsorted(edge, column, side="right") - 1
        place[column == edge[-1]] = len(edge) - 2
        inside &= (place >= 0) & (place < len(edge) - 1) & (column >= edge[0]) & (column <= edge[-1])
        places.append(place)
    shape = tuple(len(edge) - 1 for edge in edges)
    flat = np.ravel_multi_index([p[inside] for p in places], shape)
    counts = np.bincount(flat, None if weights is None else weights[inside], minlength=math.prod(shape))
    hist = counts.reshape(shape).astype(kind)
    if density:
        hist = hist / hist.sum()
        for axis, edge in enumerate(edges):
            hist = hist / np.diff(edge).reshape([-1 if a == axis else 1 for a in range(len(edges))])
    return hist, edges


@method
def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each of 0, 1, 2 … occurs in a vector of non-negative integers (or the sum of its `weights`)."""
    check_tensor("bincount", input)
    array = input._read("bincount()")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise NotSupportedError(f"bincount: needs a vector of integers, this is {input.spec}",
                                fix="Convert it with .long(), and .flatten() more dimensions.")  # fmt: skip
    if array.size and array.min() < 0:
        raise OperationError(f"bincount: all numbers must be non-negative, the smallest is {array.min()}")
    if minlength < 0:
        raise OperationError(f"bincount: minlength must not be negative, it is {minlength}")
    if weights is None:
        return on_device_of(input, np.bincount(array, minlength=minlength).astype(np.int64, copy=False))
    given = weights._read("bincount()")
    if given.shape != array.shape:
        raise OperationError(f"bincount: weights of {weights.spec} do not fit an input of {input.spec}")
    kind = np.float32 if given.dtype == np.float32 else np.float64
    return on_device_of(input, np.bincount(array, given, minlength=minlength).astype(kind))


# -- covariance ---------------------------------------------------------------------------------------------------


@method
def cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """The covariance matrix of variables in rows, observations in columns; `fweights` count each observation,
    `aweights` weigh it."""
    check_tensor("cov", input)
    if input.ndim > 2:
        raise OperationError(f"cov: needs at most two dimensions, this is {input.spec}")
    if not input.dtype.is_floating_point:
        input = as_dtype_of(input, wrap(np.zeros(0, np.float32)).dtype)
    rows = input.reshape(1, -1) if input.ndim < 2 else input
    count = rows.shape[1]
    weight: Tensor | None = None
    for name, given in (("fweights", fweights), ("aweights", aweights)):
        if given is not None:
            if given.ndim > 1 or given.shape.numel() != count:
                raise OperationError(f"cov: {name} of {given.spec} do not fit {count} observations")
            if name == "fweights" and given.dtype.is_floating_point:
                raise OperationError(f"cov: fweights count observations, so they are integers, not {given.spec}")
            if (given._read("cov()") < 0).any():
                raise OperationError(f"cov: {name} must not be negative")
            weight = given.reshape(-1) if weight is None else weight * given.reshape(-1)
    if weight is None:
        # Far from zero the first mean is off by its rounding; that of what is left is exact.
        centred = rows - rows.mean(1, keepdim=True)
        centred = centred - centred.mean(1, keepdim=True)
        scaled, norm = centred, float(count)
        divisor: Any = max(norm - correction, 0.0)
    else:
        total = weight.sum()
        centred = rows - (rows * weight).sum(1, keepdim=True) / total
        centred = centred - (centred * weight).sum(1, keepdim=True) / total
        scaled = centred * weight
        if aweights is None or correction == 0:
            divisor = total - correction
        else:
            divisor = total - correction * (weight * aweights.reshape(-1)).sum() / total
        divisor = divisor.clamp(min=0)
    out: Tensor = (centred @ scaled.transpose(0, 1)) / divisor
    return out.reshape(()) if rows.shape[0] == 1 else out


@method
def corrcoef(input: Tensor) -> Tensor:
    """The matrix of correlation coefficients of variables in rows, observations in columns."""
    spread = cov(input)
    if spread.ndim == 0:
        return spread / spread
    scale = spread.diagonal().sqrt()
    return (spread / scale.unsqueeze(1) / scale.unsqueeze(0)).clamp(-1, 1)
