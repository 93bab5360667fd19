"""NumPy's complaints about numbers (a division by zero, an overflow), and how ops stay clear of them.

An op gives inf or NaN as in PyTorch, whatever the user's `np.seterr` and warning filters say. An `np.errstate` around
every op would cost as much as a small op. So warnings about our own lines are filtered, once; and an op that raises,
because the user asked NumPy or the filters to raise, is run again inside `np.errstate`, which is right because ops are
functions. Only where much is done at one go (a backward pass, the NumPy steps of a plan) the error state is set
beforehand. A filter of the user's that shows all warnings still shows those of eager ops.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from wayfare.core.numpy_math import Array

# What NumPy raises where the user asked it to, by np.seterr(all="raise") or by a filter that makes errors of warnings.
COMPLAINTS = (FloatingPointError, RuntimeWarning)


warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"wayfare\.")


def quietly() -> np.errstate:
    """`with quietly():` — NumPy says nothing, whatever the user has set."""
    return np.errstate(all="ignore")


def in_dtype(array: Array, dtype: Any, copy: bool) -> Array:
    """`array.astype(dtype)`; what does not fit is inf, or any number, without a word."""
    try:
        return array.astype(dtype, order="K", copy=copy)
    except COMPLAINTS:
        with quietly():
            return array.astype(dtype, order="K", copy=copy)
