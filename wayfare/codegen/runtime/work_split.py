"""How much work is worth a second thread, and a kernel's argument blocks for arrays that lie in one way."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from wayfare.codegen.llvm.code import Code
from wayfare.core.counters import COUNTERS

Array = np.ndarray[Any, np.dtype[Any]]

# Nanoseconds of work that are worth handing to another thread, and that a part should have at least.
_SPLIT, _PART = 10_000, 5_000
# Below so many nanoseconds of work other Python threads can wait.
QUICK = 50_000


def parts_for(work: float, threads: int) -> int:
    """Into how many parts so many nanoseconds of work are cut."""
    if threads < 2 or work <= _SPLIT:
        return 1
    # More parts than threads: one that comes late finds something left, and nobody waits long for the last.
    return threads * min(4, max(1, int(work / (_PART * threads))))


class BlockPlan:
    """How to run a kernel on arrays of given shapes and strides: which code, which argument blocks."""

    __slots__ = ("_call", "blocks", "count", "given", "made", "threads")

    def __init__(self, code: Code, blocks: list[list[int]], threads: int, work: float) -> None:
        self._call = code.quick_call if work < QUICK else code.call
        # Shapes of fresh outputs, where those are C-contiguous.
        self.made: tuple[tuple[int, ...], ...] = ()
        words = [word for block in blocks for word in block]
        # Kept alive here; the kernel is given the address.
        self.blocks = (ctypes.c_int64 * len(words))(*words)
        self.given = ctypes.addressof(self.blocks)
        # As a negative number: too little work to wake a thread for, unless it comes often.
        self.count = -len(blocks) if len(blocks) > 1 and work < QUICK else len(blocks)
        self.threads = threads

    def run(self, *arrays: Array) -> None:
        """Run on inputs and outputs that lie as planned."""
        COUNTERS.kernels_run += 1
        if self.count != 1:
            COUNTERS.kernels_split += 1
        self._call(*arrays, self.given, self.count)
