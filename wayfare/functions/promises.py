"""Promises about results that a PyTorch script asks for and Wayfare always keeps: the same again, in full precision."""

from __future__ import annotations

import warnings

from wayfare.errors import ArgumentTypeError

__all__ = ["set_float32_matmul_precision", "use_deterministic_algorithms"]

_PRECISIONS = ("highest", "high", "medium")


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Nothing to switch: equal inputs give equal results, on one machine with as many threads."""
    if not isinstance(mode, bool):
        raise ArgumentTypeError(f"use_deterministic_algorithms: mode must be a bool, not {type(mode).__name__}")


def set_float32_matmul_precision(precision: str) -> None:
    """Nothing to switch: products of float32 matrices always have the precision "highest"."""
    if precision not in _PRECISIONS:
        warnings.warn(f"set_float32_matmul_precision: {precision!r} is none of {', '.join(_PRECISIONS)}", stacklevel=3)
