"""`Rows`: a sparse gradient, stored as a sum of (index, values) parts.

Embedding lookups, indexing and slicing produce such gradients. Their cost depends on the touched part only, not on the
size of the table. They become dense on demand.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wayfare.codegen.routines import indexed
from wayfare.core import buffer_pool
from wayfare.core.numpy_math import Array
from wayfare.core.spec import BFLOAT16, NARROW_CHARS, narrowed


def add_at(dense: Array, index: Any, values: Array) -> None:
    """`dense[index] += values`, where an index that repeats adds each time. In place.

    `index` is a tuple of integer arrays and full slices. Large C-contiguous arrays are done natively. NumPy's `add.at`
    is only fast in one dimension, so otherwise the index is converted to flat indices where possible.
    """
    index = index if isinstance(index, tuple) else (index,)
    if dense.dtype.char in NARROW_CHARS and values.size > 1:
        # Sums in narrow floats would saturate: 2048 + 1 is 2048.
        wide = dense.astype(np.float32)
        add_at(wide, index, values.astype(np.float32))
        dense[...] = wide
        return
    if not dense.flags.c_contiguous or dense.ndim == 0:
        np.add.at(dense, index, values)
        return
    if dense.ndim == 1 and values.size < indexed.ADD_FROM:
        np.add.at(dense, index, values)
        return
    _check_range(dense.shape, index)
    if values.size >= indexed.ADD_FROM and _add_rows(dense, index, values):
        return
    flat = _flat_indices(dense.shape, index)
    spread = np.broadcast_to(values, flat.shape).reshape(-1)
    if not indexed.add_rows(dense.reshape(-1), flat.reshape(-1), spread):
        np.add.at(dense.reshape(-1), flat.reshape(-1), spread)


def _add_rows(dense: Array, index: tuple[Any, ...], values: Array) -> bool:
    """`add_at` in native code, if exactly one dimension is indexed by an array; else False."""
    dims = [d for d, entry in enumerate(index) if isinstance(entry, np.ndarray)]
    if len(dims) != 1:
        return False
    (dim,) = dims
    rows = wrapped(index[dim], dense.shape[dim])
    shape = (*dense.shape[:dim], *rows.shape, *dense.shape[dim + 1 :])
    return values.shape == shape and indexed.add_rows(
        dense, rows.reshape(-1), values.reshape((*dense.shape[:dim], rows.size, *dense.shape[dim + 1 :])), dim
    )


def wrapped(index: Array, size: int) -> Array:
    """The index as int64, with negative numbers wrapped."""
    index = index.astype(np.int64, copy=False)
    return np.where(index < 0, index + size, index) if index.size and index.min() < 0 else index


def _check_range(shape: tuple[int, ...], index: tuple[Any, ...]) -> None:
    """Raise IndexError for an index out of range: as a flat index it would silently hit another element."""
    for dim, entry in enumerate(index):
        if isinstance(entry, np.ndarray) and entry.size:
            if not -shape[dim] <= entry.min() <= entry.max() < shape[dim]:
                raise IndexError(f"index out of range for dimension {dim} of size {shape[dim]}")


def _flat_indices(shape: tuple[int, ...], index: tuple[Any, ...]) -> Array:
    """The flat index of every indexed element, in the shape that NumPy gives the result of indexing."""
    dims = [d for d, entry in enumerate(index) if isinstance(entry, np.ndarray)]
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    picked: Any = 0
    for dim in dims:
        entry = index[dim]
        picked = picked + np.where(entry < 0, entry + shape[dim], entry) * strides[dim]
    rest = [d for d in range(len(shape)) if d not in dims]
    at = dims[0] if dims[-1] - dims[0] + 1 == len(dims) else 0
    # The dimensions of the index arrays are inserted at `at` among the full dimensions.
    out = picked.reshape(picked.shape + (1,) * (len(rest) - at))
    for position, dim in enumerate(rest):
        behind = len(rest) - position - 1 + (picked.ndim if position < at else 0)
        out = out + (np.arange(shape[dim]) * strides[dim]).reshape((shape[dim],) + (1,) * behind)
    return out  # type: ignore[no-any-return]


# The overhead of a part, in units of one element.
_COST_OF_PART = 16


class Part:
    """Values at a NumPy index: a tuple of slices and integers (basic) or of integer arrays (advanced)."""

    __slots__ = ("basic", "index", "values")

    def __init__(self, index: Any, values: Array, basic: bool) -> None:
        self.index = index
        self.values = values
        # A basic index names each element once, so `+=` works; integer arrays may repeat.
        self.basic = basic


class Rows:
    """A sparse array of known shape and dtype: the sum of its parts."""

    __slots__ = ("_cost", "_ordered", "dtype", "parts", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], parts: list[Part]) -> None:
        self.shape = shape
        self.dtype = dtype
        self.parts = parts
        # Is there exactly one part, which indexes full rows, ascending, each once?
        self._ordered = False
        self._cost = 0
        for part in parts:
            self._cost += part.values.size + _COST_OF_PART

    @property
    def size_of_parts(self) -> int:
        """How many elements are stored."""
        return sum(part.values.size for part in self.parts)

    def absorb(self, other: Rows) -> Rows | Array:
        """Take over the parts of another. Returns a dense array once that is cheaper than the parts."""
        self.parts += other.parts
        self._ordered = False
        self._cost += other._cost
        return self.dense() if self._cost > math.prod(self.shape) + _COST_OF_PART else self

    def add_into(self, dense: Array) -> None:
        """Add all parts into a dense array, in place."""
        for part in self.parts:
            if part.basic:
                dense[part.index] += part.values
            elif part.values.size:  # without values no index is out of range
                add_at(dense, part.index, part.values)

    def dense(self) -> Array:
        """The dense array."""
        if len(self.parts) == 1 and self.parts[0].basic:
            out = np.zeros(self.shape, self.dtype)
            out[self.parts[0].index] = self.parts[0].values
            return out
        out = np.zeros(self.shape, self.dtype)
        self.add_into(out)
        return out

    def narrowed(self, dtype: np.dtype[Any]) -> Rows:
        """The same in bfloat16, if that is `dtype`; each part is rounded."""
        if dtype is not BFLOAT16:
            return self
        return Rows(self.shape, dtype, [Part(p.index, narrowed(p.values, dtype), p.basic) for p in self.parts])

    def by_row(self) -> tuple[Array, Array] | None:
        """(row numbers, values), ascending, each row once, if every part indexes full rows of dimension 0; else None.

        The values become the only part of this gradient, so that writing to them changes the gradient.
        """
        if self._ordered:
            (part,) = self.parts
            return part.index[0], part.values
        found = self._gathered()
        if found is not None:
            self.parts = [Part((found[0],), found[1], basic=False)]
            self._ordered = True
        return found

    def _gathered(self) -> tuple[Array, Array] | None:
        numbers: list[Array] = []
        values: list[Array] = []
        for part in self.parts:
            found = self._row_numbers(part)
            if found is None:
                return None
            numbers.append(found)
            values.append(part.values.reshape((found.size, *self.shape[1:])))
        unique, inverse = np.unique(np.concatenate(numbers), return_inverse=True)
        stacked = values[0] if len(values) == 1 else np.concatenate(values)
        # From the buffer pool: page faults in new memory would cost several times the work.
        rows = buffer_pool.empty((unique.size, *self.shape[1:]), self.dtype)
        if unique.size == stacked.shape[0]:
            return unique, stacked.take(np.argsort(inverse), axis=0, out=rows, mode="clip")
        rows.fill(0)
        add_at(rows, (inverse.reshape(-1),), stacked)
        return unique, rows

    def _row_numbers(self, part: Part) -> Array | None:
        index = part.index if isinstance(part.index, tuple) else (part.index,)
        behind = [i for i in index[1:] if i is not Ellipsis]
        full = [
            isinstance(i, slice) and i.indices(n) == (0, n, 1) for i, n in zip(behind, self.shape[1:], strict=False)
        ]
        if not index or len(full) < len(behind) or not all(full):
            return None
        first = index[0]
        if isinstance(first, np.ndarray):
            return np.where(first < 0, first + self.shape[0], first).reshape(-1)
        if isinstance(first, slice):
            return np.arange(*first.indices(self.shape[0]))
        if isinstance(first, (int, np.integer)):
            return np.array([first + self.shape[0] if first < 0 else first])
        return None

    def __repr__(self) -> str:
        return f"Rows(shape={list(self.shape)}, parts={len(self.parts)}, numbers={self.size_of_parts})"
