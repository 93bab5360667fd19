"""The profile of a mapped function, kept from one map to the next: must examples run in order, and does batching pay?

The first example of a new function runs to its end before the others begin (unless analysis shows that the function
only computes). If it changes what all examples see, the others follow one by one, as in the loop. After that, a few
examples of some maps run as a plain loop and are timed. If the map takes longer than the loop, the function runs as a
loop from then on, with one warning. Times are those of the thread, because on a busy machine others would count
too. Both decisions are tried again, ever less often, because functions and data change.
"""

from __future__ import annotations

import functools
import sys
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from wayfare.batch.analysis.function_analysis import FunctionAnalysis
from wayfare.core.callsite import outside_frames

# After the first map, in this many maps some of the examples are timed as a loop.
_TRIALS = 3
# One example in `_SHARE` is timed, but at least `_LEAST` and at most `_MOST`.
_SHARE, _LEAST, _MOST = 8, 3, 8
# A map may take this much longer than the loop, as a ratio (a smaller difference may be noise); and the ratio that is
# clear after fewer trials.
_MAX_RATIO, _CLEAR_RATIO = 1.1, 2.0
# The assumed time of the loop's backward pass, relative to its forward pass: it cannot be measured here.
_BACKWARD = 1.0
# A map that runs as a loop is batched again after this many maps, then after twice as many, and so on up to a maximum.
_RETRY_AFTER, _MAX_RETRY_AFTER = 8, 512
# Maps that pay are compared with the loop again after this many maps.
_RECHECK_AFTER = 64
# The number of maps whose times are remembered.
_REMEMBERED = 5
# Of the maps that run as a loop, one in so many is timed. (A prime: full collections of garbage are periodic too.)
_TIMED_LOOPS = 7


class MapTiming:
    """The time of one batched map in seconds of its thread, and of the backward passes through it so far."""

    __slots__ = ("backward", "examples", "seconds")

    def __init__(self, examples: int) -> None:
        self.examples = examples
        self.seconds = self.backward = 0.0


