"""Memory in use over time: the arrays that ops and gradient rules made, and what was alive at the highest point.

Each array is watched by a weak reference whose callback is the `append` of a queue, so no Python runs inside a
destructor; the queue is emptied at the next thing that happens. What was alive at the peak is written down when memory
first falls after a new record, never while it grows.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from wayfare.see.profile.costs import Place

Array = np.ndarray[Any, Any]
# Points of the picture; when there are more, two become one.
_POINTS = 1024
# What is alive is listed again when memory is higher by this factor than at the last list: otherwise a long climb with
# many small falls would take forever.
_STEP = 1.01
# With more kinds of arrays (place and shape) than this, those of which none is left are forgotten.
_KINDS = 4096


class Alive:
    """Arrays of one shape, made at one place, that are in use."""

    __slots__ = ("bytes", "count", "dtype", "place", "shape")

    def __init__(self, place: Place, shape: tuple[int, ...], dtype: str, count: int = 0, size: int = 0) -> None:
        self.place = place
        self.shape, self.dtype = shape, dtype
        self.count, self.bytes = count, size


class _Held(weakref.ref[Array]):
    """A weak reference to an array that was made. It goes to the queue when the array dies."""

    __slots__ = ("alive", "key", "size")

    alive: Alive
    key: int
    size: int


class Memory:
    """Bytes in use, beyond what was there at the beginning."""

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0
        self.peak_at = 0.0
        self.at_peak: list[Alive] = []
        self.curve = Curve()
        self._written = 0.0  # how high memory was when `at_peak` was written
        self._held: dict[int, _Held] = {}
        self._dead: deque[_Held] = deque()
        self._bury = self._dead.append
        self._last = 0.0
        self._alive: dict[Any, Alive] = {}

    def hold(self, array: Array, place: Place) -> None:
        """Count an array until it is gone, unless it is counted already."""
        key = id(array)
        size: int = array.nbytes
        if not size or key in self._held:
            return
        kind = (place, array.shape, array.dtype)
        alive = self._alive.get(kind)
        if alive is None:
            alive = self._alive[kind] = Alive(place, array.shape, array.dtype.name)
        held = self._held[key] = _Held(array, self._bury)
        held.key, held.alive, held.size = key, alive, size
        alive.bytes += size
        alive.count += 1
        self.now += size

    def drain(self) -> None:
        """Subtract what is gone. Called before an array is counted, which may have the address of a dead one."""
        dead = self._dead
        if not dead:
            return
        if self.now > self.peak:
            self._note_peak(_STEP)
        while dead:
            held = dead.popleft()
            if self._held.get(held.key) is held:
                del self._held[held.key]
            held.alive.bytes -= held.size
            held.alive.count -= 1
            self.now -= held.size
        if len(self._alive) > _KINDS:
            self._alive = {kind: alive for kind, alive in self._alive.items() if alive.count}

    def mark(self, at: float) -> None:
        """A point of the curve."""
        self._last = at
        self.curve.add(at, self.now)

    def _note_peak(self, step: float) -> None:
        """A new peak: list what is alive, if memory is higher by a `step` than at the last list."""
        self.peak, self.peak_at = self.now, self._last
        if self.now > self._written * step:
            self._written = self.now
            self.at_peak = [Alive(a.place, a.shape, a.dtype, a.count, a.bytes) for a in self._alive.values() if a.count]

    def close(self) -> None:
        """The end: let go of all references."""
        if self.now > self.peak:
            self._note_peak(1.0)
        self.drain()
        self._held.clear()
        self._dead.clear()
        self._alive.clear()


class Curve:
    """(time, bytes) points, never more than a few thousand: each is the highest of a stretch of events."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.bytes: list[int] = []
        self._stretch = 1
        self._left = 0

    def add(self, at: float, size: int) -> None:
        """One more event."""
        if self._left:
            self._left -= 1
            if size > self.bytes[-1]:
                self.bytes[-1], self.times[-1] = size, at
            return
        if len(self.times) >= _POINTS:
            self._halve()
        self.times.append(at)
        self.bytes.append(size)
        self._left = self._stretch - 1

    def _halve(self) -> None:
        pairs = [max(i, i + 1, key=self.bytes.__getitem__) for i in range(0, len(self.times) - 1, 2)]
        self.times = [self.times[i] for i in pairs]
        self.bytes = [self.bytes[i] for i in pairs]
        self._stretch *= 2

    def points(self) -> list[tuple[float, int]]:
        """(time, bytes) of all points."""
        return list(zip(self.times, self.bytes, strict=True))


def in_columns(points: Iterable[tuple[float, int]], count: int, end: float) -> list[int]:
    """The highest value in each of `count` equal parts of the time; a part without an event has the last value."""
    highest, column, last = [0] * count, -1, 0
    for at, size in points:
        i = min(int(at / end * count), count - 1) if end > 0 else 0
        if i > column:
            highest[column + 1 : i] = [last] * (i - column - 1)
            # What was in use before is still in use when this part begins.
            highest[i] = last
            column = i
        highest[i] = max(highest[i], size)
        last = size
    highest[column + 1 :] = [last] * (count - column - 1)
    return highest
