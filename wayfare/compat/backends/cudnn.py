"""`wf.backends.cudnn`: attributes that may be set and read, and change nothing, since there is no cuDNN."""

from __future__ import annotations

__all__ = ["allow_tf32", "benchmark", "deterministic", "enabled", "is_available", "version"]

allow_tf32: bool = True
benchmark: bool = False
deterministic: bool = False
enabled: bool = True


def is_available() -> bool:
    """False: convolutions on a GPU are kernels of the package."""
    return False


def version() -> None:
    """None: there is no cuDNN."""
    return None
