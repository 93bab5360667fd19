"""When each memory was written in place.

Recording an op must be cheap, an in-place write may cost a little, so all bookkeeping is done by the write. Time is
counted in node numbers: a value kept by node 17 is stale if its memory was written at time 18. All views of a memory
have the same owner array, and the history belongs to the owner.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from numpy import ndarray

from wayfare.core.device import is_writable
from wayfare.core.errors import InPlaceError
from wayfare.core.spec import spec_of

# One clock for nodes and writes. The creation order of nodes is also a topological order of the graph.
clock = itertools.count(1)
tick = clock.__next__

# The time of the latest write to any memory: a node younger than this needs no check.
latest_write = [0]


class _Thread(threading.local):
    """The time of the latest write in this thread."""

    latest = 0


_thread = _Thread()

# At least this many write times are remembered per memory, to tell which version a node had kept.
_REMEMBERED = 64


class History:
    """The write times of one memory."""

    __slots__ = ("count", "owner", "times")

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.count = 0
        # A list, because a deque takes ten times the memory, and an optimiser has three of these per parameter.
        self.times: list[int] = []

    def forget_the_oldest(self) -> None:
        """Keep only the latest times."""
        del self.times[:-_REMEMBERED]


_histories: dict[int, History] = {}


def owner_of(array: Any) -> Any:
    """The array that owns the memory of this one."""
    while isinstance(array.base, (ndarray, array.__class__)):
        array = array.base
    return array


def _history(array: Any) -> History:
    owner = owner_of(array)
    key = id(owner)
    history = _histories.get(key)
    if history is None:
        # The callback `pop(key, dead reference)` runs in C: in a Python function an exception (Ctrl-C) would be lost.
        history = _histories[key] = History(weakref.ref(owner, partial(_histories.pop, key)))
    return history


def note_write(array: Any) -> None:
    """Record that the memory of this array was written just now."""
    history = _history(array)
    history.count += 1
    now = tick()
    history.times.append(now)
    if len(history.times) > 2 * _REMEMBERED:
        history.forget_the_oldest()
    _thread.latest = latest_write[0] = now


def histories(arrays: Sequence[Any]) -> list[History]:
    """The histories of these arrays' memories, for `note_writes`; valid as long as the arrays live."""
    return list({id(h): h for h in map(_history, arrays)}.values())


def note_writes(records: Sequence[History]) -> None:
    """Record that all these memories were written just now."""
    now = tick()
    for history in records:
        history.count += 1
        history.times.append(now)
        if len(history.times) > 2 * _REMEMBERED:
            history.forget_the_oldest()
    _thread.latest = latest_write[0] = now


def version(array: Any) -> int:
    """How many times the memory of this array was written in place."""
    history = _histories.get(id(owner_of(array)))
    return 0 if history is None else history.count


def version_at(array: Any, time: int) -> int:
    """The version of this memory at an earlier time."""
    history = _histories.get(id(owner_of(array)))
    return 0 if history is None else history.count - sum(t > time for t in history.times)


def written_after(array: Any, time: int) -> bool:
    """Was this memory written after that time?"""
    history = _histories.get(id(array if array.base is None else owner_of(array)))
    return history is not None and history.count > 0 and history.times[-1] > time


class Watch:
    """Tells whether this thread wrote anything, or another thread wrote to given memory, since the last check.

    Writes of other threads to other memory do not matter.
    """

    __slots__ = ("_own", "_since")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Count from now on."""
        self._own, self._since = _thread.latest, latest_write[0]

    def is_surprised(self, memories: Callable[[], Iterable[Any]]) -> bool:
        """Was there such a write? `memories` gives the arrays that other threads must not write to."""
        if _thread.latest != self._own:
            return True
        latest = latest_write[0]
        if latest == self._since:
            return False
        if any([written_after(array, self._since) for array in memories()]):
            return True
        self._since = latest
        return False


def memories_with_history() -> int:
    """How many memories have a history (it is removed with the memory)."""
    return len(_histories)


def check_memory(array: Any, name: str, what: str = "") -> None:
    """Refuse to write to memory that is read-only, or that several elements share."""
    if is_writable(array) or not array.size:
        return
    what = what or f"this {spec_of(array)}"
    if elements_overlap(array):
        raise InPlaceError(f"{name}: several elements of {what} share memory (it was stretched, or its windows "
                           "overlap), so one write would change all of them",
                           fix="Write to a .clone() of it.")  # fmt: skip
    raise InPlaceError(f"{name}: the memory of {what} is read-only, as that of a read-only array, of parts of "
                       "stretched tensors, and of as_strided beyond the tensor's own elements is",
                       fix="Write to a .clone() of it.")  # fmt: skip


def elements_overlap(array: Any) -> bool:
    """Can two elements share memory? True if the stride of a dimension is smaller than the extent of inner ones."""
    if not array.size:
        return False
    reach = 0
    for step, size in sorted(zip(map(abs, array.strides), array.shape, strict=True)):
        if size > 1:
            if step <= reach or step == 0:
                return True
            reach += step * (size - 1)
    return False
