"""Which memory was written in place, and when.

Recording an op must cost next to nothing, writing in place may cost a little; so the bookkeeping is all on the side of
the write. Time is counted in node numbers: a value kept by node 17 is stale if its memory was written at time 18. Views
of one memory share its owner array, so they share the record without doing anything.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

from numpy import ndarray

# One clock for nodes and writes; creation order of nodes is also a topological order of the graph.
tick = itertools.count(1).__next__

# The time of the latest write to any memory: a node younger than this needs no check.
latest_write = [0]

# How many times are remembered per memory, to tell which version a node had kept.
_REMEMBERED = 64


class History:
    """When one memory was written."""

    __slots__ = ("count", "owner", "times")

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.count = 0
        self.times: deque[int] = deque(maxlen=_REMEMBERED)


_histories: dict[int, History] = {}


def owner_of(array: Any) -> Any:
    """The array that owns the memory of this one."""
    while isinstance(array.base, ndarray):
        array = array.base
    return array


def _history(array: Any) -> History:
    owner = owner_of(array)
    key = id(owner)
    history = _histories.get(key)
    if history is None:
        history = _histories[key] = History(weakref.ref(owner, lambda _dead: _histories.pop(key, None)))
    return history


def note_write(array: Any) -> None:
    """The memory of this array was written just now."""
    history = _history(array)
    history.count += 1
    now = tick()
    history.times.append(now)
    latest_write[0] = now


def histories(arrays: Sequence[Any]) -> list[History]:
    """The records of these arrays' memories, for `note_writes`; they are good as long as the arrays live."""
    return list({id(h): h for h in map(_history, arrays)}.values())


def note_writes(records: Sequence[History]) -> None:
    """All these memories were written just now."""
    now = tick()
    for history in records:
        history.count += 1
        history.times.append(now)
    latest_write[0] = now


def version(array: Any) -> int:
    """How many times the memory of this array was written in place."""
    history = _histories.get(id(owner_of(array)))
    return 0 if history is None else history.count


def version_at(array: Any, time: int) -> int:
    """The version of this memory at an earlier time."""
    history = _histories.get(id(owner_of(array)))
    return 0 if history is None else history.count - sum(t > time for t in history.times)


def memories_with_history() -> int:
    """How many memories have a record (they go away with the memory)."""
    return len(_histories)
