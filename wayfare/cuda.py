"""`wf.cuda`: there is no CUDA device in this version, and code that asks first is told so."""

from __future__ import annotations

__all__ = ["device_count", "is_available"]


def is_available() -> bool:
    """False: this version computes on the CPU."""
    return False


def device_count() -> int:
    """0: this version computes on the CPU."""
    return 0
