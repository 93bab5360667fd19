"""ONNX rules of movement ops: reshapes, views, slices, padding, joins."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wayfare.core.op import REGISTRY
from wayfare.core.spec import int64

_END = np.iinfo(np.int64).max
_BEGIN = np.iinfo(np.int64).min


# -- shapes -----------------------------------------------------------------------------------------------------------


def reshape(b: Any, x: Any, *, shape: tuple[int, ...]) -> Any:
    """Squeeze or Unsqueeze if only dimensions of size 1 change; else Reshape, with a constant shape if possible."""
    old, new = tuple(x.shape), tuple(shape)
    if b.same_sizes(old, new):
        return x
    ones_of_old, ones_of_new = _ones(b, old), _ones(b, new)
    if not ones_of_old and b.same_sizes(old, _without(new, ones_of_new)):
        return b.node("Unsqueeze", x, ones_of_new)
    if not ones_of_new and b.same_sizes(_without(old, ones_of_old), new):
        return b.node("Squeeze", x, ones_of_old)
    short = _short_form(b, old, new)
    if short is not None:
        return b.node("Reshape", x, short)
    return b.node("Reshape", x, b.sizes(new), **({"allowzero": 1} if _has_zero(b, new) else {}))


def _ones(b: Any, shape: tuple[int, ...]) -> list[int]:
    return [axis for axis, n in enumerate(shape) if not b.varies(n) and n == 1]


def _without(shape: tuple[int, ...], axes: list[int]) -> tuple[int, ...]:
    return tuple(n for axis, n in enumerate(shape) if axis not in axes)


def _has_zero(b: Any, shape: tuple[int, ...]) -> bool:
    return any(not b.varies(n) and n == 0 for n in shape)


def _short_form(b: Any, old: tuple[int, ...], new: tuple[int, ...]) -> list[int] | None:
    """A constant shape for Reshape: 0 for a size that is copied from the input, -1 for one that is inferred."""
    if not any(b.varies(n) for n in new) or _has_zero(b, new):
        return None
    stays = [axis < len(old) and b.same_sizes((old[axis],), (n,)) for axis, n in enumerate(new)]
    moved = [axis for axis, n in enumerate(new) if b.varies(n) and not stays[axis]]
    # Not both: with an empty batch (size 0) nothing can be inferred.
    copies = any(b.varies(n) and stay for n, stay in zip(new, stays, strict=True))
    if len(moved) > 1 or (moved and copies):
        return None
    return [-1 if axis in moved else 0 if b.varies(n) else n for axis, n in enumerate(new)]


def permute(b: Any, x: Any, *, dims: tuple[int, ...]) -> Any:
    """Another order of the dimensions."""
    return b.node("Transpose", x, perm=list(dims)) if dims != tuple(range(len(dims))) else x


# -- parts ------------------------------------------------------------------------------------------------------------


def select(b: Any, x: Any, *, dim: int, index: int) -> Any:
    """One index of a dimension, which is removed."""
    if b.same_sizes((index,), (x.shape[dim] - 1,)) and b.varies(index):
        index = -1
    return b.node("Gather", x, b.number(index, int64), axis=dim)


def slice_(b: Any, x: Any, *, dim: int, start: int, stop: int, step: int) -> Any:
    """A range of a dimension."""
    return b.node("Slice", x, [start], [_stop(b, x, dim, stop)], [dim], [step])


def _stop(b: Any, x: Any, dim: int, stop: int) -> int:
    """A `stop` at the end of a dimension as a constant that is valid for all sizes."""
    return _END if b.varies(x.shape[dim]) and b.same_sizes((stop,), (x.shape[dim],)) else stop


def basic_index(b: Any, x: Any, *, index: tuple[Any, ...]) -> Any:
    """One Slice for all ranges and integers, then Squeeze of the integers' dimensions and Unsqueeze of new ones."""
    parts: list[tuple[int, int, int, int]] = []
    gone: list[int] = []
    fresh: list[int] = []
    dim = place = 0
    for entry in index:
        if entry is None:
            fresh.append(place)
            place += 1
            continue
        if isinstance(entry, tuple):
            start, stop, step = entry
            if not (_is(b, start, 0) and _is(b, step, 1) and b.same_sizes((stop,), (x.shape[dim],))):
                parts.append((start, _stop(b, x, dim, stop), dim, step))
            place += 1
        else:
            last = b.varies(entry) and b.same_sizes((entry,), (x.shape[dim] - 1,))
            parts.append((-1, _END, dim, 1) if last else (entry, entry + 1, dim, 1))
            gone.append(dim)
        dim += 1
    if parts:
        starts, stops, axes, steps = (list(column) for column in zip(*parts, strict=True))
        x = b.node("Slice", x, starts, stops, axes, steps)
    if gone:
        x = b.node("Squeeze", x, gone)
    return b.node("Unsqueeze", x, fresh) if fresh else x


