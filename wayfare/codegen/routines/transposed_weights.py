"""Cached transposed copies of weights, for as long as no weight can change.

BLAS multiplies a few rows with a row-major matrix faster (8 rows in a third of the time). A layer's weight is used
transposed; where it is used repeatedly while no user code runs, a transposed copy pays off.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# With more rows than this, the layout of the matrix makes no difference.
MOST_ROWS = 128


class _Copies(threading.local):
    # id of a weight → (the weight, its transposed copy; None after the first use).
    copies: dict[int, tuple[Array, Array | None]] | None = None


_COPIES = _Copies()
# Threads that cache transposed weights. Callers only test whether there are any.
CACHING: set[int] = set()


class caching_transposes:
    """`with caching_transposes():` — inside, no thread writes to a weight."""

    __slots__ = ()

    def __enter__(self) -> None:
        _COPIES.copies = {}
        CACHING.add(threading.get_ident())

    def __exit__(self, *error: object) -> None:
        CACHING.discard(threading.get_ident())
        _COPIES.copies = None


def transposed(weight: Array) -> Array:
    """`weight.T`; inside `caching_transposes`, from the second use on, a C-contiguous copy."""
    copies = _COPIES.copies
    if copies is None:
        return weight.T
    found = copies.get(id(weight))
    if found is None:
        copies[id(weight)] = (weight, None)
        return weight.T
    copy = found[1]
    if copy is None:
        copy = np.ascontiguousarray(weight.T)
        copies[id(weight)] = (weight, copy)
    return copy
