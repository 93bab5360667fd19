"""The thread pool: helper threads that wait in native code, so that handing out work takes about a microsecond.

Waking a Python thread needs the GIL, which costs more than many loops. So each helper is a Python thread that calls
`work` below once and never returns: it spins on a counter for a moment (the next loop often follows at once), then
sleeps. `run` publishes the argument blocks of a loop; every thread that is awake takes the next block, the caller
included, so a helper that wakes late does no harm. Waking a helper costs the caller some microseconds. So for small
loops (their block size is given as a negative number) helpers are only woken if such loops follow each other closely.

The order of steps makes it safe. A helper increments `inside` before it tests `open`. The caller clears `open` when all
blocks are taken, and then waits until `inside` is 0. So no helper touches the blocks after `run` has returned. There is
one loop at a time: a second caller, or a nested loop, runs its blocks itself.

Other programs may need the processors, too. A caller that waits long goes to sleep, because spinning or yielding would
use the processor that its helper needs. If the wait was longer than a helper with a processor of its own could take,
callers work without helpers for a while, and for longer each time that happens again.
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
    """The helper threads of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ready = False
        self.helpers = 0
        self.work: Any = None
        self.reset: Any = None
        self.run: Any = None
        self.address = 0
        self.crowded: Any = None

    def prepare(self, host: Machine) -> None:
        """Load the native part. Kernels call it, so it must be loaded first."""
        with self.lock:
            if self.ready:
                return
            # There are no pthreads on Windows: the blocks run one after the other.
            threaded = sys.platform != "win32"
            pause = "call void @llvm.x86.sse2.pause()" if host.is_x86 else 'fence syncscope("singlethread") seq_cst'
            clock = "%now = call i64 @llvm.readcyclecounter()" if host.is_x86 else "%now = add i64 0, 0"
            monotonic = 6 if sys.platform == "darwin" else 1
            text = source(pause, clock, sys.platform == "linux", monotonic) if threaded else SERIAL
            key = objects.key(text)
            made = objects.fetch(key, lambda: {"name": "thread pool"}, lambda: (text, frozenset()), counts=False)
            host.load(made.code, made.symbols)
            host.add_symbol(RUN, host.address(RUN))
            if threaded:
                function = ctypes.CFUNCTYPE(None)
                self.work = function(host.address("wayfare_threads_work"))
                self.reset = function(host.address("wayfare_threads_reset"))
                self.crowded = ctypes.CFUNCTYPE(ctypes.c_int64)(host.address("wayfare_threads_times_crowded"))
                self.reset()
            self.address = host.address(RUN)
            self.run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)(self.address)
            self.ready = True

    def have(self, wanted: int) -> None:
        """Start helpers until there are `wanted`, or as many as the system allows."""
        with self.lock:
            while self.helpers < wanted and self.work is not None:
                helper = threading.Thread(target=self.work, name=f"wayfare-{self.helpers + 1}", daemon=True)
                try:
                    helper.start()
                except RuntimeError:  # too many threads, or the interpreter is ending
                    return
                self.helpers += 1

    def after_fork(self) -> None:
        """Start again without helpers: after a fork the child has only one thread."""
        self.lock = threading.Lock()
        self.helpers = 0
        if self.reset is not None:
            self.reset()


_pool = _ThreadPool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.after_fork)


def prepare() -> None:
    """Make the function `RUN` available to compiled code."""
    if not _pool.ready:
        _pool.prepare(machine())


def run(function: int, blocks: int, count: int, size: int) -> None:
    """Call a native function, given by address, on `count` blocks of `size` bytes. `prepare` must have been called."""
    _pool.run(function, blocks, count, size)


def address() -> int:
    """The address of the native function behind `run`. `prepare` must have been called."""
    return _pool.address


def times_crowded() -> int:
    """How often callers stopped using helpers for a while because other programs needed the processors."""
    return 0 if _pool.crowded is None else int(_pool.crowded())


def threads() -> int:
    """How many threads a loop may use now. Starts missing helpers."""
    wanted = settings.num_threads
    if wanted - 1 > _pool.helpers:
        _pool.have(wanted - 1)
    return wanted