class FunctionProfile:
    """What is known about one function."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.of: Any = None  # a weak reference to its code, which ends this profile
        self.maps = 0
        self.path_maps = 0  # maps in which examples might have run along recorded paths
        self.loop_reason = ""  # why its maps run as a plain loop; "" where they are batched
        self.in_order = False  # True if that is because examples change what all of them see
        # True if that was found too late, after other examples had begun that cannot restart.
        self.never_batch = False
        self._retry_at = 0  # the map in which batching is tried again
        self._backoff = 1
        self.analysis: FunctionAnalysis | None = None  # of the function that was mapped last
        self.workers: Any = None  # the WorkerProfile, if it was mapped with `workers=`
        self._trials = self._timed_loops = 0
        self._warned: set[str] = set()
        # Seconds for an example in the loop, and the timings of the last maps.
        self.by_loop: list[float] = []
        self.by_map: list[MapTiming] = []
        self.waits: dict[str, int] = {}
        # So many of the next maps run as a plain loop, if they have at most so many examples.
        self._straight = self._straight_most = 0

    # -- how the next map runs

    def runs_straight(self, count: int) -> bool:
        """Whether this map of `count` examples runs as a plain loop: there is nothing to choose."""
        if not 0 < count <= self._straight_most or not self._straight:
            return False
        self._straight -= 1
        self.maps += 1
        self.path_maps += 1
        return True

    def go_straight(self, most: int | None, skip: Callable[[int], int] | None = None) -> None:
        """A map has run as a loop. The next ones do too, as long as nothing is to be tried; `skip` says how many
        of so many maps may pass without a look at recorded paths."""
        left = _MAX_RETRY_AFTER if self.never_batch else self._retry_at - self.maps - 1
        self._straight = max(left if skip is None or left <= 0 else skip(left), 0)
        self._straight_most = sys.maxsize if most is None else most

    def plan(self, count: int, function: Any) -> tuple[bool, int, int]:
        """(whether the whole map runs as a loop, how many examples run first alone, how many are timed as a loop)."""
        self.maps += 1
        self._straight = 0
        if self.never_batch:
            return True, 0, 0
        if self.loop_reason:
            if self.maps < self._retry_at:
                return True, 0, 0
            return False, 1, 0
        first = self.first(function)
        timed = 0
        tries = self.maps > 1 and not first and (self._trials < _TRIALS or self.maps >= self._retry_at)
        if tries and count <= _LEAST:
            return self.maps % 2 == 0, 0, 0  # too few to be split: every other map runs as a loop
        if tries:
            timed = min(max(count // _SHARE, _LEAST), _MOST)
        return False, first, timed

    def first(self, function: Any) -> int:
        """How many examples run first, alone, to find out whether they change what all examples see."""
        return 0 if self.analysis_of(function).tried and not self.in_order else 1

    def analysis_of(self, function: Any) -> FunctionAnalysis:
        """The analysis of this function. The last function with this code may have referred to other objects."""
        if self.analysis is None or not self.analysis.is_of(function):
            self.analysis = FunctionAnalysis(function)
        return self.analysis

    # -- what was observed

    def set_in_order(self, why: str, began: list[int]) -> None:
        """Examples run one after another, because one of them changes what all examples see."""
        self.loop_reason, self.in_order = why, True
        self._back_off()
        late = ""
        if began:
            self.never_batch = True
            which = f"example {began[0]}" if len(began) == 1 else f"examples {began[0]} to {began[-1]}"
            late = (f" This time {which} had begun before, and read the old state: for the results of the loop, run "
                    "this map again with batch=False.")  # fmt: skip
        self.warn_once(f"map: the examples of {self.name} run one after the other, because {why}.{late}")

    def add_map(self, timing: MapTiming, waits: dict[str, int]) -> None:
        """Add the timing of a batched map."""
        if self.in_order and self.loop_reason and self.maps >= self._retry_at:
            # Batching was tried again, and nothing that examples share was changed.
            self.loop_reason, self.in_order, self._backoff = "", False, 1
        if self.loop_reason and self.in_order:
            return
        self.waits = waits
        if self.maps > 1:  # the first one also compiles kernels and fast paths
            self.by_map = [*self.by_map[1 - _REMEMBERED :], timing]
            self._judge()

    def wants_timing(self) -> bool:
        """Whether a map that runs as a loop is timed."""
        return self.maps % _TIMED_LOOPS == 0 or len(self.by_loop) < 2

    def timed(self, seconds: list[float]) -> None:
        """Add the times of examples that ran as a loop."""
        # Not the first one: caches are cold. The first loop of all compiles kernels too, and counts only for itself.
        warm = seconds[1:] or seconds
        if self._timed_loops == 1:
            self.by_loop.clear()
        self._timed_loops += 1
        self.by_loop.append(sum(warm) / len(warm))
        del self.by_loop[:-_REMEMBERED]
        if self.loop_reason and not self.in_order:
            self._judge()

    def _judge(self) -> None:
        """Decide whether batching pays."""
        self._trials += 1
        if not self.by_loop or not self.by_map:
            return
        by_map, by_loop = self.costs()
        # A clear difference, both for the first and for the last examples, needs no further trial: as a loop all
        # examples are timed, so a wrong decision is corrected soon.
        if self._trials < 2 or (self._trials < _TRIALS and by_map < _CLEAR_RATIO * by_loop):
            return
        # Hysteresis: going back to batching needs a better ratio than staying there.
        if by_map > (1.0 if self.loop_reason else _MAX_RATIO) * by_loop:
            if not self.loop_reason:
                self.loop_reason = f"it takes {by_map / by_loop:.1f} times as long as the loop"
                self._warn_slower(by_map, by_loop)
            if self.maps >= self._retry_at:
                self._back_off()
        elif self.loop_reason:
            self.loop_reason, self._backoff, self._retry_at = "", 1, self.maps + _RECHECK_AFTER
        else:
            self._retry_at = self.maps + _RECHECK_AFTER

    def costs(self, timings: list[MapTiming] | None = None) -> tuple[float, float]:
        """Seconds for an example batched and as a loop, with backward passes if there were any."""
        timings = timings or self.by_map
        # The best map: the first ones also compile kernels. The median of loops: Python collects all garbage in some.
        by_map, by_loop = min([r.seconds / r.examples for r in timings]), _median(self.by_loop)
        backward = [r.backward / r.examples for r in timings if r.backward]
        if backward:
            by_map, by_loop = by_map + _median(backward), by_loop * (1 + _BACKWARD)
        return by_map, by_loop

    def _back_off(self) -> None:
        self._retry_at = self.maps + self._backoff * (1 if self.in_order else _RETRY_AFTER)
        self._backoff = min(2 * self._backoff, _MAX_RETRY_AFTER)

    # -- warnings

    def _warn_slower(self, by_map: float, by_loop: float) -> None:
        lines = sorted(self.waits.items(), key=lambda item: -item[1])[:3]
        where = ""
        if lines:
            read = ", ".join([f"{line} ({count} times a map)" for line, count in lines])
            where = (f" Its examples wait for values at {read}: each wait ends a group, so read values late, all at "
                     "once, or after the map.")  # fmt: skip
        self.warn_once(f"map: {self.name} runs as a plain loop from now on, because batched it takes "
                       f"{1e3 * by_map:.3g} ms an example and as a loop {1e3 * by_loop:.3g} ms.{where}")  # fmt: skip

    def warn_once(self, sentence: str) -> None:
        """Warn, once for each message."""
        if sentence not in self._warned and len(self._warned) < 8:
            self._warned.add(sentence)
            warnings.warn(sentence, stacklevel=outside_frames())

    def __str__(self) -> str:
        if not self.by_loop or not self.by_map:
            return self.loop_reason
        by_map, by_loop = self.costs()
        return (f"measured for {self.name}: {1e3 * by_map:.3g} ms an example batched, {1e3 * by_loop:.3g} ms as a loop"
                + (f"; it runs as a loop: {self.loop_reason}" if self.loop_reason else ""))  # fmt: skip


def _median(times: list[float]) -> float:
    return sorted(times)[len(times) // 2]


# By id of the code object, or of the module or object that is called.
_PROFILES: dict[int, FunctionProfile] = {}


def profile_of(function: Any) -> FunctionProfile:
    """The profile of a function: one for each code object, or for each module or object that is called."""
    if function.__class__ is types.FunctionType:
        key: Any = function.__code__
    else:
        while isinstance(function, functools.partial):
            function = function.func
        key = function.__func__ if isinstance(function, types.MethodType) else function
        key = getattr(key, "__code__", key)
    found = _PROFILES.get(id(key))
    if found is not None:
        return found
    # The callback is a C function: an exception (Ctrl-C) in Python code would be lost there.
    forget: Any = functools.partial(_PROFILES.pop, id(key))
    try:
        held = weakref.ref(key, forget)
    except TypeError:  # no weak references
        return profile_of(type(key))
    name = getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]
    found = _PROFILES[id(key)] = FunctionProfile(name)
    found.of = held
    return found
