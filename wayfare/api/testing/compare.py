"""`assert_close`: are two tensors (or structures of them) the same within what their dtype allows?"""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.core.spec import DType, as_dtype, bfloat16, float16, float32, float64
from wayfare.core.tensor import Tensor

# (rtol, atol) by dtype, as in PyTorch.
TOLERANCES: dict[DType, tuple[float, float]] = {
    float16: (1e-3, 1e-5),
    bfloat16: (1.6e-2, 1e-5),
    float32: (1.3e-6, 1e-5),
    float64: (1e-7, 1e-7),
}


def assert_close(
    actual: Any, expected: Any, *, rtol: float | None = None, atol: float | None = None, equal_nan: bool = False,
    check_dtype: bool = True, msg: str | None = None,
) -> None:  # fmt: skip
    """Raise an AssertionError that says how far apart the two are, unless they are close.

    Tensors, NumPy arrays, numbers, and tuples, lists and dictionaries of them. The tolerances default to those of the
    less exact dtype.
    """
    if (rtol is None) != (atol is None):
        raise ValueError("assert_close: give both rtol and atol, or neither")
    _compare("", actual, expected, rtol, atol, equal_nan, check_dtype, msg)


def _compare(at: str, a: Any, b: Any, rtol: Any, atol: Any, equal_nan: bool, check_dtype: bool, msg: Any) -> None:
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            raise AssertionError(msg or f"{at or 'the dictionaries'}: keys differ, {sorted(a)} and {sorted(b)}")
        for key in a:
            _compare(f"{at}[{key!r}]", a[key], b[key], rtol, atol, equal_nan, check_dtype, msg)
        return
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        if len(a) != len(b):
            raise AssertionError(msg or f"{at or 'the sequences'}: lengths differ, {len(a)} and {len(b)}")
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            _compare(f"{at}[{i}]", x, y, rtol, atol, equal_nan, check_dtype, msg)
        return
    x, y = _array(a), _array(b)
    where = f"{at}: " if at else ""
    if x.shape != y.shape:
        raise AssertionError(msg or f"{where}shapes differ, {list(x.shape)} and {list(y.shape)}")
    if check_dtype and isinstance(a, Tensor) and isinstance(b, Tensor) and x.dtype != y.dtype:
        raise AssertionError(msg or f"{where}dtypes differ, {a.dtype} and {b.dtype}")
    own_rtol, own_atol = _tolerances(x, y) if rtol is None else (rtol, atol)
    close = np.isclose(x, y, rtol=own_rtol, atol=own_atol, equal_nan=equal_nan)
    if not close.all():
        raise AssertionError(msg or where + _difference(x, y, close, own_rtol, own_atol))


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def _tolerances(x: Any, y: Any) -> tuple[float, float]:
    found = [TOLERANCES.get(as_dtype(v.dtype), (0.0, 0.0)) for v in (x, y)]
    return max(f[0] for f in found), max(f[1] for f in found)


def _difference(x: Any, y: Any, close: Any, rtol: float, atol: float) -> str:
    wrong = ~np.atleast_1d(close)
    gap = np.where(wrong, np.abs(np.atleast_1d(x).astype(np.float64) - np.atleast_1d(y).astype(np.float64)), -1)
    worst = np.unravel_index(int(np.nanargmax(np.where(np.isnan(gap), np.inf, gap))), gap.shape)
    a, b = np.atleast_1d(x)[worst], np.atleast_1d(y)[worst]
    return (
        f"{int(wrong.sum())} of {wrong.size} elements differ; the worst is {a} and {b} at index "
        f"{[int(i) for i in worst]} (allowed: rtol {rtol:g}, atol {atol:g})"
    )
