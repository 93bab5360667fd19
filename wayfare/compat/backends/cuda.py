"""`wf.backends.cuda`: `matmul.allow_tf32` may be set and read, and changes nothing."""

from __future__ import annotations

from types import SimpleNamespace

__all__ = ["is_built", "matmul"]

matmul = SimpleNamespace(allow_tf32=False)


def is_built() -> bool:
    """False: this version computes on the CPU."""
    return False
