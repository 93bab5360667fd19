"""Starting and ending worker processes, and telling how one ended.

Workers are forked where a fork is sound: it takes milliseconds, and what the parent has imported is there. The locks
and threads of the engine are ready for it (core/locks.py), and so are OpenBLAS's. On macOS, whose system libraries do
not survive a fork, and on Windows, they are spawned.
"""

from __future__ import annotations

import _thread
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

# How long a worker may take to finish what it is doing before it is ended, in seconds.
GRACE = 1.0

# The parent's ends of all pipes. A forked child must not keep copies: workers would not notice that the parent is gone.
_ends: weakref.WeakSet[Connection] = weakref.WeakSet()


def _close_ends() -> None:
    for end in list(_ends):
        end.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_ends)


def default_context() -> Any:
    """How processes are started: by fork where that is sound, or else by spawn."""
    # Apple's system libraries do not survive a fork.
    forks = "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"
    return multiprocessing.get_context("fork" if forks else "spawn")


def two_pipes(context: Any) -> tuple[Connection, Connection, Connection, Connection]:
    """(the worker's end of its tasks, the parent's, the parent's end of its answers, the worker's)."""
    take, give = context.Pipe(duplex=False)
    hear, tell = context.Pipe(duplex=False)
    _ends.update((give, hear))
    return take, give, hear, tell


def _interrupt_soon() -> None:
    time.sleep(0.05)
    _thread.interrupt_main()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C comes when the block is over: in the middle of a start or an end, a worker would be forgotten."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # only the main thread hears of it, and only if Python handles it
        return
    arrived = []
    signal.signal(signal.SIGINT, lambda number, _frame: arrived.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if arrived:
            # Not here: this may be the end of an iterator nobody refers to any more, where exceptions are lost. And not
            # by a Thread object, whose start would wait until the thread runs.
            try:
                _thread.start_new_thread(_interrupt_soon, ())
            except RuntimeError:
                pass  # the program is at its end


@contextmanager
def quiet_start() -> Iterator[None]:
    """A new process gets no Ctrl-C before it has learnt to ignore it, and says nothing about forks and threads."""
    masks = hasattr(signal, "pthread_sigmask")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if masks else set()
    try:
        with warnings.catch_warnings():
            # The engine's threads and locks are ready for a fork.
            warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
            yield
    finally:
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def own_signals() -> None:
    """In a new worker: Ctrl-C goes to the parent, which ends its workers; what the parent does on SIGTERM does not
    matter here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def how_it_ended(process: Any) -> tuple[str, str]:
    """How a process ended, as the end of a sentence, and the name of the signal that killed it."""
    process.join(GRACE)
    code = process.exitcode
    if code is None or code >= 0:
        return "ended" if code is None else f"ended with exit code {code}", ""
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}", name


def end(pid: int, processes: list[Any], tasks: list[Connection], answers: list[Connection]) -> None:
    """End the workers of process `pid`: they are asked, then told, then killed."""
    if os.getpid() != pid:
        return  # a forked copy of the parent: they are not its workers
    with undisturbed():
        _ask_to_end(tasks, answers)
        _join(processes)
        for how in ("terminate", "kill"):
            alive = [process for process in processes if process.is_alive()]
            for process in alive:
                getattr(process, how)()
            _join(alive)
        for process in processes:
            if not process.is_alive():
                process.close()
        processes.clear()


def _ask_to_end(tasks: list[Connection], answers: list[Connection]) -> None:
    """Tell the workers that there is nothing more to do, and drop all pipes here: a Ctrl-C that comes inside the
    `__del__` of a pipe, where exceptions are lost, is heard only by `undisturbed`."""
    for pipe in tasks:
        try:
            pipe.send(None)
        except OSError:
            pass  # it is dead already
    for pipe in (*tasks, *answers):
        pipe.close()
    tasks.clear()
    answers.clear()


def _join(processes: list[Any]) -> None:
    """Wait a little for processes to end."""
    until = time.monotonic() + GRACE
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
