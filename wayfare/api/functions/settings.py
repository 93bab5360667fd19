"""Settings of PyTorch: where tensors are made, how precise products are on a GPU; and one that changes nothing, because
results are deterministic."""

from __future__ import annotations

import warnings

from wayfare.core.config import settings
from wayfare.core.device import Device, change_default_device, default_device
from wayfare.core.errors import ArgumentTypeError
from wayfare.core.mode import executor

__all__ = [
    "are_deterministic_algorithms_enabled", "get_default_device", "get_float32_matmul_precision", "set_default_device",
    "set_float32_matmul_precision", "use_deterministic_algorithms",
]  # fmt: skip

_PRECISIONS = ("highest", "high", "medium")
# What was asked for, for the two functions that tell it: nothing depends on it.
_ASKED = {"deterministic": False, "medium": False}


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Nothing to switch: equal inputs give equal results, on one machine with as many threads. GPUs: docs/gpu.md."""
    if not isinstance(mode, bool):
        raise ArgumentTypeError(f"use_deterministic_algorithms: mode must be a bool, not {type(mode).__name__}")
    _ASKED["deterministic"] = mode


def are_deterministic_algorithms_enabled() -> bool:
    """What `use_deterministic_algorithms` was given last. Results are deterministic either way."""
    return _ASKED["deterministic"]


def set_float32_matmul_precision(precision: str) -> None:
    """"high" and "medium" let a GPU multiply float32 matrices in TF32; the CPU always has the precision "highest"."""
    if precision not in _PRECISIONS:
        warnings.warn(f"set_float32_matmul_precision: {precision!r} is not one of {', '.join(_PRECISIONS)}",
                      stacklevel=3)  # fmt: skip
        return
    settings.allow_tf32 = precision != "highest"
    _ASKED["medium"] = precision == "medium"


def get_float32_matmul_precision() -> str:
    """"highest", or what lets a GPU multiply float32 matrices in TF32."""
    if not settings.allow_tf32:
        return "highest"
    return "medium" if _ASKED["medium"] else "high"


def set_default_device(device: Device | str | None) -> None:
    """Where new tensors of this thread are made; None: on the CPU, as at first."""
    executor().changes(None, "it sets the default device")
    change_default_device(device)


def get_default_device() -> Device:
    """Where new tensors of this thread are made."""
    return default_device()
