"""A higher threshold of Python's garbage collector while examples are recorded.

Recording makes many small objects that live until their groups run, and almost no garbage. By default Python collects
after every 700 new objects, which took up to 40 % of the time; here it does so after every 400,000. The collector stays
on, so that garbage of other threads is still found, only later.
"""

from __future__ import annotations

import gc
import threading

_OBJECTS = 400_000


class Collector:
    """Sets the threshold of the youngest generation while any session is open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions = 0
        self._before = 0

    def enter(self) -> None:
        """A session begins."""
        with self._lock:
            self._sessions += 1
            young, *older = gc.get_threshold()
            if self._sessions == 1 and 0 < young < _OBJECTS:
                self._before = young
                gc.set_threshold(_OBJECTS, *older)

    def leave(self) -> None:
        """A session ends: restore the threshold after the last one, unless somebody else has changed it."""
        with self._lock:
            self._sessions -= 1
            young, *older = gc.get_threshold()
            if self._sessions == 0 and self._before:
                if young == _OBJECTS:
                    gc.set_threshold(self._before, *older)
                self._before = 0


COLLECTOR = Collector()
