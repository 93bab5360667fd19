"""How the results of ops lie in memory in the loop, found without running them on the examples.

A group keeps its rows without gaps, whatever they were computed from. In the loop the result of an op on a transposed
tensor is transposed too, and `stride()`, `view()` and NumPy see that. Where an input lies otherwise, the op is asked:
it runs once on zeros that lie as its inputs would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.batch.record.call import Array, Row, Strides
from wayfare.core.op import Op

# Bytes of an input that is made to find out; larger ones are taken to lie without gaps.
_MAX_BYTES = 1 << 20


def layouts(op: Op, attrs: dict[str, Any], rows: Sequence[Row], count: int) -> list[Strides | None]:
    """The layouts of an op's outputs: None for each that lies without gaps, the last dimension fastest."""
    none: list[Strides | None] = [None] * count
    if not op.view and not any([row.layout is not None for row in rows]):
        return none
    made = None
    for memory in (False, True) if op.view else (True,):
        try:
            with np.errstate(all="ignore"):
                made = op.forward(*[probe_array(row, memory) for row in rows], **attrs)
            break
        except Exception:  # it looks at numbers, is too large, or looks for the memory behind it
            continue
    found = made if isinstance(made, tuple) else (made,)
    return [layout_of(array) if isinstance(array, np.ndarray) else None for array in found]


def layout_of(array: Array) -> Strides | None:
    """How an array lies, if not without gaps and the last dimension fastest."""
    return None if array.flags.c_contiguous else array.strides


def probe_array(row: Row, memory: bool = False) -> Array:
    """An array that lies as a row would in the loop: of zeros, or with no memory behind it, for views only."""
    strides = row.layout or row.strides
    extent = sum([(n - 1) * s for n, s in zip(row.shape, strides, strict=True)]) // row.dtype.itemsize + 1
    if memory and (min(strides, default=0) < 0 or extent * row.dtype.itemsize > _MAX_BYTES):
        raise ValueError("too large")
    zeros = np.zeros(extent if memory else 1, row.dtype)
    return np.lib.stride_tricks.as_strided(zeros, row.shape, strides)


def copy_with_layout(array: Array, layout: Strides | None) -> Array:
    """A copy of an array that lies so."""
    if layout is not None:
        order = sorted(range(array.ndim), key=lambda dim: -layout[dim])
        transposed = np.empty([array.shape[dim] for dim in order], array.dtype)
        made = transposed.transpose([order.index(dim) for dim in range(array.ndim)])
        # The step along a dimension of size one says nothing.
        if all([n == 1 or a == b for n, a, b in zip(array.shape, made.strides, layout, strict=True)]):
            made[...] = array
            return made
    return np.array(array)