def _is(b: Any, n: Any, number: int) -> bool:
    return not b.varies(n) and n == number


def numbered(b: Any, shape: tuple[int, ...]) -> Any:
    """The numbers 0, 1, 2, … in a shape: moving them like the elements shows which element goes where."""
    return b.ops.reshape(b.counting(math.prod(shape)), shape=tuple(shape))


def put(b: Any, base: Any, places: Any, values: Any, reduction: str = "none") -> Any:
    """`base` with `values` written (or added) at flat indices."""
    shape = base.shape
    flat = b.ops.reshape(base, shape=(math.prod(shape),))
    places = b.ops.reshape(places, shape=(math.prod(places.shape),))
    values = b.ops.reshape(values, shape=(math.prod(values.shape),))
    made = b.node("ScatterElements", flat, places, values, axis=0, reduction=reduction, shape=flat.shape)
    return b.ops.reshape(made, shape=tuple(shape))


def place(b: Any, x: Any, *, shape: tuple[int, ...], index: tuple[Any, ...]) -> Any:
    """Zeros with values at a basic index."""
    return put(b, b.full(shape, 0, x.dtype), b.ops.basic_index(numbered(b, shape), index=index), x)


def look_through(b: Any, x: Any, *, path: Any) -> Any:
    """A chain of views, one after the other."""
    for name, attrs in path:
        x = b.apply(REGISTRY[name], [x], dict(attrs))
    return x


def write_through(b: Any, x: Any, part: Any, *, path: Any) -> Any:
    """The base of a chain of views, with the viewed part replaced."""
    return put(b, x, look_through(b, numbered(b, x.shape), path=path), part)


# -- diagonals and triangles ------------------------------------------------------------------------------------------


def diagonal(b: Any, x: Any, *, offset: int, dim1: int, dim2: int) -> Any:
    """The two dimensions flattened: the diagonal is every (columns + 1)-th element."""
    rest = tuple(d for d in range(x.ndim) if d not in (dim1, dim2))
    rows, columns = x.shape[dim1], x.shape[dim2]
    permuted = b.ops.permute(x, dims=(*rest, dim1, dim2))
    flat = b.ops.reshape(permuted, shape=(*(x.shape[d] for d in rest), rows * columns))
    length = b.spec_of("diagonal", x, offset=offset, dim1=dim1, dim2=dim2).shape[-1]
    first = offset if offset >= 0 else -offset * columns
    return b.node("Gather", flat, b.counting(length) * (columns + 1) + first, axis=len(rest))


def place_diagonal(b: Any, x: Any, *, shape: tuple[int, ...], offset: int, dim1: int, dim2: int) -> Any:
    """Zeros with one diagonal filled in."""
    places = b.ops.diagonal(numbered(b, shape), offset=offset, dim1=dim1, dim2=dim2)
    return put(b, b.full(shape, 0, x.dtype), places, x)


def triangle(upper: int) -> Any:
    """The lower or upper triangle, zeros elsewhere."""
    return lambda b, x, *, diagonal: b.node("Trilu", x, b.number(diagonal, int64), upper=upper)


# -- another order ----------------------------------------------------------------------------------------------------


def flip(b: Any, x: Any, *, dims: tuple[int, ...]) -> Any:
    """Reversed along some dimensions."""
    count = len(dims)
    return b.node("Slice", x, [-1] * count, [_BEGIN] * count, list(dims), [-1] * count) if dims else x


def roll(b: Any, x: Any, *, shifts: tuple[int, ...], dims: tuple[int, ...]) -> Any:
    """A cyclic shift."""
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        if not b.varies(size) and (size == 0 or shift % size == 0):
            continue
        edge = size - shift % size
        back = b.node("Slice", x, [edge], [_END], [dim])
        x = b.node("Concat", back, b.node("Slice", x, [0], [edge], [dim]), axis=dim, shape=x.shape)
    return x


