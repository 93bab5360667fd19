"""`wf.batching`: a block whose ops are recorded and run in groups. A map is such a block around its examples."""

from __future__ import annotations

import threading
from typing import Any

from wayfare.batch.analysis.hooks import frame_registers_hooks
from wayfare.batch.fibers.recursion import room_for_recursion
from wayfare.batch.record import op_fast_paths as _op_fast_paths  # noqa: F401 - installs methods of lazy tensors
from wayfare.batch.run.schedule import Agenda, ByDepth, Schedule
from wayfare.batch.session import Session
from wayfare.batch.stats import Stats
from wayfare.compiler.bypass import end_all_bypasses
from wayfare.core.callsite import is_debugged, user_frame
from wayfare.core.errors import ArgumentError, ArgumentTypeError, OperationError
from wayfare.core.mode import changed_mode, current, watcher, watchers

__all__ = ["batching"]


class ThreadState(threading.local):
    """What each thread has of its own: the statistics of its last map or block, and its session."""

    stats: Stats | None = None
    # The active session.
    session: Session | None = None


THREAD = ThreadState()


def check_options(schedule: Any, limit: Any) -> None:
    """Raise an error unless these are a schedule and a number of bytes, or None."""
    if schedule is not None and not isinstance(schedule, Schedule):
        raise ArgumentTypeError(f"batching: schedule must be a Schedule, not {type(schedule).__name__}",
                                fix="Use wf.batching.Agenda() or wf.batching.ByDepth().")  # fmt: skip
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise ArgumentError(f"batching: limit is a number of bytes, not {limit!r}")


def line_by_line() -> bool:
    """Whether ops must run on the user's own line: under a debugger, or a watcher that allows no batches."""
    if is_debugged():
        return True
    return any(not watching.allows_batches for watching in watchers())


class _NoSession:
    """Stands for a session under a watcher that allows no batches: nothing is recorded."""

    def __init__(self) -> None:
        self.stats = Stats()


class batching:
    """`with wf.batching() as b:` — ops in the block are recorded, and run in groups when their values are needed.

    Reading a value runs what it needs; the end of the block runs the rest. Tensors made in the block are ordinary ones
    afterwards. `b.stats` has the statistics. A block (or a `wf.map`) inside another one belongs to the outer one.
    """

    Agenda = Agenda
    ByDepth = ByDepth
    _is_block = True

    def __init__(self, schedule: Schedule | None = None, limit: int | None = None) -> None:
        check_options(schedule, limit)
        self._schedule = schedule
        self._limit = limit
        self._mode: Any = None
        self._room: Any = None
        self._session: Any = None
        self._outer_session: Session | None = None
        self._watcher: Any = None
        self._inner = False

    @staticmethod
    def last() -> Stats | None:
        """The statistics of the last session of this thread; None before the first."""
        return THREAD.stats

    @property
    def stats(self) -> Stats:
        """The statistics of this block; complete when it has ended."""
        if self._session is None:
            raise OperationError("batching: there are no statistics before the block was entered")
        stats: Stats = self._session.stats
        return stats

    def __enter__(self) -> batching:
        if self._session is not None:
            raise OperationError("batching: this block is in use or was used already", fix="Make a new wf.batching().")
        executor = current().executor
        self._inner = isinstance(executor, Session)
        if self._inner:
            self._session = executor
            return self
        if line_by_line():
            # Ops run at once, as if this block were inside another one that does nothing.
            self._inner, self._session = True, _NoSession()
            return self
        executor.not_replayable("it uses wf.batching")
        if not executor.allows_batches:
            raise OperationError("batching: a block cannot be inside vmap or another transform of functions",
                                 fix="Put wf.batching() outside of it.")  # fmt: skip
        outer = current().replace(executor=None)
        end_all_bypasses()  # compiled functions are opaque calls here
        self._session = Session(outer, self._schedule, self._limit)
        self._session.no_common_calls = self._is_block and frame_registers_hooks(user_frame(2))
        self._room = room_for_recursion()
        self._room.__enter__()
        self._mode = changed_mode(executor=self._session)
        self._mode.__enter__()
        self._outer_session, THREAD.session = THREAD.session, self._session
        self._watcher = watcher()
        if self._watcher is not None:
            self._watcher.starts(self._session)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._inner:
            return
        try:
            if error[0] is None:
                self._session.close()
            else:
                self._session.release()
        except BaseException:
            self._session.release()
            raise
        finally:
            THREAD.stats, THREAD.session = self._session.stats, self._outer_session
            self._mode.__exit__(*error)
            self._room.__exit__(*error)
            if self._watcher is not None:
                self._watcher.ended(self._session)


class MapSession(batching):
    """The session of a map."""

    _is_block = False
