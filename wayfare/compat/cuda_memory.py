"""Memory figures of `wf.cuda`. Each device has a pool of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wayfare.compat.cuda_devices import backend, backend_in_use, number_of, on
from wayfare.core.errors import ArgumentError
from wayfare.core.format import bytes_text
from wayfare.ir.target import release_arenas

__all__ = [
    "device_memory_used", "empty_cache", "get_per_process_memory_fraction", "max_memory_allocated",
    "max_memory_reserved", "mem_get_info", "memory_allocated", "memory_reserved", "memory_stats", "memory_summary",
    "reset_max_memory_allocated", "reset_peak_memory_stats", "set_per_process_memory_fraction",
]  # fmt: skip


class _Peaks:
    """The most memory in use on each device, measured from the first time that somebody asks: it costs a little for
    each new array."""

    def __init__(self) -> None:
        self.allocated: dict[int, int] = {}
        self._follows: Any = None

    def follow(self, device: int) -> int:
        """Measure from now on, if that is not done yet; the most so far."""
        found = backend()
        pool = found.xp.get_default_memory_pool()
        if self._follows is not found:
            self._follows = found
            self.allocated.clear()
            inner: Callable[[int], Any] = found.xp.cuda.get_allocator()

            def measured(size: int) -> Any:
                memory, number = inner(size), found.current()
                self.allocated[number] = max(self.allocated.get(number, 0), pool.used_bytes())
                return memory

            found.xp.cuda.set_allocator(measured)
        self.allocated[device] = max(self.allocated.get(device, 0), memory_allocated(device))
        return self.allocated[device]


_PEAKS = _Peaks()


def _figure(name: str, device: Any) -> int:
    """A figure of the pool of a device; 0 if CUDA is not in use."""
    if backend_in_use() is None:
        return 0
    with on(device):
        return int(getattr(backend().xp.get_default_memory_pool(), name)())


def memory_allocated(device: Any = None) -> int:
    """Bytes that tensors take."""
    return _figure("used_bytes", device)


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that tensors took since `reset_peak_memory_stats()`, or since this was first asked."""
    return 0 if backend_in_use() is None else _PEAKS.follow(number_of(device))


def memory_reserved(device: Any = None) -> int:
    """Bytes that are held, in use or to be used again."""
    return _figure("total_bytes", device)


def max_memory_reserved(device: Any = None) -> int:
    """Bytes that are held: the pool gives nothing back unless `empty_cache()` is called."""
    return memory_reserved(device)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let `max_memory_allocated` count from now on."""
    if backend_in_use() is not None:
        number = number_of(device)
        _PEAKS.follow(number)
        _PEAKS.allocated[number] = memory_allocated(number)


def reset_max_memory_allocated(device: Any = None) -> None:
    """`reset_peak_memory_stats`, by its older name."""
    reset_peak_memory_stats(device)


def empty_cache() -> None:
    """Give memory back that is held and not in use."""
    if backend_in_use() is not None:
        release_arenas()
        backend().free_read()
        backend().xp.get_default_memory_pool().free_all_blocks()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Bytes of a GPU: free ones, and all."""
    free, total = on(device).mem_info
    return int(free), int(total)


def device_memory_used(device: Any = None) -> int:
    """Bytes of a GPU that are in use, by this process and all others."""
    free, total = mem_get_info(device)
    return total - free


def memory_stats(device: Any = None) -> dict[str, int]:
    """Figures of the pool, under those of PyTorch's names that it has."""
    if backend_in_use() is None:
        return {}
    used, most = memory_allocated(device), max_memory_allocated(device)
    held = memory_reserved(device)
    return {
        "allocated_bytes.all.current": used, "allocated_bytes.all.peak": most, "active_bytes.all.current": used,
        "active_bytes.all.peak": most, "reserved_bytes.all.current": held, "reserved_bytes.all.peak": held,
    }  # fmt: skip


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Memory in a few lines."""
    if backend_in_use() is None:
        return "CUDA was not used so far."
    rows = {"in use by tensors": memory_allocated(device), "the most so far": max_memory_allocated(device),
            "reserved": memory_reserved(device)}  # fmt: skip
    free, total = mem_get_info(device)
    rows |= {"free on the GPU": free, "of the GPU": total}
    return "\n".join(f"{name:<20}{bytes_text(size):>12}" for name, size in rows.items())


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Let the tensors of this process take at most this part of a GPU; more is an OutOfMemoryError."""
    if not isinstance(fraction, (int, float)) or isinstance(fraction, bool) or not 0 <= fraction <= 1:
        raise ArgumentError(f"set_per_process_memory_fraction: fraction must be from 0 to 1, not {fraction!r}")
    with on(device):
        backend().xp.get_default_memory_pool().set_limit(fraction=float(fraction) or None)


def get_per_process_memory_fraction(device: Any = None) -> float:
    """The part of a GPU that the tensors of this process may take."""
    with on(device):
        limit = int(backend().xp.get_default_memory_pool().get_limit())
    return limit / mem_get_info(device)[1] if limit else 1.0
