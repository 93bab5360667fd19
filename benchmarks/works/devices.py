"""What a side says about a device: whether it is there, how much memory is free, what a step needs at its peak."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from benchmarks.works import CPU, Unavailable, nothing, resolve


def synchronizer(m: Any, device: str) -> Callable[[], object]:
    """What waits until the device has done all it was told; the CPU has done so when a call returns.

    Whoever is about to measure on a card asks for it, and gets float32 products that are float32.
    """
    if not device.startswith("cuda"):
        return nothing
    exact(m)
    wait: Callable[[], object] = m.cuda.synchronize
    return wait


def describe(m: Any, device: str) -> dict[str, Any]:
    """The device by name, with its memory in bytes; Unavailable, with the reason, if this side cannot use it."""
    if not device.startswith("cuda"):
        return {"name": device}
    if not m.cuda.is_available():
        raise Unavailable(f"{m.__name__} sees no CUDA device here.")
    # One kernel and one copy back: a card that is listed may still be lost, or too old for the library.
    try:
        answer = float((m.ones(2, device=device) + 1).sum())
    except Exception as error:
        raise Unavailable(f"{m.__name__} cannot use {device}: {' '.join(str(error).split())}") from None
    if answer != 4.0:
        raise Unavailable(f"{m.__name__} adds up 2 + 2 to {answer} on {device}.")
    free, total = memory(m)
    return {"name": str(m.cuda.get_device_name()), "free": free, "total": total}


def exact(m: Any) -> None:
    """Switch TF32 off: PyTorch rounds the inputs of convolutions to it unless it is told not to."""
    for part in ("cuda.matmul", "cudnn"):
        owner: Any = getattr(m, "backends", None)
        for name in part.split("."):
            owner = getattr(owner, name, None)
        if hasattr(owner, "allow_tf32"):
            owner.allow_tf32 = False


def memory(m: Any) -> tuple[int, int]:
    """Free bytes and all bytes of the card; zeros if the side cannot tell."""
    if not hasattr(m.cuda, "mem_get_info"):
        return 0, 0
    free, total = m.cuda.mem_get_info()
    return int(free), int(total)


def release(m: Any) -> None:
    """Give memory that no tensor uses back to the card, for the other sides."""
    gc.collect()
    cuda = getattr(m, "cuda", None)
    if cuda is not None and cuda.is_available():
        cuda.empty_cache()


def peak_of_step(m: Any, of: str, device: str = CPU, steps: int = 2, **parameters: Any) -> int:
    """Bytes that a step of the work `of` needs on the device at its peak beyond what lives between steps."""
    if not device.startswith("cuda"):
        raise Unavailable("only a CUDA device counts its memory.")
    prepared = resolve(of)(m, device=device, **parameters)
    wait = synchronizer(m, device)
    prepared.step()  # what is made once, such as a workspace of cuBLAS, is not the step's
    peaks = []
    for _ in range(steps):
        gc.collect()
        wait()
        m.cuda.reset_peak_memory_stats()
        before = m.cuda.memory_allocated()
        prepared.step()
        wait()
        peaks.append(int(m.cuda.max_memory_allocated() - before))
    return min(peaks)
