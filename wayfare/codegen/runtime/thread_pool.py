"""The crew: threads that wait in native code for parts of a loop, so that handing them out costs about a microsecond.

A Python thread can only be woken through the interpreter's lock, which costs more than many a loop. So each helper is a
Python thread that calls `work` below once and never comes back: it watches a counter for a moment (the next loop often
follows at once), then sleeps. `run` publishes a loop's argument blocks; whoever is awake takes the next block, the
caller among them, so a helper that wakes late costs nothing. Waking one costs the caller some microseconds, so for a
small loop (its size is given as a negative number) sleepers are only woken if such loops follow each other closely.

The order of steps is what makes it safe. Helpers announce themselves (`inside`) before they look whether there is
work (`open`); the caller closes the work when all blocks are taken and then waits until nobody is inside. So what `run`
was given is never touched after it returns. One loop at a time: a second caller, or a loop within a loop, does its
blocks itself.

Other programs may want the processors too. A caller that has to wait long sleeps, for one that watches or yields takes
the very processor that its helper needs. Where the wait was longer than a helper with a processor of its own could
take, there are too few processors for helpers: for a while callers do all blocks themselves, and longer each time it is
found to be so again.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Any

from wayfare.codegen.llvm import objects
from wayfare.codegen.llvm.machine import Machine, machine
from wayfare.codegen.llvm.module import RUN
from wayfare.codegen.runtime.thread_pool_code import SERIAL, source
from wayfare.core.config import settings


class _ThreadPool:
    """The helpers of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ready = False
        self.helpers = 0
        self.work: Any = None
        self.reset: Any = None
        self.run: Any = None
        self.crowded: Any = None

    def prepare(self, host: Machine) -> None:
        """Load the native part; kernels refer to it, so it comes before them."""
        with self.lock:
            if self.ready:
                return
            # Windows has other primitives: there the blocks run one after the other.
            threaded = sys.platform != "win32"
            pause = "call void @llvm.x86.sse2.pause()" if host.is_x86 else 'fence syncscope("singlethread") seq_cst'
            clock = "%now = call i64 @llvm.readcyclecounter()" if host.is_x86 else "%now = add i64 0, 0"
            monotonic = 6 if sys.platform == "darwin" else 1
            text = source(pause, clock, sys.platform == "linux", monotonic) if threaded else SERIAL
            key = objects.key(text)
            made = objects.fetch(key, lambda: {"name": "crew"}, lambda: (text, frozenset()), counts=False)
            host.load(made.code, made.symbols)
            host.add_symbol(RUN, host.address(RUN))
            if threaded:
                function = ctypes.CFUNCTYPE(None)
                self.work = function(host.address("wayfare_threads_work"))
                self.reset = function(host.address("wayfare_threads_reset"))
                self.crowded = ctypes.CFUNCTYPE(ctypes.c_int64)(host.address("wayfare_threads_times_crowded"))
                self.reset()
            self.run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)(host.address(RUN))
            self.ready = True

    def have(self, wanted: int) -> None:
        """Have so many helpers, or as many as the system allows."""
        with self.lock:
            while self.helpers < wanted and self.work is not None:
                helper = threading.Thread(target=self.work, name=f"wayfare-{self.helpers + 1}", daemon=True)
                try:
                    helper.start()
                except RuntimeError:  # too many threads, or the interpreter is ending
                    return
                self.helpers += 1

    def after_fork(self) -> None:
        """Only the thread that forked lives on in the child."""
        self.lock = threading.Lock()
        self.helpers = 0
        if self.reset is not None:
            self.reset()


_pool = _ThreadPool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.after_fork)


def prepare() -> None:
    """Make `RUN` known to LLVM."""
    if not _pool.ready:
        _pool.prepare(machine())


def run(function: int, blocks: int, count: int, size: int) -> None:
    """Call the native function at an address on `count` blocks of `size` bytes; `prepare` was called before."""
    _pool.run(function, blocks, count, size)


def times_crowded() -> int:
    """How often callers found that other programs need the processors, and did without helpers for a while."""
    return 0 if _pool.crowded is None else int(_pool.crowded())


def threads() -> int:
    """How many threads a loop may be split over now; the helpers among them are started."""
    wanted = settings.num_threads
    if wanted - 1 > _pool.helpers:
        _pool.have(wanted - 1)
    return wanted
