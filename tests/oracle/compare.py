"""Compares results of two modules through NumPy: structure, shape, dtype and values within tolerance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.oracle.convert import to_array


@dataclass(frozen=True)
class Tolerance:
    relative: float
    absolute: float


# The tolerances of torch.testing.assert_close.
_TOLERANCES = {
    "float16": Tolerance(1e-3, 1e-5),
    "bfloat16": Tolerance(1.6e-2, 1e-5),
    "float32": Tolerance(1.3e-6, 1e-5),
    "float64": Tolerance(1e-7, 1e-7),
    "complex64": Tolerance(1.3e-6, 1e-5),
    "complex128": Tolerance(1e-7, 1e-7),
}

_EXACT = Tolerance(0.0, 0.0)


def default_tolerance(dtype_name: str) -> Tolerance:
    """What assert_close allows for a dtype; integers and booleans must be equal."""
    return _TOLERANCES.get(dtype_name, _EXACT)


def is_tensor(value: Any) -> bool:
    """Whether a result is a tensor of some module rather than a number, a size or a collection."""
    return hasattr(value, "requires_grad")


def tensors_in(value: Any) -> Iterator[Any]:
    """The tensors of a result in order."""
    if is_tensor(value):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def as_array(value: Any) -> np.ndarray:
    """The values of a tensor of either module."""
    if isinstance(value, torch.Tensor):
        # PyTorch has lazy negations and lazy zeros, which it turns into memory only when forced.
        return to_array(value.detach()) if value.dtype is torch.bfloat16 else value.detach().numpy(force=True)
    return np.asarray(value.detach().numpy())


def field_names(value: Any) -> tuple[str, ...]:
    """Field names of a named tuple of either kind: a Python one or one of torch.return_types."""
    if hasattr(value, "_fields"):
        return tuple(value._fields)
    if not hasattr(value, "n_sequence_fields"):
        return ()
    return tuple(name for name in dir(value) if not name.startswith(("_", "n_")) and name not in ("count", "index"))


def difference(
    actual: Any,
    expected: Any,
    tolerance: Tolerance | None = None,
    *,
    values: bool = True,
    where: str = "output",
) -> str | None:
    """One line on how `actual` differs from `expected`, PyTorch's result; None where they agree."""
    if is_tensor(expected):
        if not is_tensor(actual):
            return f"{where}: {type(actual).__name__} instead of a tensor"
        return array_difference(as_array(actual), as_array(expected), tolerance, values=values, where=where)
    if isinstance(expected, (list, tuple)):
        return _sequence_difference(actual, expected, tolerance, values=values, where=where)
    if type(actual) is not type(expected):
        return f"{where}: {type(actual).__name__} instead of {type(expected).__name__}"
    if not values or expected is None:
        return None
    if isinstance(expected, (bool, int, float)):
        return array_difference(np.asarray(actual), np.asarray(expected), tolerance, values=values, where=where)
    return None if actual == expected else f"{where}: {actual!r} instead of {expected!r}"


def _sequence_difference(
    actual: Any, expected: Any, tolerance: Tolerance | None, *, values: bool, where: str
) -> str | None:
    if not isinstance(actual, (list, tuple)):
        return f"{where}: {type(actual).__name__} instead of {type(expected).__name__}"
    if len(actual) != len(expected):
        return f"{where}: {len(actual)} items instead of {len(expected)}"
    for name in field_names(expected):
        if not hasattr(actual, name):
            return f"{where}: no field {name!r}"
    for place, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        found = difference(ours, theirs, tolerance, values=values, where=f"{where}[{place}]")
        if found is not None:
            return found
    return None


def array_difference(
    actual: np.ndarray,
    expected: np.ndarray,
    tolerance: Tolerance | None = None,
    *,
    values: bool = True,
    where: str = "output",
) -> str | None:
    """One line on how two arrays differ in shape, dtype or values."""
    if actual.shape != expected.shape:
        return f"{where}: shape {list(actual.shape)} instead of {list(expected.shape)}"
    if actual.dtype != expected.dtype:
        return f"{where}: {actual.dtype} instead of {expected.dtype}"
    if not values or actual.size == 0:
        return None
    if tolerance is None or expected.dtype.kind not in "fcV":
        tolerance = default_tolerance(expected.dtype.name)
    with np.errstate(all="ignore"):
        wide_actual, wide_expected = _widened(actual), _widened(expected)
        gap = np.abs(wide_actual - wide_expected)
        allowed = tolerance.absolute + tolerance.relative * np.abs(wide_expected)
        if expected.dtype.name == "bfloat16":
            # Many samples are a few terms that cancel; PyTorch rounds some of the terms, and some only their sum.
            finite = np.abs(wide_expected[np.isfinite(wide_expected)])
            allowed = allowed + 2 * tolerance.relative * finite.max(initial=0.0)
        agree = (gap <= allowed) | (wide_actual == wide_expected)
        agree |= np.isnan(wide_actual) & np.isnan(wide_expected)
        # An infinite expectation makes `allowed` infinite: only the same infinity agrees with it.
        agree &= ~np.isinf(wide_expected) | (wide_actual == wide_expected)
    if agree.all():
        return None
    wrong = np.argwhere(~agree)
    first = tuple(int(i) for i in wrong[0])
    at = f" at {list(first)}" if first else ""
    size = f"{len(wrong)} of {actual.size} values differ" if actual.size > 1 else "value differs"
    return f"{where}: {size}, {actual[first].item()} instead of {expected[first].item()}{at}"


def _widened(array: np.ndarray) -> np.ndarray:
    """The widest type of the same kind: all narrower values are exact in it."""
    if array.dtype.kind in "fV":  # V is bfloat16
        return array.astype(np.float64)
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    return array.astype(np.int64)
