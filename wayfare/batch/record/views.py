"""View ops whose result is a contiguous part of a row: such a view is an offset, and nothing has to run.

To find the offset, the op runs once on an array that has the row's shape and strides but no real memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.batch.record.call import Row, row_of
from wayfare.batch.record.layout import probe_array
from wayfare.core.op import Op
from wayfare.core.stand_in import StandIn
from wayfare.core.tensor import Tensor
from wayfare.ir.layout import layout_of


class PickedView:
    """Stands for a view op: integer indices of some dimensions, given as tensors that may still be lazy."""

    __slots__ = ("indices",)

    def __init__(self, indices: tuple[tuple[int, Tensor], ...]) -> None:
        self.indices = indices

    @property
    def is_waiting(self) -> bool:
        """Whether some of the indices are not computed yet."""
        return any(index.__class__ is StandIn for _, index in self.indices)

    def select(self, base: Tensor) -> Tensor:
        """The part of a tensor at these indices."""
        # The last dimension first: each `select` removes its dimension.
        for dim, index in sorted(self.indices, key=lambda pair: -pair[0]):
            base = base.select(dim, int(index))
        return base


_KNOWN_VIEWS: dict[Any, tuple[Row, int] | None] = {}
_CACHE_SIZE = 4096
_UNKNOWN: Any = object()


def contiguous_view(op: Op, attrs: dict[str, Any], attrs_key: Any, row: Row) -> tuple[Row, int] | None:
    """(row, offset in bytes) of a view of a row; None if the view is not contiguous."""
    key = (op, attrs_key, row)
    found: tuple[Row, int] | None = _KNOWN_VIEWS.get(key, _UNKNOWN)
    if found is _UNKNOWN:
        if len(_KNOWN_VIEWS) >= _CACHE_SIZE:
            _KNOWN_VIEWS.clear()
        found = _KNOWN_VIEWS[key] = _find_view(op, attrs, row)
    return found


def _find_view(op: Op, attrs: dict[str, Any], row: Row) -> tuple[Row, int] | None:
    if row.bytes == 0 or op.moves == "strides":
        return None
    base = np.lib.stride_tricks.as_strided(np.zeros(1, row.dtype), row.shape, row.strides)
    try:
        part = op.forward(base, **attrs)
        # The strides that the view would have in the loop.
        layout = None if row.layout is None else layout_of(op.forward(probe_array(row), **attrs))
    except ValueError:
        return None  # the op needs more than shape and strides
    start = part.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    inside = start >= 0 and start + part.nbytes <= row.bytes
    if not inside or not part.flags.c_contiguous or part.size == 0 or part.dtype.itemsize != row.dtype.itemsize:
        return None
    return row_of(part.shape, part.dtype, layout, row.memory), start
