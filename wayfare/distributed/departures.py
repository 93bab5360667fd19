"""Ranks that leave: whoever then waits for one of them is told at once, and does not wait for the time-out.

Every rank numbers the calls of a group, and its messages to and from each rank. One that leaves (its script has ended,
or it calls `destroy_process_group`) gives these numbers to the rank after it and to those it had messages with. A call
with a higher number waits in vain. Of the ranks that wait for one that has left, the first after it knows: it raises,
and its error ends all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from wayfare.core.errors import DistributedError
from wayfare.distributed.engine import Engine

__all__ = ["Departures"]


class Departures:
    """What this rank has called in one group, and what those that have left had called."""

    def __init__(self, engine: Engine, ranks: Sequence[int]) -> None:
        self._engine = engine
        self._ranks = ranks
        self._calls = 0
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()
        # What those that have left have called: their calls, messages they sent here, and took from here.
        self._left: dict[int, list[int]] = {}

    def leave(self) -> None:
        """Tell those who may wait for this rank that it makes no more calls."""
        me, size = self._engine.rank, self._engine.size
        partners = {(me + 1) % size, *self._sent, *self._received} - {me}
        self._engine.leave({r: np.array([self._calls, self._sent[r], self._received[r]]) for r in partners})

    def call(self, what: str) -> Callable[[], None]:
        """All ranks are about to make a call. What is returned raises if one of them has left before it."""
        self._calls += 1
        number = self._calls

        def look() -> None:
            for rank, (calls, _, _) in self._news().items():
                if calls < number:
                    raise self._error(what, rank)

        return look

    def message(self, what: str, rank: int, *, sends: bool) -> Callable[[], None]:
        """A message is about to go to a rank of the group, or to come from it. The same for the two of them."""
        counted, place = (self._sent, 2) if sends else (self._received, 1)
        counted[rank] += 1
        number = counted[rank]

        def look() -> None:
            found = self._news().get(rank)
            if found is not None and found[place] < number:
                raise self._error(what, rank)

        return look

    def _news(self) -> dict[int, list[int]]:
        note = np.empty(3, np.int64)
        while (rank := self._engine.departed(note)) is not None:
            self._left[rank] = note.tolist()
        return self._left

    def _error(self, what: str, rank: int) -> DistributedError:
        return DistributedError(f"distributed: {what} waits for rank {self._ranks[rank]}, which has left: its script "
                                "has ended, or it has called destroy_process_group()",
                                fix="Every rank must make the same calls; one that has nothing to do must make them "
                                "too.")  # fmt: skip
