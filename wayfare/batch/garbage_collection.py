"""How often Python looks for garbage while examples are recorded.

Recording makes many small objects that live until their groups run, and next to no garbage. Python looks for it after
every 700 new objects, which took up to two fifths of the time; here it does so after every 100,000. The collector stays
on: what other threads leave behind is found a little later, not never.
"""

from __future__ import annotations

import gc
import threading

_OBJECTS = 100_000


class Collector:
    """The threshold of the first generation, while any thread records."""

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
        """It has ended: the threshold is what it was, unless somebody else has set it meanwhile."""
        with self._lock:
            self._sessions -= 1
            young, *older = gc.get_threshold()
            if self._sessions == 0 and self._before:
                if young == _OBJECTS:
                    gc.set_threshold(self._before, *older)
                self._before = 0


COLLECTOR = Collector()
