"""Silencing NumPy's warnings about numbers (division by zero, overflow) in ops.

An op gives inf or NaN as in PyTorch, whatever the user's `np.seterr` and warning filters are. An `np.errstate` around
every op would cost as much as a small op. So one filter hides warnings from the library's own lines; and an op that
raises, because the user told NumPy or the filters to raise, runs again inside `np.errstate` (ops are pure functions).
Only larger pieces of work (a backward pass, the NumPy steps of a plan) run inside `np.errstate` from the start. If the
user's filter shows all warnings, those of eager ops are shown too.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from wayfare.core.numpy_math import Array

# What NumPy raises after np.seterr(all="raise"), or with a filter that turns warnings into errors.
COMPLAINTS = (FloatingPointError, RuntimeWarning)


warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"wayfare\.")


def quietly() -> np.errstate:
    """`with quietly():` — no warnings or errors of NumPy about numbers, whatever the user has set."""
    return np.errstate(all="ignore")


def in_dtype(array: Array, dtype: Any, copy: bool) -> Array:
    """`array.astype(dtype)` without warnings; numbers that do not fit become inf, or any integer."""
    try:
        return array.astype(dtype, order="K", copy=copy)
    except COMPLAINTS:
        with quietly():
            return array.astype(dtype, order="K", copy=copy)
