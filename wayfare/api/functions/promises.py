"""Settings of PyTorch that change nothing here: results are deterministic, in full precision, on the CPU."""

from __future__ import annotations

import warnings

from wayfare.core.errors import ArgumentTypeError
from wayfare.core.spec import CPU, Device

__all__ = [
    "get_default_device", "set_default_device", "set_float32_matmul_precision", "use_deterministic_algorithms",
]  # fmt: skip

_PRECISIONS = ("highest", "high", "medium")


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Nothing to switch: equal inputs give equal results, on one machine with as many threads."""
    if not isinstance(mode, bool):
        raise ArgumentTypeError(f"use_deterministic_algorithms: mode must be a bool, not {type(mode).__name__}")


def set_float32_matmul_precision(precision: str) -> None:
    """Nothing to switch: products of float32 matrices always have the precision "highest"."""
    if precision not in _PRECISIONS:
        warnings.warn(f"set_float32_matmul_precision: {precision!r} is not one of {', '.join(_PRECISIONS)}",
                      stacklevel=3)  # fmt: skip


def set_default_device(device: Device | str | None) -> None:
    """Nothing to switch: tensors are made on the CPU. Another device is an error."""
    if device is not None:
        Device(device)


def get_default_device() -> Device:
    """The CPU."""
    return CPU
