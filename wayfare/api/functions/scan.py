"""Running sums, products and extremes; differences, and integrals by the trapezoidal rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wayfare.api.functions._along import ValuesAndIndices, along, cast_first, cast_last, check_tensor
from wayfare.api.functions._public import as_dtype_of, method
from wayfare.api.functions.reduce import sum as total
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentError, ArgumentTypeError, OperationError
from wayfare.core.op import REGISTRY
from wayfare.core.spec import bool_, default_dtype, normal_dim, normal_dims, promote
from wayfare.core.tensor import Tensor

__all__ = [
    "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp",
    "diff", "gradient", "trapezoid", "trapz", "cumulative_trapezoid",
]  # fmt: skip


def _accumulated(name: str, input: Tensor, dim: int, dtype: Any) -> Tensor:
    input = cast_first(name, input, dtype)
    if input.ndim == 0:  # nothing to run along: the one element itself, in the dtype of a sum
        normal_dim(name, dim, 0)
        return cast_last(total(input), dtype)
    return cast_last(along(REGISTRY[name], input, dim, name, reverse=False), dtype)


@method(inplace=True)
def cumsum(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """The running sum along `dim`; bools and integers are summed in int64."""
    return _accumulated("cumsum", input, dim, dtype)


@method(inplace=True)
def cumprod(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """The running product along `dim`; bools and integers are multiplied in int64."""
    return _accumulated("cumprod", input, dim, dtype)


def _running_extreme(name: str, input: Tensor, dim: int) -> ValuesAndIndices:
    check_tensor(name, input)
    if 0 in input.shape and isinstance(dim, int):
        dim = 0  # nothing to run along: as in PyTorch, which dimension it is does not matter
    return ValuesAndIndices(*along(REGISTRY[name], input, dim, name))


@method
def cummax(input: Tensor, dim: int) -> ValuesAndIndices:
    """The largest element so far along `dim`, and where it was (the last of equals)."""
    return _running_extreme("cummax", input, dim)


@method
def cummin(input: Tensor, dim: int) -> ValuesAndIndices:
    """The smallest element so far along `dim`, and where it was (the last of equals)."""
    return _running_extreme("cummin", input, dim)


@method
def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """`log(cumsum(exp(input)))` along `dim`, without overflow."""
    check_tensor("logcumsumexp", input)
    if not input.dtype.is_floating_point:
        input = as_dtype_of(input, default_dtype())
    return along(REGISTRY["logcumsumexp"], input, dim, "logcumsumexp")  # type: ignore[no-any-return]


# -- differences --------------------------------------------------------------------------------------------------


def _part(input: Tensor, dim: int, start: int, stop: int) -> Tensor:
    return input.narrow(dim, start, max(stop - start, 0))


@method
def diff(
    input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """Differences of neighbours along `dim`, taken `n` times."""
    check_tensor("diff", input)
    if input.ndim == 0:
        raise OperationError("diff: needs a tensor of at least one dimension, this one has none")
    if n < 0:
        raise OperationError(f"diff: n must not be negative, it is {n}")
    d = normal_dim("diff", dim, input.ndim)
    if n == 0:
        return apply(REGISTRY["clone"], (input,))  # type: ignore[no-any-return]
    ends = [t for t in (prepend, input, append) if t is not None]
    if len(ends) > 1:
        common = input.dtype
        for t in ends:
            common = promote(common, t.dtype)
        ends = [as_dtype_of(t, common) for t in ends]
        joined = REGISTRY["cat"]
        input = apply(joined, tuple(ends), {"dim": d})
    for _ in range(n):
        size = input.shape[d]
        if size == 0:  # it stays empty
            break
        later, earlier = _part(input, d, min(1, size), size), _part(input, d, 0, size - 1)
        input = later != earlier if input.dtype is bool_ else later - earlier
    return input


def gradient(
    input: Tensor, *, spacing: Any = 1, dim: int | Sequence[int] | None = None, edge_order: int = 1
) -> tuple[Tensor, ...]:
    """The slope along each of `dim` (all by default), by central differences inside and one-sided ones at the ends.

    `spacing` is one distance for all dimensions, a list with one for each, or tensors with the coordinates.
    """
    check_tensor("gradient", input)
    if edge_order not in (1, 2):
        raise OperationError(f"gradient: edge_order must be 1 or 2, it is {edge_order}")
    dims = list(normal_dims("gradient", None, input.ndim)) if dim is None else _dims_in_order(input, dim)
    if spacing is None:
        spacing = 1
    if isinstance(spacing, Tensor) and spacing.ndim == 0:
        spacing = spacing.item()
    if isinstance(spacing, Tensor):
        spacings: list[Any] = [spacing]
    elif isinstance(spacing, (list, tuple)):
        spacings = list(spacing)
    else:
        spacings = [spacing] * len(dims)
    if len(spacings) != len(dims):
        raise OperationError(f"gradient: {len(dims)} dimensions need {len(dims)} spacings, {len(spacings)} were given")
    for d in dims:
        if input.shape[d] < edge_order + 1:
            raise OperationError(f"gradient: dimension {d} of {input.spec} needs at least {edge_order + 1} elements "
                                 f"for edge_order={edge_order}")  # fmt: skip
    return tuple(_slope(input, d, space, edge_order) for d, space in zip(dims, spacings, strict=True))


def _dims_in_order(input: Tensor, dim: int | Sequence[int]) -> list[int]:
    given = list(dim) if isinstance(dim, (list, tuple)) else [dim]
    dims = [normal_dim("gradient", d, input.ndim) for d in given]
    if len(set(dims)) != len(dims):
        raise OperationError(f"gradient: a dimension is named twice in dim={dim}")
    return dims


def _slope(x: Tensor, d: int, spacing: Any, edge_order: int) -> Tensor:
    size = x.shape[d]
    if not isinstance(spacing, Tensor):
        steps: Any = None
        gap = float(spacing)
        near_start, near_end = (gap, gap), (gap, gap)
    else:
        if spacing.ndim != 1 or spacing.shape[0] != size:
            raise OperationError(f"gradient: coordinates of {spacing.spec} do not fit dimension {d} of {x.spec}")
        column = [1] * x.ndim
        column[d] = size - 1
        steps = diff(spacing).reshape(column)
        numbers = diff(spacing).tolist()
        near_start, near_end = (numbers[0], numbers[min(1, size - 2)]), (numbers[-1], numbers[max(size - 3, 0)])
    parts = [_edge(x, d, near_start, edge_order, 0, 1)]
    if size > 2:
        after, here, before = _part(x, d, 2, size), _part(x, d, 1, size - 1), _part(x, d, 0, size - 2)
        if steps is None:
            parts.append((after - before) / (2 * gap))
        else:
            left, right = _part(steps, d, 0, size - 2), _part(steps, d, 1, size - 1)
            parts.append(
                after * (left / (right * (left + right)))
                + here * ((right - left) / (left * right))
                - before * (right / (left * (left + right)))
            )
    parts.append(_edge(x, d, near_end, edge_order, size - 1, -1))
    return apply(REGISTRY["cat"], tuple(parts), {"dim": d})  # type: ignore[no-any-return]


def _edge(x: Tensor, d: int, gaps: tuple[float, float], order: int, at: int, step: int) -> Tensor:
    """The one-sided slope at an end, from the two or three outermost elements."""
    end, second = _part(x, d, at, at + 1), _part(x, d, at + step, at + step + 1)
    h, k = gaps
    if order == 1:
        return (second - end) * (step / h)
    third = _part(x, d, at + 2 * step, at + 2 * step + 1)
    sides = end * (-(2 * h + k) / (h * (h + k))) + second * ((h + k) / (h * k)) - third * (h / (k * (h + k)))
    return sides if step > 0 else -sides


# -- integrals ----------------------------------------------------------------------------------------------------


def _slices(op: str, y: Tensor, x: Tensor | None, dx: float | None, dim: int) -> tuple[Tensor, int]:
    """The area of each trapezoid between neighbours."""
    check_tensor(op, y)
    if x is not None and dx is not None:
        raise ArgumentTypeError(f"{op}: x and dx mean the same: give only one of them")
    if y.ndim == 0:
        raise OperationError(f"{op}: needs a tensor of at least one dimension, this one has none")
    d = normal_dim(op, dim, y.ndim)
    size = y.shape[d]
    heights = _part(y, d, min(1, size), size) + _part(y, d, 0, size - 1)
    if x is None:
        return heights * ((1 if dx is None else dx) / 2), d
    if x.ndim == 1 and y.ndim > 1:
        if x.shape[0] != size:
            raise OperationError(f"{op}: there must be one x for each y, not {x.shape[0]} for {size}")
        widths = diff(x).reshape([size - 1 if axis == d else 1 for axis in range(y.ndim)])
    else:
        axis = d - y.ndim
        if x.ndim < -axis:
            raise ArgumentError(f"{op}: x of {x.spec} has no dimension {axis}")
        widths = diff(x, dim=axis)
    return heights * widths / 2, max(y.ndim, x.ndim) + d - y.ndim


def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float | None = None, dim: int = -1) -> Tensor:
    """The integral of `y` along `dim` by the trapezoidal rule, at places `x` or at distances `dx`."""
    areas, d = _slices("trapezoid", y, x, dx, dim)
    return total(areas, d)


trapz = trapezoid


def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float | None = None, dim: int = -1) -> Tensor:
    """The running integral of `y` along `dim` by the trapezoidal rule."""
    areas, d = _slices("cumulative_trapezoid", y, x, dx, dim)
    return cumsum(areas, d)
