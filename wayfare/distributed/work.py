"""`Work`: a call to other processes that is under way, and the thread that drives transfers in the background."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

from wayfare.core.callsite import outside_frames
from wayfare.core.errors import DistributedError
from wayfare.core.mode import watchers
from wayfare.distributed.engine import Request, keep

__all__ = ["Work"]

# MPI moves some pages at each question, so a pause while data move costs more than it lasts. A waiting process asks
# this often at once, then leaves the processor to whoever wants it before each question, and later pauses.
_EAGER_POLLS = 100
_PAUSES_AFTER = 0.02
_LONGEST_PAUSE = 5e-4
# Seconds between two looks at whether a rank that is waited for has left.
_LOOKS_EVERY = 0.1
_give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))


def wait_until(ready: Callable[[], bool], limit: float, look: Callable[[], None] | None = None) -> float | None:
    """Ask until it is so, and `look` from time to time; gives the seconds, or None where the limit was reached."""
    start = time.perf_counter()
    polls, next_look = 0, _LOOKS_EVERY
    while not ready():
        polls += 1
        if polls < _EAGER_POLLS:
            continue
        waited = time.perf_counter() - start
        if waited > limit:
            return None
        if waited < _PAUSES_AFTER:
            _give_way()
            continue
        if look is not None and waited > next_look:
            next_look = waited + _LOOKS_EVERY
            look()
        time.sleep(min(waited / 50, _LONGEST_PAUSE))
    return time.perf_counter() - start


class Stats:
    """What a process group has done: calls, bytes handed to it, and seconds that this process waited."""

    __slots__ = ("bytes", "calls", "waited")

    def __init__(self) -> None:
        self.calls = 0
        self.bytes = 0
        self.waited = 0.0

    def __repr__(self) -> str:
        return f"Stats(calls={self.calls}, bytes={self.bytes}, waited={self.waited:.3f})"


class Work:
    """A call with `async_op=True`: its tensors hold the result after `wait()`, and are not to be touched before."""

    def __init__(
        self, request: Request, *, call: str, timeout: float, stats: Stats | None = None,
        finish: Callable[[], Any] | None = None, look: Callable[[], None] | None = None, background: bool = False,
    ) -> None:  # fmt: skip
        self._request = request
        # What is waited for, for messages and profiles.
        self.call = call
        self._timeout = timeout
        self._stats = stats
        self._finish = finish
        self._look = look
        self._result: Any = None
        if background and not request.test():
            _BACKGROUND.drive(request)

    def is_completed(self) -> bool:
        """Are the results there? Does not wait."""
        if not self._request.test():
            return False
        if self._finish is not None:
            finish, self._finish = self._finish, None
            self._result = finish()
        return True

    def wait(self, timeout: Any = None) -> bool:
        """Wait for the result, at most the group's time-out or this one (a timedelta, or seconds)."""
        looking_on = watchers()
        for watching in looking_on:
            watching.starts(self)
        try:
            return self._wait(timeout)
        finally:
            for watching in looking_on:
                watching.ended(self)

    def _wait(self, timeout: Any) -> bool:
        if self.is_completed():
            return True
        limit = self._timeout if timeout is None else seconds(timeout)
        try:
            waited = wait_until(self._request.test, limit, self._look)
        except DistributedError:
            keep(self._request)
            raise
        if waited is None:
            keep(self._request)
            raise DistributedError(f"distributed: {self.call} has waited {limit:g} s for other ranks, the time-out",
                                   fix="A rank may be slow, dead or doing something else. Give init_process_group a "
                                   "longer timeout, or run with WAYFARE_DISTRIBUTED_DEBUG=1 to have the ranks' calls "
                                   "compared.")  # fmt: skip
        if self._stats is not None:
            self._stats.waited += waited
        return self.is_completed()

    def result(self) -> Any:
        """What the call gave: its tensors. After `wait()`."""
        return self._result

    def get_future(self) -> Any:
        """PyTorch's futures are not here."""
        raise NotImplementedError("Work.get_future: there are no futures; call wait() and then result()")


def seconds(timeout: Any) -> float:
    """A time-out in seconds, from a timedelta or a number."""
    value = timeout.total_seconds() if hasattr(timeout, "total_seconds") else timeout
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise DistributedError(f"distributed: a timeout must be a timedelta or a number of seconds, not {timeout!r}")
    return float(value)


class _Background:
    """Asks for transfers while Python does something else: MPI moves data only when it is called."""

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self._more = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def drive(self, request: Request) -> None:
        with self._more:
            self._requests.append(request)
            if self._thread is None:
                self._stopping = False
                self._thread = threading.Thread(target=self._run, name="wayfare transfers", daemon=True)
                self._thread.start()
            self._more.notify()

    def finish(self, timeout: float) -> None:
        """Wait for what is under way, also where nobody else does: its arrays belong to the transfer until then."""
        with self._more:
            waiting = list(self._requests)
        if wait_until(lambda: all([_through(request) for request in waiting]), timeout) is None:
            late = [request for request in waiting if not _through(request)]
            for request in late:
                keep(request)
            warnings.warn(f"distributed: {len(late)} transfers were not through after {timeout:g} s, when the "
                          "process group ended. Call wait() of every Work, on every rank.",
                          stacklevel=outside_frames())  # fmt: skip

    def stop(self) -> None:
        """End the thread; what is under way is driven by whoever waits for it."""
        with self._more:
            thread, self._thread = self._thread, None
            self._stopping = True
            self._requests.clear()
            self._more.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            with self._more:
                while not self._requests and not self._stopping:
                    self._more.wait()
                if self._stopping:
                    return
                waiting = list(self._requests)
            through = [request for request in waiting if _through(request)]
            if through:
                with self._more:
                    self._requests = [request for request in self._requests if request not in through]
            else:
                time.sleep(1e-4)


def _through(request: Request) -> bool:
    """Need it be driven no more? One that failed tells whoever waits for it."""
    try:
        return request.test()
    except DistributedError:
        return True


_BACKGROUND = _Background()
