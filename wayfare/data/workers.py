"""The worker processes of a loader, as the parent sees them: starting, giving work, hearing answers, and ending.

Every worker has pipes of its own, so a worker that is killed in the middle of a word harms no other, and its end is
noticed as soon as somebody waits for an answer.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any

import wayfare as wf
from wayfare.core.errors import ArgumentError, ArgumentTypeError, OperationError
from wayfare.data.fetch import Recipe
from wayfare.data.transport import Message, shared_slots
from wayfare.data.worker import SKIPPED, Duties, Epoch, Task, run

# How long a worker may take to finish what it is doing before it is ended, in seconds.
_GRACE = 1.0

# The parent's ends of all pipes. A forked child must not keep copies: workers would not notice that the parent is gone.
_ends: weakref.WeakSet[Connection] = weakref.WeakSet()


def _close_ends() -> None:
    for end in list(_ends):
        end.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_ends)


def context_for(chosen: Any) -> Any:
    """How processes are started: as the user says, or by fork where that is sound, or else by spawn."""
    if chosen is None:
        # Apple's system libraries do not survive a fork.
        forks = "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"
        return multiprocessing.get_context("fork" if forks else "spawn")
    if isinstance(chosen, str):
        known = multiprocessing.get_all_start_methods()
        if chosen not in known:
            raise ArgumentError(f"DataLoader: multiprocessing_context is {chosen!r}, this system has "
                                f"{', '.join(known)}")  # fmt: skip
        return multiprocessing.get_context(chosen)
    if not isinstance(chosen, multiprocessing.context.BaseContext):
        raise ArgumentTypeError("DataLoader: multiprocessing_context must be a name or a context of multiprocessing, "
                                f"not {type(chosen).__name__}")  # fmt: skip
    return chosen


def _interrupt_soon() -> None:
    time.sleep(0.05)
    _thread.interrupt_main()


@contextmanager
def _undisturbed() -> Iterator[None]:
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
def _quiet_start() -> Iterator[None]:
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


class Workers:
    """Worker processes that fetch batches: each answers its tasks in the order it got them."""

    def __init__(
        self, recipe: Recipe, count: int, prefetch: int, seed: int, init: Callable[[int], Any] | None, context: Any,
    ) -> None:  # fmt: skip
        self.prefetch = prefetch
        self.outstanding = [0] * count
        self._sent = [0] * count
        self._epoch = 0
        self._pid = os.getpid()
        self._processes: list[Any] = []
        self._tasks: list[Connection] = []
        self._answers: list[Connection] = []
        forked = context.get_start_method() == "fork"
        # Every task that is under way has a slot.
        self._slots = [shared_slots(prefetch) if forked else [] for _ in range(count)]
        # Also at the end of the program, and when whoever uses the workers is gone.
        self.stop = weakref.finalize(self, _end, self._pid, self._processes, self._tasks, self._answers)
        try:
            with _undisturbed():
                for number in range(count):
                    duties = Duties(number, count, recipe, init, seed, wf.get_default_dtype())
                    self._start(context, duties, self._slots[number])
        except BaseException:
            self.stop()
            raise

    def __len__(self) -> int:
        return len(self._processes)

    def _start(self, context: Any, duties: Duties, slots: list[Any]) -> None:
        take, give = context.Pipe(duplex=False)
        hear, tell = context.Pipe(duplex=False)
        _ends.update((give, hear))
        self._tasks.append(give)
        self._answers.append(hear)
        process = context.Process(target=run, args=(duties, take, tell, slots), daemon=True,
                                  name=f"wayfare-data-{duties.number}")  # fmt: skip
        try:
            with _quiet_start():
                process.start()
            self._processes.append(process)
        except AssertionError as error:
            raise OperationError("DataLoader: this process is itself a worker, and may start none",
                                 fix="Use num_workers=0 here.") from error  # fmt: skip
        except OSError:
            raise
        except Exception as error:
            raise OperationError("DataLoader: the dataset or a function given to the loader cannot be sent to a worker "
                                 f"started by {context.get_start_method()!r}: {error}",
                                 fix="Define them at the top level of a module, or use num_workers=0."
                                 ) from error  # fmt: skip
        finally:
            take.close()
            tell.close()

    def begin_epoch(self, seed: int) -> None:
        """Tell the workers of a new epoch, and drop what is still to come of the one before."""
        self._epoch += 1
        for number in range(len(self)):
            self._tell(number, Epoch(self._epoch, seed))
        for number in range(len(self)):
            while self.outstanding[number]:
                self.answer(number, 0)

    def give(self, number: int, indices: Any, seed: int | None) -> None:
        """Give a worker a task. It may have at most `prefetch` of them that are not answered."""
        slot = self._sent[number] % self.prefetch
        self._tell(number, Task(self._epoch, slot, indices, seed))
        self._sent[number] += 1
        self.outstanding[number] += 1

    def answer(self, number: int, timeout: float) -> tuple[str, Any]:
        """The next answer of a worker: its kind and its body. 0 seconds is no limit."""
        self._check_process()
        pipe = self._answers[number]
        self._await(number, pipe, timeout)
        try:
            message = Message(pipe, lambda head: self._slots[number][head[2]] if self._slots[number] else None)
        except (EOFError, OSError):
            raise self._death(number) from None
        self.outstanding[number] -= 1
        kind, epoch, _ = message.head
        if epoch != self._epoch:
            return SKIPPED, None
        try:
            return kind, message.body()
        except Exception as error:
            raise OperationError(f"DataLoader: a batch from worker {number} cannot be unpickled here: {error}",
                                 fix="Return values of classes that both processes know.") from error  # fmt: skip

    def _await(self, number: int, pipe: Connection, timeout: float) -> None:
        """Wait until a worker has something to say, or any of them has died."""
        sentinels = {process.sentinel: other for other, process in enumerate(self._processes)}
        ready = wait([pipe, *sentinels], timeout or None)
        if pipe in ready:
            return
        if not ready:
            raise OperationError(f"DataLoader: worker {number} sent no batch within {timeout:g} seconds",
                                 fix="Give a longer timeout=, or look at what the dataset waits for.")  # fmt: skip
        raise self._death(next(sentinels[item] for item in ready if isinstance(item, int)))

    def _tell(self, number: int, message: Any) -> None:
        self._check_process()
        try:
            self._tasks[number].send(message)
        except OSError:
            raise self._death(number) from None

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise OperationError("DataLoader: this iterator belongs to another process, from which this one was forked",
                                 fix="Begin a new iteration here.")  # fmt: skip

    def _death(self, number: int) -> OperationError:
        process = self._processes[number]
        process.join(_GRACE)
        code = process.exitcode
        if code is not None and code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
            how, fix = f"was killed by {name}", "Look for a crash in native code that the dataset uses."
            if name == "SIGKILL":
                fix = "Often the system had no memory left: use fewer workers or smaller batches."
        else:
            how = "ended" if code is None else f"ended with exit code {code}"
            fix = "Look in the dataset for what ends the process; num_workers=0 runs it here, where it is seen."
        return OperationError(f"DataLoader: worker {number} (pid {process.pid}) {how} before it had sent its batch",
                              fix=fix)  # fmt: skip


def _end(pid: int, processes: list[Any], tasks: list[Connection], answers: list[Connection]) -> None:
    """End the workers: they are asked, then told, then killed."""
    if os.getpid() != pid:
        return  # a forked copy of the parent: they are not its workers
    with _undisturbed():
        for pipe in tasks:
            try:
                pipe.send(None)
            except OSError:
                pass  # it is dead already
        for pipe in (*tasks, *answers):
            pipe.close()
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


def _join(processes: list[Any]) -> None:
    """Wait a little for processes to end."""
    until = time.monotonic() + _GRACE
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
