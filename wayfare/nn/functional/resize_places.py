"""Where the elements of a resized dimension come from, and with which weights.

The formulas are written once, for NumPy arrays and for tensors: a model file must work them out anew for other sizes,
so while a function is traced for one they are steps like any other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.core.dispatch import tensor_ops
from wayfare.core.mode import executor
from wayfare.core.spec import OF_NUMPY
from wayfare.core.tensor import wrap


class _Arrays:
    """NumPy's functions under the names that the formulas use."""

    minimum, maximum, floor, where = np.minimum, np.maximum, np.floor, np.where
    stack = staticmethod(np.stack)

    @staticmethod
    def counting(count: int, real: Any) -> Any:
        return np.arange(count, dtype=real)

    @staticmethod
    def cast(a: Any, dtype: Any) -> Any:
        return a.astype(dtype)

    @staticmethod
    def ratio(a: Any, b: Any, real: Any) -> Any:
        return real(a / b)

    @staticmethod
    def size(n: int) -> Any:
        return n


class _Tensors:
    """The same on tensors. A size is a tensor too, so that what follows from it is computed."""

    minimum, maximum, floor, where = tensor_ops.minimum, tensor_ops.maximum, tensor_ops.floor, tensor_ops.where

    @staticmethod
    def stack(parts: Any) -> Any:
        return tensor_ops.stack(*parts, dim=0)

    @staticmethod
    def counting(count: int, real: Any) -> Any:
        return wrap(np.arange(count, dtype=real))

    @staticmethod
    def cast(a: Any, dtype: Any) -> Any:
        return tensor_ops.cast(a, dtype=OF_NUMPY[np.dtype(dtype)])

    @classmethod
    def ratio(cls, a: Any, b: Any, real: Any) -> Any:
        return cls.cast(cls.cast(a, np.float64) / cls.cast(b, np.float64), real)

    @staticmethod
    def size(n: int) -> Any:
        return wrap(np.array(n))


def _here() -> Any:
    return _Tensors if executor().sizes_may_differ else _Arrays


def nearest(size: int, count: int, factor: float | None, centred: bool) -> Any:
    """The place of the nearest element for each of the result."""
    m = _here()
    # Single precision as in PyTorch: at ties it decides which element is the nearest.
    real = np.float32
    step = m.ratio(m.size(size), m.size(count), real) if factor is None else float(real(1 / factor))
    at = (m.counting(count, real) + (0.5 if centred else 0.0)) * step
    return m.minimum(m.cast(m.floor(at), np.int64), m.size(size) - 1)


def _sources(m: Any, size: int, count: int, factor: float | None, align_corners: bool, real: Any) -> Any:
    """Where in the input each element of the result lies."""
    at = m.counting(count, real)
    if align_corners:
        return at * m.ratio(m.size(size) - 1, m.maximum(m.size(count) - 1, 1), real)
    step = m.ratio(m.size(size), m.size(count), real) if factor is None else float(real(1 / factor))
    return (at + 0.5) * step - 0.5


def linear(size: int, count: int, factor: float | None, align_corners: bool, real: Any) -> tuple[Any, Any]:
    """Two places and weights for each element of the result."""
    m = _here()
    last = m.size(size) - 1
    at = m.maximum(_sources(m, size, count, factor, align_corners, real), 0.0)
    first = m.minimum(m.cast(at, np.int64), last)
    share = m.minimum(m.maximum(at - m.cast(first, real), 0.0), 1.0)
    return m.stack([first, m.minimum(first + 1, last)]), m.stack([1 - share, share])


def cubic(size: int, count: int, factor: float | None, align_corners: bool, real: Any) -> tuple[Any, Any]:
    """Four places and weights for each element of the result."""
    m = _here()
    last = m.size(size) - 1
    at = _sources(m, size, count, factor, align_corners, real)
    first = m.floor(at)
    share = at - first
    whole = m.cast(first, np.int64)
    places = [m.minimum(m.maximum(whole + k, 0), last) for k in range(-1, 3)]
    weights = [cubic_weight(distance, m.where) for distance in (share + 1, share, 1 - share, 2 - share)]
    return m.stack(places), m.stack(weights)


def cubic_weight(distance: Any, where: Any = np.where, a: float = -0.75) -> Any:
    """Keys' cubic convolution kernel at distances from 0 on."""
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return where(distance <= 1, near, where(distance < 2, far, 0 * distance))
