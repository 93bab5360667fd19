"""`wf.accelerator`: the accelerator of this machine, whatever it is, as `torch.accelerator` shows it."""

from __future__ import annotations

from typing import Any

import wayfare as wf
from wayfare.compat import cuda
from wayfare.core.spec import DTYPES

__all__ = [
    "current_accelerator", "current_device_idx", "current_device_index", "current_stream", "device_count",
    "device_index", "empty_cache", "empty_host_cache", "get_device_capability", "get_memory_info", "is_available",
    "max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved", "memory_stats",
    "reset_peak_memory_stats", "set_device_idx", "set_device_index", "set_stream", "synchronize",
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


def current_device_idx() -> int:
    """`current_device_index`, by its older name."""
    return current_device_index()


def set_device_idx(device: Any) -> None:
    """`set_device_index`, by its older name."""
    set_device_index(device)


class device_index(cuda.device):
    """`with wf.accelerator.device_index(1):` — another one is current inside the block; None changes nothing."""

    def __init__(self, device: int | None) -> None:
        super().__init__(device)


def get_device_capability(device: Any = None) -> dict[str, Any]:
    """What it can hold: `supported_dtypes`, the same as on the CPU."""
    if cuda.is_available():
        cuda.get_device_properties(device)  # says so if there is no such device
    return {"supported_dtypes": set(DTYPES)}


def set_stream(stream: cuda.Stream) -> None:
    """Let work go into this stream from now on."""
    cuda.set_stream(stream)


def current_stream(device: Any = None) -> cuda.Stream:
    """The stream that work goes into now."""
    return cuda.current_stream(device)


def synchronize(device: Any = None) -> None:
    """Wait until all that was asked of it is done."""
    cuda.synchronize(device)


def empty_cache() -> None:
    """Give memory back that is held and not in use."""
    cuda.empty_cache()


def empty_host_cache() -> None:
    """Nothing: memory of the host that a GPU reads is given back when its tensor is gone."""


def get_memory_info(device_index: Any = None) -> tuple[int, int]:
    """Bytes of it: free ones, and all."""
    return cuda.mem_get_info(device_index)


def memory_stats(device_index: Any = None) -> dict[str, int]:
    """Figures of the pool, under those of PyTorch's names that it has."""
    return cuda.memory_stats(device_index)


def max_memory_reserved(device_index: Any = None) -> int:
    """Bytes that are held."""
    return cuda.max_memory_reserved(device_index)


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
