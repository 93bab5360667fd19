"""The worker processes of a loader, as the parent sees them: starting, giving work, hearing answers, and ending.

Every worker has pipes of its own, so a worker that is killed in the middle of a word harms no other, and its end is
noticed as soon as somebody waits for an answer.
"""

from __future__ import annotations

import multiprocessing
import os
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import wayfare as wf
from wayfare.core.errors import ArgumentError, ArgumentTypeError, OperationError
from wayfare.core.processes.parcel import Message, shared_slots
from wayfare.core.processes.starting import default_context, end, how_it_ended, quiet_start, two_pipes, undisturbed
from wayfare.data.fetch import Recipe
from wayfare.data.worker import SKIPPED, Duties, Epoch, Task, run


def context_for(chosen: Any) -> Any:
    """How processes are started: as the user says, or by fork where that is sound, or else by spawn."""
    if chosen is None:
        return default_context()
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
        # Also at the end of the program, and when the owner of the workers is gone.
        self.stop = weakref.finalize(self, end, self._pid, self._processes, self._tasks, self._answers)
        try:
            with undisturbed():
                for number in range(count):
                    duties = Duties(number, count, recipe, init, seed, wf.get_default_dtype())
                    self._start(context, duties, self._slots[number])
        except BaseException:
            self.stop()
            raise

    def __len__(self) -> int:
        return len(self._processes)

    def _start(self, context: Any, duties: Duties, slots: list[Any]) -> None:
        take, give, hear, tell = two_pipes(context)
        self._tasks.append(give)
        self._answers.append(hear)
        process = context.Process(target=run, args=(duties, take, tell, slots), daemon=True,
                                  name=f"wayfare-data-{duties.number}")  # fmt: skip
        try:
            with quiet_start():
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
        how, signal = how_it_ended(process)
        fix = "Look in the dataset for what ends the process; num_workers=0 runs it here, where it is seen."
        if signal == "SIGKILL":
            fix = "Often the system had no memory left: use fewer workers or smaller batches."
        elif signal:
            fix = "Look for a crash in native code that the dataset uses."
        return OperationError(f"DataLoader: worker {number} (pid {process.pid}) {how} before it had sent its batch",
                              fix=fix)  # fmt: skip
