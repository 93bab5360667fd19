"""Which view ops give a part of a row that lies in it without gaps: such a view is only another address.

The op itself is asked, on an array that has the row's shape and strides but no memory behind it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.batch.layout import layout_of, stand_in
from wayfare.batch.lazy import LazyTensor
from wayfare.batch.value import Row, row_of
from wayfare.core.op import Op
from wayfare.core.tensor import Tensor


class Picked:
    """In the place of a view op: places of dimensions, known when their numbers are."""

    __slots__ = ("places",)

    def __init__(self, places: tuple[tuple[int, Tensor], ...]) -> None:
        self.places = places

    @property
    def is_waiting(self) -> bool:
        """Are some of the places still to be known?"""
        return any(index.__class__ is LazyTensor for _, index in self.places)

    def look(self, base: Tensor) -> Tensor:
        """The part of a tensor at these places."""
        # From the last dimension on: each one that is picked is gone for those behind it.
        for dim, index in sorted(self.places, key=lambda place: -place[0]):
            base = base.select(dim, int(index))
        return base


_SEEN: dict[Any, tuple[Row, int] | None] = {}
_MOST = 4096
_UNKNOWN: Any = object()


def part_seen(op: Op, attrs: dict[str, Any], attrs_key: Any, row: Row) -> tuple[Row, int] | None:
    """(the part's row, bytes before it) of a view of a row; None where it has gaps."""
    key = (op, attrs_key, row)
    found: tuple[Row, int] | None = _SEEN.get(key, _UNKNOWN)
    if found is _UNKNOWN:
        if len(_SEEN) >= _MOST:
            _SEEN.clear()
        found = _SEEN[key] = _ask(op, attrs, row)
    return found


def _ask(op: Op, attrs: dict[str, Any], row: Row) -> tuple[Row, int] | None:
    if row.bytes == 0 or op.moves == "strides":
        return None
    whole = np.lib.stride_tricks.as_strided(np.zeros(1, row.dtype), row.shape, row.strides)
    try:
        part = op.forward(whole, **attrs)
        # The same of the tensor as it would lie in the loop.
        layout = None if row.layout is None else layout_of(op.forward(stand_in(row), **attrs))
    except ValueError:
        return None  # It looks at more than shape and strides.
    start = part.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    inside = start >= 0 and start + part.nbytes <= row.bytes
    if not inside or not part.flags.c_contiguous or part.size == 0 or part.dtype.itemsize != row.dtype.itemsize:
        return None
    return row_of(part.shape, part.dtype, layout), start
