"""Summaries of arrays in words, for errors and reports: shape, dtype, range, mean, NaN and infinities."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np

from wayfare.core.device import to_host
from wayfare.core.spec import FLOAT_KINDS, OF_NUMPY, Spec, widened

_ndarray = np.ndarray
_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)
# From this many numbers on, mean and deviation are computed from a sample of them.
_MANY = 1_000_000


def all_finite(array: Any) -> bool:
    """Are all numbers finite? Exact; one pass in the usual case."""
    dtype = array.dtype
    if dtype is _F32 or dtype is _F64:
        # A NaN or an infinity makes the sum of squares not finite. So does an overflow: then each number is checked.
        flat = array.ravel("K")
        if isfinite(flat.dot(flat)):
            return True
    elif dtype.kind not in FLOAT_KINDS:
        return True
    return bool(np.isfinite(array).all())


def has_nan(array: Any) -> bool:
    """Is there a NaN in it?"""
    return array.dtype.kind in FLOAT_KINDS and not all_finite(array) and bool(np.isnan(array).any())


def has_infinity(array: Any) -> bool:
    """Is there an infinity in it?"""
    return array.dtype.kind in FLOAT_KINDS and not all_finite(array) and bool(np.isinf(array).any())


def first_index(bad: Any) -> list[int]:
    """Where the first True of an array of truth values is."""
    return [int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape)]


def first_bad(array: Any) -> tuple[str, list[int]] | None:
    """The first NaN ("a NaN"), or if there is none the first infinity, and its index."""
    if array.dtype.kind not in FLOAT_KINDS or all_finite(array):
        return None
    for kind, find in (("NaN", np.isnan), ("infinity", np.isinf)):
        bad = find(array)
        if bad.any():
            return kind, first_index(bad)
    return None


def spec_text(array: Any) -> str:
    """`f32[8,3]`; NumPy's name for a dtype that Wayfare does not have."""
    dtype = OF_NUMPY.get(array.dtype)
    return f"{array.dtype}{list(array.shape)}" if dtype is None else repr(Spec(array.shape, dtype))


def described(array: Any) -> str:
    """Shape, dtype and statistics in one line: `f32[2] in [-1, 4], mean 1.5, std 2.5, 1 NaN (first at [1])`."""
    numbers = numbers_text(array)
    comma = "" if not numbers or numbers.startswith(("in [", "= ")) else ","
    return f"{spec_text(array)}{comma} {numbers}".rstrip()


def numbers_text(array: Any) -> str:
    """Statistics in a few words: `in [-1, 4], mean 1.5, std 2.5`; empty for an empty array."""
    if array.size == 0:
        return ""
    array = widened(to_host(array))
    if array.dtype.kind not in "fiub":
        return ""
    if array.dtype.kind == "b":
        return f"{int(np.count_nonzero(array))} of {array.size} true"
    good, bad = array, ""
    if not all_finite(array):
        finite = np.isfinite(array)
        good = array[finite]
        nans, infinities = np.isnan(array), np.isinf(array)
        for name, found in (("NaN", nans), ("infinite", infinities)):
            if found.any():
                bad += f", {int(np.count_nonzero(found))} {name} (first at {first_index(found)})"
    if good.size == 0:
        return bad[2:]
    if good.size == 1:
        return f"= {_number(good.item())}" if array.size == 1 else f"else {good.item():.4g}{bad}"
    wide = good.astype(np.float64) if good.size <= _MANY else good.ravel()[:: good.size // _MANY].astype(np.float64)
    span = f"in [{_number(good.min())}, {_number(good.max())}]"
    return f"{span}, mean {wide.mean():.4g}, std {wide.std():.4g}{bad}"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (float, np.floating)) else str(value)