def pad(b: Any, x: Any, *, amounts: tuple[tuple[int, int], ...], value: float) -> Any:
    """Pad; negative amounts cut off."""
    cut = [(max(0, -a), max(0, -c), dim) for dim, (a, c) in enumerate(amounts) if a < 0 or c < 0]
    for before, after, dim in cut:
        x = b.node("Slice", x, [before], [-after if after else _END], [dim], shape=x.shape)
    grow = [max(0, a) for a, _ in amounts] + [max(0, c) for _, c in amounts]
    return b.node("Pad", x, b.sizes(grow), b.number(value, x.dtype)) if any(grow) else x


def shifted(b: Any, x: Any, *, dim: int, by: int, fill: float) -> Any:
    """A shift: padded at one end, cut off by the same amount at the other."""
    before = [max(by, 0) if d == dim else 0 for d in range(x.ndim)]
    after = [max(-by, 0) if d == dim else 0 for d in range(x.ndim)]
    padded = b.node("Pad", x, before + after, b.number(fill, x.dtype))
    if by >= 0:
        return b.node("Slice", padded, [0], [x.shape[dim]], [dim])
    return b.node("Slice", padded, [-by], [_END], [dim])


# -- windows ----------------------------------------------------------------------------------------------------------


def unfold(b: Any, x: Any, *, dim: int, size: int, step: int) -> Any:
    """Sliding windows along a dimension; the positions inside a window become the last dimension."""
    count = (x.shape[dim] - size) // step + 1
    starts = b.ops.reshape(b.counting(count) * step, shape=(count, 1))
    found = b.node("Gather", x, starts + np.arange(size), axis=dim)
    rank = x.ndim + 1
    order = (*(d for d in range(rank) if d != dim + 1), dim + 1)
    return b.node("Transpose", found, perm=list(order)) if order != tuple(range(rank)) else found


def fold_back(b: Any, x: Any, *, shape: tuple[int, ...], dim: int, step: int) -> Any:
    """The adjoint of unfold: overlapping windows are summed."""
    places = b.ops.unfold(numbered(b, shape), dim=dim, size=x.shape[-1], step=step)
    return put(b, b.full(shape, 0, x.dtype), places, x, "add")


def as_strided(b: Any, x: Any, *, size: Any, stride: Any, offset: int, layout: Any) -> Any:
    """By the index of each element in memory, so the layout must not have dynamic sizes."""
    if any(b.varies(n) for n in (*x.shape, *size, *stride, *layout, offset)):
        raise b.refuse("where its elements lie depends on a size that varies; use narrow, unfold or reshape")
    memory = {int(at): number for number, at in enumerate(memory_places(x.shape, layout).ravel())}
    wanted = (memory_places(size, stride) + offset).ravel().tolist()
    if any(at not in memory for at in wanted):
        raise b.refuse("it reads memory outside the tensor")
    flat = b.ops.reshape(x, shape=(math.prod(x.shape),))
    index = np.array([memory[at] for at in wanted], np.int64).reshape(tuple(size))
    return b.node("Gather", flat, index, axis=0)


def add_strided(b: Any, g: Any, *, shape: Any, stride: Any, offset: int, layout: Any) -> Any:
    """The gradient of as_strided: summed into memory, then read in the layout of the input; overlapping elements share
    the sum."""
    if any(b.varies(n) for n in (*g.shape, *shape, *stride, *layout, offset)):
        raise b.refuse("where its elements lie depends on a size that varies; use narrow, unfold or reshape")
    source, wanted = memory_places(shape, layout), memory_places(g.shape, stride) + offset
    length = int(max(source.max(initial=0), wanted.max(initial=0))) + 1
    flat = b.ops.reshape(g, shape=(math.prod(g.shape),))
    memory = b.ops.scatter_add(b.full((length,), 0, g.dtype), b.constant(wanted.ravel()), flat, dim=0)
    shares = np.bincount(source.ravel(), minlength=length)[source]
    made = b.node("Gather", memory, np.array(source), axis=0, shape=tuple(shape))
    return made if shares.max(initial=1) <= 1 else made / b.constant(shares.astype(g.dtype.numpy))


def memory_places(shape: Any, strides: Any) -> Any:
    """Where in memory each element lies, counted in elements."""
    out = np.zeros((1,) * len(shape), np.int64)
    for axis, (size, step) in enumerate(zip(shape, strides, strict=True)):
        out = out + (np.arange(size) * step).reshape((-1,) + (1,) * (len(shape) - axis - 1))
    return np.broadcast_to(out, shape)
