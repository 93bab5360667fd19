"""Indexing by integers and slices: views, and the record that puts their gradients back.

A basic index is kept as a tuple with, per entry, an int, None for a new dimension, or (start, stop, step) for a
slice: hashable, non-negative, dimensions left out at the end are taken whole.

Gradients come back as `Rows`, so that reading one row of a large array costs one row.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from wayfare.codegen.routines.rows import Part, Rows
from wayfare.core.errors import IndexRangeError
from wayfare.core.numpy_math import Array
from wayfare.core.op import Sample
from wayfare.core.signature import COUNT, DIM, INDEX, INT, SIZES, STEP
from wayfare.core.spec import Shape
from wayfare.ops._define import movement
from wayfare.ops.movement import onnx_rules as rules

Entry = int | None | tuple[int, int, int]
Index = tuple[Entry, ...]

_ALL = slice(None)


@lru_cache(maxsize=4096)
def numpy_index(index: Index) -> tuple[Any, ...]:
    """The NumPy form of a basic index. It ends in an Ellipsis so that one element, too, comes back as a view."""
    return (*(slice(*entry) if entry.__class__ is tuple else entry for entry in index), Ellipsis)


def whole(shape: Shape, dim: int) -> Index:
    """The basic index that takes the first `dim` dimensions whole."""
    return tuple((0, size, 1) for size in shape[:dim])


def _select_shape(x: Shape, *, dim: int, index: int) -> Shape:
    if not 0 <= index < x[dim]:
        raise IndexRangeError(f"select: index {index} is out of range for dimension {dim} of size {x[dim]}")
    return x[:dim] + x[dim + 1 :]


def _select_samples(rng: Any) -> Iterable[Sample]:
    yield Sample((rng.normal(size=(3, 4)),), {"dim": 0, "index": 1})
    yield Sample((rng.normal(size=(3, 4)).T,), {"dim": 1, "index": 2})
    yield Sample((rng.normal(size=(5,)),), {"dim": 0, "index": 4})
    yield Sample((rng.normal(size=(2, 0, 3)),), {"dim": 2, "index": 0})


select = movement(
    "select",
    attrs={"index": INT, "dim": DIM},
    moves="part",
    onnx=rules.select,
    forward=lambda x, *, dim, index: x[index, ...] if dim == 0 else x[(_ALL,) * dim + (index, Ellipsis)],
    shape=_select_shape,
    vjp=lambda m, g, _y, x_spec, *, dim, index: m.place(
        g, shape=x_spec.shape, index=(*whole(x_spec.shape, dim), index)
    ),
    reference=lambda x, dim, index: np.take(x, index, axis=dim),
    samples=_select_samples,
)


def _slice(x: Array, *, dim: int, start: int, stop: int, step: int) -> Array:
    part = slice(start, stop, step)
    return x[part] if dim == 0 else x[(_ALL,) * dim + (part,)]


def _length(start: int, stop: int, step: int) -> int:
    """len(range(start, stop, step)) by arithmetic: a size may be symbolic, and `range` would make it a plain number."""
    return max(-((start - stop) // step), 0)


def _part(size: int, start: int, stop: int, step: int) -> int:
    """How many of `size` elements a slice takes. It must lie inside them: callers make sure of that."""
    if stop > size or start < 0 or stop < 0 or step < 1:
        raise IndexRangeError(f"slice: {start}:{stop}:{step} is not inside a dimension of size {size}")
    return _length(start, stop, step)


def _slice_samples(rng: Any) -> Iterable[Sample]:
    yield Sample((rng.normal(size=(5, 3)),), {"dim": 0, "start": 1, "stop": 4, "step": 1})
    yield Sample((rng.normal(size=(3, 7)),), {"dim": 1, "start": 0, "stop": 7, "step": 3})
    yield Sample((rng.normal(size=(4, 6)).T,), {"dim": 1, "start": 3, "stop": 4, "step": 2})
    yield Sample((rng.normal(size=(4,)),), {"dim": 0, "start": 2, "stop": 2, "step": 1})


slice_ = movement(
    "slice",
    attrs={"step": STEP, "stop": COUNT, "dim": DIM, "start": COUNT},
    moves="part",
    onnx=rules.slice_,
    forward=_slice,
    shape=lambda x, *, dim, start, stop, step: (*x[:dim], _part(x[dim], start, stop, step), *x[dim + 1 :]),
    vjp=lambda m, g, _y, x_spec, *, dim, start, stop, step: m.place(
        g, shape=x_spec.shape, index=(*whole(x_spec.shape, dim), (start, stop, step))
    ),
    reference=lambda x, dim, start, stop, step: np.take(x, list(range(start, stop, step)), axis=dim),
    samples=_slice_samples,
)


def _basic_shape(x: Shape, *, index: Index) -> Shape:
    shape: list[int] = []
    dim = 0
    for entry in index:
        if entry is None:
            shape.append(1)
            continue
        if entry.__class__ is tuple:
            shape.append(_part(x[dim], *entry))
        dim += 1
    return (*shape, *x[dim:])


def _behind_batch(attrs: dict[str, Any], size: int) -> dict[str, Any]:
    moved = {"index": ((0, size, 1), *attrs["index"])}
    return moved | {"shape": (size, *attrs["shape"])} if "shape" in attrs else moved


def _basic_samples(rng: Any) -> Iterable[Sample]:
    yield Sample((rng.normal(size=(3, 4, 2)),), {"index": ((0, 3, 2), 1)})
    yield Sample((rng.normal(size=(3, 4, 2)).T,), {"index": (None, 1, None, (1, 4, 1), 2)})
    yield Sample((rng.normal(size=(3,)),), {"index": (2,)})
    yield Sample((rng.normal(size=()),), {"index": (None,)})
    yield Sample((rng.normal(size=(2, 3)),), {"index": ((1, 1, 1), 0)})


def _basic_reference(x: Array, index: Index) -> Array:
    """By lists of numbers, one dimension after the other."""
    dim = 0
    for entry in index:
        if entry is None:
            x = np.expand_dims(x, dim)
        elif isinstance(entry, tuple):
            x = np.take(x, list(range(*entry)), axis=dim)
        else:
            x = np.take(x, entry, axis=dim)
            continue
        dim += 1
    return x


# Any mix of integers, slices and None, as one view.
basic_index = movement(
    "basic_index",
    attrs={"index": INDEX},
    moves="part",
    onnx=rules.basic_index,
    forward=lambda x, *, index: x[numpy_index(index)],
    shape=_basic_shape,
    vjp=lambda m, g, _y, x_spec, *, index: m.place(g, shape=x_spec.shape, index=index),
    reference=_basic_reference,
    samples=_basic_samples,
    shift=_behind_batch,
    grad_name="SliceBackward0",
)


def _place(g: Array, *, shape: Shape, index: Index) -> Array:
    out = np.zeros(shape, g.dtype)
    out[numpy_index(index)] = g
    return out


def _place_reference(g: Array, shape: Shape, index: Index) -> Array:
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    return np.bincount(_basic_reference(numbers, index).ravel(), g.ravel(), numbers.size).reshape(shape)


# Zeros with values at a basic index: the adjoint of the three views above.
place = movement(
    "place",
    attrs={"index": INDEX, "shape": SIZES},
    fusible_gradient=True,
    onnx=rules.place,
    forward=_place,
    shape=lambda g, *, shape, index: tuple(shape),
    vjp=lambda m, g, _y, _x, *, shape, index: m.basic_index(g, index=index),
    reference=_place_reference,
    samples=lambda rng: [
        Sample((rng.normal(size=(2, 2)),), {"shape": (3, 4, 2), "index": ((0, 3, 2), 1)}),
        Sample((rng.normal(size=(1, 3)),), {"shape": (2, 4), "index": (1, None, (0, 3, 1))}),
    ],
    shift=_behind_batch,
    view=False,
    sparse=lambda g, *, shape, index: Rows(shape, g.dtype, [Part(numpy_index(index), g, True)]),
)
