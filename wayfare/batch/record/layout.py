"""The strides that results would have in the plain loop, found without running ops on the examples.

In a group's result all rows are C-contiguous. In the loop the result of an op on a transposed tensor is transposed too,
and `stride()`, `view()` and NumPy show that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wayfare.batch.record.call import Array, Row, Strides
from wayfare.core.op import Op
from wayfare.ir.layout import layouts_of_results, probe


def layouts(op: Op, attrs: dict[str, Any], rows: Sequence[Row], count: int) -> list[Strides | None]:
    """The strides of an op's outputs; None for each that is C-contiguous. Ops of other devices keep the same strides as
    those of the CPU, but windows are copies there."""
    none: list[Strides | None] = [None] * count
    if not op.view and not any([row.layout is not None for row in rows]):
        return none
    if op.moves == "strides" and not rows[0].memory.is_host:
        return none
    return layouts_of_results(op, attrs, [(row.shape, row.dtype, row.layout or row.strides) for row in rows], count)


def probe_array(row: Row) -> Array:
    """An array of one element with the shape and the strides that a row would have in the loop."""
    return probe(row.shape, row.dtype, row.layout or row.strides)


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
