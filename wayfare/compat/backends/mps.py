"""`wf.backends.mps`: there is no Metal device in this version."""

from __future__ import annotations

__all__ = ["is_available", "is_built"]


def is_available() -> bool:
    """False: this version computes on the CPU."""
    return False


def is_built() -> bool:
    """False: this version computes on the CPU."""
    return False
