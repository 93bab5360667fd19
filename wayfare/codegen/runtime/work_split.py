"""How work is split over threads, and the plan of a kernel for one layout."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from wayfare.codegen.llvm.code import Code
from wayfare.core.counters import COUNTERS

Array = np.ndarray[Any, np.dtype[Any]]

# Nanoseconds of work from which on several threads are used, and the least work of a part.
_SPLIT, _PART = 10_000, 5_000
# Below so many nanoseconds of work the GIL is kept, and sleeping threads are not woken.
QUICK = 50_000


def parts_for(work: float, threads: int) -> int:
    """Into how many parts to split so many nanoseconds of work."""
    if threads < 2 or work <= _SPLIT:
        return 1
    # More parts than threads, so that threads which start late still help, and the last part is short.
    return threads * min(4, max(1, int(work / (_PART * threads))))


class LayoutPlan:
    """How to run a kernel on arrays of given shapes and strides: its code and argument blocks."""

    __slots__ = ("_call", "blocks", "count", "given", "made", "threads")

    def __init__(self, code: Code, blocks: list[list[int]], threads: int, work: float) -> None:
        self._call = code.quick_call if work < QUICK else code.call
        # The shapes of new C-contiguous outputs.
        self.made: tuple[tuple[int, ...], ...] = ()
        words = [word for block in blocks for word in block]
        # Keeps the memory alive; the kernel gets the address.
        self.blocks = (ctypes.c_int64 * len(words))(*words)
        self.given = ctypes.addressof(self.blocks)
        # Negative: too little work to wake a thread for, unless such work comes often.
        self.count = -len(blocks) if len(blocks) > 1 and work < QUICK else len(blocks)
        self.threads = threads

    def run(self, *arrays: Array) -> None:
        """Run on inputs and outputs of the planned layout."""
        COUNTERS.kernels_run += 1
        if self.count != 1:
            COUNTERS.kernels_split += 1
        self._call(*arrays, self.given, self.count)
