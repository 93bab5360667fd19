"""The memory a step needs at its peak, by one yardstick for every library: the kernel's own count."""

from __future__ import annotations

import ctypes
import gc
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.works import resolve

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_HIGH_WATER = "5"

# Blocks of four pages or more are then mapped one by one and given back when freed, so that resident memory
# is live memory; otherwise it would also count what the C library keeps for later.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "16384", "MALLOC_ARENA_MAX": "1"}


def measurable() -> bool:
    """Whether this system can tell a high-water mark and reset it (Linux can)."""
    return STATUS.exists() and CLEAR_REFS.exists()


def resident_bytes() -> int:
    """The memory this process occupies now; 0 where the system does not say."""
    return _status("VmRSS") if STATUS.exists() else 0


def peak_of_step(m: Any, of: str, steps: int = 3, **parameters: Any) -> list[int]:
    """Bytes that a step of the work `of` needs at its peak beyond what lives between steps, step by step."""
    prepared = resolve(of)(m, **parameters)
    prepared.step()
    prepared.step()  # buffers that libraries make once, such as those of matrix products, are not the step's
    peaks = []
    for _ in range(steps):
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        before = resident_bytes()
        CLEAR_REFS.write_text(RESET_HIGH_WATER)
        prepared.step()
        peaks.append(_status("VmHWM") - before)
    return peaks


def peak_with_held(m: Any, of: str, steps: int = 5, warm: int = 4, **parameters: Any) -> list[int]:
    """Bytes at a step's peak beyond the model and its optimiser, with all that the step holds on to between calls.

    A compiled step keeps its memory for the next call, which a difference within a step would not see. So the peaks
    are told from what is left once the step has been dropped, and with it all it held; the model stays.
    """
    prepared = resolve(of)(m, **parameters)
    for _ in range(warm):
        prepared.step()
    peaks = []
    for _ in range(steps):
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        CLEAR_REFS.write_text(RESET_HIGH_WATER)
        prepared.step()
        prepared.finish()
        peaks.append(_status("VmHWM"))
    kept = prepared.kept
    assert kept is not None, f"the work {of} does not say what outlives its steps"
    del prepared
    gc.collect()
    if m.__name__ == "wayfare":  # free blocks of Wayfare's pool count as held, too
        import_module(f"{m.__name__}.core.buffer_pool").trim()
    ctypes.CDLL(None).malloc_trim(0)
    left = resident_bytes()
    return [peak - left for peak in peaks]


def _status(name: str) -> int:
    for line in STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)
