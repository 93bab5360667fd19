"""`wf.backends.cuda`: may products of float32 matrices use TF32? They may not, unless `matmul.allow_tf32` is set."""

from __future__ import annotations

from wayfare.compat.cuda import is_available
from wayfare.core.config import settings

__all__ = ["is_built", "matmul"]


class _Matmul:
    """How matrices are multiplied on a GPU."""

    @property
    def allow_tf32(self) -> bool:
        """May operands be rounded to TF32 (10 bits)? False at first, as in PyTorch."""
        return settings.allow_tf32

    @allow_tf32.setter
    def allow_tf32(self, allowed: bool) -> None:
        settings.allow_tf32 = bool(allowed)


matmul = _Matmul()


def is_built() -> bool:
    """Can CUDA be used here? (PyTorch asks whether it was compiled for it; here nothing is.)"""
    return is_available()
