"""Counters for tests and reports: kernels built, buffers reused, work split over threads.

Counting is a plain `COUNTERS.kernels_run += 1`. Two threads that count at the same moment may lose one of the two, so
nothing may depend on exact counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    """How often each thing happened since the program began, or inside one `with counted()`."""

    kernels_built: int = 0  # compiled by LLVM or NVRTC
    kernels_loaded: int = 0  # object code found on disk
    kernels_run: int = 0  # calls of native code
    kernels_failed: int = 0  # loops that NumPy ran because no kernel could be built
    pool_made: int = 0  # blocks of memory asked of the system
    pool_reused: int = 0  # blocks of memory used again
    kernels_split: int = 0  # calls of native code in several threads
    matmuls_run: int = 0  # matrix products (or stacks of them) that a command list ran
    lists_run: int = 0  # command lists run
    device_calls: int = 0  # kernels and command lists that a device was asked to run
    graphs_captured: int = 0  # command lists that became a CUDA graph
    graphs_replayed: int = 0  # command lists run as a CUDA graph


COUNTERS = Counters()


@contextmanager
def counted() -> Iterator[Counters]:
    """The counts of what happens inside the block, filled in when it ends."""
    before = asdict(COUNTERS)
    during = Counters()
    try:
        yield during
    finally:
        for name, count in asdict(COUNTERS).items():
            setattr(during, name, count - before[name])
