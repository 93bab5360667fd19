"""The strides that results would have in the plain loop, found without running ops on the examples.

In a group's result all rows are C-contiguous. In the loop the result of an op on a transposed tensor is transposed too,
and `stride()`, `view()` and NumPy show that. Where an input is not C-contiguous, the op runs once on an array of zeros
with the strides of the input, and the strides of its result are noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.batch.record.call import Array, Row, Strides
from wayfare.core.op import Op

# The largest array of zeros that is made for this; the results of larger inputs count as C-contiguous.
_MAX_BYTES = 1 << 20


def layouts(op: Op, attrs: dict[str, Any], rows: Sequence[Row], count: int) -> list[Strides | None]:
    """The strides of an op's outputs; None for each that is C-contiguous. Ops of other devices keep the same strides as
    those of the CPU, but windows are copies there."""
    none: list[Strides | None] = [None] * count
    if not op.view and not any([row.layout is not None for row in rows]):
        return none
    if op.moves == "strides" and not rows[0].memory.is_host:
        return none
    made = None
    for memory in (False, True) if op.view else (True,):
        try:
            with np.errstate(all="ignore"):
                made = op.forward(*[probe_array(row, memory) for row in rows], **attrs)
            break
        except Exception:  # the op reads values, the array is too large, or the op needs real memory
            continue
    found = made if isinstance(made, tuple) else (made,)
    return [layout_of(array) if isinstance(array, np.ndarray) else None for array in found]


def layout_of(array: Array) -> Strides | None:
    """The strides of an array; None if it is C-contiguous."""
    return None if array.flags.c_contiguous else array.strides


def probe_array(row: Row, memory: bool = False) -> Array:
    """An array with the strides a row would have in the loop: of zeros, or (not `memory`) of one element, for views."""
    strides = row.layout or row.strides
    extent = sum([(n - 1) * s for n, s in zip(row.shape, strides, strict=True)]) // row.dtype.itemsize + 1
    if memory and (min(strides, default=0) < 0 or extent * row.dtype.itemsize > _MAX_BYTES):
        raise ValueError("too large")
    zeros = np.zeros(extent if memory else 1, row.dtype)
    return np.lib.stride_tricks.as_strided(zeros, row.shape, strides)


def copy_with_layout(array: Any, row: Row) -> Any:
    """A copy of the array of a row with the strides that it would have in the loop, if a dense array can have them."""
    layout = row.layout
    if layout is not None:
        order = sorted(range(array.ndim), key=lambda dim: -layout[dim])
        transposed = row.memory.empty(tuple([array.shape[dim] for dim in order]), array.dtype)
        made = transposed.transpose([order.index(dim) for dim in range(array.ndim)])
        # The stride of a dimension of size one has no meaning.
        if all([n == 1 or a == b for n, a, b in zip(array.shape, made.strides, layout, strict=True)]):
            made[...] = array
            return made
    return row.memory.copies([array], row)[0]
