"""`wf.accelerator`: the accelerator of this machine, whatever it is, as `torch.accelerator` shows it."""

from __future__ import annotations

from typing import Any

import wayfare as wf
from wayfare.compat import cuda

__all__ = [
    "current_accelerator", "current_device_index", "current_stream", "device_count", "empty_cache", "is_available",
    "max_memory_allocated", "memory_allocated", "memory_reserved", "reset_peak_memory_stats", "set_device_index",
    "synchronize",
]  # fmt: skip


def is_available() -> bool:
    """Is there an accelerator that can be used?"""
    return cuda.is_available()


def current_accelerator(check_available: bool = False) -> wf.device | None:
    """The type of accelerator, or None if there is none."""
    return wf.device("cuda") if cuda.is_available() else None


def device_count() -> int:
    """How many there are."""
    return cuda.device_count()


def current_device_index() -> int:
    """The number of the current one."""
    return cuda.current_device()


def set_device_index(device: Any) -> None:
    """Make another one current."""
    cuda.set_device(device)


def current_stream(device: Any = None) -> cuda.Stream:
    """The stream that work goes into now."""
    return cuda.current_stream(device)


def synchronize(device: Any = None) -> None:
    """Wait until all that was asked of it is done."""
    cuda.synchronize(device)


def empty_cache() -> None:
    """Give memory back that is held and not in use."""
    cuda.empty_cache()


def memory_allocated(device_index: Any = None) -> int:
    """Bytes that tensors take."""
    return cuda.memory_allocated(device_index)


def max_memory_allocated(device_index: Any = None) -> int:
    """The most bytes that tensors took since `reset_peak_memory_stats()`."""
    return cuda.max_memory_allocated(device_index)


def memory_reserved(device_index: Any = None) -> int:
    """Bytes that are held."""
    return cuda.memory_reserved(device_index)


def reset_peak_memory_stats(device_index: Any = None) -> None:
    """Let `max_memory_allocated` count from now on."""
    cuda.reset_peak_memory_stats(device_index)
