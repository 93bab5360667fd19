"""Does one tensor alone see its memory?

It is the only question the library asks about reference counts. No local name is part of a count, because versions of
Python differ in how they count those: what a slot gives out is counted where it is given out, and compared with the
count of memory that nobody else holds, taken in the same way when the library is imported.
"""

from __future__ import annotations

from sys import getrefcount
from typing import Any

import numpy as np

from wayfare.core.buffer_pool import owns_memory
from wayfare.core.tensor import Tensor, wrap


def _counts(tensor: Tensor) -> tuple[int, int]:
    return getrefcount(tensor._array), getrefcount(tensor._array.base)


_ONE_HOLDER, _ONE_VIEW = _counts(wrap(np.zeros(2)[:1]))


def is_unshared(tensor: Tensor) -> bool:
    """Does nobody but this tensor see its memory? Others could write to it before it is read.

    The caller must hold the tensor only, not its array: an array with another name is taken for shared.
    """
    if getrefcount(tensor._array) > _ONE_HOLDER:
        return False
    if owns_memory(tensor._array):
        return True
    # What came from NumPy looks into an array that nobody else may hold.
    if getrefcount(tensor._array.base) > _ONE_VIEW:
        return False
    base: Any = tensor._array.base
    return owns_memory(base)
