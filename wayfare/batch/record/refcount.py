"""Whether a tensor is the only one that can see its memory, by reference counts.

This is the only module that reads reference counts. Versions of Python differ in whether a local variable counts as a
reference. So the counts are taken on attribute reads, with no local variable, and compared with the counts of a tensor
that certainly shares its memory with nobody, taken in the same way at import.
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
    """Whether nobody but this tensor can see its memory. If others can, they may write to it before it is read.

    The caller must hold the tensor only, not its array: another reference to the array counts as sharing.
    """
    if getrefcount(tensor._array) > _ONE_HOLDER:
        return False
    if owns_memory(tensor._array):
        return True
    # An array that came from NumPy may be a view: then nobody else may hold its base.
    if getrefcount(tensor._array.base) > _ONE_VIEW:
        return False
    base: Any = tensor._array.base
    return owns_memory(base)
